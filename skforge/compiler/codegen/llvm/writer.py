"""The text of one LLVM function under construction, and the names in scope.

First the text of LIR's types, constants and names.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from skforge.compiler.codegen.known import IntegerFacts
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.target import Target
from skforge.exceptions import CompilerError

_SCALARS: dict[lir.ScalarName, str] = {
    "bool": "i1", "u8": "i8", "i16": "i16", "u16": "i16", "u32": "i32", "i32": "i32",
    "i64": "i64", "f32": "float", "f64": "double",
}  # fmt: skip
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9._]*")


def type_text(type_: lir.Type) -> str:
    match type_:
        case lir.Scalar(name=name):
            return _SCALARS[name]
        case lir.Vec(element=element, lanes=lanes):
            return f"<{lanes} x {_SCALARS[element.name]}>"
        case lir.Mask(lanes=lanes):
            return f"<{lanes} x i1>"
        case lir.Plane(vector=True):
            return "<2 x i64>"  # of which the first counts
        case lir.Plane(rows=rows):
            if rows % 64 == 0:
                return f"<{rows // 64} x i64>"
            if rows in (8, 16, 32):
                return f"i{rows}"
            raise CompilerError(
                f"A plane of {rows} rows has no LLVM type; use 8, 16, 32 or a "
                "multiple of 64 rows."
            )


def bits_of(element: lir.Scalar) -> int:
    return 1 if element == lir.BOOL else 8 * element.bytes


def scalar_constant(value: int | float | bool, element: lir.Scalar) -> str:
    if element == lir.BOOL:
        return "true" if value else "false"
    if element.is_float:
        with np.errstate(over="ignore"):  # beyond float32 is infinity, as in a cast
            exact = float(np.float32(value)) if element == lir.F32 else float(value)
        # LLVM writes a float constant as the bits of the double of equal value.
        return f"0x{struct.unpack('<Q', struct.pack('<d', exact))[0]:016X}"
    bits = bits_of(element)
    wrapped = int(value) & ((1 << bits) - 1)
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


def constant(value: int | float | bool, type_: lir.Type) -> str:
    element = type_.element
    text = scalar_constant(value, element)
    return splat_constant(text, type_text(element)) if type_.lanes else text


def splat_constant(text: str, element: str) -> str:
    return f"splat ({element} {text})"


def chosen(lanes: Sequence[int | str]) -> str:
    return f"<{len(lanes)} x i32> <{', '.join(f'i32 {lane}' for lane in lanes)}>"


def compare_code(op: lir.CompareOp, element: lir.Scalar, unordered: bool) -> str:
    if element.is_float:
        return f"fcmp {'u' if unordered else 'o'}{op}"
    if op in ("eq", "ne"):
        return f"icmp {op}"
    return f"icmp {'s' if element.is_signed else 'u'}{op}"


def mangled(type_: lir.Type) -> str:
    element = type_text(type_.element)
    short = {"float": "f32", "double": "f64"}.get(element, element)
    lanes = type_.lanes
    return f"v{lanes}{short}" if lanes else short


def quoted(name: str, prefix: str = "") -> str:
    """Return an LLVM name, no sigil; those with ``$`` or ``.`` are the emitter's."""
    if _PLAIN_NAME.fullmatch(name):
        return prefix + name
    if not prefix and name[:1] in ("$", "."):
        prefix = "$"
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in (34, 92) else f"\\{byte:02X}"
        for byte in (prefix + name).encode()
    )
    return f'"{escaped}"'


# Stack memory, in bytes, for one function's constant-size scratch. The rest comes from
# aligned_alloc, because a worker thread's stack may be small.
STACK_BYTES = 128 << 10


@dataclass(slots=True)
class ModuleText:
    """State shared by the functions of one module."""

    kernel: str
    target: Target
    declarations: set[str] = field(default_factory=set)
    symbols: dict[str, str] = field(default_factory=dict)  # declarations by name
    outlined: list[str] = field(default_factory=list)
    regions: int = 0
    pools: list[int] = field(default_factory=list)  # bytes of each; see ``pool_text``

    def fail(self, why: str) -> CompilerError:
        return CompilerError(f"LLVM emitter, function {self.kernel!r}: {why}")


class Capture(NamedTuple):
    outer: str  # operand in the enclosing function
    type: str  # SSA type
    memory: str  # type in the context struct; masks are stored as integers


