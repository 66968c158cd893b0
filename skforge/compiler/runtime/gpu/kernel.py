"""Kernels of GPU targets: batches in parts, memory, rows on the host or a device.

A :class:`GpuKernel` is one kernel function: the text and the plan of what the host
does, with the model's arrays. It runs on any :class:`GpuDevice`. A text is loaded and a
model uploaded once for each device, under a lock; nothing else is locked, and scratch
is allocated anew for each call, so that calls of many threads go side by side.

Batches run in parts where scratch, indices of 32 bits or a grid's dimensions would not
take all of one, and in smaller parts where the device is out of memory. Rows do not
depend on each other, so a part that failed is run again from its start. Rows on the
host go through *staging*: a stream with memory of its own on both sides. Two of them
take turns, so that copies of one part hide behind the kernels of another.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.codegen.cuda.emitter import emit_gpu
from skforge.compiler.codegen.cuda.host_plan import HostPlan, KernelCall, Run
from skforge.compiler.pipeline import Lowered
from skforge.compiler.runtime.gpu.device import GpuDevice, Staging, Start
from skforge.compiler.target import Target
from skforge.exceptions import CompilerError, TargetError

Array: TypeAlias = NDArray[Any]

#: Scratch of a launch above which a batch runs in parts.
SCRATCH_BYTES = 256 << 20

#: Rows, or results, of a part on its way between host and device.
PART_BYTES = 16 << 20

#: Parts are not made smaller than this many rows when the device is out of memory.
LEAST_ROWS = 256

#: Batches that run in smaller parts after a device was out of memory.
FITTING_BATCHES = 100

#: Elements of an array that kernels index. They do so in 32 bits, and go on to the end
#: of a block before they ask where the batch ends.
MOST_ELEMENTS = 1 << 30

#: Numbers of rows whose launches a kernel keeps.
MOST_SIZES = 256
#: Launches that a kernel keeps, above which it forgets them.
MOST_KEPT = 1 << 15

#: Launches of a run, unless a single row needs more of them.
MOST_LAUNCHES = 4096

#: Batches up to this many rows repeat launches: see ``Staging.recorded``.
FEW_ROWS = 1024


class GpuKernel:
    """A schedule's kernels, with the model arrays they read.

    Parameters
    ----------
    lowered : Lowered
        The schedule's LIR and the model's arrays.
    target : Target
        A GPU, or "emulated-source".
    width : int
        Columns of the result.
    """

    def __init__(self, lowered: Lowered, target: Target, width: int) -> None:
        self.target = target
        self.function = lowered.kernel.function
        self.plan: HostPlan = emit_gpu(self.function, target)
        self._data = [(item.buffer.name, item.data) for item in lowered.kernel.data]
        self._width = width
        self._lock = threading.Lock()
        self._loaded: dict[Hashable, _Loaded] = {}
        self._most: dict[int, int] = {}
        self._launches: dict[tuple[Hashable, int, int], _Launches] = {}
        #: Rows of a part that had memory, and for how many batches that is believed.
        self._fitting: dict[Hashable, tuple[int, int]] = {}

    def load(self) -> None:
        """Compile the text for the current device and bring the model there."""
        device = current_device(self.target)
        with device.current():
            self._on(device)

    def __call__(self, rows: Array, result: Array, threads: int) -> None:
        """Fill ``result``, a row of it for each of ``rows``, on the current device."""
        device = current_device(self.target)
        n, row = len(rows), rows.shape[1] * rows.itemsize
        widest = max(1, row, result.shape[1] * result.itemsize)
        part = min(self.most_rows(rows.shape[1]), max(1, PART_BYTES // widest))

        def upto(first: int, part: int) -> int:
            self._stream(device, rows[first:], result[first:], part)
            return n

        with device.current():
            self._in_parts(device, n, part, upto)

    def on_device(self, device: GpuDevice, rows: Any, result: Any) -> None:
        """Fill a result from rows, both CuPy arrays on a device that is current.

        Everything goes to the current stream, and nothing waits for it.
        """
        n = len(rows)
        stride = rows.strides[0] // rows.itemsize if n > 1 else rows.shape[1]

        def upto(first: int, part: int) -> int:
            count = min(part, n - first)
            launches = self._launches_for(device, count, stride)
            launches.bound(rows[first:].data, result[first:].data)()
            return first + count

        self._in_parts(device, n, self.most_rows(stride), upto)

    def most_rows(self, stride: int) -> int:
        """Return how many rows, so far apart, one run of the plan takes."""
        found = self._most.get(stride)
        if found is None:
            most = MOST_ELEMENTS // max(1, stride, self._width)
            # From below: where sizes no longer fit 32 bits, they would seem small.
            found = 1
            while 2 * found <= most and self._fits(2 * found, stride):
                found *= 2
            self._most[stride] = found
        return found

    def _fits(self, n_rows: int, stride: int) -> bool:
        """Tell whether scratch and grids of so many rows are within their limits."""
        try:
            run = self._run(n_rows, stride, ends_only=True)
            least = self._run(1, stride, ends_only=True)
        except CompilerError:  # a grid is too large
            return False
        most = max(MOST_LAUNCHES, least.launches)
        return run.scratch_bytes <= SCRATCH_BYTES and run.launches <= most

    def _run(self, n: int, stride: int, ends_only: bool = False) -> Run:
        env: dict[str, Any] = {name: name for name in self.plan.params}
        env |= {"n_rows": n, "row_stride": stride}
        return self.plan.run(env, ends_only=ends_only)

    def _launches_for(self, device: GpuDevice, n: int, stride: int) -> _Launches:
        """Return the launches of a run for so many rows; worked out once."""
        key = device.key, n, stride
        found = self._launches.get(key)
        if found is None:
            made = _Launches(device, self._on(device), self._run(n, stride))
            kept = sum(map(len, list(self._launches.values())))
            if len(self._launches) >= MOST_SIZES or kept >= MOST_KEPT:
                self._launches.clear()
            found = self._launches[key] = made
        return found

    def _on(self, device: GpuDevice) -> _Loaded:
        """Return the kernels and the model's arrays, brought to the device once."""
        loaded = self._loaded.get(device.key)
        if loaded is None:
            with self._lock:
                loaded = self._loaded.get(device.key)
                if loaded is None:
                    loaded = _Loaded(device, self.plan.source, self._data)
                    self._loaded[device.key] = loaded
                    # Kernels of other streams may still read what goes with this.
                    weakref.finalize(self, _outlive, device, loaded).atexit = False
        return loaded

    def _in_parts(
        self,
        device: GpuDevice,
        n_rows: int,
        part: int,
        upto: Callable[[int, int], int],
    ) -> None:
        """Call ``upto(first, part)``, which returns the first row it left, to the end.

        Where it runs out of memory, the memory kept for later is given back, and then
        parts are made smaller.
        """
        if self._fitting:
            rows, batches = self._fitting.pop(device.key, (part, 0))
            part = min(part, rows)
            if batches > 1:
                self._fitting[device.key] = rows, batches - 1
        first, trimmed = 0, False
        while first < n_rows:
            try:
                first = upto(first, part)
            except device.memory_errors as error:
                device.trim()
                part = min(part, n_rows - first)
                if trimmed:
                    if part <= LEAST_ROWS:
                        raise TargetError(
                            f"{device.name} is out of memory, even for {part} rows at "
                            "a time; free some of it, or use target='cpu'."
                        ) from error
                    part = max(LEAST_ROWS, part // 2)
                    self._fitting[device.key] = part, FITTING_BATCHES
                trimmed = True

    # ------------------------------------------------------------ rows on the host

    def _stream(self, device: GpuDevice, rows: Array, result: Array, part: int) -> None:
        n = len(rows)
        bucket = 1 << (n - 1).bit_length()
        if bucket <= min(part, FEW_ROWS):
            self._few(device, rows, result, bucket)
            return
        part = min(part, n)
        stride = rows.shape[1]
        row_bytes, result_bytes = _row_bytes(rows), _row_bytes(result)
        sizes = part * row_bytes, part * result_bytes
        with ExitStack() as stack:
            lent = [
                stack.enter_context(device.staging.lend(*sizes))
                for _ in range(1 if n <= part else 2)
            ]
            running: list[tuple[Staging, Array]] = []
            for number, first in enumerate(range(0, n, part)):
                staging = lent[number % len(lent)]
                if len(running) == len(lent):
                    _collect(device, *running.pop(0))
                some = rows[first : first + part]
                _put(staging, some)
                with device.current(staging.stream):
                    device.send(staging, len(some) * row_bytes)
                    launches = self._launches_for(device, len(some), stride)
                    launches.bound(staging.rows, staging.result)()
                    device.fetch(staging, len(some) * result_bytes)
                running.append((staging, result[first : first + part]))
            for pair in running:
                _collect(device, *pair)

    def _few(self, device: GpuDevice, rows: Array, result: Array, bucket: int) -> None:
        """Run few rows with launches that were worked out, or recorded, before.

        They take as many rows as the power of two above: those behind the last one are
        what an earlier call left there, and nobody reads what comes of them.
        """
        n_in, n_out = bucket * _row_bytes(rows), bucket * _row_bytes(result)
        with device.staging.lend(n_in, n_out) as staging:
            _put(staging, rows)
            with device.current(staging.stream):
                known = staging.recorded.setdefault(self, {})
                call = known.get(bucket)
                if call is None:
                    launches = self._launches_for(device, bucket, rows.shape[1])
                    launch = launches.bound(staging.rows, staging.result)

                    def whole() -> None:
                        device.send(staging, n_in)
                        launch()
                        device.fetch(staging, n_out)

                    call = known[bucket] = device.record(whole, staging.stream)
                call()
            _collect(device, staging, result)


class _Loaded:
    """A kernel's text and the model's arrays on a device."""

    def __init__(
        self, device: GpuDevice, source: str, data: list[tuple[str, Array]]
    ) -> None:
        self.bind: Callable[[KernelCall], Start] = device.load(source)
        self._memory = {name: device.upload(array) for name, array in data}
        self.pointers = {
            name: device.pointer(memory) for name, memory in self._memory.items()
        }


#: What nobody could wait for: it is never freed.
_KEPT: list[_Loaded] = []


def _outlive(device: GpuDevice, loaded: _Loaded) -> None:
    """Keep kernels and arrays until nothing runs that uses them."""
    try:
        device.wait()
    except Exception:  # noqa: BLE001 - a graph is being recorded, or after a fork
        _KEPT.append(loaded)


class _Launches:
    """The launches of a run on a device, to be started any number of times."""

    def __init__(self, device: GpuDevice, loaded: _Loaded, run: Run) -> None:
        self._device, self._loaded = device, loaded
        self._scratch = run.scratch
        self._starts = [loaded.bind(call) for call in run.calls]

    def __len__(self) -> int:
        """Return how many launches there are."""
        return len(self._starts)

    def bound(self, rows: Any, result: Any) -> Callable[[], None]:
        """Return what starts every launch, always with the same scratch."""
        memory = {"rows": rows, "result": result}
        for name, n_bytes in self._scratch.items():
            memory[name] = self._device.allocate(n_bytes)
        pointers = dict(self._loaded.pointers)
        for name, one in memory.items():
            pointers[name] = self._device.pointer(one)

        def start(held: dict[str, Any] = memory) -> None:
            for one in self._starts:
                one(pointers)

        return start


def _row_bytes(array: Array) -> int:
    return int(array.shape[1]) * array.itemsize


def _put(staging: Staging, rows: Array) -> None:
    """Copy rows to where they are sent from."""
    held = staging.host_rows[: rows.size * rows.itemsize]
    np.copyto(held.view(rows.dtype).reshape(rows.shape), rows)


def _collect(device: GpuDevice, staging: Staging, result: Array) -> None:
    """Wait for a part and copy its result to its place."""
    device.wait(staging.stream)
    held = staging.host_result[: result.size * result.itemsize]
    np.copyto(result, held.view(result.dtype).reshape(result.shape))


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
