"""The CPU as a GPU that runs the very text of the kernels, for ``GpuProgram``.

Host and device memory are the same, so that lanes copy nothing; everything else is done
as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.codegen.cuda.host_plan import Argument
from skforge.compiler.runtime.gpu.program import Dim3, GpuProgram, Lane, LanePool, Slot
from skforge.compiler.runtime.simt.source import SourceDevice

Array: TypeAlias = NDArray[Any]

_ALIGNMENT = 256  # as of cudaMalloc


class EmulatedGpu:
    """A GPU made of g++; there is one."""

    key: Hashable = "emulated-source"
    name = "The emulated GPU"
    memory_errors: tuple[type[BaseException], ...] = (MemoryError,)

    def __init__(self) -> None:
        self._lanes = LanePool(_HostLane)

    def current(self) -> AbstractContextManager[Any]:
        """Return a context that does nothing."""
        return nullcontext()

    def load(self, source: str) -> _Loaded:
        """Return the kernels of a text, built with g++.

        Raises
        ------
        TargetError
            There is no g++.
        """
        return _Loaded(SourceDevice(source))

    def upload(self, data: Array) -> Array:
        """Return an aligned copy."""
        memory = self.allocate(data.nbytes)
        memory[:] = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        return memory

    def allocate(self, n_bytes: int) -> Array:
        """Return memory with nothing in it."""
        return _aligned(n_bytes)

    def lane(self, rows_bytes: int, result_bytes: int) -> AbstractContextManager[Lane]:
        """Lend memory."""
        return self._lanes.lend(rows_bytes, result_bytes)

    def wait(self) -> None:
        """Return: launches end before they return."""

    def trim(self) -> None:
        """Let go of lanes."""
        self._lanes.clear()


class _Loaded:
    """Kernels; their pointers are arrays."""

    def __init__(self, kernels: SourceDevice) -> None:
        self._kernels = kernels

    def pointer(self, memory: Array) -> Array:
        return memory

    def bind(
        self,
        kernel: str,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        args: Sequence[Argument],
    ) -> Callable[[Sequence[Any]], None]:
        def start(pointers: Sequence[Any]) -> None:
            given = [
                (type_, pointers[value.number] if isinstance(value, Slot) else value)
                for type_, value in args
            ]
            self._kernels.launch(kernel, grid, block, shared_bytes, given)

        return start


class _HostLane:
    """Memory that is on both sides."""

    def __init__(self, rows_bytes: int, result_bytes: int) -> None:
        self.host_rows = self.rows = _aligned(rows_bytes)
        self.host_result = self.result = _aligned(result_bytes)
        self.prepared: WeakKeyDictionary[GpuProgram, dict[int, Callable[[], None]]]
        self.prepared = WeakKeyDictionary()

    def current(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def send(self, n_bytes: int) -> None:
        """Nothing is to be copied."""

    def fetch(self, n_bytes: int) -> None:
        """Nothing is to be copied."""

    def wait(self) -> None:
        """Return: launches end before they return."""

    def prepare(self, call: Callable[[], None]) -> Callable[[], None]:
        return call


def _aligned(n_bytes: int) -> Array:
    memory = np.empty(n_bytes + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + n_bytes]
