"""Runs the source text of GPU kernels on the CPU, for tests.

``simt.h`` implements the text's ``SKF_*`` macros on a CPU, where each GPU thread is a
fiber. g++ compiles both to a shared library, which is kept in the object cache.

Users need neither g++ nor this module: ``target="emulated"`` runs the same schedules.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from skforge.exceptions import CompilerError
from tests.simt.build import opened

Array: TypeAlias = np.ndarray[Any, Any]

# Scalar types: the letter of Python's struct module, used by the shim, and the C type.
_TYPES: dict[str, tuple[str, Any]] = {
    "pointer": ("P", ctypes.c_void_p), "bool": ("?", ctypes.c_bool),
    "u8": ("B", ctypes.c_uint8), "u16": ("H", ctypes.c_uint16),
    "u32": ("I", ctypes.c_uint32), "i32": ("i", ctypes.c_int32),
    "i64": ("q", ctypes.c_int64), "f32": ("f", ctypes.c_float),
    "f64": ("d", ctypes.c_double),
}  # fmt: skip
_ERROR_BYTES = 512
_ALIGNMENT = 256


class LaunchHeader(ctypes.Structure):
    """``SimtLaunch`` of simt_host.h."""

    _fields_ = (
        ("name", ctypes.c_char * 256),
        ("types", ctypes.c_char * 256),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint64),
        ("order", ctypes.c_uint64),
    )


class SourceDevice:
    """The kernels of one text; raises ``TargetError`` if g++ rejects it.

    ``order`` is the order of blocks, warps and lanes, as simt.h numbers it.
    """

    order = 0

    def __init__(self, source: str) -> None:
        self._call, self._lock = _launcher(source)

    def launch(
        self,
        kernel: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        args: Sequence[tuple[str, Any]],
    ) -> None:
        """Run a kernel to completion.

        ``args`` are pairs of a type and a value: an array for a "pointer", a number for
        a scalar type such as "i64". Raises ``CompilerError`` if the kernel's behaviour
        is undefined on a GPU.
        """
        letters = "".join(_TYPES[type_][0] for type_, _ in args)
        header = LaunchHeader(
            kernel.encode(), letters.encode(), grid, block, shared_bytes, self.order
        )
        error = self.run(header, [_slot(*arg) for arg in args])
        if error:
            raise CompilerError(f"Kernel {kernel!r}, emulated: {error}.")

    def run(self, header: LaunchHeader, values: Sequence[Array | bytes]) -> str:
        """Run a kernel on arrays and 8-byte numbers; return the error text."""
        slots = b"".join(
            value
            if isinstance(value, bytes)
            else value.ctypes.data.to_bytes(8, "little")
            for value in values
        )
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        with self._lock:
            self._call(ctypes.byref(header), slots, error)
        return error.value.decode()


def aligned_bytes(n_bytes: int) -> Array:
    """Return uninitialised memory, aligned as cudaMalloc aligns it."""
    memory = np.empty(n_bytes + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + n_bytes]


def _slot(type_: str, value: Any) -> Array | bytes:
    if type_ != "pointer":
        return bytes(_TYPES[type_][1](value)).ljust(8, b"\0")
    if not isinstance(value, np.ndarray) or not value.flags.c_contiguous:
        raise TypeError(
            f"A pointer must be given as a C-contiguous array, not {value!r}."
        )
    return value


@cache
def _launcher(source: str) -> tuple[Any, threading.Lock]:
    """Return a text's function, and the lock of its single set of fibers."""
    with opened(source) as path:
        launch = ctypes.CDLL(str(path)).simt_launch
    launch.restype = None
    return launch, threading.Lock()
