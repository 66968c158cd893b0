"""Compiles the members of a model that cannot be compiled as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from skforge.config import tuning_seconds
from skforge.exceptions import InvalidInputError, SkforgeError, UnsupportedModelError
from skforge.frontends import no_member
from skforge.frontends.base import is_compiled, is_pipeline, last_step
from skforge.frontends.members import (
    has_members,
    named_members,
    starts_from_model,
)
from skforge.frontends.pipeline import split as splits
from skforge.prediction.given_rows import GivenRows, take_rows
from skforge.prediction.searching import budget_of
from skforge.sources.wrappers.members import (
    Members,
    answers_of,
    from_zero,
    orders_of,
    rows_of_members,
)
from skforge.tuning.tuner import Tuner

#: Rows of X that members are compiled with.
ROWS = 4096


def read_members(
    wrapper: Any, model: Any, given: GivenRows, error: UnsupportedModelError
) -> Members:
    """Compile each member of a fitted model that can be compiled.

    Raise if there is none; ``error`` says why the whole model cannot be compiled.
    """
    last = model
    while is_pipeline(last):
        last = last_step(last)
    if not has_members(last):
        raise error
    X = _rows_for_members(model, given)
    inside, rows_of = named_members(model), rows_of_members(model, X)
    params = {**wrapper.get_params(deep=False), "prefit": True}
    params["tuning"] = _tuning_of_each(wrapper, len(inside))
    params["tuning_budget"] = "deprecated"
    steps = model.steps[:-1] if is_pipeline(model) else []
    parts = [part for name, step in steps for part in _parts(name, step, None, "")]
    compiled: list[Any] = []
    orders: list[Any] = []
    pair = np.array([0, 1])  # more rows might need another kernel
    refused: UnsupportedModelError | None = None
    for (name, member), rows in zip(inside.items(), rows_of, strict=True):
        fast, why = None, "" if rows is not None else "no prediction asks it"
        if rows is not None and not is_compiled(member):
            fast, reason = _compiled_member(wrapper, params, member, rows)
            if fast is None:
                refused = refused or no_member(model, reason)
                why = reason.partition(". ")[0].rpartition("; ")[2].removesuffix(".")
        compiled.append(fast)
        own = {} if fast is None else orders_of(fast, member, take_rows(rows, pair))
        orders.append(own)
        parts += _parts(name, member, fast, why)
    stages = None
    if starts_from_model(model):
        without = {**params, "estimator": from_zero(model), "tuning": "off"}
        stages = type(wrapper)(**without).fit(X)
        stages.join_whole()
        kind = f"{len(model.estimators_)} stages"
        parts.append(splits.StepPart(0, "estimators_", kind, "compiled", ""))
    if stages is None and not any(member is not None for member in compiled):
        if refused is None and any(map(is_compiled, inside.values())):
            refused = no_member(model, "all are compiled already; use it as it is.")
        raise refused or error
    members = Members(tuple(parts), tuple(compiled), tuple(orders), {}, stages)
    row = given.one(0)
    return replace(members, first=answers_of(members.around(model), row))


def _rows_for_members(model: Any, given: GivenRows) -> Any:
    if not given.n:
        raise InvalidInputError(
            f"The members of {type(model).__name__} are compiled with the rows that "
            "they get, and X has 0 rows. Pass some rows; to explain, take a member."
        )
    at = np.linspace(0, given.n - 1, min(max(2, given.n), ROWS)).astype(int)
    return take_rows(given.all, at)  # a single one twice


def _tuning_of_each(wrapper: Any, n_members: int) -> Any:
    """Return the search for one of several members, which share the budget."""
    tuning, budget = wrapper.tuning, budget_of(wrapper) or tuning_seconds(4.0)
    if isinstance(tuning, str) and tuning != "off" and budget:
        tuning = Tuner(tuning)
    if isinstance(tuning, Tuner) and budget:
        tuning = replace(tuning, budget=budget / n_members)
    return tuning


def _compiled_member(
    wrapper: Any, params: Mapping[str, Any], member: Any, rows: Any
) -> tuple[Any, str]:
    """Return a member compiled, or None and why it cannot be."""
    try:
        fast = type(wrapper)(**{**params, "estimator": member}).fit(rows)
        fast.join_whole()  # the whole model is compared, or answers
    except UnsupportedModelError as refused:
        return None, str(refused)
    except (AttributeError, ValueError) as error:  # its own predict may fail
        if isinstance(error, SkforgeError):
            raise
        return None, str(error)
    return fast, ""


def _parts(name: str, member: Any, fast: Any, why: str) -> list[splits.StepPart]:
    ours = type(member).__module__.startswith("sklearn.")
    where = "runs in scikit-learn" if ours else "runs as it is"
    if fast is not None or is_compiled(member):
        where = "compiled"
    split = vars(fast).get("_split") if fast is not None else None
    inside = [] if split is None else split.parts
    return [
        splits.StepPart(0, name, type(member).__name__, where, why),
        *(replace(part, depth=part.depth + 1) for part in inside),
    ]
