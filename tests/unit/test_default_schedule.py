"""Default schedules: each range has one, it fits the forest, and suits its shape."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor

from skforge import load_forest
from skforge.compiler import pipeline
from skforge.compiler.defaults import cpu as default_schedule
from skforge.compiler.defaults.cpu import (
    BATCH_RANGES,
    UNROLL_LIMIT,
    BatchRange,
    ForestShape,
    default_schedules,
    walking_schedules,
)
from skforge.compiler.forest.arrays import Comparison, Missing
from skforge.compiler.forest.forest import Forest
from skforge.compiler.schedule.directives import Interleave
from skforge.compiler.schedule.families import (
    bitsliced_schedule,
    lanes_schedule,
    tiled_row_schedule,
    tiled_schedule,
)
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from tests.exactness.forests import MAKERS, drawn, forest, forest_of, tree
from tests.turns import in_turns

V3, V4 = Target.x86_64("v3"), Target.x86_64("v4")


def test_ranges_cover_every_batch_size_once() -> None:
    """They start as 1, 2-15, 16-127, 128-2048 and above."""
    assert BATCH_RANGES == ((1, 1), (2, 15), (16, 127), (128, 2048), (2049, None))


@pytest.mark.parametrize(
    ("name", "level"), in_turns(MAKERS, ["v2", "v3", "v4", "aarch64"], often=2)
)
def test_every_forest_has_schedules_that_lower(name: str, level: str) -> None:
    target = Target.aarch64() if level == "aarch64" else Target.x86_64(level)
    table = default_schedules(forest(name), target)
    firsts, lasts = zip(*table, strict=True)
    assert firsts == (1, *(last + 1 for last in lasts[:-1]))  # no gap, no overlap
    assert lasts[-1] is None
    if name == "wide records" and level != "v3":
        return  # large; its schedules are those of the others
    for schedule in set(table.values()):
        hir = pipeline.build_hir(forest(name), schedule, "exact")
        assert pipeline.lower(hir, target).kernel.data


def test_shallow_forests_evaluate_predicates_in_blocks() -> None:
    narrow = default_schedules(drawn(100, 6), V3)
    steps = [table.loop_nest(100).loops[0].step for table in narrow.values()]
    assert [first for first, _ in narrow] == [1, 24, 65, 129, 257]
    assert steps == [1, 64, 128, 256, 512]
    masks = default_schedules(drawn(100, 6), Target.x86_64("v4"))
    assert [first for first, _ in masks] == [1, 11, 65, 129, 257]
    few_trees = default_schedules(drawn(2, 6), V3)
    assert [first for first, _ in few_trees] == [1, 2, 15, 65, 129, 257]
    wide = default_schedules(forest("wide rows"), V3)
    assert [first for first, _ in wide] == [1, 18, 65, 129]
    assert ".cache_predicates(" in repr(wide[129, None])


def test_few_rows_of_large_trees_are_taken_as_tiles() -> None:
    """Of trees that blocks evaluate as bits; blocks win later, too."""
    firsts = {}
    for leaves in (31, 120, 250):
        random = np.random.default_rng(0)
        X = random.standard_normal((3000, 8)).round(1)
        y = X @ random.standard_normal(8) + random.standard_normal(3000)
        model = ExtraTreesRegressor(100, max_leaf_nodes=leaves, random_state=0)
        table = default_schedules(load_forest(model.fit(X, y)), V4)
        rows, first = next(iter(table.items()))
        name = "tiles" if '.represent("tiles")' in repr(first) else "lanes"
        firsts[leaves] = name, rows
        assert "cache_predicates" in repr(table[max(table)])
    assert firsts == {
        31: ("lanes", (1, 38)),
        120: ("tiles", (1, 52)),
        250: ("tiles", (1, 63)),
    }


def test_blocks_start_where_they_cost_as_much_as_the_rows() -> None:
    """Small trees are quick by bits, large ones row by row; half blocks come first."""
    made = {depth: drawn(100, depth, shape="full", n_features=13) for depth in (3, 8)}
    firsts = {d: [r for r, _ in default_schedules(f, V4)] for d, f in made.items()}
    assert firsts[3][1] < firsts[8][1] <= default_schedule.FIRST_BLOCKS[1]
    assert firsts[3][2] == default_schedule.HALF_BLOCK + 1
    folded = default_schedules(made[8], V4)
    assert folded[firsts[8][1], 128] == bitsliced_schedule(128)


def test_large_tables_of_predicates_have_smaller_blocks() -> None:
    made = drawn(100, 6, shape="full")
    bytes_of = made.n_predicates * default_schedule.PREDICATE_BLOCK // 8
    for share, last in ((0.4, 512), (0.6, 256)):
        target = replace(V4, l2_bytes=int(bytes_of / share))
        table = default_schedules(made, target)
        assert table[max(table)] == bitsliced_schedule(last)


def deep_forest(depth: int | None, n_trees: int = 40) -> Forest:
    random = np.random.default_rng(0)
    X = random.standard_normal((1500, 8))
    y = X @ random.standard_normal(8) + random.standard_normal(1500)
    return load_forest(
        ExtraTreesRegressor(n_trees, max_depth=depth, random_state=0).fit(X, y)
    )


def test_deep_forests_are_walked_as_tiles() -> None:
    full = deep_forest(None)
    small_cache = replace(V4, l2_bytes=1 << 16)
    table = default_schedules(full, small_cache)
    assert [first for first, _ in table] == [1, 96, 2049]
    assert table[1, 95] == tiled_row_schedule(15)
    assert table[96, 2048] == tiled_schedule(512, 7)  # not in cache
    # without mask registers values are compared sooner than codes are permuted
    table = default_schedules(full, V3)
    assert table == {
        (1, 95): tiled_row_schedule(15),
        (96, None): tiled_schedule(256, 7, codes=False),
    }
    # small tiles, and codes searched with masks: blocks win earlier
    large_cache = replace(V4, l2_bytes=1 << 20)
    assert (1, 31) in default_schedules(full, large_cache)
    # cut at depth 12 a row meets no more tiles of three levels than of four
    cut = list(default_schedules(deep_forest(12), V4).values())
    assert cut[:2] == [tiled_row_schedule(7), tiled_schedule(512, 7)]
    # sixteen trees are decoded together: row by row, fewer are not taken as tiles
    table = default_schedules(deep_forest(None, n_trees=12), V3)
    assert [first for first, _ in table] == [1, 2, 16]
    assert tiled_row_schedule() not in table.values()
    for other in (Target.x86_64("v2"), Target.aarch64()):
        assert default_schedules(full, other) == walking_schedules(full, other)
    # one tree: to search a row's columns would cost more than its walk
    few = deep_forest(None, n_trees=1)
    table, walks = default_schedules(few, V3), walking_schedules(few, V3)
    assert [table[1, 1], table[2, 15]] == [walks[1, 1], walks[2, 15]]
    assert table[16, None] == tiled_schedule(256, 7, codes=False)


def test_boosted_trees_of_hundreds_of_nodes_stay_in_lanes() -> None:
    from xgboost import XGBClassifier

    random = np.random.default_rng(0)
    X = random.standard_normal((8000, 20)).astype(np.float32)
    y = X[:, :5].sum(1) + random.standard_normal(8000) > 0
    made = load_forest(XGBClassifier(n_estimators=20, max_depth=10).fit(X, y))
    assert 250 * made.n_trees < made.n_nodes < 900 * made.n_trees
    table = default_schedules(made, V3)
    assert table[1, 1] == lanes_schedule()
    assert table[16, None] == lanes_schedule(parallel=True)


def test_large_forests_have_larger_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = deep_forest(None)
    rows = []
    for size in (1, 2_000, 20_000):  # bytes a node
        monkeypatch.setattr(default_schedule, "BYTES_A_NODE", size)
        last = default_schedules(made, V4)[2049, None]
        rows.append(last.loop_nest(40).loops[0].step)
    assert rows[0] == 512 and rows == sorted(rows) and rows[-1] == 2048


@pytest.mark.parametrize("name", ["scalar", "multiclass", "deep", "double"])
def test_reproducible_forests_get_schedules_that_take_them(name: str) -> None:
    for schedule in set(default_schedules(forest(name), V3, "reproducible").values()):
        pipeline.build_hir(forest(name), schedule, "reproducible")


def test_a_single_row_walks_trees_together_and_a_batch_walks_rows() -> None:
    table = walking_schedules(drawn(100, 6), V3)
    assert '.interleave("tree", ' in repr(table[1, 1])
    assert "parallel" not in repr(table[1, 1])
    for batch in BATCH_RANGES[2:]:
        assert '.interleave("b1", ' in repr(table[batch])
        assert '.parallel("b0")' in repr(table[batch])


@pytest.mark.parametrize("n_trees", [0, 1, 2, 9, 100])
def test_no_more_trees_in_flight_than_there_are(n_trees: int) -> None:
    (first, *_) = walking_schedules(drawn(n_trees, 3, shape="full"), V3).values()
    together = first.loop_nest(n_trees).loops[0].body[0].mark(Interleave)
    in_flight = together and together.factor
    at_most = min(n_trees, default_schedule.TREES_IN_FLIGHT)
    assert in_flight == (at_most if at_most > 1 else None)


def test_equal_depths_need_no_leaf_check_and_deep_trees_keep_theirs() -> None:
    assert ".unroll_walk(" in repr(walking_schedules(drawn(20, 5, shape="full"), V3))
    chains = walking_schedules(drawn(20, UNROLL_LIMIT + 1, shape="chain"), V3)
    assert ".unroll_walk(" not in repr(chains)
    # all leaves of a chain but one lie higher: only the first hop is certain
    assert '.peel_walk("tree", 1)' in repr(chains[1, 1])
    mixed = walking_schedules(forest("mixed trees"), V3)  # there are single leaves
    assert "_walk(" not in repr(mixed)


def test_padding_is_estimated_by_what_it_adds() -> None:
    random = np.random.default_rng(0)
    full = ForestShape.of(forest_of([tree("full", 4, random)]))
    assert (full.min_depth, full.max_depth, full.padded_nodes) == (4, 4, 1.0)
    # a stump beside: two leaves, three levels short each, two nodes a level
    stump = ForestShape.of(
        forest_of([tree("full", 4, random), tree("full", 1, random)])
    )
    assert stump.padded_nodes == 1 + 2 * (2 * 3) / (31 + 3)


def test_blocks_of_wide_rows_stay_in_cache() -> None:
    def block(n_features: int) -> int:
        made = replace(drawn(50, 5, shape="full"), n_features=n_features)
        schedule = walking_schedules(made, V3)[2049, None]
        (outer,) = schedule.loop_nest(50).loops
        return outer.step

    widths = [block(n) for n in (5, 1000, 20_000, 1_000_000)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > widths[-1] >= default_schedule.ROWS_IN_FLIGHT


def test_rows_are_fetched_ahead_where_they_do_not_fit_a_cache() -> None:
    narrow = walking_schedules(drawn(50, 5), V3)[2049, None]
    wide = walking_schedules(drawn(50, 5, n_features=2000), V3)[2049, None]
    assert "cache" not in repr(narrow)
    assert '.cache("b0")' in repr(wide)


def test_few_wide_rows_are_fetched_before_their_walks() -> None:
    def few(n_trees: int, n_features: int) -> str:
        made = replace(drawn(n_trees, 5, shape="full"), n_features=n_features)
        return repr(walking_schedules(made, V3)[1, 1])

    assert '.cache("batch")' in few(20, 1000)
    assert "cache" not in few(20, 60)  # four lines: each hop has them soon
    assert "cache" not in few(20, 100_000)  # hops meet a hundredth of the lines


def test_rows_that_are_fetched_go_one_by_one_until_blocks_of_bits_win() -> None:
    made = drawn(50, 8, n_features=1500)
    (first, second, *_) = default_schedules(made, V4).items()
    assert first[0][0] == 1 and '.cache("batch")' in repr(first[1])
    assert first[0][1] >= default_schedule.FETCHED_ROW_BLOCKS - 1
    assert '"bitsliced"' in repr(second[1])


def test_shared_predicates_are_evaluated_once_for_big_batches() -> None:
    table = default_schedules(drawn(100, 5, shape="full"), V3)
    assert "cache_predicates" in repr(table[257, None])
    assert "cache_predicates" not in repr(table[1, 33])
    # not where missing values are treated in several ways
    mixed = default_schedules(forest("any missing"), V3)
    assert "cache_predicates" not in repr(mixed)


def test_few_rows_put_trees_in_lanes_where_that_pays() -> None:
    def lanes(made: Forest, target: Target = V3) -> list[BatchRange]:
        table = default_schedules(made, target)
        return [rows for rows, s in table.items() if 'represent("lanes")' in repr(s)]

    many = drawn(100, 6)
    assert lanes(many) == [(1, 23)]
    assert lanes(many, Target.x86_64("v4")) == [(1, 10)]
    # bytes are not permuted in registers
    assert lanes(many, Target.x86_64("v1")) == []
    # searching a code for each column costs more than a few walks
    assert lanes(drawn(2, 6, n_features=50)) == []
    # too many columns, or none
    assert lanes(forest("wide rows")) == []
    assert lanes(forest("leaves")) == []
    # missing values in several ways suit codes, but no lines of bits
    mixed = drawn(100, 6, comparisons=(Comparison.LT,), missing=tuple(Missing))
    assert lanes(mixed) == list(BATCH_RANGES[:2])


def test_equal_choices_are_equal_values() -> None:
    table = default_schedules(drawn(3, 5, shape="full"), V3)
    again = default_schedules(drawn(3, 5, shape="full"), V3)
    assert table == again
    assert all(isinstance(schedule, Schedule) for schedule in table.values())
    assert len(set(table.values())) < len(table)
