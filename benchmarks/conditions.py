"""Under which conditions latency.py times a call, and how it times one.

``hot``: the same call over and over. ``evicted``: before each call, untimed, a buffer
larger than the last-level cache is read, so that rows, model and code come from memory.
``busy``: a second thread of the process keeps making the same call on its own rows.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

Call = Callable[[Any], Any]
Batches = list[Any]

CONDITIONS = ("hot", "evicted", "busy")
CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
#: The interpreter changes threads every 5 ms where a call keeps it: of eight turns,
#: each is to see twenty changes.
BUSY_SECONDS = 8 * 20 * 0.005
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
CHUNK = 64  # calls between two looks at the time


@dataclass(frozen=True, slots=True)
class Limits:
    """When a system has been called often enough."""

    calls: int  # at most
    seconds: float = math.inf  # in these calls, after which no more are made
    fewest: int = 0  # however slow they are, if ``calls`` allows them
    least_seconds: float = 0.0  # with more calls than ``calls`` if needed

    def share(self, turns: int) -> Limits:
        calls, fewest = (-(-n // turns) for n in (self.calls, self.fewest))
        least = self.least_seconds / turns
        return Limits(calls, self.seconds / turns, fewest, least)

    def reached(self, calls: int, spent: float, elapsed: float) -> bool:
        """Return whether to stop, after seconds in calls and seconds in all."""
        if elapsed < self.least_seconds:
            return False
        slow = spent >= self.seconds and calls >= self.fewest
        return slow or calls >= self.calls


def time_calls(
    call: Call,
    batches: Batches,
    limits: Limits,
    before: Callable[[], object] | None = None,
) -> array[int]:
    """Return the nanoseconds of each call, the clock's own among them.

    Batches come in turn; ``before`` is called before each call, and is not timed.
    """
    taken = array("q")  # no objects: a million calls are 8 MB
    spent, begun = 0, perf_counter_ns()
    while not limits.reached(
        len(taken), spent * 1e-9, (perf_counter_ns() - begun) * 1e-9
    ):
        at = len(taken)
        left = limits.calls - at
        for batch in batches[: min(left, CHUNK) if left > 0 else CHUNK]:
            if before is not None:
                before()
                perf_counter_ns()  # the clock itself is to be found in the caches
            start = perf_counter_ns()
            call(batch)
            taken.append(perf_counter_ns() - start)
        spent += sum(taken[at:])
    return taken


# ------------------------------------------------------------ caches evicted


def cache_bytes(folder: Path = CPU_CACHES) -> int:
    """Return the size of the last-level cache as Linux tells it; 0 if it does not."""
    sizes = [0]
    for file in folder.glob("index*/size"):
        text = file.read_text(encoding="ascii").strip()
        sizes.append(int(text.rstrip("KMG")) * _UNITS.get(text[-1], 1))
    return max(sizes)


def evicting_bytes() -> int:
    return max(2 * cache_bytes(), 64 << 20)


def evictor(size: int) -> Callable[[], object]:
    """Return a call that reads ``size`` bytes.

    It reads and does not write, so that no caches are written back during the call
    that follows. The buffer is filled: pages never written would share one of zeros.
    """
    return np.ones(size // 8, np.int64).sum


# ------------------------------------------------------------ another thread works


@dataclass(slots=True)
class Tally:
    """What the other thread did: its calls, and how it failed if it did."""

    calls: int = 0
    errors: list[BaseException] = field(default_factory=list)


@contextmanager
def another_thread(
    call: Call, batches: Batches, pools: ThreadpoolController
) -> Iterator[Tally]:
    """Keep a second thread calling with its own rows, from before the body starts.

    ``pools`` are limited in that thread too: OpenMP's number of threads is each
    thread's own. A call of it that fails is an error: it was not working then.
    """
    tally, started, stop = Tally(), threading.Event(), threading.Event()

    def work() -> None:
        try:
            with pools.limit(limits=1):
                while not stop.is_set():
                    for batch in batches:
                        call(batch)
                        tally.calls += 1
                        started.set()
                        if stop.is_set():
                            break
        except BaseException as error:  # noqa: BLE001 (raised in the other thread)
            tally.errors.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=work, name="other", daemon=True)
    thread.start()
    started.wait()
    try:
        yield tally
    finally:
        stop.set()
        thread.join()
    if tally.errors:
        raise RuntimeError("the other thread's call failed") from tally.errors[0]
