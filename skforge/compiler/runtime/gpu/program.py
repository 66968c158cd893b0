"""Calls of GPU kernels, whatever the device: rows there and back, parts, memory.

A :class:`GpuProgram` is one kernel function: the text and the plan of what the host
does, with the model's arrays. It runs on any :class:`GpuDevice`, of which there are two
kinds: CuPy's, and a CPU that runs the very text. Loading a text and uploading a model
is done once for each device, under a lock; nothing else is locked, and scratch is
allocated anew for each call, so that calls of many threads go side by side.

Batches run in parts where scratch, indices of 32 bits or a grid's dimensions would not
take all of one, and in smaller parts where the device is out of memory. Rows do not
depend on each other, so a part that failed is run again from its start. Rows that
are on the host go through *lanes*: a stream with memory of its own on both sides. Two
of them take turns, so that copies of one part hide behind the kernels of another.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.codegen.cuda.host_plan import Argument, HostPlan, Needs
from skforge.exceptions import CompilerError, TargetError

Array: TypeAlias = NDArray[Any]
Dim3: TypeAlias = tuple[int, int, int]

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

#: Numbers of rows whose launches a program keeps.
MOST_RECIPES = 256
#: Launches that a program keeps, above which it forgets them.
MOST_KEPT = 1 << 15

#: Launches of a run, unless a single row needs more of them.
MOST_LAUNCHES = 4096

#: Batches up to this many rows are launched as they were before: see ``Lane.prepared``.
FEW_ROWS = 1024


class Slot(NamedTuple):
    """A pointer that is known when a launch is made: of rows, a result or scratch."""

    number: int


#: Of rows and of the result; scratch comes after.
ROWS, RESULT, FIRST_SCRATCH = range(3)


class Loaded(Protocol):
    """The kernels of one text on one device."""

    def pointer(self, memory: Any) -> Any:
        """Return the address of memory as launches take it."""
        ...

    def bind(
        self,
        kernel: str,
        grid: Dim3,
        block: Dim3,
        shared_bytes: int,
        args: Sequence[Argument],
    ) -> Callable[[Sequence[Any]], None]:
        """Return what starts a kernel on the current stream.

        It takes the pointers of slots, which ``args`` have in place of values.
        """
        ...


class Lane(Protocol):
    """A stream with memory for one part: host and device, rows and result."""

    host_rows: Array  # bytes
    host_result: Array
    rows: Any  # device memory
    result: Any
    #: Calls that were prepared, by program and rows.
    prepared: weakref.WeakKeyDictionary[GpuProgram, dict[int, Callable[[], None]]]

    def current(self) -> AbstractContextManager[Any]:
        """Make the stream the one that everything goes to."""
        ...

    def send(self, n_bytes: int) -> None:
        """Start copying rows to the device."""
        ...

    def fetch(self, n_bytes: int) -> None:
        """Start copying the result from the device."""
        ...

    def wait(self) -> None:
        """Wait for everything that was started."""
        ...

    def prepare(self, call: Callable[[], None]) -> Callable[[], None]:
        """Return what does as ``call`` does each time: itself, or a recorded graph."""
        ...


class GpuDevice(Protocol):
    """What the runtime needs of a device."""

    key: Hashable
    name: str
    memory_errors: tuple[type[BaseException], ...]

    def current(self) -> AbstractContextManager[Any]:
        """Make the device the one that everything goes to."""
        ...

    def load(self, source: str) -> Loaded:
        """Compile a text for the device, or find it in a cache, and load it."""
        ...

    def upload(self, data: Array) -> Any:
        """Return a pointer to a copy that is there when this returns."""
        ...

    def allocate(self, n_bytes: int) -> Any:
        """Return a pointer to scratch that lives as long as it is referred to."""
        ...

    def lane(self, rows_bytes: int, result_bytes: int) -> AbstractContextManager[Lane]:
        """Lend a lane with at least so much memory."""
        ...

    def wait(self) -> None:
        """Wait for everything that was started, on every stream."""
        ...

    def trim(self) -> None:
        """Give back memory that is kept for later calls."""
        ...


class DeviceRows(Protocol):
    """Rows or results that are on a device already."""

    def pointer(self, first: int) -> Any:
        """Return where a row begins."""
        ...


class GpuProgram:
    """A kernel function as its text and plan, with the model arrays it reads.

    Parameters
    ----------
    plan : HostPlan
        What runs.
    data : sequence of (str, ndarray)
        The model's arrays by the names of parameters.
    width : int
        Columns of the result.
    """

    def __init__(
        self, plan: HostPlan, data: Sequence[tuple[str, Array]], width: int
    ) -> None:
        self.plan = plan
        self._data = tuple(data)
        self._width = width
        self._lock = threading.Lock()
        self._bound: dict[Hashable, tuple[Loaded, dict[str, Any]]] = {}
        self._most: dict[int, int] = {}
        self._recipes: dict[tuple[Hashable, int, int], _Recipe] = {}
        #: Rows of a part that had memory, and for how many batches that is believed.
        self._fitting: dict[Hashable, tuple[int, int]] = {}

    def load(self, device: GpuDevice) -> None:
        """Bring the kernels and the model to a device, if they are not there."""
        with device.current():
            self._on(device)

    def run(self, device: GpuDevice, rows: Array, result: Array) -> None:
        """Fill ``result`` for rows on the host, and wait until it is there."""
        n, row = len(rows), rows.shape[1] * rows.itemsize
        widest = max(1, row, result.shape[1] * result.itemsize)
        part = min(self.most_rows(rows.shape[1]), max(1, PART_BYTES // widest))

        def upto(first: int, part: int) -> int:
            self._stream(device, rows[first:], result[first:], part)
            return n

        with device.current():
            self._in_parts(device, n, part, upto)

    def run_there(
        self, device: GpuDevice, rows: DeviceRows, n: int, stride: int, result: Any
    ) -> None:
        """Fill a result on the device, on the stream that is current.

        Parameters
        ----------
        device : GpuDevice
            Where all of it is; the caller has made it current.
        rows : DeviceRows
            Rows, ``stride`` elements apart.
        n : int
            How many.
        stride : int
            Elements from one row to the next.
        result : DeviceRows
            As many rows, side by side.
        """

        def upto(first: int, part: int) -> int:
            count = min(part, n - first)
            recipe = self._recipe(device, count, stride)
            recipe.start(rows.pointer(first), result.pointer(first))
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
            needs = self._needs(n_rows, stride)
            most = max(MOST_LAUNCHES, self._needs(1, stride).launches)
        except CompilerError:  # a grid is too large
            return False
        return needs.scratch_bytes <= SCRATCH_BYTES and needs.launches <= most

    def _needs(self, n_rows: int, stride: int) -> Needs:
        env = {name: 0 for name in self.plan.params}
        return self.plan.needs({**env, **self._env(0, n_rows, stride, 0)})

    # ------------------------------------------------------------ one run

    def _env(self, rows: Any, n: int, stride: int, result: Any) -> dict[str, Any]:
        return {"rows": rows, "n_rows": n, "row_stride": stride, "result": result}

    def _recipe(self, device: GpuDevice, n: int, stride: int) -> _Recipe:
        """Return what a run for so many rows is; worked out once."""
        key = device.key, n, stride
        found = self._recipes.get(key)
        if found is None:
            loaded, model = self._on(device)
            made = _Recipe(device, loaded)
            env = self._env(Slot(ROWS), n, stride, Slot(RESULT))
            self.plan.run(made, {**env, **model})
            kept = sum(map(len, list(self._recipes.values())))
            if len(self._recipes) >= MOST_RECIPES or kept >= MOST_KEPT:
                self._recipes.clear()
            found = self._recipes[key] = made
        return found

    def _on(self, device: GpuDevice) -> tuple[Loaded, dict[str, Any]]:
        """Return the kernels and the model's arrays, brought to the device once."""
        bound = self._bound.get(device.key)
        if bound is None:
            with self._lock:
                bound = self._bound.get(device.key)
                if bound is None:
                    loaded = device.load(self.plan.source)
                    model = {name: device.upload(data) for name, data in self._data}
                    bound = self._bound[device.key] = loaded, model
                    # Kernels of other streams may still read what goes with this.
                    weakref.finalize(self, _outlive, device, bound).atexit = False
        return bound

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
        with ExitStack() as stack:
            lanes = [
                stack.enter_context(device.lane(part * row_bytes, part * result_bytes))
                for _ in range(1 if n <= part else 2)
            ]
            running: list[tuple[Lane, Array]] = []
            for number, first in enumerate(range(0, n, part)):
                lane = lanes[number % len(lanes)]
                if len(running) == len(lanes):
                    _collect(*running.pop(0))
                some = rows[first : first + part]
                _put(lane, some)
                with lane.current():
                    lane.send(len(some) * row_bytes)
                    recipe = self._recipe(device, len(some), stride)
                    recipe.start(lane.rows, lane.result)
                    lane.fetch(len(some) * result_bytes)
                running.append((lane, result[first : first + part]))
            for pair in running:
                _collect(*pair)

    def _few(self, device: GpuDevice, rows: Array, result: Array, bucket: int) -> None:
        """Run few rows with launches that were worked out, or recorded, before.

        They take as many rows as the power of two above: those behind the last one are
        what an earlier call left there, and nobody reads what comes of them.
        """
        n_in, n_out = bucket * _row_bytes(rows), bucket * _row_bytes(result)
        with device.lane(n_in, n_out) as lane:
            _put(lane, rows)
            with lane.current():
                known = lane.prepared.setdefault(self, {})
                call = known.get(bucket)
                if call is None:
                    recipe = self._recipe(device, bucket, rows.shape[1])
                    launch = recipe.bound(lane.rows, lane.result)

                    def whole() -> None:
                        lane.send(n_in)
                        launch()
                        lane.fetch(n_out)

                    call = known[bucket] = lane.prepare(whole)
                call()
            _collect(lane, result)


