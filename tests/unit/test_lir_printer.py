"""LIR as text: one program with every statement and operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from string import Formatter
from typing import Any, get_args

import pytest

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import (
    BOOL,
    F32,
    I32,
    I64,
    U8,
    Buffer,
    Function,
    Mask,
    Plane,
    Value,
    Vec,
)
from skforge.compiler.ir.lir.operations import OPERATIONS
from skforge.compiler.ir.lir.printer import (
    _STATEMENTS,
    print_lir,
    print_stmt,
    print_type,
)
from skforge.compiler.ir.lir.verifier import verify_lir
from tests.lir_loops import for_, parallel_for, while_

Golden = Callable[[str, str], None]
N = Value("n", I64)
X = Buffer("x", F32)


def test_scalars_vectors_and_control(golden: Golden) -> None:
    b = Builder()
    zero, one = b.const(0), b.const(1)
    v = b.load(X, zero, Vec(F32, 8))
    nan = b.is_nan(v)
    index = b.convert(b.iota(I32, 8), I64)
    rest = b.splat(b.const(-0.0, F32), 8)
    got = b.let(lir.Gather(X, index, nan, rest), Vec(F32, 8), "gather")
    chosen = b.select(b.invert(nan), v, got)
    b.emit(lir.Scatter(X, index, chosen))
    bits = b.mask_bits(nan, I32)
    b.store(X, one, b.extract(chosen, 7))
    any_ = b.any_true(nan)

    def body(var: Value, carried: tuple[Value, ...]) -> list[Value]:
        b.emit(lir.Prefetch(X, var))
        b.emit(lir.Touch(X, var))
        return [b.binary("add", carried[0], b.bitcast(b.load(X, var), I32))]

    (total,) = for_(b, zero, N, one, body, [bits])
    (low,) = while_(
        b,
        [total],
        lambda c: b.compare("gt", c[0], 7),
        lambda c: [b.binary("shr", c[0], 1)],
    )
    with b.body() as then:
        left = b.convert(low, F32)
    with b.body() as orelse:
        right = b.convert(b.count_zeros(low), F32)
    result = Value("result", F32)
    b.emit(lir.If(any_, tuple(then), tuple(orelse), (left,), (right,), (result,)))
    b.emit(lir.If(any_, (), ()))
    b.switch(low, [lambda: b.store(X, one, result), lambda: None])
    scratch = b.alloc("scratch", F32, N, space="private", alignment=64)

    def iteration(var: Value) -> None:
        b.store(scratch, var, result)
        b.emit(lir.AtomicAdd(X, zero, result))

    parallel_for(b, N, iteration)
    function = Function("everything", (N, X), b.finish())
    verify_lir(function)
    golden(print_lir(function), "lir")


def test_planes(golden: Golden) -> None:
    table = Buffer("table", U8, alignment=64)
    codes = Buffer("codes", U8)
    b, plane = Builder(), Plane(64)
    zero, one = b.const(0), b.const(1)
    first = b.let(lir.LoadPlane(table, zero), plane, "p")
    second = b.let(lir.LoadPlane(table, one), plane, "p")
    mixed = b.let(lir.PlaneMux(first, second, first), plane, "p")
    b.emit(lir.StorePlane(table, zero, mixed))
    index = b.let(lir.PlanesToIndex((first, mixed)), Vec(U8, 64), "index")
    b.store(codes, zero, index)
    params = (codes, table)
    function = Function("planes", params, b.finish())
    assert print_type(Plane(64, vector=True)) == "plane<64, vector>"
    verify_lir(function)
    golden(print_lir(function), "lir")


def test_launches(golden: Golden) -> None:
    b, out = Builder(), Buffer("out", F32)
    block_id, thread = Value("block_id", I64), Value("thread", I64)
    with b.body() as grid:
        with b.body() as region:
            v = b.load(out, thread)
            total = b.let(lir.WarpReduce(v, 32), F32, "sum")
            b.store(out, thread, total)
        dims = (("block.x", thread, N),)
        b.emit(lir.BlockRegion(dims, tuple(region)))  # type: ignore[arg-type]
    b.emit(lir.Grid((("grid.x", block_id, N),), tuple(grid)))
    function = Function("launches", (N, out), b.finish())
    verify_lir(function)
    golden(print_lir(function), "lir")


def test_a_statement_is_its_first_line() -> None:
    mask = Value("m", Mask(4))
    assert print_stmt(lir.Let(Value("b", BOOL), lir.AnyTrue(mask))) == (
        "%b: bool = any_true %m"
    )
    body = (lir.Store(X, N, Value("v", F32)),)
    assert print_stmt(lir.ParallelFor(Value("i", I64), N, body)) == (
        "parallel_for %i: i64 < %n {"
    )


@pytest.mark.parametrize("kind", [*get_args(lir.Op), *get_args(lir.Access)])
def test_every_field_is_printed(kind: type[Any]) -> None:
    text = _STATEMENTS.get(kind) or OPERATIONS[kind].text
    if text:  # without a text, it is the name and all fields
        shown = {name for _, name, _, _ in Formatter().parse(text) if name}
        assert shown == {field.name for field in fields(kind)}
