"""Groups the leaves of a forest for interventional values from counted patterns.

A *group* has all leaves below one node. The bits of its *patterns* tell, for a row,
whether it passes all tests of each feature on the way to that node, and whether it
passes the left edge of each inner node below. Whether a row meets the conditions of a
leaf on its D features follows from its pattern. So a row's contributions from a group
are one entry of a table, which depends on the background rows only by the number of
those that have each pattern.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from skforge._typing import Bools, Float64s, Int64s
from skforge.compiler.layouts.background.tables import Preorder
from skforge.compiler.layouts.blocks.paths import Paths, edges_above, trace
from skforge.compiler.layouts.blocks.tree_block import Trees
from skforge.forest.forest import Forest

#: Bits of a pattern, and features of a leaf that has tables, at most.
MOST_BITS = 12

#: Contributions that lie together in a table.
SLOTS = 4

#: Leaves whose tables are computed together.
LEAVES = 8

#: Bytes of all tables, at most; where they would be more, the leaves of most features
#: are walked.
TABLE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Patterns:
    """The groups of a forest, tree after tree.

    ``edge`` has the edge of its tree for each bit, and ``column`` the feature for each
    slot of a table. Leaves of too many features are in no group; ``walked`` has these
    and the nodes above. A leaf has an entry for each feature of its path: bit j of its
    *conditions* belongs to the feature at slot ``leaf_slot[entry_start + j]``. Leaves
    are ordered by tree and by number of features.
    """

    trees: Trees
    start: Int64s  # (n_trees + 1,) into the groups
    bits: Int64s  # of each group
    bit_start: Int64s  # (n_groups + 1,) into ``edge``
    edge: Int64s
    slot_start: Int64s  # (n_groups + 1,) into ``column``, in whole ``SLOTS``
    column: Int64s
    count_start: Int64s  # (n_groups + 1,) into the counts of patterns
    table_start: Int64s  # (n_groups + 1,) into the tables of an output
    leaf: Int64s  # the forest's leaf nodes
    leaf_group: Int64s
    leaf_distinct: Int64s
    goal_start: Int64s  # (n_leaves + 1,) into ``goal``
    goal: Int64s  # counts of those that meet all conditions of a leaf
    entry_start: Int64s  # (n_leaves + 1,) into ``leaf_slot``
    entry_mask: Int64s  # the bits of patterns that tell whether it is met
    entry_value: Int64s  # how these bits then are
    leaf_slot: Int64s
    batches: Int64s  # (n_batches, 2): first leaf, leaves
    batch_start: Int64s  # (n_trees + 1,) into the batches
    walked: Bools  # (n_nodes,)

    @property
    def n_counts(self) -> int:
        return int(self.count_start[-1])

    @property
    def table_size(self) -> int:
        return int(self.table_start[-1])

    def reached(self, counts: Int64s) -> Int64s:
        total = np.append(0, np.cumsum(counts[self.goal]))
        return total[self.goal_start[1:]] - total[self.goal_start[:-1]]

    @classmethod
    def of(cls, forest: Forest) -> Patterns | None:
        paths = trace(forest)
        owner = _cut(forest, paths)
        if owner is None:
            return None
        deep = (owner < 0) & (forest.leaf >= 0) & (paths.parent >= 0)
        above = np.zeros(forest.n_nodes, np.int64)
        above[paths.parent[deep]] = 1
        walked = deep | (paths.sums_below(above) > 0)
        roots = np.flatnonzero(owner == np.arange(forest.n_nodes))
        group = np.where(owner >= 0, np.searchsorted(roots, owner), -1)
        order = Preorder.of(forest)
        inner = forest.left >= 0
        # Bits: the edges above a group, the nearest first, and then those inside.
        above, edge_above = edges_above(forest, paths, roots)
        inside = np.flatnonzero(inner & (group >= 0))
        of_bit = np.concatenate([above, group[inside]])
        by = np.argsort(of_bit, kind="stable")
        lower = np.concatenate([edge_above, forest.left[inside]])[by]
        bits = np.bincount(of_bit, minlength=len(roots))
        bit_start = _offsets(bits)
        bit = np.arange(len(by)) - bit_start[of_bit[by]]
        # Entries of leaves, by tree and number of features.
        leaf = np.flatnonzero(~inner & (group >= 0))
        leaf = leaf[np.lexsort((paths.distinct[leaf], paths.tree[leaf]))]
        of_leaf, entry = edges_above(forest, paths, leaf)
        leaf_group, distinct = group[leaf], paths.distinct[leaf]
        of_entry, entry_start = leaf_group[of_leaf], _offsets(distinct)
        slot_start, column, slot = _slots(forest, of_entry, paths.parent[entry])
        numbers = _Bits(forest, paths, group, of_bit[by], lower, bit)
        mask, value = numbers.conditions(entry, of_entry)
        whole, wanted = (
            np.bitwise_or.reduceat(x, entry_start[:-1]) for x in (mask, value)
        )
        count_start = _offsets(1 << bits)
        start, rest = count_start[leaf_group] + wanted, (1 << bits[leaf_group]) - 1
        goal, goal_start = _subsets(start, rest & ~whole)
        trees = np.arange(forest.n_trees + 1)
        batches, batch_tree = _batches(paths.tree[leaf], distinct)
        return cls(
            trees=order.trees,
            start=np.searchsorted(paths.tree[roots], trees),
            bits=bits,
            bit_start=bit_start,
            edge=paths.edges(order.node, lower),
            slot_start=slot_start,
            column=column,
            count_start=count_start,
            table_start=_offsets(np.diff(slot_start) << bits),
            leaf=leaf,
            leaf_group=leaf_group,
            leaf_distinct=distinct,
            goal_start=goal_start,
            goal=goal,
            entry_start=entry_start,
            entry_mask=mask,
            entry_value=value,
            leaf_slot=slot,
            batches=batches,
            batch_start=np.searchsorted(batch_tree, trees),
            walked=walked,
        )


def _offsets(sizes: Any) -> Int64s:
    return np.append(0, np.cumsum(sizes)).astype(np.int64)


def costs(bits: Int64s) -> Float64s:
    """Return what a group costs, in time of one look-up of ``SLOTS`` contributions."""
    chunks = -(-np.maximum(bits, 1) // SLOTS)
    return 1 + 0.1 * bits + chunks + np.exp2(bits) * chunks / 256


def _cut(forest: Forest, paths: Paths) -> Int64s | None:
    """Return the root of each node's group, or -1 above the groups and for deep leaves.

    Leaves are deep if they have more features than there is room for. Return None if
    all of them are.
    """
    below = paths.sums_below((forest.left >= 0).astype(np.int64))
    bits = paths.distinct + below
    for most in range(MOST_BITS, 0, -1):
        owner = _groups(forest, paths, bits, most)
        size = bits[owner == np.arange(forest.n_nodes)]
        slots = -(-size // SLOTS) * SLOTS << size
        if slots.sum() * 8 * forest.leaf_value.shape[1] <= TABLE_BYTES:
            return owner if len(size) else None
    return None


def _groups(forest: Forest, paths: Paths, bits: Int64s, most: int) -> Int64s:
    fits = bits <= most
    best = np.where(fits, costs(np.minimum(bits, most)), np.inf)
    best[(forest.left < 0) & ~fits] = 0  # no group
    for level in reversed(paths.levels):
        both = best[forest.left[level]] + best[forest.right[level]]
        fits[level] &= best[level] <= both
        best[level] = np.minimum(best[level], both)
    owner = np.full(forest.n_nodes, -1, np.int64)
    for level in paths.levels:
        begins = level[(owner[level] < 0) & fits[level]]
        owner[begins] = begins
        for children in (forest.left[level], forest.right[level]):
            alone = (owner[level] < 0) & (forest.left[children] < 0) & fits[children]
            owner[children] = np.where(alone, children, owner[level])
    return owner


def _slots(
    forest: Forest, group: Int64s, tested: Int64s
) -> tuple[Int64s, Int64s, Int64s]:
    """Give each feature of a group a slot; return starts, columns, entries' slots."""
    width = int(forest.node_feature.max(initial=0)) + 1
    players, first, which = np.unique(
        group * width + forest.node_feature[tested],
        return_index=True,
        return_inverse=True,
    )
    of_slot = players // width
    used = np.bincount(of_slot)  # each group has some
    start, used_start = _offsets(-(-used // SLOTS) * SLOTS), _offsets(used)
    rank = np.arange(len(players)) - used_start[of_slot]
    columns = forest.feature[forest.predicate[tested[first]]].astype(np.int64)
    # Slots that are left add zeros to the column of the first one.
    column = np.repeat(columns[used_start[:-1]], np.diff(start))
    column[start[of_slot] + rank] = columns
    return start, column, rank[which.reshape(-1)]


@dataclass(frozen=True, slots=True, eq=False)
class _Bits:
    """Which bit of its group's patterns each edge is."""

    forest: Forest
    paths: Paths
    group: Int64s  # of each node, or -1
    of_bit: Int64s  # the group of each bit
    lower: Int64s  # the lower end of each bit's edge
    bit: Int64s

    def conditions(self, entry: Int64s, group: Int64s) -> tuple[Int64s, Int64s]:
        """Return which bits tell whether the tests of edges are passed, and how.

        An edge stands for all tests of its feature up to there.
        """
        n, paths = len(self.paths.parent), self.paths
        place = np.argsort(self.of_bit * n + self.lower)
        keys = (self.of_bit * n + self.lower)[place]
        mask, value = np.zeros((2, len(entry)), np.int64)
        number, at = np.arange(len(entry)), entry
        while len(at):
            up = paths.parent[at]
            inside = self.group[up] == group[number]
            right = inside & paths.is_right[at]
            edge = np.where(right, self.forest.left[up], at)
            which = place[np.searchsorted(keys, group[number] * n + edge)]
            mask[number] |= 1 << self.bit[which]
            value[number] |= np.where(right, 0, 1 << self.bit[which])
            at = paths.before[up]
            # The bit of a left edge, or of one above the group, is for those above too.
            more = right & (at >= 0)
            number, at = number[more], at[more]
        return mask, value


def _subsets(start: Int64s, mask: Int64s) -> tuple[Int64s, Int64s]:
    """Return the sums of ``start`` and each subset of ``mask``, and their offsets."""
    owners, sums = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    number, part = np.arange(len(start)), np.zeros_like(mask)
    while len(number):
        owners.append(number)
        sums.append(start[number] + part)
        part = part - mask[number] & mask[number]
        number, part = number[part != 0], part[part != 0]
    owner = np.concatenate(owners)
    by = np.argsort(owner, kind="stable")
    return np.concatenate(sums)[by], _offsets(np.bincount(owner, minlength=len(start)))


def _batches(tree: Int64s, distinct: Int64s) -> tuple[Int64s, Int64s]:
    new = np.ones(len(tree), np.bool_)
    new[1:] = (tree[1:] != tree[:-1]) | (distinct[1:] != distinct[:-1])
    first = np.flatnonzero(new)
    size = np.diff(np.append(first, len(tree)))
    pieces = -(-size // LEAVES)
    number = np.arange(pieces.sum()) - np.repeat(_offsets(pieces)[:-1], pieces)
    start = np.repeat(first, pieces) + number * LEAVES
    count = np.minimum(np.repeat(first + size, pieces) - start, LEAVES)
    return np.stack([start, count], axis=1), tree[start]
