"""Counts calls, rows and seconds of both sides, by the size of the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

#: Calls, rows and seconds of one size of batches.
Totalled: TypeAlias = list[Any]
#: A model's class, a method, a side, the bits of the number of rows, and a reason.
CallKind: TypeAlias = tuple[str, str, str, int, str]

#: What is told of each count, with its rows and seconds.
LISTENERS: list[Callable[[CallKind, int, float], None]] = []


class Tally:
    """Calls of one method of one model: by its library, and by kernels.

    Batches of similar size are counted together, by the bits of their number of rows.
    """

    __slots__ = (
        *("alone", "before", "by_kernels", "by_library", "checks", "differed"),
        *("of", "past_whys", "saved_before", "slower", "why"),
    )

    def __init__(self, of: tuple[str, str] = ("", "")) -> None:
        #: The model's class and the method.
        self.of = of
        self.by_library: dict[int, Totalled] = {}
        self.by_kernels: dict[int, Totalled] = {}
        #: Kernels' calls, rows and seconds, and what they saved, before there was
        #: another kernel; they do not tell how long it takes.
        self.before: Totalled = [0, 0, 0.0]
        self.saved_before = 0.0
        #: The library's calls, and their rows, that were not timed.
        self.alone = [0, 0]
        #: Calls whose answers differed from the library's; none of them has left.
        self.differed = 0
        #: Kernels' calls that may be compared, and are if their number says so.
        self.checks = 0
        #: Sizes for which kernels were weighed and found slower, by their bits.
        self.slower: set[int] = set()
        #: Why the library answered its last calls, and those before them by reason.
        self.why = ""
        self.past_whys: dict[str, int] = {}

    @property
    def whys(self) -> dict[str, int]:
        """How many calls the library answered, by reason."""
        counts = self.alone[0], *(sums[0] for sums in self.by_library.values())
        whys = {**self.past_whys}
        if others := int(sum(counts)) - sum(whys.values()):
            whys[self.why] = whys.get(self.why, 0) + others
        return whys

    def turn(self, why: str) -> None:
        """Give another reason for the calls that are counted from now on."""
        self.past_whys, self.why = self.whys, why

    def library(self, rows: int, seconds: float, why: str) -> int:
        """Count a call; return how many there were of the size."""
        if self.why is not why:
            self.turn(why)
        size = rows.bit_length()
        sums = self.by_library.get(size)
        if sums is None:
            sums = self.by_library[size] = [0, 0, 0.0]
        sums[0] += 1
        sums[1] += rows
        sums[2] += seconds
        if LISTENERS:
            for tell in LISTENERS:
                tell((*self.of, "library", size, why), rows, seconds)
        count: int = sums[0]
        return count

    def untimed(self, rows: int, why: str) -> None:
        """Count a call of the library's that was not timed: no kernels would answer."""
        if self.why is not why:
            self.turn(why)
        sums = self.alone
        sums[0] += 1
        sums[1] += rows
        for tell in LISTENERS:
            tell((*self.of, "alone", 0, why), rows, 0.0)

    def differs(self) -> None:
        self.differed += 1
        for tell in LISTENERS:
            tell((*self.of, "differed", 0, ""), 0, 0.0)

    def kernels(self, rows: int, seconds: float) -> int:
        """Count a call; return how many there were of the size."""
        for tell in LISTENERS:
            tell((*self.of, "kernels", rows.bit_length(), ""), rows, seconds)
        return _count(self.by_kernels, rows.bit_length(), 1, rows, seconds)

    def spent(self, rows: int, overhead: float) -> float:
        """Return both sides' seconds for a size, without the look at the model."""
        size, nothing = rows.bit_length(), (0, 0, 0.0)
        calls, _, seconds = self.by_kernels.get(size, nothing)
        return seconds - calls * overhead + self.by_library.get(size, nothing)[2]

    def left_to_save(self, overhead: float) -> float:
        """Return the seconds of kernels, and of the library where it is faster."""
        kernels = [*self.by_kernels.values()]
        spent = sum(seconds - calls * overhead for calls, _, seconds in kernels)
        library = [self.by_library[size][2] for size in [*self.slower]]
        return float(spent + sum(library))

    def renew(self) -> None:
        """Forget how long kernels take for each size, as there is another one."""
        self.saved_before = self.saved()
        self.slower.clear()
        past, self.by_kernels = self.by_kernels, {}
        for sums in past.values():
            _add(self.before, sums)

    def next_check(self) -> int:
        self.checks += 1
        return self.checks

    def pays(self, rows: int, overhead: float) -> bool:
        """Tell whether kernels are known, or expected, to be faster for such a batch.

        ``overhead`` is what a call of kernels takes apart from its rows, in seconds.
        """
        size = rows.bit_length()
        library, kernels = self.by_library.get(size), self.by_kernels.get(size)
        usual = self._usual(size) if library is None else library[2] / library[0]
        if usual is None:
            return True
        if kernels is None or kernels[0] < 3:
            return overhead < usual
        return kernels[2] / kernels[0] < usual

    def _usual(self, size: int) -> float | None:
        """Return the library's mean seconds for batches of a size.

        If it has answered none, then of the next smaller size, which takes no longer.
        """
        for known in range(size, -1, -1):
            if known in self.by_library:
                calls, _, seconds = self.by_library[known]
                return seconds / calls
        return None

    def saved(self) -> float:
        """Return seconds saved, where both sides were measured."""
        total = self.saved_before
        for size, (calls, _, seconds) in self.by_kernels.items():
            if (usual := self._usual(size)) is not None:
                total += calls * usual - seconds
        return total

    def add_sums(self, side: str, size: int, why: str, sums: Sequence[float]) -> None:
        """Add what was counted elsewhere, as listeners are told of it."""
        calls = int(sums[0])
        if side == "differed":
            self.differed += calls
            return
        if side != "kernels":
            self.turn(why)
        if side == "alone":
            self.alone = [self.alone[0] + calls, self.alone[1] + int(sums[1])]
        else:
            of_side = self.by_kernels if side == "kernels" else self.by_library
            _add(of_side.setdefault(size, [0, 0, 0.0]), sums)

    def add(self, other: Tally) -> None:
        whys = self.whys
        for reason, calls in other.whys.items():
            whys[reason] = whys.get(reason, 0) + calls
        self.past_whys = whys
        for mine, others in (
            (self.by_library, other.by_library),
            (self.by_kernels, other.by_kernels),
        ):
            for size, counts in others.items():
                _count(mine, size, *counts)
        self.alone = [sum(both) for both in zip(self.alone, other.alone, strict=True)]
        _add(self.before, other.before)
        self.saved_before += other.saved_before
        self.differed += other.differed


def _count(
    counts: dict[int, Totalled], size: int, calls: float, rows: float, seconds: float
) -> int:
    sums = counts.setdefault(size, [0, 0, 0.0])
    _add(sums, (calls, rows, seconds))
    return int(sums[0])


def _add(sums: Totalled, others: Sequence[float]) -> None:
    sums[0] += others[0]
    sums[1] += others[1]
    sums[2] += others[2]


#: By class and method.
Totals: TypeAlias = dict[tuple[str, str], Tally]
