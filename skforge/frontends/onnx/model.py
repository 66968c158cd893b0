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
from typing import Any, NamedTuple

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
from skforge.frontends.onnx.trees import (
    Graph,
    Leaves,
    OnnxTrees,
    build_trees,
    copies_of_trees,
    leaf_values,
)

# TensorProto.DataType
FLOAT, INT32, INT64, STRING, DOUBLE = 1, 6, 7, 8, 11
_ML = "ai.onnx.ml"
#: What to do with the graph of a pipeline.
_PIPELINE = (
    "if it was converted from a scikit-learn pipeline, give skforge the pipeline"
)
_ENSEMBLES = ("TreeEnsembleRegressor", "TreeEnsembleClassifier", "TreeEnsemble")


class EnsembleContext(NamedTuple):
    node: Any
    version: int  # of the operator set ai.onnx.ml
    node_type: int  # element type of the node's input
    input_dtype: np.dtype[Any]  # of the rows: float64 unless a cast narrows them
    n_features: int | None  # None if the model does not declare it


class _Tensor(NamedTuple):
    content: str  # rows | labels | scores
    types: tuple[int, ...]  # element types it was cast to, the current one last
    width: int | None  # columns; 0 for a list


def locate(model: Any) -> EnsembleContext:
    """Return the single tree ensemble of a model whose other nodes only pass values.

    Raises ``UnsupportedModelError``, naming any node that does more.
    """
    graph = model.graph
    versions = [o.version for o in model.opset_import if o.domain == _ML]
    version = int(versions[0]) if versions else 1
    name, rows = _input(graph)
    tensors = {name: rows}
    ensemble: Any = None
    for node in graph.node:
        if node.domain == _ML and node.op_type in _ENSEMBLES:
            if ensemble is not None:
                raise UnsupportedModelError(
                    "The model has several tree ensembles; split it into one model "
                    "for each."
                )
            ensemble = _check_node(node, version, tensors)
        elif not _passes(node, graph, tensors, ensemble):
            raise UnsupportedModelError(
                f"The node {node.name or node.output[:1] or '?'!r} "
                f"({node.op_type[:60]}) is not part of a tree ensemble, so the model "
                f"cannot be compiled; {_PIPELINE}."
            )
    if ensemble is None:
        raise InvalidModelError(
            f"The graph has no node {', '.join(_ENSEMBLES[:2])} or {_ENSEMBLES[2]}, so "
            "there are no trees to read; the file is damaged or another kind of model."
        )
    types = tensors[ensemble.input[0]].types
    narrow = types[-1] != DOUBLE or FLOAT in types
    dtype = np.dtype(np.float32 if narrow else np.float64)
    return EnsembleContext(ensemble, version, types[-1], dtype, rows.width)


def _input(graph: Any) -> tuple[str, _Tensor]:
    from onnx import TensorProto

    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    if len(inputs) != 1:
        raise UnsupportedModelError(
            f"The model has {len(inputs)} inputs, but a tree ensemble has one input "
            f"of shape (rows, features); {_PIPELINE}."
        )
    tensor = inputs[0].type.tensor_type
    if tensor.elem_type not in (FLOAT, DOUBLE, INT32, INT64):
        names = {number: name.lower() for name, number in TensorProto.DataType.items()}
        kind = names.get(tensor.elem_type, f"type {tensor.elem_type}")
        raise UnsupportedModelError(
            f"The input {inputs[0].name!r} holds {kind} values; onnxruntime has tree "
            f"kernels for float, double, int32 and int64; {_PIPELINE}."
        )
    width: int | None = None
    if tensor.HasField("shape"):
        if len(tensor.shape.dim) != 2:
            raise UnsupportedModelError(
                f"The input {inputs[0].name!r} has {len(tensor.shape.dim)} "
                "dimensions, but rows have two."
            )
        dim = tensor.shape.dim[1]
        width = int(dim.dim_value) if dim.HasField("dim_value") else None
    if width is not None and not 0 < width < 1 << 31:
        damaged(f"The input has {width} features")
    return inputs[0].name, _Tensor("rows", (tensor.elem_type,), width)


