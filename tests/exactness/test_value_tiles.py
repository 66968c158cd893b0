"""Deep trees walked as tiles by the values of rows, without codes: the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st
from sklearn.ensemble import ExtraTreesRegressor

from skforge import load_forest
from skforge.compiler.defaults.cpu import candidates
from skforge.compiler.driver import build_hir, lower
from skforge.compiler.ir.lir.nodes import (
    Alloc,
    Body,
    Compare,
    Function,
    Gather,
    If,
    Load,
    Prefetch,
    Vec,
)
from skforge.compiler.ir.lir.walk import statements
from skforge.compiler.layouts.tiles import tile_layout
from skforge.compiler.layouts.tiles.tile_rows import refusal, value_tests
from skforge.compiler.passes.hir import normalize_predicates
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
    interpreted,
    levels,
    raw_of,
)
from tests.exactness.forests import MAKERS, forest
from tests.exactness.test_tiles import KINDS, trained
from tests.strategies_forest import edge_rows, random_forest
from tests.turns import in_turns, random_test


def values(size: int = 7, rows: int = 64) -> Schedule:
    return tiled_schedule(rows, size, codes=False)


SCHEDULES = {
    "7": values(),
    "15": values(15, 48),
    "cached": values(7, 32).cache("b0"),
    "parts of trees": Schedule()
    .tile("batch", "b0", "b1", 16)
    .tile("tree", "t0", "t1", 3)
    .reorder("b0", "t0", "t1", "b1")
    .vectorize("b1")
    .tile_nodes(7, "complete")
    .represent("tiles"),
}
TAKEN = [n for n in MAKERS if refusal(normalize_predicates.run(forest(n))[0]) is None]
EDGES = (0, 1, 15, 16, 17, 63, 64, 65, 257)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TAKEN)
def test_forests(name: str) -> None:
    if forest(name).n_features > 1 << 16:
        pytest.skip("rows of megabytes")
    check_exact(name, SCHEDULES["7"], batches=EDGES, n_jobs=2, apply=True)
    check_exact(name, SCHEDULES["15"], batches=EDGES)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(schedule: str) -> None:
    for name in ("deep", "multiclass", "vector 3", "wide rows"):
        check_exact(name, SCHEDULES[schedule], batches=EDGES)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kind", "level"), in_turns(KINDS, ["v2", "v3", "v4"]))
def test_full_depth(kind: str, level: str) -> None:
    if level not in levels():
        pytest.skip(f"this machine does not run x86-64-{level}")
    made, rows, raw = trained(kind)
    for schedule in (values(7), values(15)):
        module = compile_forest(made, schedule, levels()[level])
        for n in (1, 33, 200):
            assert_same_bits(raw_of(module, rows[:n]), raw[:n], (kind, level, n))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_features", [1, 3, 17, 128, 129, 400])
def test_features_of_any_number(n_features: int, dtype: type) -> None:
    made = of_features(n_features, dtype)
    rows = draw_rows(made, 100, 2)
    for schedule in (values(), values(15)):
        module = compile_forest(made, schedule)
        assert_same_bits(raw_of(module, rows), reference_raw(made, rows), n_features)


def of_features(n_features: int, dtype: type = np.float32) -> Forest:
    random = np.random.default_rng(n_features)
    X = random.standard_normal((600, n_features))
    y = X @ random.standard_normal(n_features)
    made = load_forest(ExtraTreesRegressor(3, random_state=0).fit(X, y))
    return replace(made, threshold=made.threshold.astype(dtype)).validate()


def test_blocks_without_missing_values_do_not_ask_for_them() -> None:
    made, rows, _ = trained("numbers")
    assert not made.missing_left.all()
    module = compile_forest(made, values(7, 32))
    whole = np.nan_to_num(rows)
    one = whole.copy()
    one[70, -1] = np.nan  # in the third block alone
    for given_rows in (rows, whole, one):
        raw = reference_raw(made, given_rows)
        assert_same_bits(raw_of(module, given_rows), raw, "some blocks")

    def unordered(body: Body) -> int:
        ops = [getattr(s, "op", s) for s in statements(body)]
        return sum(isinstance(o, Compare) and o.unordered for o in ops)

    found = statements(function_of(made, values()).body)
    branches = [s for s in found if isinstance(s, If)]
    walks = max(branches, key=lambda s: len(list(statements(s.orelse))))
    # four rows in tiles; nodes of the top
    assert (unordered(walks.then), unordered(walks.orelse)) == (4 + 63, 0)


@pytest.mark.parametrize("level", ["v3", "v4"])
def test_tops_compare_registers_of_rows(level: str) -> None:
    made = of_features(40)
    made = replace(made, missing_left=np.ones(made.n_predicates, np.bool_)).validate()
    target = Target.x86_64(level)
    function = lower(build_hir(made, values(), "exact"), target).kernel.function
    ops = [getattr(s, "op", s) for s in statements(function.body)]
    loads = [o for o in ops if isinstance(o, Load)]
    of_columns = [o for o in loads if o.buffer.name.startswith("columns")]
    assert len(of_columns) == {"v3": 31, "v4": 63}[level]
    # too many features to be turned: tiles begin at the root
    assert value_tests(made, 6).top_levels == 6
    many = np.arange(made.n_predicates, dtype=np.int32)
    assert len(many) > 1024
    assert value_tests(replace(made, feature=many), 6).top_levels == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [Missing.NAN, Missing.NEVER])
@pytest.mark.parametrize("left", [False, True])
def test_missing_values(kind: Missing, left: bool) -> None:
    made, rows, _ = trained("numbers")
    n = made.n_predicates
    same = np.full(n, left) if left else np.arange(n) % 2 == 0
    missing = np.full(n, kind, made.missing.dtype)
    made = replace(made, missing=missing, missing_left=same).validate()
    assert np.isnan(rows).any()
    for schedule in SCHEDULES.values():
        found = raw_of(compile_forest(made, schedule), rows)
        assert_same_bits(found, reference_raw(made, rows), (kind, left))


def test_items_of_large_trees_are_numbered_by_32_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, rows, raw = trained("numbers")
    monkeypatch.setattr(tile_layout, "needs_wide", lambda nodes: True)
    monkeypatch.setattr(tile_layout, "ROW_BITS", 31)
    for schedule in (values(7), values(15)):
        module = compile_forest(made, schedule)
        assert_same_bits(raw_of(module, rows), raw, schedule)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "level"),
    in_turns(["numbers", "classes", "vectors"], ["v2", "v3", "v4", "aarch64"], often=2),
)
def test_nothing_is_read_or_written_out_of_bounds(level: str, kind: str) -> None:
    target = Target.aarch64() if level == "aarch64" else Target.x86_64(level)
    made, rows, _ = trained(kind)
    made = subset(made, [0, 1])
    raw = reference_raw(made, rows)
    for n in (0, 1, 17, 49):
        for shuffle in (None, n):  # in order, and by some number of threads
            got = interpreted(
                made,
                values(7, 32),
                rows[:n],
                target=target,
                extra_stride=n % 3,
                shuffle=shuffle,
            )
            assert_same_bits(got, raw[:n], (level, n))


def function_of(made: Forest, schedule: Schedule) -> Function:
    hir = build_hir(made, schedule, "exact")
    return lower(hir, Target.x86_64("v4")).kernel.function


def test_a_tile_is_one_line_and_its_values_are_loaded_one_by_one() -> None:
    made = of_features(400)
    hir = build_hir(made, values(), "exact")
    kernel = lower(hir, Target.x86_64("v4")).kernel
    ops = [getattr(s, "op", s) for s in statements(kernel.function.body)]
    of_rows = [o for o in ops if isinstance(o, Load) and o.buffer.name == "rows"]
    # four rows at a time, seven nodes, with missing values and without
    of_tiles = [o for o in of_rows if not isinstance(o.index.type, Vec)]
    assert len(of_tiles) >= 2 * 4 * 7
    assert not any(isinstance(o, Gather) and o.buffer.name == "rows" for o in ops)
    fetched = [o for o in ops if isinstance(o, Prefetch) and o.buffer.name == "tiles"]
    assert len(fetched) == 2 * 4
    # rows are not turned to codes
    assert not any(isinstance(o, Alloc) and "codes" in o.buffer.name for o in ops)
    (tiles,) = [item.data for item in kernel.data if item.buffer.name == "tiles"]
    assert tiles.size % 64 == 0
    assert tiles.size < 26 * made.n_nodes  # twice a node of a walk


def test_a_default_may_compare_values_where_there_are_too_many_codes() -> None:
    target = Target.x86_64("v3")
    many = repr(candidates(of_features(400), target))
    few = repr(candidates(of_features(3), target))
    by_codes = repr(tiled_schedule(512, 7))
    by_values = repr(tiled_schedule(256, 7, codes=False))
    # as many rows as half of L2 holds
    by_wide = repr(tiled_schedule(128, 7, codes=False))
    assert by_wide in many and by_values not in many and by_codes not in many
    assert by_values in few and by_codes in few


REFUSED = {
    "categories": (
        "categories",
        values(),
        'represent("tiles") compares values of rows unless they are quantised, which '
        "this forest does not allow, because it has tests for categories; mark the "
        "loop over blocks of rows with quantize.",
    ),
    "zeros": (
        "any missing",
        values(),
        'represent("tiles") compares values of rows unless they are quantised, which '
        "this forest does not allow, because it has zeros that count as missing, or "
        "several rules for missing values; mark the loop over blocks of rows with "
        "quantize.",
    ),
    "many features": (
        "wide records",
        values(),
        'represent("tiles") compares values of rows unless they are quantised, which '
        "this forest does not allow, because it has 1048576 features; mark the loop "
        "over blocks of rows with quantize.",
    ),
    "predicates": (
        "scalar",
        values().cache_predicates("b0"),
        'represent("tiles") compares codes or values of rows, so it does not work '
        "with cache_predicates; mark the loop over blocks of rows with quantize or "
        "with nothing.",
    ),
    "no blocks": (
        "scalar",
        Schedule().tile_nodes(7, "complete").represent("tiles"),
        'represent("tiles") takes blocks of rows; tile the batch, put the loop over '
        "trees outside the loop over the rows of a block, and vectorize the latter.",
    ),
    "odd blocks": (
        "scalar",
        values(7, 40),
        'represent("tiles") takes blocks whose size is a multiple of 16 rows, at most '
        "4096; this schedule has blocks of 40.",
    ),
    "trees in parallel": (
        "scalar",
        Schedule()
        .tile("batch", "b0", "b1", 64)
        .reorder("b0", "tree", "b1")
        .parallel("tree")
        .vectorize("b1")
        .tile_nodes(7, "complete")
        .represent("tiles"),
        'represent("tiles") needs serial tree loops over all trees inside it and one '
        "vectorised loop over the block's rows inside those.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_values_cannot_express_is_refused(case: str) -> None:
    name, schedule, message = REFUSED[case]
    with pytest.raises(ScheduleError) as error:
        compile_forest(forest(name), schedule)
    assert error.value.why == message


def check_random(data: st.DataObject) -> None:
    missing = data.draw(st.sampled_from([Missing.NAN, Missing.NEVER]))
    depth = data.draw(st.sampled_from([3, 7, 9]))
    made = data.draw(random_forest(max_trees=5, max_depth=depth, missing=(missing,)))
    schedule = SCHEDULES[data.draw(st.sampled_from(list(SCHEDULES)))]
    level = data.draw(st.sampled_from(sorted(levels())))
    rows = edge_rows(made, data.draw(st.integers(0, 150)), seed=3)
    try:
        module = compile_forest(made, schedule, levels()[level])
    except ScheduleError as error:
        known = ("categories", "several rules", "tree loops")
        assert any(reason in str(error) for reason in known)
        return
    assert_same_bits(raw_of(module, rows), reference_raw(made, rows), len(rows))
    leaves = made.source_node[reference_leaves(made, rows)]
    assert_same_bits(module.apply(rows), leaves, "apply")


test_random_forests = random_test(check_random, 4, 1000)
