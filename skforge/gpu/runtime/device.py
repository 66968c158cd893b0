"""The interface of GPU devices, and the staging memory that they lend to calls.

CuPy's is the one for users. A plugin's is a kind of target once it is registered.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from skforge._typing import Array
from skforge.compiler.target import KINDS
from skforge.gpu.codegen.host_plan import KernelCall

#: Most elements of an array that kernels index: they use 32-bit indices, and run to
#: the end of a block before they check where the batch ends.
MOST_ELEMENTS = 1 << 30

#: Starts a kernel on the current stream, given the pointers its call names.
LaunchFunction: TypeAlias = Callable[[Mapping[str, Any]], None]


@dataclass(eq=False)
class Staging:
    """A stream with memory for one part of a batch: rows and result on both sides."""

    stream: Any
    host_rows: Array  # bytes
    host_result: Array
    rows: Any  # device memory
    result: Any
    #: Recorded calls, by kernel and number of rows.
    recorded: WeakKeyDictionary[Any, dict[int, Callable[[], None]]] = field(
        default_factory=WeakKeyDictionary
    )


class GpuDevice(ABC):
    """Memory, streams and launches of one GPU.

    Methods that are not abstract suit a device in the host's memory without streams.
    """

    key: Hashable
    name: str
    memory_errors: tuple[type[BaseException], ...]

    def __init__(self) -> None:
        self.staging = StagingPool(self)

    def current(self, stream: Any = None) -> AbstractContextManager[Any]:
        return nullcontext()

    @abstractmethod
    def load(self, source: str) -> Callable[[KernelCall], LaunchFunction]:
        """Compile a text, or take it from a cache, and load it.

        The result turns a kernel call into a function that starts it.
        """

    def pointer(self, memory: Any) -> Any:
        """Return the address of memory in the form that launches take."""
        return memory

    @abstractmethod
    def allocate(self, n_bytes: int) -> Any:
        """Return memory aligned to 16 bytes, which lives as long as its references."""

    @abstractmethod
    def upload(self, data: Array) -> Any:
        """Return memory with a copy that is complete on return."""

    @abstractmethod
    def new_staging(self, rows_bytes: int, result_bytes: int) -> Staging:
        """Allocate a stream and its memory; ``staging`` reuses returned ones."""

    def send(self, staging: Staging, n_bytes: int) -> None:  # noqa: B027
        """Start copying rows to the device."""

    def fetch(self, staging: Staging, n_bytes: int) -> None:  # noqa: B027
        """Start copying the result from the device."""

    def record(self, call: Callable[[], None], stream: Any) -> Callable[[], None]:
        """Return a function that repeats a call: the call itself or a CUDA graph."""
        return call

    def wait(self, stream: Any = None) -> None:  # noqa: B027
        """Wait for all started work, on one stream or on all."""

    def trim(self) -> None:
        """Free memory that is kept for later calls."""
        self.staging.clear()


#: The devices of plugins, by their kind of target.
DEVICES: dict[str, GpuDevice] = {}


def register(device: GpuDevice) -> None:
    """Make a device a kind of target, named by its key, which runs CUDA text."""
    kind = str(device.key)
    if kind not in DEVICES:
        KINDS.append(kind)
    DEVICES[kind] = device


class StagingPool:
    """Stagings kept between calls: at most ``MOST``, the smallest first."""

    MOST = 4
    LEAST_BYTES = 1 << 16

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._free: list[Staging] = []

    @contextmanager
    def lend(self, rows_bytes: int, result_bytes: int) -> Iterator[Staging]:
        wanted = rows_bytes, result_bytes
        staging = self._take(*wanted)
        if staging is None:
            powers = (1 << (n - 1).bit_length() for n in wanted)
            sizes = (max(self.LEAST_BYTES, power) for power in powers)
            staging = self._device.new_staging(*sizes)
        try:
            yield staging
        except BaseException:
            # started work may still read and write its memory
            self._device.wait(staging.stream)
            raise
        with self._lock:
            self._free.append(staging)
            self._free.sort(key=_size)
            self._drop(self.MOST)

    def _take(self, rows_bytes: int, result_bytes: int) -> Staging | None:
        with self._lock:
            for staging in self._free:
                rows, result = _size(staging)
                if rows >= rows_bytes and result >= result_bytes:
                    self._free.remove(staging)
                    return staging
        return None

    def clear(self) -> None:
        with self._lock:
            self._drop(0)

    def _drop(self, most: int) -> None:
        for staging in self._free[most:]:
            staging.recorded.clear()  # recorded calls refer to the staging: a cycle
        del self._free[most:]


def _size(staging: Staging) -> tuple[int, int]:
    return len(staging.host_rows), len(staging.host_result)
