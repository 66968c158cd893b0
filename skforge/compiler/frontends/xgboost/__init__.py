"""Models and files of XGBoost."""

from skforge.compiler.frontends.xgboost import model

__all__ = ["model"]
