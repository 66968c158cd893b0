"""Loops of LIR whose bodies are functions, for tests that draw or nest programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import Value


def for_(
    b: Builder,
    lo: Value | int,
    hi: Value | int,
    step: Value | int,
    body: Callable[[Value, tuple[Value, ...]], Sequence[Value] | None],
    inits: Sequence[Value] = (),
    hint: str = "i",
) -> tuple[Value, ...]:
    """Append a loop; ``body(var, carried)`` returns the next carried values."""
    carried = list(inits)
    with b.loop(lo, hi, step, carry=carried, hint=hint) as var:
        carried[:] = body(var, tuple(carried)) or ()
    return tuple(carried)


def while_(
    b: Builder,
    inits: Sequence[Value],
    cond: Callable[[tuple[Value, ...]], Value],
    body: Callable[[tuple[Value, ...]], Sequence[Value]],
) -> tuple[Value, ...]:
    """Append ``while cond(carried): carried = body(carried)``."""
    carried = list(inits)
    with b.repeat(lambda: cond(tuple(carried)), carried):
        carried[:] = body(tuple(carried))
    return tuple(carried)


def parallel_for(b: Builder, count: Value, body: Callable[[Value], None]) -> None:
    """Append a parallel loop over 0 … count."""
    with b.parallel(count) as var:
        body(var)
