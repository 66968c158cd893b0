"""MIR as text: stable, and different for different functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given

from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.printer import loop_line, print_mir, print_statement
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
