"""Adapter for scikit-learn's Pipeline: rows of its first step, answers of its last."""

from __future__ import annotations

import copy
import warnings
from functools import cached_property
from typing import Any

import numpy as np

from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.frames import is_category
from skforge.compiler.frontends.base import is_pipeline, last_step
from skforge.compiler.frontends.pipeline.model import behind
from skforge.compiler.frontends.pipeline.transformers import (
    COLUMNS,
    UNION,
    class_of,
    first_step,
    of_first,
)
from skforge.compiler.outputs.steps import Refused
from skforge.exceptions import UnsupportedModelError, warn
from skforge.sources.base import ADAPTERS, Array, Source, register
from skforge.sources.plain import Read, Reading

_MAX = float(np.finfo(np.float64).max)
#: Attributes that a transformer replaces in each call.
_WRITTEN = ("_transformers_feature_names_out",)


@register
class PipelineSource(Source):
    """A fitted pipeline whose transformers are folded into the forest.

    The folded forest takes float64 rows. Steps transform float32 rows in float32,
    which rounds differently: the pipeline itself answers for these, and for all other
    rows whose values, warnings or errors are not certain here.
    """

    kinds = ("pipeline",)

    def __init__(self, model: Any, forest: Forest) -> None:
        super().__init__(model, forest)
        self._parts = parts = behind(model, forest)
        last = _adapter(parts.last)(parts.last, parts.inner)
        #: The adapter of the last step, which gets transformed rows.
        self._last = last
        self.labels, self.own_log_proba = last.labels, last.own_log_proba
        self.leaf_dtype, self.leaf_shape = last.leaf_dtype, last.leaf_shape
        self.flat_leaves = last.flat_leaves
        #: The first step that looks at rows, and the names it knows.
        self._first = first_step(model.steps[:-1])
        self._names = of_first(model, "feature_names_in_")
        kind = "" if self._first is None else class_of(self._first)
        self._by_position = kind not in ("", COLUMNS, UNION)
        self._by_name = None
        if kind == COLUMNS and self._names is not None:
            self._by_name = _NamedColumns(self._first, self._names)
        reading = last.reading()
        narrow = reading is None or reading.through is not None
        #: Larger integers may be rounded in other places than in float64 rows.
        self._largest = 1 << (24 if narrow else 53)

    @classmethod
    def detects(cls, model: Any) -> bool:
        """Accept pipelines."""
        return is_pipeline(model)

    @classmethod
    def traces(cls, model: Any) -> list[Any]:
        """Return what its steps hold, and the traces of the last step."""
        last = last_step(model)
        return [*_held(model.steps[:-1]), last, *_adapter(last).traces(last)]

    def describe(self) -> tuple[str, dict[str, Any]]:
        """Raise: its checks of rows are those of live transformers."""
        raise UnsupportedModelError(
            "The steps of a Pipeline check rows themselves, which cannot be stored; "
            "use joblib.dump, or skforge.save(fast.forest_, path)."
        )

    @property
    def declines(self) -> Refused | None:
        """Infinite values, and missing ones unless every column may have them."""
        return "infinite" if self._parts.bounds.nan.all() else "not_finite"

    @property
    def limit(self) -> float:
        """The size of the first value that some column refuses."""
        bounds = self._parts.bounds
        return float(min(-bounds.low.max(initial=-_MAX), bounds.high.min(initial=_MAX)))

    @property
    def direct(self) -> bool:
        """Whether the forest reads arrays as they are, with one warning or none."""
        parts = self._parts
        read = parts.texts or parts.numbers
        return not read and self._array_warning is not None

    @property
    def warning(self) -> str:
        """The warning of the pipeline about arrays, or ""."""
        return self._array_warning or ""

    @cached_property
    def _array_warning(self) -> str | None:
        """The warning about arrays, asked from the pipeline; None for several."""
        if self._names is None or self._by_name is not None:
            return "" if self._names is None else None
        if self._parts.texts:
            return None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.model.predict(self._decoded(np.zeros((1, self.forest.n_features))))
        texts = {str(one.message) for one in caught}
        said = [text for text in texts if "valid feature names" in text]
        return None if len(said) > 1 else "".join(said)

    def reading(self) -> Reading | None:
        """Read arrays and plain frames of the names that the first step knows."""
        return Reading(
            self.forest.input_dtype,
            None if self._names is None else tuple(self._names),
            tables=None,
            estimator=type(self._first).__name__,
            warns=False,
            arrow=False,
        )

    def read(self, X: Any) -> Read | None:
        """Read float64 and whole numbers if every step accepts them."""
        kind = type(X)
        if kind is np.ndarray or kind is np.memmap:
            read = self._array(X)
        elif (kind is list or kind is tuple) and self._by_position:
            read = self._array(_array_of(X))
        elif kind.__name__ == "DataFrame" and kind.__module__.startswith("pandas"):
            read = self._frame(X)
        else:
            return None
        if read is None or not self._parts.bounds.holds(read[0]):
            return None
        return self._coded(*read)

    def _coded(self, rows: Array, said: str) -> Read | None:
        """Return rows with the codes of numbers; None if a number is refused."""
        numbers = self._parts.numbers
        if any(one.coded for one in numbers.values()):
            rows = rows.copy()
        for column, codes in numbers.items():
            found = codes.codes(rows[:, column])
            if found is None:
                return None
            if codes.coded:
                rows[:, column] = found
        return rows, said

    def _decoded(self, rows: Array) -> Any:
        """Return rows as the pipeline takes them, for rows as the forest does."""
        parts, known = self._parts, {}
        given: Any = rows.copy()
        for column, numbers in parts.numbers.items():
            given[:, column] = numbers.values(rows[:, column])
        for column, texts in parts.texts.items():
            known[column] = texts.values(rows[:, column])
        if not known and self._by_name is None:
            return given
        from pandas import DataFrame, Series

        names = range(rows.shape[1]) if self._names is None else self._names
        columns = {i: known.get(i, given[:, i]) for i in range(rows.shape[1])}
        # pandas would make None and NaN alike among texts
        kept = {i: Series(one, dtype=one.dtype) for i, one in columns.items()}
        return DataFrame(kept).set_axis(names, axis=1)

    def _array(self, X: Any) -> Read | None:
        said = self._array_warning
        if X is None or said is None or not _is_known(X.dtype):
            return None
        if X.dtype.kind in "iu" and not self._is_exact(X):
            return None
        read = super().read(X)
        return None if read is None else (read[0], said)

    def _frame(self, X: Any) -> Read | None:
        if not len(X):
            return None
        if self._by_name is None and not self._parts.texts:
            positional = self._names is not None or self._by_position
            read = super().read(X) if positional and _all_known(X) else None
            whole = _has_integers(X)
            return (
                None
                if read is None or (whole and not self._is_exact(read[0]))
                else read
            )
        part, places = X, [*range(X.shape[1])]
        if self._by_name is not None:
            part, places = self._by_name.part(X), self._by_name.columns
            if part is None:
                return None
        elif self._names is None or [*X.columns] != [*self._names]:
            return None
        rows = np.zeros((len(X), self.forest.n_features))
        texts = self._parts.texts
        numeric = [i for i, place in enumerate(places) if place not in texts]
        if numeric:
            some = part if len(numeric) == len(places) else part.iloc[:, numeric]
            if not _all_known(some):
                return None
            values = some.to_numpy(np.float64)
            if _has_integers(some) and not self._is_exact(values):
                return None
            rows[:, [places[i] for i in numeric]] = values
        for i, place in enumerate(places):
            if place in texts:
                codes = self._texts_of(place, part.iloc[:, i])
                if codes is None:
                    return None
                rows[:, place] = codes
        return rows, ""

    def _texts_of(self, place: int, column: Any) -> Array | None:
        """Return the codes of a pandas column; None if the pipeline must answer."""
        texts, dtype = self._parts.texts[place], column.dtype
        if dtype == np.object_ or type(dtype).__name__ == "StringDtype":
            return texts.codes(column.to_numpy(np.object_).tolist())
        if not is_category(dtype):
            return None
        table = texts.codes([*dtype.categories.tolist(), np.nan])
        if table is None:
            return texts.codes(column.to_numpy(np.object_).tolist())
        found: Array = table[column.array.codes]
        return found

    def _is_exact(self, values: Array) -> bool:
        """Tell whether integers are exact in all dtypes that steps convert them to."""
        most = self._largest
        return not bool(((values > most) | (values < -most)).any())

    def _rows(self, X: Any, method: str) -> Any:
        read = self.read(X)
        if read is None:
            return None
        if read[1]:
            warn(read[1])
        return read[0]

    def _call(self, method: str, X: Any, **params: Any) -> Any:
        """Call the pipeline; or its last step, for what a pipeline does not have."""
        if method == "predict_raw":
            return self._raw_of(self._transformed(X))
        if method == "apply":
            return self._last.call(method, self._transformed(X), **params)
        return super()._call(method, X, **params)

    def _transformed(self, X: Any) -> Any:
        """Return rows as the last step gets them."""
        for _, step in self.model.steps[:-1]:
            if step is not None and step != "passthrough":
                X = step.transform(X)
        return X

    def _raw_of(self, transformed: Any) -> Array:
        rows = self._last.rows(transformed, "predict_raw")
        if rows is None:
            return np.asarray(self._last.call("predict_raw", transformed))
        return self._last.raw(rows)

    def _raw(self, rows: Array) -> Any:
        given = self._decoded(rows)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # feature names: the rows have none
            return self._raw_of(self._transformed(given))

    def _serial(self) -> Any:
        serial = copy.copy(self.model)
        name, _ = serial.steps[-1]
        serial.steps = [*serial.steps[:-1], (name, self._last._serial())]
        return serial

    def drawn(self, n: int, missing: float) -> Array:
        """Return rows around the folded thresholds, and rows of such values alone."""
        rows = super().drawn(n, 0.05)
        near = rows.copy()
        random = np.random.default_rng(1)
        toward = np.array([-np.inf, 0.0, np.inf])
        for feature in range(rows.shape[1]):
            cuts = self.forest.threshold[self.forest.feature == feature]
            cuts = cuts[np.isfinite(cuts)]
            if len(cuts):
                at = cuts[random.integers(0, len(cuts), len(near))]
                way = toward[random.integers(0, 3, len(near))]
                near[:, feature] = np.where(way == 0, at, np.nextafter(at, way))
        rows = self._parts.bounds.repaired(np.concatenate([rows, near]))
        for column, texts in self._parts.texts.items():
            rows[:, column] = texts.codes(texts.values(rows[:, column]).tolist())
        for column, numbers in self._parts.numbers.items():
            rows[:, column] = numbers.codes(numbers.values(rows[:, column]))
        return rows


