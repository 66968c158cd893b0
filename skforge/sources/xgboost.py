"""Adapters for XGBoost: wrappers predict in place, Boosters with a ``DMatrix``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from skforge._compat import cached_property
from skforge.exceptions import InvalidInputError, warn
from skforge.forest.forest import Forest
from skforge.forest.mistakes import check_shape
from skforge.frontends.base import class_names
from skforge.frontends.checks import refuse_arguments
from skforge.rows import plain
from skforge.rows.frames import (
    FrameColumns,
    about_categories,
    is_pandas,
    is_plain,
    is_table,
    kind_of,
)
from skforge.rows.sparse_rows import most_entries
from skforge.runtime.mappings import MappingColumns
from skforge.sources.base import Answers, Array, Source, register
from skforge.sources.row_facts import RowFacts
from skforge.sources.stored_model.model import StoredModel, StoredRules


@dataclass(frozen=True)
class XGBoostRules(StoredRules):
    """The names of columns, and the dtypes of categories that are whole numbers."""

    feature_names: tuple[str, ...] | None = None
    index_dtypes: tuple[str, ...] = ()
    #: Whether ``inplace_predict`` rounds differently from ``predict``.
    rounds_in_place: bool = False
    #: The column of pandas frames that has the queries of a ranker, which drops it.
    dropped: str = ""

    def suits(self, forest: Forest) -> bool:
        names, dtypes = self.feature_names, self.index_dtypes
        sizes = {len(known) for known in (names, dtypes) if known}
        return names != () and sizes <= {forest.n_features}


class _XGBoostRows(Source):
    staged = True
    rules_type = XGBoostRules
    facts = RowFacts(fill=float("nan"))
    answers = Answers(leaf_dtype="<f4")
    _dtypes_of: Callable[[Any], Sequence[str]]

    def __init__(self, model: Any, forest: Forest) -> None:
        super().__init__(model, forest)
        self.answers = replace(self.answers, flat_leaves=forest.n_trees < 2)

    def take_live(self, model: Any) -> None:
        from skforge.frontends.xgboost.model import index_dtypes

        #: What has the names of columns, and the dtypes of categories.
        booster = model.get_booster() if hasattr(model, "get_booster") else model
        self._booster: Any = booster
        self._dtypes_of = index_dtypes

    def take_stored(self, stored: StoredModel) -> None:
        self._booster = self.rules
        self._dtypes_of = attrgetter("index_dtypes")

    @property
    def _names(self) -> tuple[str, ...] | None:
        """Feature names; those of a live Booster may change at any time."""
        names = self._booster.feature_names
        return None if names is None else tuple(map(str, names))

    @cached_property
    def _categories(self) -> FrameColumns:
        names = self.forest.category_names
        integers = any(type(label) is int for labels in names for label in labels[:1])
        found = self._dtypes_of(self._booster) if integers else ()
        dtypes = tuple(found) or self.rules.index_dtypes
        return FrameColumns(*about_categories(self.forest, dtypes))

    @classmethod
    def rules_of(cls, model: Any) -> XGBoostRules:
        return XGBoostRules()

    @property
    def index_dtypes(self) -> tuple[str, ...]:
        return tuple(self._categories.index_dtypes)

    def kept_rules(self) -> XGBoostRules:
        how = {"feature_names": self._names, "index_dtypes": self.index_dtypes}
        return replace(self.rules, **how)

    def reading(self) -> plain.Reading:
        """Compare a frame's names with those at `fit`, if both sides have names."""
        how: dict[str, Any] = {"compares": "equal", "dropped": self.rules.dropped}
        how["joins"] = True
        return self._reading(names=self._names, estimator="", **how)

    def _n_dropped(self, X: Any) -> int:
        label = self.rules.dropped
        framed = label and kind_of(X) == "pandas"  # subclasses are no frames to XGBoost
        return X.columns.tolist().count(label) if framed else 0

    def columns(self) -> MappingColumns | None:
        if "\ufffd0" in chain(*self.forest.category_names):
            raise InvalidInputError(
                "the rows are mappings, and XGBoost before 3.4 cuts the names of "
                "categories that are not ASCII; pass a DataFrame whose columns have "
                "the categories of training, or train with XGBoost 3.4."
            )
        return super().columns()

    def tried(self, X: Any, method: str) -> Any:
        # XGBoost makes a DMatrix of batches, for which DART rounds otherwise
        rounds = self.rules.rounds_in_place and method != "apply"
        return None if rounds and kind_of(X) == "batch" else super().tried(X, method)

    def _dense(self, X: Any, method: str, strict: bool) -> Any:
        """Return known rows; ``strict`` is as DMatrix: names, and no infinities."""
        X = self._given(X, method)
        rows: Any = None
        if type(X) is np.ndarray:
            plain_rows = X.ndim == 2 and is_plain(X.dtype)
            rows = X if plain_rows and not (strict and self._names) else None
        elif is_pandas(X) or is_table(X):
            rows = self._of_frame(X)
        elif hasattr(X, "tocsr"):
            rows = self._of_sparse(X, method, strict)
        # XGBoost has special shapes for 0 rows, and for the leaves of 0 trees
        empty = rows is None or not rows.shape[0]
        if empty or (method == "apply" and not self.forest.n_trees):
            return None
        if rows.shape[1] != self.forest.n_features:
            return None
        values = rows if isinstance(rows, np.ndarray) else rows.data
        narrowed = (strict or values is not rows) and values.dtype.kind == "f"
        return None if narrowed and _has_infinity(values) else rows

    def _given(self, X: Any, method: str) -> Any:
        """Return sequences as arrays, and numbers without a second axis as a column."""
        X = plain.array_of(X) if isinstance(X, (list, tuple)) else X
        if method == "apply":
            self._refuse_wide(X)
        elif type(X) is np.ndarray and X.ndim == 1:
            if self.forest.n_features > 1:  # XGBoost's error is a stack trace
                check_shape(X.shape, self.forest.n_features)
            X = X[:, np.newaxis]
        return X

    def _refuse_wide(self, X: Any) -> None:
        shape: tuple[int, ...] = getattr(X, "shape", ())
        n_features = self.forest.n_features
        if len(shape) == 2 and (width := shape[1]) > n_features:
            width -= self._n_dropped(X)
            if width > n_features:  # pred_leaf of XGBoost 3.2 writes past a buffer
                raise ValueError(
                    f"Feature shape mismatch, expected: {n_features}, got {width}"
                )

    def _of_frame(self, X: Any) -> Any:
        # XGBoost reads only the values of subclasses such as GeoDataFrame
        if type(X).__name__ not in ("DataFrame", "Table"):
            return None
        return self._plain.by_column(X) if self._plain else None

    def _unaided(self, X: Any, method: str) -> Any:
        X = plain.array_of(X) if isinstance(X, (list, tuple)) else X
        given = X
        if isinstance(X, np.ndarray) and X.dtype.isnative:  # XGBoost misreads others
            X = plain.rare_numbers(np.asarray(X))
        elif type(X).__name__ == "DataFrame" and is_pandas(X):
            X = plain.dense_columns(X)
            if X is not given:
                warn("Sparse arrays from pandas are converted into dense.")
        return None if X is given else self._rows(X, method)

    def _of_sparse(self, X: Any, method: str, strict: bool) -> Any:
        # other formats have no names, and XGBoost makes a DMatrix of them
        by_matrix = type(X).__name__ != "csr_matrix"
        if by_matrix and self.rules.rounds_in_place and method != "apply":
            return None
        if (strict or by_matrix) and self._names:
            return None
        if X.format not in ("csr", "csc", "coo") or not is_plain(X.dtype):
            return None
        if X.format == "csc" and X.dtype.kind == "b":
            return None  # XGBoost refuses it
        rows = X.tocsr()
        # XGBoost drops duplicates that are missing, and may sort
        return None if most_entries(rows) > 1 else rows


