"""Times kernels of GPUs, and looks for what spills."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from skforge._typing import Array
from skforge.compiler.driver import Lowered
from skforge.compiler.forest.forest import Forest
from skforge.compiler.schedule.directives import Interleave
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import TargetError
from skforge.gpu.codegen.emitter import emit_gpu
from skforge.gpu.runtime.compilers import CompilerKind, resources_of
from skforge.gpu.runtime.kernel import GpuKernel, current_device
from skforge.tuning.measure.measure import KernelRunner, Runner

#: Maximum 32-bit registers of a block and of a thread, on all supported NVIDIA
#: architectures; AMD GPUs have no fewer.
REGISTERS, MOST_OF_THREAD = 65536, 255

#: Minimum registers of a traversal, and of each interleaved one for its node and value.
#: On sm_90, 18 and 3.3 were measured (docs/schedules.md).
WALK, IN_FLIGHT = 12, 2

#: Batches that take turns on a GPU, each with scratch of its own.
DEVICE_BATCHES = 8


def runner(kernel: GpuKernel, forest: Forest) -> Runner:
    kernel.load()
    of_cupy = kernel.target.kind in ("cuda", "hip")
    return (_DeviceRunner if of_cupy else KernelRunner)(kernel, forest)


class _DeviceRunner(KernelRunner[GpuKernel]):
    """Times the kernels of rows that are on the GPU already."""

    #: The last timed batches, a stream, and their recorded launches.
    _prepared: tuple[Sequence[Array], Any, Callable[[], None]] | None = None

    def time(self, batches: Sequence[Array], rounds: int) -> float:
        device = current_device(self._kernel.target)
        some = batches[:DEVICE_BATCHES]
        with device.current():
            if self._prepared is None or self._prepared[0] is not batches:
                self._prepared = None  # frees the memory of the last
                self._prepared = (batches, *self._recorded(device, some))
            _, stream, launch = self._prepared
            with device.current(stream):
                start = time.perf_counter()
                for _ in range(rounds):
                    launch()
                device.wait(stream)
                seconds = time.perf_counter() - start
        return seconds / (rounds * len(some))

    def _recorded(
        self, device: Any, batches: Sequence[Array]
    ) -> tuple[Any, Callable[[], None]]:
        xp = device.xp
        stream = xp.cuda.Stream(non_blocking=True)
        shape = len(batches[0]), self._forest.n_outputs
        with device.current(stream):
            result = xp.empty(shape, self._forest.accumulator_dtype)
            starts = [
                self._kernel.bound(device, xp.asarray(batch), result)
                for batch in batches
            ]

            def whole() -> None:
                for start in starts:
                    start()

            return stream, device.record(whole, stream)


def spills(schedule: Schedule, lowered: Lowered, target: Target) -> str:
    plan = emit_gpu(lowered.kernel.function, target)
    kind: CompilerKind = "hip" if target.kind == "hip" else "cuda"
    try:
        resources = resources_of(plan.source, target.cpu, kind)
    except TargetError:  # no compiler available
        threads = max((launch.threads for launch in plan.launches.values()), default=1)
        return _by_model(schedule, threads)
    for launch in plan.launches.values():
        used = resources[launch.kernel]
        local = max(used.stack_bytes, used.spill_bytes)
        if local:
            return (
                f"{launch.kernel} uses {local} bytes of local memory per thread, "
                f"besides {used.registers} registers ({target.cpu})"
            )
    return ""


def _by_model(schedule: Schedule, threads: int) -> str:
    """Check a lower bound on registers, computed from the interleaving factor."""
    walks = max(
        (d.factor or 1 for d in schedule.directives if isinstance(d, Interleave)),
        default=1,
    )
    least, most = WALK + IN_FLIGHT * walks, min(MOST_OF_THREAD, REGISTERS // threads)
    if least <= most:
        return ""
    return (
        f"{walks} walks in flight need at least {least} registers per thread "
        f"(estimated, because no compiler is installed), but a block of {threads} "
        f"threads leaves {most}"
    )
