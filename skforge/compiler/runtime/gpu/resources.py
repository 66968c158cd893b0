"""Kernels' registers, spills, stack and shared memory, from machine code."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from skforge.exceptions import CompilerError


@dataclass(frozen=True, slots=True)
class KernelResources:
    """Resources that one thread or block of a kernel uses.

    ``shared_bytes`` is static memory per block, which emitted kernels do not use; all
    else is per thread. ``stack_bytes`` includes arrays indexed by non-constants.
    """

    registers: int  # vector registers on AMD
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    scalar_registers: int = 0  # on AMD only
    warp_size: int = 32


# Of .nv.info: codes of attributes, and the format with a size.
_REGISTERS, _FRAME, _SIZED = 0x2F, 0x11, 4


def cubin_resources(code: bytes) -> dict[str, KernelResources]:
    """Return the resources of each kernel of a cubin.

    A cubin does not separate spilled registers from other local memory: all of it is
    ``stack_bytes``. Static shared memory, which the emitter's kernels do not use, is
    not read.
    """
    try:
        return _cubin_resources(code)
    except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
        raise CompilerError(
            "The cubin does not say what resources its kernels use."
        ) from error


def _cubin_resources(code: bytes) -> dict[str, KernelResources]:
    (at,) = struct.unpack_from("<Q", code, 40)
    size, count, names = struct.unpack_from("<3H", code, 58)
    headers = [struct.unpack_from("<2I4Q", code, at + size * i) for i in range(count)]

    def text(start: int) -> str:
        return code[start : code.index(0, start)].decode()

    sections = {text(headers[names][4] + h[0]): h[4:6] for h in headers}
    symbols, strings = sections[".symtab"][0], sections[".strtab"][0]
    by_symbol: dict[int, dict[int, int]] = {}
    at, length = sections[".nv.info"]
    end = at + length
    while at < end:
        kind, what, value = struct.unpack_from("<BBH", code, at)
        if kind == _SIZED and what in (_REGISTERS, _FRAME):
            symbol, number = struct.unpack_from("<2I", code, at + 4)
            by_symbol.setdefault(symbol, {})[what] = number
        at += 4 + (value if kind == _SIZED else 0)
    resources = {}
    for symbol, facts in by_symbol.items():
        name = text(strings + struct.unpack_from("<I", code, symbols + 24 * symbol)[0])
        resources[name] = KernelResources(facts[_REGISTERS], 0, facts.get(_FRAME, 0), 0)
    return resources


def hip_resources(code: bytes) -> dict[str, KernelResources]:
    """Return the resources of each kernel, from an AMD code object's metadata note."""
    at = code.find(b"AMDGPU\0\0")
    if at < 12:
        raise CompilerError("The AMD code object has no metadata note.")
    _, size, _ = struct.unpack_from("<III", code, at - 12)
    notes = unpack_message(code[at + 8 : at + 8 + size])
    return {
        kernel[".name"]: KernelResources(
            registers=kernel[".vgpr_count"],
            spill_bytes=4
            * (kernel.get(".vgpr_spill_count", 0) + kernel.get(".sgpr_spill_count", 0)),
            stack_bytes=kernel[".private_segment_fixed_size"],
            shared_bytes=kernel[".group_segment_fixed_size"],
            scalar_registers=kernel[".sgpr_count"],
            warp_size=kernel[".wavefront_size"],
        )
        for kernel in notes["amdhsa.kernels"]
    }


def unpack_message(data: bytes) -> Any:
    """Return the value of a MessagePack of maps, lists, strings and integers.

    Examples
    --------
    >>> unpack_message(bytes([0x82, 0xA1, 97, 5, 0xA1, 98, 0x92, 0xC3, 0xCD, 1, 0]))
    {'a': 5, 'b': [True, 256]}
    """
    value, _ = _unpack(data, 0)
    return value


_NUMBERS = {
    0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i",
    0xD3: ">q", 0xCA: ">f", 0xCB: ">d",
}  # fmt: skip
# Lengths of strings, byte strings, lists and maps.
_LENGTHS = {
    0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xDC: ">H",
    0xDD: ">I", 0xDE: ">H", 0xDF: ">I",
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


def _unpack(data: bytes, at: int) -> tuple[Any, int]:
    code = data[at]
    at += 1
    if code < 0x80:
        return code, at
    if code >= 0xE0:
        return code - 256, at
    if code in _CONSTANTS:
        return _CONSTANTS[code], at
    if code in _NUMBERS:
        (number,) = struct.unpack_from(_NUMBERS[code], data, at)
        return number, at + struct.calcsize(_NUMBERS[code])
    if code < 0xC0:
        length = code & (31 if code >= 0xA0 else 15)
    elif code in _LENGTHS:
        (length,) = struct.unpack_from(_LENGTHS[code], data, at)
        at += struct.calcsize(_LENGTHS[code])
    else:
        raise CompilerError(f"MessagePack type {code:#x} is unknown.")
    if code <= 0x8F or code in (0xDE, 0xDF):
        pairs = {}
        for _ in range(length):
            key, at = _unpack(data, at)
            pairs[key], at = _unpack(data, at)
        return pairs, at
    if code <= 0x9F or code in (0xDC, 0xDD):
        items = []
        for _ in range(length):
            item, at = _unpack(data, at)
            items.append(item)
        return items, at
    raw = data[at : at + length]
    return (raw if 0xC4 <= code <= 0xC6 else raw.decode()), at + length
