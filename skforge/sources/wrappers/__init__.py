"""Answers of scikit-learn's wrappers, computed from the raw scores of their members."""
