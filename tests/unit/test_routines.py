"""Routines: calls, views of memory, atomic accesses and returns, as text and run."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import pytest

from skforge.compiler.codegen.llvm.emitter import emit_llvm
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import F64, I32, I64, Buffer, Value
from skforge.compiler.ir.lir.printer import print_lir
from skforge.compiler.ir.lir.verifier import verify_lir
from skforge.compiler.runtime.cpu.code import MachineCode
from skforge.compiler.runtime.cpu.jit import object_of
from skforge.compiler.target import Target
from skforge.exceptions import CompilerError
from skforge.gpu.codegen.emitter import emit_gpu

N, D, WORDS = Value("n", I64), Value("d", F64), Buffer("words", I64)

_Called = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_double)


def routine(
    b: Builder, *params: Value | Buffer, result: lir.Scalar | None = I64
) -> lir.Routine:
    return lir.Routine("routine", params, b.finish(), result)


def run(made: lir.Routine, *args: Any, **symbols: int) -> int:
    """Compile a routine of i64 and addresses, and call it."""
    host = Target.host()
    jit = MachineCode(*object_of(made, host), host, symbols)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(args))
    return int(kind(jit.address("routine"))(*args))


def words(*values: int) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def test_it_calls_functions_by_symbol_and_by_address() -> None:
    calls = []

    def note(n: int, d: float) -> int:
        calls.append((n, d))
        return 10 * n

    called = _Called(note)
    address = ctypes.cast(called, ctypes.c_void_p).value or 0
    with Builder() as b:
        first = b.call("called", N, b.const(0.5, F64))
        b.run(b.symbol("other"), first, b.const(0.25, F64))
        b.give(first + 1)
    made = routine(b, N)
    assert run(made, 7, called=address, other=address) == 71
    assert calls == [(7, 0.5), (70, 0.25)]


def test_it_returns_from_inner_bodies() -> None:
    with Builder() as b:
        with b.loop(N) as i, b.when(WORDS[i].eq(3)):
            b.give(i)
        b.give(b.const(-1))
    made = routine(b, WORDS, N)
    data = words(5, 4, 3, 2)
    assert run(made, ctypes.addressof(data), 4) == 2
    assert run(made, ctypes.addressof(data), 2) == -1


def test_it_gives_scratch_back_before_it_returns() -> None:
    with Builder() as b:
        scratch = b.alloc("scratch", I64, N)
        with b.when(N > 3):
            scratch[0] = N
            b.give(scratch[0])
        b.give(b.const(0))
    made = routine(b, N)
    text = emit_llvm(made, Target.host())
    assert len(re.findall(r"call void @free\(.*\)\n  ret i64", text)) == 2
    assert (run(made, 9), run(made, 1)) == (9, 0)


def test_a_view_is_memory_at_an_address() -> None:
    data = words(1, 2, 3)
    with Builder() as b:
        tail = b.view("tail", I64, b.address(WORDS, N))
        tail[0] = tail[0] + 40
        b.give(tail[0])
    made = routine(b, WORDS, N)
    assert run(made, ctypes.addressof(data), 2) == 43
    assert list(data) == [1, 2, 43]


def test_either_returns_the_value_of_one_side() -> None:
    with Builder() as b:
        b.give(b.either(N > 0, lambda: N * 2, lambda: b.const(-1)))
    made = routine(b, N)
    assert (run(made, 4), run(made, -4)) == (8, -1)


@pytest.mark.parametrize(
    ("op", "given", "gives", "after"),
    [
        ("load", (), 5, 5),
        ("store", (8,), 0, 8),
        ("swap", (8,), 5, 8),
        ("sub", (2,), 5, 3),
        ("replace", (5, 8), 1, 8),
        ("replace", (6, 8), 0, 5),
    ],
)
@pytest.mark.parametrize("order", ["monotonic", "seq_cst"])
def test_atomic_accesses(
    op: Any, order: Any, given: tuple[int, ...], gives: int, after: int
) -> None:
    with Builder() as b:
        found = b.atomic(op, order, WORDS, *map(b.const, given), at=1)
        b.give(b.const(0) if op == "store" else found.to(I64))
    made, data = routine(b, WORDS), words(1, 5)
    assert run(made, ctypes.addressof(data)) == gives
    assert list(data) == [1, after]
    assert f" {order}" in emit_llvm(made, Target.host())


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


def test_a_view_of_a_buffer_is_no_address() -> None:
    with Builder() as b:
        total = [b.const(0)]
        table = b.view("table", I64, b.symbol("table"))
        with b.loop(N, carry=total) as i:
            pair = b.view("pair", I64, WORDS, i << 1)
            total[0] = total[0] + pair[0] * pair[1] + table[i]
        b.give(total[0])
    made = routine(b, N, WORDS)
    data, more = words(2, 3, 5, 7, -1, 4), words(100, 200, 300)
    assert run(made, 3, ctypes.addressof(data), table=ctypes.addressof(more)) == 637
    assert re.search(r"view @pair\.\d+: i64 at @words\[%", print_lir(made))
    assert "toptr" not in emit_llvm(made, Target.host())


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
