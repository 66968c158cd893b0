"""Rows as XGBoost takes them: wrappers in place, Boosters by ``DMatrix``."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.frames import (
    FrameColumns,
    column_names,
    is_pandas,
    is_plain,
    is_table,
)
from skforge.exceptions import InvalidInputError
from skforge.sources.sparse import most_entries

Array = NDArray[Any]


class _XGBoostRows:
    """What XGBoost's wrappers and Boosters have in common."""

    fill, leaf_dtype = float("nan"), np.float32
    _rounds_in_place = False
    _n_trees: int
    _booster: Any
    _columns: FrameColumns

    def _dense(self, X: Any, method: str, strict: bool) -> Any:
        """Return rows of a kind that is known, or None.

        ``strict`` follows ``DMatrix``: names must be there, infinities must not.
        """
        n_features = self._booster.num_features()
        names = self._booster.feature_names
        if isinstance(X, (list, tuple)):
            X = _array_of(X)
        if method == "apply":
            _refuse_wide(X, n_features)
        if type(X) is np.ndarray:
            if X.ndim != 2 or not is_plain(X.dtype) or (strict and names):
                return None
        elif is_pandas(X) or (is_table(X) and type(X).__name__ != "RecordBatch"):
            X = self._frame(X)
        elif hasattr(X, "tocsr"):
            # other sparse forms have no names, and XGBoost makes a DMatrix of them
            by_matrix = type(X).__name__ != "csr_matrix"
            if by_matrix and self._rounds_in_place and method != "apply":
                return None
            strict = strict or by_matrix
            known = X.format in ("csr", "csc", "coo") and is_plain(X.dtype)
            if X.format == "csc" and X.dtype.kind == "b":
                known = False  # which XGBoost refuses
            X = X.tocsr() if known and not (strict and names) else None
            if X is not None and most_entries(X) > 1:
                return None  # XGBoost leaves out those that are missing, and may sort
        else:
            return None
        # XGBoost has its own shapes for 0 rows, and for the leaves of no tree
        if method == "apply" and not self._n_trees:
            return None
        if X is None or X.shape[0] == 0 or X.shape[1] != n_features:
            return None
        values = X if isinstance(X, np.ndarray) else X.data
        if (strict or values is not X) and values.dtype.kind == "f":
            with np.errstate(over="ignore"):
                if np.isinf(values.astype(np.float32, copy=False)).any():
                    return None
        return X

    def _frame(self, X: Any) -> Array | None:
        """Return a frame's numbers, if its columns are the model's."""
        names = self._booster.feature_names
        given = column_names(X)
        if getattr(X.columns, "nlevels", 1) != 1 or len({*given}) < len(given):
            return None
        if names is not None and given != list(names):
            return None
        if len(given) != self._booster.num_features():
            return None
        with suppress(InvalidInputError):
            return self._columns.numbers(X, np.float32, unseen=None, strict=True)
        return None


def rounds_in_place(booster: Any) -> bool:
    """Tell whether ``inplace_predict`` rounds otherwise than ``predict``.

    That of DART does, up to XGBoost 3.2, which keeps the trees in a gbtree within.
    """
    own = json.loads(booster.save_config())["learner"]["gradient_booster"]
    return own["name"] == "dart" and "gbtree" in own


def _refuse_wide(X: Any, n_features: int) -> None:
    """Refuse what makes ``pred_leaf`` of XGBoost 3.2 write beyond a buffer."""
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if len(shape) == 2 and shape[1] > n_features:
        raise ValueError(
            f"Feature shape mismatch, expected: {n_features}, got {shape[1]}"
        )


class XGBoostSource(_XGBoostRows):
    """A wrapper of XGBoost: in-place prediction, ``DMatrix`` for leaves."""

    labels = True

    def __init__(
        self, estimator: Any, forest: Forest, in_place: bool | None = None
    ) -> None:
        self.estimator = estimator
        self._n_trees, self.flat_leaves = forest.n_trees, forest.n_trees == 1
        self._booster = estimator.get_booster()
        if in_place is None:
            in_place = rounds_in_place(self._booster)
        self._rounds_in_place = in_place
        self._columns = FrameColumns(forest.category_names)

    def rows(self, X: Any, method: str) -> Any:
        """Take numbers; everything else is the wrapper's business."""
        return self._dense(X, method, strict=method == "apply")

    declines = "nothing"

    def plain(self, X: Array) -> bool:
        """Accept everything but 0 rows, whose results have their own shapes."""
        return len(X) > 0

    def call(self, method: str, X: Any, **params: Any) -> Any:
        """Ask the wrapper."""
        if method == "predict_raw":
            return self.estimator.predict(X, output_margin=True, **params)
        return getattr(self.estimator, method)(X, **params)

    def raw(self, rows: Array) -> Array:
        """Return margins; XGBoost sums each row in tree order on any thread."""
        return np.asarray(self.estimator.predict(rows, output_margin=True))

    def outputs(self, X: Any) -> dict[str, Any]:
        """Return labels or values, and probabilities."""
        names = ("predict", "predict_proba")
        methods = {n: getattr(self.estimator, n, None) for n in names}
        return {n: method(X) for n, method in methods.items() if method is not None}


class BoosterSource(_XGBoostRows):
    """A bare Booster: ``Booster.predict(DMatrix(X))``, names checked if X has them."""

    labels = False

    def __init__(self, booster: Any, forest: Forest) -> None:
        self._n_trees, self.flat_leaves = forest.n_trees, forest.n_trees == 1
        self._booster = booster
        self._columns = FrameColumns(forest.category_names)

    def rows(self, X: Any, method: str) -> Any:
        """Take finite numbers and NaN."""
        rows = self._dense(X, method, strict=False)
        if isinstance(rows, np.ndarray) and not self.plain(rows):
            return None
        return rows

    declines = "infinite"

    def plain(self, X: Array) -> bool:
        """Refuse 0 rows and infinities, as ``DMatrix`` does."""
        if not len(X):
            return False
        with np.errstate(over="ignore"):
            return not np.isinf(X.astype(np.float32, copy=False)).any()

    def call(self, method: str, X: Any, **params: Any) -> Any:
        """Ask the Booster; labels are made from its scores by the caller."""
        from xgboost import DMatrix

        if params:
            name = next(iter(params))
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")
        data = DMatrix(X, enable_categorical=True)
        return self._booster.predict(
            data,
            output_margin=method == "predict_raw",
            pred_leaf=method == "apply",
            validate_features=data.feature_names is not None,
        )

    def raw(self, rows: Array) -> Array:
        """Return margins."""
        return np.asarray(self.call("predict_raw", rows))

    def outputs(self, X: Any) -> dict[str, Any]:
        """Return the values that a Booster predicts."""
        return {"transformed": self.call("value", X)}


def _array_of(X: Any) -> Any:
    try:
        return np.array(X)
    except ValueError:  # ragged: let the source say so
        return None
