"""The text of one kernel under construction, and the names in scope.

A vector or mask is represented by one scalar per lane: its operand holds the text of
each lane, a name or a literal. Splitting and joining lanes therefore costs nothing, and
no small array needs an address.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from skforge.compiler.codegen.known import Known
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.target import Target
from skforge.exceptions import CompilerError
from skforge.gpu.codegen.host_plan import Launch
from skforge.gpu.codegen.types import Names, literal, memory_text

# One text per lane; a scalar has one.
OperandTexts: TypeAlias = tuple[str, ...]

# Alignment in bytes of dynamic shared memory and of a device's allocations.
SCRATCH_ALIGNMENT = 16


class Host(Known):
    def __init__(self, function: lir.Function, target: Target) -> None:
        super().__init__()
        self.function, self.target = function, target
        params = {param.name: param for param in function.params}
        self.values = {k: v for k, v in params.items() if isinstance(v, lir.Value)}
        self.buffers = {k: v for k, v in params.items() if isinstance(v, lir.Buffer)}
        self.scratch: set[str] = set()  # buffers that the host allocates
        self.kernels: list[str] = []
        self.launches: dict[str, Launch] = {}

    def bind(self, *values: lir.Value) -> None:
        self.values.update((value.name, value) for value in values)

    def fail(self, why: str) -> CompilerError:
        return CompilerError(f"GPU emitter, function {self.function.name!r}: {why}")


class CudaWriter(Known):
    def __init__(self, host: Host, written: set[str]) -> None:
        super().__init__(host)
        self.host = host
        self.written = written  # buffers that the grid writes
        self.lines: list[str] = []
        self.indent = "  "
        self.names = Names()
        self.shared_bytes = 0
        self.threads: tuple[int, int, int] | None = None  # per block, once known
        # Host-level names that the kernel takes as arguments.
        self.buffer_args: dict[str, str] = {}
        self.value_args: dict[str, str] = {}
        self._operands: dict[str, OperandTexts] = {}
        self._pointers: dict[str, str] = {}

    def fail(self, why: str) -> CompilerError:
        return self.host.fail(why)

    # ------------------------------------------------------------ lines

    def line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def open(self, text: str) -> None:
        self.lines.append(self.indent + text)
        self.indent += "  "

    def close(self, text: str = "}") -> None:
        self.indent = self.indent[2:]
        self.lines.append(self.indent + text)

    # ------------------------------------------------------------ names

    def bind(self, value: lir.Value, operand: OperandTexts) -> None:
        self._operands[value.name] = operand

    def new(self, value: lir.Value) -> OperandTexts:
        name = self.names.new(value.name)
        lanes = value.type.lanes
        operand: OperandTexts = (name,)
        if lanes:
            operand = tuple(self.names.new(f"{name}_{k}") for k in range(lanes))
        self._operands[value.name] = operand
        return operand

    def write(self, value: lir.Value, texts: Iterable[str]) -> None:
        name = value.type.element.name
        for lane, text in zip(self.new(value), texts, strict=True):
            self.line(f"const {name} {lane} = {text};")

    def use(self, value: lir.Value) -> str:
        return self.lanes(value)[0]

    def lanes(self, value: lir.Value) -> OperandTexts:
        operand = self._operands.get(value.name)
        return operand if operand is not None else self._from_host(value)

    def _from_host(self, value: lir.Value) -> OperandTexts:
        name = value.name
        if name in self.host.constants:
            assert isinstance(value.type, lir.Scalar)
            operand = (literal(self.host.constants[name], value.type),)
        elif name in self.host.values:
            operand = (self.names.new(name),)
            self.value_args[name] = operand[0]
        else:
            raise self.fail(f"%{name} is used before it is bound.")
        self._operands[name] = operand
        return operand

    def pointer(self, buffer: lir.Buffer) -> str:
        if buffer.name not in self._pointers:
            if buffer.name not in self.host.buffers:
                raise self.fail(f"@{buffer.name} is used before it is bound.")
            self.buffer_args[buffer.name] = self.bind_buffer(buffer)
        return self._pointers[buffer.name]

    def bind_buffer(self, buffer: lir.Buffer) -> str:
        name = self._pointers[buffer.name] = self.names.new(buffer.name)
        return name

    def base_alignment(self, buffer: lir.Buffer) -> int:
        least = super().base_alignment(buffer)
        if buffer.space == "shared":
            return SCRATCH_ALIGNMENT
        is_scratch = buffer.name in self.host.scratch
        return max(least, SCRATCH_ALIGNMENT) if is_scratch else least

    # ------------------------------------------------------------ scratch

    def alloc(self, stmt: lir.Alloc) -> None:
        buffer, count = stmt.buffer, self.constant_of(stmt.size)
        if count is None:
            raise self.fail(
                f"@{buffer.name} in {buffer.space} memory has no constant size."
            )
        count = max(1, int(count))
        element = memory_text(buffer.element)
        name = self.bind_buffer(buffer)
        if buffer.space == "shared":
            align = max(SCRATCH_ALIGNMENT, buffer.alignment)
            start = -(-self.shared_bytes // align) * align
            self.shared_bytes = start + count * buffer.element.bytes
            self.line(f"{element}* const {name} = ({element}*)(skf_shared + {start});")
            return
        if buffer.space != "private":
            raise self.fail(f"@{buffer.name} is allocated inside a launch.")
        align = buffer.alignment
        prefix = f"alignas({align}) " if align > buffer.element.bytes else ""
        self.line(f"{prefix}{element} {name}[{count}];")
