"""Simplified programs are shorter and compute the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numpy.testing import assert_array_equal

from skforge.compiler.defaults.cpu import default_schedules
from skforge.compiler.driver import build_hir, lower
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import (
    F32,
    F64,
    I32,
    I64,
    U8,
    Buffer,
    Function,
    Value,
)
from skforge.compiler.ir.lir.printer import print_lir
from skforge.compiler.ir.lir.verifier import verify_lir
from skforge.compiler.ir.lir.walk import statements
from skforge.compiler.passes.lir import place_scratch, simplify
from skforge.compiler.passes.lir.simplify import constants_of
from skforge.compiler.target import Target
from skforge.engine.compiling import most_rows
from skforge.exceptions import CompilerError
from skforge.forest.reference import draw_rows, reference_raw
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import forest
from tests.lir_loops import for_
from tests.oracles.lir_interpreter import interpret_lir
from tests.oracles.lir_memory import DTYPES
from tests.refusals import error_of
from tests.strategies_lir import Program, lir_programs

Golden = Callable[[str, str], None]
X = Buffer("x", I64)
OUT = Buffer("out", I64)
N = Value("n", I64)


def simplified(b: Builder, *params: Any) -> Function:
    function = Function("f", params, b.finish())
    verify_lir(function)
    new = simplify.run(function)
    verify_lir(new)
    return new


def ops(function: Function) -> list[str]:
    lets = (s for s in statements(function.body) if isinstance(s, lir.Let))
    return [
        s.op.op if isinstance(s.op, lir.Binary) else type(s.op).__name__ for s in lets
    ]


@given(lir_programs())
def test_random_programs_keep_every_bit(program: Program) -> None:
    before, after = program.arguments(), program.arguments()
    new = simplify.run(program.function)
    verify_lir(new)
    interpret_lir(program.function, before)
    interpret_lir(new, after)
    for name, value in before.items():
        assert_array_equal(value, after[name], strict=isinstance(value, np.ndarray))


@given(lir_programs())
def test_a_second_run_finds_nothing_new_in_small_programs(program: Program) -> None:
    once = simplify.run(program.function)
    count = len(list(statements(once.body)))
    assert len(list(statements(simplify.run(once).body))) <= count


def test_constants_fold_with_the_wrap_of_their_type() -> None:
    b = Builder()
    total = b.add(b.const(200, U8), b.const(100, U8))
    b.store(OUT, b.const(0), b.convert(total, I64))
    new = simplified(b, OUT)
    assert ops(new) == ["Const", "Const"]
    out = np.zeros(1, np.int64)
    interpret_lir(new, {"out": out})
    assert out[0] == 44


def test_f32_arithmetic_folds_in_f32() -> None:
    b, out = Builder(), Buffer("out", F32)
    tenth = float(np.float32(0.1))
    b.store(out, b.const(0), b.binary("add", b.const(tenth, F32), b.const(1e8, F32)))
    new = simplified(b, out)
    got = np.zeros(1, np.float32)
    interpret_lir(new, {"out": got})
    assert ops(new) == ["Const", "Const"]
    assert got[0] == np.float32(0.1) + np.float32(1e8)


@pytest.mark.parametrize("element", [F32, F64])
def test_floats_keep_additions_of_zero_and_products_with_one(element: Any) -> None:
    b, x = Builder(), Buffer("x", element)
    v = b.load(x, b.const(0))
    v = b.binary("add", v, b.const(0.0, element))
    v = b.binary("mul", v, b.const(1.0, element))
    b.store(x, b.const(0), v)
    assert [op for op in ops(simplified(b, x)) if op in ("add", "mul")] == [
        "add",
        "mul",
    ]


def test_integer_identities_vanish() -> None:
    b = Builder()
    v = b.load(X, b.const(0))
    for op, c in (
        ("add", 0),
        ("mul", 1),
        ("sub", 0),
        ("or", 0),
        ("shl", 0),
        ("div", 1),
    ):
        v = b.binary(op, v, b.const(c))
    b.store(OUT, b.const(0), v)
    assert ops(simplified(b, X, OUT)) == ["Const", "Load"]


def test_equal_operations_are_shared_and_dead_ones_dropped() -> None:
    b = Builder()
    v = b.load(X, b.const(0))
    b.load(X, N)
    left, right = b.mul(v, N), b.mul(v, N)
    b.binary("sub", left, v)
    b.store(OUT, b.const(0), b.add(left, right))
    assert ops(simplified(b, N, X, OUT)) == ["Const", "Load", "mul", "add"]


def test_zeros_of_either_sign_are_two_constants() -> None:
    b, out = Builder(), Buffer("out", F32)
    b.store(out, b.const(0), b.const(0.0, F32))
    b.store(out, b.const(1), b.const(-0.0, F32))
    got = np.ones(2, np.float32)
    interpret_lir(simplified(b, out), {"out": got})
    assert np.signbit(got).tolist() == [False, True]


def test_invariant_integers_leave_the_loop_and_loads_stay(golden: Golden) -> None:
    b = Builder()

    def body(var: Value, _: tuple[Value, ...]) -> None:
        row = b.mul(N, 8)
        quotient = b.binary("div", row, N)  # n may be 0 when the loop does not run
        b.store(OUT, var, b.add(b.load(X, row), quotient))

    for_(b, b.const(0), N, b.const(1), body)
    golden(print_lir(simplified(b, N, X, OUT)), "hoisted")


def test_branches_switches_and_loops_of_known_course_are_inlined(golden):
    b = Builder()
    cond = b.compare("lt", b.const(1, I32), b.const(2, I32))
    with b.body() as then:
        b.store(OUT, b.const(0), N)
    with b.body() as orelse:
        b.store(OUT, b.const(1), N)
    b.emit(lir.If(cond, tuple(then), tuple(orelse)))
    (picked,) = b.switch(b.const(9), [lambda: [N], lambda: [b.const(5)]], [I64])
    (total,) = for_(
        b, b.const(3), b.const(5), b.const(2), lambda i, c: [b.add(c[0], i)], [picked]
    )
    for_(b, b.const(3), b.const(3), b.const(1), lambda i, _: b.store(OUT, i, i))
    b.store(OUT, b.const(2), total)
    golden(print_lir(simplified(b, N, OUT)), "inlined")


@pytest.mark.parametrize(
    ("made", "kept"),
    [
        (lambda b: b.const(77), ["Const"]),
        (lambda b: b.mul(N, N), ["mul"]),  # no constant: takes a second walk
    ],
)
def test_what_leaves_a_loop_is_not_made_again_in_its_branches(made, kept):
    b = Builder()
    zero, cond = b.const(0), b.compare("lt", N, b.const(3))

    def body(var: Value, _: tuple[Value, ...]) -> None:
        b.if_(cond, lambda: b.store(OUT, var, made(b)))
        for_(b, zero, N, b.const(1), lambda i, _: b.store(OUT, i, made(b)))
        b.store(OUT, zero, made(b))

    for_(b, zero, N, b.const(1), body)
    function = simplified(b, N, OUT)
    others = ["Const", "Const", "Compare", "Const"]
    assert sorted(ops(function)) == sorted(others + kept)
    lets = [stmt for stmt in function.body if isinstance(stmt, lir.Let)]
    assert len(lets) == len(ops(function))  # all before the loop


def test_a_hoisted_operation_serves_the_loops_after_it() -> None:
    b = Builder()
    for _ in range(2):
        for_(
            b, b.const(0), N, b.const(1), lambda i, _: b.store(OUT, i, b.mul(N, N)), ()
        )
    assert ops(simplified(b, N, OUT)).count("mul") == 1


def test_bounds_of_loops_that_vanish_vanish() -> None:
    b = Builder()
    hi = b.mul(N, N)
    for_(b, b.const(0), hi, b.const(1), lambda i, _: None)
    b.if_(b.compare("lt", hi, N), lambda: None)
    assert simplified(b, N).body == ()


# ------------------------------------------------------------ place scratch


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
