"""ONNX: ``TreeEnsembleRegressor``, ``TreeEnsembleClassifier`` and ``TreeEnsemble``.

Numbers follow onnxruntime's CPU kernels on one thread: rows, thresholds and sums are
float64 if the node's input is double and float32 otherwise; sums start from 0, go in
tree order, are divided by the number of trees for averages, and base values are added
last. Raw scores are these sums before base values;
:mod:`skforge.outputs.onnx` does the rest. For MIN and MAX of several trees see
:mod:`skforge.forest.leaves`. A tree whose leaves have several weights for one
output is copied: each copy holds one weight, and adds it in the weight's order.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.arrays import Comparison
from skforge.forest.forest import Forest
from skforge.forest.outputs import AnswerLayout, Labels, OutputSpec, Post
from skforge.forest.predicates import with_sets_of_here
from skforge.forest.validation import ABSENT, damaged, first_true
from skforge.frontends.base import Frontend, detects, register
from skforge.frontends.onnx import ensembles
from skforge.frontends.onnx.ensembles import Ensemble
from skforge.frontends.onnx.graph import EnsembleContext, locate
from skforge.frontends.onnx.scores import computed
from skforge.frontends.onnx.several import forest_of
from skforge.frontends.onnx.symbols import DOUBLE, FLOAT, INT32, INT64
from skforge.frontends.onnx.trees import (
    Graph,
    Leaves,
    OnnxTrees,
    build_trees,
    copies_of_trees,
    leaf_values,
)

_NOTHING = -0.0  # adding it changes no number, not even -0.0


def load(model: Any, iteration_range: tuple[int, int] | None = None) -> Forest:
    if iteration_range is not None:
        raise UnsupportedModelError(
            "An ONNX model has no boosting rounds to choose from."
        )
    found = locate(model)
    forests = [_of_ensemble(place) for place in found.ensembles]
    place = found.ensembles[0]
    same = all(other.cells == place.cells for other in found.ensembles)
    if not same:
        pairs = zip(forests, found.ensembles, strict=True)
        forests = [_folded(forest, place) for forest, place in pairs]
    forest = (
        None
        if found.scores is None
        else forest_of(forests, found.scores.how, found.labels)
    )
    if forest is None:
        forest = computed(forests, found.after, partial(_of_answers, place.version))
    return _folded(forest, place) if same else forest


def _folded(forest: Forest, place: EnsembleContext) -> Forest:
    if place.cells is None:
        return forest
    from skforge.frontends.onnx.folding import folded

    return folded(forest.validate(), place)


def _of_answers(version: int, node: Any, dtype: np.dtype[Any]) -> Forest:
    """Return the forest of a node that reads what other trees answer."""
    kind = DOUBLE if dtype == np.float64 else FLOAT
    rows = dtype, None, None, None, 0, (), ()
    return _of_ensemble(EnsembleContext(node, version, kind, *rows)).validate()


def _of_ensemble(place: EnsembleContext) -> Forest:
    attributes = ensembles.read_attributes(place.node, place.version)
    dtype = np.dtype(np.float64 if place.node_type == DOUBLE else np.float32)
    if place.node.op_type == "TreeEnsemble":
        ensemble = ensembles.read_ensemble(attributes, dtype)
    else:
        classifier = place.node.op_type == "TreeEnsembleClassifier"
        ensemble = ensembles.read_table(attributes, dtype, classifier)
    if place.node_type in (INT32, INT64) and not ensemble.labels:
        raise UnsupportedModelError(
            f"{place.node.op_type} on integer rows has no kernel in onnxruntime; "
            "export the model with float input."
        )
    n_trees = len(ensemble.graph.roots)
    average = ensemble.aggregate == "AVERAGE"
    trees = build_trees(ensemble.graph, place.input_dtype)
    if place.node.op_type != "TreeEnsemble":
        _check_places(ensemble, trees)
    copies = copies_of_trees(trees, ensemble.weights, ensemble.n_outputs)
    # with one leaf, all aggregates are equal
    sums = average or copies.sum() == 1
    aggregate = "sum" if sums else ensemble.aggregate.lower()
    if copies.max() > 1:
        trees = build_trees(ensemble.graph, place.input_dtype, copies)
    parts = ensemble.weights, ensemble.n_outputs, ensemble.unweighted
    leaves = leaf_values(trees, *parts, ABSENT.get(aggregate, 0.0))
    forest = Forest(
        **trees.arrays | {"leaf_value": leaves.leaf_value},
        tree_output=leaves.tree_output,
        n_features=_n_features(place, ensemble.graph),
        base=np.zeros(ensemble.n_outputs, dtype),
        divisor=n_trees if average else 1,
        source="onnx",
        truncate_categories=bool((trees.arrays["comparison"] == Comparison.IN).any()),
        aggregate=aggregate,
        wider_rows=place.n_features is None,
        whole_columns=place.whole if place.cells is None else (),
    )
    forest = with_sets_of_here(forest)
    if ensemble.labels:
        return _as_classifier(forest, ensemble, leaves)
    return _as_regressor(forest, ensemble, leaves, place)


def _check_places(ensemble: Ensemble, trees: OnnxTrees) -> None:
    """Refuse weights that onnxruntime assigns to another node than the file does.

    It assigns the weights of an unreachable node to the first root if that is a leaf,
    and to no node otherwise.
    """
    graph, leaf = ensemble.graph, ensemble.weights.leaf
    lost = leaf[~np.isin(leaf, trees.leaf_of)]
    if len(lost) and graph.roots[0] < 0:
        damaged(
            f"node {graph.leaf_number[lost[0]]} has a weight but is not a leaf that a "
            "branch leads to"
        )


def _n_features(context: EnsembleContext, graph: Graph) -> int:
    used = int(graph.feature.max(initial=-1)) + 1
    if (least := graph.feature.min(initial=0)) < 0:
        damaged(f"nodes_featureids holds {least}")
    if context.n_features is None:
        return used
    if used > context.n_features:
        damaged(
            f"nodes_featureids holds {used - 1}, but the input has "
            f"{context.n_features} features"
        )
    return context.n_features


# ------------------------------------------------------------------ outputs


def _answering(
    forest: Forest,
    layout: AnswerLayout,
    post: Post,
    offsets: Any,
    bound: float = 0.0,
    exact: bool = False,
    labels: Labels = "first_greatest",
) -> Forest:
    outputs = OutputSpec(
        "onnx",
        bound,
        offsets=tuple(float(x) for x in offsets),
        probabilities="values",
        labels=labels,
        layout=layout,
        post=post,
        dtype="float64" if exact else "float32",
    )
    return replace(forest, outputs=outputs)


def _as_regressor(
    forest: Forest, ensemble: Ensemble, leaves: Leaves, context: EnsembleContext
) -> Forest:
    """Add base values and post transform; targets without any leaf stay 0."""
    exact = context.node.op_type == "TreeEnsemble" and context.node_type == DOUBLE
    n_outputs, base = ensemble.n_outputs, ensemble.base
    offsets = base.astype(np.float64) if len(base) else np.full(n_outputs, _NOTHING)
    if n_outputs == 1:
        offsets = offsets + 0.0  # onnxruntime adds 0 here if there is no base value
        # onnxruntime knows no other post transform of one target
        post: Post = "probit" if ensemble.post == "probit" else "none"
        return _answering(forest, "target", post, offsets, exact=exact)
    sometimes = ~leaves.always & ~leaves.never & (offsets != 0)
    if (target := first_true(sometimes)) >= 0:
        raise UnsupportedModelError(
            f"Target {target} has a base value but leaves for only "
            "some rows, and onnxruntime adds it only to those rows; give every leaf a "
            "weight for every target."
        )
    offsets = np.where(leaves.never, np.nan, offsets)
    return _answering(forest, "columns", ensemble.post, offsets, exact=exact)


def _as_classifier(forest: Forest, ensemble: Ensemble, leaves: Leaves) -> Forest:
    forest = replace(
        forest,
        task="binary" if ensemble.n_outputs == 2 else "multiclass",
        class_labels=ensemble.labels,
    )
    if not len(ensemble.weights.output) or leaves.never.all():
        raise UnsupportedModelError(
            "No leaf has a class weight, so the classifier has nothing to decide with."
        )
    if ensemble.n_outputs == 2:
        return _as_binary(forest, ensemble, leaves)
    n_outputs, base = ensemble.n_outputs, ensemble.base
    if len(base):
        return _answering(forest, "columns", ensemble.post, base.astype(np.float64))
    sometimes = ~leaves.always & ~leaves.never
    positive = bool((ensemble.weights.value > 0).all())
    if sometimes.any() and not (positive and leaves.each_scored):
        raise UnsupportedModelError(
            f"Class {int(sometimes.argmax())} has a score for only some rows, and "
            "onnxruntime chooses the label of each row among the classes that have a "
            "score for it. Give every leaf a weight for every class."
        )
    offsets = np.where(leaves.never, np.nan, np.full(n_outputs, _NOTHING))
    return _answering(forest, "columns", ensemble.post, offsets)


def _as_binary(forest: Forest, ensemble: Ensemble, leaves: Leaves) -> Forest:
    """Apply onnxruntime's rules for two classes, which depend on which has weights.

    The second class's score decides if it has one, otherwise the first's; a single
    score belongs to the second class, whatever its class number.
    """
    if (number := first_true(~leaves.always & ~leaves.never)) >= 0:
        raise UnsupportedModelError(
            f"Class {number} has a score for only some rows, which onnxruntime treats "
            "differently; give every leaf a weight for that class."
        )
    first, second = (bool(scored) for scored in leaves.always)
    base, post = ensemble.base.astype(np.float64), ensemble.post
    one_class = len(np.unique(ensemble.weights.output)) == 1
    positive = bool((ensemble.weights.value >= 0).all())
    bound = 0.5 if one_class and positive else 0.0
    if not one_class and not isinstance(ensemble.labels[0], str):
        # here onnxruntime returns the numbers 0 and 1, not the labels
        forest = replace(forest, class_labels=(0, 1))
    above = partial(_answering, labels="above_bound")
    if len(base) < 2 and not second:
        if post == "probit":
            raise UnsupportedModelError(
                "PROBIT of a classifier with one score column leaves the second "
                "column undefined in onnxruntime; export the model with another "
                "post_transform."
            )
        offset = base if len(base) else np.array([_NOTHING])
        return above(_first_output(forest), "one", post, offset, bound)
    if len(base) == 2 and second:
        if not first:
            raise UnsupportedModelError(
                "The model has two base_values but weights only for the second class, "
                "and onnxruntime ignores the trees of such a model."
            )
        forest = _first_output(forest)
        return above(forest, "mirrored", post, base[1:], bound)
    offsets = np.array([base[0] if len(base) else _NOTHING, _NOTHING])
    offsets[~leaves.always] = np.nan
    return above(forest, "columns", post, offsets, bound)


def _first_output(forest: Forest) -> Forest:
    value = forest.leaf_value[:, :1]
    if not forest.vector_leaves:
        other = np.repeat(forest.tree_output != 0, np.diff(forest.tree_offset))
        value = value.copy()
        value[forest.leaf[other & (forest.leaf >= 0)]] = 0
    return replace(
        forest,
        leaf_value=value,
        tree_output=np.zeros(forest.n_trees, np.int32),
        base=forest.base[:1],
    )


# ------------------------------------------------------------------ files


def load_bytes(data: bytes, iteration_range: tuple[int, int] | None = None) -> Forest:
    try:
        import onnx
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise UnsupportedModelError(
            "Reading ONNX models needs the onnx package; install it with "
            "'pip install onnx'."
        ) from error
    try:
        model = onnx.load_model_from_string(data)
    except DecodeError as error:
        raise InvalidModelError(
            f"This is not an ONNX model ({error}); if it was one, it is damaged, so "
            "save the model again."
        ) from error
    return load(model, iteration_range)


_MODEL = detects("onnx.onnx_ml_pb2.ModelProto", "onnx.ModelProto")
register(Frontend("onnx", (".onnx",), _MODEL, load, load_bytes))
