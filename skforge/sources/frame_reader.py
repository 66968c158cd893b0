"""Columns of pandas frames by name, in microseconds.

pandas' own selection and conversion of a one-row frame takes more than 100 µs. A frame
keeps its values in blocks, one per dtype, each with the places of its columns. Where
the wanted columns lie is found once for each column index and each block's places;
a later frame of the same layout costs a comparison of its names and a copy per block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: Dtypes that are read as numbers.
_NUMBERS = frozenset(map(np.dtype, ["f8", *"bhilqBHILQ"]))
#: Layouts of blocks that are kept for one column index.
_MOST_PLANS = 64


class Columns(NamedTuple):
    """Columns found in a frame.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, width), float64
        Numbers; 0 in all other columns.
    whole : list of (list of int, ndarray)
        Integers among them, as the frame has them, and their places in the rows:
        float64 may round larger ones.
    others : list of (int, array)
        Wanted columns of other dtypes: their place in the rows, and pandas' array.
    """

    rows: Array
    whole: list[tuple[list[int], Array]]
    others: list[tuple[int, Any]]


#: The taken rows of a block's values, and their columns in the rows.
_Plan = tuple[Any, Any]


class FrameReader:
    """Reads float64 and whole numbers of pandas frames.

    Parameters
    ----------
    names : sequence of str
        The wanted columns.
    places : sequence of int
        Their columns in the rows that are returned.
    width : int
        Columns of these rows.
    ordered : bool, default=False
        Whether frames must have these columns alone, in this order. Otherwise other
        columns are skipped.
    """

    def __init__(
        self,
        names: Sequence[str],
        places: Sequence[int],
        width: int,
        *,
        ordered: bool = False,
    ) -> None:
        self._names, self._places = list(names), np.asarray(places, np.intp)
        self._width, self._ordered = width, ordered
        #: The last column index, the place of each of its columns in the rows (-1 for
        #: none) and the plans of its blocks. None: such frames are not read.
        self._seen: tuple[Any, Array | None, dict[bytes, _Plan]] = (None, None, {})

    def read(self, X: Any) -> Columns | None:
        """Return the wanted columns of a pandas frame.

        Parameters
        ----------
        X : pandas.DataFrame

        Returns
        -------
        Columns or None
            None if a column is missing or there twice, if a name is not text, if there
            are no rows, or if pandas' internals are not as expected.
        """
        try:
            columns, blocks = X.columns, X._mgr.blocks
        except AttributeError:  # another pandas' internals
            return None
        seen, to, plans = self._seen
        if columns is not seen:
            if type(columns) is not type(seen) or not columns.equals(seen):
                to, plans = self._places_of(columns), {}
            self._seen = columns, to, plans
        n_rows = len(X)
        if to is None or not n_rows:
            return None
        found = Columns(np.zeros((n_rows, self._width)), [], [])
        for block in blocks:
            locations = block.mgr_locs.as_array
            key = locations.tobytes()
            plan = plans.get(key)
            if plan is None:
                if len(plans) >= _MOST_PLANS:
                    plans.clear()
                plan = plans[key] = _plan(to[locations])
            _copy(block.values, plan, found)
        return found

    def _places_of(self, columns: Any) -> Array | None:
        """Return the place of each column in the rows; None if frames are not read."""
        if not columns.is_unique or {*map(type, columns)} != {str}:
            return None  # scikit-learn warns or raises
        at = columns.get_indexer(self._names)
        if (at < 0).any():
            return None
        if self._ordered and not np.array_equal(at, np.arange(len(columns))):
            return None
        to = np.full(len(columns), -1, np.intp)
        to[at] = self._places
        return to


def _plan(to: Array) -> _Plan:
    """Return which columns of a block are wanted, and where they go."""
    taken = np.flatnonzero(to >= 0)
    return _as_slice(taken), _as_slice(to[taken])


def _as_slice(places: Array) -> Any:
    """Return places as a slice if each follows the one before: it makes no copy."""
    if len(places) and (np.diff(places) == 1).all():
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def _copy(values: Any, plan: _Plan, found: Columns) -> None:
    """Copy the wanted columns of a block's values, or list them."""
    taken, to = plan
    if type(taken) is not slice and not len(taken):
        return
    if type(values) is np.ndarray and values.dtype in _NUMBERS:
        part = values[taken]
        found.rows[:, to] = part.T
        if part.dtype.kind != "f":
            found.whole.append((_listed(to), part))
        return
    for at, place in zip(_listed(taken), _listed(to), strict=True):
        found.others.append((place, values if values.ndim == 1 else values[at]))


def _listed(places: Any) -> list[int]:
    if type(places) is slice:
        return [*range(places.start, places.stop)]
    return list(places.tolist())
