"""Estimates the time of a schedule without running it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from skforge.compiler.cost.coefficients import COEFFICIENTS
from skforge.compiler.cost.counts import ForestCounts
from skforge.compiler.cost.profile import MachineProfile
from skforge.compiler.cost.reach import Counts
from skforge.compiler.cost.terms import TERMS, Terms
from skforge.compiler.cost.work import Kind, Work, plan_of
from skforge.compiler.forest.forest import Forest
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target


class CostEstimate:
    """Estimates calls of one forest, which is counted once, on one CPU.

    ``profile`` is the CPU's speed; None uses the one stored for it.
    """

    def __init__(
        self, forest: Forest, target: Target, profile: MachineProfile | None = None
    ) -> None:
        self.counts = ForestCounts.of(forest, target)
        self.target = target
        self.profile = MachineProfile.of(target) if profile is None else profile

    def seconds(
        self, schedule: Schedule, n_rows: ArrayLike, n_threads: int = 1
    ) -> Counts:
        """Return the estimated seconds of calls; infinite for what is not estimated.

        The forest must allow the schedule, which is not checked. Threads share blocks
        of rows and tiles of trees, if loops over them are parallel.
        """
        plan, n = plan_of(schedule), np.asarray(n_rows, np.float64)
        if plan is None:
            return np.full_like(n, np.inf)
        own = COEFFICIENTS[plan.kind]
        total = np.zeros_like(n)
        for name, value in self.terms(schedule, n).items():
            if name in own:
                total += own[name] * value
        if (plan.parallel or plan.tree_tile) and n_threads > 1:
            tasks = plan.tasks(n, self.counts.trees)
            total *= np.ceil(tasks / n_threads) / np.maximum(tasks, 1)
        return total * 1e-9

    def terms(self, schedule: Schedule, n_rows: ArrayLike) -> Terms:
        """Return the terms of the estimate in ns, before their coefficients."""
        plan, n = plan_of(schedule), np.asarray(n_rows, np.float64)
        assert plan is not None
        n = np.maximum(n, 1.0)
        return TERMS[plan.kind](Work(plan, self.counts, self.profile, self.target, n))

    @staticmethod
    def kind(schedule: Schedule) -> Kind | None:
        """Return the kind of schedule that the estimate takes it for."""
        plan = plan_of(schedule)
        return None if plan is None else plan.kind
