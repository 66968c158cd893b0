"""Roles of the fields of LIR's classes, which their annotations declare."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from skforge.compiler.ir.lir.types import Buffer, Value

#: What a class does with a field: it reads a value (to decide which bodies run), binds
#: one in its bodies or for later statements, accesses a buffer, or holds statements.
Role: TypeAlias = Literal[
    "operand", "steers", "inside", "result", "reads", "writes", "allocates", "dims",
    "body", "bodies",
]  # fmt: skip

Operand: TypeAlias = Annotated[Value, "operand"]
OptionalOperand: TypeAlias = Annotated[Value | None, "operand"]
Operands: TypeAlias = Annotated[tuple[Value, ...], "operand"]
OperandRows: TypeAlias = Annotated[tuple[tuple[Value, ...], ...], "operand"]
Steering: TypeAlias = Annotated[Value, "steers"]
Variable: TypeAlias = Annotated[Value, "inside"]
Variables: TypeAlias = Annotated[tuple[Value, ...], "inside"]
Result: TypeAlias = Annotated[Value, "result"]
Results: TypeAlias = Annotated[tuple[Value, ...], "result"]
Read: TypeAlias = Annotated[Buffer, "reads"]
Written: TypeAlias = Annotated[Buffer, "writes"]
Allocated: TypeAlias = Annotated[Buffer, "allocates"]
