"""LightGBM models and files."""

from skforge.frontends.lightgbm import model as model
