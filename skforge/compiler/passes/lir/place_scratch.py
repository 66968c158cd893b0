"""Kernels for one thread that never allocate: their scratch is a parameter.

    f(@x, %n):                                   f(@x, %n, @lines):
      parallel for %b in 0 to %n:                  for %b in 0 to %n step 1:
        alloc @lines: f32[1024]           =>         ...
        ...

Whoever calls the kernel owns the memory, and knows how much of it there must be.
Afterwards no loop is parallel. Only a kernel whose scratch is small and of constant
size keeps it, on the stack: to look for memory would take a single row too long.
"""

from __future__ import annotations

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.nodes import Alloc, Body, Buffer, Const, For, Function, Let
from skforge.compiler.ir.lir.walk import map_bodies, statements
from skforge.compiler.passes.lir.lir_rewrite import FreshBuilder, constants_of
from skforge.exceptions import CompilerError

#: Bytes of scratch that stay on the stack: what walks of single rows need.
STACK_BYTES = 2 << 10

_LINE = 64


def run(function: Function, most_rows: int) -> tuple[Function, tuple[int, ...]]:
    """Return a kernel without parallel loops and large scratch of its own.

    Its second parameter is the number of rows, of which a call has at most
    ``most_rows``. It gets a parameter for each piece of scratch, behind the others;
    the second result is the bytes of each, whole cache lines. CompilerError if the
    size of some scratch depends on more than the number of rows.
    """
    placed = _Placed(function, most_rows)
    body = placed.body(function.body)
    params = (*function.params, *placed.buffers)
    return Function(function.name, params, body), tuple(placed.sizes)


class _Placed:
    def __init__(self, function: Function, most_rows: int) -> None:
        rows = function.params[1]
        self._name = function.name
        self._b = FreshBuilder(function)
        self._sizes = constants_of(function, {rows.name: most_rows})
        self._stays = _stack_bytes(function) <= STACK_BYTES
        self.buffers: list[Buffer] = []
        self.sizes: list[int] = []

    def body(self, body: Body) -> Body:
        made: list[lir.Stmt] = []
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
                    made += [Let(zero, Const(0)), Let(one, Const(1))]
                    made.append(For(var, zero, count, one, inner))
                case _:
                    made.append(stmt)
        return tuple(made)

    def _take(self, stmt: Alloc) -> None:
        size = self._sizes.get(stmt.size.name)
        if size is None:
            raise CompilerError(
                f"The size of @{stmt.buffer.name} in {self._name!r} depends on more "
                "than the number of rows."
            )
        # Vectors may read past the end of what they need.
        n_bytes = size * stmt.buffer.element.bytes + _LINE
        align = max(_LINE, stmt.buffer.alignment)
        self.sizes.append(-(-n_bytes // align) * align)
        self.buffers.append(stmt.buffer)


def _stack_bytes(function: Function) -> float:
    """Return the size of all scratch; infinity if any of it is of unknown size."""
    known = constants_of(function)
    sizes = [
        known.get(stmt.size.name, float("inf")) * stmt.buffer.element.bytes + _LINE
        for stmt in statements(function.body)
        if isinstance(stmt, Alloc)
    ]
    return sum(sizes)
