"""From times at a few batch sizes to the schedule of every size of a range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log

from skforge.compiler.defaults.cpu import BatchRange
from skforge.compiler.schedule.schedule import Schedule

#: By how much a schedule has to beat the default where it is chosen: less is noise.
MARGIN = 0.03

#: How much slower than the default it may be at another size of its range.
TOLERANCE = 0.01

#: By how much two schedules have to beat one, to be worth another kernel.
SPLIT = 0.05

#: The size that an open range is measured at, at least.
OPEN = 4096


def probe_sizes(batch: BatchRange) -> tuple[int, ...]:
    """Return the batch sizes that stand for a range: its ends and the middle."""
    first, last = max(1, batch[0]), batch[1]
    if last is None:
        return (first, max(OPEN, 4 * first))
    middle = round((first * last) ** 0.5)
    return tuple(sorted({first, middle, last}))


def main_size(batch: BatchRange) -> int:
    """Return the size that candidates are first measured at."""
    sizes = probe_sizes(batch)
    return sizes[-1] if batch[1] is None else sizes[len(sizes) // 2]


def choose(
    batch: BatchRange,
    default: Schedule,
    seconds: Mapping[int, float],
    ratios: Mapping[int, Mapping[Schedule, float]],
) -> dict[BatchRange, Schedule]:
    """Return the schedules of a range, and where one takes over from the other.

    The default stays unless another is clearly faster. ``seconds`` are the default's,
    by batch size; ``ratios`` are times of others by the default's. Schedules that were
    not timed at all sizes do not count. The table covers the range without gaps.
    """
    sizes = sorted(seconds)
    common = [
        one
        for one in (ratios[sizes[0]] if sizes else ())
        if all(one in ratios[size] for size in sizes)
    ]
    every: dict[Schedule, list[float]] = {default: [1.0] * len(sizes)}
    every |= {s: [ratios[size][s] for size in sizes] for s in common if s != default}
    if len(every) == 1:
        return {batch: default}
    whole = min(
        (s for s, values in every.items() if max(values) <= 1 + TOLERANCE),
        key=lambda s: _mean(every[s]),
    )
    if _mean(every[whole]) > 1 - MARGIN:
        whole = default
    best = [
        min(every, key=lambda s, i=i: every[s][i] * (1 if s == default else 1 + MARGIN))  # type: ignore[misc]
        for i in range(len(sizes))
    ]
    parts = _mean([every[s][i] for i, s in enumerate(best)])
    if parts > (1 - SPLIT) * _mean(every[whole]):
        return {batch: whole}
    return _pieces(batch, sizes, best, every, [seconds[size] for size in sizes])


def _pieces(
    batch: BatchRange,
    sizes: Sequence[int],
    best: Sequence[Schedule],
    every: Mapping[Schedule, Sequence[float]],
    seconds: Sequence[float],
) -> dict[BatchRange, Schedule]:
    """Cut a range where the lines through the times of two schedules meet."""
    table: dict[BatchRange, Schedule] = {}
    first = batch[0]
    for i in range(len(sizes) - 1):
        one, other = best[i], best[i + 1]
        if one == other:
            continue
        # Both are taken to cost a fixed part and so much a row between the two sizes.
        gaps = [(every[one][j] - every[other][j]) * seconds[j] for j in (i, i + 1)]
        share = gaps[0] / (gaps[0] - gaps[1]) if gaps[0] != gaps[1] else 0.5
        cut = int(sizes[i] + min(1.0, max(0.0, share)) * (sizes[i + 1] - sizes[i]))
        cut = min(max(cut, sizes[i]), sizes[i + 1] - 1)
        table[first, cut] = one
        first = cut + 1
    table[first, batch[1]] = best[-1]
    return table


def _mean(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values))
