"""The result type of a model's methods as a table: dtype, width and column names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from skforge._typing import Array as Array
from skforge.exceptions import InvalidInputError, check_choice
from skforge.forest.rounds import ends_in_bias

#: Methods of a model, and the prefix of their column names.
METHODS = {
    "predict": "prediction",
    "predict_proba": "probability",
    "predict_log_proba": "log_probability",
    "predict_raw": "raw",
    "decision_function": "decision",
    "score_samples": "score",
    "apply": "leaf",
    "predict_contribs": "contribution",
}


@dataclass(frozen=True, slots=True)
class Answer:
    dtype: np.dtype[Any]
    #: Values per row; None if the result is one-dimensional.
    width: int | None
    #: A name for each value: ``("prediction",)``, ``("probability_no", ...)``.
    names: tuple[str, ...]

    def empty(self) -> Array:
        return np.empty(self._shape(0), self.dtype)

    def shaped(self, answer: Any, n_rows: int) -> Array:
        """Return a model's answer as a column, or a table with a row for each row.

        Labels of several targets whose models give a column each, as CatBoost's do,
        have the rows in their second dimension.
        """
        return as_array(answer).reshape(self._shape(n_rows))

    def _shape(self, n_rows: int) -> tuple[int, ...]:
        return (n_rows,) if self.width is None else (n_rows, self.width)


def as_array(answer: Any) -> Array:
    if isinstance(answer, list):
        return np.concatenate(answer, axis=1)
    array = np.asarray(answer)
    return array.reshape(len(array), -1) if array.ndim > 2 else array


def described(model: Any, method: str) -> Answer:
    check_choice("method", method, METHODS)
    if not hasattr(model, method):
        having = [name for name in METHODS if hasattr(model, name)]
        raise InvalidInputError(
            f"The model has no {method}; it has {', '.join(having)}."
        )
    if method == "predict_contribs":
        forest = model.forest_
        no_rows = np.empty((0, forest.n_columns), forest.input_dtype)
        values = model.predict_contribs(no_rows)
        names = contribution_names(model, values.shape)
        return Answer(values.dtype, math.prod(values.shape[1:]), names)
    answer = _of_zeros(model, method)
    width = None if answer.ndim == 1 else answer.shape[1]
    if method == "predict" and width == 1:  # CatBoost's labels are a matrix
        width = None
    return Answer(answer.dtype, width, _names(model, method, width))


def _of_zeros(model: Any, method: str) -> Array:
    from skforge.sources.find import source_of
    from skforge.sources.fitted import model_of, start_of

    forest, fitted = model.forest_, model_of(model)
    answers = source_of(fitted, forest, start_of(model)).answers
    if method == "apply":
        trees = forest.n_trees - ends_in_bias(forest)
        width = trees or int(answers.flat_leaves)
        return as_array(answers.leaves(np.zeros((1, width), np.int32)))
    if method == "predict_log_proba":
        method = "predict_proba"  # of the same dtype and shape
    width = sum(part.n_outputs for part in (forest, *answers.more))
    raw = np.zeros((1, width) if width > 1 else 1, forest.accumulator_dtype)
    of_scores = answers.of_scores(forest, fitted)
    with np.errstate(all="ignore"):
        return as_array(of_scores(method, raw))


def contribution_names(model: Any, shape: Sequence[int]) -> tuple[str, ...]:
    """Return a name for each contribution to a row: its class, its feature or bias.

    ``shape`` is that of ``predict_contribs``. Names that would be there twice are
    replaced by numbers.
    """
    from skforge.sources.fitted import start_of

    *outputs, width = shape[1:]
    name, seen = METHODS["predict_contribs"], model.forest_.column_names
    if seen is None and start_of(model) is None:  # else features are made by steps
        seen = getattr(model, "feature_names_in_", None)
    features = [str(feature) for feature in (() if seen is None else seen)]
    if len(features) != width - 1:
        features = [str(i) for i in range(width - 1)]
    columns, heads = [*features, "bias"], [name]
    if outputs:
        heads = [f"{name}_{label}" for label in _labels(model, outputs[0])]
    names = tuple(f"{head}_{column}" for head in heads for column in columns)
    if len(set(names)) == len(names):
        return names
    return tuple(f"{name}_{i}" for i in range(len(names)))


def _names(model: Any, method: str, width: int | None) -> tuple[str, ...]:
    name = METHODS[method]
    if width is None:
        return (name,)
    if method in ("predict", "apply"):
        return tuple(f"{name}_{i}" for i in range(width))
    return tuple(f"{name}_{label}" for label in _labels(model, width))


def _labels(model: Any, width: int) -> list[str]:
    classes = getattr(model, "classes_", None)
    labels: list[str] = []
    if isinstance(classes, list):
        labels = [f"{t}_{label}" for t, of in enumerate(classes) for label in of]
    elif classes is not None:
        labels = [str(label) for label in classes]
    return labels if len(labels) == width else [str(i) for i in range(width)]
