"""Ranges of batch sizes: at which sizes they are measured, and what each gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from statistics import geometric_mean
from typing import TypeVar

from skforge.engine.schedules import table_at
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule

T = TypeVar("T")

#: Minimum gain over the default to choose a schedule; a smaller gain may be noise.
MARGIN = 0.03

#: Maximum loss against the default at any other size of the range.
TOLERANCE = 0.01

#: Minimum gain of several schedules over one, to justify another kernel.
SPLIT = 0.05

#: Minimum upper size at which a range without an end is measured.
OPEN = 4096


@dataclass(frozen=True, slots=True)
class RangePlan:
    batch: BatchRange
    sizes: tuple[int, ...]  # finalists are timed at all of these
    main: int  # all candidates are timed at this size
    default: Schedule
    share: float = 1.0  # of all batch sizes


def plan_ranges(
    defaults: Mapping[BatchRange, Schedule],
    ranges: Mapping[BatchRange, int] | None,
    most: int,
) -> list[RangePlan]:
    asked = dict.fromkeys(defaults) if ranges is None else ranges
    shares = {batch: 1.0 if ranges else _octaves(batch) for batch in asked}
    plans = []
    for batch, size in sorted(asked.items(), key=first_row):
        sizes = probe_sizes(batch) if size is None else (size,)
        main = sizes[-1 if batch[1] is None else len(sizes) // 2]
        default = table_at(defaults, batch[0] if size is None else size)
        few = tuple(sorted({min(n, most) for n in sizes}))
        share = shares[batch] / sum(shares.values())
        plans.append(RangePlan(batch, few, min(main, most), default, share))
    return plans


def merged(table: Mapping[BatchRange, T]) -> dict[BatchRange, T]:
    ranges: list[tuple[BatchRange, T]] = []
    for (first, last), value in sorted(table.items(), key=first_row):
        if ranges and ranges[-1][1] == value and ranges[-1][0][1] == first - 1:
            first = ranges.pop()[0][0]
        ranges.append(((first, last), value))
    return dict(ranges)


def first_row(item: tuple[BatchRange, object]) -> int:
    return item[0][0]


def range_text(batch: BatchRange) -> str:
    """Return a range as text, such as "2 to 15" or "16 and more".

    >>> range_text((1, 1)), range_text((2, 15)), range_text((1600, None))
    ('1', '2 to 15', '1,600 and more')
    """
    first, last = batch
    if last is None:
        return f"{first:,} and more"
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def rows_text(batch: BatchRange) -> str:
    """Return a range with its noun.

    >>> rows_text((1, 1)), rows_text((1, 2)), rows_text((16, None))
    ('1 row', '1 to 2 rows', '16 and more rows')
    """
    return f"{range_text(batch)} {'row' if batch == (1, 1) else 'rows'}"


def probe_sizes(batch: BatchRange) -> tuple[int, ...]:
    first, last = max(1, batch[0]), batch[1]
    if last is None:
        last = max(OPEN, 4 * first)
    middle = round((first * last) ** 0.5)
    return tuple(sorted({first, middle, last}))


def _octaves(batch: BatchRange) -> float:
    """Return how often a range doubles: batches of all powers of two are as likely."""
    first, last = max(1, batch[0]), batch[1]
    return log2((max(OPEN, first) * 2 if last is None else last + 1) / first)


def choose(
    batch: BatchRange,
    default: Schedule,
    seconds: Mapping[int, float],
    ratios: Mapping[int, Mapping[Schedule, float]],
) -> dict[BatchRange, Schedule]:
    """Return the schedules of a range, split into sub-ranges if that is faster.

    The default stays unless another schedule is clearly faster. ``seconds`` maps batch
    sizes to the default's times; ``ratios`` holds each schedule's time divided by the
    default's. Schedules not timed at every size are ignored. The returned table covers
    the range without gaps.
    """
    sizes = sorted(seconds)
    every: dict[Schedule, list[float]] = {default: [1.0] * len(sizes)}
    for schedule in ratios[sizes[0]] if sizes else ():
        if schedule != default and all(schedule in ratios[size] for size in sizes):
            every[schedule] = [ratios[size][schedule] for size in sizes]
    if len(every) == 1:
        return {batch: default}
    whole = min(
        (s for s, values in every.items() if max(values) <= 1 + TOLERANCE),
        key=lambda s: geometric_mean(every[s]),
    )
    if geometric_mean(every[whole]) > 1 - MARGIN:
        whole = default
    best = [
        min(every, key=lambda s, i=i: every[s][i] * (1 if s == default else 1 + MARGIN))  # type: ignore[misc]
        for i in range(len(sizes))
    ]
    parts = geometric_mean([every[s][i] for i, s in enumerate(best)])
    if parts > (1 - SPLIT) * geometric_mean(every[whole]):
        return {batch: whole}
    return _pieces(batch, sizes, best, every, [seconds[size] for size in sizes])


def _pieces(
    batch: BatchRange,
    sizes: Sequence[int],
    best: Sequence[Schedule],
    every: Mapping[Schedule, Sequence[float]],
    seconds: Sequence[float],
) -> dict[BatchRange, Schedule]:
    """Split a range where the interpolated times of two schedules cross."""
    table: dict[BatchRange, Schedule] = {}
    first = batch[0]
    for i in range(len(sizes) - 1):
        small, large = best[i], best[i + 1]
        if small == large:
            continue
        # Assume that both times are linear in the rows between the two sizes.
        gaps = [(every[small][j] - every[large][j]) * seconds[j] for j in (i, i + 1)]
        share = gaps[0] / (gaps[0] - gaps[1]) if gaps[0] != gaps[1] else 0.5
        cut = int(sizes[i] + min(1.0, max(0.0, share)) * (sizes[i + 1] - sizes[i]))
        cut = min(max(cut, sizes[i]), sizes[i + 1] - 1)
        table[first, cut] = small
        first = cut + 1
    table[first, batch[1]] = best[-1]
    return table
