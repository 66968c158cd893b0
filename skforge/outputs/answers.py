"""The answers of a model's methods, from the raw scores of its forest.

They repeat the source's arithmetic, operation by operation and in its precision, so
that equal raw scores give equal bits.
"""

from __future__ import annotations

import operator
from contextlib import nullcontext
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.outputs import AnswerSpec
from skforge.outputs.catboost import log_probabilities
from skforge.outputs.functions import BY_NUMPY, FUNCTIONS
from skforge.outputs.library import HOST, ArrayLibrary
from skforge.outputs.steps import (
    Output,
    Steps,
    by_column,
    in_order,
    one_by_row,
    steps_of,
)

_OUTPUTS: dict[str, Output] = {
    "predict_raw": "raw",
    "predict": "labels",
    "predict_proba": "probabilities",
    "decision_function": "decision",
    "score_samples": "scores",
}
_COMPARE = {"ogt": operator.gt, "oge": operator.ge}


def class_labels(spec: AnswerSpec) -> Array | None:
    names = spec.class_labels
    if not names:
        return None
    kinds = {str: object, int: np.int64}
    return np.array(names, dtype=kinds.get(type(names[0])))


def labels_of(spec: AnswerSpec, model: Any) -> Any:
    """Return the labels that ``predict`` returns; None for 0, 1, ..."""
    labels = class_labels(spec)
    if labels is None and spec.outputs.named:
        labels = getattr(model, "classes_", None)
        _check_labels(spec, labels)
    if spec.outputs.labels == "column":  # each answer has a row of its own
        known = np.arange(spec.n_outputs) if labels is None else labels
        return np.reshape(known, (-1, 1))
    return labels


def _check_labels(spec: AnswerSpec, labels: Any) -> None:
    """Refuse what the library's ``predict`` fails for, and code would read beyond."""
    if labels is None or not spec.has("predict_proba"):
        return
    columns = steps_of(spec, "probabilities").shape(spec.n_outputs, "")[1]
    targets = labels if isinstance(labels, list) else [labels]
    for names, classes in zip(targets, spec.sizes or (columns,), strict=False):
        if 1 < len(names) < classes:  # LightGBM gives one label two columns
            raise InvalidModelError(
                f"classes_ has {len(names)} labels, and the trees tell {classes} "
                "classes apart: the model was changed after training, or LightGBM's "
                "num_class= is greater. Put the labels back, or train it again."
            )


def output_of(spec: AnswerSpec, method: str) -> Output:
    # custom objectives have only scores
    if method in ("predict", "predict_proba") and not spec.classifies:
        return "transformed"
    if method == "decision_function" and not spec.has(method):
        return "raw"
    return _OUTPUTS[method]


def answer(
    spec: AnswerSpec, classes: Any, method: str, raw: Any, on: ArrayLibrary = HOST
) -> Any:
    if method == "predict_log_proba":
        return in_order(log_probabilities(raw, spec.outputs), True)
    output = output_of(spec, method)
    values = of_scores(spec, output, raw, on)
    if on is HOST and isinstance(values, np.ndarray) and by_column(spec, output):
        one = len(values) == 1 and one_by_row(spec, output)
        values = in_order(values, not one)
    if output != "labels" or classes is None:
        return values
    if on is not HOST:
        if not isinstance(classes, np.ndarray) or classes.dtype.kind not in "fiub":
            raise UnsupportedModelError(
                "The labels of this model are not numbers, so they cannot be returned "
                "on a GPU: call predict_proba or predict_raw, or pass the rows as a "
                "NumPy array."
            )
        return on.xp.asarray(classes)[values]
    if not isinstance(classes, list):
        return np.asarray(classes.take(values, axis=0))
    labels = np.empty(values.shape, classes[0].dtype)
    for target, names in enumerate(classes):
        labels[:, target] = names.take(values[:, target], axis=0)
    return labels


def of_scores(
    spec: AnswerSpec, output: Output, raw: Any, on: ArrayLibrary = HOST
) -> Any:
    """Return an output for raw scores of shape (n, n_outputs) or (n,).

    Probabilities of several targets are a list of arrays. ``on`` is the library of the
    array; for arrays of GPUs, ``UnsupportedModelError`` is raised for outputs that only
    the host computes.
    """
    if output == "raw":
        return raw
    steps = steps_of(spec, output)
    if on is not HOST:
        _check_device(spec, output, steps)
    if steps.is_plain and getattr(raw, "ndim", 2) == 1:
        return raw
    x: Any = raw if hasattr(raw, "reshape") else np.asarray(raw)
    x = x.reshape(-1, spec.n_outputs)
    for divisor in steps.divisors:
        x = x / x.dtype.type(divisor)
    if steps.function != "identity":
        function = FUNCTIONS[steps.function]
        warns = not function.code or steps.function in BY_NUMPY
        with nullcontext() if warns else np.errstate(all="ignore"):
            x = function.of(x, steps.spec, on)
    if isinstance(x, list):  # of a graph's targets
        return x
    if steps.choice in ("targets", "best"):
        chooses = steps.choice == "best"
        if len(spec.sizes) > 1:
            return _of_targets(spec, chooses, x, on)
        return x.argmax(axis=1) if chooses else x
    x = x[:, 0] if x.ndim == 2 and x.shape[1] == 1 else x
    if steps.choice == "both_classes":
        return on.xp.vstack((1.0 - x, x)).transpose()
    if steps.choice == "above":
        x = _COMPARE[steps.comparison](x, x.dtype.type(steps.cut))
    return x.astype(steps.dtype, copy=False) if steps.dtype else x


def _of_targets(spec: AnswerSpec, chooses: bool, x: Any, on: ArrayLibrary) -> Any:
    targets = np.split(x, np.cumsum(spec.sizes)[:-1], axis=1)
    if not chooses:
        return [target.copy() for target in targets]  # views have other strides
    return np.stack([target.argmax(axis=1) for target in targets], axis=1)


def _check_device(spec: AnswerSpec, output: Output, steps: Steps) -> None:
    what = ""
    # a GPU may decide near ties of probabilities differently
    ties = output == "labels" and spec.source == "lightgbm"
    by_host = ties or len(spec.sizes) > 1 or steps.function == "scipy_softmax"
    if by_host and output in ("labels", "probabilities"):
        what = f"The {output} of this {spec.source} model are"
    elif not FUNCTIONS[steps.function].on_devices:
        what = f"The transform {spec.outputs.name!r} of {spec.source} models is"
    if what:
        raise UnsupportedModelError(
            f"{what} not computed on GPUs: call predict_raw, or pass the rows as a "
            "NumPy array."
        )
