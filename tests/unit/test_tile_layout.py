"""Tiles, tops and leaves as they lie in memory, decoded in NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skforge.compiler.binning.buckets import Buckets, CodePlaces, bucket_of
from skforge.compiler.cost.counts import ForestCounts
from skforge.compiler.layouts.blocks.block_sums import TOGETHER, leaf_table
from skforge.compiler.layouts.tiles.tile_layout import (
    LANES,
    TiledTrees,
    TileTests,
    tile_trees,
    top_levels,
)
from skforge.compiler.passes.hir import normalize_predicates, tile_nodes
from skforge.compiler.target import Target
from skforge.forest.arrays import Missing
from skforge.forest.bins import THRESHOLDS, column_count, plan_codes
from skforge.forest.forest import Forest
from skforge.forest.reference import reference_leaves
from tests.exactness.forests import drawn, forest, forest_of, rows_for, tree
from tests.oracles.codes import encode_rows
from tests.strategies_forest import random_forest

NAMES = ("scalar", "deep", "chains", "mixed trees", "multiclass", "full")


def laid_out(made: Forest, levels: int) -> tuple[Forest, CodePlaces, TiledTrees]:
    normal, _ = normalize_predicates.run(made)
    table = plan_codes(normal, np.uint16, merge=True)
    codes = CodePlaces.of(normal, table, LANES)
    nodes = tile_nodes.run(normal, 2**levels - 1, "complete")
    return normal, codes, tile_trees(nodes, TileTests.of_codes(codes), levels)


def exit_of(row: np.ndarray, column: np.ndarray, rank: np.ndarray, levels: int) -> int:
    heap = 1
    for _ in range(levels):
        heap = 2 * heap + int(row[column[heap]] > rank[heap])
    return heap - (1 << levels)


def walked(t: TiledTrees, position: int, row: np.ndarray) -> int:
    """Return the row of leaf_value that a row of codes reaches."""
    top = t.top_column[position].reshape(-1), t.top_rank[position].reshape(-1)
    item = int(t.top_item[position][exit_of(row, *top, t.top_levels)])
    number, slots = item >> t.row_bits, 1 << t.levels
    is_leaf = item & 1
    while not is_leaf:
        start = int(t.tile_offset[position]) + number * t.stride
        tile = t.tiles[start : start + t.stride]
        rank = tile[: t.column_at].view(np.uint16)
        column = tile[t.column_at : t.exits_at]
        place = exit_of(row, column, rank, t.levels)
        words = tile[t.exits_at :].view(np.uint16)
        firsts = words[2:4]
        if t.wide:
            firsts = tile[t.exits_at + 4 :].view(np.uint32)[:2]
        upto = (2 << place) - 1
        is_leaf = not int(words[0]) >> place & 1
        marks = int(words[1 if is_leaf else 0]) & upto
        number = int(firsts[1 if is_leaf else 0]) + bin(marks).count("1")
        assert column.max() < 256 and len(rank) == slots
    return int(t.leaf_row[int(t.leaf_offset[position]) + number])


def row_codes(made: Forest, codes: CodePlaces, rows: np.ndarray) -> np.ndarray:
    """Return both copies of rows' codes, side by side."""
    comparison = normalize_predicates.run(made)[1]
    copies = np.zeros((len(rows), codes.copies * codes.width), np.uint16)
    for copy in range(codes.copies):
        left = np.full(codes.table.n_columns, copy == 0)
        table = codes.table
        if codes.copies == 2:
            table = replace(table, missing_left=left)
        own = encode_rows(table, made, comparison, rows)
        copies[:, copy * codes.width :][:, : own.shape[1]] = own
    return copies


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("levels", [3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_rows_reach_their_leaves(name, levels, wide, monkeypatch):
    if wide:
        module = "skforge.compiler.layouts.tiles.tile_layout.needs_wide"
        monkeypatch.setattr(module, lambda nodes: True)
    made = forest(name)
    normal, codes, trees = laid_out(made, levels)
    rows = rows_for(name, 40)
    reached = normal.leaf[reference_leaves(normal, rows)]
    for row, leaves in zip(row_codes(normal, codes, rows), reached, strict=True):
        found = [walked(trees, p, row) for p in range(normal.n_trees)]
        assert found == leaves.tolist()


def test_places_without_a_node_are_never_passed() -> None:
    stump = forest_of([tree("full", 1, np.random.default_rng(0))], seed=1)
    _, codes, trees = laid_out(stump, 4)
    assert (trees.top_rank.reshape(-1) != codes.most).sum() == 1
    assert len(trees.tiles) == trees.stride  # the spare one
    # the root's left leaf is behind the first half of the exits
    numbers = trees.top_item[0] >> trees.row_bits
    assert np.array_equal(numbers, np.repeat([1, 2], 32))


def test_tiles_are_whole_cache_lines_or_halves() -> None:
    _, _, three = laid_out(forest("deep"), 3)
    _, _, four = laid_out(forest("deep"), 4)
    assert (three.stride, four.stride) == (32, 64)


# ------------------------------------------------------------ leaves


def classes(values: list[list[float]], base: float = 0.0) -> Forest:
    made = forest_of(
        [tree("full", 1, np.random.default_rng(0))] * 2, n_outputs=3, vector=True
    )
    values_ = np.asarray(values, made.leaf_value.dtype)
    return replace(made, leaf_value=values_, base=np.full(3, base, values_.dtype))


def test_leaves_of_one_class_are_its_number() -> None:
    made = classes([[1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 1]])
    table = leaf_table(made, np.arange(4, dtype=np.int32))
    assert table.kind == "class" and table.values.tolist() == [1.0]
    assert table.index is not None and table.index.tolist() == [0, 2, 1, 2]
    assert table.index.dtype == np.uint8


@pytest.mark.parametrize(
    "made",
    [
        classes([[1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 1]], base=-0.0),
        classes([[1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 0.5]]),
        classes([[1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]]),
        classes([[-1, 0, 0], [0, 0, -1], [0, -1, 0], [0, 0, -1]]),
        classes([[0, 0, 0]] * 4),
    ],
    ids=["-0.0 would change", "heights", "two classes", "negative", "zeros"],
)
def test_other_leaves_are_distinct_vectors(made: Forest) -> None:
    table = leaf_table(made, np.array([0, 1, 2, 3, 1], np.int32))
    assert table.kind == "vector" and table.index is not None
    wanted = made.leaf_value[[0, 1, 2, 3, 1]]
    assert np.array_equal(table.values[table.index], wanted)
    assert len(table.values) == len(np.unique(made.leaf_value, axis=0))


def many_classes(
    values: list[dict[int, float]], base: float = 0.0, n_outputs: int = 100
) -> Forest:
    trees = [tree("full", 1, np.random.default_rng(0))] * 2
    made = forest_of(trees, n_outputs=n_outputs, vector=True)
    dense = np.zeros((4, n_outputs), made.leaf_value.dtype)
    for leaf, pairs in enumerate(values):
        for output, value in pairs.items():
            dense[leaf, output] = value
    return replace(made, leaf_value=dense, base=np.full(n_outputs, base, dense.dtype))


FEW = [{3: 0.25, 4: 0.5, 99: 0.75}, {0: -1.0}, {3: 0.25, 4: 0.5, 99: 0.75}, {}]


def test_leaves_of_few_of_many_classes_are_pairs() -> None:
    made = many_classes(FEW)
    table = leaf_table(made, np.array([0, 1, 2, 3, 1], np.int32))
    assert table.kind == "pairs" and table.outputs is not None
    assert table.index is not None and table.index[0] == table.index[2]
    for leaf, group in zip([0, 1, 2, 3, 1], table.index.tolist(), strict=True):
        sums, more = np.zeros(100, np.float32), True
        while more:
            at = slice(group * TOGETHER, (group + 1) * TOGETHER)
            more, group = bool(table.outputs[at][0] >> 15), group + 1
            np.add.at(sums, table.outputs[at] & 0x7FFF, table.values[at])
        assert np.array_equal(sums, made.leaf_value[leaf])
    # Equal leaves once: a leaf has 3 pairs, the others fill one group.
    assert len(table.values) == TOGETHER * (2 + -(-3 // TOGETHER))
    spare = table.values[table.values == 0]
    assert np.signbit(spare).sum() == len(spare) - 1  # all but that of no class


def test_pairs_of_more_classes_than_16_bits_number() -> None:
    made = many_classes([{3: 0.25, 39_999: 0.75, 7: 1.0}, {}, {}, {}], n_outputs=40_000)
    table = leaf_table(made, np.arange(4, dtype=np.int32))
    assert table.kind == "pairs" and table.outputs is not None
    assert table.outputs.dtype == np.uint32
    assert sorted({3, 7, 39_999} & set(table.outputs & 0x7FFFFFFF)) == [3, 7, 39_999]


@pytest.mark.parametrize(
    "made",
    [
        many_classes(FEW, base=-0.0),
        many_classes([dict.fromkeys(range(80), 0.5), {1: 1.0}, {}, {}]),
    ],
    ids=["-0.0 would change", "many classes"],
)
def test_leaves_of_many_classes_stay_vectors(made: Forest) -> None:
    table = leaf_table(made, np.arange(4, dtype=np.int32))
    assert table.kind == "vector" and table.index is not None
    assert np.array_equal(table.values[table.index], made.leaf_value)


# ------------------------------------------------------------ buckets


@settings(max_examples=25)
@given(
    st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=True),
        min_size=1,
        max_size=60,
    ),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=60),
)
def test_buckets_never_decrease(thresholds: list[float], values: list[float]) -> None:
    """So all thresholds of lower buckets are passed, and none of higher ones."""
    made = forest_of([tree("full", 0, np.random.default_rng(0))])
    sorted_ = np.unique(np.asarray(thresholds, np.float32))
    n = len(sorted_)
    table = replace(
        plan_codes(normalize_predicates.run(forest("scalar"))[0], np.uint16),
        feature=np.zeros(1, np.int32),
        test=np.array([THRESHOLDS]),
        offset=np.array([0, n]),
        thresholds=sorted_,
    )
    b = Buckets.of(table)
    every = np.sort(np.append(np.asarray(values, np.float32), sorted_))
    where = bucket_of(every, b.scale[0], b.shift[0], b.last[0])
    assert (np.diff(where) >= 0).all() and where.min() >= 0
    assert where.max() <= b.last[0] and made.n_trees == 1
    before, held = b.content & 0xFFFF, b.content >> 16
    for x, k in zip(every, where, strict=True):
        passed = int((sorted_ < x).sum())
        assert before[k] <= passed <= before[k] + held[k]
        assert int(held[k]) < 1 << int(b.levels[0])


def test_columns_merge_where_only_missing_values_differ() -> None:
    made, _ = normalize_predicates.run(forest("any missing"))
    merged = plan_codes(made, np.uint16, merge=True)
    assert merged.n_columns < plan_codes(made, np.uint16).n_columns
    assert column_count(made, merge=True) == merged.n_columns
    assert column_count(made) == plan_codes(made, np.uint16).n_columns
    codes = CodePlaces.of(made, merged, LANES)
    assert codes.copies == 2 and int(codes.rank_of.max()) < codes.most


@settings(max_examples=10)
@given(random_forest(max_trees=4, max_depth=4, missing=tuple(Missing)))
def test_columns_are_counted_without_a_plan(made: Forest) -> None:
    normal, _ = normalize_predicates.run(made)
    for merge in (False, True):
        plan = plan_codes(normal, np.uint16, merge=merge)
        assert column_count(normal, merge) == plan.n_columns


def test_a_register_holds_the_top_where_two_cost_more_than_they_save():
    full, chains = drawn(4, 12, shape="full"), drawn(4, 12, shape="chain")
    narrow, wide = Target.x86_64("v3"), Target.x86_64("v4")
    for made in (full, chains):
        assert [top_levels(made, n, wide) for n in (3, 4)] == [6, 6]
    # Seven levels below need three tiles, six need two; of four levels, two each.
    assert [top_levels(full, n, narrow) for n in (3, 4)] == [6, 5]
    assert [top_levels(chains, n, narrow) for n in (3, 4)] == [5, 5]
    (tiles, more) = (ForestCounts(full, t).four for t in (wide, narrow))
    assert tiles.visits == more.visits == 2
