"""Every class of LIR declares the roles of its fields; every operation has a row."""

from __future__ import annotations

from dataclasses import fields
from string import Formatter
from typing import Any, get_args, get_type_hints

import pytest

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import (
    BOOL,
    I64,
    Buffer,
    Let,
    Mask,
    Plane,
    Value,
    Vec,
)
from skforge.compiler.ir.lir.operations import OPERATIONS, is_pure, may_hoist
from skforge.compiler.ir.lir.printer import _STATEMENTS, print_stmt, print_type

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
