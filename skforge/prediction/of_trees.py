"""Answers of single trees: leaves, values and contributions."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.exceptions import (
    InvalidInputError,
    UnsupportedModelError,
    VerificationError,
)
from skforge.forest.rounds import ends_in_bias
from skforge.outputs.answers import of_scores
from skforge.prediction.at_door import at_door
from skforge.prediction.of_rows import OfRows
from skforge.prediction.predictor import ForestPredictor
from skforge.sources.fitted import returns_frames


def transformed(predictor: ForestPredictor, X: Any) -> Any:
    raw = predictor.by_kernels("predict_raw", X, None)
    return of_scores(predictor.forest.answers, "transformed", np.asarray(raw))


@at_door
def apply(predictor: ForestPredictor, X: Any, n_jobs: int | None = None) -> Any:
    if predictor.are_on_device(X):
        leaves = predictor.module.run("leaves", X)
    else:
        by, rows, given = predictor.read(X, "apply")
        if rows is None:
            return predictor.ask("apply", given)
        leaves = by.engine.run("leaves", rows, n_jobs)
    if ends_in_bias(predictor.forest):
        leaves = leaves[:, :-1]
    predictor.counters.add(predictor.route, len(leaves))
    return predictor.source.answers.leaves(leaves)


@at_door
def transform(predictor: ForestPredictor, X: Any, n_jobs: int | None = None) -> Any:
    """Return a matrix, or votes; who is to return frames does so itself."""
    answers = predictor.source.answers
    if not answers.transforms or returns_frames(predictor.source.held):
        return predictor.ask("transform", X)
    if not answers.matrix:
        return predictor.answer("transform", X, n_jobs)
    columns = predictor.answer("predict_raw", X, n_jobs)
    return answers.one_hot(columns, predictor.forest.n_leaves)


def per_tree(predictor: ForestPredictor, X: Any, n_jobs: int | None = None) -> Array:
    _refuse_members(predictor, "the values of single trees")
    _numbers_meet(predictor, X)
    by, rows = _numbers(predictor, X, "values of single trees")
    values = by.engine.run("per_tree", rows, n_jobs)
    predictor.counters.add(predictor.route, len(values))
    return values


def _refuse_members(predictor: ForestPredictor, what: str) -> None:
    name, none = predictor.source.class_name, f"for which {what} are not defined"
    if not predictor.source.explains:
        raise UnsupportedModelError(
            f"{name} answers with something else than sums of its trees, {none}."
        )
    if predictor.by_members:
        raise UnsupportedModelError(
            f"{name} computes its predictions from the raw scores of several "
            f"forests, {none}; compile one of its estimators."
        )


def contribs(
    predictor: ForestPredictor,
    X: Any,
    n_jobs: int | None = None,
    background: Any = None,
    **options: Any,
) -> Array:
    _refuse_members(predictor, "contributions")
    _numbers_meet(predictor, X)
    if (reader := predictor.of_rows(X)) is not predictor:
        return contribs(reader, X, n_jobs, background, **options)
    plain = background is None and not any(options.values())
    if plain and (answer := predictor.explained_by_entry(X, n_jobs)) is not None:
        return answer
    by, rows = _numbers(predictor, X)
    if background is not None:  # read as the rows are
        _, options["background"] = _numbers(predictor, background, by=by)
    values = by.engine.run("contribs", rows, n_jobs, **options)
    if plain and by is predictor:
        predictor.seek_explaining_entry(rows, values)
    predictor.counters.add(predictor.route, len(values))
    return values


def _numbers(
    predictor: ForestPredictor,
    X: Any,
    what: str = "contributions",
    by: OfRows | None = None,
) -> tuple[OfRows, Any]:
    """Return who reads rows, and the numbers; raise if only the model does."""
    if getattr(X, "shape", None) == (0, predictor.forest.n_columns):  # not all take it
        forest = predictor.forest
        return by or predictor, np.empty((0, forest.n_features), forest.input_dtype)
    if predictor.are_on_device(X):
        raise InvalidInputError(
            f"{what} need rows in host memory, but these are on a GPU; pass a "
            "NumPy array."
        )
    by, rows, given = predictor.read(X, "predict_raw", by)
    if rows is None:
        # rows that the model refuses have its own error
        predictor.ask("predict", given)
        raise InvalidInputError(
            f"{what} need rows that kernels read, but {predictor.source.class_name} "
            f"answers these ({type(X).__name__}) itself; pass a float64 array or "
            "DataFrame of its features, with numbers that float32 holds."
        )
    return by, rows


def _numbers_meet(predictor: ForestPredictor, X: Any) -> None:
    """Compare raw scores of rows before they are explained, as few models do that.

    Raise ``VerificationError`` if the model reads such rows otherwise.
    """
    if predictor.door is None or predictor.door.agreed("predict_raw", X):
        return
    with suppress(Exception):  # rows that are refused have their own error
        predictor.answer("predict_raw", predictor.door.few(X), None)
    if predictor.door.agreed("predict_raw", X) is False:
        raise VerificationError(
            "the raw scores of these rows differ from the model's, so they are not "
            "explained. A VerificationWarning has shown a row; please report it."
        )
