"""category_encoders' encoders: a number, or several, for each category.

At prediction time they are look-ups of single columns, so a test of an output is a test
of categories, as with scikit-learn's encoders. They pass other columns of a frame on.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.frontends.base import class_name

_ONE = (
    "ordinal.OrdinalEncoder count.CountEncoder target_encoder.TargetEncoder "
    "james_stein.JamesSteinEncoder leave_one_out.LeaveOneOutEncoder "
    "cat_boost.CatBoostEncoder m_estimate.MEstimateEncoder woe.WOEEncoder "
    "quantile_encoder.QuantileEncoder"
)
_SEVERAL = "one_hot.OneHotEncoder basen.BaseNEncoder binary.BinaryEncoder"
#: By class: whether each encoded column becomes several.
_KINDS = {
    f"category_encoders.{name}": several
    for several, names in ((False, _ONE), (True, _SEVERAL))
    for name in names.split()
}
#: Of NA among texts of Arrow they make NA, and not a number.
_KEEP_NA = "LeaveOneOutEncoder", "CatBoostEncoder"


def is_lookup(transformer: object) -> bool:
    return class_name(transformer) in _KINDS


def refusal(encoder: Any) -> str | None:
    """Return why an encoder, fitted or not, does not fold; None if it does."""
    from sklearn.utils._set_output import _get_output_config

    if getattr(encoder, "composite_cols", None):
        return "has composite_cols"
    if _get_output_config("transform", encoder)["dense"] == "polars":
        return "is set to polars"
    rules = encoder.handle_unknown, encoder.handle_missing
    name = type(encoder).__name__
    if name == "OrdinalEncoder" and any(map(callable, rules)):
        return "calls a function for other categories"
    if name == "CatBoostEncoder" and encoder.handle_unknown != "value":
        return f"has handle_unknown={encoder.handle_unknown!r}, which keeps dtypes"
    strict = [rule == "error" for rule in _rules(encoder)]
    return "refuses categories of some columns alone" if len({*strict}) > 1 else None


def encodes_numbers(encoder: Any) -> bool:
    if not hasattr(encoder, "feature_names_out_"):  # as a ColumnTransformer's own is
        return False
    labels = (label for name in encoder.cols for label in _labels(encoder, name))
    return any(isinstance(label, (int, float, np.number)) for label in labels)


class Lookup:
    """An encoder of the columns that it encodes alone: rows hold no others."""

    def __init__(self, encoder: Any) -> None:
        self.encoder = copy.copy(encoder)
        vars(self.encoder).pop("_sklearn_output_config", None)
        #: All columns, and the places among them of those that are encoded.
        self.names = [*encoder.feature_names_in_]
        self.places = sorted(self.names.index(name) for name in encoder.cols)
        encoded = [self.names[i] for i in self.places]
        self.handle_unknown = "error" if "error" in _rules(encoder) else "ignore"
        #: Whether NA among texts of Arrow stays NA, which next steps may refuse.
        self.keeps_na = type(encoder).__name__ in _KEEP_NA
        several = _KINDS[class_name(encoder)]
        made = (
            {s["col"]: s["mapping"].columns for s in encoder.mapping} if several else {}
        )
        of_name = {out: name for name in encoded for out in made.get(name, [name])}
        every = [*encoder.feature_names_out_]
        self._outputs = [name for name in every if name in of_name]
        #: The encoded column that each output reads.
        self.reads = [encoded.index(of_name[name]) for name in self._outputs]
        #: In the order of all outputs: the column that is passed on, None for others.
        self.passed = [None if x in of_name else self.names.index(x) for x in every]
        self.categories_ = [
            _categories([x for x in _labels(encoder, name) if x is not None and x == x])
            for name in encoded
        ]
        if self.handle_unknown == "error":
            for i, known in enumerate(self.categories_):
                if self._takes_missing(i):
                    of_texts = known.dtype == np.object_
                    gaps = np.array([np.nan, None] if of_texts else [np.nan])
                    self.categories_[i] = np.append(known, gaps)

    def lenient(self) -> Lookup:
        copied = copy.copy(self)
        copied.handle_unknown = "ignore"
        copied.encoder = encoder = copy.copy(self.encoder)
        encoder.handle_unknown = "value"
        if hasattr(encoder, "_handle_unknown"):
            encoder._handle_unknown = dict.fromkeys(encoder.cols, "return_nan")
        return copied

    def transform(self, X: Any) -> Array:
        return np.asarray(self._encoded(X), np.float64)

    def whole(self, examples: list[Array]) -> list[frozenset[int] | None]:
        """Return by column whether known categories become whole numbers."""
        known = self.categories_
        row = [x[:1] if len(x) else y for x, y in zip(known, examples, strict=True)]
        dtypes = self._encoded(np.array(row, object).reshape(1, -1)).dtypes
        kinds = dict(zip(self.reads, [d.kind for d in dtypes], strict=True))
        return [
            frozenset() if kinds.get(i, "f") in "biu" else None
            for i in range(len(self.places))
        ]

    def _encoded(self, X: Any) -> Any:
        from pandas import DataFrame, Series

        columns: list[Any] = [0.0] * len(self.names)
        for i, place in enumerate(self.places):
            column = np.asarray(X.iloc[:, i] if hasattr(X, "iloc") else X[:, i])
            columns[place] = Series(column, dtype=column.dtype)
        frame = DataFrame(dict(enumerate(columns)), index=range(len(X)))
        frame = frame.set_axis(self.names, axis=1)
        out = self.encoder.transform(frame, override_return_df=True)
        return out[self._outputs]

    def _takes_missing(self, i: int) -> bool:
        row = [known[:1] for known in self.categories_]
        row[i] = np.array([np.nan], row[i].dtype)
        try:
            self.transform(np.array(row, object).reshape(1, -1))
        except ValueError:
            return False
        return True


def _rules(encoder: Any) -> list[Any]:
    each = getattr(encoder, "_handle_unknown", None)
    return [*each.values()] if each else [encoder.handle_unknown]


def _labels(encoder: Any, name: Any) -> list[Any]:
    """Return the categories of a column that an encoder knows, missing ones, too."""
    known = encoder.mapping
    if hasattr(encoder, "ordinal_encoder") and not hasattr(encoder, "_normalize"):
        known = encoder.ordinal_encoder.mapping
    if isinstance(known, list):
        known = {switch["col"]: switch["mapping"] for switch in known}
    lumped = [getattr(encoder, "min_group_lumping_", None)]
    lumped += [getattr(encoder, "_min_group_categories", None)]
    more = [label for each in lumped for label in (each or {}).get(name, ())]
    return [*known[name].index.tolist(), *more]


def _categories(labels: list[Any]) -> Array:
    if all(isinstance(x, (int, float, np.number)) for x in labels):
        of_bools = any(isinstance(label, bool) for label in labels)
        return np.array(labels, object if of_bools else float)
    return np.array([*dict.fromkeys(labels), None], object)[:-1]
