"""Columns whose values the forest gets as codes: texts, and numbers by interval.

A column of texts is a code per text, and NaN for all unknown ones. A column of numbers
is coded only if a test of it is true on several intervals, which no single test of the
trees can say, or if the pipeline refuses numbers between those it knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: Stands for all texts that no encoder knows.
UNKNOWN = "\0unknown"


@dataclass(frozen=True, slots=True, eq=False)
class TextCodes:
    """The codes of a column of texts.

    Parameters
    ----------
    texts : tuple of str
        The known texts, in the order of their codes 0, 1, ...
    unknown, none, nan : float or None
        Codes of other texts, of None, and of NaN. None: the pipeline refuses these.
    """

    texts: tuple[str, ...]
    unknown: float | None
    none: float | None
    nan: float | None
    #: The code of each known text, and of None.
    table: dict[Any, float] = field(init=False)

    def __post_init__(self) -> None:
        """Make the table."""
        table: dict[Any, float] = {
            text: float(code) for code, text in enumerate(self.texts)
        }
        if self.none is not None:
            table[None] = self.none
        object.__setattr__(self, "table", table)

    def code(self, value: Any) -> float | None:
        """Return the code of one value; None for what the pipeline must answer."""
        if type(value) is str:
            return self.table.get(value, self.unknown)
        if value is None:
            return self.none
        missing = isinstance(value, float) and value != value
        return self.nan if missing else None

    def codes(self, values: Iterable[Any]) -> Array | None:
        """Return the codes of values; None for what the pipeline must answer."""
        get, code = self.table.get, self.code
        found = [
            one if (one := get(value)) is not None else code(value) for value in values
        ]
        return None if None in found else np.array(found, np.float64)

    def of_column(self, values: Any) -> Array | None:
        """Return the codes of pandas' array of a column."""
        kind = type(values).__name__
        if kind == "Categorical":
            table = self.codes([*values.categories.tolist(), np.nan])
            if table is not None:
                found: Array = table[values.codes]
                return found
        elif (
            values.dtype != np.object_ and type(values.dtype).__name__ != "StringDtype"
        ):
            return None
        return self.codes(np.asarray(values, np.object_).tolist())

    def rule(self) -> dict[str, Any]:
        """Return how a value of a mapping becomes a code."""
        missing = None if self.none is None else self.nan
        return {"table": self.table, "missing": missing, "unknown": self.unknown}

    def values(self, codes: Array) -> Array:
        """Return values that have these codes; some accepted one for any other."""
        found = np.full(len(codes), self.texts[0] if self.texts else None, object)
        for code, value in (
            *zip(range(len(self.texts)), self.texts, strict=True),
            (self.nan, np.nan),
            (self.none, None),
            (self.unknown, UNKNOWN),
        ):
            if code is not None:
                found[np.isnan(codes) if code != code else codes == code] = value
        return found


@dataclass(frozen=True, slots=True, eq=False)
class NumberCodes:
    """The codes of a column of numbers: one for each interval.

    Parameters
    ----------
    ends : ndarray
        The greatest number of each interval, ascending; the last has none above it.
    refused : ndarray of bool
        Whether the pipeline refuses the numbers of an interval.
    coded : bool
        Whether the forest gets codes; otherwise numbers are checked alone.
    """

    ends: Array
    refused: NDArray[np.bool_]
    coded: bool

    def codes(self, values: Array) -> Array | None:
        """Return what the forest gets; None for what the pipeline must answer."""
        missing = np.isnan(values)
        code = np.searchsorted(self.ends, values)
        code[missing] = 0
        code = np.minimum(code, len(self.ends) - 1)
        if (self.refused[code] & ~missing).any():
            return None
        return np.where(missing, np.nan, code) if self.coded else values

    def values(self, codes: Array) -> Array:
        """Return numbers that have these codes; some accepted one for any other."""
        fine = np.flatnonzero(~self.refused)
        code = codes if self.coded else np.searchsorted(self.ends, codes)
        missing = np.isnan(codes)
        code = np.clip(np.where(missing, 0, code), 0, len(self.ends) - 1).astype(int)
        kept = ~self.refused[code]
        code = np.where(kept, code, fine[code % len(fine)])
        found = (
            self.ends[code] if self.coded else np.where(kept, codes, self.ends[code])
        )
        return np.where(missing, np.nan, found)
