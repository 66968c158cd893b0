"""Columns of pandas frames by name, in microseconds.

pandas' own selection and conversion of a one-row frame takes more than 100 µs. A frame
keeps its values in blocks, one per dtype, each with the places of its columns. Where
the wanted columns lie is found once for each column index and each block's places;
a later frame of the same layout costs a comparison of its names and a copy per block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.frames import number_dtype

Array = NDArray[Any]

#: Dtypes that every step takes as float64, and those that some compute in, or refuse.
_NUMBERS = frozenset(map(np.dtype, ["f8", *"bhilqBHILQ"]))
_OTHERS = frozenset(map(np.dtype, ["f4", "f2", "?"]))

#: The dtypes of a frame's columns, where some are neither float64 nor whole numbers:
#: None for a column of texts.
Form: TypeAlias = tuple[Any, ...]
#: Classes of dtypes that are alike here, whatever their parameters.
_TEXTS = ("StringDtype", "CategoricalDtype")
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
    gaps : list of int
        Places of nullable columns with missing values, which are NaN here.
    form : Form or None
        None if all columns are float64, whole numbers or in ``others``.
    """

    rows: Array
    whole: list[tuple[list[int], Array]]
    others: list[tuple[int, Any]]
    gaps: list[int]
    form: Form | None


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """The taken rows of a block's values, their columns in the rows, and their dtype.

    ``places`` has both in pairs. ``number`` is the NumPy dtype of its numbers; None for
    others. ``plain`` tells whether every step takes them as float64.
    """

    taken: Any
    to: Any
    places: list[tuple[int, int]]
    dtype: Any
    number: Any
    plain: bool


#: The values of a frame's blocks, and how they are read.
Parts: TypeAlias = "list[tuple[Any, _Plan]]"


class FrameReader:
    """Reads float64 and whole numbers of pandas frames.

    Parameters
    ----------
    names : sequence of str or None
        The wanted columns; None for all, by position.
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
        names: Sequence[str] | None,
        places: Sequence[int],
        width: int,
        *,
        ordered: bool = False,
    ) -> None:
        self._names = None if names is None else list(names)
        self._places = np.asarray(places, np.intp)
        self._width, self._ordered = width, ordered
        #: The last column index, the place of each of its columns in the rows (-1 for
        #: none) and the plans of its blocks. None: such frames are not read.
        self._seen: tuple[Any, Array | None, dict[Any, _Plan]] = (None, None, {})
        #: By the plans of a frame's blocks.
        self._forms: dict[tuple[_Plan, ...], Form] = {}

    def read(self, form: Form | None, parts: Parts, n_rows: int) -> Columns:
        """Return the wanted columns of a frame with this layout."""
        found = Columns(np.zeros((n_rows, self._width)), [], [], [], form)
        for values, plan in parts:
            if plan.number is None:
                for at, place in plan.places:
                    one = values if values.ndim == 1 else values[at]
                    found.others.append((place, one))
            elif type(values) is np.ndarray:
                _copy(values, plan, found)
            else:
                _copy_nullable(values, plan, found)
        return found

    def layout(self, X: Any) -> tuple[Form | None, Parts] | None:
        """Return the form of a frame, and how each block's values are read.

        None if a column is missing or there twice, if a name is not text, if there are
        no rows, or if pandas' internals are not as expected.
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
        if to is None or not len(X):
            return None
        parts: Parts = []
        plain = True
        for block in blocks:
            locations, values = block.mgr_locs.as_array, block.values
            kind = type(dtype := values.dtype)  # the hash of texts' dtypes takes 3 us
            key = locations.tobytes(), kind if kind.__name__ in _TEXTS else dtype
            plan = plans.get(key)
            if plan is None:
                if len(plans) >= _MOST_PLANS:
                    plans.clear()
                plan = plans[key] = _plan(to[locations], dtype)
            plain = plain and plan.plain
            parts.append((values, plan))
        return (None if plain else self._form_of(parts)), parts

    def _form_of(self, parts: Parts) -> Form:
        """Return the dtypes of columns, found once for each layout."""
        plans = tuple([plan for _, plan in parts])
        form = self._forms.get(plans)
        if form is None:
            if len(self._forms) >= _MOST_PLANS:
                self._forms.clear()
            dtypes = [None] * self._width
            for plan in plans:
                if plan.number is not None:
                    for _, place in plan.places:
                        dtypes[place] = plan.dtype
            form = self._forms[plans] = tuple(dtypes)
        return form

    def _places_of(self, columns: Any) -> Array | None:
        """Return the place of each column in the rows; None if frames are not read."""
        if self._names is None:
            return self._places if len(columns) == self._width else None
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


def only_values(values: Any) -> list[Any]:
    """Return the numbers of the only row of a block; None for those missing."""
    if type(values) is np.ndarray:
        found: list[Any] = values[:, 0].tolist()
        return found
    mask = getattr(values, "_mask", None)
    if mask is None:  # of pyarrow
        only = values._pa_array[0].as_py()
    else:
        only = None if mask[0] else values._data[0].item()
    return [None if only != only else only]


def _plan(to: Array, dtype: Any) -> _Plan:
    """Return which columns of a block are wanted, and where they go."""
    taken = np.flatnonzero(to >= 0)
    number = number_dtype(dtype, arrow=True) if len(taken) else None
    if number not in _NUMBERS and number not in _OTHERS:
        number = None
    plain = number is None or (isinstance(dtype, np.dtype) and number in _NUMBERS)
    places = [*zip(taken.tolist(), to[taken].tolist(), strict=True)]
    return _Plan(_as_slice(taken), _as_slice(to[taken]), places, dtype, number, plain)


def _as_slice(places: Array) -> Any:
    """Return places as a slice if each follows the one before: it makes no copy."""
    if len(places) and (np.diff(places) == 1).all():
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def _copy(values: Any, plan: _Plan, found: Columns) -> None:
    """Copy the wanted columns of a block's numbers."""
    part = values[plan.taken]
    found.rows[:, plan.to] = part.T
    if part.dtype.kind in "iu":
        found.whole.append(([place for _, place in plan.places], part))


def _copy_nullable(values: Any, plan: _Plan, found: Columns) -> None:
    """Copy a column of nullable numbers."""
    ((_, place),) = plan.places
    mask = getattr(values, "_mask", None)
    if mask is None:  # of pyarrow
        mask = values.isna()
        kept = values.to_numpy(plan.number, na_value=plan.number.type(0))
    else:
        kept = values._data
    found.rows[:, place] = kept
    gone = mask.any()
    if plan.number.kind in "iu":
        found.whole.append(([place], kept[~mask] if gone else kept))
    if gone:
        found.rows[mask, place] = np.nan
        found.gaps.append(place)
