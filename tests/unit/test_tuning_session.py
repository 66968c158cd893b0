"""A search on a machine that is none: what it tries, keeps, refuses and chooses."""

from __future__ import annotations

import math
import threading
import zlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from skforge.compiler.defaults.cpu import default_schedules
from skforge.compiler.target import Target
from skforge.exceptions import TuningError, TuningWarning
from skforge.schedule.schedule import Schedule
from skforge.tuning import (
    Candidate,
    Random,
    Round,
    ScheduleSpace,
    SuccessiveHalving,
    Tuner,
    TuningResult,
)
from skforge.tuning.measure import builds
from skforge.tuning.measure.measure import LoweredCandidate
from tests.exactness.forests import drawn
from tests.tuning_tools import FakeMachine

FOREST = drawn(20, 4)
TARGET = Target.x86_64("v4")
DEFAULTS = default_schedules(FOREST, TARGET)
FAST = Schedule().interleave("tree", 7)
SLOW = Schedule().interleave("tree", 3)
ONE_SIZE = {(1, 1): 1}


class Listed:
    """A strategy that proposes given schedules, and keeps what it is told."""

    name = "listed"

    def __init__(self, *schedules):
        self.schedules, self.told = schedules, []

    def rounds(self, problem):
        self.problem = problem
        candidates = [
            Candidate(s, {"name": repr(s)}, self.name) for s in self.schedules
        ]
        self.told.extend((yield Round(candidates)))


def times(table, default=1e-5):
    """Return what each schedule takes a call, whatever the batch."""
    return lambda schedule, n_rows: table.get(schedule, default)


def search(machine, strategy, **options):
    options = {"ranges": ONE_SIZE, "target": TARGET, "random_state": 0, **options}
    space = options.pop("space", None)
    return Tuner(strategy, space, measurer=machine).tune(FOREST, **options)


def status(result, schedule):
    return next(t.status for t in result.trials if t.schedule == schedule)


def test_the_fastest_candidate_is_chosen():
    machine = FakeMachine(FOREST, times({FAST: 5e-6, SLOW: 1.2e-5}))
    result = search(machine, Listed(SLOW, FAST))
    assert result.table == {(1, 1): FAST}
    trial = result.best[1, 1]
    assert (trial.status, trial.relative) == ("measured", pytest.approx(0.5))
    assert trial.seconds == pytest.approx(5e-6)
    assert result.speedup(1) == pytest.approx(2.0)
    assert result.complete


def test_the_default_stays_unless_something_is_clearly_faster():
    machine = FakeMachine(FOREST, times({FAST: 0.98e-5, SLOW: 2e-5}))
    result = search(machine, Listed(SLOW, FAST))
    assert result.table == {(1, 1): DEFAULTS[min(DEFAULTS)]}
    assert result.trials[0].candidate.origin == "default"


def test_a_schedule_that_is_slower_at_an_end_of_its_range_is_not_chosen_there():
    (_, high), default = min(DEFAULTS.items())

    def seconds(schedule, n_rows):
        if schedule == FAST:  # the middle and the upper end gain, one row loses
            return 3e-5 if n_rows == 1 else 1e-6 * n_rows
        return 1e-5 + 1e-6 * n_rows

    machine = FakeMachine(FOREST, seconds)
    result = search(machine, Listed(FAST), ranges=None)
    assert high is not None and high > 2
    table = dict(result.table)
    assert table[min(table)] == default
    assert any(s == FAST for s in table.values())
    ends = sorted(table)
    assert ends[0][0] == 1 and ends[-1][1] is None
    assert all(a[1] + 1 == b[0] for a, b in pairwise(ends))


def test_noise_does_not_decide():
    machine = FakeMachine(FOREST, times({FAST: 5e-6}), noise=0.3)
    assert search(machine, Listed(SLOW, FAST)).table == {(1, 1): FAST}


