"""Converts every form of schedule that users pass to a table by batch size."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from numbers import Integral
from typing import TypeAlias, TypeGuard, TypeVar

from skforge.exceptions import InvalidInputError, ScheduleError, with_article
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule

T = TypeVar("T")

#: One for all batches or one per range, or a preset's name; None and "auto": defaults.
Schedules: TypeAlias = Schedule | str | Mapping[BatchRange, Schedule | str] | None


class ScheduleTable(dict[BatchRange, Schedule]):
    """A dict from ranges of batch sizes to schedules, printed with a line for each."""

    def __repr__(self) -> str:
        return "{" + ",\n ".join(f"{k!r}: {v!r}" for k, v in self.items()) + "}"


def schedule_table(schedule: Schedules) -> dict[BatchRange, Schedule] | None:
    """Return the schedule of each range of batch sizes; None means the defaults.

    Raises InvalidInputError for what is none of ``Schedules``, and ScheduleError for an
    unknown preset, a key that is not a range of batch sizes, or ranges that overlap.

    >>> schedule_table({(1, 8): Schedule(), (9, None): "rapids"})[9, None].kind
    'gpu'
    """
    if schedule is None or (isinstance(schedule, str) and schedule == "auto"):
        return None
    if isinstance(schedule, (Schedule, str)):
        return {(1, None): _schedule(schedule)}
    if not isinstance(schedule, Mapping):
        raise InvalidInputError(
            "schedule must be a Schedule, a preset's name, a dict of batch ranges to "
            f"these, or None; got {type(schedule).__name__}."
        )
    if not schedule:
        raise ScheduleError(
            "the dict of batch ranges has no schedule; give at least one."
        )
    table: dict[BatchRange, Schedule] = {}
    for key, value in schedule.items():
        if not isinstance(value, (Schedule, str)):
            raise ScheduleError(
                f"the batch range {key!r} must have a Schedule or a preset's name, "
                f"not {with_article(type(value).__name__)}."
            )
        table[_range(key)] = _schedule(value)
    ends = sorted(table, key=lambda key: key[0])
    for (_, last), (first, _) in pairwise(ends):
        if last is None or last >= first:
            raise ScheduleError(
                f"the batch ranges {ends} overlap; give each batch size only one "
                "schedule."
            )
    return table


def table_at(table: Mapping[BatchRange, T], n_rows: int) -> T:
    below = [batch for batch in table if batch[0] <= n_rows]
    return table[max(below) if below else min(table)]


def _schedule(value: Schedule | str) -> Schedule:
    return value if isinstance(value, Schedule) else Schedule.preset(value)


def _range(key: object) -> BatchRange:
    if isinstance(key, tuple) and len(key) == 2:
        first, last = key
        if is_count(first) and (last is None or is_count(last, first)):
            return int(first), None if last is None else int(last)
    raise ScheduleError(
        f"{key!r} is not a batch range; a key is (first, last), both included and 0 "
        "or more, or (first, None) for all batches of at least first rows."
    )


def is_count(rows: object, least: int = 0) -> TypeGuard[int]:
    whole = isinstance(rows, Integral) and not isinstance(rows, bool)
    return whole and int(rows) >= least  # type: ignore[call-overload]


def check_count(n_rows: object) -> int:
    if not is_count(n_rows):
        raise InvalidInputError(
            f"n_rows must be a number of rows, an int of 0 or more. Got {n_rows!r} "
            "instead."
        )
    return int(n_rows)
