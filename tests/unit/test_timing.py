from __future__ import annotations

import pytest

from skforge.cli.report import Timing, interleave


class Machine:
    """A clock that calls move forward."""

    def __init__(self):
        self.now = 0.0
        self.log = []

    def call(self, name, seconds):
        def run():
            self.log.append(name)
            self.now += seconds() if callable(seconds) else seconds

        return run

    def clock(self):
        return self.now


def test_medians_and_ratios():
    machine = Machine()
    calls = {"fast": machine.call("fast", 0.001), "slow": machine.call("slow", 0.008)}
    timing = interleave(calls, rounds=5, seconds=1.0, clock=machine.clock)
    assert timing.seconds("fast") == pytest.approx(0.001)
    assert timing.speedup("fast", over="slow") == pytest.approx(8.0)
    assert {name: len(s) for name, s in timing.samples.items()} == {
        "fast": 5,
        "slow": 5,
    }


def test_rounds_are_interleaved_and_rotate():
    machine = Machine()
    calls = {name: machine.call(name, 1.0) for name in "abc"}
    interleave(calls, rounds=3, seconds=0.0, clock=machine.clock)
    warm_up = len("aabbcc")
    assert "".join(machine.log[warm_up:]) == "abcbcacab"


def test_ratios_are_taken_within_a_round():
    # The machine changes its speed between rounds: the ratio of medians is 4.
    timing = Timing({"a": (1.0, 4.0, 2.0), "b": (3.0, 12.0, 8.0)})
    assert timing.speedup("a", over="b") == 3.0


def test_short_calls_are_repeated_to_fill_their_slot():
    machine = Machine()
    interleave(
        {"a": machine.call("a", 1e-6)}, rounds=10, seconds=1.0, clock=machine.clock
    )
    assert machine.now == pytest.approx(1.0, rel=0.6)


def test_slow_calls_still_get_three_rounds():
    machine = Machine()
    timing = interleave(
        {"a": machine.call("a", 100.0)}, rounds=50, seconds=1.0, clock=machine.clock
    )
    assert len(timing.samples["a"]) == 3
