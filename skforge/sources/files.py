"""Rows of a model file: no source is in memory, so the rules are our own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.reference import reference_raw
from skforge.compiler.forest.rows import prepare_rows, read_columns
from skforge.exceptions import (
    InvalidInputError,
)
from skforge.sources.sparse import most_entries

Array = NDArray[Any]


class ForestSource:
    """A file or ``ModelProto``: no source is in memory, so the rules are our own."""

    fill, labels = float("nan"), False
    leaf_dtype, flat_leaves = np.int32, False

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        if forest.source != "xgboost":
            self.fill = 0.0

    def rows(self, X: Any, method: str) -> Any:
        """Check names, widths and values, as ``compile_forest`` does."""
        if not hasattr(X, "tocsr"):
            return prepare_rows(self._forest, X)
        X = read_columns(self._forest, X.tocsr())
        if X.shape[1] != self._forest.n_features:
            raise InvalidInputError(
                f"the forest was trained on {self._forest.n_features} features, "
                f"but the rows have {X.shape[1]} columns."
            )
        if most_entries(X) > 1:  # libraries differ in which of them counts
            raise InvalidInputError(
                "the sparse rows have several entries of one place; add them up with "
                "X.sum_duplicates(), or leave all but one out."
            )
        floats = X.dtype in (np.float32, np.float64)
        if self._forest.source == "lightgbm" and not floats:
            raise InvalidInputError(
                "LightGBM takes sparse rows of float32 or float64. Got "
                f"{X.dtype} instead; use X.astype('float64')."
            )
        return X

    declines = "nothing"

    def plain(self, X: Array) -> bool:
        """Accept everything."""
        return True

    def call(self, method: str, X: Any, **params: Any) -> Any:
        """Refuse: there is nobody to ask."""
        raise InvalidInputError(
            f"{method} of a model file takes rows and nothing else; "
            f"got {', '.join(sorted(params)) or type(X).__name__}."
        )

    def raw(self, rows: Array) -> Array:
        """Return the reference evaluation's scores."""
        raw = reference_raw(self._forest, rows)
        return raw[:, 0] if self._forest.n_outputs == 1 else raw

    def outputs(self, X: Any) -> dict[str, Any]:
        """Return nothing: there is no source to compare with."""
        return {}
