"""How much faster a schedule could be, by an estimate and by what a search has timed.

An estimate of seconds is off by a factor. Part of that factor belongs to the machine,
part to the kind of traversal, and the rest to the schedule. Only ratios of two
estimates are used here, so the machine's part cancels; a kind's part is known as soon
as a schedule of the kind has been timed, at any batch size of the search.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import exp, inf, isfinite, log
from statistics import median
from typing import Any, Protocol, TypeAlias

from skforge.compiler.cost.schedule_facts import LAYOUTS, PLACE, facts_of
from skforge.compiler.schedule.schedule import Schedule
from skforge.tuning.search.ranges import MARGIN
from skforge.tuning.search.trial import Trial

Kind: TypeAlias = tuple[Any, ...]

#: Factors by which the ratio of two estimates may be too high: of schedules of two
#: kinds in nine of ten cases (71 forests, AVX-512 and AVX2, 1 to 4,096 rows: 1.55, and
#: 1.71 for forests kept aside), and of one kind, or of kinds that were timed, in three
#: of four (1.14 and 1.16). With 1.3 there, the factor of nine in ten, a search finds
#: schedules that are .3 % faster and compiles one kernel more.
BETWEEN, WITHIN = 1.65, 1.15

#: Representations that are one kind: trees walked node by node.
_WALKED = ("sparse", "array", "reorg", "packed")
WALK = "walk"


class Estimate(Protocol):
    """An estimate of time, such as ``skforge.compiler.cost.estimate.CostEstimate``."""

    def seconds(self, schedule: Schedule, n_rows: int, n_threads: int = 1) -> Any:
        """Return the seconds of one call; inf for a schedule it knows nothing of."""


@lru_cache(maxsize=4096)
def kind_of(schedule: Schedule) -> Kind:
    """Return what schedules of one kind share: layout, rows or trees inside, codes."""
    facts = facts_of([schedule])[0]
    layout = LAYOUTS[int(facts[PLACE["layout"]])]
    if layout in _WALKED:
        inside = ("rows_in_flight", "trees_in_flight", "vector_rows")
        return (WALK, *(facts[PLACE[name]] != 0 for name in inside))
    return layout, facts[PLACE["vector_trees"]] != 0, facts[PLACE["codes"]] != 0


class Odds:
    """An estimate, corrected for each kind of schedule by what was timed so far."""

    def __init__(self, estimate: Estimate, n_threads: int) -> None:
        self._estimate, self._threads = estimate, n_threads
        self._seconds: dict[tuple[Schedule, int], float] = {}
        #: Logarithms of measured by estimated seconds, of each kind.
        self._errors: dict[Kind, list[float]] = {}

    def knows(self, schedule: Schedule, n_rows: int) -> bool:
        """Return whether the estimate supports a schedule."""
        return isfinite(self.seconds(schedule, n_rows))

    def seconds(self, schedule: Schedule, n_rows: int) -> float:
        """Return the estimated seconds of a call, not corrected."""
        key = schedule, n_rows
        if key not in self._seconds:
            found = float(self._estimate.seconds(schedule, n_rows, self._threads))
            self._seconds[key] = found if found > 0 else inf
        return self._seconds[key]

    def possible(
        self, schedule: Schedule, default: Schedule, n_rows: int, like: float
    ) -> float:
        """Return the lowest likely ratio of a schedule's time to the default's.

        A schedule that the estimate does not support is taken for one that takes
        ``like`` times the default's time, and is of its kind.
        """
        if not self.knows(default, n_rows):
            return 1 / BETWEEN
        if not self.knows(schedule, n_rows):
            return like / WITHIN
        one, other = kind_of(schedule), kind_of(default)
        ratio = self.seconds(schedule, n_rows) / self.seconds(default, n_rows)
        if one == other:
            return ratio / WITHIN
        if one not in self._errors or other not in self._errors:
            return ratio / BETWEEN
        error = median(self._errors[one]) - median(self._errors[other])
        return ratio * exp(error) / WITHIN

    def learn(self, default: Schedule, trials: Iterable[Trial]) -> None:
        """Note the errors of the estimate for trials and the default beside them."""
        for trial in trials:
            if trial.schedule is None or not trial.samples:
                continue
            taken = {trial.schedule: trial.seconds}
            taken[default] = trial.seconds / trial.relative
            for schedule, seconds in taken.items():
                if self.knows(schedule, trial.n_rows):
                    error = log(seconds / self.seconds(schedule, trial.n_rows))
                    self._errors.setdefault(kind_of(schedule), []).append(error)


def could_win(possible: float, best: float) -> bool:
    """Return whether a ratio that is possible beats the best one by ``MARGIN``."""
    return possible <= (1 - MARGIN) * best
