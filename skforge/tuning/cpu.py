"""CPUs: what :mod:`skforge.tuning.machines` asks of them."""

from __future__ import annotations

from dataclasses import astuple

from skforge.compiler.runtime import machine
from skforge.compiler.target import Target
from skforge.tuning.machines import SearchedMachine
from skforge.tuning.search import cpu, heuristic
from skforge.tuning.space.space import ScheduleSpace


class SearchedCpu(SearchedMachine):
    budget = 4.0
    rounds = staticmethod(heuristic.cpu_rounds)
    pruned = staticmethod(cpu.pruned)
    estimated = staticmethod(cpu.estimated)

    def space(self, n_threads: int, heuristic: bool) -> ScheduleSpace:
        return ScheduleSpace.cpu(threads=n_threads > 1)

    def speed(self, target: Target) -> tuple[float, ...]:
        return astuple(machine.machine_profile(target))


MACHINE = SearchedCpu()
