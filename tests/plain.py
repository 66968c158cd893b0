"""Estimators compiled by the plain schedule, for tests of everything around kernels."""

from __future__ import annotations

from typing import Any

from skforge import CompiledForest, Schedule


def plain(model: Any, **how: Any) -> CompiledForest:
    """Return an estimator with one kernel, which walks single rows.

    It compiles in .1 s where the kernels of the default schedules take .9 s (7 trees,
    a core of 2025). Those are compared with the sources in ``tests/exactness``, and
    with a few models in each file that uses this.
    """
    return CompiledForest(model, tuning="off", schedule=Schedule(), **how)
