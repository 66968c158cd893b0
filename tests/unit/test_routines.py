"""Routines: calls, views of memory, atomic accesses and returns, as text and run."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import F64, I32, I64, Buffer, Value
from skforge.compiler.ir.lir.printer import print_lir
from skforge.compiler.ir.lir.verifier import verify_lir
from skforge.compiler.target import Target
from skforge.exceptions import CompilerError
from skforge.gpu.codegen.emitter import emit_gpu

N, D, WORDS = Value("n", I64), Value("d", F64), Buffer("words", I64)


def routine(
    b: Builder, *params: Value | Buffer, result: lir.Scalar | None = I64
) -> lir.Routine:
    return lir.Routine("routine", params, b.finish(), result)


def words(*values: int) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def test_its_text() -> None:
    with Builder() as b:
        place = b.view("place", I32, b.symbol("table"))
        b.atomic("store", "release", place, b.const(1, I32))
        b.run("done", b.call("next", N, gives=F64))
        b.give()
    assert print_lir(routine(b, N, result=None)) == (
        "func routine(%n: i64) {\n"
        "  %table.1: i64 = symbol table\n"
        "  view @place.2: i32 at %table.1\n"
        "  %c.3: i32 = const 1\n"
        "  %c.4: i64 = const 0\n"
        "  atomic store release @place.2[%c.4] (%c.3)\n"
        "  %next.6: f64 = call next(%n)\n"
        "  call done(%next.6)\n"
        "  return\n"
        "}\n"
    )


A = Value("a", I64)
RETURN = lir.Return((N,))


@pytest.mark.parametrize(
    ("why", "body"),
    [
        ("the routine ends without a result", ()),
        ("the routine has another result", (lir.Return(()),)),
        ("the routine has another result", (lir.Return((D,)),)),
        ("%a is not defined", (lir.Call("f", (A,)), RETURN)),
        ("a function has one result", (lir.Call("f", (), (A, Value("b", I64))),)),
        ("a function takes and gives scalars",
         (lir.Call("f", (), (Value("m", lir.Mask(4)),)),)),
        ("f is called with other types before",
         (lir.Call("f", (N,)), lir.Call("f", (D,)), RETURN)),
        ("a call without a symbol or an address", (lir.Call("", (D,)), RETURN)),
        ("address and i64 differ in type: f64, i64",
         (lir.View(Buffer("v", I64), D), RETURN)),
        ("@gone is not defined",
         (lir.Window(Buffer("v", I64), Buffer("gone", I64), N), RETURN)),
        ("index %d is f64, not i32 or i64",
         (lir.Window(Buffer("v", I64), WORDS, D), RETURN)),
        ("@reals holds no integers",
         (lir.Atomic("load", Buffer("reals", F64), N, (), "acquire", (D,)),)),
        ("swap takes 1 of i64",
         (lir.Atomic("swap", WORDS, N, (), "acquire", (A,)), RETURN)),
        ("replace does not give this",
         (lir.Atomic("replace", WORDS, N, (N, N), "acquire", (A,)), RETURN)),
    ],
)  # fmt: skip
def test_refused(why: str, body: lir.Body) -> None:
    params = N, D, WORDS, Buffer("reals", F64)
    with pytest.raises(CompilerError) as info:
        verify_lir(lir.Routine("routine", params, body, I64))
    assert str(info.value).startswith(why)


def test_kernels_call_nothing() -> None:
    with pytest.raises(CompilerError, match="only a routine has views, calls"):
        verify_lir(lir.Function("kernel", (N,), (lir.Call("f", (N,)),)))


def test_gpus_call_nothing() -> None:
    function = lir.Function("kernel", (N,), (lir.Call("f", (N,)),))
    with pytest.raises(CompilerError, match="Call outside a launch"):
        emit_gpu(function, Target.cuda("sm_80"))
