"""Each directive changes MIR as it says: counted, not only computed."""

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
from skforge.compiler.passes.mir.specialize_depths import MAX_CLASSES
from skforge.exceptions import ScheduleError
from skforge.forest.reference import reference_raw
from skforge.schedule.directives import Cache, Unroll
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
FULL = ("full",) * 4


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


@pytest.mark.parametrize("k", [2, 3, 8])
def test_interleave_walks_k_rows_at_once(k: int) -> None:
    schedule = Schedule().reorder("tree", "batch").interleave("batch", k)
    function = stages(schedule)["interleave-walks"]
    walks = found(function, mir.WalkDecisionTree)
    assert [len(walk.rows) for walk in walks] == [k, 1]  # the group, the remainder
    assert walks[0].rows == tuple(mir.Affine(("batch",), constant=n) for n in range(k))
    group = loop(function, "batch")
    assert (group.group, len(group.remainder)) == (k, 3)
    reduces = [s for s in group.body if isinstance(s, mir.Reduce)]
    assert [s.indices[0] for s in reduces] == list(walks[0].rows)


def test_interleaved_trees_need_no_remainder_where_they_divide() -> None:
    function = stages(Schedule().interleave("tree", 2))["interleave-walks"]
    (walk,) = found(function, mir.WalkDecisionTree)
    assert len(set(walk.trees)) == 2
    gets = [op.index for op in found(function, mir.GetTree)]
    assert gets == [mir.Affine(("tree",)), mir.Affine(("tree",), 1)]
    assert loop(function, "tree").remainder == ()


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


def test_interleave_and_specialize_of_one_loop_exclude_each_other() -> None:
    with pytest.raises(ScheduleError) as caught:
        Schedule().specialize("tree").interleave("tree", 2)
    assert str(caught.value).splitlines()[0] == (
        'interleave("tree", 2) cannot be combined with specialize("tree"), which '
        'already marks "tree".'
    )


def test_vectorize_makes_rows_the_lanes() -> None:
    schedule = Schedule().reorder("tree", "batch").vectorize("batch")
    function = stages(schedule)["interleave-walks"]
    rows = loop(function, "batch")
    assert (rows.kind, rows.group, len(rows.remainder)) == ("vector", 4, 3)
    assert [len(w.rows) for w in found(function, mir.WalkDecisionTree)] == [1, 1]


@pytest.mark.parametrize(("depth", "loops"), [(1, 1), (2, 0)])
def test_unroll_walk_leaves_unchecked_hops(depth: int, loops: int) -> None:
    made = stages(Schedule().unroll_walk("tree", depth))
    (walk,) = found(made["unroll-walks"], mir.WalkDecisionTree)
    assert walk.unroll == depth
    hops = found(made["expand-walks"], mir.TraverseTreeTile)
    assert [hop.checked for hop in hops] == [False] * depth
    checks = found(made["expand-walks"], mir.WalkLoop)
    assert len(checks) == loops
    assert all(check.step.checked for check in checks)


def test_unroll_walk_beyond_the_deepest_leaf_pads() -> None:
    made = stages(Schedule().unroll_walk("tree", 5))["expand-walks"]
    hops = found(made, mir.TraverseTreeTile)
    assert [hop.checked for hop in hops] == [False] * 5
    assert found(made, mir.WalkLoop) == []


def test_peel_walk_stops_at_the_shallowest_leaf() -> None:
    made = stages(Schedule().peel_walk("tree", 5))["expand-walks"]
    assert len(found(made, mir.TraverseTreeTile)) == 1  # chains have a leaf at 1
    assert len(found(made, mir.WalkLoop)) == 1
    deep = stages(Schedule().peel_walk("tree", 5), shapes=FULL)["expand-walks"]
    assert len(found(deep, mir.TraverseTreeTile)) == 2
    assert found(deep, mir.WalkLoop) == []


def test_walks_without_directives_check_every_hop() -> None:
    made = stages(Schedule())["expand-walks"]
    assert found(made, mir.TraverseTreeTile) == []
    assert len(found(made, mir.WalkLoop)) == 1


# --- loops ---------------------------------------------------------------------------


def test_unroll_repeats_the_body() -> None:
    schedule = Schedule().tile("tree", "t0", "t1", 2).unroll("t1")
    function = stages(schedule)["unroll-loops"]
    assert [item.var for item in loops_in(function.body)] == ["batch", "t0"]
    gets = [op.index for op in found(function, mir.GetTree)]
    assert gets == [mir.Affine(("t0",)), mir.Affine(("t0",), 1)]


def test_unroll_guards_iterations_that_may_be_missing() -> None:
    schedule = (
        Schedule().tile("batch", "b0", "b1", 3).reorder("b0", "tree", "b1").unroll("b1")
    )
    function = stages(schedule)["unroll-loops"]
    guards = [item for item in loops_in(function.body) if item.var == "b1"]
    assert [(g.start, mir.Bound(g.start + 1) in g.bounds) for g in guards] == [
        (0, True),
        (1, True),
        (2, True),
    ]
    assert not any(g.has(Unroll) for g in guards)


def test_specialize_makes_a_case_for_each_depth() -> None:
    function = stages(Schedule().specialize("tree"))["specialize-depths"]
    (switch,) = found(function, mir.DepthSwitch)
    assert switch.classes == ((1, 1), (1, 2))
    assert switch.class_of == (0, 0, 1, 1)
    walks = found(function, mir.WalkDecisionTree)
    assert [(w.min_depth, w.max_depth, w.peel) for w in walks] == [(1, 1, 1), (1, 2, 1)]


