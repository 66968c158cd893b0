"""Reads both forms of ONNX's tree ensembles, tables and lists, into one description.

Messages are read field by field, so that damaged or hostile files raise skforge's
exceptions. The schemas of the ``onnx`` package say which attributes a node may have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar, get_args

import numpy as np

from skforge._typing import Array, FloatArray
from skforge.exceptions import UnsupportedModelError
from skforge.forest.arrays import Comparison
from skforge.forest.outputs import Post
from skforge.forest.validation import damaged, first_true
from skforge.frontends.arrays import Ints
from skforge.frontends.checks import MAX_OUTPUTS, refuse_unknown
from skforge.frontends.onnx.trees import Graph, Weights, merge_equal_chains

Name = TypeVar("Name", bound=str)

Attributes: TypeAlias = dict[str, Any]

_MODES = {
    b"BRANCH_LEQ": int(Comparison.LE),
    b"BRANCH_LT": int(Comparison.LT),
    b"BRANCH_GTE": int(Comparison.GE),
    b"BRANCH_GT": int(Comparison.GT),
    b"BRANCH_EQ": int(Comparison.EQ),
    b"BRANCH_NEQ": int(Comparison.NE),
    b"LEAF": -1,
}
# by the numbers in nodes_modes of TreeEnsemble
_MODE_NUMBERS = np.array([*list(_MODES.values())[:6], int(Comparison.MEMBER)])
_POSTS: dict[bytes, Post] = {
    b"NONE": "none",
    b"SOFTMAX": "softmax",
    b"LOGISTIC": "logistic",
    b"SOFTMAX_ZERO": "softmax_zero",
    b"PROBIT": "probit",
}
# by the numbers in post_transform of TreeEnsemble; the specification has 1 for softmax
# and 2 for logistic, but onnxruntime (1.31) computes these
_POST_NUMBERS: tuple[Post, ...] = get_args(Post)
_AGGREGATE_NUMBERS = ("AVERAGE", "SUM", "MIN", "MAX")
_AGGREGATES = {name.encode(): name for name in _AGGREGATE_NUMBERS}


class Ensemble(NamedTuple):
    graph: Graph
    weights: Weights
    unweighted: FloatArray
    n_outputs: int
    base: FloatArray
    post: Post
    aggregate: str = "SUM"
    labels: tuple[str | int, ...] = ()


def read_table(
    attributes: Attributes, dtype: np.dtype[Any], classifier: bool
) -> Ensemble:
    columns = "nodeids", "treeids", "featureids", "modes", "truenodeids", "falsenodeids"
    names = tuple(f"nodes_{column}" for column in columns)
    n_nodes = same_length(attributes, names)
    value = numbers(attributes, "nodes_values", dtype)
    check_length("nodes_values", len(value), names[0], n_nodes)
    tracks = tracks_true(attributes, names[0], n_nodes)
    modes = _mode_codes(attributes.get("nodes_modes", []))
    tree, node = array(attributes, "nodes_treeids"), array(attributes, "nodes_nodeids")
    find, roots = _index(tree, node)
    is_leaf = modes < 0
    refer = []
    for name in ("nodes_truenodeids", "nodes_falsenodeids"):
        ids = array(attributes, name)
        at, known = find(tree, ids)
        bad = ~is_leaf & (~known | (ids >= n_nodes))
        if (i := first_true(bad)) >= 0:
            damaged(f"{name}[{i}] = {ids[i]} is not a node of tree {tree[i]}")
        refer.append(np.where(is_leaf[at], ~at, at))
    graph = Graph(
        feature=np.where(is_leaf, 0, array(attributes, "nodes_featureids")),
        comparison=np.maximum(modes, 0),
        value=value,
        tracks=tracks,
        true=refer[0],
        false=refer[1],
        number=node,
        leaf_number=node,
        roots=np.where(is_leaf[roots], ~roots, roots),
        members={},
    )
    kind = "class" if classifier else "target"
    weight = numbers(attributes, f"{kind}_weights", dtype)
    names = f"{kind}_ids", f"{kind}_nodeids", f"{kind}_treeids"
    n_weights = same_length(attributes, names)
    check_length(f"{kind}_weights", len(weight), names[0], n_weights)
    output, ids, tree_ids = (array(attributes, name) for name in names)
    row, known = find(tree_ids, ids)
    if (i := first_true(~known)) >= 0:
        damaged(f"{names[1]}[{i}] = {ids[i]} is not a node of tree {tree_ids[i]}")
    labels = _labels(attributes) if classifier else ()
    n_outputs = len(labels) if classifier else int(attributes.get("n_targets", 0))
    _check_outputs(output, n_outputs, f"{kind}_ids")
    base = numbers(attributes, "base_values", dtype)
    allowed = (0, 1, 2) if classifier and n_outputs == 2 else (0, n_outputs)
    if len(base) not in allowed:
        damaged(f"base_values has {len(base)} entries for {n_outputs} outputs")
    return Ensemble(
        graph=merge_equal_chains(graph),
        weights=Weights(row, output, weight),
        unweighted=value,
        n_outputs=n_outputs,
        base=base,
        post=_named(attributes, "post_transform", _POSTS, b"NONE"),
        aggregate=_named(attributes, "aggregate_function", _AGGREGATES, b"SUM"),
        labels=labels,
    )


def read_ensemble(attributes: Attributes, dtype: np.dtype[Any]) -> Ensemble:
    n_tests = same_length(
        attributes,
        (
            *("nodes_featureids", "nodes_modes", "nodes_splits", "nodes_truenodeids"),
            *("nodes_trueleafs", "nodes_falsenodeids", "nodes_falseleafs"),
        ),
    )
    n_leaves = same_length(attributes, ("leaf_targetids", "leaf_weights"))
    modes = array(attributes, "nodes_modes")
    if modes.dtype != np.uint8 and len(modes):
        damaged(f"nodes_modes holds {modes.dtype} numbers")
    modes = modes.astype(np.int64)
    if len(modes) and modes.max() >= len(_MODE_NUMBERS):
        raise UnsupportedModelError(
            f"nodes_modes[{modes.argmax()}] is the unknown mode {modes.max()}."
        )
    refer = []
    for side in ("true", "false"):
        ids = array(attributes, f"nodes_{side}nodeids")
        to_leaf = array(attributes, f"nodes_{side}leafs") != 0
        bad = (ids < 0) | (ids >= np.where(to_leaf, n_leaves, n_tests))
        if (i := first_true(bad)) >= 0:
            what = "leaf" if to_leaf[i] else "node"
            damaged(f"nodes_{side}nodeids[{i}] = {ids[i]} is not a {what}")
        refer.append(np.where(to_leaf, ~ids, ids))
    roots = array(attributes, "tree_roots")
    if not len(roots) or roots.min() < 0 or roots.max() >= n_tests:
        damaged("tree_roots is empty or does not name nodes")
    # a tree of one leaf is stored as a test that leads to it either way
    same_leaf = (refer[0] == refer[1]) & (refer[0] < 0)
    sets = _members(modes, array(attributes, "membership_values"))
    comparison = _MODE_NUMBERS[modes]
    # onnxruntime truncates values for sets that do not fit its masks
    cut = [k for k, v in sets.items() if len(v) > 30 or v.max() > 30 or v.min() < 0]
    comparison[cut] = Comparison.IN
    splits = typed(array(attributes, "nodes_splits"), "nodes_splits", dtype)
    graph = Graph(
        feature=array(attributes, "nodes_featureids"),
        comparison=comparison,
        value=splits,
        tracks=tracks_true(attributes, "nodes_featureids", n_tests),
        true=refer[0],
        false=refer[1],
        number=np.arange(n_tests),
        leaf_number=np.arange(n_leaves),
        roots=np.where(same_leaf[roots], refer[0][roots], roots),
        members=sets,
    )
    output = array(attributes, "leaf_targetids")
    n_outputs = int(attributes.get("n_targets", 0))
    _check_outputs(output, n_outputs, "leaf_targetids")
    weight = typed(array(attributes, "leaf_weights"), "leaf_weights", dtype)
    post = attributes.get("post_transform", 0)
    aggregate = attributes.get("aggregate_function", 1)
    for name, number, known in (
        ("post_transform", post, _POST_NUMBERS),
        ("aggregate_function", aggregate, _AGGREGATE_NUMBERS),
    ):
        if not 0 <= number < len(known):
            raise UnsupportedModelError(f"{name} is the unknown number {number}.")
    return Ensemble(
        graph=graph,
        weights=Weights(np.arange(n_leaves), output, weight),
        unweighted=np.zeros(n_leaves, dtype),
        n_outputs=n_outputs,
        base=np.zeros(0, dtype),
        post=_POST_NUMBERS[post],
        aggregate=_AGGREGATE_NUMBERS[aggregate],
    )


def _mode_codes(modes: list[bytes]) -> Ints:
    codes = np.fromiter((_MODES.get(m, -2) for m in modes), np.int64, len(modes))
    if (at := first_true(codes == -2)) >= 0:
        raise UnsupportedModelError(
            f"nodes_modes[{at}] is the unknown mode "
            f"{modes[at][:40].decode(errors='replace')!r}."
        )
    return codes


def _index(tree: Array, node: Array) -> Any:
    """Return a function from (tree, node) to (row, whether found), and root rows."""
    if not len(tree):
        damaged("nodes_nodeids is empty")
    for name, ids in (("nodes_treeids", tree), ("nodes_nodeids", node)):
        if (i := first_true((ids < 0) | (ids >= 1 << 31))) >= 0:
            damaged(f"{name}[{i}] = {ids[i]} is outside 0..{2**31 - 1}")
    key = (tree << 31) | node
    order = np.argsort(key, kind="stable")
    ranked = key[order]
    same = ranked[1:] == ranked[:-1]
    if same.any():
        i = int(order[1:][same][0])
        damaged(f"node {node[i]} of tree {tree[i]} is given twice")
    roots = np.flatnonzero(np.diff(tree, prepend=-1))
    values, counts = np.unique(tree[roots], return_counts=True)
    if (at := first_true(counts == max(2, counts.max()))) >= 0:
        damaged(f"the nodes of tree {values[at]} are not next to each other")

    def find(trees: Array, nodes: Array) -> Any:
        wanted = (trees << 31) | nodes
        sane = (trees >= 0) & (trees < 1 << 31) & (nodes >= 0) & (nodes < 1 << 31)
        at = order[np.minimum(np.searchsorted(ranked, wanted), len(ranked) - 1)]
        return at, sane & (key[at] == wanted)

    return find, roots


def _members(modes: Ints, values: Array) -> dict[int, FloatArray]:
    tests = np.flatnonzero(modes == len(_MODE_NUMBERS) - 1).tolist()
    if not tests:
        return {}
    if values.dtype.kind != "f":
        damaged("membership_values has no numbers")
    parts = np.split(values, np.flatnonzero(np.isnan(values)))
    sets = {}
    for i, test in enumerate(tests):
        part = parts[i] if i < len(parts) else values[:0]
        sets[test] = part[~np.isnan(part)]
        if not len(sets[test]):
            damaged(f"membership_values has no set for node {test}")
    return sets


def _labels(attributes: Attributes) -> tuple[str | int, ...]:
    strings = attributes.get("classlabels_strings", [])
    if strings:
        try:
            return tuple(label.decode() for label in strings)
        except UnicodeDecodeError:
            damaged("classlabels_strings holds bytes that are not UTF-8 text")
    labels: list[int] = array(attributes, "classlabels_int64s").tolist()
    if len(labels) < 2:
        raise UnsupportedModelError(
            f"The classifier has {len(labels)} class label(s); onnxruntime gives no "
            "defined output for fewer than two."
        )
    return tuple(labels)


def _check_outputs(output: Array, n_outputs: int, name: str) -> None:
    if not 1 <= n_outputs <= MAX_OUTPUTS:
        damaged(f"The model has {n_outputs} outputs, which is outside 1..{MAX_OUTPUTS}")
    if (i := first_true((output < 0) | (output >= n_outputs))) >= 0:
        damaged(f"{name}[{i}] = {output[i]} is outside 0..{n_outputs - 1}")


def _named(
    attributes: Attributes, name: str, known: Mapping[bytes, Name], default: bytes
) -> Name:
    value = attributes.get(name, default)
    if value not in known:
        raise UnsupportedModelError(
            f"{name} is {value[:40].decode(errors='replace')!r}, which is unknown; "
            f"known are {', '.join(k.decode() for k in known)}."
        )
    return known[value]


# ------------------------------------------------------------ attributes


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
    1: ("a number", lambda a: float(a.f)),
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
