"""The harness of the benchmarks: rounds, tables, and pages that follow from JSON."""

from __future__ import annotations

import doctest
import json
from dataclasses import dataclass, field

from benchmarks import harness


def test_examples_are_true():
    found = doctest.testmod(harness)
    assert found.attempted >= 5 and not found.failed


def test_a_sample_fills_a_slot_after_a_call_that_is_not_timed():
    now, rows_seen = [0.0], []

    def call(rows):
        rows_seen.append(rows)
        now[0] += 0.5

    sample = harness.sampler(call, ["a", "b"], 2.0, lambda: now[0])
    assert len(rows_seen) == harness.HABIT
    rows_seen.clear()
    assert sample() == 0.5
    assert rows_seen == ["b", "a", "b", "a", "b"]


def test_a_call_longer_than_the_slot_is_made_once_a_sample():
    now, calls = [0.0], []

    def call(rows):
        calls.append(rows)
        now[0] += 3.0

    sample = harness.sampler(call, ["a"], 2.0, lambda: now[0])
    assert (sample(), len(calls)) == (3.0, 3)


def test_systems_take_turns_in_another_order_each_round():
    order = []
    calls = {name: lambda name=name: order.append(name) or 1.0 for name in "ab"}
    assert harness.take_turns(calls, 3) == {"a": [1.0] * 3, "b": [1.0] * 3}
    assert "".join(order) == "abbaab"


@dataclass(frozen=True)
class Cell:
    system: str
    seconds: dict[int, float] = field(default_factory=dict)


def test_a_page_is_written_from_the_stored_numbers(tmp_path):
    def page(document):
        (cell,) = harness.records(Cell, document["cells"])
        return f"{cell.system}: {cell.seconds[64]}\n"

    document = {"cells": [{"system": "ours", "seconds": {64: 0.12349}, "old": 1}]}
    rounded = harness.rounded(document)
    assert harness.rounded([Cell("ours", {64: 0.12349})]) == [
        {"system": "ours", "seconds": {64: 0.1235}}
    ]
    assert harness.publish(None, "times", {"cells": [Cell("a", {64: 1})]}, page) == (
        "a: 1\n"
    )
    harness.publish(tmp_path / "new", "times", rounded, page, "system")
    assert (tmp_path / "new" / "times.md").read_text() == "ours: 0.1235\n"
    stored = (tmp_path / "new" / "times.json").read_text()
    assert stored.startswith('{"cells":[\n{"system"') and stored.endswith("}\n")
    assert harness.stored(tmp_path / "new", "times") == json.loads(stored)
    assert harness.stored(tmp_path, "times") == {}
    assert harness.publish(None, "times", document, page) == "ours: 0.12349\n"
