"""C++ text for LIR types, constants and names."""

from __future__ import annotations

import math
import re
from importlib.resources import files

import numpy as np

from skforge.compiler.ir.lir import nodes as lir

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
