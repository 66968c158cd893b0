"""SHAP values of trees, as a representation of forests."""
