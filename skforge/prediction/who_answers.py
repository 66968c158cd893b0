"""Tells who answers rows: compiled code, steps in their library, or the model itself.

Where the model itself answers, a warning says why, and which conversion helps.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from skforge._compat import no_warnings
from skforge.exceptions import InvalidInputError
from skforge.frontends.pipeline import split as splits
from skforge.prediction.given_rows import GivenRows
from skforge.prediction.predictor import ForestPredictor
from skforge.prediction.verification import SAMPLE_ROWS
from skforge.sources.stored_model.declined import conversion
from skforge.sources.wrappers.members import Members

#: Rows that are tried one by one where the model itself answers.
_TRIED = 16


def who_answers(state: Mapping[str, Any]) -> str:
    """Return who answers rows like those of ``fit``; "" for a loaded object."""
    said, split = state.get("_fallback", ""), state.get("_split")
    if said or "_fallback" not in state:
        return str(said)
    if isinstance(split, Members):
        return "Rows are answered by the model's own code, with compiled members."
    first = (split and split.start) or 0
    after = f" after {first} step{'s'[: first > 1]} in their library" if first else ""
    return f"Rows like those given to fit are answered by compiled code{after}."


def why_steps(split: Any) -> str:
    parts = split.parts if isinstance(split, splits.PipelineSplit) else ()
    if not (why := [part for part in parts if part.blamed]):
        return ""
    first, *others = why
    more = f"; so do {len(others)} more, see inspect('pipeline')" if others else ""
    return (
        f"The step {first.name!r} {first.where} in each call, before the compiled "
        f"code: {first.why}{more}."
    )


def why_fallback(predictor: ForestPredictor, given: GivenRows) -> str:
    """Return why the model itself answers rows like those given, and the mend.

    Return "" if compiled code answers. ``predictor`` has counted the calls with which
    ``fit`` compared its answers.
    """
    counts = predictor.counters.read()
    compiled = sum(counts[route]["calls"] for route in ("entry", "kernel", "steps"))
    if compiled or not given.n:
        return ""
    X, forms = given.some(SAMPLE_ROWS), dict(predictor.of_forms)

    def answer(rows: Any) -> tuple[Any, int]:
        """Return predictions and the calls of the model; None after an error."""
        predictor.counters.reset()
        with no_warnings(), suppress(Exception):  # of any library
            answers = predictor.answer("predict", rows)
            return answers, predictor.counters.read()["library"]["calls"]
        return None, 0

    def helps(rows: Any) -> bool:
        answers, calls = answer(rows)
        return answers is not None and not calls and np.array_equal(answers, expected)

    expected, calls = answer(X)
    if not calls:
        return ""
    if said := conversion(X, helps):
        mend = f": {said}"
    else:
        mend = "; no conversion that was tried helps."
        single = [answer(given.one(i)) for i in range(min(_TRIED, given.n))]
        alone = sum(answers is not None and not calls for answers, calls in single)
        if alone:
            of_all = f"{alone} of {len(single)} rows"
            mend += f" By themselves, {of_all} are answered by kernels."
    predictor.of_forms = forms  # without those of the trials
    model = type(predictor.source.model).__name__
    start = f"Rows like those given to fit are answered by the {model} itself"
    return f"{start}, at its speed{mend}"


def table_of(wrapper: Any) -> str:
    split = wrapper.__dict__.get("_split")
    if split is None:
        raise InvalidInputError(
            "The level 'pipeline' shows where the steps of a Pipeline run, and this "
            "model has no such steps; use another level, such as 'loops'."
        )
    return f"{split}\n\n{who_answers(wrapper.__dict__)}".rstrip()
