"""What a search asks of each kind of machine: an interface, and who implements it.

As in :mod:`skforge.compiler.backend`, a part is imported when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from skforge._typing import Bools
from skforge.compiler.cost.shape import Setting
from skforge.compiler.target import Target
from skforge.forest.forest import Forest
from skforge.schedule.schedule import Schedule
from skforge.tuning.search.odds import Estimated
from skforge.tuning.search.strategies import Problem, Rounds
from skforge.tuning.space.space import ScheduleSpace

#: Maximum bytes of a forest, including padding.
FOREST_BYTES = 512 << 20


@dataclass(frozen=True)
class SearchedMachine:
    """The part of one kind of machine: its answers, without state."""

    #: Default budget of a search in seconds.
    budget: float
    #: The space of a search that names none, by the number of threads, and whether it
    #: is the heuristic's.
    space: Callable[[int, bool], ScheduleSpace]
    #: The rounds of the heuristic.
    rounds: Callable[[Problem, Any], Rounds]
    #: Which schedules are left out before they are scored, by the reason.
    pruned: Callable[[Setting, Sequence[Schedule]], dict[str, Bools]]
    #: What orders schedules without a trained model.
    estimated: Callable[[Problem], Estimated]
    #: The cost model that skforge ships for a target, if there is one.
    shipped: Callable[[Target], Any] = lambda target: None
    #: Why nothing is chosen unmeasured if no cost model was trained for a target.
    untrained: str = ""
    #: Measured numbers on which the records of a machine depend.
    speed: Callable[[Target], tuple[float, ...]] = lambda target: ()
    #: Why a lowered schedule should not be run; empty if it should.
    refusal: Callable[[Schedule, Any, Target], str] = lambda *lowered: ""
    #: What times a kernel of a forest that is not in this process.
    runner: Callable[[Any, Forest], Any] = lambda *kernel: None


_HOMES = {"cpu": "skforge.tuning.cpu", "gpu": "skforge.gpu.search"}


def machine_of(target: Target) -> SearchedMachine:
    return import_module(_HOMES[target.schedule_kind]).MACHINE
