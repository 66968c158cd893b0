"""Reads pandas frames block by block: first a plan of a form's blocks, then values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import compress
from typing import Any, TypeAlias

import numpy as np

from skforge._typing import Array
from skforge.exceptions import InvalidInputError
from skforge.rows import frames
from skforge.rows.objects import numbers_among

#: Writes a block's values to rows; returns False for values that the source must read.
WriteBlock: TypeAlias = Callable[[Array, Any], bool]
#: What a plan raises for values too large for the dtype, and for other categories.
DECLINED = FloatingPointError, AttributeError, InvalidInputError, KeyError


def plan(X: Any, known: frames.FrameColumns, how: Any) -> list[WriteBlock] | None:
    """Return what writes each block of frames like this one; None for other columns.

    ``how`` is a :class:`~skforge.rows.plain.Reading`.
    """
    columns, blocks = X.columns, X._mgr.blocks
    objects = how.objects and any(block.dtype == np.object_ for block in blocks)
    places = [block.mgr_locs.as_array.tolist() for block in blocks]
    coded = [frames.is_category(block.values.dtype) for block in blocks]
    features = sorted(place[0] for place in compress(places, coded))
    if not known.fits(features):
        return None
    writes: list[WriteBlock] = []
    for block, place, is_coded in zip(blocks, places, coded, strict=True):
        dtype = block.values.dtype
        number = frames.number_dtype(dtype, how.arrow)
        if objects and dtype == np.object_:
            writes.append(partial(_objects, block.mgr_locs.indexer))
        elif frames.is_plain(dtype):
            writes.append(plain(block))
        elif objects or not (is_coded or number is not None):
            return None
        elif is_coded:
            k = features.index(place[0])
            of_dtype = partial(known.of_dtype, k=k, labels=columns, i=place[0])
            writes.append(partial(_codes, place[0], of_dtype, how.unseen))
        else:
            writes.append(partial(_nullable, place[0], number, is_wide(number)))
    return writes


def plain(block: Any) -> WriteBlock:
    """Return what writes a block of plain numbers."""
    return partial(_numbers, block.mgr_locs.indexer, is_wide(block.dtype))


def are_rows(writes: list[WriteBlock], X: Any) -> bool:
    """Tell whether frames with this plan are one block of floats, the rows."""
    blocks, floats = X._mgr.blocks, (np.dtype(np.float32), np.dtype(np.float64))
    only = len(writes) == 1 and getattr(writes[0], "func", None) is _numbers
    return only and blocks[0].values.dtype in floats


def rows_of(
    writes: list[WriteBlock], shape: tuple[int, int], dtype: Any, X: Any
) -> Any:
    """Return rows of a frame's values as planned; None if the source must read them."""
    rows = np.empty(shape, dtype)
    for write, block in zip(writes, X._mgr.blocks, strict=True):
        if not write(rows, block.values):
            return None
    return rows


def is_wide(dtype: Any) -> bool:
    return bool(dtype.kind in "iu" and dtype.itemsize == 8)


def _numbers(places: Any, wide: bool, rows: Array, values: Array) -> bool:
    if wide and frames.has_large(values):
        return False
    rows[:, places] = values.T
    return True


def _nullable(place: int, number: Any, wide: bool, rows: Array, values: Any) -> bool:
    found = frames.nullable_numbers(values, number)
    if wide and frames.has_large(found[0]):
        return False
    frames.write_numbers(rows, place, found)
    return True


def _codes(
    place: int, of_dtype: Any, unseen: float | None, rows: Array, values: Any
) -> bool:
    table, new = of_dtype(values.dtype, unseen=unseen)
    if new is not None and unseen is None:
        return False
    rows[:, place] = table[values.codes]
    return True


def _objects(places: Any, rows: Array, values: Array) -> bool:
    objects = values.ravel().tolist()
    numbers = numbers_among(objects, {*map(type, objects)})
    if numbers is None:
        return False
    rows[:, places] = numbers.reshape(values.shape).T
    return True