@register
class XGBoostSource(_XGBoostRows):
    classes = ("xgboost.sklearn.XGBModel",)
    kind = "xgboost"

    @classmethod
    def rules_of(cls, model: Any) -> XGBoostRules:
        # up to XGBoost 3.2, DART keeps the trees in an inner gbtree
        config = json.loads(model.get_booster().save_config())
        trees = config["learner"]["gradient_booster"]
        ranks = "xgboost.sklearn.XGBRanker" in class_names(model)
        return XGBoostRules(
            rounds_in_place=trees["name"] == "dart" and "gbtree" in trees,
            dropped="qid" if ranks else "",
        )

    @classmethod
    def traces(cls, model: Any) -> list[Any]:
        rules = model.missing, getattr(model, "n_classes_", None)
        return [*rules, *BoosterSource.traces(model.get_booster())]

    def rows(self, X: Any, method: str) -> Any:
        if self._n_dropped(X):
            if (rows := self.tried(X, method)) is not None:
                return rows
            X = X.drop(columns=self.rules.dropped)
        return super().rows(X, method)

    def call(self, method: str, X: Any, **params: Any) -> Any:
        if self._n_dropped(X):
            X = X.drop(columns=self.rules.dropped)
        return super().call(method, X, **params)

    def _rows(self, X: Any, method: str) -> Any:
        return self._dense(X, method, strict=method == "apply")

    def _call(self, method: str, X: Any, **params: Any) -> Any:
        if method == "predict_raw":
            return self.model.predict(X, output_margin=True, **params)
        return super()._call(method, X, **params)


@register
class BoosterSource(_XGBoostRows):
    """A bare Booster: ``Booster.predict(DMatrix(X))``; names of X are checked."""

    classes = ("xgboost.core.Booster",)
    kind = "xgboost_booster"
    facts = replace(_XGBoostRows.facts, declines="infinite")
    answers = Answers(labels=False, leaf_dtype="<f4")

    @classmethod
    def traces(cls, model: Any) -> list[Any]:
        """Return what changes predictions; two updaters change trees in place."""
        try:
            config = model.save_config()
            rounds = model.num_boosted_rounds(), model.attr("best_iteration")
        except ValueError:  # parameters that the model cannot have
            return [model]
        learner = json.loads(config)["learner"]
        shape = json.dumps(learner["learner_model_param"])
        in_place = '"refresh"' in config, '"updater_seq":"prune"' in config
        return [model, *rounds, learner["objective"]["name"], shape, *in_place]

    def takes(self, X: Array) -> bool:
        return len(X) > 0 and not _has_infinity(X)

    def _rows(self, X: Any, method: str) -> Any:
        rows = self._dense(X, method, strict=False)
        if isinstance(rows, np.ndarray) and not self.takes(rows):
            return None
        return rows

    def _call(self, method: str, X: Any, **params: Any) -> Any:
        from xgboost import DMatrix

        rounds = {k: params.pop(k) for k in ("iteration_range",) if k in params}
        refuse_arguments(method, params, " of a Booster")
        data = DMatrix(X, enable_categorical=True)
        return self.model.predict(
            data,
            output_margin=method == "predict_raw",
            pred_leaf=method == "apply",
            validate_features=data.feature_names is not None,
            **rounds,
        )


def _has_infinity(values: Array) -> bool:
    with np.errstate(all="ignore"):
        return bool(np.isinf(values.astype(np.float32, copy=False)).any())
