"""Compares compiled predictions with the source's, on rows likely to differ."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from skforge._compat import no_warnings
from skforge._typing import Array
from skforge.exceptions import (
    UnsupportedModelError,
    VerificationError,
    VerificationWarning,
)
from skforge.prediction import of_rounds, of_trees
from skforge.prediction.differences import difference
from skforge.prediction.given_rows import GivenRows, kernel_rows
from skforge.prediction.kernel_checks import ADVICE, Sample, compare_now
from skforge.prediction.predictor import METHODS, ForestPredictor
from skforge.sources.base import UnsureError

#: Rows of the sample, and rows drawn around the forest's thresholds.
SAMPLE_ROWS = 256
DRAWN_ROWS = 128


def verify(predictor: ForestPredictor, given: GivenRows, missing_is_fine: bool) -> None:
    """Compare kernels with the source on sample rows, bit by bit in exact mode.

    On the CPU these are the kernels compiled so far, and those of the smallest batches;
    the others are compared when they are compiled.

    Raise ``VerificationError`` with the first row that differs, the value found and
    the value expected.
    """
    source = predictor.source
    drawn = source.drawn(DRAWN_ROWS, 0.05 if missing_is_fine else 0.0)
    names = [f"random row {i} around the model's thresholds" for i in range(len(drawn))]
    names_of_X = [f"row {i} of X" for i in given.spread(SAMPLE_ROWS)] if given.n else []
    X = source.prepared(given.some(SAMPLE_ROWS)) if given.n else None
    reader = predictor if X is None else predictor.of_rows(X)
    own = X is not None and reader is predictor
    sample = kernel_rows(source, X) if own else None
    rows, every = drawn, names
    if sample is not None:
        rows, every = np.concatenate([sample, drawn]), names_of_X + names
    if not len(rows):
        raise UnsupportedModelError("Its members have no row that all of them read.")
    predictor.checked = len(names_of_X), len(drawn)
    expected = source.raw(rows)
    modules = []
    for module, scores in _scored(predictor, expected):
        modules.append(module)
        for part in module.parts:
            compare_now(part, partial(Sample, rows, every, scores))
    with ExitStack() as stack:
        for module in modules:  # no other kernel is needed yet
            stack.enter_context(module.kernels.one())
        if len(drawn) and (source.answers.by_members or X is None):
            raw = expected[len(rows) - len(drawn) :]
            _verify_outputs(predictor, source.as_given(drawn), names, raw)
        predictor.counters.reset()
        if X is not None:
            known = None if sample is None else expected[: len(sample)]
            _verify_outputs(reader, X, names_of_X, known)


def verify_members(predictor: ForestPredictor, given: GivenRows) -> None:
    """Compare answers bit by bit; ``fit`` of each member has compared its kernels."""
    from joblib import parallel_config

    at = given.spread(SAMPLE_ROWS)
    drawn = sum(member._compiled().checked[1] for member in predictor.source.members)
    predictor.checked = len(at), drawn
    if predictor.module.reduction != "exact":
        return
    names = [f"row {i} of X" for i in at]
    # threads of a forest add trees as they finish; other models add those of each job
    with ExitStack() as stack, parallel_config("sequential"):
        for member in predictor.source.members:
            for module in member._compiled().engine.modules:
                stack.enter_context(module.kernels.one())
        _verify_outputs(predictor, given.some(SAMPLE_ROWS), names, None)


def _scored(predictor: ForestPredictor, expected: Array) -> Iterator[tuple[Any, Array]]:
    if not predictor.source.answers.more:
        yield predictor.module, expected
        return
    start = 0
    for module in predictor.engine.modules:
        width = module.forest.n_outputs
        scores = expected[:, start : start + width]
        scores = scores.astype(module.forest.accumulator_dtype)
        yield module, scores[:, 0] if width == 1 else scores
        start += width


def _verify_outputs(
    predictor: ForestPredictor, X: Any, names: list[str], raw: Array | None
) -> None:
    """Compare the methods' answers: with input conversion, transforms and labels.

    ``raw`` are a file's raw scores of the same rows, if they are known. Where sums may
    be off, the answers to the model's scores are compared with the model's, bit by bit,
    and the answers to rows with those to their own sums: no tie and no bound matters.
    """
    source = predictor.source
    if X is None:
        return
    with no_warnings():  # the source has warned before
        warnings.simplefilter("always", VerificationWarning)
        for method, expected in source.outputs(X, raw).items():
            other = {"transformed": partial(of_trees.transformed, predictor)}
            answer = other.get(method, partial(predictor.answer, method))(X)
            exact = predictor.module.reduction == "exact"
            if exact or method in predictor.by_leaves:
                _compare(method, answer, expected, names)
            elif method in METHODS:
                sums = predictor.answer("predict_raw", X)
                _compare(method, answer, _of_scores(predictor, method, sums, X), names)
                # members may read X otherwise than the forests' rows that it is made of
                told = _of_scores(predictor, method, source.raw_of(X), X)
                _compare(method, told, expected, names)
        live = source.model is not None
        for query in getattr(source.leaf_source, "queries", ()) if live else ():
            expected = source.call("predict", X, **query)
            answer = of_rounds.asked(predictor, "predict", X, (), query)
            _compare("predict", answer, expected, names)


def _of_scores(predictor: ForestPredictor, method: str, raw: Array, X: Any) -> Any:
    try:
        return predictor.of_scores(method, raw)
    except UnsureError:
        return predictor.source.call(method, X)


def _compare(method: str, answer: Any, expected: Any, names: list[str]) -> None:
    if found := difference(answer, expected):
        raise VerificationError(
            f"{names[found.rows[0]]}: {method} gives {found.value}"
            f", expected {found.expected}. {ADVICE}"
        )
