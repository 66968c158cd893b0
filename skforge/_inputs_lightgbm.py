"""Rows as LightGBM takes them: by position, float32 or float64, zeros where absent."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge._inputs_frames import FrameColumns, is_category, is_plain, number_dtype
from skforge._inputs_sparse import most_entries
from skforge.compiler.forest import Forest
from skforge.exceptions import InvalidInputError

Array = NDArray[Any]


class LightGBMBoosterSource:
    """A bare Booster: ``Booster.predict(X)``, which checks little but the width."""

    fill, labels, leaf_dtype, flat_leaves = 0.0, False, np.int32, False
    _warns = False  # whether rows without names make it warn

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
        return self._columns.numbers(X, dtype, unseen=np.nan)

    @property
    def declines(self) -> str | None:
        """Return "nothing", or None where it warns that names are missing."""
        return None if self._warns else "nothing"

    def plain(self, X: Array) -> bool:
        """Accept all but 0 rows, and rows whose lack of names makes it warn."""
        return len(X) > 0 and not self._warns

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

    def rows(self, X: Any, method: str) -> Any:
        """Take numbers; data frames are never asked for their names."""
        self._warns = self._names and not hasattr(X, "iloc")
        try:
            return super().rows(X, method)
        finally:
            self._warns = self._names

    def call(self, method: str, X: Any, **params: Any) -> Any:
        """Ask the wrapper."""
        if method in _ASKING:
            return self._model.predict(X, **_ASKING[method], **params)
        return getattr(self._model, method)(X, **params)

    def outputs(self, X: Any) -> dict[str, Any]:
        """Return labels or values, and probabilities."""
        names = [n for n in ("predict", "predict_proba") if hasattr(self._model, n)]
        return {name: getattr(self._model, name)(X) for name in names}


def numbers_of_frame(X: Any, forest: Forest) -> Array:
    """Return a data frame's numbers for a model file, categories by their names.

    Parameters
    ----------
    X : pandas.DataFrame
        Columns count by position, as LightGBM has it.
    forest : Forest
        Of a LightGBM file.

    Returns
    -------
    ndarray of float64

    Raises
    ------
    InvalidInputError
        The columns of category dtype are not those of the training frame.
    """
    named = [i for i, names in enumerate(forest.category_names) if names]
    given = [i for i, dtype in enumerate(X.dtypes) if is_category(dtype)]
    if given != named:
        raise InvalidInputError(
            f"the columns at {given} have category dtype, but those of the training "
            f"frame known by the model are at {named}; give these the dtype, or "
            "pass an array of category numbers."
        )
    for name, dtype in zip(X.columns, X.dtypes, strict=True):
        if not is_category(dtype) and number_dtype(dtype) is None:
            raise InvalidInputError(
                f"column {name!r} has the dtype {dtype}, which holds no plain "
                "numbers; convert it to float64."
            )
    columns = FrameColumns(forest.category_names)
    numbers = columns.numbers(X, np.float64, unseen=np.nan)
    if numbers is None:
        raise InvalidInputError(
            "categories were texts in some columns of the training frame and integers "
            "in others; those of the frame are of another kind. Make them the same."
        )
    return numbers


#: How ``predict`` is asked for what is no method of its own.
_ASKING = {"predict_raw": {"raw_score": True}, "apply": {"pred_leaf": True}}
