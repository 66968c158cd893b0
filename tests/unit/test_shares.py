"""How many threads run a batch, and by which kernel, for stated estimates."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from skforge.engine import shares
from skforge.engine.shares import Shares
from skforge.forest.forest import Forest
from skforge.modules.compiled import compile_forest
from skforge.schedule.families import bitsliced_schedule, lanes_schedule
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import drawn, forest

FOREST = drawn(100, 6)
SMALL, LARGE = bitsliced_schedule(64), bitsliced_schedule(512)
LANES = lanes_schedule(parallel=True)
Cost = Callable[[Any], Any]


class Stated:
    """An estimate that returns given microseconds."""

    def __init__(self, costs: dict[Schedule, Cost]) -> None:
        self._costs = costs

    def seconds(self, schedule: Schedule, n_rows: Any) -> Any:
        return self._costs[schedule](np.asarray(n_rows, float)) * 1e-6


def blocks(rows: int, microseconds: float) -> Cost:
    return lambda n: np.ceil(n / rows) * microseconds


def a_row(microseconds: float) -> Cost:
    return lambda n: n * microseconds


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls use 64 threads wherever the tests run."""
    monkeypatch.setattr(shares, "thread_limit", lambda: lambda: 64)
    monkeypatch.setattr(shares, "resolve_n_jobs", lambda n_jobs: n_jobs)


def stated(ranges: dict[int, tuple[Schedule, Cost]], forest: Forest = FOREST) -> Shares:
    """Return the shares of ranges that begin at these rows."""
    schedules = [schedule for schedule, _ in ranges.values()]
    estimate: Any = Stated(dict(ranges.values()))
    return Shares(forest, schedules, list(ranges), lambda: estimate)


def test_half_a_block_costs_a_whole_one() -> None:
    found = stated({1: (SMALL, blocks(64, 100)), 129: (LARGE, blocks(512, 100))})
    assert found.of(512, 2) == (1, 1)
    assert found.of(256, 2) == (1, 1)
    assert found.of(1024, 2) == (1, 2)
    assert found.of(1024, 1) == found.of(1024, None) == (1, 1)


def test_threads_take_the_kernel_for_their_own_rows() -> None:
    found = stated({1: (SMALL, blocks(64, 20)), 257: (LARGE, blocks(512, 100))})
    assert found.of(512, 2) == (1, 1)  # 4 small blocks each: 80 us, and a wake
    assert found.of(512, 8) == (0, 8)  # one each
    assert found.of(300, 4) == (0, 3)  # 2 each on three threads as on four
    assert found.of(128, 2) == (0, 2)


def test_a_thread_must_be_worth_its_wake() -> None:
    found = stated({1: (LANES, a_row(1))})
    assert found.of(8, 2) == (0, 1)  # 4 + 5 us instead of 8
    assert found.of(12, 2) == (0, 1)  # 6 + 5
    assert found.of(24, 2) == (0, 2)  # 12 + 5
    assert found.of(24, 3) == (0, 2)  # 8 + 10 for three
    assert found.of(10_000, 64) == (0, 64)


def test_no_kernel_is_better_than_that_of_its_range() -> None:
    """Ranges may be measured: what the estimate says against them does not count."""
    table = {1: (SMALL, blocks(64, 100)), 129: (LARGE, blocks(512, 100))}
    assert stated(table).of(128, 2) == (0, 2)
    table[65] = LARGE, blocks(512, 100)
    assert stated(dict(sorted(table.items()))).of(128, 2) == (1, 1)


def test_a_range_keeps_its_kernel_unless_another_is_clearly_better() -> None:
    medium = bitsliced_schedule(128)
    for small, number in ((85, 1), (30, 0)):
        table = {1: (medium, blocks(128, small)), 129: (LARGE, blocks(512, 100))}
        found = stated(table).of(1024, 8)  # a block of 128 rows each, or two of 512
        assert found == (number, 2 if number else 8)


def test_kernels_without_parallel_loops_stay_alone() -> None:
    alone = Schedule()
    found = stated({1: (alone, a_row(10))})
    assert found.most_threads(8) == 1 and found.of(1 << 20, 8) == (0, 1)
    found = stated({1: (LANES, a_row(10)), 100: (alone, a_row(8))})
    assert found.of(1 << 20, 2) == (0, 2)  # 5 us a row
    assert found.of(50, 2) == (0, 2)


def test_schedules_that_are_not_estimated() -> None:
    trees = Schedule().reorder("tree", "batch").parallel("tree")
    for schedule in (trees, Schedule().tile("batch", "b0", "b1", -4).parallel("b0")):
        found = stated({1: (schedule, lambda n: n + np.inf)})
        assert found.of(1, 4) == (0, 1) and found.of(100_000, 4) == (0, 4)
        ranges = {1: (LANES, a_row(1)), 100: (schedule, lambda n: n + np.inf)}
        assert stated(ranges).of(100_000, 4) == (1, 4)  # kernels are not compared
    gpu = Shares(FOREST, [Schedule.preset("rapids")] * 2, [1, 100], None)
    assert gpu.of(2, 8) == (0, 1) and gpu.of(100_000, 8) == (1, 8)


def test_a_forest_without_trees_stays_alone() -> None:
    found = stated({1: (LANES, a_row(1))}, forest("no trees"))
    assert found.of(1 << 20, 8) == (0, 1) and found.most_threads(8) == 1


def test_no_more_threads_than_openmp_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    found = stated({1: (SMALL, blocks(64, 20)), 257: (LARGE, blocks(512, 100))})
    monkeypatch.setattr(shares, "thread_limit", lambda: lambda: 2)
    assert found.of(512, 8) == (1, 1)  # as for n_jobs=2
    monkeypatch.setattr(shares, "thread_limit", lambda: lambda: 1)
    assert found.of(100_000, 8) == (1, 1)
    monkeypatch.setattr(shares, "thread_limit", lambda: None)
    assert found.of(512, 8) == (0, 8)


@pytest.mark.parametrize("threads", [2, 16])
def test_shares_of_rows_and_trees(threads: int) -> None:
    """Of 32 rows, 16 threads have a sixteenth each: 2 tiles of trees of 8 rows."""
    small = Schedule.preset("small-batch")
    (loop,) = Shares(FOREST, [small], [1], None).loops.values()
    assert loop.largest(np.float64(32), np.float64(threads)) == 32 / threads
    codes = small.quantize("b0")  # a block's codes are for one thread
    (loop,) = Shares(FOREST, [codes], [1], None).loops.values()
    assert loop.largest(np.float64(32), np.float64(16)) == 8


def test_a_module_goes_without_looking_for_circles() -> None:
    module = compile_forest(FOREST, bitsliced_schedule(64), n_jobs=2)
    module.threads(100_000)
    gone = weakref.ref(module)
    gc.disable()
    try:
        del module
        assert gone() is None
    finally:
        gc.enable()
