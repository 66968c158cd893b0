"""Deep trees as pieces, each of whose tests every row meets: the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestRegressor

from skforge.compiler.driver import build_hir
from skforge.compiler.layouts.pieces import pieces
from skforge.compiler.layouts.pieces.cut import PieceTrees, cut_trees, top_tests
from skforge.compiler.layouts.pieces.pieces import Pieces
from skforge.exceptions import ScheduleError
from skforge.forest.bins import plan_codes
from skforge.forest.forest import Forest
from skforge.forest.reference import reference_raw
from skforge.frontends import load_forest
from skforge.modules.compiled import compile_forest
from skforge.schedule.families import pieces_schedule, row_blocks
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import (
    assert_same_bits,
    check_exact,
    expected,
    interpreted,
    raw_of,
)
from tests.exactness.forests import MAKERS, forest
from tests.exactness.test_layouts import REFUSED
from tests.exactness.test_tiles import trained
from tests.strategies_forest import edge_rows, random_forest
from tests.turns import random_test

EDGES = (0, 1, 15, 16, 17, 127, 128, 129, 513)
NAMES = [name for name in MAKERS if name not in REFUSED["pieces"]]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small trees, too."""
    monkeypatch.setattr(pieces, "USUAL", 3)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_small_pieces(name: str, small: None) -> None:
    check_exact(name, pieces_schedule(512), batches=EDGES, apply=True)
    check_exact(name, pieces_schedule(48), batches=EDGES, n_jobs=2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["deep", "vector 3", "any missing", "multiclass"])
def test_no_access_is_out_of_bounds(name: str, small: None) -> None:
    rows, raw, _ = expected(name)
    for n in (1, 37):
        found = interpreted(forest(name), pieces_schedule(32), rows[:n])
        assert_same_bits(found, raw[:n], (name, n))


def check_random(made: Forest, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "USUAL", most)
        try:
            module = compile_forest(made, pieces_schedule(32))
        except ScheduleError as error:
            assert "cannot compare" in str(error)
            return
        rows = edge_rows(made, 70)
        assert_same_bits(raw_of(module, rows), reference_raw(made, rows), most)


test_random_forests = random_test(
    check_random, 4, 1000, random_forest(), st.integers(1, 6)
)


# ------------------------------------------------------------ the cut


@pytest.mark.parametrize("most", [1, 5, 40, 254])
def test_exits_are_the_leaves_of_the_forest(most: int) -> None:
    made, _, _ = trained("extra")
    hir = build_hir(made, pieces_schedule(), "exact")
    nodes = hir.tiles
    # One place for each predicate, and a code that only its own test reads.
    n = len(hir.forest.feature)
    cut = cut_trees(nodes, np.arange(n), np.zeros(n, np.int64), most)
    tests = np.diff(cut.pieces[:, 0])
    assert tests.sum() == len(cut.tests) == (nodes.leaf < 0).sum()
    tops = top_tests(nodes, most)
    assert np.array_equal(tests[cut.top[:-1]], tops)
    assert np.delete(tests, cut.top[:-1]).max() <= most
    assert np.array_equal(np.diff(cut.top), tops + 2)
    right = np.random.default_rng(0).random((50, n)) < 0.5
    for row in right:
        for tree in range(nodes.n_trees):
            item = nodes.item_offset[tree]
            while nodes.leaf[item] < 0:
                item = nodes.child[item, int(row[nodes.predicate[item, 0]])]
            piece = cut.top[tree] + 1 + run(cut, cut.top[tree], row)
            place = cut.pieces[piece, 1] + run(cut, piece, row)
            assert cut.leaf_row[place] == nodes.leaf[item]


def run(cut: PieceTrees, piece: int, right: np.ndarray) -> int:
    """Return the exit that a row reaches; ``right`` is its answer to each test."""
    exit_ = 0
    for at in range(cut.pieces[piece, 0], cut.pieces[piece + 1, 0]):
        place, rank, low, high = cut.tests[at].tolist()
        assert rank == 1  # codes of at least 1 go right
        if exit_ == low and right[place]:
            exit_ = high
    return exit_


# ------------------------------------------------------------ errors

QUANTIZED = row_blocks(64).quantize("b0").represent("pieces")
CACHED = row_blocks(64).cache_predicates("b0").vectorize("b1").represent("pieces")


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (pieces_schedule(40), "multiple of 16 rows"),
        (pieces_schedule(1 << 16), "at most"),
        (row_blocks(64).represent("pieces"), r'represent\("pieces"\)'),
        (CACHED, "with quantize"),
        (pieces_schedule().tile_nodes(3, "complete"), "complete tiles"),
        (QUANTIZED.tile_nodes(3), "leave out tile_nodes"),
        (QUANTIZED.pad_trees(), "leave out pad_trees"),
    ],
)
def test_schedules_that_are_refused(schedule: Schedule, text: str) -> None:
    with pytest.raises(ScheduleError, match=text):
        compile_forest(forest("deep"), schedule)


def test_trees_that_are_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "USUAL", 1)
    monkeypatch.setattr(pieces, "MOST", 2)
    with pytest.raises(ScheduleError, match="at most 2 pieces"):
        compile_forest(trained("numbers")[0], pieces_schedule())


def test_columns_are_split_where_signed_words_cannot_count() -> None:
    rows = np.random.default_rng(0).random((40_000, 1))
    target = np.sin(90 * rows[:, 0])
    model = RandomForestRegressor(8, min_samples_leaf=3, random_state=0, n_jobs=2)
    made = load_forest(model.fit(rows, target))
    assert Pieces.plan_codes(made).n_columns == 2
    assert plan_codes(made, np.uint16, merge=True).n_columns == 1
    edges = np.sort(made.threshold)[[0, 1, 32766, 32767, 32768, -1]]
    rows = np.concatenate([edges, np.nextafter(edges, 2), rows[:300, 0]])[:, None]
    check = compile_forest(made, pieces_schedule(512)).predict_raw(rows)
    assert_same_bits(
        check, compile_forest(made, Schedule()).predict_raw(rows), "split columns"
    )
