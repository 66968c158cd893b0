"""Kernels whose scratch is the caller's compute what they did, within its bounds."""

from __future__ import annotations

import numpy as np
import pytest

from skforge.compiler.defaults.cpu import default_schedules
from skforge.compiler.driver import build_hir, lower
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import F32, I64, Buffer, Function, Value
from skforge.compiler.ir.lir.verifier import verify_lir
from skforge.compiler.ir.lir.walk import statements
from skforge.compiler.passes.lir import place_scratch
from skforge.compiler.passes.lir.simplify import constants_of
from skforge.compiler.target import Target
from skforge.engine.compiling import most_rows
from skforge.exceptions import CompilerError
from skforge.forest.reference import draw_rows, reference_raw
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import forest
from tests.oracles.lir_interpreter import interpret_lir
from tests.oracles.lir_memory import DTYPES
from tests.refusals import error_of

TARGET = Target.x86_64("v3")
BLOCKS = Schedule().tile("batch", "b0", "b1", 64).reorder("b0", "tree", "b1")
SCHEDULES = {
    "rows": BLOCKS.parallel("b0"),
    "trees": Schedule().parallel("tree"),
    "trees of blocks": BLOCKS.parallel("tree"),
    "all trees first": Schedule()
    .tile("tree", "t0", "t1", 2)
    .reorder("t0", "t1", "batch")
    .parallel("t0"),
    "both": Schedule.preset("parallel-both"),
    "default": None,
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("reduction", ["exact", "reproducible", "fast"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_same_sums_in_the_callers_memory(name: str, reduction: str) -> None:
    model = forest("multiclass")
    schedule = SCHEDULES[name]
    if schedule is None:
        table = default_schedules(model, TARGET, reduction)
        schedule = table[max(table)]
    lowered = lower(build_hir(model, schedule, reduction), TARGET)
    limit = 1 << 14
    most = most_rows(lowered, limit)
    before = lowered.kernel.function
    function, sizes = place_scratch.run(before, most or 1 << 40)
    verify_lir(function)
    known, stays = constants_of(function), 0
    for stmt in statements(function.body):
        assert not isinstance(stmt, lir.ParallelFor)
        if isinstance(stmt, lir.Alloc):
            stays += known[stmt.size.name] * stmt.buffer.element.bytes
    assert stays <= place_scratch.STACK_BYTES
    assert not (sizes and stays)
    assert len(function.params) == len(before.params) + len(sizes)
    rows = draw_rows(model, min(most or 150, 150), 1, 0.1)
    result = np.zeros((len(rows), model.n_outputs), model.accumulator_dtype)
    values = [rows.reshape(-1), len(rows), rows.shape[1], result.reshape(-1)]
    values += [item.data.reshape(-1) for item in lowered.kernel.data]
    for buffer, size in zip(function.params[len(values) :], sizes, strict=True):
        assert size % 64 == 0
        dtype = DTYPES[buffer.element.name]
        values.append(np.zeros(size // dtype.itemsize, dtype))
    names = [param.name for param in function.params]
    interpret_lir(function, dict(zip(names, values, strict=True)))
    wanted = reference_raw(model, rows)
    if reduction == "exact":
        np.testing.assert_array_equal(result, wanted)
    else:
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("count", "stays"), [(200, True), (1100, False)])
def test_what_is_small_stays_on_the_stack(count: int, stays: bool) -> None:
    n = Value("n", I64)
    x = Buffer("x", F32)
    b = Builder()
    for buffer in (b.alloc("a", F32, b.const(count)), b.alloc("b", F32, b.const(160))):
        b.emit(lir.Store(buffer, b.const(0), b.const(1.0, F32)))
    function, sizes = place_scratch.run(Function("f", (x, n), b.finish()), 100)
    verify_lir(function)
    allocs = [s for s in statements(function.body) if isinstance(s, lir.Alloc)]
    assert len(allocs) == (2 if stays else 0)
    assert sizes == (() if stays else (4480, 704))
    assert len(function.params) == 2 + len(sizes)


def test_what_grows_with_the_rows_is_as_large_as_they_may_be() -> None:
    n = Value("n", I64)
    x = Buffer("x", F32)
    b = Builder()
    grown = b.alloc("grown", F32, b.mul(n, b.const(2)))
    b.emit(lir.Store(grown, b.const(0), b.const(1.0, F32)))
    function, sizes = place_scratch.run(Function("f", (x, n), b.finish()), 100)
    assert function.params == (x, n, grown)
    assert sizes == (896,)


def test_scratch_of_unknown_size_is_refused() -> None:
    n = Value("n", I64)
    counts = Buffer("counts", I64)
    b = Builder()
    b.alloc("some", F32, b.load(counts, b.const(0)))
    function = Function("f", (counts, n), b.finish())
    assert error_of(CompilerError, place_scratch.run, function, 100) == (
        "The size of @some.3 in 'f' depends on more than the number of rows."
    )
