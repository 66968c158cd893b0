"""Estimators compiled by the plain schedule, for tests of everything around kernels."""

from __future__ import annotations

from typing import Any

from skforge import CompiledForest, Schedule


def plain(model: Any, **how: Any) -> CompiledForest:
    """Return an estimator with one kernel, which walks single rows.

    It compiles in .1 s; kernels of the default schedules take .7 to 1 s in all, if
    batches of all sizes come (7 trees, a core of 2025). Those are compared with the
    sources in ``tests/exactness``, and with some models by most files that use this.
    """
    return CompiledForest(model, tuning="off", schedule=Schedule(), **how)


def fit_both(model: Any, X: Any, y: Any) -> tuple[Any, CompiledForest]:
    """Return a model that is trained on rows, and what is compiled of it."""
    model = model.fit(X, y)
    return model, plain(model).fit(X)
