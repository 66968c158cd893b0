"""From the parameters ``schedule`` and ``batch_sizes`` to a dispatch table."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np

from skforge.compiler.default_schedule import BatchRange, default_schedules
from skforge.compiler.forest import Forest
from skforge.compiler.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError


def dispatch_table(
    schedule: Any,
    batch_sizes: Any,
    forest: Forest,
    target: Target,
    reduction: Any,
) -> dict[BatchRange, Schedule]:
    """Return the schedule of each range of batch sizes.

    Parameters
    ----------
    schedule : "auto", str, Schedule or dict
        As ``CompiledForest`` takes it.
    batch_sizes : array-like of int or None
        Where ranges end; the last is open.
    forest : Forest
        What default schedules are for.
    target : Target
        Likewise.
    reduction : {"exact", "reproducible", "fast"}
        Likewise.

    Returns
    -------
    dict of (int, int or None) -> Schedule

    Raises
    ------
    InvalidInputError
        If the sizes or the keys of a table are no numbers of rows.
    ScheduleError
        If there is no such preset.
    """
    ranges = _ranges(batch_sizes)
    if isinstance(schedule, Mapping):
        if ranges is not None:
            raise InvalidInputError(
                "batch_sizes and the ranges of a schedule table contradict each "
                "other; leave one of them out."
            )
        return {_range(key): _schedule(value) for key, value in schedule.items()}
    if isinstance(schedule, Schedule) or schedule != "auto":
        return dict.fromkeys(ranges or [(1, None)], _schedule(schedule))
    defaults = default_schedules(forest, target, reduction)
    if ranges is None:
        return defaults
    starts = sorted(defaults)
    return {
        one: defaults[[start for start in starts if start[0] <= size][-1]]
        for one, size in ranges.items()
    }


def _ranges(batch_sizes: Any) -> dict[BatchRange, int] | None:
    """Return the range that each batch size ends; the last is open."""
    if batch_sizes is None:
        return None
    values = np.asarray(batch_sizes)
    whole = values.dtype.kind in "iu" and values.ndim == 1
    sizes = [int(size) for size in np.unique(values)] if whole else []
    if not sizes or sizes[0] < 1:
        raise InvalidInputError(
            "batch_sizes must be whole numbers of rows from 1 on. "
            f"Got {batch_sizes!r} instead."
        )
    starts = [1, *(size + 1 for size in sizes[:-1])]
    ranges = zip(starts, [*sizes[:-1], None], strict=True)
    return dict(zip(ranges, sizes, strict=True))


def _schedule(value: Any) -> Schedule:
    return value if isinstance(value, Schedule) else Schedule.preset(value)


def _range(key: Any) -> BatchRange:
    if (
        isinstance(key, tuple)
        and len(key) == 2
        and isinstance(key[0], Integral)
        and isinstance(key[1], (Integral, type(None)))
        and 1 <= int(key[0]) <= int(key[0] if key[1] is None else key[1])
    ):
        return int(key[0]), None if key[1] is None else int(key[1])
    raise InvalidInputError(
        "The keys of a schedule table are (first, last) numbers of rows, last being "
        f"None in the range that is open. Got {key!r} instead."
    )