def test_hopeless_candidates_are_given_up_after_a_look():
    machine = FakeMachine(FOREST, times({SLOW: 1e-3}))
    result = search(machine, Listed(SLOW))
    (trial,) = [t for t in result.trials if t.schedule == SLOW]
    assert (trial.status, len(trial.samples)) == ("stopped", 1)
    assert trial.reason == "one call took 100.0 times as long as the default's"
    poor = FakeMachine(FOREST, times({SLOW: 2e-5}))
    (trial,) = [t for t in search(poor, Listed(SLOW)).trials if t.schedule == SLOW]
    assert (trial.status, len(trial.samples)) == ("stopped", 2)


def test_wrong_predictions_never_win():
    machine = FakeMachine(FOREST, times({FAST: 1e-7}))
    machine.wrong.add(FAST)
    result = search(machine, Listed(FAST))
    assert FAST not in result.table.values()
    (trial,) = [t for t in result.trials if t.schedule == FAST]
    assert trial.status == "wrong"
    assert trial.reason.startswith("in a batch of 1, row 0 gives ")


def test_a_failure_is_a_row_with_its_reason():
    machine = FakeMachine(FOREST, times({FAST: 5e-6}))
    machine.broken[SLOW] = RuntimeError("LLVM says no")
    unroll = Schedule().unroll("tree")
    unroll_all = Schedule().unroll("batch")
    result = search(machine, Listed(SLOW, unroll_all, unroll, FAST))
    rows = {t.schedule: t for t in result.trials}
    assert rows[SLOW].status == "failed"
    assert rows[SLOW].reason == "RuntimeError: LLVM says no"
    assert rows[unroll_all].status == "illegal"
    assert "depends on the batch" in rows[unroll_all].reason
    assert result.table == {(1, 1): FAST}


def test_padding_beyond_memory_is_not_tried(monkeypatch):
    deep = Schedule().unroll_walk("tree", 64)
    machine = FakeMachine(FOREST, times({}))
    monkeypatch.setattr(builds, "CANDIDATE_BYTES", 10_000)
    result = search(machine, Listed(deep))
    (trial,) = [t for t in result.trials if t.schedule == deep]
    assert trial.status == "too large"
    assert deep not in machine.built


def test_a_late_compilation_does_not_disturb_the_next():
    """Its thread keeps its code while another counts the bytes of all."""

    class Size(int):
        def __radd__(self, other):
            if late.ident is None:
                late.start()
                late.join(0.1)
            return int(self) + other

    builder = builds.CandidateBuilder(FOREST, FakeMachine(FOREST, times({})))
    other = LoweredCandidate(SLOW, "slow", 1.0, 8, None)
    late = threading.Thread(target=builder._keep, args=(other, None))
    builder._keep(LoweredCandidate(FAST, "fast", 1.0, Size(8), None), None)
    late.join()
    assert list(builder._runners) == ["fast", "slow"]


def test_what_spills_is_a_row_and_never_built_but_for_the_default():
    machine = FakeMachine(FOREST, times({SLOW: 1e-7, FAST: 5e-6}))
    machine.spills = dict.fromkeys((SLOW, *DEFAULTS.values()), "keeps 8 bytes")
    result = search(machine, Listed(SLOW, FAST))
    (trial,) = [t for t in result.trials if t.schedule == SLOW]
    assert (trial.status, trial.reason) == ("spills", "keeps 8 bytes")
    assert not trial.samples
    assert SLOW not in machine.built
    assert result.counts() == {"measured": 2, "spills": 1}
    assert result.table == {(1, 1): FAST}


def test_equal_code_is_compiled_and_timed_once():
    machine = FakeMachine(FOREST, times({FAST: 5e-6}))
    twin = Schedule().tile("batch", "b0", "b1", 64).interleave("tree", 7)
    machine.same = {FAST: "one", twin: "one"}
    result = search(machine, Listed(FAST, twin))
    assert status(result, twin) == "same code"
    assert FAST in machine.built and twin not in machine.built
    rows = {t.schedule: t for t in result.trials}
    assert rows[twin].reason == f"as {FAST!r}"


