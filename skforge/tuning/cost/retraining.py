"""Correct a cost model with measurements of the current forest.

The times of a few dozen schedules say little about forests in general, but much about
this one: a small boosted forest learns the model's error for them. Without a model (as
on GPUs), it learns the error of the estimate.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from skforge.compiler.frontends import load_forest
from skforge.compiler.runtime.module import CompiledModule
from skforge.compiler.schedule.schedule import Schedule
from skforge.tuning.cost.cost_model import CostModel, compiled
from skforge.tuning.cost.features import Featured, Setting, featurize

Array = NDArray[np.float64]

#: Minimum times to fit a forest; with fewer, only the median error is corrected.
FEWEST = 6

PARAMETERS: dict[str, Any] = {
    "max_iter": 40,
    "max_leaf_nodes": 6,
    "min_samples_leaf": 1,
    "learning_rate": 0.15,
    "l2_regularization": 1.0,
    "early_stopping": False,
    "random_state": 0,
}


class Retrained:
    """Predicts times of schedules in one setting with a corrected cost model."""

    def __init__(self, model: CostModel | None, setting: Setting) -> None:
        self._model, self._setting = model, setting
        self._offset = 0.0
        self._correction: CompiledModule | None = None

    def log_row(self, schedules: Sequence[Schedule]) -> Array:
        """Return the predicted natural logarithm of the nanoseconds per row."""
        featured = featurize(self._setting, schedules)
        found = self._without(featured) + self._offset
        if self._correction is not None and len(schedules):
            found = found + self._correction.predict_raw(featured.matrix).reshape(-1)
        return found

    def learn(self, schedules: Sequence[Schedule], seconds: Sequence[float]) -> None:
        """Fit the correction to all measurements so far, in seconds per call."""
        if not schedules:
            return
        featured = featurize(self._setting, schedules)
        took = np.log(np.asarray(seconds) * 1e9 / self._setting.n_rows)
        error = took - self._without(featured)
        self._offset = float(np.median(error))
        self._correction = None
        if len(schedules) >= FEWEST:
            # Give fast schedules more weight: these must be ranked well.
            weight = np.exp(took.min() - took)
            self._correction = _fitted(featured.matrix, error - self._offset, weight)

    def _without(self, featured: Featured) -> Array:
        if self._model is None:
            return featured.log_estimate
        return self._model.log_row(featured)


def _fitted(features: Array, error: Array, weight: Array) -> CompiledModule:
    """Train a small forest and compile it; scikit-learn would use all threads."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    learner = HistGradientBoostingRegressor(**PARAMETERS)
    with warnings.catch_warnings(), threadpool_limits(limits=1):
        warnings.simplefilter("ignore")  # few samples, constant columns
        learner.fit(features, error, weight)
    return compiled(load_forest(learner))
