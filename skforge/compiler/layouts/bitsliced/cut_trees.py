"""Cuts unbalanced trees into subtrees that have a plane for each of their tests.

A *part* is a subtree, or a tree without one. Each step cuts the best subtree out of
every part at once (``encode_trees.py`` says why). A part's nodes are adjacent and in
preorder, right children before left ones, so that a subtree is a range of nodes, and a
cut moves four ranges.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Bools, Float64s, Int64s
from skforge.forest.forest import Forest

#: Depth to which subtrees are considered: each step of a path costs an operation.
SEARCH_DEPTH = 14


@dataclass(frozen=True, slots=True, eq=False)
class TreeParts:
    """Parts of trees, each a range of nodes in preorder, right children first."""

    number: Int64s  # (n_parts,)
    first: Int64s  # (n_parts,) the root of each
    node: Int64s  # (n,) the node's number in the forest
    leaves: NDArray[np.int16]  # (n,) at or below the node
    depth: NDArray[np.int16]  # (n,) 0 for roots
    height: NDArray[np.int16]  # (n,) 0 for leaves

    @property
    def sizes(self) -> Int64s:
        return 2 * self.leaves[self.first].astype(np.int64) - 1

    def pick(
        self,
        number: Int64s,
        first: Int64s,
        size: Int64s,
        up: NDArray[np.int16] | None = None,
    ) -> TreeParts:
        """Return parts of ranges, part i of row i, ``up`` levels higher than here."""
        at = ranges(first.ravel(), size.ravel())
        whole = size.sum(axis=1)
        depth = self.depth[at]
        if up is not None:
            depth -= np.repeat(up.ravel(), size.ravel())
        return TreeParts(
            number,
            np.cumsum(whole) - whole,
            self.node[at],
            self.leaves[at],
            depth,
            self.height[at],
        )

    def select(self, chosen: Bools) -> TreeParts:
        first, size = self.first[chosen], self.sizes[chosen]
        return self.pick(self.number[chosen], first[:, None], size[:, None])

    @classmethod
    def joined(cls, parts: list[TreeParts]) -> TreeParts:
        names = [field.name for field in fields(cls)]
        arrays = {n: np.concatenate([getattr(p, n) for p in parts]) for n in names}
        before = np.cumsum([0] + [len(p.node) for p in parts[:-1]])
        arrays["first"] += np.repeat(before, [len(p.first) for p in parts])
        return cls(**arrays)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The cuts of one step: part ``one[i]`` is cut out of ``whole[i]``.

    Part ``one[i] + 1`` is the rest. On the path to the subtree, ``path[k, i]`` is the
    node on level k, which the path leaves to the right if ``right[k, i]`` is set.
    """

    planes: int  # that the whole may have
    whole: Int64s  # (n,)
    one: Int64s  # (n,)
    length: Int64s  # (n,) nodes on the path
    path: Int64s  # (SEARCH_DEPTH, n) nodes of the forest
    right: Bools  # (SEARCH_DEPTH, n)


@dataclass(slots=True, eq=False)
class CutTrees:
    """Trees cut into parts; the first parts are the trees."""

    tree: Int64s  # (n_parts,) the tree that each part is of
    steps: list[Step] = field(default_factory=list)
    small: list[TreeParts] = field(default_factory=list)  # a plane for each test
    stuck: list[TreeParts] = field(default_factory=list)  # too large to be cut


def cut_trees(trees: TreeParts, bits: Int64s, tree: Int64s) -> CutTrees:
    """Cut trees until their parts have a plane for each test.

    Tree i may have ``bits[i]`` planes, and the parts cut from it fewer and fewer.
    """
    result = CutTrees(tree)
    parts = trees.select(np.zeros(len(bits), np.bool_))
    for planes in range(int(bits.max(initial=0)), 0, -1):
        parts = TreeParts.joined([parts, trees.select(bits == planes)])
        small = parts.leaves[parts.first] <= planes + 1
        result.small.append(parts.select(small))
        parts = parts.select(~small)
        best = _best_subtrees(parts, planes)
        cuts = best >= 0
        result.stuck.append(parts.select(~cuts))
        offset = (best - parts.first)[cuts]
        parts = parts.select(cuts)
        if len(offset):
            step, parts = _cut(parts, parts.first + offset, planes, len(result.tree))
            result.tree = np.append(result.tree, np.repeat(result.tree[step.whole], 2))
            result.steps.append(step)
    return result


def ranges(first: Int64s, size: Int64s) -> Int64s:
    end = np.cumsum(size)
    start: Int64s = first - end + size
    return np.repeat(start, size) + np.arange(end[-1] if len(end) else 0)


