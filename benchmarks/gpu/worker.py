"""The other end of a remote process: several systems of one kind, timed on command.

As ``benchmarks/worker.py``, but a sample is a pair: the time of a call, and what events
on the device say of it.
"""

from __future__ import annotations

import gc
import sys
from functools import partial
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

# This file runs alone, in environments that have no more than one library.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.worker import filling, main

#: Batches that take turns, and bytes that they may take.
BATCHES, BATCH_BYTES = 8, 1 << 28
MOST_CALLS = 1 << 16


class Worker:
    """Systems by their keys, one batch size at a time."""

    def __init__(self) -> None:
        self.systems: dict[str, Any] = {}
        self.clock: Any = None
        self.ready: dict[str, tuple[Any, int]] = {}
        self.pool: tuple[tuple[int, str], list[Any]] = ((0, ""), [])

    def load(
        self, key: str, function: str, model: dict[str, Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        from benchmarks.gpu import gpu_systems
        from benchmarks.gpu.devices import clock_of

        if self.clock is None:
            self.clock = clock_of(options["clock"])
        self.rows = np.load(model["rows"])
        start = perf_counter()
        system = getattr(gpu_systems, function)(model, options, self.clock)
        if system.device is not None:
            system.device(system.rows(self.clock.put(self.rows[:1])))
        else:
            system.host(self.rows[:1])
        self.clock.wait()
        self.systems[key] = system
        return {
            "seconds": perf_counter() - start,
            "answer": system.answer,
            "device": system.device is not None,
            "host": system.host is not None,
            "facts": self.clock.facts(),
        }

    def answers(self, key: str, rows: int, file: str) -> dict[str, Any]:
        """Write answers to some rows, from the device where it answers there."""
        system = self.systems[key]
        rows_ = np.resize(self.rows, (rows, self.rows.shape[1]))
        if system.device is not None:
            found = system.device(system.rows(self.clock.put(rows_)))
        else:
            found = system.host(rows_)
        np.save(file, self.clock.get(found))
        return {}

    def warm(self, key: str, rows: int, where: str, slot: float) -> dict[str, Any]:
        """Make batches, tune for them, and find how many calls fill a slot."""
        system = self.systems[key]
        if system.tune is not None:
            system.tune(rows)
        parts = self._batches(rows, where)
        if where == "device":
            parts = [system.rows(part) for part in parts]
        function = system.device if where == "device" else system.host
        if function is None:
            raise ValueError(f"takes no rows on the {where}")
        following = cycle(parts)

        def call() -> Any:
            return function(next(following))

        first = min(self._time(call, 1) for _ in range(3))
        repeats, taken = filling(partial(self._time, call), first, slot, MOST_CALLS)
        self.ready[key] = call, repeats
        return {"first": first, "slot": taken}

    def _batches(self, rows: int, where: str) -> list[Any]:
        """Return batches that all systems here share."""
        if self.pool[0] != (rows, where):
            self.pool = (0, ""), []
            row_bytes = max(1, self.rows.shape[1] * self.rows.itemsize)
            wanted = max(1, min(BATCHES, BATCH_BYTES // (rows * row_bytes)))
            pool = np.resize(self.rows, (wanted * rows, self.rows.shape[1]))
            parts = [np.ascontiguousarray(part) for part in np.split(pool, wanted)]
            if where == "device":
                parts = [self.clock.put(part) for part in parts]
            self.pool = (rows, where), parts
        return self.pool[1]

    def sample(self, key: str, kernels: bool) -> dict[str, Any]:
        call, repeats = self.ready[key]
        found: dict[str, Any] = {"seconds": self._time(call, repeats) / repeats}
        if kernels:
            found["kernel"] = self.clock.kernel_seconds(call, repeats)
        return found

    def drop(self) -> dict[str, Any]:
        self.ready.clear()
        self.pool = (0, ""), []
        gc.collect()
        return {}

    def unload(self) -> dict[str, Any]:
        self.systems.clear()
        return self.drop()

    def _time(self, call: Any, repeats: int) -> float:
        wait = self.clock.wait
        start = perf_counter()
        for _ in range(repeats):
            call()
            wait()  # a user has an answer when the device is done
        return perf_counter() - start


if __name__ == "__main__":
    main(Worker())
