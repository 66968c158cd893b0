"""Deep trees walked as tiles of codes, a block of rows at a time: the same bits."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import strategies as st
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.tree import DecisionTreeRegressor

from skforge import load_forest
from skforge.compiler.driver import build_hir, lower
from skforge.compiler.ir.lir.nodes import Prefetch
from skforge.compiler.ir.lir.walk import statements
from skforge.compiler.layouts.tiles import tile_layout, tile_rows, tiled_trees
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.forest.arrays import Missing
from skforge.forest.combine import subset
from skforge.forest.forest import Forest
from skforge.forest.reference import draw_rows, reference_leaves, reference_raw
from skforge.modules.compiled import compile_forest
from skforge.schedule.families import tiled_schedule
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import (
    assert_same_bits,
    check_exact,
    expected,
    interpreted,
    levels,
    raw_of,
    rounding_bound,
)
from tests.exactness.forests import MAKERS, drawn, forest
from tests.strategies_forest import edge_rows, random_forest
from tests.turns import in_turns, random_test


def tiles(size: int = 15, rows: int = 64) -> Schedule:
    return (
        Schedule()
        .tile("batch", "b0", "b1", rows)
        .reorder("b0", "tree", "b1")
        .quantize("b0")
        .vectorize("b1")
        .tile_nodes(size, "complete")
        .represent("tiles")
    )


def by_row(size: int = 15) -> Schedule:
    schedule = Schedule().quantize("batch").vectorize("tree")
    return schedule.tile_nodes(size, "complete").represent("tiles")


SCHEDULES = {
    "15": tiles(),
    "7": tiles(7),
    "parallel": tiles(15, 48).parallel("b0"),
    "512": tiles(7, 512),
    "by row": by_row(),
    "by row, 7": by_row(7),
    "rows in parallel": Schedule()
    .tile("batch", "b0", "b1", 3)
    .parallel("b0")
    .quantize("b1")
    .vectorize("tree")
    .tile_nodes(15, "complete")
    .represent("tiles"),
    "parts of trees": Schedule()
    .tile("batch", "b0", "b1", 16)
    .tile("tree", "t0", "t1", 3)
    .reorder("b0", "t0", "t1", "b1")
    .quantize("b0")
    .vectorize("b1")
    .tile_nodes(7, "complete")
    .represent("tiles"),
}
#: Of more columns of codes than a byte numbers, or of none.
NAMES = [
    name
    for name in MAKERS
    if name not in ("wide records", "leaves", "one leaf", "no trees")
]
EDGES = (0, 1, 15, 16, 17, 63, 64, 65, 513)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_forests(name: str) -> None:
    check_exact(name, SCHEDULES["15"], batches=EDGES, apply=True)
    check_exact(name, SCHEDULES["parallel"], batches=EDGES, n_jobs=2)
    check_exact(name, SCHEDULES["by row"], batches=(0, 1, 2, 65), apply=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(schedule: str) -> None:
    for name in ("deep", "multiclass", "double categories", "vector 3", "any missing"):
        check_exact(name, SCHEDULES[schedule], batches=EDGES)


@lru_cache(maxsize=8)
def trained(kind: str) -> tuple[Forest, np.ndarray, np.ndarray]:
    """Return a forest of full depth, rows some of which miss values, raw scores."""
    random = np.random.default_rng(0)
    X = random.standard_normal((1500, 6)).astype(np.float32)
    X[::7, 1] = np.nan
    x = np.nan_to_num(X)
    y = x[:, 0] * 2 + x[:, 1] * x[:, 2] + random.standard_normal(len(X))
    labels = np.digitize(y, [-2, -1, 0, 1, 2])
    made = {
        "numbers": lambda: RandomForestRegressor(5, random_state=0).fit(X, y),
        "extra": lambda: ExtraTreesRegressor(4, random_state=0).fit(x, y),
        "classes": lambda: RandomForestClassifier(5, random_state=0).fit(X, labels),
        "vectors": lambda: RandomForestClassifier(
            5, random_state=0, min_samples_leaf=3
        ).fit(X, labels),
        "outputs": lambda: RandomForestRegressor(3, random_state=0).fit(
            X, np.stack([y, -y, y * y], axis=1)
        ),
        "few of many classes": lambda: ExtraTreesClassifier(
            9, random_state=0, min_samples_leaf=2
        ).fit(x, np.arange(len(x)) % 150),
    }[kind]()
    forest_ = load_forest(made)
    rows = draw_rows(forest_, 200, 1, missing=0.03)
    return forest_, rows, reference_raw(forest_, rows)


KINDS = ("numbers", "extra", "classes", "vectors", "outputs", "few of many classes")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kind", "level"), in_turns(KINDS, ["v2", "v3", "v4"]))
def test_full_depth(kind: str, level: str) -> None:
    if level not in levels():
        pytest.skip(f"this machine does not run x86-64-{level}")
    made, rows, raw = trained(kind)
    for schedule in (tiles(7), tiles(15), by_row(7), by_row(15)):
        module = compile_forest(made, schedule, levels()[level])
        for n in (1, 33, 200):
            assert_same_bits(raw_of(module, rows[:n]), raw[:n], (kind, level, n))
        # Without missing values, rows are read from one copy of their codes.
        whole = np.nan_to_num(rows)
        assert_same_bits(raw_of(module, whole), reference_raw(made, whole), kind)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_features", [3, 17, 33, 70, 128])
def test_features_of_any_number(n_features: int, dtype: type) -> None:
    random = np.random.default_rng(n_features)
    X = random.standard_normal((600, n_features))
    y = X @ random.standard_normal(n_features)
    made = load_forest(ExtraTreesRegressor(3, random_state=0).fit(X, y))
    made = replace(made, threshold=made.threshold.astype(dtype)).validate()
    rows = draw_rows(made, 100, 2)
    for schedule in (tiles(), by_row()):
        module = compile_forest(made, schedule)
        assert_same_bits(raw_of(module, rows), reference_raw(made, rows), n_features)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("n_trees", [1, 15, 16, 17, 33])
def test_trees_of_any_number(n_trees: int) -> None:
    for kind in ("numbers", "classes", "vectors", "few of many classes"):
        made, rows, _ = trained(kind)
        made = subset(made, [k % made.n_trees for k in range(n_trees)])
        raw = reference_raw(made, rows)
        module = compile_forest(made, by_row())
        assert_same_bits(raw_of(module, rows), raw, (kind, n_trees))


@pytest.mark.parametrize("n_thresholds", [32_767, 32_768])
@pytest.mark.parametrize("missing", [False, True])
def test_codes_of_15_bits_and_of_16(n_thresholds: int, missing: bool) -> None:
    """Codes are compared as signed words if the largest rank leaves room for NaN."""
    X = np.arange(n_thresholds + 1 - missing, dtype=np.float32)[:, None]
    y = np.random.default_rng(0).random(len(X))
    rows = np.concatenate([X, X + 0.5, [[-1.0], [1e9]]]).astype(np.float32)
    if missing:
        X, y = np.append(X, [[np.nan]], axis=0), np.append(y, 9.0)
        rows = np.append(rows, [[np.nan]], axis=0).astype(np.float32)
    model = DecisionTreeRegressor(random_state=0).fit(X, y)
    splits = model.tree_.feature >= 0
    assert len(np.unique(model.tree_.threshold[splits])) == n_thresholds
    for schedule in (tiles(7), by_row(7)):
        module = compile_forest(model, schedule)
        np.testing.assert_array_equal(module.predict(rows), model.predict(rows))


def test_items_of_large_trees_are_numbered_by_32_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, rows, raw = trained("numbers")
    monkeypatch.setattr(tile_layout, "needs_wide", lambda nodes: True)
    monkeypatch.setattr(tile_layout, "ROW_BITS", 31)
    for schedule in (tiles(7), tiles(15), by_row(7), by_row(15)):
        module = compile_forest(made, schedule)
        assert_same_bits(raw_of(module, rows), raw, schedule)
    data = kernel_data(made, tiles(15))
    assert data["tiles"].size % 64 == 0


def test_large_forests_fetch_the_next_tree_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, rows, raw = trained("numbers")

    def prefetches() -> int:
        return n_prefetches(made, tiles(), "v4")

    assert prefetches() == 0
    monkeypatch.setattr(tiled_trees, "STREAMED_BYTES", 0)
    # two lines of tiles, in the code for one and for two copies of codes, and leaves
    assert prefetches() == 2 * tiled_trees.LINES_AHEAD + 1
    assert_same_bits(raw_of(compile_forest(made, tiles()), rows), raw, "ahead")
    got = interpreted(subset(made, [0, 1]), tiles(15, 32), rows[:40])
    assert_same_bits(got, reference_raw(subset(made, [0, 1]), rows[:40]), "inside")


def n_prefetches(made: Forest, schedule: Schedule, level: str) -> int:
    hir = build_hir(made, schedule, "exact")
    function = lower(hir, Target.x86_64(level)).kernel.function
    return sum(isinstance(s, Prefetch) for s in statements(function.body))


@pytest.mark.parametrize("codes", [True, False])
def test_tiles_of_large_trees_are_fetched_some_rows_ahead(
    monkeypatch: pytest.MonkeyPatch, codes: bool
) -> None:
    made, rows, raw = trained("numbers")
    schedule = tiled_schedule(32, 7, codes)
    monkeypatch.setattr(tile_rows, "FETCHED_TREE", 1 << 30)
    few = n_prefetches(made, schedule, "v3")
    assert few == (0 if codes else 2 * tiled_trees.UNROLL)
    monkeypatch.setattr(tiled_trees, "STREAMED_BYTES", 0)
    monkeypatch.setattr(tile_rows, "FETCHED_TREE", 0)
    # four rows' tiles and the next tree's lines, in the code for each kind of rows
    each = tiled_trees.UNROLL + tiled_trees.LINES_AHEAD
    assert n_prefetches(made, schedule, "v3") == 2 * each + 1
    v3 = Target.x86_64("v3")
    module = compile_forest(made, schedule, target=v3)
    assert_same_bits(raw_of(module, rows), raw, "ahead")
    made = subset(made, [0, 1])
    got = interpreted(made, schedule, rows[:40], target=v3)
    assert_same_bits(got, reference_raw(made, rows[:40]), "inside")


def kernel_data(made: Forest, schedule: Schedule) -> dict[str, np.ndarray]:
    hir = build_hir(made, schedule, "exact")
    data = lower(hir, Target.x86_64("v4")).kernel.data
    return {item.buffer.name: item.data for item in data}


def test_bytes_of_a_node() -> None:
    """A quarter of a tile's places are nodes: 8 bytes a node, and its leaf's."""
    made, _, _ = trained("extra")
    for size, most in ((7, 6.0), (15, 9.0)):
        data = kernel_data(made, tiles(size))
        assert data["tiles"].nbytes / made.n_nodes < most
        assert data["leaf_values"].nbytes / made.n_nodes < 4.1
    made, _, _ = trained("classes")
    assert kernel_data(made, tiles())["leaf_index"].dtype == np.uint8


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "level"),
    in_turns(["numbers", "classes", "vectors"], ["v2", "v3", "v4", "aarch64"], often=2),
)
def test_nothing_is_read_or_written_out_of_bounds(level: str, kind: str) -> None:
    target = Target.aarch64() if level == "aarch64" else Target.x86_64(level)
    made, rows, raw = trained(kind)
    made = subset(made, [0, 1])
    raw = reference_raw(made, rows)
    for n in (0, 1, 17, 34):
        got = interpreted(
            made, tiles(15, 32), rows[:n], target=target, extra_stride=n % 3
        )
        assert_same_bits(got, raw[:n], (level, n))
    shared = tiles(15, 32).parallel("b0")
    for seed in range(3):  # of the order of blocks, and of how many threads there are
        got = interpreted(made, shared, rows[:49], target=target, shuffle=seed)
        assert_same_bits(got, reference_raw(made, rows[:49]), (level, seed))
    for n in (0, 1, 3):
        got = interpreted(made, by_row(), rows[:n], target=target, extra_stride=n % 3)
        assert_same_bits(got, raw[:n], (level, n, "by row"))


def test_fast_sums_are_within_their_bound() -> None:
    for name in ("multiclass", "vector 3", "averaged"):
        for schedule in (SCHEDULES["15"], by_row()):
            module = compile_forest(forest(name), schedule, reduction="fast")
            rows, raw, _ = expected(name)
            error = np.abs(raw_of(module, rows).astype(np.float64) - raw)
            assert (error <= rounding_bound(forest(name), rows)).all()


REFUSED = {
    "fixed-point sums": (
        "scalar",
        tiles(),
        "reproducible",
        'represent("tiles") sums floats in model order; use reduction="exact" or '
        "another representation.",
    ),
    "single nodes": (
        "scalar",
        Schedule()
        .tile("batch", "b0", "b1", 64)
        .reorder("b0", "tree", "b1")
        .quantize("b0")
        .vectorize("b1")
        .represent("tiles"),
        "exact",
        'represent("tiles") needs tile_nodes(7, "complete") or '
        'tile_nodes(15, "complete").',
    ),
    "tiles that nobody reads": (
        "scalar",
        Schedule().tile_nodes(7, "complete"),
        "exact",
        'represent("sparse") does not support complete tiles; use represent("tiles"), '
        "or another kind of tile_nodes.",
    ),
    "padding": (
        "deep",
        tiles().pad_trees(),
        "exact",
        'represent("tiles") ends a walk at its leaf; leave out pad_trees and '
        "unroll_walk.",
    ),
    "many columns": (
        "wide records",
        tiles(),
        "exact",
        'represent("tiles") holds a row of at most 128 codes in registers, but this '
        "forest has 1369 columns; leave quantize out, or use another representation.",
    ),
    "many trees by row": (
        "many trees",
        by_row(),
        "exact",
        'represent("tiles") takes a row through at most 1024 trees at once, but this '
        "forest has 1025; use blocks of rows.",
    ),
    "trees in lanes, not in order": (
        "deep",
        by_row().reorder_trees(),
        "exact",
        'vectorize("tree") takes one row at a time and adds its trees in the order of '
        "the model, with exact or fast reduction; leave out reorder_trees and loops "
        "that take several rows.",
    ),
    "odd blocks": (
        "scalar",
        tiles(15, 40),
        "exact",
        'represent("tiles") takes blocks whose size is a multiple of 16 rows, at most '
        "4096; this schedule has blocks of 40.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_tiles_cannot_express_is_refused(case: str) -> None:
    name, schedule, reduction, message = REFUSED[case]
    made = drawn(1025, 1) if name == "many trees" else forest(name)
    with pytest.raises(ScheduleError) as error:
        compile_forest(made, schedule, reduction=reduction).compile_all()
    assert error.value.why == message


def check_random(data: st.DataObject) -> None:
    """Compare a random forest on this machine, or as an older one runs it."""
    target = data.draw(st.sampled_from(["cpu", *levels().values()]))
    missing = data.draw(st.lists(st.sampled_from(list(Missing)), min_size=1))
    depth = data.draw(st.sampled_from([3, 7, 9]))
    made = data.draw(
        random_forest(max_trees=5, max_depth=depth, missing=tuple(set(missing)))
    )
    schedule = SCHEDULES[data.draw(st.sampled_from(list(SCHEDULES)))]
    n = data.draw(st.integers(0, 150))
    rows = edge_rows(made, n, seed=3)
    try:
        module = compile_forest(made, schedule, target)
        raw = raw_of(module, rows)
    except ScheduleError as error:
        known = ("codes in registers", "single leaves", "tree loops")
        assert any(reason in str(error) for reason in known)
        return
    assert_same_bits(raw, reference_raw(made, rows), n)
    leaves = made.source_node[reference_leaves(made, rows)]
    assert_same_bits(module.apply(rows), leaves, "apply")


test_random_forests = random_test(check_random, 4, 1500)
