"""Make single-threaded kernels allocation-free: scratch becomes a parameter.

    f(@x, %n):                                   f(@x, %n, @lines):
      parallel for %b in 0 to %n:                  for %b in 0 to %n step 1:
        alloc @lines: f32[1024]           =>         ...
        ...

The caller owns the memory and knows its size. Afterwards no loop is parallel. A kernel
whose scratch is small and of constant size keeps it on the stack, because finding
memory would take too long for a single row.
"""

from __future__ import annotations

from collections.abc import Mapping

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import FreshBuilder
from skforge.compiler.ir.lir.nodes import Alloc, Body, Buffer, Const, For, Function, Let
from skforge.compiler.ir.lir.walk import map_bodies, statements
from skforge.compiler.passes.lir.simplify import constants_of
from skforge.exceptions import CompilerError

#: Most bytes of scratch kept on the stack: enough for walks of single rows.
STACK_BYTES = 2 << 10

_LINE = 64


def run(
    function: Function, most_rows: int, sizes: Mapping[str, int] | None = None
) -> tuple[Function, tuple[int, ...]]:
    """Return a kernel without parallel loops and without large scratch of its own.

    The kernel's second parameter is the number of rows, at most ``most_rows`` per call.
    Each piece of scratch becomes a further parameter; the second result holds their
    sizes in bytes, in whole cache lines. Raises CompilerError if a scratch size depends
    on more than the number of rows, and ``sizes``, further parameters that are known.
    """
    placed = _Placed(function, most_rows, sizes or {})
    body = placed.body(function.body)
    params = (*function.params, *placed.buffers)
    return Function(function.name, params, body), tuple(placed.sizes)


class _Placed:
    def __init__(
        self, function: Function, most_rows: int, sizes: Mapping[str, int]
    ) -> None:
        rows = function.params[1]
        self._name = function.name
        self._b = FreshBuilder(function)
        self._sizes = constants_of(function, {rows.name: most_rows, **sizes})
        self._stays = _stack_bytes(function) <= STACK_BYTES
        self.buffers: list[Buffer] = []
        self.sizes: list[int] = []

    def body(self, body: Body) -> Body:
        stmts: list[lir.Stmt] = []
        for stmt in body:
            stmt = map_bodies(stmt, self.body)
            match stmt:
                case Alloc() if not self._stays:
                    self._take(stmt)
                case lir.ParallelFor(var=var, count=count, body=inner):
                    zero, one = (
                        lir.Value(self._b.name(hint), var.type)
                        for hint in ("zero", "one")
                    )
                    stmts += [Let(zero, Const(0)), Let(one, Const(1))]
                    stmts.append(For(var, zero, count, one, inner))
                case _:
                    stmts.append(stmt)
        return tuple(stmts)

    def _take(self, stmt: Alloc) -> None:
        size = self._sizes.get(stmt.size.name)
        if size is None:
            raise CompilerError(
                f"The size of @{stmt.buffer.name} in {self._name!r} depends on more "
                "than the number of rows."
            )
        # Vector loads may read past the end.
        n_bytes = size * stmt.buffer.element.bytes + _LINE
        align = max(_LINE, stmt.buffer.alignment)
        self.sizes.append(-(-n_bytes // align) * align)
        self.buffers.append(stmt.buffer)


def _stack_bytes(function: Function) -> float:
    known = constants_of(function)
    sizes = [
        known.get(stmt.size.name, float("inf")) * stmt.buffer.element.bytes + _LINE
        for stmt in statements(function.body)
        if isinstance(stmt, Alloc)
    ]
    return sum(sizes)
