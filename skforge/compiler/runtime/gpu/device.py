"""What the runtime needs of a GPU, and the staging memory that it lends to calls.

There are two devices: CuPy's, and a CPU that runs the very text of the kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from numpy.typing import NDArray

from skforge.compiler.codegen.cuda.host_plan import KernelCall

Array: TypeAlias = NDArray[Any]
#: Starts a kernel on the current stream, given the pointers that its call names.
Start: TypeAlias = Callable[[Mapping[str, Any]], None]


@dataclass(eq=False)
class Staging:
    """A stream with memory for one part of a batch: rows and result, on both sides."""

    stream: Any
    host_rows: Array  # bytes
    host_result: Array
    rows: Any  # device memory
    result: Any
    #: Calls that were recorded, by kernel and rows.
    recorded: WeakKeyDictionary[Any, dict[int, Callable[[], None]]] = field(
        default_factory=WeakKeyDictionary
    )


class GpuDevice(Protocol):
    """Memory, streams and launches of one GPU."""

    key: Hashable
    name: str
    memory_errors: tuple[type[BaseException], ...]
    staging: StagingPool

    def current(self, stream: Any = None) -> AbstractContextManager[Any]:
        """Make the device, or one of its streams, what everything goes to."""
        ...

    def load(self, source: str) -> Callable[[KernelCall], Start]:
        """Compile a text, or find it in a cache, and load it.

        The result turns a call of one of its kernels into a function that starts it.
        """
        ...

    def pointer(self, memory: Any) -> Any:
        """Return the address of memory as launches take it."""
        ...

    def allocate(self, n_bytes: int) -> Any:
        """Return memory that starts at a multiple of 16 bytes.

        It lives as long as it is referred to.
        """
        ...

    def upload(self, data: Array) -> Any:
        """Return memory with a copy that is complete when this returns."""
        ...

    def new_staging(self, rows_bytes: int, result_bytes: int) -> Staging:
        """Allocate a stream's memory; ``staging`` lends what calls gave back."""
        ...

    def send(self, staging: Staging, n_bytes: int) -> None:
        """Start copying rows to the device."""
        ...

    def fetch(self, staging: Staging, n_bytes: int) -> None:
        """Start copying the result from the device."""
        ...

    def record(self, call: Callable[[], None], stream: Any) -> Callable[[], None]:
        """Return a function that repeats a call: itself, or a recorded graph."""
        ...

    def wait(self, stream: Any = None) -> None:
        """Wait for everything that was started, on one stream or on all."""
        ...

    def trim(self) -> None:
        """Give back memory that is kept for later calls."""
        ...


class StagingPool:
    """Staging between calls; at most ``MOST`` are kept, the small ones first."""

    MOST = 4
    LEAST_BYTES = 1 << 16

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._free: list[Staging] = []

    @contextmanager
    def lend(self, rows_bytes: int, result_bytes: int) -> Iterator[Staging]:
        """Lend the smallest staging that is large enough, or a new one."""
        staging = self._take(rows_bytes, result_bytes)
        if staging is None:
            staging = self._device.new_staging(
                *(
                    max(self.LEAST_BYTES, 1 << (n - 1).bit_length())
                    for n in (rows_bytes, result_bytes)
                )
            )
        try:
            yield staging
        except BaseException:
            # what was started may still read and write its memory
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
        """Let go of the staging that is not lent."""
        with self._lock:
            self._drop(0)

    def _drop(self, kept: int) -> None:
        for staging in self._free[kept:]:
            staging.recorded.clear()  # calls that refer to their staging: a cycle
        del self._free[kept:]


def _size(staging: Staging) -> tuple[int, int]:
    return len(staging.host_rows), len(staging.host_result)
