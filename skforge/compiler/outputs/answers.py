"""The answers of a model's methods, from the raw scores of its forest."""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge.compiler.forest.arrays import Array
from skforge.compiler.forest.forest import Forest
from skforge.compiler.outputs import transforms


def labels_of(forest: Forest, model: Any) -> Any:
    """Return the labels that ``predict`` returns; None for 0, 1, ..."""
    labels = transforms.class_labels(forest)
    if labels is None and forest.outputs.named:
        labels = getattr(model, "classes_", None)
    if forest.outputs.labels == "column":  # each answer has a row of its own
        known = np.arange(forest.n_outputs) if labels is None else labels
        return np.reshape(known, (-1, 1))
    return labels


def answer(forest: Forest, classes: Any, method: str, raw: Array) -> Any:
    match method:
        case "predict_raw":
            return raw
        case "score_samples":
            return transforms.score_samples(forest, raw)
        case "decision_function":
            is_custom = forest.outputs.decision == "none"  # of a custom objective
            return raw if is_custom else transforms.decision_function(forest, raw)
        case "predict" if forest.classifies:
            return _labels(classes, transforms.decide(forest, raw))
        case "predict_proba" if forest.classifies:
            return transforms.predict_proba(forest, raw)
        case _:  # a regressor, or a custom objective
            return transforms.apply_transform(forest, raw)


def _labels(classes: Any, index: Array) -> Array:
    if classes is None:
        return index
    if not isinstance(classes, list):
        return np.asarray(classes.take(index, axis=0))
    labels = np.empty(index.shape, classes[0].dtype)
    for target, names in enumerate(classes):
        labels[:, target] = names.take(index[:, target], axis=0)
    return labels
