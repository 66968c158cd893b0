"""Every class of LIR declares the roles of its fields; every operation has a row."""

from __future__ import annotations

from dataclasses import fields
from string import Formatter
from typing import Any, get_args, get_type_hints

import pytest

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import (
    BOOL,
    F32,
    F64,
    I32,
    I64,
    U8,
    Buffer,
    Let,
    Mask,
    Plane,
    Value,
    Vec,
)
from skforge.compiler.ir.lir.operations import OPERATIONS, is_pure, may_hoist
from skforge.compiler.ir.lir.printer import (
    _STATEMENTS,
    print_lir,
    print_stmt,
    print_type,
)
from skforge.compiler.ir.lir.verifier import verify_lir

A, B, N = Value("a", I64), Value("b", I64), Value("n", I64)
T = Value("t", BOOL)
X = Buffer("x", I64)


def values_in(hint: Any) -> bool:
    """Whether a type holds values, buffers or statements."""
    inner = get_args(hint)
    return hint in (Value, Buffer, Let) or any(map(values_in, inner))


@pytest.mark.parametrize("kind", [*get_args(lir.Op), *get_args(lir.Stmt)])
def test_every_value_buffer_and_body_has_a_role(kind: type[Any]) -> None:
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if (kind, name) != (lir.Let, "op"):
            assert values_in(hint) == hasattr(hint, "__metadata__"), name


def test_every_operation_has_a_row() -> None:
    assert set(OPERATIONS) == set(get_args(lir.Op))


def test_operations_on_memory_and_on_threads_are_not_shared() -> None:
    found = {kind for kind in get_args(lir.Op) if not is_pure(kind)}
    assert found == {
        lir.Load, lir.Gather, lir.LoadPlane, lir.Threads, lir.WarpReduce, lir.Address,
    }  # fmt: skip


def test_what_may_run_before_a_loop() -> None:
    x, vec = Value("x", lir.F32), Vec(lir.F32, 4)
    assert may_hoist(lir.Splat(x), vec)
    assert may_hoist(lir.Binary("add", A, B), I64)
    assert not may_hoist(lir.Binary("div", A, B), I64)
    assert not may_hoist(lir.Binary("add", x, x), lir.F32)
    assert not may_hoist(lir.Compare("lt", x, x), BOOL)
    assert not may_hoist(lir.Convert(A), lir.F32)
    assert not may_hoist(lir.MaskBits(Value("m", Mask(8))), lir.U8)


# ------------------------------------------------------------ as text


def test_a_statement_is_its_first_line() -> None:
    assert print_type(Plane(64, vector=True)) == "plane<64, vector>"
    mask = Value("m", Mask(4))
    assert print_stmt(lir.Let(T, lir.AnyTrue(mask))) == "%t: bool = any_true %m"
    body = (lir.Store(X, N, A),)
    assert print_stmt(lir.ParallelFor(B, N, body)) == ("parallel_for %b: i64 < %n {")


@pytest.mark.parametrize("kind", [*get_args(lir.Op), *get_args(lir.Access)])
def test_every_field_is_printed(kind: type[Any]) -> None:
    text = _STATEMENTS.get(kind) or OPERATIONS[kind].text
    if text:  # without a text, it is the name and all fields
        shown = {name for _, name, _, _ in Formatter().parse(text) if name}
        assert shown == {field.name for field in fields(kind)}


# ------------------------------------------------------------ kernel language


BOUND = Value("x", F32)
ROWS, OUT = Buffer("rows", F32), Buffer("out", F32)


def written(b: Builder, *params: Value | Buffer) -> str:
    function = lir.Function("f", params, b.finish())
    verify_lir(function)
    return print_lir(function)


def test_expressions_are_the_calls_of_the_builder() -> None:
    def by_calls(b: Builder) -> None:
        i = b.convert(N, I32)
        places = b.add(b.iota(I32, 4), i)
        some = b.load(ROWS, places)
        more = b.compare("gt", some, BOUND)
        bits = b.mask_bits(b.invert(more), U8)
        wide = b.convert(bits, I64)
        b.store(ROWS, places, b.binary("mul", some, some))
        b.store(OUT, b.binary("shr", wide, 1), b.load(ROWS, N))
        least = b.binary("min", b.binary("rem", N, 8), b.binary("xor", N, wide))
        b.store(OUT, b.binary("or", least, b.binary("sub", N, 1)), BOUND)

    def by_expressions(b: Builder) -> None:
        places = b.iota(I32, 4) + N.to(I32)
        some = ROWS[places]
        wide = b.mask_bits(~(some > BOUND), U8).to(I64)
        ROWS[places] = some * some
        b.store(OUT, wide >> 1, ROWS[N])
        b.store(OUT, (N % 8).min(N ^ wide) | N - 1, BOUND)

    calls, expressions = Builder(), Builder()
    by_calls(calls)
    with expressions:
        by_expressions(expressions)

    def ops(b: Builder) -> list[str]:  # numbers follow the order of evaluation
        lines = written(b, N, BOUND, ROWS, OUT).splitlines()
        return sorted(line.split(" = ")[-1].split()[0] for line in lines[1:-1])

    assert ops(calls) == ops(expressions)


def test_builders_nest_and_the_outer_one_goes_on() -> None:
    with Builder() as outer:
        one = N + 1
        with Builder() as inner:
            N * 3
        two = one + 2
    assert [type(s.op).__name__ for s in inner.finish()] == ["Const", "Binary"]  # type: ignore[union-attr]
    assert two.type == I64
    assert len(outer.finish()) == 4
    with pytest.raises(LookupError):
        N + N


def test_values_have_no_truth_and_buffers_no_length() -> None:
    with Builder():
        with pytest.raises(TypeError, match="%n has no value yet; use select"):
            assert N
        with pytest.raises(TypeError, match="has no value yet"):
            max(BOUND.eq(BOUND), BOUND.ne(BOUND), key=bool)
        with pytest.raises(TypeError):
            iter(ROWS)  # type: ignore[call-overload]


def test_scalars_take_the_lanes_of_vectors_and_zero_adds_nothing() -> None:
    with Builder() as b:
        vector = ROWS[N, Vec(F32, 8)]
        wide = vector + BOUND
        assert wide.type == Vec(F32, 8)
        assert vector.to(F64).type == Vec(F64, 8)
        before = len(b.finish())
        assert (N + 0, N * 1, N.to(I64)) == (N, N, N)
        assert len(b.finish()) == before


def test_numbers_on_the_left_are_constants_of_the_right_type() -> None:
    with Builder() as b:
        OUT[100 // (64 - N)] = 2.0 - BOUND
        OUT[(1 << N) + 8] = 3.0 * BOUND
    assert (
        written(b, N, BOUND, OUT)
        == """\
func f(%n: i64, %x: f32, @out: f32) {
  %c.1: f32 = const 2.0
  %sub.2: f32 = sub %c.1, %x
  %c.3: i64 = const 64
  %sub.4: i64 = sub %c.3, %n
  %c.5: i64 = const 100
  %div.6: i64 = div %c.5, %sub.4
  store @out[%div.6] = %sub.2
  %c.7: f32 = const 3.0
  %mul.8: f32 = mul %x, %c.7
  %c.9: i64 = const 1
  %shl.10: i64 = shl %c.9, %n
  %c.11: i64 = const 8
  %add.12: i64 = add %shl.10, %c.11
  store @out[%add.12] = %mul.8
}
"""
    )
