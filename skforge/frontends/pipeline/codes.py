"""Columns whose values the forest gets as codes: texts, and numbers by interval.

A column of texts is a code per text, and NaN for all unknown ones. A column of numbers
is coded only if a test of it is true on several intervals, which no single test of the
trees can say, or if the pipeline refuses numbers between those it knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from skforge._compat import cached_property
from skforge._typing import Array, Bools

#: From so many texts on, a code is found once for each distinct one.
MANY = 256

#: Classes of pandas' dtypes of texts, beside NumPy's objects.
TEXT_DTYPES = ("StringDtype", "CategoricalDtype")

#: Types of pyarrow's texts; a dictionary's values may be such texts, too.
_ARROW_TEXTS = ("string", "large_string", "string_view")

_MISSING = {type(None), float, np.float64}

#: Stands for all texts that no encoder knows.
UNKNOWN = "\0unknown"


def is_text(dtype: Any) -> bool:
    if (arrow := getattr(dtype, "pyarrow_dtype", None)) is not None:
        return str(getattr(arrow, "value_type", arrow)) in _ARROW_TEXTS
    return type(dtype).__name__ in TEXT_DTYPES or dtype == np.object_


@dataclass(frozen=True, eq=False)
class TextCodes:
    texts: tuple[str, ...]  # the known texts, in the order of their codes 0, 1, ...
    #: Codes of other texts, of None, and of NaN. None: the pipeline refuses these.
    unknown: float | None
    none: float | None
    nan: float | None
    #: Texts that it refuses although it takes other unknown ones.
    refused: tuple[str, ...] = ()
    #: The code of pandas' NA: to encoders an unknown text, and imputers refuse it.
    na: float | None = None

    @cached_property
    def table(self) -> dict[Any, float | None]:
        """The code of each known text, and of None; None for each refused text."""
        table: dict[Any, float | None] = dict.fromkeys(self.refused)
        table |= {text: float(code) for code, text in enumerate(self.texts)}
        if self.none is not None:
            table[None] = self.none
        return table

    def code(self, value: Any) -> float | None:
        if (kind := type(value)) is str or kind is np.str_:
            return self.table.get(value, self.unknown)
        if value is None:
            return self.none
        if isinstance(value, float) and value != value:
            return self.nan
        return self.na if kind.__name__ == "NAType" else None

    def codes(self, values: Iterable[Any]) -> Array | None:
        get, code = self.table.get, self.code
        known = [n if (n := get(x)) is not None else code(x) for x in values]
        return None if None in known else np.array(known, np.float64)

    def of_column(self, values: Any) -> Array | float | None:
        """Return the codes of a column of any library, or one for its only row.

        None if it holds no texts, or some that the pipeline refuses.
        """
        if type(values) is not np.ndarray:
            if isinstance(values, (list, tuple)):
                return self.codes(values)
            if hasattr(values, "to_arrow"):  # of polars
                if len(values) < MANY or find_spec("pyarrow") is None:
                    return self.codes(values.to_list())
                values = values.to_arrow()
            if hasattr(values, "to_pylist"):  # of pyarrow
                return self.of_arrow(values, None)
        dtype, arrow = values.dtype, getattr(values, "_pa_array", None)
        if not is_text(dtype):
            return None
        if arrow is not None:
            return self.of_arrow(arrow, dtype.na_value)
        if hasattr(dtype, "categories"):  # a missing one is what texts of theirs have
            gap = getattr(values.categories.dtype, "na_value", np.nan)
            if len(values) == 1:
                return self.code(gap if values.codes[0] < 0 else values[0])
            return self._translated(values.codes, [*values.categories.tolist(), gap])
        if len(values) == 1:
            return self.code(values[0])
        column = np.asarray(values, np.object_)
        if len(column) >= MANY and self.none == self.nan:
            from pandas import factorize

            at, distinct = factorize(column)
            # to it, NA and NaT are missing like None and NaN
            if {*map(type, column[at < 0])} <= _MISSING:
                return self._translated(at, [*distinct, np.nan])
        return self.codes(column.tolist())

    def of_arrow(self, values: Any, gap: Any) -> Array | float | None:
        """Return the codes of pyarrow's texts, where null is NaN, None or NA."""
        if (n := len(values)) == 1:  # a third of the time
            text = values[0].as_py()
            return self.code(gap if text is None else text)
        if n < MANY:
            texts = values.to_pylist()
            return self.codes([gap if text is None else text for text in texts])
        from pyarrow import array, compute

        if hasattr(values, "combine_chunks"):
            values = values.combine_chunks()
        known = [text for text in self.table if text is not None]
        plain = str(values.type) in ("string", "large_string")
        if not hasattr(values, "indices") and (not plain or len(known) > n):
            values = values.dictionary_encode()
        if hasattr(values, "indices"):
            known = values.dictionary.to_pylist()
            at = values.indices.cast("int64")
        else:  # half the time of finding the distinct ones
            at = compute.index_in(values, value_set=array(known, values.type))
        at = np.asarray(at.fill_null(len(known)))
        if values.null_count:
            at = np.where(np.asarray(values.is_null()), -1, at)
        texts = [gap if text is None else text for text in known]
        return self._translated(at, [*texts, UNKNOWN, gap])

    def _translated(self, index: Array, values: Sequence[Any]) -> Array | None:
        table = list(map(self.code, values))
        refused = np.array([code is None for code in table])
        if refused.any() and refused[index].any():
            return None
        return np.array(table, np.float64)[index]  # None becomes NaN

    def named(self) -> dict[str, Any]:
        others = {"missing": self.nan, "none": self.none, "other": self.unknown}
        return {
            "codes": {text: code for code, text in enumerate(self.texts)}
            | dict.fromkeys(self.refused),
            **{
                name: "NaN" if code is not None and code != code else code
                for name, code in others.items()
            },
        }

    def rule(self) -> dict[str, Any]:
        """Return how a value of a mapping becomes a code.

        All missing values are NaN there, or None if only None was seen in training.
        """

        def rank(code: float | None) -> int:
            return 0 if code is None else 1 + (repr(code) != repr(self.unknown))

        keeps = rank(self.none) > rank(self.nan)
        missing = self.none if keeps else self.nan
        table = {text: code for text, code in self.table.items() if text is not None}
        table |= {} if missing is None else {None: missing}
        gap = None if keeps else np.nan
        return dict(table=table, missing=missing, unknown=self.unknown, gap=gap)

    def values(self, codes: Array) -> Array:
        """Return a value for each code, in turns; some accepted one for other codes."""
        texts = np.full(len(codes), self.texts[0] if self.texts else None, object)
        values: dict[float, list[Any]] = {i: [t] for i, t in enumerate(self.texts)}
        for code, value in (
            (self.nan, np.nan),
            (self.none, None),
            (self.unknown, UNKNOWN),
        ):
            if code is not None:  # no two NaN are equal keys
                values.setdefault(-1 if code != code else code, []).append(value)
        for code, choices in values.items():
            at = np.isnan(codes) if code < 0 else codes == code
            texts[at] = np.resize(np.array(choices, object), int(at.sum()))
        return texts


