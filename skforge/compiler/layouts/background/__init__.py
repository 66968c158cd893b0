"""Interventional SHAP values: features that are not known come from background rows."""