def _check_node(node: Any, version: int, tensors: dict[str, _Tensor]) -> Any:
    kind = node.op_type
    if (kind == "TreeEnsemble") != (version == 5) or version < 1:
        raise UnsupportedModelError(
            f"{kind} in version {version} of {_ML} is unknown to onnxruntime, which "
            "knows TreeEnsembleRegressor and TreeEnsembleClassifier in versions 1 to "
            "4 and TreeEnsemble in version 5."
        )
    if len(node.input) != 1 or not node.output:
        damaged(f"{kind} has {len(node.input)} inputs and {len(node.output)} outputs")
    rows = tensors.get(node.input[0])
    if rows is None or rows.content != "rows":
        damaged(f"{kind} reads {node.input[0]!r}, which is not the model's input")
    labels = kind == "TreeEnsembleClassifier"
    strings = any(isinstance(label, bytes) for label in _class_labels(node))
    score = DOUBLE if kind == "TreeEnsemble" and rows.types[-1] == DOUBLE else FLOAT
    for i, name in enumerate(node.output):
        if labels and i == 0:
            tensors[name] = _Tensor("labels", (STRING if strings else INT64,), 0)
        else:
            tensors[name] = _Tensor("scores", (score,), None)
    return node


def _passes(node: Any, graph: Any, tensors: dict[str, _Tensor], ensemble: Any) -> bool:
    value = tensors.get(node.input[0]) if node.input and node.output else None
    if value is None:
        return False
    if node.domain == _ML and node.op_type == "ZipMap":
        tensors[node.output[0]] = _Tensor("maps", value.types, None)
        labels = _class_labels(node)
        if labels != _class_labels(ensemble) or len({*labels}) != len(labels):
            raise UnsupportedModelError(
                f"A ZipMap gives the scores the labels {str(labels)[:60]}, which are "
                "not exactly the classifier's labels; export the model without ZipMap."
            )
        return value.content == "scores"
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Cast":
        to = [a.i for a in node.attribute if a.name == "to"]
        if len(to) != 1:
            return False
        # rows may be converted; a cast of anything else has to change nothing
        numbers = value.content == "rows" and to[0] in (FLOAT, DOUBLE)
        if to[0] != value.types[-1] and not numbers:
            return False
        value = _Tensor(value.content, (*value.types, to[0]), value.width)
    elif node.op_type == "Reshape":
        if not _keeps_shape(node, graph, value):
            return False
    elif node.op_type != "Identity":
        return False
    tensors[node.output[0]] = value
    return True


def _class_labels(node: Any) -> list[Any]:
    labels: list[Any] = []
    for attribute in node.attribute:
        if attribute.name in ("classlabels_int64s", "classlabels_strings"):
            labels += [*attribute.ints, *attribute.strings]
    return labels


def _keeps_shape(node: Any, graph: Any, value: _Tensor) -> bool:
    shapes = [t for t in graph.initializer if list(node.input[1:]) == [t.name]]
    if len(shapes) != 1 or value.width is None or shapes[0].data_type != INT64:
        return False
    raw = bytes(shapes[0].raw_data)
    if len(raw) % 8:
        return False
    dims = np.frombuffer(raw, "<i8").tolist() or list(shapes[0].int64_data)
    return dims == ([-1] if value.width == 0 else [-1, value.width])


_NOTHING = -0.0  # adding it changes no number, not even -0.0


def load(model: Any, iteration_range: tuple[int, int] | None = None) -> Forest:
    if iteration_range is not None:
        raise UnsupportedModelError(
            "An ONNX model has no boosting rounds to choose from."
        )
    place = locate(model)
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
    positive = bool((ensemble.weights.value > 0).all()) and bool(leaves.always.any())
    if sometimes.any() and not positive:
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
