"""What is known of each model, kept beside it and dropped with it.

Models stay as they are: a record refers to its model weakly, and neither it nor the
compiled code keeps the model alive.
"""

from __future__ import annotations

import weakref
from operator import itemgetter
from typing import Any

from skforge.acceleration.tally import Tally, Totals

#: By ``id`` of a model: weak dictionaries would ask models for hashes, and compare.
RECORDS: dict[int, ModelRecord] = {}
#: Of models that are gone, by class and method.
GONE: Totals = {}


class ModelRecord:
    """One model's calls, and its kernels once they are compiled."""

    __slots__ = (
        *("__weakref__", "calls", "kernels", "kind", "name", "needed", "reference"),
        *("seconds", "state", "tallies", "threads", "why"),
    )

    def __init__(self, model: Any, why: str) -> None:
        kind = type(model)
        self.kind, self.name = kind, kind.__name__
        self.reference = weakref.ref(model, _forgets(id(model)))
        #: Why the library answers.
        self.why = why or "too few calls so far"
        #: "watched", "compiling", "ready", or "left": to the library, for good.
        self.state = "left" if why else "watched"
        #: Calls and seconds of the library since the model was last changed.
        self.calls, self.seconds = 0, 0.0
        #: Seconds of the library after which the model is compiled; 0: not known yet.
        self.needed = 0.0
        self.kernels: Any = None
        #: On how many threads its last calls were to be answered, if they said so.
        self.threads: int | None = None
        self.tallies: dict[str, Tally] = {}

    def tally(self, method: str) -> Tally:
        known = self.tallies.get(method)
        return known or self.tallies.setdefault(method, Tally((self.name, method)))

    def most_rows(self) -> int:
        """Return the size of batches on which the library has spent most time."""
        sides = (tally.by_library.values() for tally in [*self.tallies.values()])
        sizes = [sums for side in sides for sums in [*side]]
        calls, rows, _ = max(sizes, key=itemgetter(2))
        return round(rows / calls)

    def leave(self, why: str) -> None:
        """Leave the model to its library for good."""
        self.state, self.kernels, self.why = "left", None, why

    def start_again(self, why: str) -> None:
        """Forget what was compiled: the model is another one now."""
        self.calls, self.seconds, self.needed = 0, 0.0, 0.0
        self.state, self.kernels, self.why = "watched", None, why


def record_of(model: Any) -> ModelRecord | None:
    record = RECORDS.get(id(model))
    return record if record is not None and record.reference() is model else None


def add(model: Any, why: str) -> ModelRecord:
    record = RECORDS[id(model)] = ModelRecord(model, why)
    return record


def records_with(part: Any) -> list[ModelRecord]:
    """Return the records of a model, and of compiled ones that have it as a part."""
    records = []
    for record in [*RECORDS.values()]:
        kernels = record.kernels
        has_it = kernels is not None and kernels.has_part(part)
        if has_it or record.reference() is part:
            records.append(record)
    return records


def changed(part: Any) -> None:
    """Drop what was compiled of a model, or of all models that have it as a part."""
    for record in records_with(part):
        if record.state != "left":
            record.start_again("the model was changed")


def forget_all() -> None:
    for key in [*RECORDS]:
        _forget(key)


def _forgets(key: int) -> Any:
    def forget(reference: Any) -> None:
        record = RECORDS.get(key)
        if record is not None and record.reference is reference:
            _forget(key)

    return forget


def _forget(key: int) -> None:
    if (record := RECORDS.pop(key, None)) is not None:
        for method, tally in record.tallies.items():
            known = GONE.setdefault((record.name, method), Tally())
            known.add(tally)
