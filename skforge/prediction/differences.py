"""Where two answers of a method differ: bits, shapes, dtypes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array
from skforge.forest.reference import differing_rows


class Difference(NamedTuple):
    """The rows that differ, and what the first of them has, as text."""

    rows: NDArray[np.intp]
    value: str
    expected: str


def difference(answer: Any, expected: Any) -> Difference | None:
    """Compare two answers of a method bit by bit, with their shapes and dtypes."""
    for values, wanted in zip(_parts(answer), _parts(expected), strict=True):
        rows = differing_rows(values, wanted)
        if not len(rows):
            continue
        parts, told = (values, wanted), [""]
        if values.shape == wanted.shape:
            told = [repr(part[rows[0]].tolist()) for part in parts]
        if len({*told}) == 1:  # a difference that values do not show
            told = [f"{part.dtype} of shape {part.shape}" for part in parts]
        return Difference(rows, *told)
    return None


def _parts(answer: Any) -> list[Array]:
    return [np.asarray(a) for a in (answer if isinstance(answer, list) else [answer])]
