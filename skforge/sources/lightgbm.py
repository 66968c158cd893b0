"""Adapters for LightGBM: columns by position, float32 or float64, absent means 0."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np

from skforge._compat import cached_property
from skforge.exceptions import warn
from skforge.forest.arrays import ZERO_THRESHOLD
from skforge.forest.forest import Forest
from skforge.rows import frames, plain
from skforge.rows.frames import is_pandas, is_plain, is_table
from skforge.rows.known_forms import PassedOn
from skforge.rows.prepare import prepare_rows
from skforge.rows.sparse_rows import most_entries
from skforge.sources.base import Answers, Array, Source, register
from skforge.sources.row_facts import RowFacts

#: Trees of which a leaf tells whether the order of trees is as before.
_TREES = 50


@register
class LightGBMBoosterSource(Source):
    """A bare Booster: ``Booster.predict(X)``, which checks little but the width."""

    classes = ("lightgbm.basic.Booster",)
    staged = True
    kind = "lightgbm_booster"
    answers = Answers(labels=False, leaf_dtype="<i4")
    facts = RowFacts(compares=False)

    @classmethod
    def traces(cls, model: Any) -> list[Any]:
        bounds = model.lower_bound(), model.upper_bound()
        n = model.num_trees()
        order = [model.get_leaf_output(i, 0) for i in range(0, n, 1 + n // _TREES)]
        return [model, model.current_iteration(), model.best_iteration, *bounds, *order]

    def reading(self) -> plain.Reading | None:
        """Match columns by position; arrays that are not floats become float32."""
        # since 4.7 LightGBM also reads polars frames by position
        known = sys.modules.get("lightgbm.sklearn")
        return self._reading(
            compares="never",
            tables=known is None or hasattr(known, "nwd"),
            unseen=np.nan,
            through=np.float32,
            lists=False,
            arrow=False,
        )

    def passed_on(self, X: Any) -> PassedOn | None:
        """Leave tables and sparse rows with the limit of zeros."""
        compares = is_table(X) or type(X).__name__ == "csr_matrix"
        return plain.has_limit if compares else None

    def _rows(self, X: Any, method: str) -> Any:
        """Accept numbers; a live LightGBM handles everything else."""
        if type(X) is np.ndarray:
            if X.ndim != 2 or not is_plain(X.dtype):
                return None
            if X.dtype not in (np.float32, np.float64):
                # LightGBM casts integers to float32
                X = X.astype(np.float32)
        elif type(X).__name__ == "DataFrame" and hasattr(X, "iloc"):
            X = self._plain and self._plain.by_column(X)
        elif hasattr(X, "tocsr"):
            X = _by_row(X) if self._fits(X) else None
        else:
            return None
        return X if X is not None and self._fits(X) else None

    def _unaided(self, X: Any, method: str) -> Any:
        if is_table(X):
            # of 0 rows, LightGBM has neither columns of classes nor labels
            labels = self.answers.labels and self.forest.classifies
            without = self.forest.n_outputs > 1 or (labels and method == "predict")
            return None if without and not len(X) else self._of_table(X)
        if is_pandas(X) and not len(X):
            raise ValueError("Input data must be 2 dimensional and non empty.")
        if is_pandas(X) and self._categories.lists:
            return prepare_rows(self.forest, X)
        X = _usual(self._validated(X))
        X = plain.rare_numbers(X) if type(X) is np.ndarray else X
        return LightGBMBoosterSource._rows(self, X, method)

    def _of_table(self, X: Any) -> Any:
        rows = None if _has_half(X) else prepare_rows(self.forest, X)
        return None if rows is None or plain.has_limit(X, rows) else rows

    def _fits(self, X: Any) -> bool:
        return bool(X.shape[1:] == (self.forest.n_features,) and X.shape[0])

    def _validated(self, X: Any) -> Any:
        # it takes the values of a matrix, or of any other class of arrays
        return np.array(X) if isinstance(X, (list, np.ndarray)) else X

    def _call(self, method: str, X: Any, **params: Any) -> Any:
        if self.answers.labels and method not in _ASKING:
            return super()._call(method, X, **params)
        return self.model.predict(X, **_ASKING.get(method, {}), **params)


def _has_half(table: Any) -> bool:
    """Tell whether a table has a column of float16, which LightGBM refuses."""
    return np.dtype(np.float16) in map(frames.number_of, frames.types_of(table))


def _by_row(X: Any) -> Any:
    from scipy.sparse import csc_matrix, csr_matrix

    if X.dtype not in (np.float32, np.float64):
        return None
    rows, by_column = X.tocsr(), isinstance(X, csc_matrix)
    if by_column:
        fresh = type(X)((X.data, X.indices, X.indptr), shape=X.shape)
        if not fresh.has_sorted_indices:  # it passes over entries that come too late
            return None
        rows.data[rows.data == -ZERO_THRESHOLD] = 0
    if most_entries(rows) > 1 or plain.has_limit(X, rows.data):
        return None
    if not by_column and not isinstance(X, csr_matrix):
        _log("Converting data to scipy sparse matrix.")
    return rows


def _log(text: str) -> None:
    getattr(sys.modules.get("lightgbm.basic"), "_log_warning", warn)(text)


def _usual(X: Any) -> Any:
    if not is_pandas(X):
        return X
    from pandas import DataFrame

    known = type(X) is DataFrame or not isinstance(X, DataFrame)
    return plain.dense_columns(X if known else DataFrame(X))


@register
class LightGBMSource(LightGBMBoosterSource):
    """A LightGBM wrapper: scikit-learn's checks, then its Booster."""

    classes = ("lightgbm.sklearn.LGBMModel",)
    kind = "lightgbm"
    answers = Answers(leaf_dtype="<i4")

    def __init__(self, model: Any, forest: Forest) -> None:
        super().__init__(model, forest)
        self._warns = hasattr(model, "feature_names_in_")
        classifier = hasattr(model, "predict_proba")
        #: Whether it predicts raw scores and warns about it.
        self._has_no_labels = classifier and not forest.classifies
        if self._has_no_labels:
            self.facts = replace(self.facts, declines=None)

    @classmethod
    def traces(cls, model: Any) -> list[Any]:
        return super().traces(model.booster_)

    def takes(self, X: Array) -> bool:
        return len(X) > 0 and not self._has_no_labels

    def reading(self) -> plain.Reading | None:
        reading = super().reading()
        return reading and replace(reading, lists=True)

    def of_no_rows(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the answers of tables, the only rows that may be none."""
        if not self.forest.classifies:
            return {}
        several = self.forest.n_outputs > 1  # of which it finds no labels
        methods = ("predict_proba", "predict_raw") if several else ("predict",)
        return dict.fromkeys(methods, ("<f8", (0,)))

    def tried(self, X: Any, method: str) -> Any:
        rows = super().tried(X, method)
        predicts = method in ("predict", "predict_proba")
        if self._has_no_labels and predicts and rows is not None:
            _log(_NO_LABELS)
        return rows

    def _of_batch(self, batch: Any) -> Any:
        # scikit-learn's check makes an array of it, whose whole numbers become
        # float32; a Booster takes no batches
        values = np.asarray(batch)
        return values if is_plain(values.dtype) else super()._of_batch(batch)

    def _rows(self, X: Any, method: str) -> Any:
        """Accept numbers; the names of data frames are not checked."""
        if self._warns and not hasattr(X, "iloc"):
            return None  # the wrapper itself warns about missing names
        return super()._rows(X, method)

    @cached_property
    def _validator(self) -> Any:
        return self.held.validator()

    def _validated(self, X: Any) -> Any:
        from sklearn.utils.validation import validate_data

        if is_pandas(X):
            return X
        return validate_data(
            self._validator,
            X,
            reset=False,
            accept_sparse=True,
            ensure_all_finite=False,
            ensure_min_samples=1,
        )


#: LGBMClassifier's warning if the objective is a custom function.
_NO_LABELS = (
    "Cannot compute class probabilities or labels due to the usage of customized "
    "objective function.\nReturning raw scores instead."
)

#: Parameters of ``predict`` for methods that LightGBM does not have.
_ASKING = {"predict_raw": {"raw_score": True}, "apply": {"pred_leaf": True}}
