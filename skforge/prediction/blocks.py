"""Answers for large and for sparse rows by blocks: a call needs memory for one block.

Arrays on disk (``numpy.memmap``), and frames whose copy would not fit in memory, are
read a block at a time; the answers go to ``out`` or to one new array.

Sparse rows become dense blocks of the columns read. Text has tens of thousands of
columns, of which a forest tests a few hundred. The blocks hold only these, and a copy
of the forest with renumbered columns reads them. Where trees are deep, or rows have few
entries that trees test, entries alone find the leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array
from skforge.compiler.backend import backend_of
from skforge.engine.arrays import check_out
from skforge.engine.module import CompiledModule
from skforge.engine.sparse import SparseWalk
from skforge.forest.forest import Forest
from skforge.forest.frames import kind_of
from skforge.forest.reference import differing_rows, draw_rows, reference_raw

#: Values of a block, and of rows that are still converted at once. A block of float64
#: has 32 MB: enough to share among threads, and a copy of it stays small.
BLOCK_VALUES, MOST_VALUES = 1 << 22, 1 << 24
#: Values of a forest's rows that are made of others and stay in a cache until used.
NEAR_VALUES = 1 << 18

#: From this many unread columns on, they are left out and a second module compiles.
#: Rows of fewer columns are never walked: their blocks stay in the cache.
UNREAD = 256

#: Rows with which the entries' answers are compared with the forest's.
_DRAWN = 32


def is_large(X: Any, made: int = 0) -> bool:
    """Tell whether rows are an array or a frame of more than ``MOST_VALUES``.

    Or whether rows of ``made`` columns are made of it, of more than ``NEAR_VALUES``.
    """
    kind = type(X)
    is_array = kind is np.ndarray or kind is np.memmap
    if not is_array and kind_of(X) not in ("pandas", "polars"):
        return False
    if len(shape := X.shape) != 2:  # a frame counts its rows anew for each
        return False
    n, width = shape
    return bool(n * made > NEAR_VALUES or n * width > MOST_VALUES)


def by_blocks(
    X: Any, answer: Callable[[Any], Any], out: Array | None = None, made: int = 0
) -> Array | None:
    """Write the answers to blocks of large rows to ``out``, or to a new array.

    Return None if ``answer`` does for a block, which the source must read. Raise
    ``InvalidInputError`` if ``out`` does not fit the answer; nothing is written then.
    """
    n_rows, width = X.shape
    # a multiple of the four values that CatBoost's exponential takes at a time, and of
    # the blocks of kernels
    most = NEAR_VALUES // made if made else BLOCK_VALUES // max(1, width)
    step = max(64, most // 64 * 64)
    X = X.view(np.ndarray) if type(X) is np.memmap else X
    rows = getattr(X, "iloc", X)
    for first in range(0, n_rows, step):
        place = slice(first, min(first + step, n_rows))
        part = answer(rows[place])
        if part is None:
            return None
        if out is None or first == 0:
            shape = (n_rows, *part.shape[1:])
            out = np.empty_like(part, shape=shape) if out is None else out
            check_out(out, shape, part.dtype)
        out[place] = part
    return out


class Narrow(NamedTuple):
    """A module for the columns that a forest reads, renumbered."""

    module: CompiledModule
    n_columns: int
    columns: NDArray[np.int64]  # the module's column of each forest column, or -1


def narrowed(module: Any) -> Narrow | None:
    if not isinstance(module, CompiledModule) or not backend_of(module.target).native:
        return None
    forest = module.forest
    columns = np.unique(forest.feature) if forest.n_predicates else np.zeros(1, int)
    if forest.n_features - len(columns) < UNREAD or forest.aggregate == "linear":
        return None
    place = np.full(forest.n_features, -1, np.int64)
    place[columns] = np.arange(len(columns))
    few: Forest = replace(
        forest,
        feature=place[forest.feature].astype(forest.feature.dtype),
        n_features=len(columns),
        feature_names=None,
        category_names=(),
        category_lists=(),
    )
    few_columns = CompiledModule(
        few, module.schedules, module.target, module.reduction, module.n_jobs
    )
    return Narrow(few_columns, len(columns), place)


def walk_of(module: Any, fill: float) -> SparseWalk | None:
    """Return what finds leaves by entries, if drawn rows show that it agrees."""
    forest = module.forest
    fits = module.reduction == "exact" and backend_of(module.parts[0].target).native
    if not fits or forest.n_features < UNREAD or not SparseWalk.supports(forest):
        return None
    from scipy.sparse import csr_array

    walk, rows = SparseWalk(forest, fill), draw_rows(forest, _DRAWN, 0)
    absent = np.random.default_rng(0).random(rows.shape) < 0.8
    rows[absent] = fill
    at, columns = np.nonzero(~absent)
    starts = np.append(0, np.cumsum(np.bincount(at, minlength=_DRAWN)))
    entries = csr_array((rows[at, columns], columns, starts), rows.shape)
    scores = reference_raw(forest, rows)
    wanted = scores[:, 0] if forest.n_outputs == 1 else scores
    given = walk(entries, 1, leaves=False)
    fine = given is not None and not len(differing_rows(given, wanted))
    return walk if fine else None
