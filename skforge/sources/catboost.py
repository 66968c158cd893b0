"""Adapters for CatBoost: float32 rows, columns by name if the model has names.

Categories are read by their hashes; see :mod:`~skforge.rows.hashed_rows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from skforge.exceptions import InvalidInputError
from skforge.rows import frames, plain
from skforge.rows.known_forms import PassedOn
from skforge.rows.prepare import (
    keeps_categories,
    places_in,
    prepare_rows,
    with_dropped,
)
from skforge.rows.sparse_rows import most_entries
from skforge.sources.base import Answers, Array, Source, register
from skforge.sources.row_facts import RowFacts


def _is_number(dtype: Any) -> bool:
    """Tell whether CatBoost takes a column that it does not read, whatever it holds."""
    if frames.is_plain(dtype):
        return True
    number = frames.number_of(dtype)
    return number is not None and number.kind != "b" and not frames.is_date(dtype)


def _passes_over(X: Any, places: Sequence[int]) -> bool:
    """Tell whether CatBoost takes the columns that it does not read: as numbers."""
    dtypes = enumerate(getattr(X, "dtypes", ()))  # none of pyarrow's tables
    return all(_is_number(dtype) for i, dtype in dtypes if i not in places)


def _has_no_rows(X: Any, width: int) -> bool:
    """Tell whether CatBoost answers with nothing, whatever further columns are."""
    n_rows, *columns = np.shape(X) or (1,)
    known = type(X) is np.ndarray or frames.is_pandas(X)
    if not known and frames.kind_of(X) != "polars":
        return n_rows == 0 and columns == [width]
    return n_rows == 0 and len(columns) == 1 and columns[0] >= width


def _columns_at(X: Any, places: Any) -> Any:
    if frames.is_pandas(X):
        return X.iloc[:, places]
    return X[:, places] if hasattr(X, "get_columns") else X.select(places)


def _first_columns(X: Any, width: int) -> Any:
    X = plain.array_of(X) if type(X) is list else X
    wide = type(X) is np.ndarray and X.ndim == 2 and X.shape[1] > width
    return X[:, :width] if wide else X


@register
class CatBoostSource(Source):
    """A model of CatBoost; its rows are numbers, of any size or missing."""

    classes = ("catboost.core.CatBoost",)
    kind = "catboost"
    answers = Answers(log_proba="scores")
    facts = RowFacts(selects=True)
    staged = True

    @classmethod
    def traces(cls, model: Any) -> list[Any]:
        """Return what training, shrinking and setters replace."""
        scale, bias = model.get_scale_and_bias()
        metadata = dict(model.get_metadata())
        return [
            model._object,
            model.tree_count_,
            float(model.get_leaf_values().sum()),
            scale,
            *np.ravel(bias).tolist(),
            metadata.get("binclass_probability_threshold", ""),
        ]

    def same_method(self, method: str, params: Mapping[str, Any]) -> str | None:
        # the methods of CatBoostRanker take no type, those of CatBoost do
        ranks = self.forest.task == "ranking" and self.class_name != "CatBoost"
        if ranks and self.model is None and "prediction_type" in params:
            called = f"{self.class_name}.{method}() got an unexpected keyword"
            raise TypeError(f"{called} argument 'prediction_type'")
        if ranks or method != "predict" or params.keys() != {"prediction_type"}:
            return None
        names = {"RawFormulaVal": "predict_raw"}
        if self.forest.classifies:
            names |= {"Class": "predict", "Probability": "predict_proba"}
        return names.get(str(params["prediction_type"]))

    def reading(self) -> plain.Reading:
        """Match columns by name; all numbers become float32."""
        names = self.forest.column_names
        return self._reading(names=names, compares="equal", estimator="", objects=True)

    def passed_on(self, X: Any) -> PassedOn | None:
        """Leave columns of booleans with missing values, which it refuses."""
        if not frames.is_pandas(X):
            return None
        dtypes = [block.values.dtype for block in X._mgr.blocks]  # X.dtypes takes 60 us
        flags = [d for d in dtypes if frames.number_of(d) == np.bool_]
        return None if all(map(frames.is_plain, flags)) else _lacks_booleans

    def _rows(self, X: Any, method: str) -> Any:
        """Accept more columns, frames of another order, and large sparse rows."""
        if type(X).__name__ == "csr_matrix":
            known = X.dtype in (np.float32, np.float64) and not self.forest.is_encoded
            known &= {X.indices.dtype, X.indptr.dtype} == {np.dtype(np.intc)}
            fits = len(X.indptr) > 1 and X.shape[1] == self.forest.n_features
            return X if known and fits and most_entries(X) < 2 else None
        if hasattr(X, "tocsr") or 0 in np.shape(X):
            return None
        read = self.read(self._selected(X))
        return None if read is None else read[0]

    def _unaided(self, X: Any, method: str) -> Any:
        # it refuses arrays of floats for categories
        floats = type(X) is np.ndarray and X.dtype.kind == "f"
        has_none = _has_no_rows(X, self.forest.n_columns)
        if has_none and not (floats and self.forest.is_encoded):
            return np.empty((0, self.forest.n_features), np.float32)
        if np.ndim(X) == 1 and len(X):
            what = f"{method} of one row without a second axis"
            self.held.refuse(what, "Use X.reshape(1, -1).")
        if hasattr(X, "tocsr") or 0 in np.shape(X):
            return None
        X = self._selected(X, every=True)
        if (read := self.read(X)) is not None or self.forest.is_encoded:
            return read and read[0]
        with suppress(InvalidInputError):
            X = plain.dense_columns(X) if frames.is_pandas(X) else X
            return prepare_rows(self.forest, X)
        return None

    def _selected(self, X: Any, every: bool = False) -> Any:
        """Return the named columns, or the first ones, as CatBoost does.

        With ``every``, also of frames that CatBoost may refuse for their other columns.
        """
        encoded, width = self.forest.is_encoded, self.forest.n_columns
        if not frames.is_pandas(X) and not frames.is_table(X):
            return X if encoded and not every else _first_columns(X, width)
        if (places := places_in(self.forest, X)) is not None:
            passes = every or _passes_over(X, places)
            return with_dropped(self.forest, X, places) if passes else X
        labels = frames.column_names(X)
        if self.forest.column_names is None:
            known = frames.is_pandas(X) or frames.kind_of(X) == "polars"
            cut = known and len(labels) > width
            if not cut or not (every or _passes_over(X, range(width))):
                return X
            return _columns_at(X, slice(width))
        places = self._places(labels)
        if places is None:
            return X
        if len(labels) > width and not (every or _passes_over(X, places)):
            return X
        return _columns_at(X, places)

    def _places(self, labels: list[Any]) -> list[int] | None:
        """Return the places of the model's names; None if CatBoost goes by position."""
        names = self.forest.column_names or ()
        distinct = {*labels}
        if (
            labels == list(names)
            or not {*names} <= distinct
            or len(distinct) < len(labels)
        ):
            return None
        places = [labels.index(name) for name in names]
        # it takes the columns at the places of categories for these
        return places if keeps_categories(self.forest, enumerate(places)) else None

    def _call(self, method: str, X: Any, **params: Any) -> Any:
        if self.forest.is_encoded and frames.kind_of(X) == "polars":
            X = X.to_pandas()  # numbers in place of categories end the process
        if method == "predict_raw":
            from catboost import CatBoost  # a ranker's own takes no prediction type

            kind = {"prediction_type": "RawFormulaVal", **params}
            return CatBoost.predict(self.model, X, **kind)
        return super()._call(method, X, **params)


def _lacks_booleans(X: Any, rows: Array) -> bool:
    if not np.isnan(rows).any():
        return False
    flags = [i for i, d in enumerate(X.dtypes) if frames.number_of(d) == np.bool_]
    return bool(X.iloc[:, flags].isna().any(axis=None))
