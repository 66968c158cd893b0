"""Parts of a search: where ranges are cut, clocks, samples, progress, plots."""

from __future__ import annotations

import io
from multiprocessing import current_process

import numpy as np
import pytest

from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError
from skforge.schedule.schedule import Schedule
from skforge.tuning.measure import bench as rows
from skforge.tuning.measure.bench import Bench, SampleRows
from skforge.tuning.measure.measure import KernelMeasurer
from skforge.tuning.plots import sensitivity_matrix
from skforge.tuning.result import TuningResult
from skforge.tuning.search.ranges import choose, merged, plan_ranges
from skforge.tuning.search.run import Progress
from skforge.tuning.search.trial import Candidate, Trial
from tests.exactness.forests import drawn

FOREST = drawn(10, 4)
A, B = Schedule(), Schedule().interleave("tree", 2)


def _trial(schedule, n_rows, relative):
    candidate = Candidate(schedule, {}, "x")
    return Trial((n_rows, n_rows), n_rows, candidate, "measured", "", (1e-6,), relative)


# --------------------------------------------------------------- dispatch


@pytest.mark.parametrize(
    ("batch", "sizes", "main"),
    [
        ((1, 1), (1,), 1),
        ((2, 15), (2, 5, 15), 5),
        ((36, 128), (36, 68, 128), 68),
        ((257, None), (257, 1026, 4096), 4096),
        ((4097, None), (4097, 8194, 16388), 16388),
    ],
)
def test_sizes_that_stand_for_a_range(batch, sizes, main):
    (plan,) = plan_ranges({batch: A}, None, 1 << 20)
    assert (plan.sizes, plan.main) == (sizes, main)


def test_a_range_is_cut_where_times_meet():
    # A: 10 + n, B: 40 + 0.5 n; they meet at 60
    seconds = {1: 11.0, 10: 20.0, 100: 110.0}
    ratios = {n: {B: (40 + 0.5 * n) / (10 + n)} for n in seconds}
    table = choose((1, 100), A, seconds, ratios)
    assert table == {(1, 60): A, (61, 100): B}


def test_small_gains_do_not_cut_a_range():
    seconds = {1: 1.0, 100: 1.0}
    assert choose((1, 100), A, seconds, {1: {B: 1.2}, 100: {B: 0.98}}) == {(1, 100): A}
    assert choose((1, 100), A, seconds, {1: {B: 0.9}, 100: {B: 0.9}}) == {(1, 100): B}
    assert choose((1, 100), A, seconds, {1: {B: 0.5}, 100: {}}) == {(1, 100): A}
    assert choose((1, 100), A, {}, {}) == {(1, 100): A}


def test_batches_are_bounded_by_memory():
    plans = plan_ranges({(1, 64): A, (65, None): B}, None, 1 << 20)
    assert [plan.sizes for plan in plans] == [(1, 8, 64), (65, 516, 4096)]
    narrow = plan_ranges({(1, 64): A, (65, None): B}, None, 16)
    assert [(plan.sizes, plan.main) for plan in narrow] == [
        ((1, 8, 16), 8),
        ((16,), 16),
    ]


def test_rows_that_are_dear_to_draw_repeat(monkeypatch):
    monkeypatch.setattr(rows, "DRAWN_VALUES", 20 * FOREST.n_features)
    sample = SampleRows(FOREST, None)
    taken = sample.take(50)
    assert len(taken) == 50
    assert np.array_equal(taken[:20], taken[20:40], equal_nan=True)
    assert len(np.unique(taken[:20], axis=0)) == 20


def test_neighbours_with_one_schedule_are_one_range():
    table = {(1, 1): A, (2, 9): A, (10, 20): B, (21, None): A}
    assert merged(table) == {(1, 9): A, (10, 20): B, (21, None): A}


def test_equal_code_has_one_digest():
    measurer = KernelMeasurer(FOREST, Target.host(), "exact", None)
    whole = Schedule().interleave("tree", 10)
    assert (
        measurer.lower(whole).digest
        == measurer.lower(Schedule().interleave("tree")).digest
    )
    assert measurer.lower(A).digest != measurer.lower(B).digest
    other = KernelMeasurer(drawn(10, 5), Target.host(), "exact", None)
    assert measurer.lower(A).digest != other.lower(A).digest


class Steps:
    """A runner that takes given seconds, one after the other."""

    def __init__(self, *seconds):
        self.seconds, self.calls = seconds, 0

    def time(self, batches, rounds):
        self.calls += 1
        return self.seconds[min(self.calls, len(self.seconds)) - 1]


def test_a_machine_that_slows_down_slows_both():
    drift = [1.0, 1.0, 1.0, 1.0, 1.0, *np.linspace(1, 9, 20)]
    bench = Bench([np.zeros((1, 1))], Steps(*drift), slot=1e-3)
    clock = Steps(1.0, *(0.5 * np.linspace(1, 9, 20)))
    assert bench.compare(clock, 9, 1.0).relative == pytest.approx(0.5, rel=0.3)