#: What nobody could wait for: it is never freed.
_KEPT: list[tuple[Loaded, dict[str, Any]]] = []


def _outlive(device: GpuDevice, bound: tuple[Loaded, dict[str, Any]]) -> None:
    """Keep kernels and arrays until nothing runs that uses them."""
    try:
        device.wait()
    except Exception:  # noqa: BLE001 - a graph is being recorded, or after a fork
        _KEPT.append(bound)


class _Recipe:
    """The launches of a plan for a number of rows, to be run any number of times.

    To the plan it is a device, which notes what it is asked for.
    """

    def __init__(self, device: GpuDevice, loaded: Loaded) -> None:
        self._device, self._loaded = device, loaded
        self._scratch: list[int] = []
        self._free: list[int] = []  # scratch that later launches may have
        self._starts: list[Callable[[Sequence[Any]], None]] = []

    def allocate(self, n_bytes: int) -> Slot:
        """Note that scratch is needed."""
        if self._free:
            number = self._free.pop()
            self._scratch[number] = max(self._scratch[number], n_bytes)
        else:
            number = len(self._scratch)
            self._scratch.append(n_bytes)
        return Slot(FIRST_SCRATCH + number)

    def __len__(self) -> int:
        """Return how many launches there are."""
        return len(self._starts)

    def release(self, memory: Slot) -> None:
        """Note that scratch is free for what is launched later."""
        self._free.append(memory.number - FIRST_SCRATCH)

    def launch(self, *launch: Any) -> None:
        """Note a launch."""
        self._starts.append(self._loaded.bind(*launch))

    def start(self, rows: Any, result: Any) -> None:
        """Start every launch on the current stream."""
        self.bound(rows, result)()

    def bound(self, rows: Any, result: Any) -> Callable[[], None]:
        """Return what starts every launch, always with the same scratch."""
        held = [rows, result, *map(self._device.allocate, self._scratch)]
        pointers = [self._loaded.pointer(one) for one in held]

        def start(held: list[Any] = held) -> None:
            for one in self._starts:
                one(pointers)

        return start


