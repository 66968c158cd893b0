"""Kinds of tiles of one's own: numbers of nodes, checked and built (Treebeard §3.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from skforge.compiler import driver
from skforge.compiler.passes.hir import tile_nodes
from skforge.exceptions import ScheduleError
from skforge.forest.forest import Forest
from skforge.schedule.directives import TILE_KINDS
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import forest

BLOCKS = Schedule().tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")


def depth_first(made: Forest, size: int) -> np.ndarray:
    """Fill each tile along its leftmost paths first."""
    ids = np.full(made.n_nodes, -1)
    starts = list(made.tree_offset[:-1])
    number = 0
    while starts:
        todo, taken = [starts.pop()], 0
        while todo:
            node = todo.pop()
            if made.leaf[node] >= 0:
                continue
            if taken == size:
                starts.append(node)
                continue
            ids[node], taken = number, taken + 1
            todo += [made.right[node], made.left[node]]
        number += 1
    return ids


@pytest.fixture
def register() -> Iterator[Callable[..., None]]:
    """Register kinds for one test."""
    before = dict(TILE_KINDS)
    yield tile_nodes.register
    for name in set(TILE_KINDS) - set(before):
        del TILE_KINDS[name], tile_nodes._TILINGS[name]


def every_other(made: Forest, size: int) -> np.ndarray:
    return np.arange(made.n_nodes) % 2


@pytest.mark.parametrize(
    ("tiling", "message"),
    [
        (lambda f, size: np.zeros(f.n_nodes, int), "has more than 2 nodes"),
        (every_other, "has more than 2 nodes"),
        (lambda f, size: np.arange(f.n_nodes), "has fewer than 2 nodes, with an inner"),
        (lambda f, size: np.zeros(3, int), "needs an integer for each of the"),
        (lambda f, size: np.zeros(f.n_nodes), "dtype float64"),
        (lambda f, size: np.full(f.n_nodes, -1), r"tile -1 .* has an inner node"),
        (
            lambda f, size: np.maximum(depth_first(f, size), 0),
            r"has a leaf beside other nodes; give leaves -1 \(see node \d+ of the tree",
        ),
    ],
)
def test_other_tilings_are_refused(register, tiling, message):
    register("mine", "as I like", tiling)
    with pytest.raises(ScheduleError, match=message):
        driver.build_hir(forest("scalar"), BLOCKS.tile_nodes(2, "mine"), "exact")


def by_tree(made: Forest, ids: np.ndarray) -> list[np.ndarray]:
    return np.split(ids, made.tree_offset[1:-1])


def test_texts_name_given_tiles_briefly() -> None:
    made = forest("scalar")
    schedule = BLOCKS.tile_nodes(3, by_tree(made, depth_first(made, 3)))
    assert "tiles of 3 nodes (given)" in str(schedule.loop_nest(made.n_trees))
    assert (
        "tile_nodes(3, <tiles of 7 trees>): up to 3 nodes are compared at once, "
        "grouped as given."
    ) in schedule.explain(made.n_trees)


NO_NUMBERS = "for each tree a list with the tile's number"
WRONG = {
    "trees": (lambda ids: ids[1:], "has numbers for 6 trees, but the forest has 7."),
    "nodes": (
        lambda ids: [ids[0][:-1], *ids[1:]],
        r"has \d+ numbers for tree 0, which has \d+ nodes, leaves included.",
    ),
    "size": (
        lambda ids: [*ids[:3], ids[3] * 0, *ids[4:]],
        r"tile 0 of tree 3 has more than 2 nodes \(see node 0 of the tree\).",
    ),
    "floats": (lambda ids: [one * 1.0 for one in ids], NO_NUMBERS),
    "one tree": (lambda ids: ids[0], NO_NUMBERS),
    "large": (lambda ids: [[2**40]] * 7, NO_NUMBERS),
    "nothing": (lambda ids: None, NO_NUMBERS),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_other_numbers_are_refused(wrong: str) -> None:
    numbers, message = WRONG[wrong]
    made = forest("scalar")
    ids = by_tree(made, depth_first(made, 2))
    with pytest.raises(ScheduleError, match=message):
        driver.build_hir(made, BLOCKS.tile_nodes(2, numbers(ids)), "exact")


def test_tiles_in_two_pieces_are_refused(register: Callable[..., None]) -> None:
    """The grandchildren of a root belong together only with their parents."""

    def torn(made: Forest, size: int) -> np.ndarray:
        ids = np.arange(made.n_nodes)
        root = made.tree_offset[:-1]
        sides = np.stack([made.left[root], made.right[root]])
        both = (made.leaf[sides] < 0).all(axis=0)
        ids[sides[1, both]] = ids[sides[0, both]]
        return ids

    register("torn", "in pieces", torn)
    with pytest.raises(ScheduleError, match=r"tile \d+ of tree \d+ is not connected"):
        driver.build_hir(forest("scalar"), BLOCKS.tile_nodes(2, "torn"), "exact")


def test_kinds_are_known_by_one_name(register: Callable[..., None]) -> None:
    with pytest.raises(ScheduleError, match="'uniform' is there already"):
        register("uniform", "again", depth_first)
    with pytest.raises(ScheduleError, match="a kind that is one of"):
        Schedule().tile_nodes(3, "unknown")