def test_specialize_takes_the_trees_of_an_iteration_together() -> None:
    schedule = Schedule().tile("tree", "t0", "t1", 3).specialize("t0")
    shapes = ("stump", "stump", "stump", "leaf", "stump", "full", "full")
    function = stages(schedule, shapes=shapes)["specialize-depths"]
    (switch,) = found(function, mir.DepthSwitch)
    assert switch.classes == ((0, 2), (1, 1), (2, 2))
    assert [switch.class_of[p] for p in (0, 3, 6)] == [1, 0, 2]


def test_specialize_bounds_the_cases() -> None:
    tiles = [("leaf",) * 2, ("leaf", "stump"), ("leaf", "full"), ("stump",) * 2]
    shapes = tuple(s for tile in tiles for s in tile)
    schedule = Schedule().tile("tree", "t0", "t1", 2).specialize("t0")
    (switch,) = found(stages(schedule, shapes=shapes)["expand-walks"], mir.DepthSwitch)
    assert len(switch.cases) == len(switch.classes) == 4 <= MAX_CLASSES + 1


# --- caches --------------------------------------------------------------------------


def test_cache_says_what_one_iteration_uses() -> None:
    schedule = Schedule().tile("batch", "b0", "b1", 8).cache("b0")
    function = stages(schedule.tile("tree", "t0", "t1", 3).cache("t0"))["insert-caches"]
    (rows,), (trees,) = found(function, mir.CacheRows), found(function, mir.CacheTrees)
    assert rows.rows.start == mir.Affine(("b0",))
    assert mir.Bound(8) in rows.rows.bounds
    assert trees.trees.start == mir.Affine(("t0",))
    assert trees.trees.bounds == (mir.Bound(3), mir.Bound(4, mir.Affine(("t0",))))
    assert not any(item.has(Cache) for item in loops_in(function.body))


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


def test_fast_gives_each_parallel_iteration_a_slot() -> None:
    function = stages(PARALLEL, "fast")["legalize-reductions"]
    (array,) = found(function, mir.AllocArray)
    assert (array.array.dims[0], array.zero) == (4, True)
    (reduce,) = found(function, mir.Reduce)
    assert reduce.target == array.array.name
    assert reduce.indices[0] == mir.Slot(mir.Affine(("tree",)), 0, 1)
    (total,) = found(function, mir.ReduceDimension)
    assert (total.source, total.extent) == (array.array.name, 4)


def test_exact_keeps_a_leaf_for_every_tree_and_row() -> None:
    function = stages(PARALLEL)["legalize-reductions"]
    (array,) = found(function, mir.AllocArray)
    assert array.array.dims[0] == 4
    assert found(function, mir.Reduce) == []
    (store,) = found(function, mir.StoreLeaf)
    assert store.indices[0] == mir.ModelTree(mir.Affine(("tree",)))
    (total,) = found(function, mir.ReduceDimension)
    assert total.extent == 4


def test_ordered_trees_need_no_storage() -> None:
    function = stages(Schedule().parallel("batch"))["legalize-reductions"]
    assert found(function, mir.AllocArray) == []
    assert [r.order for r in found(function, mir.Reduce)] == ["ordered"]


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


def test_atomic_reduce_needs_no_array() -> None:
    function = stages(PARALLEL.atomic_reduce("tree"), "fast")["legalize-reductions"]
    assert found(function, mir.AllocArray) == []
    assert [r.atomic for r in found(function, mir.Reduce)] == [True]
    assert all(not item.marks for item in loops_in(function.body))


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


@pytest.mark.parametrize("reduction", ["fast", "exact"])
def test_vector_reduce_records_the_width(reduction: Reduction) -> None:
    made = stages(PARALLEL.vector_reduce("tree", 8), reduction)["legalize-reductions"]
    assert [r.vector_width for r in found(made, mir.ReduceDimension)] == [8]
    plain = stages(PARALLEL, reduction)["legalize-reductions"]
    assert [r.vector_width for r in found(plain, mir.ReduceDimension)] == [None]


def test_shared_reduce_puts_the_slots_in_shared_memory() -> None:
    schedule = Schedule().gpu_dimension("batch", "grid.x")
    schedule = schedule.gpu_dimension("tree", "block.x").shared_reduce("tree")
    function = stages(schedule, "fast")["legalize-reductions"]
    (array,) = found(function, mir.AllocArray)
    assert array.array.shared


def test_reproducible_sums_are_kept_apart_from_the_result() -> None:
    function = stages(Schedule(), "reproducible")["legalize-reductions"]
    (array,) = found(function, mir.AllocArray)
    (finish,) = found(function, mir.Finish)
    assert finish.source == array.array.name
    assert {r.target for r in found(function, mir.Reduce)} == {array.array.name}


def test_classes_and_vector_leaves() -> None:
    scalars = stages(Schedule(), n_outputs=2)["lower-to-mir"]
    assert len(found(scalars, mir.GetTreeClassId)) == 1
    (reduce,) = found(scalars, mir.Reduce)
    assert isinstance(reduce.indices[-1], mir.Class)
    vectors = stages(Schedule(), n_outputs=2, vector=True)["lower-to-mir"]
    (reduce,) = found(vectors, mir.Reduce)
    assert isinstance(reduce.indices[-1], mir.Outputs)
    by_output = stages(PARALLEL, n_outputs=2)["legalize-reductions"]
    assert [r.by_output for r in found(by_output, mir.ReduceDimension)] == [True]


def test_apply_stores_leaf_numbers_and_reduces_nothing() -> None:
    function = stages(PARALLEL.atomic_reduce("tree"), element="leaf_number")[
        "expand-walks"
    ]
    assert found(function, mir.Reduce) == found(function, mir.ReduceDimension) == []
    (store,) = found(function, mir.StoreLeaf)
    assert store.target == mir.RESULT


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
