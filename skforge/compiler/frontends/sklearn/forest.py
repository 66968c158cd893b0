"""scikit-learn: decision trees, random forests and extra trees.

X is cast to float32 and compared with float64 thresholds by ``<=``; leaves hold
float64 class fractions or means, summed in tree order and divided once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.outputs import Task
from skforge.compiler.frontends.base import Frontend, detects, is_a, register
from skforge.compiler.frontends.checks import refuse_override, refuse_unfitted
from skforge.compiler.frontends.sklearn.common import class_task, forest_of
from skforge.exceptions import UnsupportedModelError

_TREE = "sklearn.tree._classes.BaseDecisionTree"
_FORESTS = "sklearn.ensemble._forest."
_CLASSIFIERS, _REGRESSORS = (
    (f"sklearn.tree._classes.DecisionTree{kind}", f"{_FORESTS}Forest{kind}")
    for kind in ("Classifier", "Regressor")
)


def refuse(model: Any) -> None:
    kind = type(model).__name__
    embeds = is_a(model, f"{_FORESTS}RandomTreesEmbedding")
    if embeds or not is_a(model, *_CLASSIFIERS, *_REGRESSORS):
        raise UnsupportedModelError(f"{kind} has no predictions to compile.")
    refuse_override(model, "sklearn")


def load(model: Any, iteration_range: tuple[int, int] | None = None) -> Forest:
    kind = type(model).__name__
    classifier = is_a(model, *_CLASSIFIERS)
    if iteration_range is not None:
        raise UnsupportedModelError(f"{kind} has no boosting rounds to choose from.")
    refuse(model)
    single = is_a(model, _TREE)
    if not hasattr(model, "tree_" if single else "estimators_"):
        refuse_unfitted(model)
    estimators = [model] if single else model.estimators_
    trees = [estimator.tree_ for estimator in estimators]
    # targets with fewer classes are padded, which would give outputs of 0
    n_classes = model.n_classes_ if classifier else [1] * trees[0].value.shape[1]
    sizes = [int(n) for n in np.atleast_1d(n_classes)]
    n_outputs = sum(sizes)
    # a single tree returns its leaf unchanged, even -0.0, which only -0.0 + x keeps
    zero = -0.0 if single else 0.0
    task: Task = "regression"
    if classifier:
        task = "multilabel" if len(sizes) > 1 else class_task(sizes[0])
    return forest_of(
        model,
        trees,
        [_by_output(tree.value, sizes) for tree in trees],
        tree_output=np.full(len(trees), -1 if n_outputs > 1 else 0, dtype=np.int32),
        base=np.full(n_outputs, zero),
        divisor=1 if single else len(trees),
        task=task,
        output_sizes=tuple(sizes),
    )


def _by_output(value: Array, sizes: list[int]) -> Array:
    """Return a tree's values, (n_nodes, targets, classes), as one row a node."""
    if len(sizes) == 1:
        return value[:, 0, : sizes[0]]
    parts = [value[:, target, :size] for target, size in enumerate(sizes)]
    return np.concatenate(parts, axis=1)


_KINDS = detects(_TREE, f"{_FORESTS}BaseForest")
register(Frontend("sklearn", (), _KINDS, load, refuse=refuse))
