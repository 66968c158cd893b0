"""Kernels' registers, spills, stack and shared memory, from machine code."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from skforge.exceptions import CompilerError, TargetError


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
    """Return the resources that an AMD note has; raise TargetError without msgpack."""
    try:
        import msgpack
    except ImportError as error:
        raise TargetError(
            "Reading what AMD's kernels use needs msgpack: pip install msgpack."
        ) from error
    at = code.find(b"AMDGPU\0\0")
    if at < 12:
        raise CompilerError("The AMD code object has no metadata note.")
    _, size, _ = struct.unpack_from("<III", code, at - 12)
    notes = msgpack.unpackb(code[at + 8 : at + 8 + size])
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