@pytest.mark.filterwarnings("ignore::skforge.exceptions.TuningWarning")
@pytest.mark.parametrize("compile_seconds", [0.02, 0.3, 3.0])
@pytest.mark.parametrize("budget", [0.4, 2.0])
def test_the_budget_is_kept(budget, compile_seconds):
    machine = FakeMachine(FOREST, times({}), compile_seconds=compile_seconds)
    start = machine.now
    space = ScheduleSpace.cpu(threads=False)
    result = search(machine, "exhaustive", budget=budget, ranges=None, space=space)
    taken = machine.now - start
    # What the first compilation takes cannot be known before.
    assert taken <= (budget if compile_seconds < budget else compile_seconds + 0.02)
    assert result.seconds == pytest.approx(taken)
    assert not result.complete
    if compile_seconds == 0.02 and budget == 2:
        assert taken > 0.7 * budget


def test_a_budget_too_short_to_measure_falls_back_to_the_defaults():
    machine = FakeMachine(FOREST, times({}))
    machine.lower_seconds = 1.0
    with pytest.warns(TuningWarning, match="too short to measure a single") as seen:
        result = search(machine, Listed(FAST), budget=0.01, ranges=None)
    assert {w.filename for w in seen} == {__file__}
    assert set(result.table.values()) == set(DEFAULTS.values())
    assert {t.status for t in result.trials} == {"no time"}


def test_an_interruption_returns_the_best_so_far():
    machine = FakeMachine(FOREST, times({FAST: 5e-6}))
    machine.interrupt_after = 2
    with pytest.warns(TuningWarning, match="interrupted; the best schedules") as seen:
        result = search(machine, Listed(FAST, SLOW))
    assert [w.filename for w in seen] == [__file__]
    assert result.table == {(1, 1): FAST}
    assert not result.complete
    assert result.notes[0] == "interrupted: these are the best schedules so far"


def test_the_same_seed_gives_the_same_result():
    def found(seed):
        machine = FakeMachine(
            FOREST,
            lambda s, n: 1e-6 * (2 + math.sin(zlib.crc32(repr(s).encode()) % 97)),
            noise=0.02,
        )
        how = {"ranges": {(1, 1): 1, (8, 64): 64}, "space": ScheduleSpace.cpu_paper()}
        result = search(machine, Random(6), random_state=seed, **how)
        return [t.schedule for t in result.trials], result.to_json()

    first = found(3)
    assert found(3) == first
    assert found(4)[0] != first[0]


def test_halving_measures_the_better_ones_more_often():
    space = ScheduleSpace.cpu(threads=False)
    machine = FakeMachine(FOREST, lambda s, n: 1e-6 * (1 + len(repr(s)) / 400))
    result = search(
        machine, SuccessiveHalving(9, 3), space=space, budget=100, ranges={(8, 8): 8}
    )
    usable = sorted(
        (t for t in result.trials if t.status == "measured"),
        key=lambda t: len(t.samples),
    )
    few, many = usable[0], usable[-1]
    assert len(few.samples) < len(many.samples)
    assert many.relative <= few.relative


def test_spaces_without_a_legal_point_are_an_error():
    illegal = ScheduleSpace.of([Schedule().unroll("batch")])
    with pytest.raises(TuningError, match="none of the 1 schedules tried is legal"):
        search(FakeMachine(FOREST, times({})), "exhaustive", space=illegal)
    empty = ScheduleSpace.cpu().where(lambda walk: False)
    with pytest.raises(TuningError, match="the space 'cpu' is empty"):
        search(FakeMachine(FOREST, times({})), "random", space=empty)


