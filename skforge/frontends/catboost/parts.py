"""The numbers of a CatBoost model, whatever file held them, and its trees as nodes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Bools, Int32s, Uint64s
from skforge.exceptions import UnsupportedModelError
from skforge.forest import validation
from skforge.forest.arrays import dropped_name
from skforge.frontends.arrays import Floats, Ints, offsets, starts

#: The values of ``nan_value_treatment``, also by number; the last sends NaN right.
_NAN_MODES = ("AsIs", "AsFalse", "AsTrue")


class Nodes(NamedTuple):
    """The nodes of all trees; those of tree t begin with its root at ``offset[t]``."""

    offset: Ints  # (n_trees + 1,)
    inner: Bools  # (n_nodes,)
    left: Ints  # (n_nodes,), used at inner nodes
    right: Ints
    split: Ints  # (n_inner,), numbers of tests: borders of numbers, then categories
    leaf_value: Floats  # (n_leaves, n_outputs)
    leaf_number: Ints  # (n_leaves,), CatBoost's own, in each tree
    leaf_weight: Floats  # (n_leaves,) of training rows, or (0,)


#: A part of a combination: its kind, column and value, as ``HashedCategories`` has it.
PartPosition = tuple[int, int, int]


class Ctr(NamedTuple):
    """A number that is computed of a combination, and the borders of its tests."""

    combination: tuple[PartPosition, ...]
    kind: str
    table: Hashable
    target_border: int
    prior: tuple[float, float]  # what is added to numerator and denominator
    shift: float
    scale: float
    borders: NDArray[np.float32]


class CtrTable(NamedTuple):
    """What training counted of each combination."""

    key: Uint64s  # (n_keys,), its hash
    counts: Array  # (n_keys, n_counts): by class of the target, sum and number, number
    denominator: int  # of counts alone


class Categories(NamedTuple):
    columns: tuple[int, ...]  # of the features
    values: Sequence[Int32s]  # hashes of each feature's values with a test
    ctrs: Sequence[Ctr]
    tables: Mapping[Any, CtrTable]

    @property
    def n_splits(self) -> int:
        borders = [ctr.borders for ctr in self.ctrs]
        return sum(map(len, [*self.values, *borders]))


class CatBoostParts(NamedTuple):
    nodes: Nodes
    column: Ints  # of each border
    border: NDArray[np.float32]  # a greater number goes right
    missing_left: Bools
    names: tuple[str, ...]  # of the columns
    scale: float
    bias: Floats  # (n_outputs,)
    info: Mapping[str, Any]  # "params" and "class_params" among others
    categories: Categories


def damaged(what: str) -> NoReturn:
    validation.damaged(what, "save it again")


#: Kinds of features; those from which CatBoost makes further ones are refused.
KINDS = ("float", "categorical", "text", "embedding")
REFUSED = KINDS[2:]
#: Most columns of which ``drop_unused_features()`` left nothing but their places.
_MOST_DROPPED = 1 << 16


def check_borders(of: Array, borders: Array) -> None:
    if np.isnan(borders).any():
        damaged("a border is not a number")
    if ((of[1:] == of[:-1]) & (borders[1:] <= borders[:-1])).any():
        damaged("its borders do not ascend")


def refuse_features(kind: str, names: Sequence[str]) -> None:
    if names:
        raise UnsupportedModelError(
            f"The model has {kind} features ({', '.join(names)}), which skforge cannot "
            "compile yet; compute numbers of them before training, or predict with "
            "CatBoost."
        )


def columns_of(
    features: Mapping[str, Sequence[tuple[int, str]]],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    for kind in REFUSED:
        refuse_features(kind, [name or str(column) for column, name in features[kind]])
    known = {column: (name, kind) for kind in KINDS for column, name in features[kind]}
    n_known = sum(len(features[kind]) for kind in KINDS)
    n_columns = max(known, default=-1) + 1
    if len(known) < n_known or min(known, default=0) < 0:
        damaged("its columns are not numbered from 0")
    if n_columns > n_known + _MOST_DROPPED:
        damaged(f"it has a column {n_columns - 1}, but only {n_known} of those before")
    columns = [
        known.get(column, (dropped_name(column), KINDS[0]))
        for column in range(n_columns)
    ]
    return tuple(name for name, _ in columns), tuple(kind for _, kind in columns)


def nan_goes_right(mode: Any, has_nans: Any) -> bool:
    """Tell whether NaN is greater than all borders of a feature; else than none."""
    if mode not in (*_NAN_MODES, *range(len(_NAN_MODES))):
        damaged(f"the treatment {mode!r} of missing values is unknown")
    return mode in ("AsTrue", 2) and bool(has_nans)


def known_weights(weights: Any, n_leaves: int) -> Floats:
    known = np.asarray(weights, np.float64)
    valid = known.shape == (n_leaves,) and bool((known >= 0).all())
    return known if valid and np.isfinite(known).all() else np.zeros(0)


def symmetric_nodes(
    depths: Ints, splits: Ints, leaf_value: Floats, leaf_weight: Floats
) -> Nodes:
    """Return complete trees, whose levels have one split each.

    A tree's first split is the lowest bit of CatBoost's leaf number, so that its last
    one is tested at the root. Nodes are numbered level by level.
    """
    leaves = 2**depths
    if len(leaf_value) != leaves.sum():
        damaged(f"the trees have {leaves.sum()} leaves, but {len(leaf_value)} values")
    offset = offsets(2 * leaves - 1)
    root = starts(offset)
    number = np.arange(offset[-1]) - root
    sizes = np.diff(offset)
    level = np.frexp(number + 1.0)[1] - 1
    leaf_number = number - np.repeat(leaves - 1, sizes)
    inner, left = leaf_number < 0, root + 2 * number + 1
    last = np.repeat(offsets(depths)[1:] - 1, sizes)
    trees, split = (offset, inner, left, left + 1), splits[(last - level)[inner]]
    return Nodes(*trees, split, leaf_value, leaf_number[~inner], leaf_weight)
