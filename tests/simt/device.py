"""The CPU as a GPU device that runs the kernels' source text.

Host and device memory are the same, so nothing is copied or waited for. Everything else
works as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skforge.gpu.codegen.host_plan import POINTER, KernelCall
from skforge.gpu.runtime.device import GpuDevice, LaunchFunction, Staging
from tests.simt.source import SourceDevice, aligned_bytes

Array: TypeAlias = NDArray[Any]


class EmulatedGpu(GpuDevice):
    """The emulated GPU; there is only one."""

    key = "emulated-source"
    name = "The emulated GPU"
    memory_errors: tuple[type[BaseException], ...] = (MemoryError,)

    def load(self, source: str) -> Callable[[KernelCall], LaunchFunction]:
        """Return the kernels of a text, built with g++."""
        kernels = SourceDevice(source)

        def bind(call: KernelCall) -> LaunchFunction:
            def start(pointers: Mapping[str, Any]) -> None:
                given = [
                    (type_, pointers[value] if type_ == POINTER else value)
                    for type_, value in call.args
                ]
                kernels.launch(*call[:-1], given)

            return start

        return bind

    def allocate(self, n_bytes: int) -> Array:
        """Return uninitialised memory."""
        return aligned_bytes(n_bytes)

    def upload(self, data: Array) -> Array:
        """Return an aligned copy."""
        memory = self.allocate(data.nbytes)
        memory[:] = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        return memory

    def new_staging(self, rows_bytes: int, result_bytes: int) -> Staging:
        """Return memory that serves as both sides."""
        rows, result = aligned_bytes(rows_bytes), aligned_bytes(result_bytes)
        return Staging(None, rows, result, rows, result)
