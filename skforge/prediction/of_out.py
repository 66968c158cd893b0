"""Answers written to ``out``, an array of the caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from skforge.engine.arrays import into
from skforge.exceptions import VerificationWarning, warn
from skforge.prediction.differences import difference
from skforge.prediction.of_rounds import asked
from skforge.prediction.predictor import ForestPredictor


def answer_into(
    out: Any,
    predictor: ForestPredictor,
    method: str,
    X: Any,
    n_jobs: int | None,
    args: tuple[Any, ...] = (),
    params: Mapping[str, Any] | None = None,
) -> Any:
    """Write an answer to ``out``; compare the first one that lies over its rows.

    Those rows are gone afterwards, so they are answered before, apart.
    """
    if args or params:
        return into(out, asked(predictor, method, X, args, params or {}))
    door = predictor.door
    if door is not None and door.agreed(method, X) is None:
        predictor.answer(method, door.few(X), n_jobs)
    arrays = isinstance(X, np.ndarray) and isinstance(out, np.ndarray)
    over = arrays and door is not None and np.may_share_memory(X, out)
    agreed = predictor.agreed_over.get(method) if over else True
    if agreed:
        return written(predictor, out, method, X, n_jobs)
    wanted = predictor.answer(method, X, n_jobs)
    if agreed is None:
        answer = written(predictor, out, method, X, n_jobs)
        found = difference([answer], [wanted])
        predictor.agreed_over[method] = found is None
        if found is None:
            return answer
        warn(
            f"{method} with an out that lies over the rows gives {found.value} for "
            f"row {found.rows[0]}, and without out {found.expected}. Such answers "
            "are copied to out from now on. Please report this, with the model.",
            VerificationWarning,
        )
    return into(out, wanted)


def written(
    predictor: ForestPredictor, out: Any, method: str, X: Any, n_jobs: int | None
) -> Any:
    arrays = isinstance(X, np.ndarray) and isinstance(out, np.ndarray)
    apart = arrays and not np.may_share_memory(X, out)
    answers = predictor.by_blocks(method, X, n_jobs, out) if apart else None
    whole = answers is None
    return into(out, predictor.answer(method, X, n_jobs)) if whole else answers
