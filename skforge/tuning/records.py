"""Records: what searches found, kept in a file for the next one.

A file of JSON lines that is only ever appended to. Each line says for which forest
shape, range of batch sizes, machine and release it holds, and which schedules won. A
later search for the same needs no measuring; one line more is one search more.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from skforge.compiler.default_schedule import BatchRange
from skforge.compiler.forest import Forest
from skforge.compiler.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError, ScheduleError, TuningWarning, warn

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
        from skforge import __version__

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
            content = json.loads(line)
            if content["record"] != VERSION:
                return None
            key = RecordKey(
                str(content["forest"]),
                str(content["target"]),
                str(content["reduction"]),
                int(content["n_threads"]),
                tuple(((a, b), n) for (a, b), n in content["ranges"]),
                str(content["version"]),
            )
            table = {
                (first, last): Schedule.from_json(json.dumps(text))
                for first, last, text in content["table"]
            }
            if not table:
                return None
            return cls(
                key,
                table,
                str(content["strategy"]),
                bool(content["complete"]),
                float(content["seconds"]),
                str(content["machine"]),
            )
        except (ValueError, TypeError, KeyError, ScheduleError, AttributeError):
            return None


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
            If there were such lines.
        """
        records, damaged = self._read()
        if damaged:
            warn(
                f"{self.path} has {damaged} line(s) that are no records of this "
                "version; they are left out.",
                TuningWarning,
            )
        return iter(records)

    def __len__(self) -> int:
        """Return the number of records that can be read."""
        return len(self._read()[0])

    def find(self, key: RecordKey) -> Record | None:
        """Return the record to start from: the latest complete one, or the latest."""
        found = None
        for record in self:
            better = record.complete or found is None or not found.complete
            if record.key == key and better:
                found = record
        return found

    def add(self, *records: Record) -> None:
        """Append records, all at once or none."""
        if not records:
            return
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

    def _read(self) -> tuple[list[Record], int]:
        try:
            text = self.path.read_bytes().decode("utf-8", "replace")
        except FileNotFoundError:
            return [], 0
        except OSError as error:
            raise InvalidInputError(
                f"the records {self.path} cannot be read: {error.strerror}."
            ) from error
        lines = [line for line in text.split("\n") if line.strip()]
        read = [Record.from_line(line) for line in lines]
        good = [record for record in read if record is not None]
        return good, len(read) - len(good)


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
