"""Ranges of batch sizes, each of which has a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from skforge.schedule.schedule import Schedule

#: Batch sizes (first, last) where another schedule may win; a last of None is open.
BatchRange = tuple[int, int | None]
SchedulesByRange: TypeAlias = "dict[BatchRange, Schedule]"
BATCH_RANGES: tuple[BatchRange, ...] = (
    (1, 1),
    (2, 15),
    (16, 127),
    (128, 2048),
    (2049, None),
)
