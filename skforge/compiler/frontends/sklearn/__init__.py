"""scikit-learn models."""

from skforge.compiler.frontends.sklearn import ensembles, histogram

__all__ = ["ensembles", "histogram"]
