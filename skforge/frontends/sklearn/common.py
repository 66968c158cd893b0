"""Refusals, and the joined trees, shared by the readers of scikit-learn's ensembles."""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.exceptions import UnsupportedModelError
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.outputs import Task
from skforge.forest.predicates import deduplicate_predicates, round_thresholds
from skforge.frontends import arrays
from skforge.frontends.arrays import Ints, forest_arrays, offsets
from skforge.frontends.base import is_a
from skforge.frontends.checks import refuse_override, refuse_unfitted
from skforge.frontends.members import has_members

#: Methods that determine predictions; subclasses that override one are refused.
_METHODS = (
    *("predict", "predict_proba", "decision_function", "score_samples"),
    *("_raw_predict", "_score_samples"),
)

#: Arrays of a tree with an element for each node, and those read at inner nodes only.
_OF_NODES = "children_left", "children_right", "weighted_n_node_samples"
_OF_TESTS = "feature", "threshold", "missing_go_to_left"


def check_model(model: Any, fitted: str, iteration_range: object) -> None:
    kind = type(model).__name__
    if iteration_range is not None:
        raise UnsupportedModelError(
            f"{kind}.predict takes no iteration_range; leave it out, or fit with "
            "fewer estimators."
        )
    refuse_overrides(model)
    if not hasattr(model, fitted):
        refuse_unfitted(model)


def refuse_overrides(model: Any) -> None:
    for name in _METHODS:
        method = getattr(type(model), name, None)
        if getattr(method, "__module__", None):
            refuse_override(model, "sklearn", name)


def trees_of(model: Any) -> list[Any]:
    """Return the fitted trees of an ensemble, or of a tree."""
    if not hasattr(model, "tree_") and not hasattr(model, "estimators_"):
        refuse_unfitted(model)
    return [part.tree_ for part in getattr(model, "estimators_", [model])]


def check_trees(model: Any, estimators: Any, wanted: str) -> None:
    for estimator in estimators:
        if not is_a(estimator, f"sklearn.tree._classes.DecisionTree{wanted}"):
            kind = type(model).__name__
            instead = "CompiledForest compiles other forests one by one."
            if not has_members(model):  # of a class that may do more
                instead = f"Compile the estimators_ of the {kind}, one by one."
            raise UnsupportedModelError(
                f"{kind} over {type(estimator).__name__} cannot be one Forest: its "
                f"members must be DecisionTree{wanted} or ExtraTree{wanted}. {instead}"
            )
        refuse_override(estimator, "sklearn")
        tree = getattr(estimator, "tree_", None)
        if wanted == "Classifier" and tree is not None and tree.value.shape[1] != 1:
            raise UnsupportedModelError(
                f"{type(model).__name__} over trees of several targets cannot be "
                "compiled."
            )


def feature_names(model: Any) -> tuple[str, ...] | None:
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else tuple(str(name) for name in names)


def class_task(n_classes: int) -> Task:
    return "binary" if n_classes == 2 else "multiclass"


def _joined(trees: list[Any], offset: Ints) -> list[Array]:
    """Return fields of all nodes, and of all inner ones, integers in 32 bits.

    An integer that does not fit becomes the nearest, which is none of a forest either.
    """
    arrays: dict[str, Array] = {}
    for name in (*_OF_NODES, *_OF_TESTS):
        dtype = getattr(trees[0], name).dtype
        arrays[name] = np.empty(offset[-1], np.int32 if dtype.kind == "i" else dtype)
    limits, filled = np.iinfo(np.int32), 0
    # All of a tree at once: its nodes are records, read from memory once.
    for tree, start, end in zip(trees, offset, offset[1:], strict=False):
        at = np.flatnonzero(tree.children_left >= 0)
        for name, whole in arrays.items():
            values, part = getattr(tree, name), whole[start:end]
            if name in _OF_TESTS:
                values, part = values[at], whole[filled : filled + len(at)]
            if values.dtype.kind == "i":
                np.clip(values, limits.min, limits.max, out=part, casting="unsafe")
            else:
                part[:] = values
        filled += len(at)
    arrays |= {name: arrays[name][:filled] for name in _OF_TESTS}
    return [*arrays.values()]


def forest_of(
    model: Any,
    trees: list[Any],
    values: list[Array],
    *,
    columns: Any = None,
    missing: bool = True,
    dtype: Any = np.float32,
    **fields: Any,
) -> Forest:
    """Return the forest of a model's fitted trees, all nodes joined at once.

    ``values`` has, for each tree, what its nodes add to each output; ``columns`` the
    columns of X that it was trained on, in its order. Without ``missing``, missing
    values go right, wherever the trees would send them. Rows have the ``dtype``.
    Unless ``fields`` say otherwise, leaves add to all outputs, from 0.
    """
    offset = offsets([tree.node_count for tree in trees])
    left, right, cover, feature, exact, goes_left = _joined(trees, offset)
    inner = left >= 0
    for name, child in (("children_left", left), ("children_right", right)):
        arrays.check_children(name, child, inner, offset, "fit it again")
    if columns is not None:  # leaves have feature -2, which is not a column
        pairs = zip(trees, map(np.asarray, columns), strict=True)
        tested = [columns_of[np.maximum(tree.feature, 0)] for tree, columns_of in pairs]
        feature = np.concatenate(tested)[inner]
    threshold = round_thresholds(exact, Comparison.LE, np.dtype(dtype))
    side = goes_left != 0 if missing else False
    tests = deduplicate_predicates(feature, Comparison.LE, threshold, Missing.NAN, side)
    del feature, exact, goes_left, threshold, side  # 80 MB for 12 million nodes
    # In place, as leaves of hundreds of classes take hundreds of megabytes.
    shape = int(np.count_nonzero(~inner)), values[0].shape[1]
    leaf_value = np.empty(shape, np.result_type(*values))
    filled = 0
    for value, start, end in zip(values, offset, offset[1:], strict=False):
        left[start:end] += start
        right[start:end] += start
        leaves = np.flatnonzero(~inner[start:end])
        part = leaf_value[filled : filled + len(leaves)]
        np.take(value, leaves, axis=0, out=part, mode="clip")
        filled += len(leaves)
    n_outputs = leaf_value.shape[1]
    every = np.full(len(trees), -1 if n_outputs > 1 else 0, np.int32)
    return Forest(
        **forest_arrays(offset, inner, left, right, tests, leaf_value, cover=cover),
        n_features=int(model.n_features_in_),
        source="sklearn",
        feature_names=feature_names(model),
        **{"tree_output": every, "base": np.zeros(n_outputs), **fields},
    )
