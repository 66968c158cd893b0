"""MIR means the same after every pass, and the interpreter refuses lucky code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.verifier import verify_mir
from skforge.compiler.ir.mir.walk import map_loops, map_statements
from skforge.compiler.passes.mir import interleave_walks
from skforge.exceptions import CompilerError, ScheduleError
from skforge.forest.reference import draw_rows, reference_leaves, reference_raw
from skforge.schedule.directives import Interleave
from skforge.schedule.nest import BatchLength
from skforge.schedule.schedule import Schedule
from tests.mir_stages import SAMPLE, draw_values, forest_of, hir_of, stages_of
from tests.oracles.mir_interpreter import interpret_mir
from tests.refusals import error_of
from tests.strategies_forest import random_forest
from tests.strategies_schedule import legal_schedules

SHAPING = ("tile", "tile", "reorder", "reorder", "split", "parallel", "parallel")
STEERING = (
    *("atomic_reduce", "vector_reduce", "cache", "unroll", "specialize"),
    *("interleave", "vectorize", "unroll_walk", "peel_walk", "tile_nodes"),
    *("pad_trees", "reorder_trees"),
)


@settings(max_examples=20)
@given(st.data())
def test_every_pass_keeps_the_meaning(data: st.DataObject) -> None:
    forest = data.draw(random_forest(max_trees=6, max_depth=4))
    schedule = data.draw(
        legal_schedules(
            max_directives=12, allow=SHAPING + STEERING, n_trees=(forest.n_trees,)
        )
    )
    reduction = data.draw(st.sampled_from(["exact", "fast", "reproducible"]))
    n, seed = data.draw(st.sampled_from([0, 1, 2, 3, 7, 13])), data.draw(st.integers(0))
    with np.errstate(over="ignore", invalid="ignore"):
        rows = draw_rows(forest, n, seed % 1000, missing=0.1)
    rows[rows == forest.missing_value] = np.nan
    hir = hir_of(forest, schedule, reduction)
    exact = reference_raw(replace(forest, divisor=1), rows)
    leaves = forest.leaf[reference_leaves(forest, rows)]
    reached = np.abs(forest.leaf_value[leaves].astype(np.float64)).sum(axis=1)
    bound = forest.n_trees * 2.0**-23 * (reached + np.abs(forest.base))
    plain = interpret_mir(
        stages_of(hir_of(forest, Schedule(), reduction))["expand-walks"],
        hir_of(forest, Schedule(), reduction),
        rows,
    )
    for name, function in stages_of(hir).items():
        legal = name not in ("lower-to-mir", "insert-caches")
        verify_mir(function, legal=legal, final=name == "expand-walks")
        result = interpret_mir(function, hir, rows, seed=seed % 1000)
        assert result.dtype == exact.dtype
        if reduction == "exact":
            assert result.tobytes() == exact.tobytes(), name
        elif reduction == "reproducible":
            assert result.tobytes() == plain.tobytes(), name
        error = np.abs(result.astype(np.float64) - exact)
        assert (error <= bound + 1e-300).all(), name


@settings(max_examples=10)
@given(st.data())
def test_apply_gives_the_sources_leaf_numbers(data: st.DataObject) -> None:
    forest = data.draw(random_forest(max_trees=6, max_depth=4))
    schedule = data.draw(legal_schedules(n_trees=(forest.n_trees,)))
    rows = draw_values(forest, 5)
    try:
        hir = hir_of(forest, schedule)
    except ScheduleError:  # too much padding
        return
    expected = forest.source_node[reference_leaves(forest, rows)]
    try:
        stages = stages_of(hir, "leaf_number")
    except ScheduleError as error:  # trees in lanes only add up: `apply` walks instead
        assert error.why.startswith("vectorize(")
        return
    for name, function in stages.items():
        verify_mir(function, legal=True, final=name == "expand-walks")
        np.testing.assert_array_equal(interpret_mir(function, hir, rows), expected)


def test_fast_sums_depend_on_the_order_of_atomics() -> None:
    """The shuffle is real: seeds give different roundings, all within bounds."""
    forest = forest_of(SAMPLE * 8)
    schedule = (
        Schedule().parallel("tree").atomic_reduce("tree").reorder("tree", "batch")
    )
    hir = hir_of(forest, schedule, "fast")
    function = stages_of(hir)["expand-walks"]
    rows = draw_values(forest, 20)
    results = {
        interpret_mir(function, hir, rows, seed=seed).tobytes() for seed in range(5)
    }
    assert len(results) > 1


# --- what compiled code must not do --------------------------------------------------

FOREST = forest_of(SAMPLE)
PARALLEL = Schedule().reorder("tree", "batch").parallel("tree")


def refusal(function: mir.Function, schedule: Schedule, reduction: str = "fast") -> str:
    hir = hir_of(FOREST, schedule, reduction)  # type: ignore[arg-type]
    return error_of(CompilerError, interpret_mir, function, hir, draw_values(FOREST, 3))


def final(schedule: Schedule, reduction: str = "fast") -> mir.Function:
    hir = hir_of(FOREST, schedule, reduction)  # type: ignore[arg-type]
    return stages_of(hir)["expand-walks"]


def unrolled(stmt: mir.Stmt) -> mir.Stmt:
    if isinstance(stmt, mir.Let) and isinstance(stmt.op, mir.WalkDecisionTree):
        return replace(stmt, op=replace(stmt.op, unroll=2))
    return stmt


def cut(stmt: mir.Stmt) -> mir.Stmt | mir.Body:
    """Leave the loop of a walk out, so that it ends too early."""
    if isinstance(stmt, mir.WalkLoop):
        return ()
    if isinstance(stmt, mir.Let) and isinstance(stmt.op, mir.GetLeafValue):
        return replace(stmt, op=replace(stmt.op, nodes=("%p.n0",)))
    return stmt


def shared(stmt: mir.Stmt) -> mir.Stmt:
    if isinstance(stmt, mir.Reduce):
        return replace(stmt, indices=(mir.Affine(), *stmt.indices[1:]))
    return stmt


def smaller(stmt: mir.Stmt) -> mir.Stmt:
    if isinstance(stmt, mir.CacheRows):
        return replace(stmt, rows=replace(stmt.rows, bounds=(mir.Bound(1),)))
    return stmt


def longer(root: str, extra: Any) -> Callable[[mir.Loop], mir.Loop]:
    more = (mir.Bound(extra, mir.Affine(constant=-1)),)
    return lambda loop: (
        replace(loop, bounds=more, trip_count=None) if loop.root == root else loop
    )


def cut_short(loop: mir.Loop) -> mir.Loop:
    return replace(loop, remainder=())


CODES = Schedule().tile("batch", "b0", "b1", 2).reorder("b0", "tree", "b1")
CODES = CODES.quantize("b0")
TESTS = Schedule().tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1")
TESTS = TESTS.vectorize("b1").cache_predicates("b0").represent("bitsliced")


def without_tables(stmt: mir.Stmt) -> mir.Stmt | mir.Body:
    made = isinstance(stmt, (mir.QuantizeRows, mir.EvaluatePredicates))
    return () if made else stmt


def one_row(stmt: mir.Stmt) -> mir.Stmt:
    if isinstance(stmt, (mir.QuantizeRows, mir.EvaluatePredicates)):
        one = replace(stmt.rows, bounds=(mir.Bound(1),))
        return replace(stmt, rows=one)
    return stmt


def one_tree(stmt: mir.Stmt) -> mir.Stmt:
    if isinstance(stmt, mir.EvaluatePredicates):
        return replace(stmt, trees=mir.Range(mir.Affine(), (mir.Bound(1),)))
    return stmt


def each(change: Callable[[mir.Stmt], Any]) -> Callable[[mir.Body], mir.Body]:
    return lambda body: map_statements(body, change)


def loops(change: Callable[[mir.Loop], mir.Loop]) -> Callable[[mir.Body], mir.Body]:
    return lambda body: map_loops(body, change)


#: A schedule, a change of its body, and how what is said of it begins.
REFUSED = {
    "an unchecked hop": (Schedule(), each(unrolled),
        "an unchecked hop goes past a leaf in:\n"
        "  %p = walk_decision_tree([%t], [rows[batch]]) "
        "<depth = 1..2, unroll_depth = 2>\n"
        "at batch = 0, tree = 0"),
    "no leaf check": (Schedule(), each(cut),
        "a walk ended before its leaf in:\n"
        "  %p = get_leaf_value([%t], [%p.n0])\n"
        "at batch = 0, tree = 0"),
    "a race": (PARALLEL, each(shared),
        "parallel iterations meet in result_1[0, 0, 0] in:\n"
        '  reduce(result_1[0, batch], %p) <"+", any>\n'),
    "groups": (Schedule().reorder("tree", "batch").interleave("batch", 2),
        loops(cut_short),
        "a group is cut short in:\n  for batch in 0 to rows groups of 2:"),
    "no such tree": (Schedule(), loops(longer("tree", 5)),
        "there is no tree 4 in:\n  %t = get_tree(%model, tree)\n"
        "at batch = 0, tree = 4"),
    "no such row": (Schedule(), loops(longer("batch", BatchLength())),
        "result has 3 elements there, not 3 : 4 in:\n"
        "  result[batch : batch + 1] = base\n"
        "at batch = 3"),
    "a row beside the cache":
        (Schedule().tile("batch", "b0", "b1", 2).cache("b0"), each(smaller),
        "row 1 is not in the cache of ((0, 1),) in:\n"
        "  %p.end = while any not is_leaf([%t], [%p.at]) from [%p.n0]:\n"
        "    %p.at = traverse_tree_tile([%t], [%p.at], [rows[b0 + b1]]) <checked>\n"
        "at b0 = 0, b1 = 1, tree = 0"),
    "no codes": (CODES, each(without_tables), "there is no row 0 in %codes in:\n"),
    "few codes": (CODES, each(one_row), "there is no row 1 in %codes in:\n"),
    "no predicates": (TESTS, each(without_tables), "there is no row 2 in %tests in:\n"),
    "predicates of a row": (TESTS, each(one_row), "there is no row 2 in %tests in:\n"),
    "predicates of a tree": (TESTS, each(one_tree), "there is no tree 1 in %tests in:"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_compiled_code_must_not_do_is_refused(case: str) -> None:
    schedule, change, text = REFUSED[case]
    hir = hir_of(FOREST, schedule, "fast")
    whole = case == "an unchecked hop"  # of a walk that is not expanded
    function = stages_of(hir)["unroll-loops" if whole else "expand-walks"]
    interpret_mir(function, hir, draw_values(FOREST, 3))
    changed = replace(function, body=change(function.body))
    assert refusal(changed, schedule).startswith(text)


def test_atomic_adds_may_meet() -> None:
    schedule = PARALLEL.atomic_reduce("tree")
    function = final(schedule)
    hir = hir_of(FOREST, schedule, "fast")
    interpret_mir(function, hir, draw_values(FOREST, 3))

    def plain(stmt: mir.Stmt) -> mir.Stmt:
        return replace(stmt, atomic=False) if isinstance(stmt, mir.Reduce) else stmt

    text = refusal(
        replace(function, body=map_statements(function.body, plain)), schedule
    )
    assert text.startswith("parallel iterations meet in result[0, 0] in:\n")


def test_reading_what_others_still_write_is_refused() -> None:
    """Summing the slots inside the loop that fills them comes too early."""
    function = final(PARALLEL)
    *before, loop, total = function.body
    assert isinstance(loop, mir.Loop)
    inside = replace(loop, body=(*loop.body, total))
    text = refusal(replace(function, body=(*before, inside)), PARALLEL)
    assert text.startswith("parallel iterations meet in ")


def test_leaves_nobody_stored_are_poison() -> None:
    schedule = Schedule().parallel("tree")
    hir = hir_of(FOREST, schedule, "exact")
    function = stages_of(hir)["expand-walks"]

    def short(loop: mir.Loop) -> mir.Loop:
        if loop.root == "tree":
            return replace(loop, bounds=(mir.Bound(3),), trip_count=3)
        return loop

    shorter = replace(function, body=map_loops(function.body, short))
    result = interpret_mir(shorter, hir, draw_values(FOREST, 3))
    assert np.isnan(result).all()


def test_codes_of_another_copy_are_refused() -> None:
    """Interleaved by hand: the second copy's codes replace the first's."""
    schedule = Schedule().reorder("tree", "batch").quantize("batch")
    function = stages_of(hir_of(FOREST, schedule, "fast"))["unroll-loops"]

    def interleaved(loop: mir.Loop) -> mir.Loop:
        marks = (*loop.marks, Interleave(loop.var, 2))
        return replace(loop, marks=marks) if loop.var == "batch" else loop

    made = replace(function, body=map_loops(function.body, interleaved))
    made = interleave_walks.run(made, 2)
    assert refusal(made, schedule).startswith("there is no row 0 in %codes in:\n")
    assert error_of(CompilerError, verify_mir, made, legal=True).startswith(
        'iterations of "batch" that run as one share %codes in:\n'
    )
