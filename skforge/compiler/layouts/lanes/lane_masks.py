"""Evaluates every node of small trees, one tree a lane: masks of reachable leaves.

A row that goes right at a node cannot reach the leaves of the node's left subtree. With
leaves numbered from the left, the row's leaf is the first that no node excludes::

    reachable = all leaves
    for each slot (one node of every tree, in any order):
      right = permute(codes, column[slot]) > rank[slot]
      reachable &= not (leaves left of the node, where right)
    leaf = number of the lowest bit of reachable

Category sets take no slot. A table row (``category_rows.py``) has the leaves that stay
reachable for a category after all sets of its feature; slots start from the
intersection over all features.

A register holds one part of each tree's mask (8 or 16 bits). The parts are joined by
interleaving, and trees are assigned to lanes so that they end up in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from skforge._typing import Array, Bools, Int32s, Int64s, Uint64s
from skforge.compiler.binning.category_rows import CategoryRows, SetClasses, by_classes
from skforge.compiler.binning.rules import Model
from skforge.compiler.binning.transpose import unpacked
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import I64, U8, U16, U32, Scalar, Value, Vec
from skforge.compiler.ir.lir.types import Part, scalar_of
from skforge.compiler.layouts.even_trees import leaf_counts
from skforge.compiler.layouts.lanes import lane_levels
from skforge.forest.forest import Forest

_T = TypeVar("_T")

#: Most leaves of a tree: the bits of the widest integer.
MOST_LEAVES = 64

#: Approximate instructions of a slot without its planes, of a plane (which is also a
#: cache line of L1), and of a loop over slots.
SLOT, PLANE, PART = 7.0, 2.0, 5.0

_BY_BITS: dict[int, Scalar] = {8: U8, 16: U16, 32: U32, 64: I64}


@dataclass(frozen=True, slots=True, eq=False)
class LeafMasks:
    """The tests and masks of every slot.

    The leaves that a node excludes lie in consecutive planes, usually in one. A slot of
    a single plane holds nodes that need only that plane. The remaining nodes are in
    slots that have all planes from the first to the last one needed.
    """

    n_trees: int
    lanes: int  # trees in a group
    groups: int
    parts: tuple[tuple[int, int, int], ...]  # slots, their first plane, one past it
    planes: int  # registers of a group's masks
    slots: Array  # group by group, slot by slot: places, ranks, masks
    leaf_of_item: Int32s  # (n_trees * bits,)

    @property
    def element_bits(self) -> int:
        return 8 * int(self.slots.dtype.itemsize)

    @property
    def bits(self) -> int:
        return self.planes * self.element_bits


def mask_planes(forest: Forest, element_bits: int) -> int:
    planes, most = 1, int(leaf_counts(forest).max(initial=1))
    while planes * element_bits < most:
        planes *= 2
    return planes


@dataclass(frozen=True, slots=True, eq=False)
class Exclusions:
    """The leaves that each inner node excludes, tree by tree."""

    tree: Int64s  # (n_inner,)
    predicate: Int32s
    start: Int64s  # its first leaf
    end: Int64s  # one past its last leaf on the left
    leaves: Uint64s  # bit i for leaf i: those on its left
    first: Int64s  # (n_nodes,) the first leaf below a node

    @classmethod
    def of(cls, forest: Forest) -> Exclusions:
        first, last = _leaves_below(forest)
        inner = np.flatnonzero(forest.left >= 0)
        tree = np.searchsorted(forest.tree_offset, inner, "right") - 1
        end = last[forest.left[inner]]
        one, low, high = np.uint64(1), first[inner], end
        # A left subtree never has all leaves of a tree, so no shift is by all bits.
        leaves = (one << high.astype(np.uint64)) - (one << low.astype(np.uint64))
        return cls(tree, forest.predicate[inner], low, end, leaves, first)


def lay_leaf_masks(
    forest: Forest,
    excluded: Exclusions,
    tests: lane_levels.RowTests,
    in_slots: Bools,
    lanes: int,
    dtype: type[np.unsignedinteger[Any]],
) -> LeafMasks:
    bits = 8 * np.dtype(dtype).itemsize
    planes, groups = mask_planes(forest, bits), -(-forest.n_trees // lanes)
    nodes = np.flatnonzero(in_slots[excluded.predicate])
    tree, predicate = excluded.tree[nodes], excluded.predicate[nodes]
    low, high = excluded.start[nodes] // bits, (excluded.end[nodes] - 1) // bits + 1
    slot, parts = min(
        (_slots(tree, low, high, most) for most in range(bits + 1)), key=_cost
    )[:2]
    n_slots = sum(count for count, _, _ in parts)
    by_tree = np.zeros((groups * lanes, n_slots, 2 + planes), dtype)
    by_tree[:, :, 1] = lane_levels.NEVER_RIGHT
    by_tree[tree, slot, 0] = tests.code_index[predicate]
    by_tree[tree, slot, 1] = tests.rank[predicate]
    by_tree[tree, slot, 2:] = _planes(excluded.leaves[nodes], planes, bits)
    by_slot = _by_lane(by_tree.reshape(groups, lanes, n_slots, -1), planes, bits)
    needed, at = [], 0
    for count, begin, end in parts:
        columns = [0, 1, *range(2 + begin, 2 + end)]
        needed.append(by_slot[:, at : at + count, columns].reshape(groups, -1))
        at += count
    leaf_of_item = np.zeros((forest.n_trees, planes * bits), np.int32)
    leaves = np.flatnonzero(forest.leaf >= 0)
    of_tree = np.searchsorted(forest.tree_offset, leaves, "right") - 1
    leaf_of_item[of_tree, excluded.first[leaves]] = forest.leaf[leaves]
    return LeafMasks(
        n_trees=forest.n_trees,
        lanes=lanes,
        groups=groups,
        parts=tuple(parts),
        planes=planes,
        slots=np.concatenate(needed, axis=1).reshape(-1),
        leaf_of_item=leaf_of_item.reshape(-1),
    )


def _cost(found: tuple[Any, list[tuple[int, int, int]]]) -> float:
    return sum(PART + n * (SLOT + PLANE * (end - begin)) for n, begin, end in found[1])


def _slots(
    tree: Int64s, low: Int64s, high: Int64s, most: int
) -> tuple[Int64s, list[tuple[int, int, int]]]:
    """Assign slots: in each tree, up to ``most`` nodes a plane get one-plane slots."""
    slot = np.zeros(len(tree), np.int64)
    left = np.ones(len(tree), np.bool_)
    parts: list[tuple[int, int, int]] = []
    first = 0
    for plane in range(1, int(high.max(initial=0)) if most else 0):
        nodes = np.flatnonzero((low == plane) & (high == plane + 1))
        number = _number(tree[nodes])
        nodes, number = nodes[number < most], number[number < most]
        if len(nodes):
            slot[nodes] = first + number
            left[nodes] = False
            parts.append((int(number.max()) + 1, plane, plane + 1))
            first += parts[-1][0]
    nodes = np.flatnonzero(left)
    nodes = nodes[np.lexsort((-high[nodes], tree[nodes]))]
    number = _number(tree[nodes])
    needs = np.ones(int(number.max(initial=0)) + 1, np.int64)
    np.maximum.at(needs, number, high[nodes])
    slot[nodes] = first + len(needs) - 1 - number
    ends, counts = np.unique(needs, return_counts=True)
    for end, count in zip(ends.tolist(), counts.tolist(), strict=True):
        parts.append((count, 0, end))
    return slot, parts


def _number(tree: Int64s) -> Int64s:
    at = np.arange(len(tree))
    begins = np.zeros(len(tree), np.int64)  # twice as fast as a search of each tree
    begins[1:] = np.where(tree[1:] != tree[:-1], at[1:], 0)
    return at - np.maximum.accumulate(begins)


def _planes(masks: Uint64s, planes: int, bits: int) -> Uint64s:
    shifts = np.arange(0, planes * bits, bits, dtype=np.uint64)
    cut: Uint64s = masks[..., None] >> shifts
    cut &= np.uint64((1 << bits) - 1)
    return cut


def _by_lane(shaped: Array, planes: int, bits: int) -> Array:
    """Return (groups, trees, slots, parts) as (groups, slots, parts, lanes).

    Each tree is put in the lane that interleaving moves to the tree's number.
    """
    by_lane: Array = np.empty_like(shaped)
    by_lane[:, _interleaved(np.arange(shaped.shape[1]), planes, bits)] = shaped
    return by_lane.transpose(0, 2, 3, 1)


def set_masks(masks: LeafMasks, excluded: Exclusions, classes: SetClasses) -> Array:
    numbers = classes.within(excluded.predicate)
    nodes = np.flatnonzero(numbers >= 0)
    number, tree = numbers[nodes], excluded.tree[nodes]
    starts = np.flatnonzero(np.diff(tree, prepend=-1))
    lanes, groups, dtype = masks.lanes, masks.groups, masks.slots.dtype
    every = ~np.uint64(0)

    def some(right: Bools) -> Array:
        reachable = np.full((len(right), groups * lanes), every)
        stay = np.where(right[:, number], ~excluded.leaves[nodes], every)
        if len(nodes):
            of_trees = np.bitwise_and.reduceat(stay, starts, axis=1)
            reachable[:, tree[starts]] = of_trees
        parts = _planes(reachable, masks.planes, masks.element_bits).astype(dtype)
        # Classes take the axis of slots.
        shaped = parts.reshape(len(right), groups, lanes, -1).transpose(1, 2, 0, 3)
        placed = _by_lane(shaped, masks.planes, masks.element_bits)
        return placed.transpose(1, 0, 2, 3).reshape(len(right), -1)

    return by_classes(classes, some)


def _leaves_below(forest: Forest) -> tuple[Int64s, Int64s]:
    """Return each node's first leaf and one past its last, numbered from the left."""
    count = (forest.leaf >= 0).astype(np.int64)
    levels = forest.levels()
    first = np.zeros(forest.n_nodes, np.int64)
    for level in reversed(levels):
        inner = level[forest.left[level] >= 0]
        count[inner] = count[forest.left[inner]] + count[forest.right[inner]]
    for level in levels:
        inner = level[forest.left[level] >= 0]
        left, right = forest.left[inner], forest.right[inner]
        first[left] = first[inner]
        first[right] = first[inner] + count[left]
    return first, first + count


