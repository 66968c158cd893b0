"""Finds the tree ensemble in an ONNX graph, and checks that the rest has no effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from skforge.compiler.forest.validation import damaged
from skforge.exceptions import InvalidModelError, UnsupportedModelError

# TensorProto.DataType
FLOAT, INT32, INT64, STRING, DOUBLE = 1, 6, 7, 8, 11
_ML = "ai.onnx.ml"
#: What to do with the graph of a pipeline.
_PIPELINE = (
    "if it was converted from a scikit-learn pipeline, give skforge the pipeline"
)
_ENSEMBLES = ("TreeEnsembleRegressor", "TreeEnsembleClassifier", "TreeEnsemble")


@dataclass(frozen=True, slots=True)
class Place:
    """The ensemble's node and the rows that it gets."""

    node: Any
    version: int  # of the operator set ai.onnx.ml
    node_type: int  # element type of the node's input
    input_dtype: np.dtype[Any]  # of the rows: float64 unless a cast narrows them
    n_features: int | None  # None if the model does not declare it


@dataclass(frozen=True, slots=True)
class _Tensor:
    """What a name in the graph refers to: rows, or an output of the ensemble."""

    what: str  # rows | labels | scores
    types: tuple[int, ...]  # element types it was cast to, the current one last
    width: int | None  # columns; 0 for a list


def locate(model: Any) -> Place:
    """Return the single tree ensemble of a model whose other nodes only pass values.

    Raises ``UnsupportedModelError``, naming any node that does more.
    """
    graph = model.graph
    version = _version(model)
    name, rows = _input(graph)
    tensors = {name: rows}
    found: Any = None
    for node in graph.node:
        if node.domain == _ML and node.op_type in _ENSEMBLES:
            if found is not None:
                raise UnsupportedModelError(
                    "The model has several tree ensembles; split it into one model "
                    "for each."
                )
            found = _check_node(node, version, tensors)
        elif not _passes(node, graph, tensors, found):
            raise UnsupportedModelError(
                f"The node {node.name or node.output[:1] or '?'!r} "
                f"({node.op_type[:60]}) is not part of a tree ensemble, so the model "
                f"cannot be compiled; {_PIPELINE}."
            )
    if found is None:
        raise InvalidModelError(
            f"The graph has no node {', '.join(_ENSEMBLES[:2])} or {_ENSEMBLES[2]}, so "
            "there are no trees to read; the file is damaged or another kind of model."
        )
    types = tensors[found.input[0]].types
    narrow = types[-1] != DOUBLE or FLOAT in types
    dtype = np.dtype(np.float32 if narrow else np.float64)
    return Place(found, version, types[-1], dtype, rows.width)


def _version(model: Any) -> int:
    for opset in model.opset_import:
        if opset.domain == _ML:
            return int(opset.version)
    return 1


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
    """Check an ensemble's inputs and version, and record its outputs."""
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
    if rows is None or rows.what != "rows":
        damaged(f"{kind} reads {node.input[0]!r}, which is not the model's input")
    labels = kind == "TreeEnsembleClassifier"
    strings = any(
        a.name == "classlabels_strings" and len(a.strings) for a in node.attribute
    )
    score = DOUBLE if kind == "TreeEnsemble" and rows.types[-1] == DOUBLE else FLOAT
    for i, name in enumerate(node.output):
        if labels and i == 0:
            tensors[name] = _Tensor("labels", (STRING if strings else INT64,), 0)
        else:
            tensors[name] = _Tensor("scores", (score,), None)
    return node


def _passes(node: Any, graph: Any, tensors: dict[str, _Tensor], ensemble: Any) -> bool:
    """Tell whether a node only passes on a known value, and record its output."""
    if not node.input or not node.output:
        return False
    value = tensors.get(node.input[0])
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
        return value.what == "scores"
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Cast":
        to = [a.i for a in node.attribute if a.name == "to"]
        if len(to) != 1:
            return False
        # rows may be converted; a cast of anything else has to change nothing
        numbers = value.what == "rows" and to[0] in (FLOAT, DOUBLE)
        if to[0] != value.types[-1] and not numbers:
            return False
        value = _Tensor(value.what, (*value.types, to[0]), value.width)
    elif node.op_type == "Reshape":
        if not _keeps_shape(node, graph, value):
            return False
    elif node.op_type != "Identity":
        return False
    tensors[node.output[0]] = value
    return True


def _class_labels(node: Any) -> list[Any]:
    """Return a classifier's labels, or those that a ZipMap assigns to its columns."""
    found: list[Any] = []
    for attribute in node.attribute:
        if attribute.name in ("classlabels_int64s", "classlabels_strings"):
            found += [*attribute.ints, *attribute.strings]
    return found


def _keeps_shape(node: Any, graph: Any, value: _Tensor) -> bool:
    """Tell whether a constant shape equals the value's own."""
    shapes = [t for t in graph.initializer if list(node.input[1:]) == [t.name]]
    if len(shapes) != 1 or value.width is None or shapes[0].data_type != INT64:
        return False
    raw = bytes(shapes[0].raw_data)
    if len(raw) % 8:
        return False
    dims = np.frombuffer(raw, "<i8").tolist() or list(shapes[0].int64_data)
    return dims == ([-1] if value.width == 0 else [-1, value.width])
