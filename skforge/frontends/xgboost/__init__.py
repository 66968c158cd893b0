"""XGBoost models and files."""

from skforge.frontends.xgboost import model as model
