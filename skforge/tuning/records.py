"""What earlier searches found: a file of the user's, and the user's own store.

Both hold the same records, one line of JSON each: the forest's shape, the ranges of
batch sizes, the machine and release, and the schedules that won. A later search that
finds a record measures nothing.

A file of :class:`TuningRecords` is only appended to, and its keys are exact. The
:class:`UserStore` is for default searches. It lies in the cache of machine code
(:mod:`skforge.runtime.object_cache` has the rules for its place, damage, size
and several writers), so ``SKFORGE_CACHE=off`` switches it off. Its key is exact in what
decides which schedules are legal, in the machine, in the versions of skforge and LLVM
and in what was asked for; the sizes of the forest and the machine's profile may differ
by ``NEAR``, so that the folds of a cross-validation share a search. A doubtful result
counts for a day, at first.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from skforge._version import __version__
from skforge.compiler.target import Target
from skforge.engine.schedules import schedule_table
from skforge.exceptions import InvalidInputError, TuningWarning, warn
from skforge.forest.forest import Forest
from skforge.runtime import object_cache
from skforge.runtime.records import fields_in, fields_of, plain_in
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule
from skforge.tuning.search.odds import layout_of

VERSION = 1

#: A predicate that a record must satisfy to be found.
Usable: TypeAlias = Callable[["Record"], bool]

#: Value of ``records`` that stands for the user's own store.
AUTO = "auto"


#: Largest ratio of two sizes of forests that share a search. Folds of 80 % of the rows
#: differ by 1.01 to 1.05 in nodes and predicates; a grid of sizes by 1.5 or more.
NEAR = 1.25

#: Seconds for which a doubtful result counts, and any other.
SOON, LATER = 86400.0, 90 * 86400.0

#: Entries of one key, and seconds between two looks at the lock.
MOST_ENTRIES, LOOK = 16, 0.02


def _hash(facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]


def forest_key(forest: Forest) -> str:
    """Return a hash of the forest's properties that the speed of schedules depends on.

    It covers the numbers of trees, nodes, features and outputs, the dtypes, distinct
    predicates, the depths of all leaves and the kinds of tests; not thresholds and leaf
    values. A model retrained on other rows usually has another key.
    """
    depths = forest.node_depths()[forest.leaf >= 0]
    facts = (
        forest.n_trees,
        forest.n_nodes,
        forest.n_features,
        forest.n_outputs,
        forest.n_predicates,
        forest.threshold.dtype.str,
        forest.input_dtype.str,
        forest.accumulator_dtype.str,
        np.bincount(depths).tolist(),
        np.bincount(forest.comparison).tolist(),
        np.bincount(forest.missing).tolist(),
    )
    return _hash(facts)


def target_key(target: Target) -> str:
    return _hash(sorted(json.loads(target.to_json()).items()))


@dataclass(frozen=True, slots=True)
class RecordKey:
    """The conditions under which a record applies."""

    forest: str  # the result of ``forest_key``
    target: str  # the result of ``target_key``
    reduction: str
    n_threads: int
    #: The requested ranges of batch sizes, each with the size it was measured at; empty
    #: if the ranges of the default schedules were used.
    ranges: tuple[tuple[BatchRange, int | None], ...]
    version: str = __version__  # another release generates other code


@dataclass(frozen=True, slots=True)
class Record:
    """The result of one search, stored as one line."""

    key: RecordKey
    table: Mapping[BatchRange, Schedule]
    strategy: str
    complete: bool  # whether the search finished within its budget
    seconds: float
    machine: str  # a description for readers

    def to_line(self) -> str:
        table = [[*batch, json.loads(s.to_json())] for batch, s in self.table.items()]
        content = {
            "record": VERSION,
            **fields_of(self.key),
            "table": table,
            **fields_of(self, "key", "table"),
        }
        return json.dumps(content) + "\n"

    @classmethod
    def from_line(cls, line: str | bytes) -> Record | None:
        try:
            content = json.loads(line)
            if content["record"] != VERSION:
                return None
            key = RecordKey(**fields_in(RecordKey, content))
            table = {
                (first, last): Schedule.from_json(json.dumps(schedule))
                for first, last, schedule in content["table"]
            }
            hash((key, *table.values()))  # TypeError for arguments that are lists
            whole = len(table) == len(content["table"])  # no range twice
            schedule_table(table)  # raises for ranges that overlap or are none
            record = cls(key, table, **fields_in(Record, content, "key", "table"))
            timed = math.isfinite(record.seconds) and record.seconds >= 0
            return record if whole and timed and key.n_threads > 0 else None
        except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
            return None  # ScheduleError is a ValueError, and so are bytes without UTF-8


@dataclass(unsafe_hash=True, init=False, repr=False)
class TuningRecords:
    """A file of tuning records that several processes can append to at once.

    Parameters
    ----------
    path : path
        The file; it is created when the first record is added.

    Examples
    --------
    >>> import tempfile
    >>> from skforge.tuning import TuningRecords
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     len(TuningRecords(f"{folder}/records.jsonl"))
    0
    """

    path: Path

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"TuningRecords({str(self.path)!r})"

    def __iter__(self) -> Iterator[Record]:
        """Yield the records in the order they were added, without damaged lines.

        Warns
        -----
        TuningWarning
            If lines are damaged; a single warning with their numbers.
        """
        records, damaged = self._read()
        if damaged:
            first = ", ".join(map(str, damaged[:5]))
            more = f" and {len(damaged) - 5} more" if len(damaged) > 5 else ""
            what, it = f"lines {first}{more} are not valid records", "they are"
            if len(damaged) == 1:
                what, it = f"line {first} is not a valid record", "it is"
            warn(
                f"{self.path}: {what} of this version of skforge, so {it} ignored.",
                TuningWarning,
            )
        return iter(records)

    def __len__(self) -> int:
        return len(self._read()[0])

    def find(self, key: RecordKey, usable: Usable | None = None) -> Record | None:
        """Return the latest complete record of a key, or else the latest, or None.

        Parameters
        ----------
        key : RecordKey
            The key to look up.
        usable : callable, default=None
            A predicate that records must satisfy; None accepts all.
        """
        suitable = filter(usable, (record for record in self if record.key == key))
        return max(reversed([*suitable]), key=lambda r: r.complete, default=None)

    def add(self, *records: Record) -> None:
        """Append records in a single write."""
        if not records:
            return
        self._check_file()
        text = "".join(record.to_line() for record in records).encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            with suppress(ImportError):  # Windows: rely on a single append
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            file.seek(0, os.SEEK_END)
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # an earlier write was interrupted
                    text = b"\n" + text
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def export(self, path: str | os.PathLike[str], target: Target | None = None) -> int:
        """Append the latest record of each key to another file; return their number.

        Parameters
        ----------
        path : path
            The other file.
        target : Target, default=None
            Export only records of this machine; None exports all.
        """
        key = None if target is None else target_key(target)
        latest = {r.key: r for r in self if key in (None, r.key.target)}
        if Path(path).resolve() == self.path.resolve():
            raise InvalidInputError(
                f"records cannot be exported to their own file {self.path}; choose "
                "another path."
            )
        TuningRecords(path).add(*latest.values())
        return len(latest)

    def merge(self, path: str | os.PathLike[str]) -> int:
        """Add the records of another file that are new; return their number."""
        if not Path(path).is_file():
            raise InvalidInputError(
                f"{os.fspath(path)} is not a file of tuning records."
            )
        here = {record.to_line() for record in self}
        new = [r for r in TuningRecords(path) if r.to_line() not in here]
        self.add(*new)
        return len(new)

    def _read(self) -> tuple[list[Record], list[int]]:
        self._check_file()
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return [], []
        except OSError as error:
            raise InvalidInputError(
                f"the records {self.path} cannot be read: {error.strerror}."
            ) from error
        good, damaged = [], []
        for number, line in enumerate(content.split(b"\n"), 1):
            record = Record.from_line(line)
            if record is not None:
                good.append(record)
            elif line.strip():
                damaged.append(number)
        return good, damaged

    def _check_file(self) -> None:
        """Raise if the path exists and is not a regular file: a pipe would block."""
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise InvalidInputError(
                f"the records {self.path} are not a regular file; give the path "
                "of a regular file or of a new one."
            )


def as_records(value: Any) -> TuningRecords | None:
    if isinstance(value, TuningRecords):
        return value
    if value is None or value == AUTO:
        return None
    if isinstance(value, (str, os.PathLike)):
        return TuningRecords(value)
    raise InvalidInputError(
        f"records must be a path or TuningRecords, got {type(value).__name__}."
    )


# ------------------------------------------------------------- the user's store


def sizes_of(forest: Forest) -> tuple[int, ...]:
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


def shape_key(forest: Forest, defaults: Iterable[Schedule], budget: float) -> str:
    facts = (
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
    return _hash(facts)


@dataclass(frozen=True)
class UserStore:
    """The stored results for forests of one shape, on one machine."""

    key: RecordKey  # what is equal; its ``forest`` is a ``shape_key``
    #: The sizes of this forest, see ``sizes_of``, and the profile of the CPU.
    sizes: tuple[float, ...]

    @property
    def _name(self) -> str:
        return object_cache.key_of(("tuning", repr(self.key)))

    def find(self, usable: Usable) -> Record | None:
        now = time.time()
        valid = (record for record, end in self._similar() if now < end)
        return next(filter(usable, valid), None)

    def add(self, record: Record, doubtful: bool = False) -> None:
        """Keep a record. Of two processes that add at the same time, one may win."""
        confirmed = any(old.table == record.table for old, _ in self._similar())
        end = time.time() + (SOON if doubtful and not confirmed else LATER)
        entries = [*self._entries(), (self.sizes, record.to_line(), end)]
        object_cache.store(self._name, json.dumps(entries[-MOST_ENTRIES:]).encode())

    def _similar(self) -> Iterator[tuple[Record, float]]:
        for sizes, line, end in reversed(self._entries()):
            if _similar_sizes(sizes, self.sizes) and (record := Record.from_line(line)):
                yield record, end

    def _entries(self) -> list[tuple[tuple[float, ...], str, float]]:
        kind = list[tuple[tuple[float, ...], str, float]]
        with suppress(ValueError, RecursionError):
            entries = json.loads(object_cache.find(self._name) or b"[]")
            return plain_in(kind, entries, "entries")
        return []


def _similar_sizes(sizes: Sequence[float], others: Sequence[float]) -> bool:
    pairs = zip(sizes, others, strict=False)
    near = all(max(pair) <= NEAR * min(pair) for pair in pairs)
    return near and len(sizes) == len(others)


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
            path = os.path.join(folder, f"tuning-{machine}.lock")
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
