"""LLVM IR text for LIR types, constants and names."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

import numpy as np

from skforge.compiler.ir.lir import nodes as lir
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
