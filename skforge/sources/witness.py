"""Notices that a model is no longer the one that was compiled.

A forest that is fitted again, or trained further, changes in place, while what was
compiled of it does not: attributes and answers taken from both would not fit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge.compiler.frontends.base import class_names
from skforge.exceptions import InvalidModelError

#: What ``fit`` of scikit-learn's tree ensembles replaces; ``offset_`` is also set by
#: hand, to move the threshold of an IsolationForest.
_FITTED = ("tree_", "estimators_", "_predictors", "estimator_weights_", "offset_")


class Witness:
    """A model, and what of it another fit would replace.

    It sees other trees, more trees and fewer, but not numbers changed inside a tree
    of scikit-learn, nor another XGBoost model of as many rounds loaded into the same
    Booster: to see these takes as long as reading the model.

    Parameters
    ----------
    model : object
        What was compiled; a path, a ModelProto and a Forest have nothing to replace.
    """

    __slots__ = ("_model", "_seen")

    def __init__(self, model: Any) -> None:
        self._model = model
        self._seen = _traces(model)

    def check(self) -> None:
        """Raise ``InvalidModelError`` if the model has changed."""
        now = _traces(self._model)
        same = len(now) == len(self._seen) and all(map(_same, now, self._seen))
        if not same:
            raise InvalidModelError(
                f"The {type(self._model).__name__} has changed since it was compiled: "
                "it was fitted again, trained further or edited. Its attributes and "
                "answers no longer fit the compiled predictions; call fit of the "
                "CompiledForest again."
            )


def _traces(model: Any) -> list[Any]:
    """Return objects that stay the same, and numbers that stay equal, while it does."""
    names = class_names(model)
    if "xgboost.sklearn.XGBModel" in names:
        return [model.missing, *_traces(model.get_booster())]
    if "xgboost.core.Booster" in names:
        rounds, best = model.num_boosted_rounds(), model.attr("best_iteration")
        return [model, rounds, best, model.num_features()]
    if "lightgbm.sklearn.LGBMModel" in names:
        return _traces(model.booster_)
    if "lightgbm.basic.Booster" in names:
        leaves = model.lower_bound(), model.upper_bound()
        return [model, model.current_iteration(), model.best_iteration, *leaves]
    own = getattr(model, "__dict__", {}) if hasattr(model, "fit") else {}
    traces: list[Any] = []
    for name in _FITTED:
        value = own.get(name)
        traces.append(value)
        if isinstance(value, np.ndarray) and value.dtype == object:
            value = value.ravel().tolist()
        if isinstance(value, list):
            traces += [getattr(one, "tree_", one) for one in value]
    return traces


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    plain = isinstance(one, (int, float, str)) and isinstance(other, type(one))
    return plain and bool(one == other or (one != one and other != other))  # NaN
