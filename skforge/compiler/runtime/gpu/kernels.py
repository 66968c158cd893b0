"""Kernels of GPU targets, called as those of a CPU are.

"emulated" compiles grids as loops for the CPU, and needs nothing of this module but
:func:`as_loops`. The others turn LIR into a text and a plan, which runs on a device.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

from numpy.typing import NDArray

from skforge.compiler.codegen.cuda.emitter import emit_gpu
from skforge.compiler.codegen.cuda.host_plan import HostPlan
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.passes.lir import emulate_grids
from skforge.compiler.pipeline import Lowered
from skforge.compiler.runtime.gpu.program import DeviceRows, GpuDevice, GpuProgram
from skforge.compiler.target import Target
from skforge.exceptions import TargetError

Array: TypeAlias = NDArray[Any]


class GpuKernel:
    """A schedule's kernels on whatever device a call is for."""

    most_rows = None  # parts are the program's business

    def __init__(self, lowered: Lowered, target: Target, width: int) -> None:
        self.target = target
        self.function = lowered.kernel.function
        self.plan: HostPlan = emit_gpu(self.function, target)
        data = [(item.buffer.name, item.data) for item in lowered.kernel.data]
        self.program = GpuProgram(self.plan, data, width)

    def __call__(self, rows: Array, result: Array, threads: int) -> None:
        """Fill ``result``, a row of it for each of ``rows``, on the current device."""
        self.program.run(current_device(self.target), rows, result)

    def load(self) -> None:
        """Compile the text for the current device and bring the model there."""
        self.program.load(current_device(self.target))

    def there(
        self, device: GpuDevice, rows: DeviceRows, n: int, stride: int, result: Any
    ) -> None:
        """Fill a result that is on the device, on its current stream."""
        self.program.run_there(device, rows, n, stride, result)


def as_loops(function: lir.Function) -> lir.Function:
    """Return what the CPU runs for the target "emulated"."""
    return emulate_grids.run(function)


@lru_cache(maxsize=1)
def _emulated() -> GpuDevice:
    from skforge.compiler.runtime.simt.device import EmulatedGpu

    return EmulatedGpu()


def current_device(target: Target) -> GpuDevice:
    """Return the device that rows on the host are sent to.

    Raises
    ------
    TargetError
        There is none; says what is missing.
    """
    if target.kind == "emulated-source":
        return _emulated()
    if target.kind in ("cuda", "hip"):
        from skforge.compiler.runtime.gpu import cupy as device_cupy

        return device_cupy.current(target.kind)
    raise TargetError(f"{target} is no GPU that kernels are sent to.")