class _NamedColumns:
    """The columns that a ColumnTransformer takes from a frame, in any order."""

    def __init__(self, transformer: Any, names: Any) -> None:
        places = transformer._transformer_to_input_indices
        kept = {
            int(i)
            for name, one, _ in transformer.transformers_
            if not (isinstance(one, str) and one == "drop")
            for i in places[name]
        }
        #: Their places in the rows.
        self.columns = sorted(kept)
        self._names = [names[i] for i in self.columns]
        self._seen: tuple[Any, Any] = (None, None)

    def part(self, X: Any) -> Any:
        """Return these columns of a frame; None if one is missing or there twice."""
        columns = X.columns
        seen, at = self._seen
        if columns is not seen:
            at = None
            if columns.is_unique and columns.nlevels == 1:
                at = columns.get_indexer(self._names)
                at = None if (at < 0).any() else at
            self._seen = columns, at
        return None if at is None else X.iloc[:, at]


def _adapter(model: Any) -> type[Source]:
    return next(one for one in ADAPTERS if one.detects(model))


def _held(value: Any) -> list[Any]:
    """Return what fitted steps hold, those inside other steps included."""
    if isinstance(value, (list, tuple)):
        return [found for one in value for found in _held(one)]
    if not hasattr(value, "get_params"):
        return [value]
    inside = [v for k, v in vars(value).items() if k not in _WRITTEN]
    nested = [one for one in inside if isinstance(one, (list, tuple))]
    return [value, *inside, *_held(nested)]


def _array_of(X: Any) -> Array | None:
    try:
        return np.asarray(X)
    except ValueError:  # ragged
        return None


def _is_known(dtype: Any) -> bool:
    """Tell whether all steps convert such values to float64, or leave them whole."""
    if not isinstance(dtype, np.dtype) or not dtype.isnative:
        return False
    return dtype == np.float64 or dtype.kind in "iu"


def _dtypes(X: Any) -> set[Any]:
    return {block.dtype for block in X._mgr.blocks}


def _has_integers(X: Any) -> bool:
    return any(dtype.kind in "iu" for dtype in _dtypes(X))


def _all_known(X: Any) -> bool:
    """Tell whether all columns of a pandas frame are known."""
    try:
        return all(map(_is_known, _dtypes(X)))
    except AttributeError:  # another pandas' internals
        return False
