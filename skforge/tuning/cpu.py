"""CPUs: what :mod:`skforge.tuning.machines` asks of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from skforge.compiler.cost.shape import Setting
from skforge.compiler.runtime import machine
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.tuning.machines import Mask, SearchedMachine
from skforge.tuning.search import cpu, heuristic
from skforge.tuning.search.odds import Estimated
from skforge.tuning.search.strategies import Problem, Rounds
from skforge.tuning.space.space import ScheduleSpace


class Cpu(SearchedMachine):
    budget = 4.0

    def space(self, n_threads: int, heuristic: bool) -> ScheduleSpace:
        return ScheduleSpace.cpu(threads=n_threads > 1)

    def rounds(self, problem: Problem, strategy: Any) -> Rounds:
        return heuristic.cpu_rounds(problem, strategy)

    def pruned(
        self, setting: Setting, schedules: Sequence[Schedule]
    ) -> dict[str, Mask]:
        return cpu.pruned(setting, schedules)

    def estimated(self, problem: Problem) -> Estimated:
        return cpu.estimated(problem)

    def speed(self, target: Target) -> tuple[float, ...]:
        return astuple(machine.machine_profile(target))


MACHINE = Cpu()
