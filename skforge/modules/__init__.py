"""Compiled forests, as programs without scikit-learn use them."""
