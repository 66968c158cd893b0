"""Adapters for CatBoost: float32 rows, columns by name if the model has names."""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge.compiler.forest.frames import column_names, is_pandas, is_table
from skforge.compiler.forest.rows import prepare_rows
from skforge.sources.base import Answers, Source, register
from skforge.sources.plain import Reading, dense_columns, most_entries


@register
class CatBoostSource(Source):
    """A model of CatBoost; its rows are numbers, of any size or missing."""

    classes = ("catboost.core.CatBoost",)
    kinds = ("catboost",)
    answers = Answers(own_log_proba=True)

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

    def reading(self) -> Reading:
        """Match columns by name; all numbers become float32."""
        return Reading(
            self.forest.input_dtype,
            self.forest.feature_names,
            compares="equal",
            tables="equal",
            fill=self.fill,
            warns=False,
            arrow=False,
        )

    def _rows(self, X: Any, method: str) -> Any:
        """Accept frames with more columns or another order, and large sparse rows."""
        if is_pandas(X) or is_table(X):
            X = self._selected(X)
            read = self.read(X)
            if read is not None:
                return read[0]
        if type(X).__name__ == "csr_matrix":
            known = X.dtype in (np.float32, np.float64)
            fits = len(X.indptr) > 1 and X.shape[1] == self.forest.n_features
            return X if known and fits and most_entries(X) < 2 else None
        if self.stored is None or hasattr(X, "tocsr") or 0 in np.shape(X):
            return None
        return prepare_rows(self.forest, dense_columns(X) if is_pandas(X) else X)

    def _selected(self, X: Any) -> Any:
        """Return a frame's columns that the model names, if it has them, in order."""
        names, given = self.forest.feature_names, column_names(X)
        unknown = names is None or not {*names} <= {*given}
        if unknown or len({*given}) < len(given) or given == list(names or ()):
            return X
        places = [given.index(name) for name in names or ()]
        if is_pandas(X):
            return X.iloc[:, places]
        return X[:, places] if hasattr(X, "get_columns") else X.select(places)

    def _call(self, method: str, X: Any, **params: Any) -> Any:
        if method == "predict_raw":
            from catboost import CatBoost  # a ranker's own takes no prediction type

            kind = {"prediction_type": "RawFormulaVal", **params}
            return CatBoost.predict(self.model, X, **kind)
        return super()._call(method, X, **params)
