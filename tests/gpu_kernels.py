"""LIR functions with grids, for tests of GPU emitters and compilers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import (
    F32,
    F64,
    I32,
    I64,
    U8,
    U16,
    U32,
    Buffer,
    Function,
    Value,
    Vec,
)
from skforge.compiler.ir.lir.verifier import verify_lir
from skforge.compiler.target import Target
from skforge.exceptions import TargetError
from skforge.gpu.codegen.emitter import emit_gpu
from skforge.gpu.codegen.host_plan import HostPlan
from skforge.gpu.codegen.writer import PRELUDE
from tests.gpu_binary import compiler_path
from tests.lir_loops import for_, while_

CUDA = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100")
HIP = ("gfx90a", "gfx1030")


def needs(kind: str) -> None:
    """Skip the test where the vendor's compiler is not installed."""
    try:
        compiler_path(kind)
    except TargetError as error:
        pytest.skip(str(error))


class Launches(Builder):
    """Writes grids of one dimension and their regions."""

    @contextmanager
    def grid(
        self, count: Value, hint: str = "block", axis: str = "x"
    ) -> Iterator[Value]:
        block = Value(self.name(hint), count.type)
        with self.body() as stmts:
            yield block
        self.emit(lir.Grid(((f"grid.{axis}", block, count),), tuple(stmts)))  # type: ignore[arg-type]

    @contextmanager
    def region(self, threads: int) -> Iterator[Value]:
        thread = Value(self.name("thread"), I64)
        count = self.const(threads)
        with self.body() as stmts:
            yield thread
        self.emit(lir.BlockRegion((("block.x", thread, count),), tuple(stmts)))


def plan_of(function: Function, arch: str = "sm_80") -> HostPlan:
    """Verify and emit."""
    verify_lir(function)
    return emit_gpu(function, Target.cuda(arch))


def kernels_text(plan: HostPlan) -> str:
    """Return the text after the prelude."""
    assert plan.source.startswith(PRELUDE)
    return plan.source[len(PRELUDE) :].strip() + "\n"


N = Value("n_rows", I64)
N_TREES = Value("n_trees", I64)


def one_region(
    write: Callable[[Launches, Value], None], *params: Value | Buffer
) -> Function:
    """Return a function of one block of 64 threads."""
    b = Launches()
    with b.grid(b.const(1)), b.region(64) as thread:
        write(b, thread)
    return Function("one", params, b.finish())


def walk_function(features: int = 8, threads: int = 128) -> Function:
    """Rows cached in shared memory, a loop over trees, 8-byte nodes, a partial sum.

    A second launch adds the partial sums of two halves of the trees.
    """
    b = Launches()
    rows = Buffer("rows", F32, alignment=16)
    nodes = Buffer("nodes", U8, alignment=16)
    result = Buffer("result", F32)
    blocks = b.binary("div", b.add(N, threads - 1), threads)
    partial = b.alloc("partial", F32, b.mul(N, 2))
    with b.grid(blocks) as block:
        first = b.mul(block, threads)
        cache = b.alloc("cache", F32, b.const(threads * features), space="shared")
        with b.region(threads) as thread:
            row = b.add(first, thread)

            def copy() -> None:
                values = b.load(rows, b.mul(row, features), Vec(F32, features))
                b.store(cache, b.mul(thread, features), values)

            b.if_(b.compare("lt", row, N), copy)
        with b.region(threads) as thread:
            row = b.add(first, thread)

            def half(which: int) -> None:
                lo = b.mul(N_TREES, which)
                hi = b.add(lo, N_TREES)
                trees = for_(
                    b,
                    lo,
                    hi,
                    b.const(1),
                    lambda tree, acc: [_walk(b, nodes, cache, thread, tree, acc[0])],
                    [b.const(0.0, F32)],
                    "tree",
                )
                b.store(partial, b.add(b.mul(row, 2), which), trees[0])

            def both() -> None:
                half(0)
                half(1)

            b.if_(b.compare("lt", row, N), both)
    with b.grid(blocks) as block, b.region(threads) as thread:
        row = b.add(b.mul(block, threads), thread)

        def add() -> None:
            pair = b.load(partial, b.mul(row, 2), Vec(F32, 2))
            b.store(result, row, b.add(b.extract(pair, 0), b.extract(pair, 1)))

        b.if_(b.compare("lt", row, N), add)
    params = (rows, N, N_TREES, nodes, result)
    return Function("predict", params, b.finish())


def _walk(
    b: Launches, nodes: Buffer, cache: Buffer, thread: Value, tree: Value, acc: Value
) -> Value:
    """Nodes are a threshold or leaf, u16 feature and u16 distance to the left child."""

    def load(node: Value) -> tuple[Value, Value]:
        at = b.mul(node, 8)
        parts = b.load(nodes, at, Vec(U32, 2))
        return b.extract(parts, 0), b.extract(parts, 1)

    def going(carried: tuple[Value, ...]) -> Value:
        return b.compare("ne", b.binary("shr", carried[1], 16), 0)

    def step(carried: tuple[Value, ...]) -> list[Value]:
        bits, word, node = carried
        feature = b.convert(b.binary("and", word, 0xFFFF), I64)
        value = b.load(cache, b.add(b.mul(thread, 8), feature))
        left = b.compare("lt", value, b.bitcast(bits, F32))
        child = b.add(node, b.convert(b.binary("shr", word, 16), I64))
        child = b.select(left, child, b.add(child, 1))
        return [*load(child), child]

    node = b.mul(tree, 255)
    bits, _, _ = while_(b, [*load(node), node], going, step)
    return b.add(acc, b.bitcast(bits, F32))


def sums_function() -> Function:
    """Sums of 32, 8 and 32 threads to atomics of every element that has them."""
    outs = [Buffer(f"out_{s.name}", s) for s in (F32, F64, I32, U32, I64)]
    counts = Buffer("counts", U16)

    def write(b: Launches, thread: Value) -> None:
        for out, width in zip(outs, (32, 8, 32, 16, 4), strict=True):
            number = b.convert(thread, out.element)
            total = b.let(lir.WarpReduce(number, width), out.element)
            b.emit(lir.AtomicAdd(out, b.binary("div", thread, 8), total))
        narrow = b.let(lir.WarpReduce(b.convert(thread, U16), 32), U16)
        b.store(counts, thread, narrow)

    return one_region(write, *outs, counts)
