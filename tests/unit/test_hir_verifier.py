"""The HIR verifier accepts what passes make and names what is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeRegressor

from skforge import load_forest
from skforge.compiler.ir.hir.nodes import PredictEnsemble, TiledForest
from skforge.compiler.ir.hir.printer import print_hir
from skforge.compiler.ir.hir.verifier import verify
from skforge.compiler.passes.hir import (
    normalize_predicates,
    pad_trees,
    reorder_trees,
    tile_nodes,
)
from skforge.exceptions import CompilerError
from skforge.forest.combine import subset
from skforge.forest.forest import Forest
from skforge.schedule.bind import bind
from skforge.schedule.schedule import Schedule
from tests.forests_by_hand import forest_of_nodes
from tests.refusals import error_of
from tests.strategies_forest import random_forest


def two_trees() -> Forest:
    """A tree of three inner nodes and four leaves, and a tree that is a leaf.

    Tree 0: node 0 has children 1 (inner) and 2 (leaf), 1 has 3 and 4 (inner), whose
    leaves are 5 and 6.
    """
    return forest_of_nodes(
        [1, 3, -1, -1, 5, -1, -1, -1],
        [2, 4, -1, -1, 6, -1, -1, -1],
        [0, 7, 8],
        leaf_value=np.array([[0.1], [0.2], [0.3], [0.4], [0.5]], np.float32),
        feature=[0, 1, 2],
        comparison=[0, 0, 6],
        threshold=np.array([0.5, 1.5, 0.0], np.float32),
        missing=[0, 1, 2],
        missing_left=[True] * 3,
        category_offset=[0, 0, 0, 1],
        category_words=[0b1011],
    ).validate()


def hir_of(forest: Forest, size: int, schedule: Schedule | None = None):
    """Run the passes of HIR."""
    forest, comparison = normalize_predicates.run(forest)
    schedule = (schedule or Schedule()).tile_nodes(size)
    nest = bind(schedule, forest.n_trees)
    tiles = tile_nodes.run(forest, nest.tile_nodes, nest.tile_kind)
    if nest.reorder_trees:
        tiles = reorder_trees.run(tiles)
    tiles = pad_trees.run(tiles, pad_trees.required_depths(nest, tiles))
    return PredictEnsemble(forest, tiles, nest, "exact", comparison)


@given(random_forest(), st.integers(1, 8), st.sampled_from([0, 1, 3]), st.booleans())
def test_what_the_passes_make_is_valid(forest, size, unroll, reorder):
    schedule = Schedule()
    if unroll:
        schedule = schedule.unroll_walk("tree", unroll)
    if reorder:
        schedule = schedule.reorder_trees()
    hir = hir_of(forest, size, schedule)
    verify(hir)
    assert print_hir(hir) == print_hir(hir_of(forest, size, schedule))


def changed(array: np.ndarray, index: object, value: object) -> np.ndarray:
    """Return a read-only copy with one element changed."""
    copy = array.copy()
    copy[index] = value
    copy.flags.writeable = False
    return copy


def edit(name: str, index: object, value: object) -> Callable[[TiledForest], object]:
    """Return a change of one element of an array."""

    def apply(tiles: TiledForest) -> TiledForest:
        return replace(tiles, **{name: changed(getattr(tiles, name), index, value)})

    return apply


# tile size 2: item 0 is the tile of nodes 0 and 1; 1 the leaf 3; 2 the tile of a
# dummy and node 4, 3 the leaf 2; 4 and 5 the leaves 5 and 6; 6 the tree of one leaf
def swap_leaves(tiles: TiledForest) -> TiledForest:
    """Swap two leaf items, so that each is right but behind the other's exit."""
    return replace(
        tiles,
        node=changed(tiles.node, [4, 5], tiles.node[[5, 4]]),
        leaf=changed(tiles.leaf, [4, 5], tiles.leaf[[5, 4]]),
    )


def make_writeable(tiles: TiledForest) -> TiledForest:
    tiles = replace(tiles, depth=tiles.depth.copy())
    tiles.depth.flags.writeable = True
    return tiles


