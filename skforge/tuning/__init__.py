"""Search for the fastest schedule of a forest on a machine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skforge.gpu.cost_model import CostModel as CostModel
    from skforge.search import ScheduleSearch as ScheduleSearch
    from skforge.tuning.records import TuningRecords as TuningRecords
    from skforge.tuning.result import TuningResult as TuningResult
    from skforge.tuning.search.heuristic import Heuristic as Heuristic
    from skforge.tuning.search.learned import Learned as Learned
    from skforge.tuning.search.strategies import Exhaustive as Exhaustive
    from skforge.tuning.search.strategies import Problem as Problem
    from skforge.tuning.search.strategies import Random as Random
    from skforge.tuning.search.strategies import Round as Round
    from skforge.tuning.search.strategies import Strategy as Strategy
    from skforge.tuning.search.strategies import SuccessiveHalving as SuccessiveHalving
    from skforge.tuning.search.trial import Candidate as Candidate
    from skforge.tuning.search.trial import Trial as Trial
    from skforge.tuning.space.space import ScheduleSpace as ScheduleSpace
    from skforge.tuning.tuner import Tuner as Tuner
    from skforge.tuning.tuner import tune as tune

# Loaded on first use, like the names of `skforge`.
_HOME = {
    "Candidate": "skforge.tuning.search.trial",
    "CostModel": "skforge.gpu.cost_model",
    "Exhaustive": "skforge.tuning.search.strategies",
    "Heuristic": "skforge.tuning.search.heuristic",
    "Learned": "skforge.tuning.search.learned",
    "Problem": "skforge.tuning.search.strategies",
    "Random": "skforge.tuning.search.strategies",
    "Round": "skforge.tuning.search.strategies",
    "ScheduleSearch": "skforge.search",
    "ScheduleSpace": "skforge.tuning.space.space",
    "Strategy": "skforge.tuning.search.strategies",
    "SuccessiveHalving": "skforge.tuning.search.strategies",
    "Trial": "skforge.tuning.search.trial",
    "Tuner": "skforge.tuning.tuner",
    "TuningRecords": "skforge.tuning.records",
    "TuningResult": "skforge.tuning.result",
    "tune": "skforge.tuning.tuner",
}


# Hidden from type checkers, which would otherwise accept any name; they read the names
# from the imports above.
if not TYPE_CHECKING:
    __all__ = [*_HOME]

    def __getattr__(name: str) -> object:
        if name in _HOME:
            return getattr(import_module(_HOME[name]), name)
        raise AttributeError(f"module 'skforge.tuning' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
