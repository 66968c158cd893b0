"""The heuristic on CPUs: it times what could win, and stops when nothing could."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise

import pytest

from skforge.compiler.defaults.cpu import default_schedules
from skforge.compiler.target import Target
from skforge.schedule import families
from skforge.tuning import Candidate, Heuristic, Trial, Tuner, cpu
from skforge.tuning import tuner as tuner_module
from skforge.tuning.measure.measure import KernelMeasurer
from skforge.tuning.search.odds import Odds, kind_of
from skforge.tuning.search.ranges import plan_ranges
from tests.exactness.forests import drawn
from tests.tuning_tools import FakeMachine, Stated

FOREST = drawn(100, 6)
TARGET = Target.x86_64("v4")
MANY = {(4096, None): 4096}
BITS = default_schedules(FOREST, TARGET)[max(default_schedules(FOREST, TARGET))]
TILES = families.tiled_schedule(512, 15)

#: An estimated ratio to the default's time at which nothing is worth a trial.
SLOWER = 4.0


def by_kind(table, otherwise):
    """Return what a call takes by the kind of its schedule."""
    kinds = {kind_of(schedule): seconds for schedule, seconds in table.items()}
    return lambda schedule, n_rows: kinds.get(kind_of(schedule), otherwise)


def search(estimated, taken, ranges=MANY, **options):
    machine = FakeMachine(FOREST, taken, compile_seconds=0.01)
    tuner = Tuner(Heuristic(estimate=Stated(estimated)), measurer=machine)
    options = {"target": TARGET, "random_state": 0, "budget": 20.0, **options}
    return machine, tuner.tune(FOREST, ranges=ranges, **options)


def kinds_built(machine):
    return {kind_of(schedule) for schedule in machine.built}


def test_the_automatic_search_compiles_nothing_then(monkeypatch):
    """Without a budget of the user's; kernels are compiled when they are needed."""

    def estimated(schedule, n_rows):
        return 1e-5 if schedule == BITS else 1e-5 * SLOWER

    monkeypatch.setenv("SKFORGE_CACHE", "off")
    monkeypatch.setattr(cpu, "estimate_of", lambda problem: Stated(estimated))
    monkeypatch.setattr(KernelMeasurer, "build", None)
    result = Tuner().tune(FOREST, ranges=MANY, target=TARGET)
    assert result.trials == () and result.complete
    assert result.table == {(4096, None): BITS}
    assert result.notes[0] == (
        "for 4,096 and more rows, no schedule promised enough gain to be worth timing: "
        "nothing was measured there"
    )


def test_a_kind_that_could_win_is_timed_and_its_error_learned():
    """Tiles seem 1.3 times slower. They are 2 times slower: one look is enough."""
    estimated = by_kind({BITS: 1e-5, TILES: 1.3e-5}, 1e-3)

    def blocks(schedule, n_rows):  # blocks of bits seem clearly worse
        block = 1e-5 if schedule == BITS else 2e-5
        return block if kind_of(schedule) == kind_of(BITS) else estimated(schedule, 1)

    machine, result = search(blocks, by_kind({BITS: 1e-5, TILES: 2e-5}, 1e-9))
    assert kinds_built(machine) == {kind_of(BITS), kind_of(TILES)}
    assert len(machine.built) == 2
    assert result.table == {(4096, None): BITS} and result.complete


def test_what_one_range_learned_holds_for_the_others():
    ranges = {(1000, 1000): 1000, (2000, 2000): 2000, (4096, None): 4096}

    def estimated(schedule, n_rows):
        if kind_of(schedule) == kind_of(TILES):
            return 1.1e-5 if schedule == TILES else 1.5e-5
        return 1e-5 if schedule == BITS else 1.0

    machine, result = search(estimated, by_kind({BITS: 1e-5}, 2e-5), ranges)
    assert machine.built == [BITS, TILES]
    tried = [t for t in result.trials if t.candidate.origin != "default"]
    assert [t.n_rows for t in tried] == [1000]


def test_a_kind_that_is_faster_than_it_seems_is_found_and_varied():
    best = families.tiled_schedule(1024, 15)

    def estimated(schedule, n_rows):
        tiles = 1.2e-5 if schedule == TILES else 1.3e-5
        ours = 1e-5 if schedule == BITS else 1.1e-5
        known = {kind_of(TILES): tiles, kind_of(BITS): ours}
        return known.get(kind_of(schedule), 1.0)

    def taken(schedule, n_rows):
        tiles = 2e-6 if schedule == best else 2.4e-6
        return tiles if kind_of(schedule) == kind_of(TILES) else 1e-5

    machine, result = search(estimated, taken, budget=40.0)
    assert result.table == {(4096, None): best}
    assert kinds_built(machine) == {kind_of(BITS), kind_of(TILES)}
    others = [s for s in machine.built if kind_of(s) == kind_of(BITS)]
    assert others == [BITS]  # other blocks of bits can no longer win


