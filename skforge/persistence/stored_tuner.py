"""Tuners as plain data, except for the objects that users programmed.

A saved model keeps its tuner, so that fitting it again tunes it the same way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from skforge.runtime.records import entry, fields_of, float_in, refusal
from skforge.tuning.records import TuningRecords
from skforge.tuning.search.strategies import Strategy
from skforge.tuning.space.space import ScheduleSpace
from skforge.tuning.tuner import STRATEGIES, Tuner

#: Strategies that can be stored.
_STRATEGIES: dict[str, Any] = {cls.__name__: cls for cls in STRATEGIES.values()}

#: Spaces stored by name, and their factories.
_SPACES = {
    "cpu": ScheduleSpace.cpu,
    "cpu, one thread": lambda: ScheduleSpace.cpu(threads=False),
    "cpu_paper": ScheduleSpace.cpu_paper,
    "gpu": ScheduleSpace.gpu,
    "gpu_full": ScheduleSpace.gpu_full,
}

_PLAIN = (bool, int, str, type(None))


def tuner_out(tuning: Any) -> str | dict[str, Any]:
    """Return ``tuning`` as plain data; what is custom becomes the default."""
    if isinstance(tuning, str):
        return tuning
    if not isinstance(tuning, Tuner):
        return "heuristic"
    budget, records = tuning.budget, tuning.records
    path = records.path if isinstance(records, TuningRecords) else records
    same = (name for name, make in _SPACES.items() if make() == tuning.space)
    return {
        "strategy": _strategy_out(tuning.strategy),
        "space": next(same, None),
        "budget": None if budget is None else float(budget).hex(),
        "records": None if path is None else os.fspath(path),
    }


def tuner_in(record: Mapping[str, Any]) -> Tuner:
    space, budget = (entry(record, name, str, None) for name in ("space", "budget"))
    if space is not None and space not in _SPACES:
        raise refusal("space")
    return Tuner(
        _strategy_in(entry(record, "strategy", str, dict)),
        None if space is None else _SPACES[space](),
        None if budget is None else float_in("budget", budget),
        entry(record, "records", str, None),
    )


def _strategy_out(strategy: str | Strategy) -> str | dict[str, Any]:
    if isinstance(strategy, str):
        return strategy
    name = type(strategy).__name__
    if _STRATEGIES.get(name) is not type(strategy):
        return "heuristic"
    values = fields_of(strategy).items()
    return {"class": name, **{k: v for k, v in values if type(v) in _PLAIN}}


def _strategy_in(record: str | dict[str, Any]) -> str | Strategy:
    if isinstance(record, str):
        return record
    cls = _STRATEGIES.get(entry(record, "class", str))
    params = {name: value for name, value in record.items() if name != "class"}
    if cls is None or not params.keys() <= {f.name for f in fields(cls)}:
        raise refusal("strategy")
    return cls(**params)
