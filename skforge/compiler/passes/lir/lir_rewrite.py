"""Helpers for LIR rewrites: fresh names and known constants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import Body, Function, Value
from skforge.compiler.ir.lir.walk import bound_in, statements
from skforge.compiler.passes.lir.simplify import known


class FreshBuilder(Builder):
    """Builds LIR whose names do not clash with an existing function's."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self._taken = {param.name for param in function.params}
        for stmt in statements(function.body):
            self._taken.update(v.name for v in bound_in(stmt))
            if isinstance(stmt, lir.Alloc):
                self._taken.add(stmt.buffer.name)

    def name(self, hint: str) -> str:
        """Return a name that the function does not use."""
        fresh = super().name(hint)
        while fresh in self._taken:
            fresh = super().name(hint)
        return fresh


def constants_of(
    function: Function, given: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the i32 and i64 values known at compile time, given some by name."""
    constants = {name: lir.Const(value) for name, value in (given or {}).items()}
    for value, op in _lets(function.body):
        result = op if isinstance(op, lir.Const) else known(op, value.type, constants)
        if isinstance(result, lir.Const):
            constants[value.name] = result
        elif result is not None and result.name in constants:
            constants[value.name] = constants[result.name]
    return {name: int(const.value) for name, const in constants.items()}


def _lets(body: Body) -> Iterator[tuple[Value, lir.Op]]:
    for stmt in statements(body):
        if isinstance(stmt, lir.Let) and stmt.value.type in (lir.I32, lir.I64):
            yield stmt.value, stmt.op
