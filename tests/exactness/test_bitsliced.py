"""Predicates evaluated once for a block, trees as logic over them: the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.forest.arrays import Missing
from skforge.forest.reference import reference_leaves, reference_raw
from skforge.modules.compiled import compile_forest
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
from tests.exactness.forests import MAKERS, forest
from tests.strategies_forest import edge_rows, random_forest
from tests.turns import in_turns, random_test


def blocks(size: int) -> Schedule:
    return (
        Schedule()
        .tile("batch", "b0", "b1", size)
        .reorder("b0", "tree", "b1")
        .cache_predicates("b0")
        .vectorize("b1")
        .represent("bitsliced")
    )


def by_tiles(size: int, trees: int) -> Schedule:
    """Evaluate the predicates of some trees at a time."""
    made = Schedule().tile("batch", "b0", "b1", size).tile("tree", "t0", "t1", trees)
    made = made.reorder("b0", "t0", "t1", "b1").parallel("b0").cache_predicates("t0")
    return made.vectorize("b1").represent("bitsliced")


SCHEDULES = {
    "64": blocks(64),
    "128": blocks(128),
    "256": blocks(256),
    "512": blocks(512).parallel("b0"),
    "1024": blocks(1024),
    "tiles of trees": Schedule()
    .tile("batch", "b0", "b1", 64)
    .tile("tree", "t0", "t1", 3)
    .reorder("b0", "t0", "t1", "b1")
    .cache_predicates("b0")
    .vectorize("b1")
    .represent("bitsliced"),
    "specialized": blocks(128).specialize("tree"),
    "by tiles of trees": by_tiles(512, 3),
    "by single trees": by_tiles(64, 1),
}
#: All but forests of leaves and of several kinds of missing values.
SLICED = [
    name
    for name in MAKERS
    if name
    not in (
        "leaves",
        "one leaf",
        "no trees",
        "double extremes",
        "any missing",
        "categories",
    )
]
EDGES = (0, 1, 63, 64, 65, 127, 129, 511, 513, 1000)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", SLICED)
def test_forests(name: str) -> None:
    sizes = (0, 1, 3) if name == "wide records" else EDGES
    check_exact(name, SCHEDULES["512"], batches=sizes, n_jobs=2, apply=True)
    check_exact(name, SCHEDULES["64"], batches=sizes)
    tiles = SCHEDULES["by tiles of trees"]
    check_exact(name, tiles, batches=sizes, n_jobs=2, apply=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(schedule: str) -> None:
    for name in ("multiclass", "extremes", "double categories", "vector 3"):
        check_exact(name, SCHEDULES[schedule], batches=EDGES)


@pytest.mark.parametrize(
    ("name", "level"),
    in_turns(
        ["extremes", "double categories", "zero missing", "vector 10", "double"],
        ["v2", "v3", "v4"],
    ),
)
def test_x86_64_levels(level: str, name: str) -> None:
    if level not in levels():
        pytest.skip(f"this machine does not run x86-64-{level}")
    for schedule in ("128", "512", "by tiles of trees"):
        target = levels()[level]
        check_exact(name, SCHEDULES[schedule], target=target, batches=(1, 65, 513))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("level", ["v2", "v3", "v4", "aarch64"])
@pytest.mark.parametrize("name", ["scalar", "multiclass", "vector 2", "extremes"])
def test_nothing_is_read_or_written_out_of_bounds(level: str, name: str) -> None:
    target = Target.aarch64() if level == "aarch64" else Target.x86_64(level)
    rows, raw, _ = expected(name)
    for n, schedule in zip(
        (0, 1, 65, 70), [*3 * ["64"], "by single trees"], strict=True
    ):
        given = SCHEDULES[schedule], rows[:n]
        got = interpreted(forest(name), *given, target=target, extra_stride=n % 3)
        assert_same_bits(got, raw[:n], (level, n))


def test_fast_sums_are_within_their_bound() -> None:
    for name in ("multiclass", "vector 3", "averaged"):
        module = compile_forest(forest(name), SCHEDULES["128"], reduction="fast")
        rows, raw, _ = expected(name)
        error = np.abs(raw_of(module, rows).astype(np.float64) - raw)
        assert (error <= rounding_bound(forest(name), rows)).all()


def check_random(data: st.DataObject) -> None:
    """Compare a random forest on this machine, or as an older one runs it."""
    target = data.draw(st.sampled_from(["cpu", *levels().values()]))
    missing = data.draw(st.sampled_from(list(Missing)))
    made = data.draw(random_forest(max_trees=9, max_depth=4, missing=(missing,)))
    if not made.n_predicates:
        return
    schedule = SCHEDULES[data.draw(st.sampled_from(list(SCHEDULES)))]
    n = data.draw(st.integers(0, 700))
    try:
        module = compile_forest(made, schedule, target)
        raw = raw_of(module, edge_rows(made, n, seed=3))
    except ScheduleError as error:
        assert "leave it out" in str(error) or "tree loops" in str(error)
        return
    rows = edge_rows(made, n, seed=3)
    assert_same_bits(raw, reference_raw(made, rows), n)
    leaves = made.source_node[reference_leaves(made, rows)]
    assert_same_bits(module.apply(rows), leaves, "apply")


test_random_forests = random_test(check_random, 4, 1500)
