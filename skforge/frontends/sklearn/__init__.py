"""scikit-learn models."""

from skforge.frontends.sklearn import ensembles, histogram, leaf_weights, onedal

__all__ = ["ensembles", "histogram", "leaf_weights", "onedal"]
