"""Latency benchmark: how often is called, and what happens in between; no times."""

from __future__ import annotations

import sys
import threading
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from threadpoolctl import ThreadpoolController

from skforge import load_forest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import typer
from cases import Case
from conditions import Limits, another_thread, cache_bytes, evictor, time_calls
from latency import Plan, batches_of, checked_systems, measure, some_of

BATCHES = [np.full((1, 1), i) for i in range(64)]
FEW = Limits(24)
PLAN = Plan(("hot",), Limits(1000), Limits(1000, 0.0, 40), 16, 1 << 10, 0.0, 0.0)


@pytest.mark.parametrize("calls", [0, 1, 63, 64, 65, 1000])
def test_as_many_calls_as_asked_each_on_other_rows(calls: int) -> None:
    seen = []
    taken = time_calls(lambda X: seen.append(int(X[0, 0])), BATCHES, Limits(calls))
    assert len(taken) == len(seen) == calls
    assert seen == [i % 64 for i in range(calls)]


def test_a_slow_call_is_made_a_few_times_at_least_and_at_most_as_asked() -> None:
    assert len(time_calls(id, BATCHES, Limits(1000, 0.0, 100))) == 128
    assert len(time_calls(id, BATCHES, Limits(30, 0.0, 100))) == 30


def test_calls_go_on_for_the_least_seconds() -> None:
    limits = Limits(10, least_seconds=1.0)
    assert not limits.reached(10, 0.9, 0.9)
    assert limits.reached(10, 0.9, 1.0)
    assert not limits.reached(9, 0.9, 1.0)
    looks = iter([False] * 3 + [True])

    class Thrice(Limits):
        def reached(self, calls: int, spent: float, elapsed: float) -> bool:
            return next(looks)

    assert len(time_calls(id, BATCHES, Thrice(10))) == 10 + 64 + 64


def test_shares_of_turns_make_all_calls() -> None:
    assert Limits(1000, 4.0, 400, 8.0).share(8) == Limits(125, 0.5, 50, 1.0)
    assert Limits(9).share(8).calls == 2


def test_caches_are_evicted_before_each_call() -> None:
    events: list[str] = []
    time_calls(
        lambda X: events.append("call"), BATCHES, FEW, lambda: events.append("evict")
    )
    assert events == ["evict", "call"] * 24


def test_every_byte_is_read_and_the_last_cache_is_found(tmp_path: Path) -> None:
    assert evictor(1 << 12)() == 512
    assert cache_bytes(tmp_path) == 0
    for index, size in enumerate(["48K", "1024K", "32M"]):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert cache_bytes(tmp_path) == 32 << 20


def test_the_other_thread_calls_with_its_own_rows_until_the_end() -> None:
    seen: set[tuple[int, int]] = set()
    own = [batch.copy() for batch in BATCHES]

    def call(X: object) -> None:
        seen.add((threading.get_ident(), id(X)))

    with another_thread(call, own, ThreadpoolController()) as tally:
        assert tally.calls >= 1
        time_calls(call, BATCHES, FEW)
    assert "other" not in [thread.name for thread in threading.enumerate()]
    seen_by = {me: {i for _, i in g} for me, g in groupby(sorted(seen), lambda x: x[0])}
    mine = seen_by.pop(threading.get_ident())
    ((_, others),) = seen_by.items()
    assert mine <= set(map(id, BATCHES)) and others <= set(map(id, own))


def test_a_failure_of_the_other_thread_is_one() -> None:
    def fails(X: object) -> None:
        raise ValueError("no")

    with (
        pytest.raises(RuntimeError, match="other thread") as caught,
        another_thread(fails, BATCHES, ThreadpoolController()),
    ):
        pass
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("condition", "ours", "theirs"),
    [("evicted", 16, 16), ("busy", 1000, 40)],
)
def test_a_line_for_each_system_with_its_calls(
    condition: str, ours: int, theirs: int
) -> None:
    X = np.random.default_rng(0).random((64, 3), np.float32)
    model = RandomForestClassifier(3, max_depth=3, random_state=0)
    model.fit(X, (X[:, 0] > 0.5).astype(int))
    case = Case("small", model, load_forest(model), X, "trained on")
    systems = checked_systems(case, [1], ())
    lines = measure(case, systems, 1, condition, PLAN)
    assert [line.system for line in lines] == [s.name for s in systems]
    for system, line in zip(systems, lines, strict=True):
        least = ours if system.ours else theirs
        # a few more where the calls between two looks at the time are
        most = least if system.ours else max(least, 8 * 64)
        assert least <= line.calls <= most
        assert (line.others_calls > 0) == (condition == "busy")
        assert line.p50 <= line.p99 <= line.p999 <= line.slowest


def test_batches_are_rows_in_their_own_memory() -> None:
    rows = np.arange(12.0).reshape(4, 3)
    batches = batches_of(rows, 3)
    assert {b.shape for b in batches} == {(3, 3)} and len(batches) == 4096
    wide = batches_of(np.zeros((1, 4000)), 1)  # a megabyte, or 64 batches
    assert len(wide) == 64
    assert all(b.base is None and b.flags.c_contiguous for b in batches)


def test_unknown_names_are_refused() -> None:
    assert some_of("--x", "a, b,a", ("a", "b")) == ("a", "b")
    with pytest.raises(typer.BadParameter, match="'c' is none of"):
        some_of("--x", "a,c", ("a", "b"))
