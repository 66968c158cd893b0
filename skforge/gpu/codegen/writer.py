"""The text of one kernel under construction, and the names in scope.

A vector or mask is represented by one scalar per lane: its operand holds the text of
each lane, a name or a literal. Splitting and joining lanes therefore costs nothing, and
no small array needs an address. First the C++ text of types, constants and names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from importlib.resources import files
from typing import TypeAlias

import numpy as np

from skforge.compiler.codegen.known import IntegerFacts
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.target import Target
from skforge.exceptions import CompilerError
from skforge.gpu.codegen.host_plan import Launch

_FOLDER = files("skforge.gpu.codegen")

#: Text before the kernels: macros for each compiler, types and integer helpers. One
#: text serves NVRTC, nvcc, hiprtc and, for tests on a CPU, a C++ compiler with a header
#: that defines ``SKF_SHIM`` and every macro named here. There is no ``#include``: NVRTC
#: has no standard headers. Compiler flags, not this text, prevent contraction of
#: multiply-adds (``--fmad=false``, ``-ffp-contract=off``).
PRELUDE = _FOLDER.joinpath("prelude.h").read_text("utf-8")

#: Words that cannot be names of values.
RESERVED = frozenset(_FOLDER.joinpath("reserved.txt").read_text("utf-8").split())

# Double underscores are reserved in C++, and skf_ is the emitter's prefix.
_PLAIN = re.compile(r"(?!skf_|SKF_)[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*")
_OTHER = re.compile(r"[\W_]+", re.ASCII)


def memory_text(element: lir.Scalar) -> str:
    return "u8" if element == lir.BOOL else element.name


def literal(value: int | float | bool, element: lir.Scalar) -> str:
    """Return a constant as an expression that needs no brackets around it."""
    if element == lir.BOOL:
        return "true" if value else "false"
    if element.is_float:
        return _float_literal(float(value), element)
    bits = 8 * element.bytes
    number = int(value) & ((1 << bits) - 1)
    if not element.is_signed:
        return f"{number}u"
    suffix = "LL" if element == lir.I64 else ""
    if number >> (bits - 1):
        number -= 1 << bits
        if number == -(1 << (bits - 1)):  # has no literal: minus is an operator
            return f"({number + 1}{suffix} - 1)"
        return f"({number}{suffix})"
    return f"{number}{suffix}"


def _float_literal(value: float, element: lir.Scalar) -> str:
    with np.errstate(over="ignore"):  # beyond float32 is infinity, as in a cast
        number = np.float32(value) if element == lir.F32 else np.float64(value)
    exact = float(number)
    if not math.isfinite(exact):
        if element == lir.F32:
            return f"SKF_BITS_F32({number.view(np.uint32)}u)"
        return f"SKF_BITS_F64({number.view(np.uint64)}ull)"
    digits, _, exponent = exact.hex().partition("p")
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    text = f"{digits}p{exponent}{'f' if element == lir.F32 else ''}"
    return f"({text})" if text.startswith("-") else text


class Names:
    def __init__(self) -> None:
        self._taken = set(RESERVED)

    def new(self, hint: str) -> str:
        name = hint.replace(".", "_")
        if not _PLAIN.fullmatch(name):
            name = _OTHER.sub("_", f"v_{name}").strip("_")
        if name in self._taken:
            number = 2
            while f"{name}_{number}" in self._taken:
                number += 1
            name = f"{name}_{number}"
        self._taken.add(name)
        return name


def to_bits(element: lir.Scalar, text: str) -> str:
    if element.is_float:
        return f"SKF_{element.name.upper()}_BITS({text})"
    bits = "u64" if element.bytes == 8 else "u32"
    return text if element.name == bits else f"({bits}){text}"


def from_bits(element: lir.Scalar, text: str) -> str:
    if element.is_float:
        return f"SKF_BITS_{element.name.upper()}({text})"
    if element == lir.BOOL:
        return f"(u8)({text}) != 0"
    return f"({element.name}){bracketed(text)}"


def bracketed(text: str) -> str:
    if text.startswith("(") and text.find(")") == len(text) - 1:
        return text
    return text if text.replace(".", "").isidentifier() else f"({text})"


# One text per lane; a scalar has one.
OperandTexts: TypeAlias = tuple[str, ...]

# Alignment in bytes of dynamic shared memory and of a device's allocations.
SCRATCH_ALIGNMENT = 16


class Host(IntegerFacts):
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


class CudaWriter(IntegerFacts):
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
