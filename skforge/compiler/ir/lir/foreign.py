"""What only routines have: symbols, addresses, calls, shared integers and returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from skforge.compiler.ir.lir.types import (
    Allocated,
    Operand,
    Operands,
    Read,
    Results,
    Written,
)


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address, an i64, of what the linker knows by a name."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """The address of element ``index``, an i64."""

    buffer: Read
    index: Operand


@dataclass(frozen=True, slots=True)
class View:
    """Bind a buffer to memory at an address."""

    buffer: Allocated
    address: Operand


@dataclass(frozen=True, slots=True)
class Call:
    """``results = symbol(args)``, a C function; addresses are i64.

    Without a symbol, it is the function whose address is the first argument.
    """

    symbol: str
    args: Operands
    results: Results = ()


AtomicOp: TypeAlias = Literal["load", "store", "swap", "sub", "replace"]
MemoryOrder: TypeAlias = Literal[
    "monotonic", "acquire", "release", "acq_rel", "seq_cst"
]


@dataclass(frozen=True, slots=True)
class Atomic:
    """Access an integer that other threads use, too.

    ``load``, ``swap`` and ``sub`` give the integer before. ``replace`` writes the
    second argument if the first one is there, and gives whether it was (bool).
    """

    op: AtomicOp
    buffer: Written
    index: Operand
    args: Operands
    order: MemoryOrder
    results: Results = ()


@dataclass(frozen=True, slots=True)
class Return:
    """Leave a routine with its result."""

    values: Operands
