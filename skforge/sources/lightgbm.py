"""Rows as LightGBM takes them: by position, float32 or float64, zeros where absent."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.frames import (
    FrameColumns,
    is_category,
    is_plain,
    number_dtype,
)
from skforge.exceptions import InvalidInputError
from skforge.sources.sparse import most_entries

Array = NDArray[Any]


class LightGBMBoosterSource:
    """A bare Booster: ``Booster.predict(X)``, which checks little but the width."""

    fill, labels, leaf_dtype, flat_leaves = 0.0, False, np.int32, False
    _warns = False  # whether rows without names make it warn
    _has_no_labels = False  # whether it predicts raw scores, with a warning

    def __init__(self, booster: Any, forest: Forest) -> None:
        self._model = self._booster = booster
        self._n_features = forest.n_features
        self._columns = FrameColumns(forest.category_names)
        self._named = any(forest.category_names)

    def rows(self, X: Any, method: str) -> Any:
        """Take numbers; everything else is LightGBM's business."""
        if type(X) is np.ndarray:
            if X.ndim != 2 or not is_plain(X.dtype) or self._warns:
                return None
            if X.dtype not in (np.float32, np.float64):
                # LightGBM has no integers: they lose what a float32 cannot hold
                X = X.astype(np.float32)
        elif type(X).__name__ == "DataFrame" and hasattr(X, "iloc"):
            X = self._numbers_of(X)
        elif type(X).__name__ == "csr_matrix":
            known = X.dtype in (np.float32, np.float64) and most_entries(X) < 2
            if not known or self._warns:
                return None
        else:
            return None
        if X is None or X.shape[0] == 0 or X.shape[1] != self._n_features:
            return None
        return X

    def _numbers_of(self, X: Any) -> Array | None:
        """Return a data frame's numbers; its columns count by position, not name.

        Columns of category dtype are those of the training frame, in order.
        """
        if self._booster.pandas_categorical and not self._named:
            return None
        if not len(X.columns) or not X.columns.is_unique:
            return None
        kept = [number_dtype(one) for one in X.dtypes if not is_category(one)]
        if any(one is None for one in kept):
            return None
        dtype = np.result_type(*kept, np.float32)
        if dtype.itemsize > 8:
            return None
        with suppress(InvalidInputError):
            return self._columns.numbers(X, dtype, unseen=np.nan, strict=True)
        return None

    @property
    def declines(self) -> str | None:
        """Return "nothing", or None where it warns."""
        return None if self._warns or self._has_no_labels else "nothing"

    def plain(self, X: Array) -> bool:
        """Accept all but 0 rows, and rows for which it warns."""
        return len(X) > 0 and self.declines is not None

    def call(self, method: str, X: Any, **params: Any) -> Any:
        """Ask the Booster; labels are made from its scores by the caller."""
        return self._model.predict(X, **_ASKING.get(method, {}), **params)

    def raw(self, rows: Array) -> Array:
        """Return raw scores; LightGBM sums each row in tree order on any thread."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # feature names: rows have lost theirs
            return np.asarray(self._model.predict(rows, raw_score=True))

    def outputs(self, X: Any) -> dict[str, Any]:
        """Return the values that a Booster predicts."""
        return {"transformed": self._model.predict(X)}


class LightGBMSource(LightGBMBoosterSource):
    """A wrapper of LightGBM: scikit-learn's checks, then its Booster."""

    labels = True

    def __init__(self, estimator: Any, forest: Forest) -> None:
        super().__init__(estimator.booster_, forest)
        self._model = estimator
        self._names = self._warns = hasattr(estimator, "feature_names_in_")
        classifies = forest.classifies
        self._has_no_labels = hasattr(estimator, "predict_proba") and not classifies

    def rows(self, X: Any, method: str) -> Any:
        """Take numbers; data frames are never asked for their names."""
        self._warns = self._names and not hasattr(X, "iloc")
        try:
            return self._taken(super().rows(X, method), method)
        finally:
            self._warns = self._names

    def _taken(self, rows: Any, method: str) -> Any:
        """Return rows; where no labels can be made of their scores, warn of that."""
        asked = method in ("predict", "predict_proba")
        if self._has_no_labels and asked and rows is not None:
            basic = sys.modules.get("lightgbm.basic")  # users may have set its logger
            getattr(basic, "_log_warning", warnings.warn)(_NO_LABELS)
        return rows

    def call(self, method: str, X: Any, **params: Any) -> Any:
        """Ask the wrapper."""
        if method in _ASKING:
            return self._model.predict(X, **_ASKING[method], **params)
        return getattr(self._model, method)(X, **params)

    def outputs(self, X: Any) -> dict[str, Any]:
        """Return labels or values, and probabilities."""
        names = [n for n in ("predict", "predict_proba") if hasattr(self._model, n)]
        return {name: getattr(self._model, name)(X) for name in names}


#: What LGBMClassifier says where its objective is a function of the user's own.
_NO_LABELS = (
    "Cannot compute class probabilities or labels due to the usage of customized "
    "objective function.\nReturning raw scores instead."
)

#: How ``predict`` is asked for what is no method of its own.
_ASKING = {"predict_raw": {"raw_score": True}, "apply": {"pred_leaf": True}}
