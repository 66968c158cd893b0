"""The adapter for scikit-learn's histogram boosting, whose encoder is a model's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skforge._compat import cached_property
from skforge.exceptions import UnsupportedModelError
from skforge.forest.forest import Forest
from skforge.forest.outputs import AnswerSpec
from skforge.frontends.sklearn.histogram import model_columns
from skforge.rows.coded_rows import (
    CodedColumn,
    CodedRows,
    NumberCategories,
    ObjectCategories,
    TextCategories,
)
from skforge.rows.frames import is_pandas, is_table, kind_of, labels_of
from skforge.rows.known_forms import PassedOn
from skforge.rows.plain import Reading
from skforge.runtime.mappings import MappingColumns
from skforge.sources.base import Array, register
from skforge.sources.row_facts import RowFacts
from skforge.sources.sklearn import SklearnSource
from skforge.sources.stored_model.model import StoredRules


@dataclass(frozen=True)
class CodedRules(StoredRules):
    """The columns that an encoder gets, and which of them have names of categories."""

    coded: tuple[int, ...]
    named: tuple[bool, ...]
    #: The columns in which the encoder takes all booleans; None: a file does not tell.
    flags: tuple[int, ...] | None = None

    def suits(self, forest: Forest) -> bool:
        return {*self.coded} <= {*range(forest.n_features)}


@register
class HistGradientBoostingSource(SklearnSource):
    """HistGradientBoosting*: float64 rows; categories through the model's encoder."""

    classes = (
        "sklearn.ensemble._hist_gradient_boosting.gradient_boosting."
        "BaseHistGradientBoosting",
    )
    kind = "histogram"
    staged = True
    rules_type = CodedRules
    facts = RowFacts()
    #: The columns of the encoder, or of all rows; of a stored model, none.
    _columns: Sequence[Any] = ()

    def __init__(self, model: Any, forest: Forest) -> None:
        super().__init__(model, forest)
        self._coded, self._named = [*self.rules.coded], self.rules.named
        self._categories_of = self._known_categories()
        every = self._categories_of.values()
        self._by_value = all(known.reads_numbers for known in every)
        # an encoder that knows numbers as objects fails on others
        self._objects = any(isinstance(known, ObjectCategories) for known in every)
        warns = bool(self._coded and self.warning)
        self.facts = replace(
            self.facts,
            takes_floats=not self._objects,
            # the encoder refuses infinite values, and takes columns by name
            declines="infinite" if self._coded else "nothing",
            selects=bool(self._coded),
            direct=not (any(self._named) or warns or self._objects),
            on_device=self.facts.on_device and not any(self._named),
        )

    def take_live(self, model: Any) -> None:
        super().take_live(model)
        self._columns = model_columns(model)

    def _known_categories(self) -> dict[int, CodedColumn]:
        live = {column.feature: column for column in self._columns}
        categories: dict[int, CodedColumn] = {}
        flags = self.rules.flags or ()
        for feature, named in zip(self._coded, self._named, strict=True):
            names: Any = self.forest.category_names[feature] if named else None
            column = live.get(feature)
            if column is not None and column.objects is not None:
                how = column.labels, column.categories or (), column.objects
                categories[feature] = ObjectCategories(*how)
            elif named and isinstance(names[0], str):
                categories[feature] = TextCategories(names)
            else:
                numbers = names or (() if column is None else column.labels)
                categories[feature] = NumberCategories(numbers, named, feature in flags)
        return categories

    @classmethod
    def rules_of(cls, model: Any) -> CodedRules:
        coded = [
            column for column in model_columns(model) if column.categories is not None
        ]
        named = tuple(bool(column.names) for column in coded)
        flags = tuple(int(c.feature) for c in coded if _takes_booleans(c.labels))
        return CodedRules(tuple(int(column.feature) for column in coded), named, flags)

    def kept_rules(self) -> StoredRules:
        for column in self._columns:
            if column.objects is not None:
                raise UnsupportedModelError(
                    f"The {self.class_name} compares the categories of column "
                    f"{column.feature} as Python's objects, the first of them "
                    f"{column.labels[0]!r}, and a .skforge file has no place for "
                    "these; fit it with numbers or texts there, or use joblib.dump."
                )
        return self.rules

    def codes(self) -> dict[int, dict[str, Any]]:
        for column, known in self._categories_of.items():
            if isinstance(known, NumberCategories) and known.coded:
                raise UnsupportedModelError(
                    f"The forest reads the numbers of column {column} as codes, which "
                    "an exported library cannot compute; use skforge.save instead."
                )
        return super().codes()

    def raw_of(self, X: Any) -> Array:
        # steps of a pipeline make floats of what they made objects of in training
        return super().raw_of(X if self.facts.takes_floats else X.astype(object))

    def _rows(self, X: Any, method: str) -> Any:
        if not self._coded:
            rows = self._validated(X, dtype=[np.float64], ensure_all_finite=False)
            return rows if rows.dtype.isnative else None  # it refuses others by itself
        if not self._columns:  # there is no encoder
            return super()._rows(X, method)
        self.origin.check_fitted()
        try:
            encoded = self.model._preprocess_X(X, reset=False)
        except TypeError:  # numbers where it knows objects
            return None
        rows = np.empty(encoded.shape, np.float64)
        for column, codes in zip(self._columns, encoded.T, strict=True):
            values = codes
            if column.categories is not None and not column.names:
                known = ~np.isnan(codes)
                values = np.full(len(codes), np.nan)
                table = np.array(column.categories, np.float64)
                values[known] = table[codes[known].astype(np.intp)]
            rows[:, column.feature] = values
        return rows

    def _unaided(self, X: Any, method: str) -> Any:
        names = [*map(str, getattr(self.held, "feature_names_in_", ()))]
        framed = names and self._coded and (is_pandas(X) or is_table(X))
        if not framed or not {*names}.issubset(labels_of(X)):
            return None
        # its encoder takes columns by name
        X = X.select(names) if kind_of(X) == "pyarrow" else X[names]
        return self._rows(X, method)

    def spec_of_stage(self, spec: AnswerSpec) -> AnswerSpec:
        """Sum probabilities by row: it copies the scores of a stage to C order."""
        if spec.outputs.function != "softmax_by_columns":
            return spec
        return replace(spec, outputs=replace(spec.outputs, function="softmax_by_rows"))

    def reading(self) -> Reading | None:
        """Read no arrays and lists where some categories are no numbers."""
        # it takes no sparse rows
        how: dict[str, Any] = {"fill": None, "objects": not self._coded}
        if self._coded:  # which warns, and takes unknown categories for missing ones
            how |= {"estimator": "OrdinalEncoder", "unseen": np.nan, "arrow": False}
        if not self._by_value:
            how |= {"arrays": False, "lists": False, "tables": not self._objects}
        return self._reading(**how)

    @cached_property
    def _plain(self) -> Any:
        reading, width = self.reading(), self.forest.n_features
        if reading is None or not self._coded:
            return super()._plain
        return CodedRows(reading, width, self._categories_of)

    def columns(self) -> MappingColumns | None:
        columns = super().columns()
        return replace(columns, by_frame=True) if columns and self._objects else columns

    def passed_on(self, X: Any) -> PassedOn | None:
        """Leave frames without the names of training, if there are any."""
        framed = self._coded and self.warning and kind_of(X)
        unnamed = framed and self._plain.warning_of(X, labels_of(X))
        return (lambda X, rows: True) if unnamed else None

    def takes(self, X: Array) -> bool:
        """Refuse 0 rows, and infinite categories, which the encoder refuses."""
        return len(X) > 0 and not np.isinf(X[:, self._coded]).any()

    def _scores(self, rows: Array) -> Any:
        if self.facts.takes_floats and not any(self._named):
            return self.model._raw_predict(rows, n_threads=1)
        encoded = np.empty(rows.shape, np.float64)
        for position, column in enumerate(self._columns):
            encoded[:, position] = values = rows[:, column.feature]
            if column.categories is not None:
                encoded[:, position] = np.nan  # unknown categories are missing
                for code, category in enumerate(column.categories):
                    encoded[values == category, position] = code
        scores = np.zeros((len(rows), self.forest.n_outputs), order="F")
        scores += self.model._baseline_prediction
        self.model._predict_iterations(
            encoded, self.model._predictors, scores, False, 1
        )
        return scores


def _takes_booleans(labels: tuple[Any, ...]) -> bool:
    """Tell whether an encoder of these categories takes all columns of booleans.

    It puts its first category, as a boolean, for those that it does not know, and fails
    if it does not know that one either.
    """
    return len(labels) > 0 and bool(labels[0]) in labels