def in_preorder(forest: Forest, trees: Array) -> TreeParts:
    start = forest.tree_offset[trees]
    size = forest.tree_offset[trees + 1] - start
    first = np.cumsum(size) - size
    node = ranges(start, size)
    shift = np.repeat(start - first, size)
    left, right = forest.left[node] - shift, forest.right[node] - shift
    inner = forest.leaf[node] < 0
    leaves = np.ones(len(node), np.int16)
    height = np.zeros(len(node), np.int16)
    depth = np.zeros(len(node), np.int16)
    place = np.empty(len(node), np.int64)
    levels = []
    front = first
    while len(front := front[inner[front]]):
        levels.append(front)
        front = np.concatenate([left[front], right[front]])
    for front in reversed(levels):
        one, two = left[front], right[front]
        leaves[front] = leaves[one] + leaves[two]
        height[front] = 1 + np.maximum(height[one], height[two])
    place[first] = first
    for k, front in enumerate(levels):
        one, two = left[front], right[front]
        depth[one] = depth[two] = k + 1
        place[two] = place[front] + 1
        place[one] = place[front] + 2 * leaves[two]
    order = np.empty(len(node), np.int64)
    order[place] = np.arange(len(node))
    return TreeParts(
        number=np.arange(len(trees)),
        first=first,
        node=node[order],
        leaves=leaves[order],
        depth=depth[order],
        height=height[order],
    )


@cache
def _estimates(planes: int) -> Float64s:
    """Estimate operations, fitted to boosted trees; row 0: higher than ``planes``."""
    leaves = np.arange((1 << planes) + 1)
    guess = leaves * (0.3 + 2 * (leaves / (1 << planes)) ** 3)
    estimates = np.stack(
        [guess, np.minimum(guess, np.maximum(leaves - 1.0 - planes, 0))]
    )
    estimates[:, :2] = 0
    return estimates


def _best_subtrees(parts: TreeParts, planes: int) -> Int64s:
    """Return each part's cheapest subtree to cut out, -1 if no cut makes parts fit."""
    room = planes - 1
    first, sizes = parts.first, parts.sizes
    right = first + 1
    left = right + 2 * parts.leaves[right].astype(np.int64) - 1
    low = (parts.height <= room).view(np.int8)
    rest_low = np.repeat(low[first], sizes)
    rest_low[right], rest_low[left] = low[left], low[right]
    rest = np.repeat(parts.leaves[first], sizes) - parts.leaves
    # Roots have depth 0, which is the largest here.
    near = (parts.depth - 1).view(np.uint16) < SEARCH_DEPTH
    at = np.flatnonzero(near & (np.maximum(parts.leaves, rest) <= 1 << room))
    a, b = parts.leaves[at], rest[at]
    estimates = _estimates(room)
    score = estimates[low[at], a] + estimates[rest_low[at], b]
    # The weight of a path is fitted with the estimates. To count what planes cost that
    # both parts need gained nothing.
    score += 2 * (parts.depth[at] - 1)
    best = np.full(len(first), -1)
    start = np.searchsorted(at, first)
    count = np.diff(start, append=len(at))
    some = count > 0
    if some.any():
        least = np.minimum.reduceat(score, start[some])
        hits = at[score == np.repeat(least, count[some])]
        best[some] = hits[np.searchsorted(hits, first[some])]
    return best


def _cut(
    parts: TreeParts, best: Int64s, planes: int, number: int
) -> tuple[Step, TreeParts]:
    """Cut a subtree out of each part; new parts get the numbers from ``number``."""
    n = len(best)
    leaves, height = parts.leaves, parts.height
    length = parts.depth[best].astype(np.int64)
    path = np.zeros((SEARCH_DEPTH, n), np.int64)
    other = np.zeros((SEARCH_DEPTH, n), np.int64)
    goes_right = np.zeros((SEARCH_DEPTH, n), np.bool_)
    at = parts.first.copy()
    for k in range(int(length.max(initial=0))):
        on = np.flatnonzero(length > k)
        here = at[on]
        right = here + 1
        left = right + 2 * leaves[right].astype(np.int64) - 1
        is_right = best[on] < left
        path[k, on], goes_right[k, on] = here, is_right
        other[k, on] = np.where(is_right, left, right)
        at[on] = np.where(is_right, right, left)
    every = np.arange(n)
    parent, sibling = path[length - 1, every], other[length - 1, every]
    end, cut_end = parts.first + parts.sizes, best + 2 * leaves[best] - 1
    sibling_end = sibling + 2 * leaves[sibling].astype(np.int64) - 1
    # The sibling takes its parent's place; nodes above it lose leaves and height.
    cut_leaves, new_height = leaves[best], height[sibling]
    for k in range(int(length.max(initial=0)) - 2, -1, -1):
        on = np.flatnonzero(length - 1 > k)
        above = path[k, on]
        leaves[above] -= cut_leaves[on]
        new_height[on] = 1 + np.maximum(new_height[on], height[other[k, on]])
        height[above] = new_height[on]
    step = Step(
        planes, parts.number, number + 2 * every, length, parts.node[path], goes_right
    )
    # Three ranges for each part; the subtree is one range.
    none = np.zeros(n, np.int64)
    rest = np.maximum(cut_end, sibling_end)
    begin = np.stack([best, none, none, parts.first, sibling, rest], axis=1)
    stop = np.stack([cut_end, none, none, parent, sibling_end, end], axis=1)
    up = np.stack([length, none, none, none, none + 1, none], axis=1)
    number_of = number + np.arange(2 * n)
    size = stop - begin
    return step, parts.pick(
        number_of, begin.reshape(-1, 3), size.reshape(-1, 3), up.astype(np.int16)
    )
