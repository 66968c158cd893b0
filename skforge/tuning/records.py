"""Tuning records: a file with the results of earlier searches.

The file holds JSON lines and is only appended to; each search adds one line. A line
holds the forest shape, ranges of batch sizes, machine and release, and the schedules
that won. A later search with the same key measures nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from skforge._version import __version__
from skforge.compiler.forest.forest import Forest
from skforge.compiler.runtime.schedules import schedule_table
from skforge.compiler.schedule.ranges import BatchRange
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError, TuningWarning, warn, with_article

T = TypeVar("T")

VERSION = 1

#: Value of ``records`` that stands for the user's own store.
AUTO = "auto"


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
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]


def target_key(target: Target) -> str:
    """Return a hash of a target: its kind, CPU or GPU model, features and caches."""
    facts = json.loads(target.to_json())
    return hashlib.sha256(repr(sorted(facts.items())).encode()).hexdigest()[:24]


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
    version: str  # of skforge: another release generates other code

    @classmethod
    def of(
        cls,
        forest: Forest,
        target: Target,
        reduction: str,
        n_threads: int,
        ranges: Mapping[BatchRange, int] | None,
    ) -> RecordKey:
        """Return the key of a search."""
        asked: tuple[tuple[BatchRange, int | None], ...] = ()
        if ranges is not None:
            asked = tuple(sorted(ranges.items(), key=lambda item: item[0][0]))
        return cls(
            forest_key(forest),
            target_key(target),
            reduction,
            n_threads,
            asked,
            __version__,
        )


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
        """Return the record as a line of JSON."""
        key = {name: getattr(self.key, name) for name in RecordKey.__slots__}
        content = {
            "record": VERSION,
            **key,
            "table": [
                [*batch, json.loads(s.to_json())] for batch, s in self.table.items()
            ],
            "strategy": self.strategy,
            "complete": self.complete,
            "seconds": self.seconds,
            "machine": self.machine,
        }
        return json.dumps(content) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Record | None:
        """Parse a line; return None if it is damaged or has another version."""
        try:
            content = json.loads(line, parse_constant=_no_number)
            if not isinstance(content, dict) or content.get("record") != VERSION:
                return None
            return cls(
                RecordKey(
                    _as(str, content["forest"]),
                    _as(str, content["target"]),
                    _as(str, content["reduction"]),
                    _whole(content["n_threads"]),
                    tuple(
                        (_range(first, last), None if n is None else _whole(n))
                        for (first, last), n in content["ranges"]
                    ),
                    _as(str, content["version"]),
                ),
                _table(content["table"]),
                _as(str, content["strategy"]),
                _as(bool, content["complete"]),
                _seconds(content["seconds"]),
                _as(str, content["machine"]),
            )
        except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
            return None  # ScheduleError is a ValueError


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _as(kind: type[T], value: Any) -> T:
    """Return ``value`` if its type is exactly ``kind``, else raise ValueError."""
    if type(value) is not kind:
        raise ValueError(f"{value!r:.60} is not {with_article(kind.__name__)}")
    return value


def _whole(value: Any) -> int:
    if not 1 <= _as(int, value) < 1 << 63:
        raise ValueError(f"{value} is not a count")
    return int(value)


def _seconds(value: Any) -> float:
    seconds = float(value) if type(value) in (int, float) else math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError("no seconds")
    return seconds


def _range(first: Any, last: Any) -> BatchRange:
    begin = _as(int, first) and _whole(first)  # 0 is a valid batch size
    end = None if last is None else _whole(last)
    if end is not None and end < begin:
        raise ValueError("a range that ends before it begins")
    return begin, end


def _table(lines: Any) -> Mapping[BatchRange, Schedule]:
    """Return schedules by range; raise ValueError if ranges overlap or are missing."""
    table = {}
    for first, last, content in _as(list, lines):
        schedule = Schedule.from_json(json.dumps(content))
        hash(schedule)  # raises TypeError for arguments that are lists or dicts
        table[_range(first, last)] = schedule
    if len(table) != len(lines):
        raise ValueError("a range twice")
    return schedule_table(table) or table


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

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        """Return the constructor call."""
        return f"TuningRecords({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same path."""
        return isinstance(other, TuningRecords) and self.path == other.path

    def __hash__(self) -> int:
        """Hash the path."""
        return hash(self.path)

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
        """Return the number of readable records."""
        return len(self._read()[0])

    def find(
        self, key: RecordKey, usable: Callable[[Record], bool] | None = None
    ) -> Record | None:
        """Return the latest complete record of a key, or else the latest, or None.

        Parameters
        ----------
        key : RecordKey
            The key to look up.
        usable : callable, default=None
            A predicate that records must satisfy; None accepts all.
        """
        found = None
        for record in self:
            better = record.complete or found is None or not found.complete
            if record.key == key and better and (usable is None or usable(record)):
                found = record
        return found

    def add(self, *records: Record) -> None:
        """Append records in a single write."""
        if not records:
            return
        self._check_file()
        text = "".join(record.to_line() for record in records).encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file, _locked(file):
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
        latest: dict[RecordKey, Record] = {}
        for record in self:
            if key is None or record.key.target == key:
                latest[record.key] = record
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
        """Return the records, and the numbers of the damaged lines."""
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
            try:
                record = Record.from_line(line.decode())
            except UnicodeDecodeError:
                record = None
            if record is not None:
                good.append(record)
            elif line.strip():
                damaged.append(number)
        return good, damaged

    def _check_file(self) -> None:
        """Raise if the path exists and is not a regular file: a pipe would block."""
        with suppress(OSError):
            if not stat.S_ISREG(os.stat(self.path).st_mode):
                raise InvalidInputError(
                    f"the records {self.path} are not a regular file; give the path "
                    "of a regular file or of a new one."
                )


@contextmanager
def _locked(file: IO[bytes]) -> Iterator[None]:
    """Lock a file exclusively."""
    try:
        import fcntl
    except ImportError:  # Windows: rely on a single append of one buffer
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        file.flush()
        fcntl.flock(file, fcntl.LOCK_UN)


def as_records(value: Any) -> TuningRecords | None:
    """Return the records at a path, or None for None and "auto", the user's store."""
    if value is None or isinstance(value, TuningRecords):
        return value
    if isinstance(value, (str, os.PathLike)) and value == AUTO:
        return None
    if isinstance(value, (str, os.PathLike)):
        return TuningRecords(value)
    raise InvalidInputError(
        f"records must be a path or TuningRecords, got {type(value).__name__}."
    )


__all__: Sequence[str] = ["Record", "RecordKey", "TuningRecords"]