BREAKS = [
    (edit("predicate", 0, [-1, 1]),
     "item 0 of tree 0 at position 0 tests a node in slot 1, where no row comes"),
    (swap_leaves, "item 2 of tree 0 at position 0 has an exit to another node's item"),
    (make_writeable, "depth is writeable"),
    (edit("predicate", (2, 0), 1),
     "item 2 of tree 0 at position 0 has another predicate in slot 0 than its node"),
    (edit("predicate", (0, 1), -1),
     "item 0 of tree 0 at position 0 has a wrong set of exits"),
    (edit("predicate", (2, 1), 0),
     "item 2 of tree 0 at position 0 has another predicate in slot 1 than its node"),
    (edit("shape", 0, 0),
     "item 0 of tree 0 at position 0 has another predicate in slot 1 than its node"),
    (edit("shape", 0, 2),
     "item 0 of tree 0 at position 0 has a shape outside 0..1, or is a leaf with one"),
    (edit("child", (0, 0), 2),
     "item 0 of tree 0 at position 0 breaks the level order of children"),
    (edit("child", (6, 0), 1),
     "item 6 of tree 1 at position 1 breaks the level order of children"),
    (edit("child", 2, [-1, -1, -1]),
     "item 2 of tree 0 at position 0 is a tile without children"),
    (edit("child", 2, [4, 5, -1]),
     "item 2 of tree 0 at position 0 has a wrong set of exits"),
    (edit("leaf", 1, 0),
     "item 1 of tree 0 at position 0 has another leaf than its node"),
    (edit("node", 4, 6),
     "item 4 of tree 0 at position 0 has another leaf than its node"),
    (edit("node", 2, 1),
     "item 2 of tree 0 at position 0 has another predicate in slot 1 than its node"),
    (edit("node", 0, 1),
     "item 0 of tree 0 at position 0 is a root that does not stand on its tree's root"),
    (edit("node", 3, 8),
     "item 3 of tree 0 at position 0 stands on no node of the forest"),
    (edit("depth", 3, 2),
     "item 3 of tree 0 at position 0 has a depth other than its parent's + 1"),
    (edit("tree_order", 0, 1), "tree_order is not a permutation of 2 trees"),
    (edit("item_offset", 1, 0), "item_offset does not divide 7 items among the trees"),
    (lambda tiles: replace(tiles, depth=tiles.depth[1:]),
     "depth is int32 (6,), not int32 (7,)"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), BREAKS, ids=range(len(BREAKS)))
def test_broken_tiles_are_named(change, message):
    hir = hir_of(two_trees(), 2)
    said = error_of(CompilerError, verify, replace(hir, tiles=change(hir.tiles)))
    assert said == f"HIR is not valid: {message}."


def test_tiles_that_could_hold_another_node_are_refused():
    # the size-1 tree of tiles of two_trees, spread over tiles of size 2
    hir = hir_of(two_trees(), 2)
    forest = hir.forest
    single = tile_nodes.run(forest, 1)
    inner = single.leaf < 0
    loose = replace(
        single,
        tile_size=2,
        predicate=np.stack([single.predicate[:, 0], np.full(8, -1)], 1).astype("i4"),
        child=np.stack(
            [single.child[:, 0], np.full(8, -1), single.child[:, 1]], 1
        ).astype("i4"),
        shape=np.where(inner, 0, 0).astype("i4"),
    )
    assert error_of(CompilerError, verify, replace(hir, tiles=loose)) == (
        "HIR is not valid: item 0 of tree 0 at position 0 has a dummy though an inner "
        "node hangs below."
    )


def test_a_forest_not_normalised_is_refused():
    hir = hir_of(two_trees(), 2)
    assert error_of(CompilerError, verify, replace(hir, comparison="le")) == (
        "HIR is not valid: predicate 0 compares by lt, not le, eq or in."
    )


def test_a_nest_of_another_schedule_is_refused():
    hir = hir_of(two_trees(), 2)
    assert error_of(CompilerError, verify, replace(hir, nest=bind(Schedule(), 2))) == (
        "HIR is not valid: the schedule tiles 1 nodes, the tiles have 2."
    )
    with pytest.raises(CompilerError) as error:
        verify(replace(hir, nest=bind(Schedule().tile_nodes(2), 3)))
    assert str(error.value) == (
        "HIR is not valid: the loop nest is for 3 trees, the forest has 2."
    )


def test_small_forests_are_drawn_whole(golden):
    golden(print_hir(hir_of(two_trees(), 2)), "hir")


def test_padded_forests_are_drawn_whole(golden):
    schedule = Schedule().reorder_trees().unroll_walk("tree", 2)
    golden(print_hir(hir_of(two_trees(), 1, schedule)), "hir")


def test_large_forests_are_summarised(golden):
    forest = subset(two_trees(), np.repeat([0, 1, 0], [20, 3, 7]))
    golden(print_hir(hir_of(forest, 1)), "hir")


@pytest.mark.parametrize(
    ("n_outputs", "leaf"),
    [(4, "leaf 0 = 0.0, 1.0, 2.0, 3.0"), (5, "leaf 0 = 0.0, 1.0, 2.0, 3.0, ...")],
)
def test_leaves_of_many_values_are_cut(n_outputs, leaf):
    tree = DecisionTreeRegressor().fit([[0.0]], [np.arange(n_outputs)])
    lines = print_hir(hir_of(load_forest(tree), 1)).splitlines()
    assert [line.strip() for line in lines if " leaf " in line] == [leaf]