class LlvmWriter(IntegerFacts):
    """Appends lines to one LLVM function and tracks LIR names in scope.

    An outlined parallel body has a ``parent``: names not found here are looked up there
    and recorded in ``captures``, unless they are constants.
    """

    def __init__(self, module: ModuleText, parent: LlvmWriter | None = None) -> None:
        super().__init__(parent)
        self.module = module
        self.parent = parent
        self.lines: list[str] = []
        self.allocas: list[str] = []  # and other lines of the entry block
        self.stack_bytes = 0
        self.pool: int | None = None  # of the function's heap scratch
        self.heap_bytes = 0
        self.block = "$entry"
        self.captures: dict[str, Capture] = {}
        self._all_lanes: dict[int, str] = {}
        self._operands: dict[str, str] = {}
        self._bases: dict[tuple[str, str, str], str] = {}  # of the current block
        self._count = 0

    # ------------------------------------------------------------ lines and labels

    def temp(self) -> str:
        self._count += 1
        return f"%$t{self._count}"

    def line(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def let(self, text: str, name: str = "") -> str:
        name = name or self.temp()
        self.lines.append(f"  {name} = {text}")
        return name

    def reserve(self, count: int) -> int:
        at = len(self.lines)
        self.lines.extend([""] * count)
        return at

    def label(self, hint: str) -> str:
        self._count += 1
        return f"$b{self._count}.{hint}"

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label
        self._bases.clear()

    def branch(self, label: str) -> None:
        self.line(f"br label %{label}")

    def branch_if(self, cond: str, yes: str, no: str) -> None:
        self.line(f"br i1 {cond}, label %{yes}, label %{no}")

    # ------------------------------------------------------------ names

    def bind(self, name: str, operand: str) -> None:
        if name in self._operands:
            raise self.module.fail(f"{name!r} is bound twice.")
        self._operands[name] = operand

    def bind_value(self, value: lir.Value, text: str) -> None:
        name = own_name(value)
        self.bind(value.name, name)
        self.lines.append(f"  {name} = {text}")

    def own(self, value: lir.Value, text: str) -> str:
        return self.let(text, own_name(value))

    def operand(self, name: str, type_: str, memory: str) -> str:
        operand = self._operands.get(name)
        if operand is not None:
            return operand
        if self.parent is None:
            raise self.module.fail(f"{name!r} is used before it is bound.")
        outer = self.parent.operand(name, type_, memory)
        if outer.startswith("%"):
            local = f"%$c{len(self.captures)}"
            self.captures[local] = Capture(outer, type_, memory)
        else:
            local = outer
        self._operands[name] = local
        return local

    def use(self, value: lir.Value) -> str:
        operand = self._operands.get(value.name)
        if operand is not None:
            return operand
        text = type_text(value.type)
        memory = text
        if value.type.element == lir.BOOL:
            memory = f"i{max(1, value.type.lanes)}"
        return self.operand(value.name, text, memory)

    def typed(self, value: lir.Value) -> str:
        return f"{type_text(value.type)} {self.use(value)}"

    def pointer(self, buffer: lir.Buffer) -> str:
        return self.operand("@" + buffer.name, "ptr", "ptr")

    def all_lanes(self, lanes: int) -> str:
        """Return the mask with every lane set, preceded by its type.

        A gather destroys its mask, and LLVM rebuilds a constant mask from another mask
        register's contents, so the gather waits for that register: 16 lanes of two
        walks took 1.00 µs a row, against 0.68 with a mask of unknown origin.
        """
        vector = f"<{lanes} x i1>"
        if not self.module.target.has_mask_registers:
            return f"{vector} {splat_constant('true', 'i1')}"
        if lanes not in self._all_lanes:
            pointer = "%$ctx" if self.parent is not None else "%$args"
            mask = f"%$all{lanes}"
            self.allocas += [
                f"  {mask}.bit = icmp ne ptr {pointer}, null",
                f"  {mask}.one = insertelement {vector} poison, i1 {mask}.bit, i64 0",
                f"  {mask} = shufflevector {vector} {mask}.one, {vector} poison, "
                f"<{lanes} x i32> zeroinitializer",
            ]
            self._all_lanes[lanes] = mask
        return f"{vector} {self._all_lanes[lanes]}"

    # ------------------------------------------------------------ vectors

    def splat(self, operand: str, element: str, lanes: int) -> str:
        if not operand.startswith("%"):
            return splat_constant(operand, element)
        vector = f"<{lanes} x {element}>"
        one = self.let(f"insertelement {vector} poison, {element} {operand}, i64 0")
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.let(f"shufflevector {vector} {one}, {vector} poison, {zeros}")

    def pick(self, vector: str, lanes: Sequence[int | str]) -> str:
        kind = vector[: vector.index(">") + 1]
        return self.let(f"shufflevector {vector}, {kind} poison, {chosen(lanes)}")

    # ------------------------------------------------------------ addresses

    def index(self, value: lir.Value) -> str:
        operand = self.use(value)
        if value.type == lir.I64 or not operand.startswith("%"):
            return operand
        return self.let(f"sext i32 {operand} to i64")

    def address(
        self, buffer: lir.Buffer, index: lir.Value, inbounds: bool = True
    ) -> str:
        base = self.pointer(buffer)
        if inbounds and self.constant_of(index) == 0:
            return base
        element = memory_element(buffer.element)
        known = self.sum_of(index)
        if known is not None:
            # Instruction selection took half its time to find these sums (5,000
            # instructions: 210 ms, 115 with them); its code is the same.
            start, number = known
            base = self._shifted(base, element, start)
            return self.let(f"getelementptr {element}, ptr {base}, i64 {number}")
        pair = self.pair_of(index)
        if pair is not None:
            # Of a row's start and a column, the start leaves the loop of the hops.
            base = self._shifted(base, element, pair[0])
            column = self.use(pair[1])
            return self.let(f"getelementptr {element}, ptr {base}, i64 {column}")
        flag = "inbounds " if inbounds else ""
        at = self.index(index)
        return self.let(f"getelementptr {flag}{element}, ptr {base}, i64 {at}")

    def _shifted(self, base: str, element: str, start: lir.Value) -> str:
        key = (base, element, start.name)
        if key not in self._bases:
            text = f"getelementptr {element}, ptr {base}, i64 {self.use(start)}"
            self._bases[key] = self.let(text)
        return self._bases[key]


def own_name(named: lir.Value | lir.Buffer) -> str:
    # LIR has separate namespaces for buffers and values; LLVM has one.
    prefix = "." if isinstance(named, lir.Buffer) else ""
    return f"%{quoted(named.name, prefix)}"


def memory_element(element: lir.Scalar) -> str:
    return "i8" if element == lir.BOOL else type_text(element)


def int_of_width(type_: lir.Type) -> str:
    return f"i{bits_of(type_.element) * max(1, type_.lanes)}"
