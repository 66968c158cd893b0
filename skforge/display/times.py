"""Times of calls that are known without measuring: the search's, or estimates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from skforge.compiler.cost.estimate import CostEstimate
from skforge.compiler.defaults.walks import BatchRange
from skforge.compiler.runtime.machine import known_profile
from skforge.compiler.schedule.bind import kind_of
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target

Origin: TypeAlias = Literal["measured", "timed in fit", "estimated"]

#: Batch sizes that are shown and measured if the user names none.
SIZES = (1, 8, 64, 512, 4096)

#: Nodes up to which a forest is estimated when shown: counting them takes 0.1 s.
MOST_NODES = 200_000


@dataclass(frozen=True, slots=True)
class CallTime:
    """The time of a call with a number of rows.

    Parameters
    ----------
    n_rows : int
        Rows of the call.
    seconds : float
        Seconds of the call: the median if it was measured.
    origin : {"measured", "timed in fit", "estimated"}
        "measured": whole calls, by ``summary(X)``. "timed in fit": kernels alone, by
        the search for schedules. "estimated": kernels alone, by the cost model.
    high : float or None
        The 99th percentile of the measured calls.
    source_seconds, source_high : float or None
        The same of the source's own function; None if it was not measured.
    """

    n_rows: int
    seconds: float
    origin: Origin
    high: float | None = None
    source_seconds: float | None = None
    source_high: float | None = None

    @property
    def faster(self) -> float | None:
        """Time of the source by ours; None if it was not measured."""
        return (
            None if self.source_seconds is None else self.source_seconds / self.seconds
        )


def known_times(wrapper: Any, n_threads: int, estimate: bool) -> tuple[CallTime, ...]:
    """Return the times that a fitted wrapper's search measured, or estimates.

    A range of batch sizes whose schedule was not timed here is estimated if
    ``estimate``, the schedule runs on a CPU and the forest is not large.
    """
    here = wrapper.target_ == wrapper.fitted_target_
    found = wrapper.tuning_result_ if here else None
    costs: CostEstimate | None = None
    times: list[CallTime] = []
    for batch, schedule in sorted(wrapper.schedule_.items(), key=lambda s: s[0][0]):
        timed = _searched(found, batch, schedule, n_threads)
        times += timed
        small = wrapper.forest_.n_nodes <= MOST_NODES
        if timed or not (estimate and small) or kind_of(schedule.directives) == "gpu":
            continue
        if costs is None:
            target = Target.host() if wrapper.target_.is_gpu else wrapper.target_
            costs = CostEstimate(wrapper.forest_, target, known_profile(target))
        sizes = _sizes(batch)
        seconds = np.atleast_1d(costs.seconds(schedule, sizes, n_threads))
        for n_rows, one in zip(sizes, seconds, strict=True):
            if np.isfinite(one) and one > 0:
                times.append(CallTime(n_rows, float(one), "estimated"))
    return tuple(times)


def _searched(
    found: Any, batch: BatchRange, schedule: Schedule, n_threads: int
) -> list[CallTime]:
    """Return what a search measured of a range's schedule, a time for each size."""
    if found is None or found.n_threads != n_threads:
        return []
    first, last = batch
    seconds: dict[int, float] = {}
    for trial in found.trials:
        inside = first <= trial.n_rows <= (trial.n_rows if last is None else last)
        if inside and trial.usable and trial.schedule == schedule:
            before = seconds.get(trial.n_rows, np.inf)
            seconds[trial.n_rows] = min(before, trial.seconds)
    return [CallTime(n, s, "timed in fit") for n, s in sorted(seconds.items())]


def _sizes(batch: BatchRange) -> list[int]:
    """Return the sizes to estimate in a range."""
    first, last = batch
    return [n for n in SIZES if first <= n and (last is None or n <= last)]