@dataclass(frozen=True, slots=True, eq=False)
class NumberCodes:
    """The codes of a column of numbers: one for each interval."""

    #: The greatest number of each interval, ascending; the last has none above it.
    ends: Array
    #: Whether the pipeline refuses the numbers of an interval.
    refused: Bools
    coded: bool  # whether the forest gets codes; otherwise numbers are checked alone

    def is_sound(self) -> bool:
        ascending = len(self.ends) > 0 and bool((np.diff(self.ends) > 0).all())
        fits = self.refused.dtype == np.bool_ and len(self.refused) == len(self.ends)
        return ascending and fits and not self.refused.all()

    def codes(self, values: Array) -> Array | None:
        missing = np.isnan(values)
        code = np.searchsorted(self.ends, values)
        code[missing] = 0
        code = np.minimum(code, len(self.ends) - 1)
        if (self.refused[code] & ~missing).any():
            return None
        return np.where(missing, np.nan, code) if self.coded else values

    def values(self, codes: Array) -> Array:
        fine = np.flatnonzero(~self.refused)
        code = codes if self.coded else np.searchsorted(self.ends, codes)
        missing = np.isnan(codes)
        code = np.clip(np.where(missing, 0, code), 0, len(self.ends) - 1).astype(int)
        fits = ~self.refused[code]
        code = np.where(fits, code, fine[code % len(fine)])
        numbers = (
            self.ends[code] if self.coded else np.where(fits, codes, self.ends[code])
        )
        return np.where(missing, np.nan, numbers)
