"""MIR as text: stable, different for different functions; and what is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given

from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.printer import loop_line, print_mir, print_statement
from skforge.compiler.ir.mir.verifier import verify_mir
from skforge.exceptions import CompilerError
from skforge.schedule.directives import (
    AtomicReduce,
    Cache,
    CachePredicates,
    Interleave,
    PeelWalk,
    Quantize,
    SharedReduce,
    Specialize,
    Unroll,
    UnrollWalk,
    Vectorize,
    VectorReduce,
)
from skforge.schedule.nest import BatchLength, CeilDiv, Times
from skforge.schedule.schedule import Schedule
from tests.mir_stages import SAMPLE, forest_of, hir_of, stages_of
from tests.refusals import error_of
from tests.strategies_schedule import legal_schedules

BLOCKS = Schedule().tile("batch", "b0", "b1", 10).reorder("b0", "tree", "b1")
WHOLE: dict[str, tuple[Schedule, Reduction, str]] = {
    "all-directives": (
        BLOCKS.tile("tree", "t0", "t1", 2)
        .parallel("b0")
        .cache("t0")
        .unroll("t1")
        .interleave("b1", 2)
        .peel_walk("b1", 1),
        "exact",
        "lower-to-mir",
    ),
    "interleaved": (BLOCKS.interleave("b1", 2).unroll_walk("b1", 1), "exact", ""),
    "vectorized": (BLOCKS.vectorize("b1").cache("b0"), "fast", ""),
    "specialized": (Schedule().specialize("tree"), "fast", "specialize-depths"),
    "reproducible": (BLOCKS.parallel("tree").vector_reduce("tree", 4), "reproducible",
        "interleave-walks"),
    "atomic": (
        Schedule().reorder("tree", "batch").parallel("tree").atomic_reduce("tree"),
        "fast",
        "legalize-reductions",
    ),
    "shared": (Schedule().preset("rapids"), "exact", "legalize-reductions"),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_function(name: str, golden: Callable[[str, str], None]) -> None:
    schedule, reduction, stage = WHOLE[name]
    made = stages_of(hir_of(forest_of(SAMPLE), schedule, reduction))
    golden(print_mir(made[stage or "expand-walks"]), "mir")


@pytest.mark.parametrize("vector", [False, True])
def test_many_outputs(vector: bool, golden: Callable[[str, str], None]) -> None:
    hir = hir_of(forest_of(SAMPLE, 2, vector), Schedule().parallel("tree"))
    golden(print_mir(stages_of(hir)["legalize-reductions"]), "mir")


def test_apply(golden: Callable[[str, str], None]) -> None:
    hir = hir_of(forest_of(SAMPLE), Schedule().reorder_trees())
    golden(print_mir(stages_of(hir, "leaf_number")["interleave-walks"]), "mir")


@given(legal_schedules(n_trees=(4,)))
def test_other_functions_have_other_texts(schedule: Schedule) -> None:
    made = list(stages_of(hir_of(forest_of(SAMPLE), schedule)).values())
    for one in made:
        for two in made:
            assert (print_mir(one) == print_mir(two)) == (one == two)


ROWS = mir.Range(
    mir.Affine(("b",)), (mir.Bound(8), mir.Bound(BatchLength(), mir.Affine(("b",))))
)
HALF = CeilDiv(BatchLength(), 2)
TEXTS = {
    "cache_rows(b : min(b + 8, rows))": mir.CacheRows(ROWS),
    "cache_rows(b : min(b + 8, rows)) <share t / 2 of 5>": mir.CacheRows(
        ROWS, ("t", 2, 5)
    ),
    "cache_trees(%model, 3 : 10)": mir.CacheTrees(
        mir.Range(mir.Affine(constant=3), (mir.Bound(7),))
    ),
    "take_rows(b : min(b + 8, rows))": mir.TakeRows(ROWS),
    "%m = evaluate_predicates(3 : 4, b : min(b + 8, rows))": mir.EvaluatePredicates(
        "%m", mir.Range(mir.Affine(constant=3), (mir.Bound(1),)), ROWS
    ),
    "s[(t - 4) / 2, (t + u + 1) / ceil(rows / 2), b + ceil(rows / 2) * 3] = %p": (
        mir.StoreLeaf(
            "s",
            (
                mir.Slot(mir.Affine(("t",)), 4, 2),
                mir.Slot(mir.Affine(("t", "u"), 1), 0, HALF),
                mir.Affine(("b",), 0, ((HALF, 3),)),
            ),
            "%p",
        )
    ),
    "s[b, %c] = %p": mir.StoreLeaf("s", (mir.Affine(("b",)), mir.Class("%c")), "%p"),
    "s = alloc[4, rows * 2, outputs] <shared, leaf_number>": mir.AllocArray(
        mir.NamedArray("s", (4, Times(BatchLength(), 2), None), "leaf_number", True),
        zero=False,
    ),
    "switch depth_class(0):   0 x 1, 1 x 1, 0 x 1, 1 x 1, 0 x 1, 1 x 1, 0 x 1, 1 x 1, "
    "0 x 1, 1 x 1, 0 x 1, 1 x 1, and 8 runs more": mir.DepthSwitch(
        mir.Affine(), (), (0, 1) * 10, ()
    ),
}


@pytest.mark.parametrize("text", TEXTS)
def test_statement(text: str) -> None:
    assert print_statement(TEXTS[text]) == text


def test_loop_line_lists_what_is_asked() -> None:
    marks = (
        *(Unroll("b"), Specialize("b"), Interleave("b", 2), Vectorize("b")),
        *(Cache("b", "padded"), Quantize("b"), CachePredicates("b")),
        *(UnrollWalk("b", 3), PeelWalk("b", 4), AtomicReduce("b")),
        *(SharedReduce("b"), VectorReduce("b", 8)),
    )
    loop = mir.Loop(
        "b", "batch", 2, HALF, (mir.Bound(BatchLength()),), "grid.y", (), marks=marks
    )
    assert loop_line(loop) == (
        "grid.y.for b in 2 to rows step ceil(rows / 2):   unroll, specialize, "
        "interleave 2, vectorize, cache rows by padded, quantize, cache_predicates, "
        "unroll_walk 3, peel_walk 4, atomic_reduce, shared_reduce, vector_reduce 8"
    )


# ------------------------------------------------------------ mir verifier


ROW, TREE = mir.Affine(("b",)), mir.Affine(("t",))
ZERO = mir.Affine()
GET = mir.Let(("%t",), mir.GetTree(TREE))
WALK = mir.Let(("%p",), mir.WalkDecisionTree(("%t",), (ROW,), 1, 2))
ADD = mir.Reduce("result", (ROW, ZERO), "%p", "any")
STATEMENT = (GET, WALK, ADD)
EXPANDED = (
    GET,
    mir.Let(("%n",), mir.GetRoot(("%t",))),
    mir.Let(("%m",), mir.TraverseTreeTile(("%t",), ("%n",), (ROW,), False)),
    mir.WalkLoop(
        ("%e",), ("%m",), mir.TraverseTreeTile(("%t",), ("%a",), (ROW,), True)
    ),
    mir.Let(("%p",), mir.GetLeafValue(("%t",), ("%e",))),
    ADD,
)
EVERY = mir.Range(mir.Affine(), (mir.Bound(BatchLength()),))
SCRATCH = mir.NamedArray("s", (4, BatchLength(), None))
ALLOC = mir.AllocArray(SCRATCH, zero=True)
SLOT = mir.Slot(TREE, 0, 1)


def rows(*body: mir.Stmt, **changes: object) -> mir.Loop:
    bounds = (mir.Bound(BatchLength()),)
    loop = mir.Loop("b", "batch", 0, 1, bounds, "serial", body)
    return replace(loop, **changes)  # type: ignore[arg-type]


def trees(*body: mir.Stmt, **changes: object) -> mir.Loop:
    bounds = (mir.Bound(4),)
    loop = mir.Loop("t", "tree", 0, 1, bounds, "serial", body, trip_count=4)
    return replace(loop, **changes)  # type: ignore[arg-type]


def function(*body: mir.Stmt) -> mir.Function:
    return mir.Function(mir.NamedArray("result", (BatchLength(), None)), 4, body)


def nest(*body: mir.Stmt) -> mir.Function:
    return function(rows(trees(*body)))


def test_accepted() -> None:
    verify_mir(nest(*STATEMENT), legal=True)
    verify_mir(nest(*EXPANDED), final=True)


def test_parallel_rows_share_nothing() -> None:
    body = trees(*STATEMENT)
    verify_mir(function(rows(body, kind="parallel")), legal=True)


def test_slots_and_scratch_inside_are_private() -> None:
    private = replace(ADD, target="s", indices=(SLOT, ROW, ZERO))
    loop = trees(rows(GET, WALK, private), kind="parallel")
    verify_mir(function(ALLOC, loop), legal=True)
    alone = replace(ADD, target="s", indices=(ZERO, ROW, ZERO))
    loop = trees(ALLOC, rows(GET, WALK, alone), kind="parallel")
    verify_mir(function(loop), legal=True)


def test_conflicts_are_fine_before_legalisation_and_with_atomics() -> None:
    loop = trees(rows(*STATEMENT), kind="parallel")
    verify_mir(function(loop))
    atomic = trees(rows(GET, WALK, replace(ADD, atomic=True)), kind="grid.x")
    verify_mir(function(atomic), legal=True)


LET_P = "%p = walk_decision_tree([%t], [rows[b]]) <depth = 1..2>"
REFUSED = {
    "rebound": (nest(GET, GET), "%t is bound twice in:\n  %t = get_tree(%model, t)"),
    "unbound": (nest(WALK), f"%t is not bound here in:\n  {LET_P}"),
    "bound in another loop": (function(rows(trees(*STATEMENT), ADD)),
        '%p is not bound here in:\n  reduce(result[b], %p) <"+", any>'),
    "wrong kind": (nest(GET, replace(ADD, value="%t")),
        '%t is a tree, not a leaf in:\n  reduce(result[b], %t) <"+", any>'),
    "variable out of scope": (function(trees(*STATEMENT)),
        f'the loop variable "b" is not in scope in:\n  {LET_P}'),
    "variable of the other root": (nest(mir.Let(("%t",), mir.GetTree(ROW))),
        '"b" counts along batch, not tree in:\n  %t = get_tree(%model, b)'),
    "variable twice": (nest(mir.Let(("%t",), mir.GetTree(mir.Affine(("t", "t"))))),
        "an index adds a loop variable twice in:\n  %t = get_tree(%model, t + t)"),
    "loop variable taken": (function(rows(rows(*STATEMENT))),
        'the loop variable "b" is taken in:\n  for b in 0 to rows:'),
    "bound on itself": (function(rows(bounds=(mir.Bound(BatchLength(), ROW),))),
        'the loop variable "b" is not in scope in:\n  for b in 0 to rows - b:'),
    "endless": (function(trees(step=0)),
        "a loop does not advance in:\n  for t in 0 to 4 step 0:"),
    "no bound": (function(trees(mir.CacheTrees(mir.Range(TREE, ())))),
        "a range has no end in:\n  cache_trees(%model, t : min())"),
    "no loop bound": (function(trees(bounds=())),
        "a loop has no bound in:\n  for t in 0 to min():"),
    "no remainder": (function(rows(group=2)),
        "groups need a remainder unless they divide the iterations in:\n"
        "  for b in 0 to rows groups of 2:"),
    "groups do not divide": (function(trees(group=3)),
        "groups need a remainder unless they divide the iterations in:\n"
        "  for t in 0 to 4 groups of 3:"),
    "remainder of nothing": (function(trees(remainder=(GET,))),
        "there is a remainder, but groups are single iterations in:\n"
        "  for t in 0 to 4:"),
    "lanes of trees": (function(trees(kind="vector", group=2)),
        "a vector loop has a row in each of several lanes in:\n"
        "  vector.for t in 0 to 4 groups of 2:"),
    "interleave not innermost": (function(trees(rows(), marks=(Interleave("t", 2),))),
        "only an innermost loop can be interleaved or vectorised in:\n"
        "  for t in 0 to 4:   interleave 2"),
    "directives left": (function(trees(marks=(Unroll("t"),))),
        "directives are left after the last pass in:\n  for t in 0 to 4:   unroll"),
    "walk left": (nest(*STATEMENT), f"a walk was not expanded in:\n  {LET_P}"),
    "rows and trees": (
        nest(GET, mir.Let(("%p",), mir.WalkDecisionTree(("%t",), (), 1, 1))),
        "1 trees, but 0 rows in:\n  %p = walk_decision_tree([%t], []) <depth = 1..1>",
    ),
    "names and trees": (nest(GET, replace(WALK, names=("%p", "%q"))),
        "2 names for 1 results in:\n"
        "  %p, %q = walk_decision_tree([%t], [rows[b]]) <depth = 1..2>"),
    "past a leaf": (
        nest(GET, mir.Let(("%p",), mir.WalkDecisionTree(("%t",), (ROW,), 1, 2, 2))),
        "unchecked hops go past the shallowest leaf in:\n"
        "  %p = walk_decision_tree([%t], [rows[b]]) <depth = 1..2, unroll_depth = 2>",
    ),
    "peeled past a leaf": (
        nest(GET, mir.Let(("%p",), mir.WalkDecisionTree(("%t",), (ROW,), 1, 2, 0, 2))),
        "unchecked hops go past the shallowest leaf in:\n"
        "  %p = walk_decision_tree([%t], [rows[b]]) <depth = 1..2, peel_depth = 2>",
    ),
    "unchecked walk loop": (
        nest(
            *EXPANDED[:3],
            replace(EXPANDED[3], step=replace(EXPANDED[3].step, checked=False)),
        ),
        "hops of a walk loop must be checked in:\n"
        "  %e = while any not is_leaf([%t], [%a]) from [%m]:\n"
        "    %a = traverse_tree_tile([%t], [%a], [rows[b]])",
    ),
    "leaf numbers of sums": (
        nest(GET, replace(WALK, op=replace(WALK.op, element="leaf_number"))),
        "the function's walks do not give back a leaf_number in:\n"
        "  %p = walk_decision_tree([%t], [rows[b]]) <depth = 1..2, leaf_number>",
    ),
    "no such array": (nest(GET, WALK, replace(ADD, target="s")),
        'the array "s" is not allocated here in:\n  reduce(s[b], %p) <"+", any>'),
    "array taken": (function(ALLOC, ALLOC),
        'the array "s" is taken in:\n  s = zeros[4, rows, outputs]'),
    "too few indices": (nest(GET, WALK, replace(ADD, indices=(ROW,))),
        '1 indices, but 2 dimensions in:\n  reduce(result[b], %p) <"+", any>'),
    "outputs first": (nest(GET, WALK, replace(ADD, indices=(mir.Outputs(), ROW))),
        "only the last dimension runs over outputs in:\n"
        '  reduce(result[:, b], %p) <"+", any>'),
    "other extent": (
        function(ALLOC, mir.ReduceDimension("result", "s", 3, EVERY, ZERO)),
        "s has another extent in:\n"
        '  result[0 : rows] += reduce_dimension(s[0 : 3, 0 : rows], 0) <"+">',
    ),
    "no such dimension": (
        function(ALLOC, mir.ReduceDimensionInplace("s", (ZERO, ZERO), 2, EVERY)),
        "s has no dimension 2 of that extent in:\n"
        '  reduce_dimension_inplace(s[0, 0, 0 : 2, 0 : rows], 2) <"+">',
    ),
    "class without a case": (
        function(trees(mir.DepthSwitch(TREE, ((1, 1),), (0, 0, 0, 1), ((),)))),
        "a position is of a class without a case in:\n"
        "  switch depth_class(t):   0 x 3, 1 x 1\n"
        "    case 0 <depth = 1..1>:",
    ),
    "positions without a class": (
        function(trees(mir.DepthSwitch(TREE, ((1, 1),), (0,), ((),)))),
        "a switch needs the class of every position in:\n"
        "  switch depth_class(t):   0 x 1\n"
        "    case 0 <depth = 1..1>:",
    ),
    "parallel trees": (function(trees(rows(*STATEMENT), kind="parallel")),
        'iterations of the parallel loop "t" share elements of result in:\n'
        '  reduce(result[b], %p) <"+", any>'),
    "parallel trees on a GPU": (function(trees(rows(*STATEMENT), kind="block.y")),
        'iterations of the parallel loop "t" share elements of result in:\n'
        '  reduce(result[b], %p) <"+", any>'),
    "parallel fill": (function(trees(mir.Fill("result", EVERY), kind="parallel")),
        'iterations of the parallel loop "t" share elements of result in:\n'
        "  result[0 : rows] = base"),
    "parallel reduction of shared slots": (
        function(
            mir.AllocArray(
                replace(SCRATCH, dims=(4, 2, BatchLength(), None)), zero=True
            ),
            trees(mir.ReduceDimensionInplace("s", (ZERO,), 2, EVERY), kind="parallel"),
        ),
        'iterations of the parallel loop "t" share elements of s in:\n'
        '  reduce_dimension_inplace(s[0, 0 : 2, 0 : rows], 1) <"+">',
    ),
    "a block without rows": (function(mir.QuantizeRows("c", EVERY, 0)),
        "a block of codes has at least one row in:\n"
        "  c = quantize_rows(0 : rows) <at most 0>"),
    "parallel leaves": (
        function(
            ALLOC,
            trees(
                rows(GET, WALK, mir.StoreLeaf("s", (ZERO, ROW, ZERO), "%p")),
                kind="parallel",
            ),
        ),
        'iterations of the parallel loop "t" share elements of s in:\n'
        "  s[0, b, 0] = %p",
    ),
}  # fmt: skip

#: What is asked for after some pass only.
AFTER_PASSES = {
    "directives left": {"final": True},
    "walk left": {"final": True},
    **{name: {"legal": True} for name in REFUSED if name.startswith("parallel ")},
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    bad, text = REFUSED[name]
    options = AFTER_PASSES.get(name, {})
    assert error_of(CompilerError, verify_mir, bad, **options) == text


def test_remainders_are_checked() -> None:
    loop = rows(trees(*STATEMENT), group=2, remainder=(GET,))
    assert error_of(CompilerError, verify_mir, function(loop)) == (
        'the loop variable "t" is not in scope in:\n  %t = get_tree(%model, t)'
    )
