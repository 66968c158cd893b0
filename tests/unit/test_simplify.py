"""Simplified programs are shorter and compute the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numpy.testing import assert_array_equal

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
from skforge.compiler.passes.lir import simplify
from tests.lir_loops import for_
from tests.oracles.lir_interpreter import interpret_lir
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
