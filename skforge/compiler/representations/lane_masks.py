"""Every node of small trees at once, a tree in each lane: masks of reachable leaves.

A row that goes right at a node reaches no leaf to the left of it. With leaves numbered
from the left, the leaf reached is the first that no such node has excluded::

    reachable = all leaves
    for each slot (one node of every tree, in any order):
      right = permute(codes, column[slot]) > rank[slot]
      reachable &= not (leaves left of the node, where right)
    leaf = number of the lowest bit of reachable

A register holds one byte of each tree's mask; masks are put together by interleaving,
in an order that leaves trees where their number says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest import Forest
from skforge.compiler.ir.builder import Builder
from skforge.compiler.ir.lir import I64, U8, U16, U32, Buffer, Scalar, Value, Vec
from skforge.compiler.ir.numpy_types import scalar_of
from skforge.compiler.representations.base import Model
from skforge.compiler.representations.lane_levels import NEVER_RIGHT, RowTests

#: Leaves of a tree, at most: the bits of the widest integer.
MOST_LEAVES = 64

_BY_BITS: dict[int, Scalar] = {8: U8, 16: U16, 32: U32, 64: I64}


@dataclass(frozen=True, slots=True, eq=False)
class LeafMasks:
    """The tests and masks of every slot.

    Slot i of a tree separates leaf i from leaf i + 1, so what it excludes lies in the
    planes up to that of leaf i, and only those are stored.
    """

    n_trees: int
    lanes: int  # trees of a group
    groups: int
    n_slots: int
    planes: int  # registers of a group's masks
    slots: NDArray[Any]  # group by group, slot by slot: places, ranks, masks
    leaf_of_item: NDArray[np.int32]  # (n_trees * bits,)

    @property
    def element_bits(self) -> int:
        """Bits of a lane."""
        return 8 * int(self.slots.dtype.itemsize)

    @property
    def bits(self) -> int:
        """Bits of one tree's mask."""
        return self.planes * self.element_bits

    def segments(self) -> list[tuple[int, int]]:
        """Return how many slots have 1, 2, … planes."""
        size = self.element_bits
        firsts = range(0, self.n_slots, size)
        return [(min(size, self.n_slots - i), i // size + 1) for i in firsts]


def leaf_counts(forest: Forest) -> NDArray[np.int64]:
    """Return the number of leaves of each tree."""
    counts: NDArray[np.int64] = (np.diff(forest.tree_offset) + 1) // 2
    return counts


def mask_planes(forest: Forest, element_bits: int) -> int:
    """Return how many registers the masks of a group take."""
    planes, most = 1, int(leaf_counts(forest).max(initial=1))
    while planes * element_bits < most:
        planes *= 2
    return planes


def lay_leaf_masks(
    forest: Forest,
    tests: RowTests,
    lanes: int,
    dtype: type[np.unsignedinteger[Any]],
) -> LeafMasks:
    """Lay every node of trees of at most ``MOST_LEAVES`` leaves out."""
    bits = 8 * np.dtype(dtype).itemsize
    planes = mask_planes(forest, bits)
    first, last = _leaves_below(forest)
    inner = np.flatnonzero(forest.left >= 0)
    tree = np.searchsorted(forest.tree_offset, inner, "right") - 1
    end = last[forest.left[inner]]
    slot = end - 1
    n_slots, groups = int(end.max(initial=1)), -(-forest.n_trees // lanes)
    made = np.zeros((groups * lanes, n_slots, 2 + planes), dtype)
    made[:, :, 1] = NEVER_RIGHT
    predicate = forest.predicate[inner]
    made[tree, slot, 0] = tests.place[predicate]
    made[tree, slot, 1] = tests.rank[predicate]
    one, low, high = np.uint64(1), first[inner], end
    # The leaves left of a node are not all of its tree: no shift by all bits.
    excluded = (one << high.astype(np.uint64)) - (one << low.astype(np.uint64))
    for k in range(planes):
        part = excluded >> np.uint64(k * bits)
        made[tree, slot, 2 + k] = part & np.uint64((1 << bits) - 1)
    # The lane of a tree is where interleaving leaves it at its number's place.
    shaped = made.reshape(groups, lanes, n_slots, -1)
    by_lane = np.empty_like(shaped)
    by_lane[:, _interleaved(np.arange(lanes), planes, bits)] = shaped
    by_slot = by_lane.transpose(0, 2, 3, 1)
    needed = [
        by_slot[:, i : i + bits, : 3 + i // bits].reshape(groups, -1)
        for i in range(0, n_slots, bits)
    ]
    leaf_of_item = np.zeros((forest.n_trees, planes * bits), np.int32)
    leaves = np.flatnonzero(forest.leaf >= 0)
    of_tree = np.searchsorted(forest.tree_offset, leaves, "right") - 1
    leaf_of_item[of_tree, first[leaves]] = forest.leaf[leaves]
    return LeafMasks(
        n_trees=forest.n_trees,
        lanes=lanes,
        groups=groups,
        n_slots=n_slots,
        planes=planes,
        slots=np.concatenate(needed, axis=1).reshape(-1),
        leaf_of_item=leaf_of_item.reshape(-1),
    )


def _leaves_below(forest: Forest) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each node's first leaf and one past its last, numbered from the left."""
    count = (forest.leaf >= 0).astype(np.int64)
    levels = []
    level = forest.tree_offset[:-1].astype(np.int64)
    while len(level):
        levels.append(level)
        inner = level[forest.left[level] >= 0]
        level = np.concatenate([forest.left[inner], forest.right[inner]])
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


def _halves(lanes: int, unit: int, bits: int) -> tuple[list[int], list[int]]:
    """Return the lanes that interleave two registers within each 128 bits.

    ``unit`` consecutive lanes stay together.
    """
    whole = 128 // bits
    low: list[int] = []
    high: list[int] = []
    for start in range(0, lanes, whole):
        for made, offset in ((low, 0), (high, whole // 2)):
            for k in range(0, whole // 2, unit):
                at = start + offset + k
                made += [*range(at, at + unit), *range(lanes + at, lanes + at + unit)]
    return low, high


def _interleaved(lanes: NDArray[np.int64], planes: int, bits: int) -> NDArray[Any]:
    """Return the lane that stands at each tree's place after interleaving."""
    made = [[lanes] for _ in range(planes)]
    unit = 1
    while len(made) > 1:
        low, high = _halves(len(lanes), unit, bits)
        paired = []
        for one, two in zip(made[::2], made[1::2], strict=True):
            parts = []
            for a, c in zip(one, two, strict=True):
                both = np.concatenate([a, c])
                parts += [both[low], both[high]]
            paired.append(parts)
        made, unit = paired, 2 * unit
    return np.concatenate(made[0])[::planes]


class LeafMasksLowering:
    """Writes the evaluation of the slots."""

    def __init__(self, b: Builder, masks: LeafMasks, model: Model) -> None:
        self.b, self.masks = b, masks
        self._slots = model("lane_slots", masks.slots)
        self._vec = Vec(scalar_of(masks.slots.dtype), masks.lanes)

    def evaluate(self, group: Value, codes: list[Value], reachable: Buffer) -> None:
        """Write the masks of the reachable leaves of a group of trees."""
        b, masks = self.b, self.masks
        ones = b.const((1 << masks.element_bits) - 1, self._vec)
        at = b.mul(group, len(masks.slots) // masks.groups)
        planes = [ones] * masks.planes
        for count, n_planes in masks.segments():
            step = (2 + n_planes) * masks.lanes
            end = b.add(at, count * step)

            def slot(i: Value, some: tuple[Value, ...]) -> list[Value]:
                return self._slot(i, codes, some)

            planes[:n_planes] = b.for_(
                at, end, b.const(step), slot, planes[:n_planes], hint="slot"
            )
            at = end
        to = b.mul(group, masks.lanes * masks.planes)
        for k, part in enumerate(self._interleave(planes)):
            b.store(reachable, b.add(to, k * masks.lanes), part)

    def _slot(
        self, at: Value, codes: list[Value], planes: tuple[Value, ...]
    ) -> list[Value]:
        """Return the planes without the leaves that one node of each tree excludes."""
        b, lanes = self.b, self.masks.lanes
        code = b.permute(codes, b.load(self._slots, at, self._vec))
        rank = b.load(self._slots, b.add(at, lanes), self._vec)
        # All bits of a lane or none: each plane is then one operation.
        right = b.convert(b.compare("gt", code, rank), self._vec.element)
        right = b.sub(b.const(0, self._vec), right)
        made = []
        for k, plane in enumerate(planes):
            mask = b.load(self._slots, b.add(at, (2 + k) * lanes), self._vec)
            lost = b.binary("and", right, mask)
            made.append(b.binary("and", plane, b.invert(lost)))
        return made

    def _interleave(self, planes: list[Value]) -> list[Value]:
        """Put the parts of each tree's mask together."""
        b, bits = self.b, self.masks.element_bits
        made, unit = [[plane] for plane in planes], 1
        while len(made) > 1:
            low, high = _halves(self.masks.lanes, unit, bits)
            paired = []
            for one, two in zip(made[::2], made[1::2], strict=True):
                parts = []
                for a, c in zip(one, two, strict=True):
                    parts += [b.shuffle(a, c, low), b.shuffle(a, c, high)]
                paired.append(parts)
            made, unit = paired, 2 * unit
        return made[0]

    def items(self, first: Value, count: int, reachable: Buffer) -> list[Value]:
        """Return the leaf item of ``count`` trees from ``first`` on."""
        b, bits = self.b, self.masks.bits
        whole = _BY_BITS[bits]
        at, base = b.mul(first, self.masks.planes), b.mul(first, bits)
        made = []
        for k in range(count):
            mask = b.load(reachable, b.add(at, k * self.masks.planes), whole)
            wide = U32 if bits < 32 else whole
            leaf = b.convert(b.count_zeros(b.convert(mask, wide)), I64)
            made.append(b.add(b.binary("add", base, leaf), k * bits))
        return made


__all__ = [
    "MOST_LEAVES",
    "LeafMasks",
    "LeafMasksLowering",
    "lay_leaf_masks",
    "leaf_counts",
    "mask_planes",
]
