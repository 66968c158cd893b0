"""Models of which only the members are compiled: the rest runs in scikit-learn.

A copy of the model has stand-ins in the place of its members, so that the model's own
code computes everything else, with its own errors and warnings.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
from joblib import effective_n_jobs, parallel_config

from skforge._compat import no_warnings
from skforge._typing import Array
from skforge.engine.rows import forest_rows
from skforge.exceptions import UnsupportedModelError
from skforge.forest.forest import Forest
from skforge.frontends.base import is_pipeline
from skforge.frontends.members import fitted_members, with_members
from skforge.frontends.pipeline.split import StepPart, table_text
from skforge.frontends.pipeline.transformers import first_reader
from skforge.runtime.mappings import MappingColumns
from skforge.sources.base import METHODS as _METHODS
from skforge.sources.base import Answers, Source
from skforge.sources.pipeline import frame_columns
from skforge.sources.row_facts import RowFacts

#: Methods of members that are compiled.
METHODS = (*_METHODS, "predict_log_proba")


@dataclass(frozen=True, slots=True)
class Members:
    """The compiled members of a model, in the place of a pipeline's ``Split``."""

    #: All members, each followed by the steps or members inside it.
    parts: tuple[StepPart, ...]
    #: For each member its compiled forest; None if it runs as it is.
    compiled: tuple[Any, ...]
    #: For each member whether answers lie in memory column by column, by method.
    orders: tuple[Mapping[str, bool], ...]
    #: The model's answers to the first row of ``X``, by method.
    first: Mapping[str, Any]
    #: Gradient boosting without its ``init``, compiled: that is the only member.
    stages: Any = None

    @property
    def start(self) -> Members:
        """Itself: the forests do not take the model's own rows."""
        return self

    @property
    def forests(self) -> tuple[Any, ...]:
        every = *self.compiled, self.stages
        return tuple(fast for fast in every if fast is not None)

    def answer(self, method: str, raw: Any) -> Any:
        """Return the answer to a row seen in ``fit``: scores do not tell it."""
        return self.first[method]

    def __str__(self) -> str:
        return table_text(("member", "model", "where", "why"), self.parts)

    @property
    def summary(self) -> str:
        n = self.compiled.count(None)
        return f"members: {len(self.forests)} compiled, {n} in their library"

    def around(self, model: Any) -> Any:
        members = []
        for member, fast, orders in zip(
            fitted_members(model), self.compiled, self.orders, strict=True
        ):
            calls = {
                name: partial(_answered, by_column, getattr(fast, name))
                for name, by_column in orders.items()
            }
            members.append(member if fast is None else stand_in(member, calls))
        copied = with_members(model, members)
        return copied if self.stages is None else _with_stages(copied, self.stages)


def from_zero(model: Any) -> Any:
    """Return gradient boosting without the model that it starts from."""
    copied = copy.copy(model)
    copied.init = copied.init_ = "zero"
    return copied


def _with_stages(boosted: Any, fast: Any) -> Any:
    """Have kernels find the leaves that a copy of gradient boosting adds up.

    Sums are written where the first scores are, because the order of these in memory
    decides how probabilities are rounded.
    """
    own, one_by_one = boosted._raw_predict, boosted._staged_raw_predict
    at = 0, len(boosted.estimators_)

    def whole(X: Any) -> Any:
        if hasattr(X, "tocsr"):
            return own(X)
        scores, module = boosted._raw_predict_init(X), fast._compiled().module
        how = {"begin": at[0], "end": at[1], "start": scores}
        sums = module.run("raw_of_rounds", X, fast.n_jobs, **how)
        scores[...] = sums.reshape(scores.shape)
        return scores

    def staged(X: Any, check_input: bool = True) -> Any:
        if hasattr(X, "tocsr"):
            yield from one_by_one(X, check_input)
            return
        if check_input:
            from sklearn.utils.validation import validate_data

            X = validate_data(boosted, X, dtype=np.float32, order="C", reset=False)
        scores, module = boosted._raw_predict_init(X), fast._compiled().module
        blocks, n = lambda: [forest_rows(module.forest, X)], len(X)
        for _, sums in module.stages(blocks, n, *at, n_jobs=fast.n_jobs, start=scores):
            stage = np.empty_like(scores)
            stage[...] = sums.reshape(scores.shape)
            yield stage

    vars(boosted).update(_raw_predict=whole, _staged_raw_predict=staged)
    return boosted


