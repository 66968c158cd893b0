"""What passes of MIR make of directives that meet, of caches and of slots.

``test_directive_counts.py`` counts what each directive changes, in LIR.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given

from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import loops_in
from skforge.forest.reference import reference_raw
from skforge.schedule.schedule import Schedule
from tests.mir_stages import (
    SAMPLE,
    draw_values,
    forest_of,
    hir_of,
    stages_of,
    statements,
)
from tests.oracles.mir_interpreter import Event, interpret_mir
from tests.strategies_schedule import legal_schedules

T = TypeVar("T")


def stages(
    schedule: Schedule,
    reduction: Reduction = "exact",
    shapes: tuple[str, ...] = SAMPLE,
    element: mir.Element = "accumulator",
    **forest: object,
) -> dict[str, mir.Function]:
    made = forest_of(shapes, **forest)  # type: ignore[arg-type]
    return stages_of(hir_of(made, schedule, reduction), element)


def found(function: mir.Function, kind: type[T]) -> list[T]:
    """Return the statements, or the operations of Lets, of a class."""
    every: list[object] = []
    for stmt in statements(function.body):
        every.append(stmt.op if isinstance(stmt, mir.Let) else stmt)
    return [item for item in every if isinstance(item, kind)]


def loop(function: mir.Function, var: str) -> mir.Loop:
    (only,) = (item for item in loops_in(function.body) if item.var == var)
    return only


# --- walks ---------------------------------------------------------------------------


def test_interleave_counts_in_steps_of_the_loop() -> None:
    schedule = Schedule().tile("tree", "t0", "t1", 2).reorder("t1", "batch", "t0")
    function = stages(schedule.interleave("t0", 2))["interleave-walks"]
    gets = [op.index.constant for op in found(function, mir.GetTree)]
    assert gets == [0, 2]


def test_interleave_inside_specialize_walks_at_once_in_every_case() -> None:
    schedule = (
        Schedule().reorder("tree", "batch").specialize("tree").interleave("batch", 4)
    )
    function = stages(schedule)["interleave-walks"]
    walks = found(function, mir.WalkDecisionTree)
    assert [len(walk.rows) for walk in walks] == [4, 1, 4, 1]
    assert {(w.min_depth, w.max_depth) for w in walks} == {(1, 1), (1, 2)}


# --- loops ---------------------------------------------------------------------------


def test_specialize_takes_the_trees_of_an_iteration_together() -> None:
    schedule = Schedule().tile("tree", "t0", "t1", 3).specialize("t0")
    shapes = ("stump", "stump", "stump", "leaf", "stump", "full", "full")
    function = stages(schedule, shapes=shapes)["specialize-depths"]
    (switch,) = found(function, mir.DepthSwitch)
    assert switch.classes == ((0, 2), (1, 1), (2, 2))
    assert [switch.class_of[p] for p in (0, 3, 6)] == [1, 0, 2]


# --- caches --------------------------------------------------------------------------


def blocks(events: list[Event]) -> Iterator[tuple[set[int], set[int], str]]:
    """Yield (cached, used, what) of every iteration that caches."""
    open_: list[dict[str, set[int]]] = []
    for event in events:
        match event.what:
            case "loop":
                open_.append({n: set() for n in ("rows", "trees", "row", "tree")})
            case "rows" | "trees":
                open_[-1][event.what] |= set(range(event.first, event.last))
            case "walk":
                for block in open_:
                    block["row"].add(event.first)
                    block["tree"].add(event.last)
            case "done":
                block = open_.pop()
                for what in ("row", "tree"):
                    if block[f"{what}s"]:
                        yield block[f"{what}s"], block[what], what


CACHED = {
    "rows": Schedule().tile("batch", "b0", "b1", 4).cache("b0"),
    "single rows": Schedule().cache("batch"),
    "trees": Schedule().tile("tree", "t0", "t1", 3).reorder("t0", "batch", "t1")
    .cache("t0"),
    "nested rows": Schedule().tile("batch", "b0", "b1", 6).tile("b1", "b2", "b3", 4)
    .cache("b2"),
    "nested rows, outside": Schedule().tile("batch", "b0", "b1", 6)
    .tile("b1", "b2", "b3", 4).cache("b0"),
    "nested trees": Schedule().tile("tree", "t0", "t1", 4).tile("t1", "t2", "t3", 3)
    .reorder("t0", "t2", "batch", "t3").cache("t2"),
    "parts": Schedule().split("tree", "s0", "s1", 3).cache("s0").cache("s1"),
    "blocks by number": Schedule().tile("batch", "b0", "b1", -3).cache("b0"),
    "both": Schedule().tile("batch", "b0", "b1", 4).tile("tree", "t0", "t1", 3)
    .reorder("b0", "t0", "b1", "t1").cache("b0").cache("t0"),
}  # fmt: skip


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", CACHED)
@pytest.mark.parametrize("n", [1, 4, 7, 13])
def test_caches_hold_exactly_what_is_used(name: str, n: int) -> None:
    forest = forest_of(SAMPLE + ("full",) * 3)
    hir = hir_of(forest, CACHED[name])
    events: list[Event] = []
    function = stages_of(hir)["expand-walks"]
    interpret_mir(function, hir, draw_values(forest, n), observe=events.append)
    checked = list(blocks(events))
    assert checked
    for cached, used, what in checked:
        assert cached == used, (what, cached, used)


def test_rows_are_fetched_ahead_where_trees_are_walked_in_turn() -> None:
    schedule = Schedule().tile("batch", "b0", "b1", 4).reorder("b0", "tree", "b1")
    forest = forest_of(SAMPLE)
    hir = hir_of(forest, schedule.cache("b0"))
    function = stages_of(hir)["insert-caches"]
    (op,) = found(function, mir.CacheRows)
    assert op.share == ("tree", 1, 4)
    events: list[Event] = []
    interpret_mir(function, hir, draw_values(forest, 10), observe=events.append)
    ahead = [(e.first, e.last) for e in events if e.what == "ahead"]
    assert ahead == [(4, 8)] * 4 + [(8, 10)] * 4 + [(12, 12)] * 4


@given(
    legal_schedules(
        allow=("tile", "tile", "reorder", "split", "cache", "cache", "unroll"),
        n_trees=(7,),
    )
)
def test_caches_of_any_schedule_hold_what_is_used(schedule: Schedule) -> None:
    forest = forest_of(SAMPLE + ("full",) * 3)
    hir = hir_of(forest, schedule)
    events: list[Event] = []
    function = stages_of(hir)["insert-caches"]
    interpret_mir(function, hir, draw_values(forest, 13), observe=events.append)
    for cached, used, what in blocks(events):
        assert used <= cached, what


# --- reductions ----------------------------------------------------------------------

PARALLEL = Schedule().reorder("tree", "batch").parallel("tree")


def test_two_conflicting_loops_are_reduced_in_two_stages() -> None:
    schedule = Schedule().tile("tree", "t0", "t1", 2).reorder("t0", "t1", "batch")
    schedule = schedule.parallel("t0").parallel("t1")
    function = stages(schedule, "fast")["legalize-reductions"]
    (array,) = found(function, mir.AllocArray)
    assert array.array.dims[:2] == (2, 2)
    outer = loop(function, "t0")
    assert isinstance(outer.body[-1], mir.ReduceDimensionInplace)
    assert isinstance(function.body[-1], mir.ReduceDimension)


def test_loops_over_rows_and_trees_that_run_together_have_sums_outside() -> None:
    schedule = Schedule.preset("parallel-both")
    (parts,) = stages(schedule)["legalize-reductions"].body
    assert parts.kind == "serial" and parts.step % 64 == 0
    assert [type(stmt) for stmt in parts.body] == [
        mir.Fill,
        mir.AllocArray,
        mir.Loop,  # the leaves
        mir.Loop,  # their sums
    ]
    fast = stages(schedule, "fast")["legalize-reductions"].body
    assert [type(stmt) for stmt in fast[:3]] == [mir.Fill, mir.AllocArray, mir.Loop]
    quantized = stages(schedule.quantize("b0"))["legalize-reductions"]
    assert [type(stmt) for stmt in quantized.body] == [mir.Loop]
    assert found(quantized, mir.AllocArray)  # for the rows of a block


def test_slots_that_atomics_share_are_summed_after_the_loop() -> None:
    """An in-place sum inside would run while other iterations still add."""
    schedule = Schedule().tile("tree", "t0", "rest", 4).tile("rest", "t1", "t2", 2)
    schedule = schedule.reorder("t0", "t1", "t2", "batch").parallel("t0").parallel("t1")
    schedule = schedule.parallel("t2").atomic_reduce("t0")
    function = stages(schedule, "fast", SAMPLE * 2)["legalize-reductions"]
    assert found(replace(function, body=(loop(function, "t0"),)), mir.Reduce)
    inside = replace(function, body=(loop(function, "t0"),))
    assert found(inside, mir.ReduceDimensionInplace) == []
    assert len(found(function, mir.ReduceDimensionInplace)) == 1


@pytest.mark.parametrize("reduction", ["exact", "fast", "reproducible"])
@pytest.mark.parametrize("outputs", [(1, False), (2, False), (2, True)])
def test_deferred_stages_add_up(reduction, outputs):
    """Rows between two conflicting loops: the inner slots wait for all rows."""
    schedule = Schedule().tile("tree", "t0", "t1", 2).reorder("t0", "batch", "t1")
    schedule = schedule.parallel("t0").parallel("t1")
    forest = forest_of((*SAMPLE, "full"), *outputs)
    hir = hir_of(forest, schedule, reduction)
    rows = draw_values(forest, 6)
    result = interpret_mir(stages_of(hir)["expand-walks"], hir, rows, seed=3)
    np.testing.assert_allclose(result, reference_raw(forest, rows), 1e-6, 1e-6)
