"""What is known of each model, kept beside it and dropped with it.

Models stay as they are: a record refers to its model weakly, and neither it nor the
compiled code keeps the model alive.
"""

from __future__ import annotations

import weakref
from operator import itemgetter
from typing import Any

from skforge.acceleration.settings import ACTIVE
from skforge.acceleration.tally import LISTENERS, Tally, Totals

#: By ``id`` of a model: weak dictionaries would ask models for hashes, and compare.
RECORDS: dict[int, ModelRecord] = {}
#: Of models that are gone, by class and method.
GONE: Totals = {}


class ModelRecord(weakref.ref[Any]):
    """One model's calls, and its kernels once they are compiled.

    It is the weak reference itself: a model's first call makes one object less.
    """

    __slots__ = (
        *("calls", "is_whole", "kernels", "key", "kind", "met", "needed", "once"),
        *("seconds", "state", "threads", "why"),
    )

    def __init__(self, model: Any, gone: Any = None) -> None:
        self.key, self.kind = id(model), type(model)
        #: Why the library answers.
        self.why = "too few calls so far"
        #: "watched", "compiling", "ready", or "left": to the library, for good.
        self.state = "watched"
        #: Calls and seconds of the library since the model was last changed.
        self.calls, self.seconds = 0, 0.0
        #: Seconds of the library before which the model is not compiled.
        settings = ACTIVE.settings
        self.needed = 0.0 if settings is None else settings.least_seconds
        self.kernels: Any = None
        #: Whether it is one model, and no pipeline whose last step may have kernels.
        self.is_whole = True
        #: On how many threads its last calls were to be answered, if they said so.
        self.threads: int | None = None
        #: The first call's method, rows, seconds and reason, until there is another.
        self.once: tuple[str, int, float, str] | None = None
        #: By method, its calls without that one; see :attr:`tallies`.
        self.met: dict[str, Tally] = {}

    @property
    def name(self) -> str:
        return self.kind.__name__

    @property
    def tallies(self) -> dict[str, Tally]:
        """By method, its calls."""
        once, self.once = self.once, None
        if once is not None:  # of which nobody is told: a forked child may be here
            method, rows, seconds, why = once
            sums = 1, rows, seconds
            self.tally(method).add_sums("library", rows.bit_length(), why, sums)
        return self.met

    def tally(self, method: str) -> Tally:
        known = self.tallies.get(method)
        return known or self.met.setdefault(method, Tally((self.name, method)))

    def count(self, method: str, rows: int, seconds: float, why: str) -> int:
        """Count a call of the library's; return how many there were of the size."""
        if self.met or self.once or LISTENERS:
            return self.tally(method).library(rows, seconds, why)
        self.once = method, rows, seconds, why
        return 1

    def most(self) -> tuple[int, int, float]:
        """Return calls, rows and seconds of the size that took the library longest."""
        sides = (tally.by_library.values() for tally in [*self.tallies.values()])
        sizes = [sums for side in sides for sums in [*side]]
        calls, rows, seconds = max(sizes, key=itemgetter(2))
        return calls, rows, seconds

    def leave(self, why: str) -> None:
        """Leave the model to its library for good."""
        self.state, self.kernels, self.why = "left", None, why

    def start_again(self, why: str) -> None:
        """Forget what was compiled: the model is another one now."""
        self.calls, self.seconds, self.needed = 0, 0.0, 0.0
        self.state, self.kernels, self.why = "watched", None, why


def saved() -> float:
    """Return the seconds that kernels have saved in this process."""
    known = [record.tallies.values() for record in [*RECORDS.values()]]
    every = [GONE.values(), *known]
    return sum(tally.saved() for tallies in every for tally in [*tallies])


def record_of(model: Any) -> ModelRecord | None:
    record = RECORDS.get(id(model))
    return record if record is not None and record() is model else None


def records_with(part: Any) -> list[ModelRecord]:
    """Return the records of a model, and of compiled ones that have it as a part."""
    records = []
    for record in [*RECORDS.values()]:
        kernels = record.kernels
        has_it = kernels is not None and kernels.has_part(part)
        if has_it or record() is part:
            records.append(record)
    return records


def changed(part: Any) -> None:
    """Drop what was compiled of a model, or of all models that have it as a part."""
    for record in records_with(part):
        if record.state != "left":
            record.start_again("the model was changed")


def forget(record: Any) -> None:
    known: Any = RECORDS.get(record.key)
    if known is record:
        _forget(record.key)


def forget_all() -> None:
    for key in [*RECORDS]:
        _forget(key)


def _forget(key: int) -> None:
    record: Any = RECORDS.pop(key, None)
    if record is not None:
        for method, tally in record.tallies.items():
            known = GONE.setdefault((record.name, method), Tally())
            known.add(tally)
