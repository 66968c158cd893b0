from __future__ import annotations

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from skforge.cli import report
from skforge.cli.report import interleave


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


def test_a_sample_of_each_call_and_round():
    machine = Machine()
    calls = {"fast": machine.call("fast", 0.001), "slow": machine.call("slow", 0.008)}
    times = interleave(calls, rounds=5, seconds=1.0, clock=machine.clock)
    assert times["fast"] == pytest.approx([0.001] * 5)
    assert times["slow"] == pytest.approx([0.008] * 5)


def test_rounds_are_interleaved_and_rotate():
    machine = Machine()
    calls = {name: machine.call(name, 1.0) for name in "abc"}
    interleave(calls, rounds=3, seconds=0.0, clock=machine.clock)
    warm_up = len("aabbcc")
    assert "".join(machine.log[warm_up:]) == "abcbcacab"


def test_ratios_are_taken_within_a_round(monkeypatch):
    # The machine changes its speed between rounds: the ratio of medians is 4.
    times = {"skforge f": [1.0, 4.0, 2.0], "source f": [3.0, 12.0, 8.0]}
    times = {name: np.array(samples) for name, samples in times.items()}
    monkeypatch.setattr(report, "interleave", lambda calls, seconds: times)
    text = StringIO()
    pair = report.Pair("f", len, "its f", len)
    report.speed(Console(width=200, file=text), [pair], np.zeros((4, 1)), [4])
    assert text.getvalue().split()[-1] == "3.00×"


def test_short_calls_are_repeated_to_fill_their_slot():
    machine = Machine()
    interleave(
        {"a": machine.call("a", 1e-6)}, rounds=10, seconds=1.0, clock=machine.clock
    )
    assert machine.now == pytest.approx(1.0, rel=0.6)


def test_slow_calls_still_get_three_rounds():
    machine = Machine()
    times = interleave(
        {"a": machine.call("a", 100.0)}, rounds=50, seconds=1.0, clock=machine.clock
    )
    assert len(times["a"]) == 3
