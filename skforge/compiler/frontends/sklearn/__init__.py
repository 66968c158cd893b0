"""scikit-learn models."""

from skforge.compiler.frontends.sklearn import boosting, ensembles, forest, histogram

__all__ = ["boosting", "ensembles", "forest", "histogram"]
