"""Schedules that differ from one by a single thing: a directive, a size, a layout.

What is left may not be legal: directives lean on each other. Then the fewest others go,
too, and the variant says which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from skforge import Schedule, ScheduleError
from skforge.compiler.schedule.directives import (
    Directive,
    Interleave,
    Reorder,
    Represent,
    Tile,
    UnrollWalk,
)

#: What binding a schedule raises, if it does.
Check = Callable[[Schedule], object]

REPRESENTATIONS = ("array", "sparse", "reorg", "bitsliced")
DEFAULT_REPRESENTATION = "sparse"


@dataclass(frozen=True, slots=True)
class Variant:
    """A schedule and what makes it another; None with the reason if there is none."""

    kind: str  # "off", "size" or "representation"
    change: str
    schedule: Schedule | None
    note: str = ""


def without_each(schedule: Schedule, check: Check) -> list[Variant]:
    """Return, for each directive of a schedule, the schedule without it.

    Parameters
    ----------
    schedule : Schedule
        The whole.
    check : Callable
        Raises ``ScheduleError`` for a schedule that does not fit the forest.

    Returns
    -------
    list of Variant
        One a directive, in order.
    """
    made = []
    for place, directive in enumerate(schedule.directives):
        others = [d for i, d in enumerate(schedule.directives) if i != place]
        if isinstance(directive, Tile):
            others = _untiled(others, directive)
        found, gone = nearest_legal(others, check)
        made.append(Variant("off", f"without {directive}", found, _also(gone)))
    return made


def other_sizes(schedule: Schedule, check: Check) -> list[Variant]:
    """Return the schedule with half and twice each block and factor."""
    made = []
    for place, directive in enumerate(schedule.directives):
        for by in (0.5, 2.0):
            other = _scaled(directive, by)
            if other is not None:
                made.append(_changed(schedule, place, other, "size", check))
    return made


def other_representations(schedule: Schedule, check: Check) -> list[Variant]:
    """Return the schedule with each other representation, or why there is none."""
    place, own = len(schedule.directives), DEFAULT_REPRESENTATION
    for i, directive in enumerate(schedule.directives):
        if isinstance(directive, Represent):
            place, own = i, directive.representation
    return [
        _changed(schedule, place, Represent(name), "representation", check)
        for name in REPRESENTATIONS
        if name != own
    ]


def nearest_legal(
    directives: Sequence[Directive], check: Check, keep: Directive | None = None
) -> tuple[Schedule, tuple[Directive, ...]]:
    """Return the longest legal part of some directives, and what had to go.

    Of parts as long, the one that keeps the earliest directives. ``keep`` stays.

    Raises
    ------
    ScheduleError
        If nothing with ``keep`` is legal: of the whole.
    """
    whole: ScheduleError | None = None
    places = [i for i, d in enumerate(directives) if d is not keep]
    for n in range(len(places) + 1):
        for gone in combinations(reversed(places), n):
            left = tuple(d for i, d in enumerate(directives) if i not in gone)
            try:
                schedule = Schedule(left)
                check(schedule)
            except ScheduleError as error:
                whole = whole or error
                continue
            return schedule, tuple(directives[i] for i in sorted(gone))
    assert whole is not None
    raise whole


def _changed(
    schedule: Schedule, place: int, other: Directive, kind: str, check: Check
) -> Variant:
    directives = list(schedule.directives)
    old = directives[place : place + 1]
    directives[place : place + 1] = [other]
    change = f"{other}" + (f" for {old[0]}" if old else "")
    try:
        found, gone = nearest_legal(directives, check, keep=other)
    except ScheduleError as error:
        return Variant(kind, change, None, str(error).splitlines()[0])
    return Variant(kind, change, found, _also(gone))


def _scaled(directive: Directive, by: float) -> Directive | None:
    match directive:
        case Tile(size=size):
            return replace(directive, size=int(size * by)) if abs(size) > 1 else None
        case Interleave(factor=int(factor)):
            whole = int(factor * by)
            return replace(directive, factor=whole) if 1 < whole <= 64 else None
        case UnrollWalk(depth=depth) if by < 1 and depth > 1:
            return replace(directive, depth=int(depth * by))
        case _:
            return None


def _untiled(directives: Sequence[Directive], tile: Tile) -> list[Directive]:
    """Return directives with both loops of a tile named as the one it divided.

    Marks of the loop over blocks come last, so that they are the first to go.
    """
    rest: list[Directive] = []
    of_blocks: list[Directive] = []
    for directive in directives:
        if isinstance(directive, Reorder):
            # The loop over rows of a block is where the rows of the batch are now.
            left = [i for i in directive.indices if i != tile.outer]
            names = tuple(tile.index if i == tile.inner else i for i in left)
            rest += [replace(directive, indices=names)] if len(names) > 1 else []
            continue
        index = getattr(directive, "index", None)
        if index in (tile.outer, tile.inner):
            directive = replace(directive, **{"index": tile.index})
        (of_blocks if index == tile.outer else rest).append(directive)
    return [*rest, *of_blocks]


def _also(gone: Sequence[Directive]) -> str:
    return f"also without {', '.join(map(str, gone))}" if gone else ""
