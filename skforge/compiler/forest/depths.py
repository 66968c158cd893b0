"""Sweeps trees level by level: the depths of nodes, and their order by levels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_LEVELS_BY_SWEEP = 256  # deeper trees (chains) switch to pointer doubling

#: Nodes swept together, so that their children stay in the cache: for 75 trees of
#: 20,000 nodes, a sweep takes .038 s where all 1.5 million nodes at once take .087.
_PART = 1 << 17

_Ints = NDArray[np.int32]
_Offsets = NDArray[np.int64]


def node_depths(left: _Ints, right: _Ints, offset: _Offsets) -> _Ints:
    """Return each node's distance from its root, -1 for unreachable nodes.

    Every node must have at most one parent, and roots none; the sweep then ends even if
    the arrays hold a cycle.
    """
    depth = np.full(len(left), -1, dtype=np.int32)
    for first, last in _parts(offset):
        own = depth[offset[first] : offset[last]]
        for level, front in enumerate(_fronts(left, right, offset, first, last)):
            if level == _LEVELS_BY_SWEEP:
                return _depths_by_doubling(left, right, offset[:-1])
            own[front] = level
    return depth


def level_order(left: _Ints, right: _Ints, offset: _Offsets) -> tuple[_Ints, _Ints]:
    """Return the nodes of each tree in level order, left to right, and their depths."""
    order = np.empty(len(left), np.int32)
    depth = np.empty(len(left), np.int32)
    for first, last in _parts(offset):
        fronts = list(_fronts(left, right, offset, first, last))
        sizes = [len(front) for front in fronts]
        levels = np.repeat(np.arange(len(fronts), dtype=np.int32), sizes)
        nodes = np.concatenate(fronts)
        own = slice(offset[first], offset[last])
        if last - first > 1:
            # the smallest dtype, because numbers of 16 bits sort in linear time
            trees = np.arange(last - first, dtype=np.min_scalar_type(last - first))
            tree = np.repeat(trees, np.diff(offset[first : last + 1]))
            by_tree = np.argsort(tree[nodes], kind="stable")
            nodes, levels = nodes[by_tree], levels[by_tree]
        np.add(nodes, offset[first], out=order[own], casting="unsafe")
        depth[own] = levels
    return order, depth


def _parts(offset: _Offsets) -> Iterator[tuple[int, int]]:
    """Yield ranges of trees with at most ``_PART`` nodes, or of one tree."""
    first, n_trees = 0, len(offset) - 1
    while first < n_trees:
        last = int(np.searchsorted(offset, offset[first] + _PART, side="right")) - 1
        last = max(first + 1, last)
        yield first, last
        first = last


def _fronts(
    left: _Ints, right: _Ints, offset: _Offsets, first: int, last: int
) -> Iterator[NDArray[np.integer]]:
    """Yield the nodes of each level of some trees, ordered by tree and left to right.

    They are numbered from the first tree's first node.
    """
    own = slice(offset[first], offset[last])
    child = np.stack([left[own], right[own]], axis=1)
    child -= np.int32(offset[first])  # the -1 of leaves stays negative
    front: NDArray[np.integer] = offset[first:last] - offset[first]
    while front.size:
        yield front
        front = child.take(front, axis=0).reshape(-1)
        front = front[front >= 0]


def _depths_by_doubling(left: _Ints, right: _Ints, roots: _Offsets) -> _Ints:
    """Compute depths in log2(depth) passes that double each node's jump."""
    n = len(left)
    above = np.arange(n + 1, dtype=np.int64)  # n is the parent of every root
    above[roots] = n
    for child in (left, right):
        inner = np.flatnonzero(child >= 0)
        above[child[inner]] = inner
    depth = (above != np.arange(n + 1)).astype(np.int64)
    for _ in range(int(n).bit_length() + 1):
        depth += depth[above]
        above = above[above]
        if (above == n).all():
            break
    return np.where(above[:n] == n, depth[:n] - 1, -1).astype(np.int32)