def test_too_few_rows_are_filled_up_and_missing_ones_replaced():
    machine = FakeMachine(FOREST, times({}))
    row = np.zeros((1, FOREST.n_features), FOREST.input_dtype)
    result = search(machine, Listed(FAST), rows=row)
    assert result.notes == (
        "the sample has 1 row; the others are random, around the model's thresholds",
    )
    result = search(machine, Listed(FAST), rows=np.full_like(row, np.nan))
    assert result.notes[0].startswith("all values of the sample are missing")


def test_results_are_kept_as_text_bit_by_bit():
    machine = FakeMachine(FOREST, times({FAST: 5e-6, SLOW: 1e-3}), noise=0.1)
    result = search(machine, Random(9), ranges=None)
    again = TuningResult.from_json(result.to_json())
    assert again.to_json() == result.to_json()
    assert again.table == result.table
    assert again.summary() == result.summary()


def test_a_result_says_what_share_of_exhaustive_it_took():
    space = ScheduleSpace.of([Schedule().interleave("tree", n) for n in range(1, 51)])
    whole = {(1, 4): 4, (5, None): 64}
    machine = FakeMachine(FOREST, times({}))
    result = search(machine, Random(5), space=space, ranges=whole, budget=50)
    assert (result.space, result.n_points) == ("given, 50 schedules", 100)
    assert (result.n_tried, result.share_tried) == (10, 0.1)
    assert result.exhaustive_seconds == pytest.approx(10 * result.trying_seconds)
    # Not compiled twice for the second size; seven looks of 2 ms and the default's.
    assert 10 * 0.01 + 5 * 0.05 < result.trying_seconds < result.seconds
    line = next(t for t in result.summary().splitlines() if t.startswith("tried"))
    share = round(result.exhaustive_seconds / result.seconds)
    assert line == (
        "tried 10 of 100 points (1/10); trying all would take an estimated "
        f"{result.exhaustive_seconds:.3g} s, and this search took 1/{share} of that"
    )
    both = result.beside(result)
    assert (both.n_points, both.n_tried, both.share_tried) == (200, 20, 0.1)
    assert TuningResult.from_json(both.to_json()).n_points == 200


def test_no_share_is_told_where_points_are_too_many_to_count(monkeypatch):
    monkeypatch.setattr("skforge.tuning.space.space.LISTED", 20)
    space = ScheduleSpace(
        {name: range(1, 41) for name in "abcd"},
        lambda point, shape: Schedule().interleave("tree", point["a"]),
    )
    result = search(FakeMachine(FOREST, times({})), Random(5), space=space)
    assert (result.n_points, result.share_tried) == (None, None)
    assert result.exhaustive_seconds is None
    assert "tried" not in result.summary()


def test_summary_and_frame():
    machine = FakeMachine(FOREST, times({FAST: 5e-6, SLOW: 1e-3}))
    result = search(machine, Listed(SLOW, FAST), budget=4)
    head, table = result.summary().split("\n\n", 1)
    assert head.splitlines()[-1] == "trials: 2 measured, 1 abandoned early"
    assert table.splitlines() == [
        "The chosen schedules, compared with the default",
        "  batch size  timed at  per row           quartiles  speedup",
        "       1 row     1 row  5.00 µs  5.00 µs to 5.00 µs    2.00×",
        "",
        "Schedules",
        f"  1 row: {FAST!r}",
        "",
        "For 1 of 1 range of batch sizes, another schedule was 2.00 times as fast as "
        "the default.",
        "note: no sample was given; the rows are random",
    ]
    slower = search(machine, Listed(SLOW), budget=4)
    assert slower.conclusion == (
        "No schedule was faster than the defaults, so these stay."
    )
    assert replace(slower, trials=()).conclusion == "Nothing was timed."
    frame = result.to_pandas()
    assert list(frame["status"]) == ["measured", "stopped", "measured"]
    assert frame["param_name"][2] == repr(FAST)
    assert result.counts() == {"measured": 2, "stopped": 1}