def test_a_cold_first_look_is_not_the_last():
    bench = Bench([np.zeros((1, 1))], Steps(1.0), slot=1e-3)
    assert bench.compare(Steps(100.0, 0.5), 5, 1.0).relative == 0.5
    assert bench.compare(Steps(100.0, 90.0), 5, 1.0).stopped


def test_a_first_look_in_a_slow_moment_is_not_the_last():
    bench = Bench([np.zeros((1, 1))], Steps(*[1.0] * 5, 9.0, 9.0, 1.0), slot=1e-3)
    assert bench.compare(Steps(9.0, 9.0, 0.5), 5, 1.0).relative == 0.5


# --------------------------------------------------------------- progress


def test_a_log_has_a_line_for_each_range():
    stream = io.StringIO()
    with Progress(1, 5.0, stream) as progress:
        progress.tell(_trial(B, 1, 0.5), 3, 0.5, 1.0)
        progress.tell(_trial(A, 1, 0.9), 4, 0.5, 2.0)
        progress.tell(_trial(A, 2, 1.0), 5, 1.0, 3.0)
    assert stream.getvalue().splitlines() == [
        "tuning: 1 row, 4 trials, 2.00 times as fast as the default, 2.0 s",
        "tuning: 2 rows, 5 trials, 1.00 times as fast as the default, 3.0 s",
    ]
    silent = io.StringIO()
    with Progress(0, 5.0, silent) as progress:
        progress.tell(_trial(B, 1, 0.5), 3, 0.5, 1.0)
    assert silent.getvalue() == ""


def test_with_two_each_candidate_has_its_time_and_its_schedule():
    stream = io.StringIO()
    slow = Trial((2, 9), 5, Candidate(A), "stopped", "slow.", (3e-3,), 2.0)
    wrong = Trial((2, 9), 5, Candidate(None, {"walk": "rows"}), "illegal", "no.\nloop")
    with Progress(2, 5.0, stream) as progress:
        progress.tell(_trial(B, 1, 0.5), 3, 0.5, 1.0)
        progress.tell(slow, 4, 1.0, 2.0)
        progress.tell(wrong, 5, 1.0, 3.0)
    assert stream.getvalue().splitlines() == [
        f"tuning: 1 row: 1.00 µs, 2.00 times as fast as the default: {B!r}",
        "tuning: 1 row, 3 trials, 2.00 times as fast as the default, 1.0 s",
        f"tuning: 5 rows: 3.00 ms, 0.50 times as fast as the default, slow: {A!r}",
        "tuning: 5 rows: illegal, no: {'walk': 'rows'}",
        "tuning: 2 to 9 rows, 5 trials, 1.00 times as fast as the default, 3.0 s",
    ]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("verbose", "stream", "seconds", "process", "shown"),
    [
        (None, Terminal, 1.5, "MainProcess", True),
        (None, Terminal, 0.9, "MainProcess", False),
        (None, Terminal, 1.5, "LokyProcess-1", False),
        (None, io.StringIO, 1.5, "MainProcess", False),
        (0, Terminal, 1.5, "MainProcess", False),
    ],
)
def test_a_long_search_shows_a_bar_to_who_looks(
    verbose, stream, seconds, process, shown, monkeypatch
):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(current_process(), "_name", process)
    written = stream()
    with Progress(verbose, 5.0, written) as progress:
        progress.tell(_trial(B, 1, 0.5), 3, 0.5, 0.5)
        assert written.getvalue() == ""
        progress.tell(_trial(B, 1, 0.5), 3, 0.5, seconds)
    assert ("tuning" in written.getvalue()) == shown


# ------------------------------------------------------------------ plots


RESULT = TuningResult(
    {(1, None): A},
    (_trial(A, 1, 1.0), _trial(B, 1, 2.0), _trial(A, 64, 1.0), _trial(B, 64, 0.5)),
    "x",
    "cpu",
)


def test_sensitivity_to_the_batch_size():
    sizes, matrix = sensitivity_matrix(RESULT.trials)
    assert sizes == [1, 64]
    assert matrix.tolist() == [[1.0, 2.0], [2.0, 1.0]]


@pytest.mark.parametrize("kind", ["distribution", "slowdown", "sensitivity"])
def test_plots_are_axes(kind, tmp_path):
    axes = RESULT.plot(kind)
    axes.figure.savefig(tmp_path / "plot.png")
    with pytest.raises(InvalidInputError, match="kind must be one of distribution"):
        RESULT.plot("pie")
    with pytest.raises(InvalidInputError, match="nothing was timed"):
        TuningResult({(1, None): A}, (), "x", "cpu").plot(kind)


def test_damaged_results_are_refused():
    for text in ("", "{}", "[]", '{"version": 9}', RESULT.to_json()[:-9]):
        with pytest.raises(InvalidInputError):
            TuningResult.from_json(text)