def _row_bytes(array: Array) -> int:
    return int(array.shape[1]) * array.itemsize


def _put(lane: Lane, rows: Array) -> None:
    """Copy rows to where a lane sends them from."""
    held = lane.host_rows[: rows.size * rows.itemsize]
    np.copyto(held.view(rows.dtype).reshape(rows.shape), rows)


def _collect(lane: Lane, result: Array) -> None:
    """Wait for a part and copy its result to its place."""
    lane.wait()
    held = lane.host_result[: result.size * result.itemsize]
    np.copyto(result, held.view(result.dtype).reshape(result.shape))


class LanePool:
    """Lanes between calls; at most ``MOST_LANES`` are kept, the small ones first.

    Parameters
    ----------
    make : callable
        Returns a lane with memory for so many bytes of rows and of results.
    """

    MOST_LANES = 4
    LEAST_BYTES = 1 << 16

    def __init__(self, make: Callable[[int, int], Lane]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._free: list[tuple[int, int, Lane]] = []

    @contextmanager
    def lend(self, rows_bytes: int, result_bytes: int) -> Iterator[Lane]:
        """Lend the smallest lane that is large enough, or a new one."""
        with self._lock:
            fitting = [
                one
                for one in self._free
                if one[0] >= rows_bytes and one[1] >= result_bytes
            ]
            found = min(fitting, key=lambda one: one[:2], default=None)
            if found is not None:
                self._free.remove(found)
        if found is None:
            sizes = [
                max(self.LEAST_BYTES, 1 << (n - 1).bit_length())
                for n in (rows_bytes, result_bytes)
            ]
            found = (*sizes, self._make(*sizes))  # type: ignore[assignment]
        assert found is not None
        yield from self._lent(found)

    def _lent(self, held: tuple[int, int, Lane]) -> Iterator[Lane]:
        try:
            yield held[2]
        except BaseException:
            held[2].wait()  # what was started may still read and write its memory
            raise
        with self._lock:
            self._free.append(held)
            self._free.sort(key=lambda one: one[:2])
            self._drop(self.MOST_LANES)

    def clear(self) -> None:
        """Let go of the lanes that are not lent."""
        with self._lock:
            self._drop(0)

    def _drop(self, kept: int) -> None:
        for *_, lane in self._free[kept:]:
            lane.prepared.clear()  # calls that refer to their lane: a cycle
        del self._free[kept:]
