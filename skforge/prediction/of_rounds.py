"""Answers with arguments: for some boosting rounds, and those after each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from skforge.frontends.checks import refuse_arguments
from skforge.outputs.answers import answer
from skforge.prediction import counters, of_trees
from skforge.prediction.forms_met import Question
from skforge.prediction.predictor import METHODS, ForestPredictor
from skforge.prediction.rounds import rounds_asked, rule


def asked(
    predictor: ForestPredictor,
    method: str,
    X: Any,
    args: tuple[Any, ...],
    params: Mapping[str, Any],
) -> Any:
    """Answer a call with further arguments; those by position have names first."""
    jobs = predictor.entry_jobs
    named = predictor.source.origin.named
    if args and not (params := named(method, X, args, params)):
        # all of them are defaults
        if method == "apply":
            return of_trees.apply(predictor, X, jobs)
        if method == "predict_log_proba":
            return predictor.predict_log_proba(X, jobs)
        return predictor.answer(method, X, jobs)
    if method in predictor.by_leaves:
        return predictor.answer_by_leaves(method, X, jobs, params)
    predictor.fingerprint.check()
    if (same := predictor.source.same_method(method, params)) is not None:
        return predictor.answer(same, X, jobs)
    if (at := rounds_asked(predictor, params)) is not None:
        ours = partial(_of_rounds, predictor, method, params, at)
        return predictor.at_door(method, X, ours, params)
    if predictor.forest.source in ("xgboost", "lightgbm"):
        source = predictor.source
        source.origin.refuse_rounds(source, method, params.keys())
    return predictor.by_model(method, predictor.framed(X), params)


def _of_rounds(
    predictor: ForestPredictor,
    method: str,
    params: Mapping[str, Any],
    at: tuple[int, int],
    X: Any,
) -> Any:
    if method not in METHODS:
        return predictor.by_model(method, predictor.framed(X), params)
    if at == (0, predictor.module.parts[0].rounds.n):
        return predictor.answer(method, X, predictor.entry_jobs)
    by, rows, _ = predictor.read(X, method)
    if rows is None:
        return _by_library(predictor, method, predictor.framed(X), params)
    jobs, (begin, end) = predictor.entry_jobs, at
    raw = by.engine.run("raw_of_rounds", rows, jobs, begin=begin, end=end)
    predictor.counters.add(predictor.route, len(raw))
    return rule(predictor, params)(method, raw)


# ----------------------------------------------------------------------- stages


def staged(
    predictor: ForestPredictor,
    method: str,
    X: Any,
    n_jobs: int | None,
    params: dict[str, Any],
) -> Iterator[Any]:
    """Yield a method's answers after each boosting round."""
    predictor.fingerprint.check()
    if _stages_meet(predictor, method, X, params):
        yield from _staged_by_kernels(predictor, method, X, n_jobs, params)
    else:
        yield from staged_by_library(predictor, method, predictor.framed(X), params)


def _staged_by_kernels(
    predictor: ForestPredictor,
    method: str,
    X: Any,
    n_jobs: int | None,
    params: Mapping[str, Any],
) -> Iterator[Any]:
    source, chosen = predictor.source, _stages_asked(predictor, method, params)
    rows = None
    if chosen is not None:
        base, begin, end, step = chosen
        by, rows, _ = predictor.read(X, base)
    if rows is None:
        yield from staged_by_library(predictor, method, predictor.framed(X), params)
        return
    predictor.counters.add(predictor.route, rows.shape[0])
    for spec, raw in by.engine.stages(rows, begin, end, step, n_jobs):
        rules = source.spec_of_stage(spec)
        yield source.stage(base, answer(rules, predictor.classes, base, raw))


def _stages_asked(
    predictor: ForestPredictor, method: str, params: Mapping[str, Any]
) -> tuple[str, int, int, int] | None:
    """Return the method, rounds and step of a call, None for the model itself."""
    rounds = predictor.module.parts[0].rounds
    if rounds is None or predictor.forest.source != "catboost":
        return None if params or rounds is None else (method, 0, rounds.n, 1)
    if np.isinf(predictor.forest.base).any():
        return None  # of classes without rows, which CatBoost may refuse
    rest, base = dict(params), method
    step, kind = rest.pop("eval_period", 1), rest.pop("prediction_type", None)
    task = predictor.forest.task
    if kind is None and method == "predict" and task == "regression":
        kind = "RawFormulaVal"  # whatever ``predict`` returns
    if kind is not None:
        base = predictor.source.same_method(method, {"prediction_type": kind}) or ""
    if not base or type(step) is not int or step < 1:
        return None
    rest["ntree_end"] = rest.get("ntree_end") or rounds.n
    at = rounds_asked(predictor, rest)
    return None if at is None else (base, *at, step)


def _some_stages(predictor: ForestPredictor) -> tuple[int, ...]:
    """Return stages to compare, if the library predicts anew for each."""
    rounds = predictor.module.parts[0].rounds
    if not rounds or not predictor.source.origin.argument_of_stages(predictor.source):
        return ()
    return tuple(sorted({1, (rounds.n + 1) // 2, rounds.n}))


def staged_by_library(
    predictor: ForestPredictor,
    method: str,
    X: Any,
    params: Mapping[str, Any],
    some: Any = (),
) -> Iterator[Any]:
    """Yield the library's stages, or some of them if it predicts anew for each."""
    name = f"staged_{method}"
    if not (last := predictor.source.origin.argument_of_stages(predictor.source)):
        for values in predictor.source.call(name, X, **params):
            predictor.counters.add(counters.LIBRARY, counters.rows_of(values))
            yield values
        return
    refuse_arguments(name, params)  # the libraries have no such method
    rounds = predictor.module.parts[0].rounds  # None: there are none
    for end in some or range(1, 1 + (rounds.n if rounds else 0)):
        chosen = (0, end) if last == "iteration_range" else end
        yield _by_library(predictor, method, X, {last: chosen})


def _by_library(
    predictor: ForestPredictor, method: str, X: Any, params: Mapping[str, Any]
) -> Any:
    """Return the library's answer for some rounds; a Booster returns no labels."""
    labels = predictor.source.answers.labels
    answer = predictor.source.call(method if labels else "predict_raw", X, **params)
    predictor.counters.add(counters.LIBRARY, counters.rows_of(answer))
    return answer if labels else rule(predictor, params)(method, np.asarray(answer))


def _stages_meet(
    predictor: ForestPredictor, method: str, X: Any, params: Mapping[str, Any]
) -> bool:
    """Compare stages before they are first yielded; tell whether they agreed."""
    if predictor.door is None:
        return True
    name = predictor.asked_with(f"staged_{method}", params)
    some = _some_stages(predictor)

    def ours(rows: Any) -> list[Any]:
        stages = [*_staged_by_kernels(predictor, method, rows, None, params)]
        return [stages[i - 1] for i in some] if some else stages

    def theirs(rows: Any) -> list[Any]:
        given = predictor.framed(rows)
        return [*staged_by_library(predictor, method, given, params, some)]

    own = partial(predictor.counters.uncounted, theirs)
    with suppress(Exception):  # the call itself has the same error
        return predictor.door.meet(
            Question(predictor, name, ours, own), predictor.door.few(X)
        )
    return True
