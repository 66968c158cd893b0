"""XGBoost models and files."""

from skforge.compiler.frontends.xgboost import model as model
