"""What profiles count: the bytes that a kernel moves, and its instructions."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.verifier import verify_lir
from tests.oracles.lir_interpreter import interpret_lir

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from assembly import describe, mnemonics
from moved import RUNS, Counting, grown


def test_bytes_are_counted_as_bodies_run() -> None:
    """Vectors, windows of an array, branches and gathers, of 24 numbers."""
    numbers, out = np.arange(24, dtype=np.float32), np.zeros(24, np.float32)
    source, to = lir.Buffer("source", lir.F32), lir.Buffer("to", lir.F32)
    with Builder() as b, b.loop(0, 16, 8) as i:
        to[i] = source[i, lir.Vec(lir.F32, 8)]
        bytes_ = b.view("bytes", lir.U8, source, i)
        with b.when(i.eq(8)):
            b.store(to, i, bytes_[0].to(lir.F32))
    function = lir.Function("f", (source, to), b.finish())
    counting = Counting.of(function)
    verify_lir(counting.function)
    runs = np.zeros(len(counting.of_body), np.int64)
    arrays = {"source": numbers, "to": out}
    interpret_lir(counting.function, {**arrays, RUNS.name: runs})
    moved = counting.bytes(runs)
    assert moved == {"source": 2 * 32 + 1, "to": 2 * 32 + 4}
    assert grown(moved, {"source": 64, "to": 68}) == {"source": 1}
    expected = np.append(numbers[:16], np.zeros(8, np.float32))
    expected[8] = numbers.view(np.uint8)[32]
    np.testing.assert_array_equal(out, expected)


def test_instructions_are_counted_by_name() -> None:
    text = "f:\n\tmovl\t$1, %eax\n.L1:\n\t.p2align\t4\n\tmovl %eax, %ecx\n\tretq\n"
    assert mnemonics(text) == Counter(movl=2, retq=1)
    assert describe(mnemonics(text), 1) == "3 (movl 2)"
