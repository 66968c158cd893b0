"""CatBoost models and files."""

from skforge.frontends.catboost import model as model
