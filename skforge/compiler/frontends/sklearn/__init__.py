"""scikit-learn models."""

from skforge.compiler.frontends.sklearn import (
    boosting,
    ensembles,
    forest,
    histogram,
    isolation,
)

__all__ = ["boosting", "ensembles", "forest", "histogram", "isolation"]