def stand_in(member: Any, calls: Mapping[str, Callable[..., Any]]) -> Any:
    copied = copy.copy(member)
    for name, call in calls.items():
        call.__name__ = name  # scikit-learn asks which method it has found
        vars(copied)[name] = call
    return copied


def rows_of_members(model: Any, X: Any) -> list[Any]:
    members = fitted_members(model)
    rows: list[Any] = [None] * len(members)

    def noted(i: int, call: Callable[..., Any], X: Any, **params: Any) -> Any:
        rows[i] = X
        return call(X, **params)

    watched = []
    for i, member in enumerate(members):
        calls = {
            name: partial(noted, i, getattr(member, name))
            for name in METHODS
            if hasattr(member, name)
        }
        watched.append(stand_in(member, calls))
    answers_of(with_members(model, watched), X)
    return rows


def answers_of(model: Any, X: Any) -> dict[str, Any]:
    answers = {}
    with _in_threads(model), no_warnings():  # as later calls do
        for name in METHODS:
            try:
                answers[name] = getattr(model, name)(X)
            except Exception:
                if name == "predict":  # rows that it refuses have its own error
                    raise
    return answers


def orders_of(fast: Any, member: Any, rows: Any) -> dict[str, bool]:
    """Tell which answers lie by column: another order may round otherwise."""
    orders = {}
    theirs, ours = answers_of(member, rows), answers_of(fast, rows)
    for name in theirs.keys() & ours.keys():
        for by_column in (False, True):
            if _strides(_laid(by_column, ours[name])) == _strides(theirs[name]):
                orders[name] = by_column
                break  # without an order, the member itself answers
    return orders


def _strides(answer: Any) -> list[Any]:
    arrays = answer if isinstance(answer, list) else [answer]
    return [array.strides for array in arrays]


def _answered(by_column: bool, call: Any, X: Any, **params: Any) -> Any:
    return _laid(by_column, call(X, **params))


def _laid(by_column: bool, answer: Any) -> Any:
    return np.array(answer, order="F") if by_column else answer


def _in_threads(model: Any) -> Any:
    """Return a context in which a model's jobs are threads, which share stand-ins."""
    n_jobs = getattr(model, "n_jobs", None)
    if n_jobs in (None, 1):
        return nullcontext()
    n_before = effective_n_jobs(n_jobs)
    threads = parallel_config("threading")
    if effective_n_jobs(n_jobs) == n_before:
        return threads
    threads.unregister()  # some models add the parts of each job
    return nullcontext()


class MembersSource(Source):
    facts = RowFacts(declines=None, direct=False, on_device=False)

    def __init__(self, model: Any, forest: Forest, members: Members) -> None:
        super().__init__(model, forest)
        self._fast, self.members = members.compiled, members.forests
        forests: list[Forest] = []
        for member in self.members:
            forests += [member.forest_, *member._compiled().source.answers.more]
        self.answers = Answers(
            log_proba="model", more=tuple(forests[1:]), root=members, by_members=True
        )
        self._around = members.around(model)

    def kept_rules(self) -> NoReturn:
        raise UnsupportedModelError(
            f"Only the members of {type(self.model).__name__} are compiled; the rest "
            "runs in scikit-learn, and a .skforge file cannot store it; use "
            "joblib.dump."
        )

    def columns(self) -> MappingColumns | None:
        if hasattr(self.model, "feature_names_in_"):
            return frame_columns(self.model, [self.model])
        first, fast = fitted_members(self.model)[0], self._fast[0]
        inner = self.model if is_pipeline(self.model) else first
        reader = first_reader([("", inner)])
        if fast is None or inner is not first is not reader:
            return frame_columns(reader, [self.model])
        columns: MappingColumns | None = fast._compiled().source.columns()
        return columns and replace(columns, by_frame=True)

    def _call(self, method: str, X: Any, **params: Any) -> Any:
        if method == "predict_raw":
            raise UnsupportedModelError(
                f"{type(self.model).__name__} has no raw scores: it computes its "
                "predictions from those of its members; ask one of these."
            )
        with _in_threads(self.model):
            return getattr(self._around, method)(X, **params)

    def outputs(self, X: Any, raw: Array | None = None) -> dict[str, Any]:
        return answers_of(self.model, X)


def traces_of_members(model: Any) -> list[Any]:
    """Return the objects that a copy of a model shares with it."""
    steps = [step for _, step in model.steps] if is_pipeline(model) else []
    # stacks make some lists anew in each call
    values = [value for value in vars(model).values() if not isinstance(value, list)]
    return [*values, *steps, *fitted_members(model)]