def _interleave(
    parts: list[list[_T]],
    lanes: int,
    bits: int,
    join: Callable[[_T, _T, list[int]], _T],
) -> list[_T]:
    """Join the parts of each tree's mask: interleave them within each 128 bits.

    ``parts`` has the registers of each plane; ``join`` selects lanes of two of them.
    """
    unit = 1
    while len(parts) > 1:
        halves = [unpacked(lanes, 128 // bits, unit, high) for high in (False, True)]
        parts = [
            [join(a, c, half) for a, c in zip(one, two, strict=True) for half in halves]
            for one, two in zip(parts[::2], parts[1::2], strict=True)
        ]
        unit *= 2
    return parts[0]


def _interleaved(lanes: Int64s, planes: int, bits: int) -> Array:
    def join(a: Array, c: Array, half: list[int]) -> Array:
        return np.concatenate([a, c])[half]

    places = _interleave([[lanes] for _ in range(planes)], len(lanes), bits, join)
    return np.concatenate(places)[::planes]


class LeafMasksLowering:
    def __init__(
        self, masks: LeafMasks, model: Model, categories: CategoryRows | None = None
    ) -> None:
        self.masks, self._categories = masks, categories
        element = scalar_of(masks.slots.dtype)
        #: Elements of a row's masks.
        self.size = self.row_stride = masks.groups * masks.lanes * masks.planes
        self._slots = model("lane_slots", masks.slots)
        self._vec = Vec(element, masks.lanes)

    def evaluate(self, group: Value, codes: list[Value], reachable: Part) -> None:
        masks = self.masks
        ones = b.const((1 << masks.element_bits) - 1, self._vec)
        at = group * (len(masks.slots) // masks.groups)
        planes = [ones] * masks.planes
        if self._categories is not None:
            heads = group * (masks.planes * masks.lanes)
            planes = [
                self._categories.head(heads + k * masks.lanes, "and")
                for k in range(masks.planes)
            ]
        for count, first, last in masks.parts:
            step = (2 + last - first) * masks.lanes
            end = at + count * step
            some = planes[first:last]
            with b.loop(at, end, step, carry=some, hint="slot") as i:
                some[:] = self._slot(i, codes, some)
            planes[first:last] = some
            at = end
        to = group * (masks.lanes * masks.planes)
        parts = [[plane] for plane in planes]
        joined = _interleave(parts, masks.lanes, masks.element_bits, b.shuffle)
        for k, part in enumerate(joined):
            reachable[to + k * masks.lanes] = part

    def _slot(self, at: Value, codes: list[Value], planes: list[Value]) -> list[Value]:
        lanes = self.masks.lanes
        code = b.permute(codes, self._slots[at, self._vec], within=True)
        rank = self._slots[at + lanes, self._vec]
        # All ones or all zeros in a lane, so that each plane takes one operation.
        right = 0 - (code > rank).to(self._vec.element)
        reachable = []
        for k, plane in enumerate(planes):
            lost = right & self._slots[at + (2 + k) * lanes, self._vec]
            reachable.append(plane & ~lost)
        return reachable

    def items(self, first: Value, count: int, reachable: Part) -> list[Value]:
        bits = self.masks.bits
        whole = _BY_BITS[bits]
        at, base = first * self.masks.planes, first * bits
        leaves = []
        for k in range(count):
            mask = reachable[at + k * self.masks.planes, whole]
            wide = U32 if bits < 32 else whole
            leaves.append(base + b.count_zeros(mask.to(wide)).to(I64) + k * bits)
        return leaves
