"""What a search asks of each kind of machine: an interface, and who implements it.

As in :mod:`skforge.compiler.backend`, a part is imported when it is first needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, ClassVar

from skforge._typing import Bools
from skforge.compiler.cost.shape import Setting
from skforge.compiler.forest.forest import Forest
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.tuning.search.odds import Estimated
from skforge.tuning.search.strategies import Problem, Rounds
from skforge.tuning.space.space import ScheduleSpace

#: Maximum bytes of a forest, including padding.
FOREST_BYTES = 512 << 20


class SearchedMachine(ABC):
    """The part of one kind of machine; it holds no state."""

    #: Default budget of a search in seconds.
    budget: ClassVar[float]
    #: Why nothing is chosen unmeasured if no cost model was trained for a target.
    untrained: ClassVar[str] = ""

    @abstractmethod
    def space(self, n_threads: int, heuristic: bool) -> ScheduleSpace:
        """Return the space of a search, or of the heuristic, that names none."""

    @abstractmethod
    def rounds(self, problem: Problem, strategy: Any) -> Rounds:
        """Yield the rounds of the heuristic."""

    @abstractmethod
    def pruned(
        self, setting: Setting, schedules: Sequence[Schedule]
    ) -> dict[str, Bools]:
        """Return which schedules are left out before they are scored, by the reason."""

    @abstractmethod
    def estimated(self, problem: Problem) -> Estimated:
        """Return what orders schedules without a trained model."""

    def shipped(self, target: Target) -> Any:
        """Return the cost model that skforge ships for a target, if there is one."""
        return None

    def speed(self, target: Target) -> tuple[float, ...]:
        """Return measured numbers on which the records of a machine depend."""
        return ()

    def refusal(self, schedule: Schedule, lowered: Any, target: Target) -> str:
        """Return why a kernel should not be run; empty if it should."""
        return ""

    def runner(self, kernel: Any, forest: Forest) -> Any:
        """Return what times a kernel that is not in this process."""
        raise NotImplementedError


_HOMES = {"cpu": "skforge.tuning.cpu", "gpu": "skforge.gpu.search"}


@cache
def _machine(kind: str) -> SearchedMachine:
    return import_module(_HOMES[kind]).MACHINE


def machine_of(target: Target) -> SearchedMachine:
    return _machine(target.schedule_kind)
