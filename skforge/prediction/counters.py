"""Counts calls and rows by the code that answered them, without a lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

#: Who answers: a compiled entry; kernels after checks in Python; kernels after steps
#: in their library; the model itself.
ROUTES = ("entry", "kernel", "steps", "library")
#: Calls that were compared with the model's, and those that differed, with their rows.
CHECKS = ("checked", "different")
ENTRY, KERNEL, STEPS, LIBRARY, CHECKED, DIFFERENT = range(_N := len(ROUTES + CHECKS))


class Counters:
    __slots__ = ("_entries", "_threads", "_uncounted")

    def __init__(self, entries: Sequence[Any] = ()) -> None:
        #: By thread, the calls of each route and then the rows. Each thread writes its
        #: own list; that of an ended one passes to the next with its identity.
        self._threads: dict[int, list[int]] = {}
        #: By thread, calls and rows of entries that were comparisons or blocks of one.
        self._uncounted: dict[int, list[int]] = {}
        #: Calls and rows of each entry, which counts by itself, holding the GIL.
        self._entries = [*entries]

    def add(self, route: int, rows: int) -> None:
        here = get_ident()
        counts = self._threads.get(here) or self._threads.setdefault(here, [0] * 2 * _N)
        counts[route] += 1
        counts[route + _N] += rows

    def of_thread(self, route: int) -> int:
        """Return the calls of this thread that a route answered."""
        counts = self._threads.get(get_ident())
        return 0 if counts is None else counts[route]

    def uncounted(self, ask: Callable[[Any], Any], rows: Any) -> Any:
        """Return an answer that only compares what others asked; it does not count."""
        here = get_ident()
        counts = self._threads.setdefault(here, [0] * 2 * _N)
        before, answer = [*counts], None
        try:
            answer = ask(rows)
        finally:
            other = counts != before
            counts[:] = before
        if answer is not None and not other:  # an entry has counted by itself
            self.take_back(1, rows_of(answer))
        return answer

    def take_back(self, calls: int, rows: int) -> None:
        """Do not count calls that entries have counted by themselves."""
        own = self._uncounted.setdefault(get_ident(), [0, 0])
        own[:] = own[0] + calls, own[1] + rows

    def watch(self, entry: Any) -> None:
        """Count the calls of a compiled entry from now on, also once it is replaced."""
        counts = entry.__self__.counts
        counts[:] = 0, 0
        self._entries.append(counts)

    def reset(self) -> None:
        """Start from zero; no other thread may be counting."""
        self._threads, self._uncounted = {}, {}
        for counts in self._entries:
            counts[:] = 0, 0

    def read(self, checks: bool = False) -> dict[str, dict[str, int]]:
        every = list(self._threads.values())
        none = [0] * (_N - 1)
        entries = [*self._entries, *([-x for x in y] for y in self._uncounted.values())]
        every += [[calls, *none, rows, *none] for calls, rows in entries]
        sums = [sum(column) for column in zip([0] * 2 * _N, *every, strict=True)]
        return {
            route: {"calls": sums[i], "rows": sums[i + _N]}
            for i, route in enumerate(ROUTES + CHECKS)
            if checks or i not in (CHECKED, DIFFERENT) or sums[DIFFERENT]
        }


def rows_of(answer: Any) -> int:
    first = answer[0] if isinstance(answer, (list, tuple)) else answer
    shape = getattr(first, "shape", ())
    return int(shape[0]) if shape else 0
