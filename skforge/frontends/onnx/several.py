"""Makes one forest of several tree ensembles, where no bit of their answers changes.

Regressors side by side are outputs of one forest. A mean of single trees, as of
bagging, is that of a forest whose leaves hold what each tree answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from skforge._typing import Array
from skforge.forest.combine import joined
from skforge.forest.forest import Forest
from skforge.forest.outputs import OutputSpec

_NOTHING = -0.0  # adding it changes no number, not even -0.0


class Scores(NamedTuple):
    """Scores of some ensembles, by number.

    ``how``: ``one`` has those of one ensemble; ``stack`` those of several along a first
    axis, ``mean`` their mean, and ``columns`` has them side by side.
    """

    how: str
    members: tuple[int, ...]


def forest_of(
    forests: Sequence[Forest], how: str, labels: tuple[str | int, ...]
) -> Forest | None:
    """Return one forest whose answers are those of all; None if there is none."""
    if how == "one":
        return forests[0]
    if any(f.aggregate != "sum" or f.outputs.post != "none" for f in forests):
        return None
    width = max(forest.n_features for forest in forests)
    forests = [replace(forest, n_features=width) for forest in forests]
    return _mean(forests, labels) if how == "mean" else _columns(forests)


def _columns(forests: Sequence[Forest]) -> Forest | None:
    first = forests[0]
    kinds = {(f.task, f.divisor, f.outputs.dtype) for f in forests}
    if first.task != "regression" or len(kinds) > 1:
        return None
    sizes = [forest.n_outputs for forest in forests]
    places = np.cumsum([0, *sizes])[:-1].tolist()
    offsets = tuple(x for forest in forests for x in forest.outputs.offsets)
    outputs = replace(first.outputs, layout="columns", offsets=offsets)
    base = np.zeros(sum(sizes), first.accumulator_dtype)
    return joined(forests, places, base=base, outputs=outputs)


def _mean(forests: Sequence[Forest], labels: tuple[str | int, ...]) -> Forest | None:
    if any(forest.n_trees > 1 or forest.divisor > 1 for forest in forests):
        return None
    values = [
        answers for forest in forests if (answers := _answers(forest)) is not None
    ]
    widths = {answers.shape[1] for answers in values}
    (width, *others) = widths or {0}
    if len(values) < len(forests) or others or (labels and width != len(labels)):
        return None
    members = [
        replace(
            forest,
            leaf_value=answers,
            tree_output=np.full(1, -1 if width > 1 else 0, np.int32),
            base=np.zeros(width, np.float32),
        )
        for forest, answers in zip(forests, values, strict=True)
    ]
    rest: dict[str, Any] = {"class_labels": labels, "task": "regression"}
    if labels:
        rest["task"] = "binary" if len(labels) == 2 else "multiclass"
    outputs = OutputSpec(
        "onnx",
        0.0,
        offsets=(_NOTHING,) * width,
        probabilities="values",
        labels="first_greatest",
        layout="columns" if width > 1 else "target",
    )
    base = np.zeros(width, np.float32)
    count = len(forests)
    return joined(
        members, [0] * count, base=base, divisor=count, outputs=outputs, **rest
    )


def _answers(forest: Forest) -> Array | None:
    """Return what the only tree of a forest answers at each leaf, or None."""
    spec, values = forest.outputs, forest.leaf_value
    if spec.dtype != "float32" or forest.accumulator_dtype != np.float32:
        return None
    if not forest.vector_leaves:
        wide = np.zeros((len(values), forest.n_outputs), np.float32)
        wide[:, forest.tree_output[0]] = values[:, 0]
        values = wide
    offsets = np.array(spec.offsets, np.float32)
    with np.errstate(invalid="ignore"):
        scores = np.where(np.isnan(offsets), np.float32(0), values + offsets)
    if spec.layout in ("target", "columns"):
        return scores
    if spec.layout == "one" and spec.parameter > 0:
        return np.hstack([np.float32(1) - scores, scores])
    return None
