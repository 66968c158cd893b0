"""Which boosting rounds the arguments of a call choose, and the rule of its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from skforge.engine.by_round import ARGUMENTS, asked
from skforge.exceptions import InvalidInputError
from skforge.outputs.answers import answer
from skforge.prediction.of_kernels import OfKernels
from skforge.sources.base import Source


def rounds_asked(
    predictor: OfKernels, params: Mapping[str, Any]
) -> tuple[int, int] | None:
    """Return the rounds [begin, end) of arguments, None if the model must answer.

    It does if the arguments are others, or choose rounds that the forest lacks, because
    training stopped early.
    """
    source, library = predictor.source, predictor.forest.source
    if not source.staged or not params.keys() <= {*ARGUMENTS.get(library, ())}:
        return None
    if (rounds := predictor.module.parts[0].rounds) is None:
        return None
    last = params.get("iteration_range")
    to_end = last is None or np.array_equal(np.ravel(last)[1:], [0])
    if source.kind == "xgboost" and to_end:
        return 0, rounds.n  # to the best round, whichever is the first
    if library == "lightgbm" and _has_more(source, rounds.n):
        start = max(0, params.get("start_iteration") or 0)
        count = params.get("num_iteration")
        if count is None and not start:
            return 0, rounds.n
        if not 0 < (count or 0) <= rounds.n - start:
            return None
    try:
        return asked(rounds, params)
    except InvalidInputError as error:
        if not source.answers.labels:
            raise
        source.origin.leave(error)
        return None


def _has_more(source: Source, n: int) -> bool:
    """Tell whether a model of LightGBM has rounds behind the ``n`` of its forest."""
    model = source.held
    if (count := getattr(model, "n_estimators_", None)) is not None:
        return bool(count > n)
    if hasattr(model, "current_iteration"):
        return bool(model.current_iteration() > n)
    # kept of Boosters whose rounds behind the best one are left out
    return (getattr(model, "best_iteration", 0) or 0) > 0


def rule(predictor: OfKernels, params: Mapping[str, Any]) -> Callable[[str, Any], Any]:
    """Return what makes answers of the raw scores for arguments."""
    spec = predictor.forest.answers
    at = rounds_asked(predictor, params) if params else None
    if at is not None:
        spec = predictor.module.parts[0].rounds.spec(*at)
    return partial(answer, spec, predictor.classes)
