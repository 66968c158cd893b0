"""Kinds of tiles of one's own: numbers of nodes, checked and built (Treebeard §3.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from skforge.compiler import pipeline
from skforge.compiler.forest.forest import Forest
from skforge.compiler.passes.hir import tile_nodes
from skforge.compiler.schedule.directives import TILE_KINDS
from skforge.compiler.schedule.schedule import Schedule
from skforge.exceptions import ScheduleError
from tests.exactness.checks import check_exact
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


def test_a_kind_from_json_to_predictions(register: Callable[..., None]) -> None:
    register("depth-first", "along their leftmost paths", depth_first)
    schedule = BLOCKS.tile_nodes(3, "depth-first").interleave("b1", 4)
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert "grouped along their leftmost paths" in schedule.explain(10)
    assert "tiles of 3 nodes (depth-first)" in str(schedule.loop_nest(10))
    for name in ("scalar", "multiclass"):
        check_exact(name, schedule, batches=(1, 17, 65))
        padded = schedule.pad_trees().represent("array")
        check_exact(name, padded, batches=(1, 65))
    made = forest("scalar")
    hir = pipeline.build_hir(made, schedule, "exact")
    pipeline.verify_hir(hir)
    uniform = pipeline.build_hir(made, BLOCKS.tile_nodes(3), "exact")
    # other tiles, and neither kind has fewer
    assert not np.array_equal(hir.tiles.shape, uniform.tiles.shape)


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
    ],
)
def test_other_tilings_are_refused(
    register: Callable[..., None], tiling: Callable, message: str
) -> None:
    register("mine", "as I like", tiling)
    with pytest.raises(ScheduleError, match=message):
        pipeline.build_hir(forest("scalar"), BLOCKS.tile_nodes(2, "mine"), "exact")


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
        pipeline.build_hir(forest("scalar"), BLOCKS.tile_nodes(2, "torn"), "exact")


def test_kinds_are_known_by_one_name(register: Callable[..., None]) -> None:
    with pytest.raises(ScheduleError, match="'uniform' is there already"):
        register("uniform", "again", depth_first)
    with pytest.raises(ScheduleError, match="a kind that is one of"):
        Schedule().tile_nodes(3, "unknown")
