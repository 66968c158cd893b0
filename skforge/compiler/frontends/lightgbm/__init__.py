"""LightGBM models and files."""

from skforge.compiler.frontends.lightgbm import model as model
