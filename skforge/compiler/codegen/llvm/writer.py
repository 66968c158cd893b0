"""The text of one LLVM function under construction, and the names in scope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from skforge.compiler.codegen.known import Known
from skforge.compiler.codegen.llvm import types
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.target import Target
from skforge.exceptions import CompilerError

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
    pools: list[int] = field(default_factory=list)  # bytes of each; see ``pools``

    def fail(self, why: str) -> CompilerError:
        return CompilerError(f"LLVM emitter, function {self.kernel!r}: {why}")


class Capture(NamedTuple):
    outer: str  # operand in the enclosing function
    type: str  # SSA type
    memory: str  # type in the context struct; masks are stored as integers


class LlvmWriter(Known):
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
        text = types.type_text(value.type)
        memory = text
        if value.type.element == lir.BOOL:
            memory = f"i{max(1, value.type.lanes)}"
        return self.operand(value.name, text, memory)

    def typed(self, value: lir.Value) -> str:
        return f"{types.type_text(value.type)} {self.use(value)}"

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
            return f"{vector} {types.splat_constant('true', 'i1')}"
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
            return types.splat_constant(operand, element)
        vector = f"<{lanes} x {element}>"
        one = self.let(f"insertelement {vector} poison, {element} {operand}, i64 0")
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.let(f"shufflevector {vector} {one}, {vector} poison, {zeros}")

    def pick(self, vector: str, lanes: Sequence[int | str]) -> str:
        kind = vector[: vector.index(">") + 1]
        return self.let(f"shufflevector {vector}, {kind} poison, {types.chosen(lanes)}")

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
    return f"%{types.quoted(named.name, prefix)}"


def memory_element(element: lir.Scalar) -> str:
    return "i8" if element == lir.BOOL else types.type_text(element)


def int_of_width(type_: lir.Type) -> str:
    return f"i{types.bits_of(type_.element) * max(1, type_.lanes)}"
