"""Exact ``shared_reduce`` of more trees than shared memory has leaves for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skforge.compiler import driver
from skforge.compiler.driver import Lowered
from skforge.compiler.ir.hir.nodes import HirCache
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import statements
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.forest.forest import Forest
from skforge.forest.reference import draw_rows, reference_raw
from skforge.gpu.codegen.emitter import emit_gpu
from skforge.gpu.passes.chunk_leaves import SHARE
from skforge.gpu.search import gpu_points
from skforge.modules.compiled import compile_forest
from skforge.schedule.families import (
    mapped,
    rows_on_threads,
    tiles,
    trees_on_threads,
)
from skforge.schedule.nest import size_value
from skforge.schedule.schedule import Schedule
from skforge.tuning import ScheduleSpace
from tests.exactness.checks import assert_same_bits, interpreted, raw_of
from tests.exactness.forests import drawn
from tests.exactness.gpu_families import REFUSALS
from tests.gpu_binary import compile_text
from tests.gpu_kernels import needs
from tests.oracles.mir_interpreter import interpret_mir
from tests.simt import EMULATED_SOURCE
from tests.simt_tools import need

#: A block of this GPU has shared memory for the leaves of few trees.
SMALL = replace(Target.cuda("sm_89", kind="emulated"), shared_bytes=1024)

MACHINES = {
    "sm_80": Target.cuda("sm_80"),
    "sm_89": Target.cuda("sm_89"),
    "sm_90": Target.cuda("sm_90"),
    "gfx90a": Target.hip("gfx90a"),
}


def dealt(interleave: int = 1, cached: int = 0) -> Schedule:
    """Return a point of Table 5: blocks of 8 rows, trees by 2 threads."""
    point = {
        "rows_per_block": 8,
        "rows_per_thread": 2,
        "tree_threads": 2,
        "cache_rows": False,
        "cache_trees": bool(cached),
        "unroll_walks": False,
        "interleave": cached or interleave,
        "shared_reduce": True,
        "representation": "sparse",
    }
    return ScheduleSpace.gpu().schedule(point, many())


SCHEDULES = {
    "plain": lambda: dealt(),
    "interleaved": lambda: dealt(interleave=4),
    "trees cached": lambda: dealt(cached=1),
    "by depth": lambda: dealt().specialize("t0"),
    "trees of a row": lambda: mapped(
        tiles(8, 3, "b0", "b1", "t1", "t0"), b0="grid.x", b1="block.y", t1="block.x"
    ).shared_reduce("t1"),
}
KINDS: dict[str, dict[str, Any]] = {
    "scalar": {},
    "double": {"dtype": "float64"},
    "three outputs": {"n_outputs": 3},
    "vector leaves": {"n_outputs": 2, "vector": True},
}


@cache
def many(n: int = 61, kind: str = "scalar") -> Forest:
    return drawn(n, 3, n_features=4, **KINDS[kind])


def lowered(made: Forest, schedule: Schedule, target: Target) -> Lowered:
    return driver.lower(driver.build_hir(made, schedule, "exact", kind="gpu"), target)


def totals(one: Lowered) -> list[mir.ReduceDimension]:
    body = one.stages["expand-walks"].body
    return [s for s in statements(body) if isinstance(s, mir.ReduceDimension)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "scalar") for name in SCHEDULES),
        *((name, "three outputs") for name in ("interleaved", "by depth")),
        ("trees of a row", "double"),
        ("interleaved", "vector leaves"),
    ],
)
def test_same_bits_as_the_source(name: str, kind: str) -> None:
    """The interpreter stops at races, and at accesses out of bounds."""
    made, schedule = many(kind=kind), SCHEDULES[name]()
    (total,) = totals(lowered(made, schedule, SMALL))
    assert total.trees is not None
    assert total.extent < made.n_trees
    rows = draw_rows(made, 11, 3)
    got = interpreted(made, schedule, rows, target=SMALL, shuffle=7)
    assert_same_bits(got, reference_raw(made, rows), (name, kind))


def test_the_loop_over_chunks() -> None:
    text = lowered(many(), dealt(interleave=4), SMALL).text("chunk-leaves")
    assert [line.strip() for line in text.splitlines()[3:13]] == [
        "result[b0 : min(b0 + 8, rows)] = base",
        "leaves_1 = alloc[8, 8] <shared>",
        "for t0.chunk in 0 to 61 step 8:",
        "block.x.for r0 in 0 to min(8, rows - b0) step 2:",
        "block.y.for t1 in 0 to 2:",
        "for r1 in 0 to min(2, rows - b0 - r0):",
        "for t0 in 0 to min(8, 61 - t1 - t0.chunk) step 2:   interleave 4",
        "%t = get_tree(%model, t1 + t0.chunk + t0)",
        "%p = walk_decision_tree([%t], [rows[b0 + r0 + r1]]) <depth = 1..3>",
        "leaves_1[t1 + t0, r0 + r1] = %p",
    ]
    assert text.splitlines()[13].startswith("      result[b0 : min(b0 + 8, rows)] += ")
    assert "leaves_1[trees t0.chunk : min(t0.chunk + 8, 61), " in text


def test_the_interpreter_of_mir_agrees() -> None:
    made = many(kind="three outputs")
    one = lowered(made, dealt(), SMALL)
    rows = draw_rows(made, 11, 3)
    got = interpret_mir(one.stages["chunk-leaves"], one.hir, rows)
    assert_same_bits(got, reference_raw(made, rows), "MIR")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("scalar", "emulated"),
        ("three outputs", "emulated"),
        ("three outputs", EMULATED_SOURCE),
    ],
)
def test_a_thousand_trees(kind: str, target: str) -> None:
    if target == EMULATED_SOURCE:
        need(None)
    made = many(1000, kind)
    point = {**next(gpu_points(512, 4)), "rows_per_block": 32, "shared_reduce": True}
    schedule = ScheduleSpace.gpu().schedule(point, made)
    (total,) = totals(lowered(made, schedule, MACHINES["sm_80"]))
    assert total.extent == 260  # four chunks, of whole steps of 20
    rows = draw_rows(made, 70, 3)
    module = compile_forest(made, schedule, target)
    assert_same_bits(raw_of(module, rows), reference_raw(made, rows), (kind, target))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("n_trees", "machine"),
    [*((1000, name) for name in MACHINES), (26000, "sm_89"), (26000, "gfx90a")],
)
def test_all_shapes_of_algorithm_1_are_legal(n_trees: int, machine: str) -> None:
    made, target, hirs = many(n_trees), MACHINES[machine], HirCache()
    shapes = set()
    for point in (*gpu_points(512, 4), *gpu_points(4096, 4)):
        if point["representation"] != "sparse" or point["interleave"] == 2:
            continue
        block = point["rows_per_block"] // point["rows_per_thread"]
        if block * point["tree_threads"] > 1024:
            continue  # with or without shared sums
        shape = point["rows_per_block"], point["tree_threads"]
        if shape in shapes:
            continue
        shapes.add(shape)
        schedule = ScheduleSpace.gpu().schedule({**point, "shared_reduce": True}, made)
        hir = driver.build_hir(made, schedule, "exact", hirs, kind="gpu")
        one = driver.lower(hir, target)
        leaves = totals(one)[0].extent
        assert isinstance(leaves, int)
        assert 4 * leaves * point["rows_per_block"] <= target.shared_bytes // SHARE
    assert len(shapes) == 8


def test_forests_that_fit_are_not_split() -> None:
    (total,) = totals(lowered(many(24), dealt(), Target.cuda("sm_89")))
    assert (total.extent, total.trees) == (24, None)


def test_trees_in_another_order_are_not_split() -> None:
    """A chunk of positions would be no range of the model's trees."""
    made = drawn(2000, 4, n_features=4)
    schedule = dealt().reorder_trees()
    with pytest.raises(
        ScheduleError, match="shared_reduce brings a block's shared memory"
    ):
        lowered(made, schedule, SMALL)


