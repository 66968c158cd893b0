"""Tests of ``unit/test_routines.py`` that compile or start processes."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import pytest

from skforge.compiler.codegen.llvm.emitter import emit_llvm
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import F64, I64
from skforge.compiler.ir.lir.printer import print_lir
from skforge.compiler.target import Target
from skforge.engine.cpu.code import MachineCode
from skforge.engine.cpu.jit import object_of
from tests.unit.test_routines import WORDS, N, routine, words

_Called = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_double)


def run(made: lir.Routine, *args: Any, **symbols: int) -> int:
    """Compile a routine of i64 and addresses, and call it."""
    host = Target.host()
    jit = MachineCode(*object_of(made, host), host, symbols)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(args))
    return int(kind(jit.address("routine"))(*args))


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