def test_a_gain_pays_for_trials_that_are_cheap_enough():
    """Blocks that seem equal gain some percent on average: not worth seconds."""

    def estimated(schedule, n_rows):
        return 1e-5 if kind_of(schedule) == kind_of(BITS) else 1.0

    machine, _ = search(estimated, by_kind({}, 1e-5))
    assert len(machine.built) > 2
    machine = FakeMachine(FOREST, by_kind({}, 1e-5), compile_seconds=2.0)
    tuner = Tuner(Heuristic(estimate=Stated(estimated)), measurer=machine)
    result = tuner.tune(FOREST, ranges=MANY, target=TARGET, budget=10.0)
    assert len(machine.built) == 2
    assert result.complete


def gain(ratio, *, call=1e-3, trials=(), schedule=TILES, best=1.0):
    """Return the mean gain of a schedule, estimated at a ratio to bit slices."""
    known = {BITS: call, schedule: ratio * call}
    stated = Stated(lambda one, n_rows: known.get(one, call))
    odds = Odds(lambda schedules, n: [stated.seconds(s, n) for s in schedules])
    for one, relative in trials:
        odds.gain(one, BITS, 64, 1.0, 1.0)
        candidate = Candidate(one)
        seconds = (relative * call,)
        done = Trial(
            (1, None), 64, candidate, "measured", samples=seconds, relative=relative
        )
        odds.learn(BITS, [done])
    return odds.gain(schedule, BITS, 64, 1.0, best)


BLOCKS = [families.bitsliced_schedule(rows) for rows in (64, 128, 256)]


def test_the_gain_falls_with_the_estimate_and_with_the_best_so_far():
    gains = [gain(ratio) for ratio in (0.5, 0.9, 1.0, 1.2, 1.6, 3.0)]
    assert all(low < high for high, low in pairwise(gains))
    assert gains[0] == pytest.approx(0.44, abs=0.02) and 0 <= gains[-1] < 1e-3
    assert gain(1.0, best=0.7) < gain(1.0) / 3


def test_a_kind_of_its_own_may_differ_more():
    assert gain(1.2) > 3 * gain(1.2, schedule=BLOCKS[0])


def test_calls_that_take_no_time_have_little_to_gain():
    assert gain(0.8, call=1e-8) < 0.1 * gain(0.8)


def test_neighbours_that_brought_nothing_make_others_less_likely():
    first = gain(1.0, schedule=BLOCKS[0])
    same = [(block, 1.0) for block in BLOCKS[1:]]
    slower = [(block, 1.1) for block in BLOCKS[1:]]
    assert gain(1.0, schedule=BLOCKS[0], trials=slower) < first / 2
    assert gain(1.0, schedule=BLOCKS[0], trials=same) < first


def test_ranges_of_the_defaults_count_by_how_often_they_double():
    defaults = {(1, 1): BITS, (2, 63): BITS, (64, None): TILES}
    plans = plan_ranges(defaults, None, 1 << 20)
    assert [plan.share for plan in plans] == pytest.approx([1 / 13, 5 / 13, 7 / 13])
    asked = plan_ranges(defaults, {(1, 8): 8, (9, None): 64}, 1 << 20)
    assert [plan.share for plan in asked] == [0.5, 0.5]


def test_a_search_waits_for_others_as_long_as_it_is_worth(monkeypatch, tmp_path):
    def estimated(schedule, n_rows):
        return 1e-5 if schedule == BITS else 1e-5 * SLOWER

    @contextmanager
    def alone(seconds):
        waits.append(seconds)
        yield False

    waits = []

    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tuner_module, "alone", alone)
    monkeypatch.setattr(cpu, "estimate_of", lambda problem: Stated(estimated))
    result = Tuner().tune(FOREST, ranges=MANY, target=TARGET)
    assert result.trials == () and result.complete and waits == []
    monkeypatch.setattr(cpu, "estimate_of", lambda problem: Stated())
    result = Tuner().tune(FOREST, ranges=MANY, target=TARGET)
    assert result.trials == () and not result.complete
    Tuner(budget=3.0).tune(FOREST, ranges=MANY, target=TARGET)
    assert len(waits) == 2 and 0 < waits[0] < 2 and waits[1] == 3.0


def test_neighbours_that_no_estimate_knows_are_tried_from_the_best_on():
    walk = {"block": 64, "hops": "unroll", "in_flight": 16}

    def estimated(schedule, n_rows):
        text = repr(schedule)
        if schedule == BITS:
            return 1e-5
        known = "interleave" in text and "represent" not in text
        return 1.1e-5 if known and "quantize" not in text else float("inf")

    def taken(schedule, n_rows):
        text = repr(schedule)
        if "interleave" not in text:
            return 1e-5
        return 5e-6 if "array" in text else 8e-6

    machine, result = search(estimated, taken)
    (found,) = result.table.values()
    assert "array" in repr(found) and "interleave" in repr(found), walk
    assert not any("lanes" in repr(s) for s in machine.built)


@pytest.mark.parametrize("n_rows", [1, 64, 4096])
def test_the_estimate_is_asked_for_every_kind(n_rows):
    stated = Stated(lambda schedule, n_rows: 1e-5)
    tuner = Tuner(
        Heuristic(estimate=stated), measurer=FakeMachine(FOREST, by_kind({}, 1e-5))
    )
    tuner.tune(FOREST, ranges={(n_rows, None): n_rows}, target=TARGET, budget=0.1)
    layouts = {kind_of(schedule)[0] for schedule in stated.asked}
    assert {"walk", "lanes", "tiles"} <= layouts
    assert "bitsliced" in layouts
