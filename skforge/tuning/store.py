"""The user's store: what default searches found, for later fits of similar forests.

An entry lies in the cache of machine code (:mod:`skforge.compiler.runtime.object_cache`
has the rules for its place, damage, size and several writers), so ``SKFORGE_CACHE=off``
switches it off. Its key is exact in what decides which schedules are legal, in the
machine, in the versions of skforge and LLVM and in what was asked for; the sizes of the
forest and the machine's profile may differ by ``NEAR``, so that the folds of a
cross-validation share a search. A doubtful result counts for a day, at first.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version

import numpy as np

from skforge.compiler.forest.forest import Forest
from skforge.compiler.runtime import object_cache
from skforge.compiler.schedule.ranges import BatchRange
from skforge.compiler.schedule.schedule import Schedule
from skforge.tuning.records import Record, RecordKey
from skforge.tuning.search.heuristic import layout_of

#: Largest ratio of two sizes of forests that share a search. Folds of 80 % of the rows
#: differ by 1.01 to 1.05 in nodes and predicates; a grid of sizes by 1.5 or more.
NEAR = 1.25

#: Seconds for which a doubtful result counts, and any other.
SOON, LATER = 86400.0, 90 * 86400.0

#: Entries of one key, and seconds between two looks at the lock.
MOST_ENTRIES, LOOK = 16, 0.02


def sizes_of(forest: Forest) -> tuple[int, ...]:
    """Return the sizes of a forest that schedules depend on."""
    low, high = forest.leaf_depths()
    return (
        forest.n_trees,
        forest.n_nodes,
        forest.n_predicates,
        int(low.sum()),
        int(high.sum()),
        int(high.max(initial=0)),
        int(np.diff(forest.tree_offset).max(initial=0)),
        64 + len(forest.category_words),
    )


def shape_key(
    forest: Forest, defaults: Sequence[Schedule], budget: float
) -> tuple[object, ...]:
    """Return what must be equal of two forests and searches that share a result."""
    return (
        forest.n_features,
        forest.n_outputs,
        forest.threshold.dtype.str,
        forest.input_dtype.str,
        forest.accumulator_dtype.str,
        np.unique(forest.comparison).tolist(),
        np.unique(forest.missing).tolist(),
        sorted({layout_of(schedule) for schedule in defaults}),
        budget,
        version("llvmlite"),
    )


@dataclass(frozen=True)
class UserStore:
    """The stored results for forests of one shape, on one machine."""

    key: RecordKey  # what is equal; its ``forest`` is the hash of a ``shape_key``
    #: The sizes of this forest, see ``sizes_of``, and the profile of the CPU.
    sizes: tuple[float, ...]

    @classmethod
    def of(
        cls,
        forest: Forest,
        key: RecordKey,
        defaults: dict[BatchRange, Schedule],
        budget: float,
        profile: tuple[float, ...],
    ) -> UserStore:
        """Return the store for a search with the records' key ``key``."""
        facts = repr(shape_key(forest, list(defaults.values()), budget))
        shape = hashlib.sha256(facts.encode()).hexdigest()[:24]
        return cls(replace(key, forest=shape), (*sizes_of(forest), *profile))

    @property
    def _name(self) -> str:
        return object_cache.key_of(("tuning", repr(self.key)))

    def find(self, usable: Callable[[Record], bool]) -> Record | None:
        """Return the latest record of a forest of similar sizes, or None."""
        now = time.time()
        valid = (record for record, end in self._similar() if now < end)
        return next(filter(usable, valid), None)

    def add(self, record: Record, doubtful: bool = False) -> None:
        """Keep a record. Of two processes that add at the same time, one may win."""
        confirmed = any(old.table == record.table for old, _ in self._similar())
        end = time.time() + (SOON if doubtful and not confirmed else LATER)
        entries = [*self._entries(), (list(self.sizes), record.to_line(), end)]
        text = json.dumps(entries[-MOST_ENTRIES:])
        object_cache.store(self._name, text.encode())

    def _similar(self) -> Iterator[tuple[Record, float]]:
        """Yield the records of similar forests, and until when they count."""
        for sizes, line, end in reversed(self._entries()):
            record = Record.from_line(line) if _near(sizes, self.sizes) else None
            if record is not None:
                yield record, end

    def _entries(self) -> list[tuple[list[float], str, float]]:
        content = object_cache.find(self._name)
        with suppress(ValueError, TypeError, RecursionError):
            return [
                ([float(size) for size in sizes], str(line), float(end))
                for sizes, line, end in json.loads(content or b"[]")
            ]
        return []


def _near(one: Sequence[float], other: Sequence[float]) -> bool:
    pairs = list(zip(one, other, strict=False))
    return len(one) == len(other) and all(
        max(pair) <= NEAR * min(pair) for pair in pairs
    )


@contextmanager
def alone(seconds: float) -> Iterator[bool]:
    """Wait until no other process on this machine measures; yield whether that is so.

    Yields False if others still measure after ``seconds``, and True if locks cannot be
    had here. The lock ends with the process that holds it.
    """
    file = None
    with suppress(ImportError, OSError):
        import fcntl

        folder = object_cache.opened("locks", create=True)
        if folder is not None:
            machine = hashlib.sha256(platform.node().encode()).hexdigest()[:12]
            path = folder / f"tuning-{machine}.lock"
            file = object_cache.open_own(path, os.O_WRONLY | os.O_CREAT)
    if file is None:
        yield True
        return
    with file:
        end, held = time.monotonic() + seconds, False
        while not held:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            except BlockingIOError:
                if time.monotonic() >= end:
                    break
                time.sleep(LOOK)
            except OSError:  # a file system without locks
                held = True
        yield held
