"""How much time a schedule would save, by an estimate and by what a search has timed.

An estimate of seconds is off by a factor. Part of that factor belongs to the machine,
part to the kind of traversal, and the rest to the schedule. Only ratios of two
estimates are used here, so the machine's part cancels; a kind's part is known as soon
as a schedule of the kind has been timed, at any batch size of the search. The ratio
itself is lognormal about the one estimated, so a schedule that is probably slower has a
mean gain, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import erfc, exp, inf, isfinite, log, sqrt
from statistics import median
from typing import Any, Protocol, TypeAlias

from skforge.compiler.cost.schedule_facts import LAYOUTS, PLACE, facts_of
from skforge.schedule.directives import Represent
from skforge.schedule.schedule import Schedule
from skforge.tuning.search.ranges import MARGIN
from skforge.tuning.search.trial import Trial

CandidateKind: TypeAlias = tuple[Any, ...]

#: Standard deviations of the logarithm of a ratio of two times about that of their
#: estimates, for ratios below 2: of two kinds of schedules .33 on 109 forests, and .35
#: on 64 kept aside. Of one kind .28, most of it in few: if half of them differ, by .2,
#: the mean gains are those that were found (2 % at a ratio of 1, .7 at 1.25).
BETWEEN, WITHIN, DIFFERS = 0.36, 0.2, 0.5

#: Errors within a kind count as this one if they are larger: one timing that failed, or
#: a schedule that is far off, says little of the others.
FAR = 0.3

#: Seconds of a call besides its kernel, which no schedule changes: a bound method that
#: is a compiled entry.
CALL = 1.7e-7

#: Representations that are one kind: trees walked node by node.
_WALKED = ("sparse", "array", "reorg")
WALK = "walk"

#: Kinds whose code is several times as long as that of others.
LARGE: tuple[CandidateKind, ...] = (
    ("bitsliced", False, False),
    ("tiles", False, False),
)


class Estimate(Protocol):
    """An estimate of time, such as ``skforge.compiler.cost.estimate.CostEstimate``."""

    def seconds(self, schedule: Schedule, n_rows: int, n_threads: int = 1) -> Any:
        """Return the seconds of one call; inf for a schedule it knows nothing of."""


#: What walks of one kind have in common on a CPU, and on a GPU.
_INSIDE = ("rows_in_flight", "trees_in_flight", "vector_rows")
_ON_GRID = ("block_trees", "lane_trees", "grid_trees", "cache_trees", "codes")


@lru_cache(maxsize=1 << 16)
def kind_of(schedule: Schedule) -> CandidateKind:
    facts = facts_of([schedule])[0]
    layout = LAYOUTS[int(facts[PLACE["layout"]])]
    if layout in _WALKED:
        inside = _INSIDE if schedule.kind == "cpu" else _ON_GRID
        return (WALK, *(facts[PLACE[name]] != 0 for name in inside))
    return layout, facts[PLACE["vector_trees"]] != 0, facts[PLACE["codes"]] != 0


def layout_of(schedule: Schedule) -> str:
    named = [d.representation for d in schedule.directives if isinstance(d, Represent)]
    return named[-1] if named else ""


#: Estimated seconds of a call with some rows, for each of several schedules.
Estimated: TypeAlias = Callable[[Sequence[Schedule], int], Sequence[float]]


class Odds:
    """An estimate, corrected for each kind of schedule by what was timed so far."""

    def __init__(self, estimated: Estimated) -> None:
        self.estimated = estimated
        self._seconds: dict[tuple[Schedule, int], float] = {}
        #: Logarithms of measured by estimated seconds, of each kind.
        self._errors: dict[CandidateKind, list[float]] = {}
        #: Expected ratios to the default's time, but for kinds that are new.
        self._expected: dict[tuple[Schedule, int], float] = {}
        #: Logarithms of measured by expected ratios.
        self._log_ratios: list[float] = []

    def seconds(self, schedule: Schedule, n_rows: int) -> float:
        key = schedule, n_rows
        if key not in self._seconds:
            seconds = float(self.estimated([schedule], n_rows)[0])
            self._seconds[key] = seconds if seconds > 0 else inf
        return self._seconds[key]

    def gain(
        self,
        schedule: Schedule,
        default: Schedule,
        n_rows: int,
        like: float,
        best: float,
    ) -> float:
        """Return the share of the default's call that a schedule saves, on average.

        Counted is how far its time, as a ratio to the default's, is below ``best`` by
        more than ``MARGIN``; a slower one saves nothing. A schedule that the estimate
        does not support is taken for one that takes ``like`` times the default's time,
        and is of its kind.
        """
        seconds, estimated = (self.seconds(s, n_rows) for s in (default, schedule))
        if not isfinite(seconds):
            return _mean_gain(1.0, BETWEEN, best)
        ratio, error = like, 0.0
        if isfinite(estimated):
            ratio = estimated / seconds
            kinds = kind_of(schedule), kind_of(default)
            if kinds[0] != kinds[1]:
                if all(kind in self._errors for kind in kinds):
                    ratio *= self.usual(kinds[0]) / self.usual(kinds[1])
                else:
                    error = BETWEEN
        share = seconds / (seconds + CALL)
        if not error:
            self._expected[schedule, n_rows] = ratio
            shift, error = self._within()
            ratio *= shift
            share *= DIFFERS
        return share * _mean_gain(ratio, error, best)

    def usual(self, kind: CandidateKind) -> float:
        """Return a kind's usual ratio; of others their median, 1 if none was timed."""
        if kind in self._errors:
            return exp(median(self._errors[kind]))
        return exp(median([*map(median, self._errors.values())] or [0.0]))

    def _within(self) -> tuple[float, float]:
        """Return the usual error within a kind, as a factor, and its deviation.

        They are 1 and ``WITHIN`` at first, which count as one schedule that was timed.
        """
        n = 1 + len(self._log_ratios)
        mean = sum(self._log_ratios) / n
        squares = WITHIN**2 + sum((error - mean) ** 2 for error in self._log_ratios)
        return exp(mean), float((squares / n) ** 0.5)

    def learn(self, default: Schedule, trials: Iterable[Trial]) -> None:
        for trial in trials:
            if trial.schedule is None or not trial.samples:
                continue
            expected = self._expected.get((trial.schedule, trial.n_rows))
            if expected is not None and isfinite(expected):
                error = log(trial.relative / expected)
                self._log_ratios.append(max(-FAR, min(error, FAR)))
            taken = {trial.schedule: trial.seconds}
            taken[default] = trial.seconds / trial.relative
            for schedule, seconds in taken.items():
                estimated = self.seconds(schedule, trial.n_rows)
                if isfinite(estimated):
                    error = log(seconds / estimated)
                    self._errors.setdefault(kind_of(schedule), []).append(error)


def _mean_gain(ratio: float, error: float, best: float) -> float:
    """Return the mean of what a lognormal ratio about ``ratio`` is below ``best``."""
    if not 0 < ratio < inf:
        return 0.0
    least = (1 - MARGIN) * best
    far = log(least / ratio) / error
    mean = ratio * exp(error**2 / 2)
    return max(0.0, least * _below(far) - mean * _below(far - error))


def _below(deviations: float) -> float:
    return 0.5 * erfc(-deviations / sqrt(2))
