"""Computes how deep the nodes of trees are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_LEVELS_BY_SWEEP = 256  # deeper trees (chains) switch to pointer doubling


def node_depths(
    left: NDArray[np.int32], right: NDArray[np.int32], roots: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Return each node's distance from its root, -1 for unreachable nodes.

    Every node must have at most one parent, and roots none; the sweep then ends even if
    the arrays hold a cycle.
    """
    depth = np.full(len(left), -1, dtype=np.int32)
    level = 0
    front = roots
    while front.size and level < _LEVELS_BY_SWEEP:
        depth[front] = level
        front = np.concatenate((left[front], right[front]))
        front = front[front >= 0]
        level += 1
    return depth if not front.size else _depths_by_doubling(left, right, roots)


def _depths_by_doubling(
    left: NDArray[np.int32], right: NDArray[np.int32], roots: NDArray[np.int64]
) -> NDArray[np.int32]:
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
