"""Records: what searches found, kept in a file for the next one.

A file of JSON lines that is only ever appended to. Each line says for which forest
shape, range of batch sizes, machine and release it holds, and which schedules won. A
later search for the same needs no measuring; one line more is one search more.
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
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from skforge._version import __version__
from skforge.compiler.defaults.cpu import BatchRange
from skforge.compiler.forest.forest import Forest
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError, TuningWarning, warn

T = TypeVar("T")

VERSION = 1


def forest_key(forest: Forest) -> str:
    """Return a name for a forest's shape: what the speed of schedules depends on.

    Trees, features, outputs, dtypes, distinct predicates, the depths of all leaves and
    the kinds of tests count; thresholds and leaf values do not. A model that is trained
    again on other rows is another shape, in most cases.
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
    """Return a name for a machine: its kind, CPU or GPU, features and caches."""
    facts = json.loads(target.to_json())
    return hashlib.sha256(repr(sorted(facts.items())).encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class RecordKey:
    """What a record holds for.

    Parameters
    ----------
    forest : str
        As :func:`forest_key` names it.
    target : str
        As :func:`target_key` names it.
    reduction : str
        How leaf values are summed.
    n_threads : int
        Threads of a call.
    ranges : tuple of ((int, int or None), int or None)
        The ranges of batch sizes asked for with the size each was measured at, or
        with None where the ranges were those of the defaults.
    version : str
        Of skforge: another release makes other code.
    """

    forest: str
    target: str
    reduction: str
    n_threads: int
    ranges: tuple[tuple[BatchRange, int | None], ...]
    version: str

    @classmethod
    def of(
        cls,
        forest: Forest,
        target: Target,
        reduction: str,
        n_threads: int,
        ranges: Mapping[BatchRange, int] | None,
    ) -> RecordKey:
        """Return the key of a search that is about to begin."""
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
    """One line: a key, and what was found.

    Parameters
    ----------
    key : RecordKey
        What it holds for.
    table : mapping of (int, int or None) to Schedule
        The schedules that won.
    strategy : str
        What found them.
    complete : bool
        Whether the search came to its end.
    seconds : float
        What it took.
    machine : str
        The machine as a sentence, for readers.
    """

    key: RecordKey
    table: Mapping[BatchRange, Schedule]
    strategy: str
    complete: bool
    seconds: float
    machine: str

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
        """Return the record of a line; None if it is damaged or of another version."""
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
    raise ValueError(f"{name} is no number of JSON")


def _as(kind: type[T], value: Any) -> T:
    """Return a value of a type; nothing is converted, for nothing is meant by it."""
    if type(value) is not kind:
        raise ValueError(f"{value!r:.60} is no {kind.__name__}")
    return value


def _whole(value: Any) -> int:
    if not 1 <= _as(int, value) < 1 << 63:
        raise ValueError(f"{value} is no count")
    return int(value)


def _seconds(value: Any) -> float:
    seconds = float(value) if type(value) in (int, float) else math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError("no seconds")
    return seconds


def _range(first: Any, last: Any) -> BatchRange:
    begin = _as(int, first) and _whole(first)  # 0 is a batch size, too
    end = None if last is None else _whole(last)
    if end is not None and end < begin:
        raise ValueError("a range that ends before it begins")
    return begin, end


def _table(lines: Any) -> dict[BatchRange, Schedule]:
    """Return schedules by ranges of batch sizes that do not overlap; at least one."""
    table = {}
    for first, last, content in _as(list, lines):
        schedule = Schedule.from_json(json.dumps(content))
        hash(schedule)  # arguments that are lists or objects are found here
        table[_range(first, last)] = schedule
    ranges = sorted(table, key=lambda batch: batch[0])
    if len(table) != len(lines) or not table:
        raise ValueError("no ranges, or one of them twice")
    for (_, last), (first, _) in pairwise(ranges):
        if last is None or last >= first:
            raise ValueError("ranges overlap")
    return table


class TuningRecords:
    """A file of records, safe for many processes that append at once.

    Parameters
    ----------
    path : path
        The file; it is made when the first record is added.

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
        """Return the call that makes it."""
        return f"TuningRecords({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        """Whether both are of one path."""
        return isinstance(other, TuningRecords) and self.path == other.path

    def __hash__(self) -> int:
        """Hash the path."""
        return hash(self.path)

    def __iter__(self) -> Iterator[Record]:
        """Yield the records in the order they were added, damaged lines left out.

        Warns
        -----
        TuningWarning
            Once, with the numbers of such lines.
        """
        records, damaged = self._read()
        if damaged:
            first = ", ".join(map(str, damaged[:5]))
            more = f" and {len(damaged) - 5} more" if len(damaged) > 5 else ""
            where = (
                f"line {first} is" if len(damaged) == 1 else f"lines {first}{more} are"
            )
            warn(
                f"{self.path}: {where} no record of this version, and left out.",
                TuningWarning,
            )
        return iter(records)

    def __len__(self) -> int:
        """Return the number of records that can be read."""
        return len(self._read()[0])

    def find(
        self, key: RecordKey, usable: Callable[[Record], bool] | None = None
    ) -> Record | None:
        """Return the record to start from: the latest complete one, or the latest.

        Parameters
        ----------
        key : RecordKey
            What it is to hold for.
        usable : callable, default=None
            Says of a record of this key whether it will do; None takes any.
        """
        found = None
        for record in self:
            better = record.complete or found is None or not found.complete
            if record.key == key and better and (usable is None or usable(record)):
                found = record
        return found

    def add(self, *records: Record) -> None:
        """Append records, all at once or none."""
        if not records:
            return
        self._check_file()
        text = "".join(record.to_line() for record in records).encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file, _locked(file):
            file.seek(0, os.SEEK_END)
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a writer died within a line
                    text = b"\n" + text
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def export(self, path: str | os.PathLike[str], target: Target | None = None) -> int:
        """Write the latest record of each key to another file; return how many.

        Parameters
        ----------
        path : path
            The other file, to which they are appended.
        target : Target, default=None
            Only records of this machine; None takes all.
        """
        key = None if target is None else target_key(target)
        latest: dict[RecordKey, Record] = {}
        for record in self:
            if key is None or record.key.target == key:
                latest[record.key] = record
        if Path(path).resolve() == self.path.resolve():
            raise InvalidInputError("records are exported to another file.")
        TuningRecords(path).add(*latest.values())
        return len(latest)

    def merge(self, path: str | os.PathLike[str]) -> int:
        """Add the records of another file that are not here yet; return how many."""
        if not Path(path).is_file():
            raise InvalidInputError(f"{os.fspath(path)} is no file of records.")
        here = {record.to_line() for record in self}
        new = [r for r in TuningRecords(path) if r.to_line() not in here]
        self.add(*new)
        return len(new)

    def _read(self) -> tuple[list[Record], list[int]]:
        """Return the records, and the numbers of the lines that are none."""
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
        """Refuse what is there and no file: to open a pipe would wait for ever."""
        with suppress(OSError):
            if not stat.S_ISREG(os.stat(self.path).st_mode):
                raise InvalidInputError(
                    f"the records {self.path} are no regular file; name one, or a new "
                    "one."
                )


@contextmanager
def _locked(file: IO[bytes]) -> Iterator[None]:
    """Hold a file for this process alone."""
    try:
        import fcntl
    except ImportError:  # Windows: one append of one buffer has to do
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        file.flush()
        fcntl.flock(file, fcntl.LOCK_UN)


def as_records(value: Any) -> TuningRecords | None:
    """Return records for a path, or the ones given."""
    if value is None or isinstance(value, TuningRecords):
        return value
    if isinstance(value, (str, os.PathLike)):
        return TuningRecords(value)
    raise InvalidInputError(
        f"records must be a path or TuningRecords, got {type(value).__name__}."
    )


__all__: Sequence[str] = ["Record", "RecordKey", "TuningRecords"]
