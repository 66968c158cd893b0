"""Cuts trees into a top and the pieces below it, and numbers their tests and exits.

A *piece* is a subtree of at most ``most`` tests whose parent's subtree has more; the
*top* is all that is above. Their tests are in preorder, and their exits are numbered
left to right. A row stands at exit 0 at first. A test whose left half begins at exit
``a`` and whose right half at exit ``b`` moves a row that stands at ``a`` and goes
right to ``b``: once all tests are met, a row stands at its exit. A piece's exits are
leaves, whose places are in order; an exit of the top is a piece, perhaps of no test.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Int32s
from skforge.compiler.ir.hir.nodes import TiledForest


@dataclass(frozen=True, slots=True, eq=False)
class PieceTrees:
    """All trees, by position in walking order."""

    #: (n_tests, 4): place of the code, rank to reach, exits ``a`` and ``b``.
    tests: NDArray[np.uint16]
    #: (n_pieces + 1, 2): first test and first leaf of each piece. A tree's top comes
    #: first; the piece behind its exit e is e + 1 later.
    pieces: Int32s
    top: Int32s  # (n_trees + 1,) the piece that is a tree's top
    leaf_row: Int32s  # row of Forest.leaf_value of each leaf

    @property
    def most_pieces(self) -> int:
        return int(np.diff(self.top).max()) - 1


def sizes(
    child: Int32s, depth: Int32s, leaf: Int32s
) -> tuple[Int32s, list[NDArray[np.intp]]]:
    """Return the tests in the subtree of each node, and the inner nodes of each level.

    Leaves are those with ``leaf >= 0``; ``child`` has both children of each node.
    """
    inner = np.flatnonzero(leaf < 0)
    order = inner[np.argsort(depth[inner], kind="stable")]
    levels = np.split(order, np.bincount(depth[inner]).cumsum()[:-1])
    size = np.zeros(len(leaf), np.int32)
    for level in reversed(levels):
        size[level] = 1 + size[child[level]].sum(axis=1)
    return size, levels


def top_tests(nodes: TiledForest, most: int) -> NDArray[np.intp]:
    """Return how many tests of each tree have more than ``most`` in their subtree."""
    size, _ = sizes(nodes.child, nodes.depth, nodes.leaf)
    top = np.flatnonzero(size > most)
    tree = np.searchsorted(nodes.item_offset, top, side="right") - 1
    return np.bincount(tree, minlength=nodes.n_trees)


def cut_trees(nodes: TiledForest, column: Array, rank: Array, most: int) -> PieceTrees:
    """Cut trees of one-node tiles into pieces of at most ``most`` tests.

    A row goes right where its code at a predicate's ``column`` exceeds its ``rank``.
    """
    size, levels = sizes(nodes.child, nodes.depth, nodes.leaf)
    is_top = size > most
    above = np.zeros(nodes.n_items, np.int32)  # tests of the top in the subtree
    for level in reversed(levels):
        inside = level[is_top[level]]
        above[inside] = 1 + above[nodes.child[inside]].sum(axis=1)
    roots = nodes.item_offset[:-1]
    exits = above[roots] + 1
    top = np.concatenate([[0], np.cumsum(exits + 1)])
    leaves = np.concatenate([[0], np.cumsum(size[roots] + 1)])

    # From each root down: the piece, the test's number and the first exit in it, and
    # the first leaf of the tree that is in the subtree.
    piece, number, exit_, leaf = (np.zeros(nodes.n_items, np.int64) for _ in range(4))
    piece[roots] = top[:-1] + ~is_top[roots]
    leaf[roots] = leaves[:-1]
    first_leaf = np.zeros(top[-1] + 1, np.int64)
    first_leaf[top] = leaves
    first_leaf[piece[roots]] = leaf[roots]
    for level in levels:
        low, high = nodes.child[level].T
        of_top = is_top[level]
        low_tests = np.where(of_top, above[low], size[low])
        for child, tests, before in ((low, 0, 0), (high, low_tests, size[low] + 1)):
            piece[child] = piece[level]
            number[child] = number[level] + 1 + tests
            exit_[child] = exit_[level] + tests + (child is high)
            leaf[child] = leaf[level] + before
            begins = child[of_top & ~is_top[child]]
            piece[begins] += 1 + exit_[begins]
            number[begins] = exit_[begins] = 0
            first_leaf[piece[begins]] = leaf[begins]
    inner, ends = np.flatnonzero(nodes.leaf < 0), np.flatnonzero(nodes.leaf >= 0)
    first_test = np.concatenate([[0], np.bincount(piece[inner], minlength=top[-1])])
    first_test = first_test.cumsum()
    low = nodes.child[inner, 0]
    predicate = nodes.predicate[inner, 0]
    tests = np.zeros((len(inner), 4), np.uint16)
    low_tests = np.where(is_top[inner], above[low], size[low])
    tests[first_test[piece[inner]] + number[inner]] = np.stack(
        [
            column[predicate],
            rank[predicate] + 1,
            exit_[inner],
            exit_[inner] + low_tests + 1,
        ],
        axis=1,
    )
    leaf_row = np.zeros(leaves[-1], np.int32)
    leaf_row[leaf[ends]] = nodes.leaf[ends]
    pieces = np.stack([first_test, first_leaf], axis=1).astype(np.int32)
    return PieceTrees(tests, pieces, top.astype(np.int32), leaf_row)