def test_nvrtc_compiles_it() -> None:
    needs("cuda")
    made = many(1000)
    one = lowered(made, dealt(interleave=4), Target.cuda("sm_89"))
    text = emit_gpu(one.kernel.function, Target.cuda("sm_89")).source
    assert compile_text(text, "sm_89", "cuda").resources


def test_rows_take_their_part_first() -> None:
    """With rows of 2,000 features in shared memory, leaves get what is left."""
    made = drawn(1000, 3, n_features=2800)
    point = {**next(gpu_points(512, 2800)), "shared_reduce": True}
    schedule = ScheduleSpace.gpu().schedule(point, made)
    one = lowered(made, schedule, MACHINES["sm_89"])
    rows = 4 * 8 * 2801
    assert 4 * 8 * size_value(totals(one)[0].extent, 0) + rows <= 101376


@st.composite
def dealt_schedules(draw: st.DrawFn) -> Schedule:
    """Draw trees dealt to the threads of a block, and what may be asked of walks."""
    rows, trees = draw(st.sampled_from([2, 4, 8])), draw(st.sampled_from([2, 3, 5]))
    tile = draw(st.sampled_from([None, None, 1, 2]))
    each = draw(st.sampled_from([1, 2]))
    dealt, walked, parts = draw(
        st.sampled_from(
            [rows_on_threads(rows, each, trees, tile), trees_on_threads(rows, trees)]
        )
    )
    for part in parts:
        dealt = dealt.shared_reduce(part)
    marks: dict[str, Callable[[Schedule], Schedule]] = {
        "cache": lambda one: one.cache("b0"),
        "cache trees": lambda one: one.cache("t0"),
        "quantize": lambda one: one.quantize("b0"),
        "interleave": lambda one: one.interleave(walked, 2),
        "unroll walk": lambda one: one.unroll_walk(walked, 3),
        "peel walk": lambda one: one.peel_walk(walked, 1),
        "specialize": lambda one: one.specialize(walked),
        "unroll": lambda one: one.unroll(walked),
        "array": lambda one: one.represent("array"),
        "reorg": lambda one: one.represent("reorg"),
        "tiles": lambda one: one.tile_nodes(2),
    }
    for name in draw(st.lists(st.sampled_from([*marks]), max_size=4, unique=True)):
        with suppress(ScheduleError):
            marked = marks[name](dealt)
            marked.loop_nest(17)
            dealt = marked
    return dealt


def check_random(data: st.DataObject) -> bool:
    """Return whether leaves lay in chunks; a sum in the wrong order has other bits."""
    made = many(
        data.draw(st.sampled_from([17, 30])), data.draw(st.sampled_from([*KINDS]))
    )
    schedule = data.draw(dealt_schedules())
    target = replace(SMALL, shared_bytes=data.draw(st.sampled_from([512, 1024, 4096])))
    rows = draw_rows(made, 9, 3)
    try:
        got = interpreted(made, schedule, rows, target=target, shuffle=3)
    except ScheduleError as error:
        assert any(words in str(error) for words in REFUSALS), error
        return False
    assert_same_bits(got, reference_raw(made, rows), schedule)
    found = totals(lowered(made, schedule, target))
    return any(total.trees is not None for total in found)


random_settings = settings(max_examples=5, suppress_health_check=[*HealthCheck])


@random_settings
@given(st.data())
def test_random_schedules(data: st.DataObject) -> None:
    check_random(data)


@pytest.mark.slow
def test_many_random_schedules() -> None:
    chunked = []

    @settings(random_settings, max_examples=120)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        chunked.append(check_random(data))

    check()
    assert sum(chunked) >= 30
