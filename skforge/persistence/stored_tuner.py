"""Tuners as plain data, except for the objects that users programmed.

A saved model keeps its tuner, so that fitting it again tunes it the same way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any

from skforge.exceptions import InvalidInputError
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

_PLAIN = (bool, int, str)


def tuner_out(tuning: Any) -> str | dict[str, Any]:
    """Return the value of ``tuning`` as plain data.

    A custom strategy or space, a cost model and a measurer are not stored; they become
    the defaults.
    """
    if isinstance(tuning, str):
        return tuning
    if not isinstance(tuning, Tuner):
        return "heuristic"
    record: dict[str, Any] = {"strategy": _strategy_out(tuning.strategy)}
    record["space"] = None if tuning.space is None else _name_of(tuning.space)
    record["budget"] = None if tuning.budget is None else float(tuning.budget).hex()
    records = tuning.records
    if isinstance(records, TuningRecords):
        records = records.path
    record["records"] = None if records is None else os.fspath(records)
    return record


def tuner_in(record: Mapping[str, Any]) -> Tuner:
    """Return the value of ``tuning`` that :func:`tuner_out` stored."""
    budget, space = record.get("budget"), record.get("space")
    records = record.get("records")
    if space is not None and space not in _SPACES:
        raise InvalidInputError(f"there is no space named {space!r}.")
    if not all(isinstance(v, str | None) for v in (budget, records)):
        raise InvalidInputError("a tuner's budget and records must be text.")
    try:
        seconds = None if budget is None else float.fromhex(budget)
    except (ValueError, OverflowError):
        raise InvalidInputError("a tuner's budget is not a number.") from None
    return Tuner(
        _strategy_in(record.get("strategy")),
        None if space is None else _SPACES[space](),
        seconds,
        records,
    )


def _name_of(space: ScheduleSpace) -> str | None:
    """Return the name of the known space with the same parameters and rules."""
    parts = attrgetter("name", "parameters", "constraints")
    same = (name for name, make in _SPACES.items() if parts(make()) == parts(space))
    return next(same, None)


def _strategy_out(strategy: str | Strategy) -> str | dict[str, Any]:
    if isinstance(strategy, str):
        return strategy
    name = type(strategy).__name__
    if _STRATEGIES.get(name) is not type(strategy):
        return "heuristic"
    values = {f.name: getattr(strategy, f.name) for f in fields(_STRATEGIES[name])}
    plain = {k: v for k, v in values.items() if v is None or type(v) in _PLAIN}
    return {"class": name, **plain}


def _strategy_in(record: Any) -> str | Strategy:
    if isinstance(record, str):
        return record
    cls = _STRATEGIES.get(str(record.get("class"))) if type(record) is dict else None
    if cls is None:
        raise InvalidInputError(f"{record!r} is not a strategy.")
    params = {k: v for k, v in record.items() if k != "class"}
    known = {f.name for f in fields(cls)}
    if not set(params) <= known:
        raise InvalidInputError(
            f"the strategy {cls.__name__} has no {', '.join(set(params) - known)}."
        )
    strategy: Strategy = cls(**params)
    return strategy
