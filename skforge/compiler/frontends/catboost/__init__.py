"""CatBoost models and files."""

from skforge.compiler.frontends.catboost import model as model
