"""Where arrays are and how time is taken: CuPy's GPU, or this CPU in its place."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

Call = Callable[[], Any]

#: Keeps the GPU busy while calls are queued: events then time kernels, not Python.
_SPIN = """
extern "C" __global__ void spin(long long cycles) {
  long long start = clock64();
  while (clock64() - start < cycles) {}
}
"""
#: Spinning takes so many times what queueing takes, at most so many seconds, at so many
#: cycles a second.
SPIN_MORE, MOST_SPIN, CYCLES = 1.5, 0.2, 2e9
#: Calls that are queued at most; a driver's queue has about a thousand launches.
MOST_QUEUED = 64


class Clock:
    """What the worker needs of a device: here this CPU, which says nothing of GPUs."""

    name = "this CPU"

    def put(self, rows: Any) -> Any:
        return rows

    def get(self, answer: Any) -> Any:
        return np.asarray(answer)

    def wait(self) -> None:
        """Wait for everything."""

    def kernel_seconds(self, call: Call, calls: int) -> float:
        """Return the device's seconds of one of several calls in a row."""
        start = perf_counter()
        for _ in range(calls):
            call()
        return (perf_counter() - start) / calls

    def facts(self) -> dict[str, Any]:
        return {"device": self.name}


class CupyClock(Clock):
    """CuPy's current GPU, its events and its default stream."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._device = cupy.cuda.Device()
        cupy.cuda.runtime.free(0)  # makes the context now
        self._spin = self._compiled()
        self.name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()

    def put(self, rows: Any) -> Any:
        return self._cupy.asarray(rows)

    def get(self, answer: Any) -> Any:
        if isinstance(answer, np.ndarray):
            return answer
        if hasattr(answer, "detach"):  # a tensor
            return answer.detach().cpu().numpy()
        return self._cupy.asnumpy(self._cupy.asarray(answer))

    def wait(self) -> None:
        self._device.synchronize()

    def kernel_seconds(self, call: Call, calls: int) -> float:
        """Queue calls behind a kernel that spins, and time them by events.

        Where a library waits for its own kernels the queue is empty, and its time
        includes what Python takes between them.
        """
        calls = max(1, min(calls, MOST_QUEUED))
        self._device.synchronize()
        start = perf_counter()
        call()
        queued = perf_counter() - start
        first, last = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        self._device.synchronize()
        if self._spin is not None:
            spin = min(MOST_SPIN, SPIN_MORE * queued * (calls + 2))
            self._spin((1,), (1,), (np.int64(spin * CYCLES),))
        first.record()
        for _ in range(calls):
            call()
        last.record()
        last.synchronize()
        taken: float = self._cupy.cuda.get_elapsed_time(first, last)
        return taken * 1e-3 / calls

    def _compiled(self) -> Any:
        """Return the kernel that spins; None where nothing compiles it."""
        kernel = self._cupy.RawKernel(_SPIN, "spin")
        try:
            kernel((1,), (1,), (np.int64(1),))
        except Exception:  # noqa: BLE001 - CuPy's own, and libraries it misses
            return None
        return kernel

    def facts(self) -> dict[str, Any]:
        runtime = self._cupy.cuda.runtime
        known = runtime.getDeviceProperties(self._device.id)
        return {
            "device": self.name,
            "arch": known["gcnArchName"].decode()
            if getattr(runtime, "is_hip", False)
            else f"sm_{self._device.compute_capability}",
            "processors": int(known["multiProcessorCount"]),
            "memory": int(known["totalGlobalMem"]),
            "driver": int(runtime.driverGetVersion()),
            "runtime": int(runtime.runtimeGetVersion()),
            "cupy": self._cupy.__version__,
            "kernels_queued": self._spin is not None,
        }


def clock_of(target: str) -> Clock:
    """Return the clock of a target: "cuda", "hip", or "emulated" for tests."""
    return CupyClock() if target in ("cuda", "hip") else Clock()
