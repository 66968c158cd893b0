"""Compiles the members of a model whose own code computes the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils.validation import _num_samples

from skforge.compiler.frontends import no_member
from skforge.compiler.frontends.base import is_compiled, is_pipeline, last_step
from skforge.compiler.frontends.members import has_members, named_members
from skforge.compiler.frontends.pipeline.split import Part
from skforge.config import tuning_seconds
from skforge.exceptions import InvalidInputError, SkforgeError, UnsupportedModelError
from skforge.prediction.verification import take_rows
from skforge.sources.members import Members, answers_of, orders_of, rows_of_members

#: Rows of X that members are compiled with.
ROWS = 4096


def read_members(
    wrapper: Any, model: Any, X: Any, error: UnsupportedModelError
) -> Members:
    """Compile each member of a fitted model that can be compiled.

    Raise if there is none; ``error`` says why the whole model cannot be compiled.
    """
    last = model
    while is_pipeline(last):
        last = last_step(last)
    if not has_members(last):
        raise error
    n_rows = _num_samples(X)
    if not n_rows:
        raise InvalidInputError(
            f"The members of {type(model).__name__} are compiled with the rows that "
            "they get, and X has 0 rows. Pass some rows; to explain, take a member."
        )
    at = np.linspace(0, n_rows - 1, min(max(2, n_rows), ROWS)).astype(int)
    X = take_rows(X, at)
    inside, given = named_members(model), rows_of_members(model, X)
    budget = wrapper.tuning_budget or tuning_seconds(4.0)
    params = {
        **wrapper.get_params(deep=False),
        "prefit": True,
        "tuning_budget": budget / len(inside) if budget else None,
    }
    steps = model.steps[:-1] if is_pipeline(model) else []
    parts = [part for name, step in steps for part in _parts(name, step, None, "")]
    compiled: list[Any] = []
    refused: UnsupportedModelError | None = None
    for (name, member), rows in zip(inside.items(), given, strict=True):
        fast, why = None, "" if rows is not None else "no prediction asks it"
        try:
            if rows is not None and not is_compiled(member):
                fast = type(wrapper)(**{**params, "estimator": member}).fit(rows)
        except (UnsupportedModelError, AttributeError, ValueError) as raised:
            ours = isinstance(raised, SkforgeError)
            if ours and not isinstance(raised, UnsupportedModelError):
                raise
            reason = UnsupportedModelError(str(raised))  # its own predict may fail
            refused = refused or no_member(model, reason)
            why = str(reason).partition(". ")[0].rpartition("; ")[2].removesuffix(".")
        compiled.append(fast)
        parts += _parts(name, member, fast, why)
    if not any(one is not None for one in compiled):
        raise refused or no_member(model, "all are compiled already; use it as it is.")
    pair = np.array([0, 1])  # more rows might need another kernel
    orders = [
        {} if fast is None else orders_of(fast, member, take_rows(rows, pair))
        for fast, member, rows in zip(compiled, inside.values(), given, strict=True)
    ]
    members = Members(tuple(parts), tuple(compiled), tuple(orders), {})
    row = take_rows(X, np.array([0]))
    return replace(members, first=answers_of(members.around(model), row))


def _parts(name: str, member: Any, fast: Any, why: str) -> list[Part]:
    """Return a member, and the steps or members inside it."""
    ours = type(member).__module__.startswith("sklearn.")
    where = "runs in scikit-learn" if ours else "runs as it is"
    if fast is not None or is_compiled(member):
        where = "compiled"
    split = vars(fast).get("_split") if fast is not None else None
    inside = [] if split is None else split.parts
    return [
        Part(0, name, type(member).__name__, where, why),
        *(replace(part, depth=part.depth + 1) for part in inside),
    ]
