"""Search for the fastest schedule of a forest on a machine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skforge.search import ScheduleSearch
    from skforge.tuning.cost.cost_model import CostModel
    from skforge.tuning.records import TuningRecords
    from skforge.tuning.result import TuningResult
    from skforge.tuning.search.heuristic import Heuristic
    from skforge.tuning.search.learned import Learned
    from skforge.tuning.search.strategies import (
        Exhaustive,
        Problem,
        Random,
        Round,
        Strategy,
        SuccessiveHalving,
    )
    from skforge.tuning.search.trial import Candidate, Trial
    from skforge.tuning.space.space import ScheduleSpace
    from skforge.tuning.tuner import Tuner, tune

# Loaded on first use, like the names of `skforge`.
_HOME = {
    "Candidate": "skforge.tuning.search.trial",
    "CostModel": "skforge.tuning.cost.cost_model",
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

__all__ = [
    "Candidate",
    "CostModel",
    "Exhaustive",
    "Heuristic",
    "Learned",
    "Problem",
    "Random",
    "Round",
    "ScheduleSearch",
    "ScheduleSpace",
    "Strategy",
    "SuccessiveHalving",
    "Trial",
    "Tuner",
    "TuningRecords",
    "TuningResult",
    "tune",
]


# Hidden from type checkers, which would otherwise accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _HOME:
            return getattr(import_module(_HOME[name]), name)
        raise AttributeError(f"module 'skforge.tuning' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
