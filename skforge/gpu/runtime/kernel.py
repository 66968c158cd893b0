"""GPU kernels: splits batches into parts, manages memory, copies rows and results.

A :class:`GpuKernel` is one kernel function: its text, the host's plan and the model's
arrays. It runs on any :class:`GpuDevice`. The text is loaded and the model uploaded
once per device, under a lock. Nothing else is locked, and each call allocates its own
scratch, so calls from many threads run concurrently.

A batch runs in parts if its scratch, 32-bit indices or grid dimensions do not suffice
for all of it, and in smaller parts if the device is out of memory. Rows are
independent, so a failed part runs again from its start. Rows on the host go through
*staging*: a stream with its own memory on both sides. Two stagings alternate, so that
the copies of one part overlap the kernels of the other.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterable
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from skforge._typing import Array
from skforge.compiler.driver import Lowered
from skforge.compiler.target import Target
from skforge.engine.kernels import Kernel
from skforge.exceptions import CompilerError, TargetError
from skforge.gpu.codegen.emitter import emit_gpu
from skforge.gpu.codegen.host_plan import HostPlan, HostRun, KernelCall
from skforge.gpu.runtime.device import (
    DEVICES,
    MOST_ELEMENTS,
    GpuDevice,
    LaunchFunction,
    Staging,
)

if TYPE_CHECKING:
    from concurrent.futures import Executor

#: Bytes of scratch per launch above which a batch runs in parts.
SCRATCH_BYTES = 256 << 20

#: Bytes of rows, or of results, in one part copied between host and device.
PART_BYTES = 16 << 20

#: Least bytes of rows that a thread copies to pinned memory. One copies 6 to 8 GB/s,
#: four copy 20 (an H200 with 16 cores).
THREAD_BYTES = 2 << 20

#: Least rows of a part when the device is out of memory.
LEAST_ROWS = 256

#: Batches that keep the smaller parts after the device was out of memory.
FITTING_BATCHES = 100

#: Numbers of rows whose launches a kernel keeps.
MOST_SIZES = 256
#: Launches that a kernel keeps before it discards them all.
MOST_KEPT = 1 << 15

#: Most launches per run, unless a single row needs more.
MOST_LAUNCHES = 4096

#: Batches up to this many rows reuse recorded launches: see ``Staging.recorded``.
FEW_ROWS = 1024


class GpuKernel:
    def __init__(self, lowered: Lowered, target: Target) -> None:
        self.target = target
        self.plan: HostPlan = emit_gpu(lowered.kernel.function, target)
        data = {item.buffer.name: item.data for item in lowered.kernel.data}
        self._data = [(name, data[name]) for name in self.plan.uploads]
        self._width = lowered.kernel.width
        self._lock = threading.Lock()
        self._loaded: dict[Hashable, _Loaded] = {}
        self._most: dict[int, int] = {}
        self._launches: dict[tuple[Hashable, int, int], _Launches] = {}
        #: Rows of a part that fitted into memory, and the batches it still holds for.
        self._fitting: dict[Hashable, tuple[int, int]] = {}

    def load(self) -> None:
        device = current_device(self.target)
        with device.current():
            self._on(device)

    def __call__(self, rows: Array, result: Array, threads: int) -> None:
        device = current_device(self.target)
        n, row = len(rows), rows.shape[1] * rows.itemsize
        widest = max(1, row, result.shape[1] * result.itemsize)
        part = min(self.most_rows(rows.shape[1]), max(1, PART_BYTES // widest))

        def upto(first: int, part: int) -> int:
            self._stream(device, rows[first:], result[first:], part, threads)
            return n

        with device.current():
            self._in_parts(device, n, part, upto)

    def on_device(self, device: GpuDevice, rows: Any, result: Any) -> None:
        """Fill a result on the current stream, where nothing waits for it."""
        n = len(rows)
        stride = rows.strides[0] // rows.itemsize if n > 1 else rows.shape[1]

        def upto(first: int, part: int) -> int:
            count = min(part, n - first)
            launches = self._launches_for(device, count, stride)
            places = (rows, result) if count == n else (rows[first:], result[first:])
            launches.bound(*(place.data for place in places))()
            return first + count

        self._in_parts(device, n, self.most_rows(stride), upto)

    def bound(self, device: GpuDevice, rows: Any, result: Any) -> Callable[[], None]:
        """Return what repeats ``on_device``; it keeps rows, result and own scratch."""
        n, stride = len(rows), rows.shape[1]
        part = self.most_rows(stride)
        starts = (
            self._launches_for(device, min(part, n - first), stride).bound(
                rows[first:].data, result[first:].data
            )
            for first in range(0, n, part)
        )
        return in_order(starts)

    def most_rows(self, stride: int) -> int:
        n_rows = self._most.get(stride)
        if n_rows is None:
            most = MOST_ELEMENTS // max(1, stride, self._width)
            # Search upwards: sizes that overflow 32 bits would seem small.
            n_rows = 1
            while 2 * n_rows <= most and self._fits(2 * n_rows, stride):
                n_rows *= 2
            self._most[stride] = n_rows
        return n_rows

    def _fits(self, n_rows: int, stride: int) -> bool:
        try:
            run = self._run(n_rows, stride, ends_only=True)
            least = self._run(1, stride, ends_only=True)
        except CompilerError:  # a grid is too large
            return False
        most = max(MOST_LAUNCHES, least.launches)
        return run.scratch_bytes <= SCRATCH_BYTES and run.launches <= most

    def _run(self, n: int, stride: int, ends_only: bool = False) -> HostRun:
        env: dict[str, Any] = {name: name for name in self.plan.params}
        env |= {"n_rows": n, "row_stride": stride}
        return self.plan.run(env, ends_only=ends_only)

    def _launches_for(self, device: GpuDevice, n: int, stride: int) -> _Launches:
        key = device.key, n, stride
        launches = self._launches.get(key)
        if launches is None:
            new = _Launches(device, self._on(device), self._run(n, stride))
            n_kept = sum(map(len, list(self._launches.values())))
            if len(self._launches) >= MOST_SIZES or n_kept >= MOST_KEPT:
                self._launches.clear()
            launches = self._launches[key] = new
        return launches

    def _on(self, device: GpuDevice) -> _Loaded:
        if device.key not in self._loaded:
            with self._lock:
                if device.key not in self._loaded:
                    loaded = _Loaded(device, self.plan.source, self._data)
                    self._loaded[device.key] = loaded
                    # Kernels on other streams may still read this memory.
                    weakref.finalize(self, _outlive, device, loaded).atexit = False
        return self._loaded[device.key]

    def _in_parts(
        self, device: GpuDevice, n_rows: int, part: int, upto: Callable[[int, int], int]
    ) -> None:
        """Call ``upto(first, part)``, which returns the next row, until all are done.

        If it runs out of memory, cached memory is freed first, and then parts shrink.
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
                            "a time; free some memory, or use target='cpu'."
                        ) from error
                    part = max(LEAST_ROWS, part // 2)
                    self._fitting[device.key] = part, FITTING_BATCHES
                trimmed = True

    # ------------------------------------------------------------ rows on the host

    def _stream(
        self, device: GpuDevice, rows: Array, result: Array, part: int, threads: int
    ) -> None:
        n = len(rows)
        bucket = 1 << (n - 1).bit_length()
        if bucket <= min(part, FEW_ROWS):
            self._few(device, rows, result, bucket)
            return
        part = min(part, n)
        stride = rows.shape[1]
        most = self._launches_for(device, part, stride)
        with ExitStack() as stack:
            lent = [
                stack.enter_context(device.staging.lend(*most.copied))
                for _ in range(1 if n <= part else 2)
            ]
            running: list[tuple[Staging, Array]] = []
            for number, first in enumerate(range(0, n, part)):
                staging = lent[number % len(lent)]
                if len(running) == len(lent):
                    _collect(device, *running.pop(0))
                some = rows[first : first + part]
                _put(staging, some, threads)
                with device.current(staging.stream):
                    self._launches_for(device, len(some), stride).on(staging)()
                running.append((staging, result[first : first + part]))
            for pair in running:
                _collect(device, *pair)

    def _few(self, device: GpuDevice, rows: Array, result: Array, bucket: int) -> None:
        """Run a small batch as the next power of two; what lies beyond is not read."""
        launches = self._launches_for(device, bucket, rows.shape[1])
        with device.staging.lend(*launches.copied) as staging:
            _put(staging, rows)
            with device.current(staging.stream):
                known = staging.recorded.setdefault(self, {})
                if bucket not in known:
                    whole = launches.on(staging)
                    known[bucket] = device.record(whole, staging.stream)
                known[bucket]()
            _collect(device, staging, result)


def in_order(calls: Iterable[Callable[[], None]]) -> Callable[[], None]:
    every = tuple(calls)

    def start() -> None:
        for call in every:
            call()

    return start


class _Loaded:
    def __init__(
        self, device: GpuDevice, source: str, data: list[tuple[str, Array]]
    ) -> None:
        self.bind: Callable[[KernelCall], LaunchFunction] = device.load(source)
        self._memory = {name: device.upload(array) for name, array in data}
        self.pointers = {
            name: device.pointer(memory) for name, memory in self._memory.items()
        }


#: Objects whose last use could not be waited for; they are never freed.
_KEPT: list[_Loaded] = []


def _outlive(device: GpuDevice, loaded: _Loaded) -> None:
    """Keep kernels and arrays until nothing that uses them is running."""
    try:
        device.wait()
    except Exception:  # noqa: BLE001 - a graph is being recorded, or after a fork
        _KEPT.append(loaded)


class _Launches:
    def __init__(self, device: GpuDevice, loaded: _Loaded, run: HostRun) -> None:
        self._device, self._loaded = device, loaded
        self._scratch = run.scratch
        #: Bytes of the rows that are copied in, and of the results copied out.
        self.copied = run.copied["rows"], run.copied["result"]
        self._starts = [loaded.bind(call) for call in run.calls]

    def __len__(self) -> int:
        return len(self._starts)

    def bound(self, rows: Any, result: Any) -> Callable[[], None]:
        memory = {"rows": rows, "result": result}
        for name, n_bytes in self._scratch.items():
            memory[name] = self._device.allocate(n_bytes)
        pointer = self._device.pointer
        pointers = self._loaded.pointers | {k: pointer(v) for k, v in memory.items()}

        def start(keep_alive: dict[str, Any] = memory) -> None:
            for value in self._starts:
                value(pointers)

        return start

    def on(self, staging: Staging) -> Callable[[], None]:
        launch, (n_in, n_out) = self.bound(staging.rows, staging.result), self.copied

        def whole() -> None:
            self._device.send(staging, n_in)
            launch()
            self._device.fetch(staging, n_out)

        return whole


def _put(staging: Staging, rows: Array, threads: int = 1) -> None:
    pinned = staging.host_rows[: rows.size * rows.itemsize]
    to = pinned.view(rows.dtype).reshape(rows.shape)
    threads = min(threads, pinned.size // THREAD_BYTES)
    if threads <= 1:
        np.copyto(to, rows)
        return
    parts = (np.array_split(array, threads) for array in (to, rows))
    list(_copiers().map(np.copyto, *parts))


@cache
def _copiers() -> Executor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(PART_BYTES // THREAD_BYTES, "skforge-copy")


def _collect(device: GpuDevice, staging: Staging, result: Array) -> None:
    device.wait(staging.stream)
    pinned = staging.host_result[: result.size * result.itemsize]
    np.copyto(result, pinned.view(result.dtype).reshape(result.shape))


def current_device(target: Target) -> GpuDevice:
    if target.kind in DEVICES:
        return DEVICES[target.kind]
    if target.kind in ("cuda", "hip"):
        from skforge.gpu.runtime import cupy as device_cupy

        return device_cupy.current(target.kind)
    raise TargetError(f"{target} is not a GPU that can run kernels.")


class EmulatedKernel(Kernel):
    """A kernel of the emulated GPU: machine code of this CPU, with a GPU's indices."""

    def __call__(self, rows: Array, result: Array, threads: int) -> None:
        rows = np.ascontiguousarray(rows)
        most = max(1, MOST_ELEMENTS // max(1, rows.shape[1], result.shape[1]))
        for first in range(0, max(1, len(rows)), most):
            part = slice(first, first + most)
            super().__call__(rows[part], result[part], threads)
