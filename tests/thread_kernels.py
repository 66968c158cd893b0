"""Kernels that threads share, for processes that import nothing else of the tests."""

from __future__ import annotations

from skforge.compiler.ir.lir.nodes import I64, U8, Buffer, Function
from tests.lir_loops import for_, parallel_for
from tests.llvm_kernels import buffers, kernel


def squares_kernel() -> Function:
    def write(b, n, out):
        parallel_for(b, n, lambda i: b.store(out, i, b.mul(i, i)))

    return kernel({"n": I64, **buffers(out=I64)}, write, "squares")


def slow_kernel() -> Function:
    """Return a parallel kernel that takes about a second on one core."""

    def write(b, n, work, out: Buffer):
        def body(i):
            def step(_, carried):
                return [b.add(b.mul(carried[0], 6364136223846793005), 1)]

            (x,) = for_(b, b.const(0), work, b.const(1), step, [i])
            b.store(out, i, b.convert(b.binary("shr", x, 60), U8))

        parallel_for(b, n, body)

    return kernel({"n": I64, "work": I64, **buffers(out=U8)}, write, "slow")
