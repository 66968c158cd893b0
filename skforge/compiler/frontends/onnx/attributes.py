"""Reads the attributes of an ONNX node as arrays.

Messages are read field by field, so that damaged or hostile files raise skforge's
exceptions. The schemas of the ``onnx`` package say which attributes a node may have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from skforge._typing import Array
from skforge.compiler.forest.validation import damaged
from skforge.compiler.frontends.checks import refuse_unknown
from skforge.exceptions import UnsupportedModelError

Attributes: TypeAlias = dict[str, Any]


def read_attributes(node: Any, version: int) -> Attributes:
    """Return a node's attributes by name: ints, bytes, arrays, or lists of bytes.

    ``version`` is that of the operator set ``ai.onnx.ml`` that the model imports;
    tensors become one-dimensional arrays.
    """
    from onnx.defs import get_schema

    fields: Any = get_schema(node.op_type, version, node.domain).attributes
    known = {name: int(field.type) for name, field in fields.items()}
    attributes: Attributes = {}
    for attribute in node.attribute:
        name = attribute.name
        if name not in known:
            refuse_unknown(f"{node.op_type} has the unknown attribute {name!r}")
        if name in attributes:
            damaged(f"{name} is given twice")
        if attribute.ref_attr_name:
            raise UnsupportedModelError(
                f"{name} refers to an attribute of a function; inline the model's "
                "functions (onnx.inliner) first."
            )
        kind, read = _KINDS[known[name]]
        if attribute.type != known[name]:
            damaged(f"{name} is not {kind}")
        attributes[name] = read(attribute)
    return attributes


#: Names and readers of the values of AttributeProto.type.
_KINDS: dict[int, tuple[str, Callable[[Any], Any]]] = {
    2: ("an integer", lambda a: int(a.i)),
    3: ("a string", lambda a: bytes(a.s)),
    4: ("a tensor", lambda a: _tensor(a.t, a.name)),
    6: ("a list of floats", lambda a: np.array(a.floats, dtype=np.float32)),
    7: ("a list of integers", lambda a: np.array(a.ints, dtype=np.int64)),
    8: ("a list of strings", lambda a: list(a.strings)),
}


# TensorProto.data_type -> dtype in the file, and the field used instead of raw_data
_TENSOR_TYPES: dict[int, tuple[np.dtype[Any], str]] = {
    1: (np.dtype("<f4"), "float_data"),
    2: (np.dtype("<u1"), "int32_data"),
    10: (np.dtype("<f2"), ""),
    11: (np.dtype("<f8"), "double_data"),
}


def _tensor(tensor: Any, name: str) -> Array:
    if tensor.data_location == 1:
        raise UnsupportedModelError(
            f"{name} is stored in another file; save the model in one file "
            "(save_as_external_data=False)."
        )
    if tensor.data_type not in _TENSOR_TYPES or len(tensor.dims) != 1:
        damaged(
            f"{name} is not a list of float, double or uint8 numbers (data type "
            f"{tensor.data_type}, {len(tensor.dims)} dimensions)"
        )
    dtype, field = _TENSOR_TYPES[tensor.data_type]
    if tensor.raw_data or not field:
        raw = bytes(tensor.raw_data)
        values = np.frombuffer(raw, dtype, len(raw) // dtype.itemsize)
        complete = values.nbytes == len(raw)
    else:
        values, complete = np.array(getattr(tensor, field)).astype(dtype), True
    wanted = tensor.dims[0]
    if not complete or wanted != len(values):
        damaged(f"{name} holds {len(values)} numbers, but its dims say {wanted}")
    return values.astype(dtype.newbyteorder("="))


def array(attributes: Attributes, name: str) -> Array:
    return np.asarray(attributes.get(name, np.zeros(0, np.int64)))


def numbers(attributes: Attributes, name: str, dtype: np.dtype[Any]) -> Array:
    plain, exact = attributes.get(name, ()), attributes.get(f"{name}_as_tensor", ())
    if len(plain) and len(exact):
        damaged(f"both {name} and {name}_as_tensor have values")
    if len(exact):
        return typed(exact, f"{name}_as_tensor", dtype)
    return array(attributes, name).astype(dtype)


def typed(values: Array, name: str, dtype: np.dtype[Any]) -> Array:
    if values.dtype != dtype:
        raise UnsupportedModelError(
            f"{name} holds {values.dtype} numbers where the input asks for {dtype}; "
            "onnxruntime rejects such a model, so export it again."
        )
    return values


def same_length(attributes: Attributes, names: tuple[str, ...]) -> int:
    first = len(array(attributes, names[0]))
    for name in names[1:]:
        check_length(name, len(attributes.get(name, ())), names[0], first)
    return first


def check_length(name: str, length: int, first: str, wanted: int) -> None:
    if length != wanted:
        damaged(f"{name} has {length} entries, but {first} has {wanted}")


def tracks_true(attributes: Attributes, first: str, wanted: int) -> Array:
    """Return, for each node, whether NaN goes the way of a true test."""
    name = "nodes_missing_value_tracks_true"
    tracks = array(attributes, name)
    if not len(tracks):
        return np.zeros(wanted, np.bool_)
    check_length(name, len(tracks), first, wanted)
    return np.asarray(tracks == 1)
