"""A GPU that is none: a measurer whose times are those of the model.

    Tuner("heuristic", measurer=ModelledGpu(modeller)).tune(forest, target=...)

searches schedules for a GPU where there is none, through the same interface as one that
measures. Nothing is run, so nothing is checked either: ``predict`` is the reference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tuning_recorded import Replay, ReplayRunner

from benchmarks.gpu.cost import Modeller
from skforge.compiler.schedule.schedule import Schedule
from skforge.exceptions import ScheduleError
from skforge.tuning.measure.measure import Plan

#: Seconds that lowering and compiling take on the clock, about what they do take.
LOWER, COMPILE = 0.04, 0.1


class ModelledGpu(Replay):
    """What a search asks of a machine, answered by a model.

    Parameters
    ----------
    modeller : Modeller
        Models schedules of one forest on one chip.
    """

    def __init__(self, modeller: Modeller) -> None:
        super().__init__(modeller.forest)
        self.modeller = modeller
        self._seconds: dict[tuple[Schedule, int], float] = {}
        self._digests: dict[Schedule, str] = {}

    def lower(self, schedule: Schedule) -> Plan:
        """Bind a schedule; the loops it gets are its digest."""
        self.now += LOWER
        if schedule not in self._digests:
            nest = repr(self.modeller.bound(schedule).nest)
            digest = hashlib.blake2b(nest.encode(), digest_size=16).hexdigest()
            self._digests[schedule] = digest
        return Plan(schedule, self._digests[schedule], 1.0, 0, None)

    def build(self, plan: Plan) -> ReplayRunner:
        """Return what answers with modelled times."""
        self.now += COMPILE
        self.seconds(plan.schedule, 1)  # what is not legal is known now
        return super().build(plan)

    def seconds(self, schedule: Schedule, n_rows: int) -> float:
        """Return the modelled time of a batch; ``ScheduleError`` if not legal."""
        key = schedule, n_rows
        if key not in self._seconds:
            self.keep(schedule, self.times(schedule, (n_rows,)))
        return self._seconds[key]

    def times(self, schedule: Schedule, batches: Sequence[int]) -> dict[int, float]:
        """Return the modelled times; ``ScheduleError`` if not legal or spilled."""
        cost = self.modeller.cost(self.modeller.made(schedule), batches)
        if cost.spill_bytes or cost.stack_bytes:
            raise ScheduleError(f"it keeps {cost.stack_bytes} bytes in memory")
        return cost.seconds

    def keep(self, schedule: Schedule, seconds: dict[int, float]) -> None:
        """Take over times that are known."""
        self._seconds |= {(schedule, n): one for n, one in seconds.items()}
