"""ONNX tree ensembles made by hand, at random, and run by onnxruntime on one thread."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skforge import Schedule, compile_forest, load_forest
from skforge.forest.reference import reference_raw
from tests.answers_of import apply_transform, class_labels, decide, predict_proba

onnx = pytest.importorskip("onnx")
TensorProto, helper = onnx.TensorProto, onnx.helper

MODES = tuple(f"BRANCH_{mode}" for mode in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ"))
POSTS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
DTYPES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "bool": TensorProto.BOOL,
    "object": TensorProto.STRING,
}

BLOCKED = Schedule().tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")
SCHEDULES = (
    None,
    BLOCKED,
    BLOCKED.vectorize("b1"),
    BLOCKED.tile_nodes(4, "uniform").interleave("b1", 4),
)


def runtime_version() -> tuple[int, int]:
    """Return which onnxruntime is here: what it does with odd models has changed."""
    major, minor = version("onnxruntime").split(".")[:2]
    return int(major), int(minor)


def run(model: Any, rows: np.ndarray, threads: int = 1) -> list[Any]:
    """Return the outputs of onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    one = session.get_inputs()[0].name
    return session.run(None, rows if isinstance(rows, dict) else {one: rows})


def assert_same_bits(found: Any, expected: Any) -> None:
    """Equal values, signs of zeros included, in the same dtype and shape."""
    assert found.dtype == expected.dtype
    assert_array_equal(found, expected)
    zero = found == 0
    assert_array_equal(np.signbit(found[zero]), np.signbit(expected[zero]))


def check(model: Any, rows: np.ndarray, compiled: bool = False) -> Any:
    """Compare the forest with onnxruntime: outputs, labels, and each row alone."""
    forest = load_forest(model)
    outputs = run(model, rows)
    scores = outputs[-1]
    if isinstance(scores, list):  # ZipMap
        scores = np.array([list(row.values()) for row in scores], np.float32)
    raw = reference_raw(forest, rows)
    if forest.task == "regression":
        flat = scores[:, 0] if scores.shape[1] == 1 else scores
        assert_same_bits(apply_transform(forest, raw), flat)
    else:
        assert_same_bits(predict_proba(forest, raw), scores)
        assert_array_equal(class_labels(forest)[decide(forest, raw)], outputs[0])
    for schedule in SCHEDULES if compiled else ():
        module = compile_forest(forest, schedule=schedule)
        assert_same_bits(module.predict_raw(rows).reshape(raw.shape), raw)
    return forest


def make_model(
    op: str,
    attributes: dict[str, Any],
    n_features: int | None,
    dtype: str = "float32",
    version: int = 3,
    *,
    before: tuple[Any, ...] = (),
    after: tuple[Any, ...] = (),
    outputs: tuple[Any, ...] = (),
    initializers: tuple[Any, ...] = (),
    graph_dtype: str | None = None,
    inputs: dict[str, tuple[str, int]] | None = None,
) -> Any:
    """Return a model of one ensemble that reads ``X``, or what ``before`` makes.

    ``inputs`` are the dtypes and widths of other inputs than ``X``.
    """
    strings = bool(attributes.get("classlabels_strings"))
    if op == "TreeEnsembleClassifier":
        label = TensorProto.STRING if strings else TensorProto.INT64
        own = (("label", label, [None]), ("scores", TensorProto.FLOAT, [None, None]))
    else:
        wide = op == "TreeEnsemble" and dtype == "float64"
        kind = TensorProto.DOUBLE if wide else TensorProto.FLOAT
        own = (("scores", kind, [None, None]),)
    attributes = {k: v for k, v in attributes.items() if not _empty(v)}
    source = before[-1].output[0] if before else "X"
    node = helper.make_node(
        op, [source], [o[0] for o in own], domain="ai.onnx.ml", **attributes
    )
    graph = helper.make_graph(
        [*before, node, *after],
        "trees",
        [
            helper.make_tensor_value_info(name, DTYPES[kind], [None, width])
            for name, (kind, width) in (
                inputs or {"X": (graph_dtype or dtype, n_features)}
            ).items()
        ],
        list(outputs) or [helper.make_tensor_value_info(*o) for o in own],
        initializer=list(initializers),
    )
    return helper.make_model(
        graph,
        opset_imports=[
            helper.make_opsetid("ai.onnx.ml", version),
            helper.make_opsetid("", 18),
        ],
        ir_version=9,
    )


def _empty(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and not len(value)


class RandomTrees:
    """Trees with random tests; thresholds are from a short list, so that rows tie."""

    def __init__(
        self,
        seed: int,
        n_trees: int = 7,
        n_features: int = 4,
        modes: tuple[str, ...] = ("BRANCH_LEQ",),
        depth: int = 4,
        tracks: bool = True,
        dtype: str = "float32",
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.n_features, self.dtype = n_features, dtype
        self.cuts = np.round(self.random.normal(0, 2, 6), 1)
        self.cuts = np.append(self.cuts, [0.0, 1.0, 2.0]).astype(np.float32)
        self.nodes: list[dict[str, Any]] = []
        self.leaves: list[tuple[int, int]] = []
        for tree in range(n_trees):
            self.n_nodes = 0
            self._grow(tree, modes, depth, tracks)

    def _grow(self, tree: int, modes: Any, depth: int, tracks: bool) -> int:
        number = self.n_nodes
        self.n_nodes += 1
        node = {
            "treeids": tree,
            "nodeids": number,
            "featureids": int(self.random.integers(self.n_features)),
            "modes": "LEAF",
            "values": 0.0,
            "truenodeids": 0,
            "falsenodeids": 0,
            "missing_value_tracks_true": 0,
        }
        self.nodes.append(node)
        if depth == 0 or self.random.random() < 0.15:
            self.leaves.append((tree, number))
            return number
        node["modes"] = str(self.random.choice(modes))
        node["values"] = float(self.random.choice(self.cuts))
        node["missing_value_tracks_true"] = int(tracks and self.random.random() < 0.5)
        node["truenodeids"] = self._grow(tree, modes, depth - 1, tracks)
        node["falsenodeids"] = self._grow(tree, modes, depth - 1, tracks)
        return number

    def table(self) -> dict[str, list[Any]]:
        """Return the ``nodes_*`` attributes of the operators before version 5."""
        return {f"nodes_{k}": [n[k] for n in self.nodes] for k in self.nodes[0]}

    def weights(
        self, kind: str, outputs: Any, values: Any = None
    ) -> dict[str, list[Any]]:
        """Return ``kind_*`` attributes; ``outputs(tree)`` gives a tree's outputs."""
        rows = [(t, n, k) for t, n in self.leaves for k in outputs(t)]
        if values is None:
            values = self.random.normal(size=len(rows))
        return {
            f"{kind}_treeids": [r[0] for r in rows],
            f"{kind}_nodeids": [r[1] for r in rows],
            f"{kind}_ids": [r[2] for r in rows],
            f"{kind}_weights": [float(v) for v in np.broadcast_to(values, len(rows))],
        }

    def lists(self, n_targets: int, member: float = 0.0) -> dict[str, Any]:
        """Return the attributes of ``TreeEnsemble``; some tests may become sets."""
        dtype = np.dtype(self.dtype)
        inner = [n for n in self.nodes if n["modes"] != "LEAF"]
        place = {(n["treeids"], n["nodeids"]): i for i, n in enumerate(inner)}
        leaf = {key: i for i, key in enumerate(self.leaves)}
        modes = [MODES.index(n["modes"]) for n in inner]
        sets: list[float] = []
        for i in range(len(inner)):
            if self.random.random() < member:
                modes[i] = 6
                sets += [*self.random.choice(40, self.random.integers(1, 9), False)]
                sets.append(np.nan)
        columns: dict[str, list[int]] = {}
        for side in ("true", "false"):
            keys = [(n["treeids"], n[f"{side}nodeids"]) for n in inner]
            columns[f"nodes_{side}leafs"] = [int(k in leaf) for k in keys]
            columns[f"nodes_{side}nodeids"] = [
                leaf[k] if k in leaf else place[k] for k in keys
            ]
        values = self.random.normal(size=len(leaf)).astype(dtype)
        splits = np.array([n["values"] for n in inner], dtype)
        result = {
            **columns,
            "nodes_featureids": [n["featureids"] for n in inner],
            "nodes_missing_value_tracks_true": [
                n["missing_value_tracks_true"] for n in inner
            ],
            "nodes_modes": tensor(np.array(modes, np.uint8)),
            "nodes_splits": tensor(splits),
            "leaf_targetids": self.random.integers(0, n_targets, len(leaf)).tolist(),
            "leaf_weights": tensor(values),
            "tree_roots": [place[t, 0] for t in sorted({n["treeids"] for n in inner})],
            "n_targets": n_targets,
        }
        if sets:
            result["membership_values"] = tensor(np.array(sets, dtype))
        return result

    def rows(self, n: int, missing: float = 0.1) -> np.ndarray:
        """Return rows on the thresholds, beside them, whole, infinite and missing."""
        random = self.random
        rows = random.choice(self.cuts, (n, self.n_features)).astype(self.dtype)
        beside = np.nextafter(rows, rows.dtype.type(random.choice([-9, 9])))
        rows = np.where(random.random(rows.shape) < 0.2, beside, rows)
        whole = random.integers(-2, 42, rows.shape).astype(rows.dtype)
        rows = np.where(random.random(rows.shape) < 0.3, whole, rows)
        if rows.dtype.kind == "f":
            odd = np.array([np.inf, -np.inf, -0.0, 1.5, 1e-40, 3e38], rows.dtype)
            odd = random.choice(odd, rows.shape)
            rows = np.where(random.random(rows.shape) < 0.05, odd, rows)
            rows[random.random(rows.shape) < missing] = np.nan
        return rows


def tensor(values: np.ndarray) -> Any:
    """Return a tensor attribute."""
    return onnx.numpy_helper.from_array(values)


def regressor(
    trees: RandomTrees, n_targets: int = 1, base: bool = False, **attributes: Any
) -> dict[str, Any]:
    """Return the attributes of a ``TreeEnsembleRegressor``."""
    weights = trees.weights("target", lambda tree: range(n_targets))
    if base:
        attributes["base_values"] = trees.random.normal(size=n_targets).tolist()
    return {**trees.table(), **weights, "n_targets": n_targets, **attributes}


def classifier(
    trees: RandomTrees, labels: Any, outputs: Any, sign: int = 0, **attributes: Any
) -> dict[str, Any]:
    """Return the attributes of a ``TreeEnsembleClassifier``; weights may have a sign.

    ``outputs(tree)`` gives the classes that a tree has weights for.
    """
    weights = trees.weights("class", outputs)
    if sign:
        weights["class_weights"] = (sign * np.abs(weights["class_weights"])).tolist()
    kind = "strings" if isinstance(labels[0], str) else "int64s"
    labels = {f"classlabels_{kind}": [*labels]}
    return {**trees.table(), **weights, **labels, **attributes}


def table(*rows: tuple[Any, ...]) -> dict[str, Any]:
    """Return one tree of (id, mode, value, true, false, tracks); leaves weigh 1, 2, 4.

    A leaf is its id alone.
    """
    rows = tuple(r if isinstance(r, tuple) else (r, "LEAF", 0, 0, 0, 0) for r in rows)
    leaves = [row[0] for row in rows if row[1] == "LEAF"]
    return {
        "nodes_treeids": [0] * len(rows),
        "nodes_nodeids": [r[0] for r in rows],
        "nodes_featureids": [0] * len(rows),
        "nodes_modes": [r[1] if r[1] == "LEAF" else f"BRANCH_{r[1]}" for r in rows],
        "nodes_values": [float(r[2]) for r in rows],
        "nodes_truenodeids": [r[3] for r in rows],
        "nodes_falsenodeids": [r[4] for r in rows],
        "nodes_missing_value_tracks_true": [r[5] for r in rows],
        "target_treeids": [0] * len(leaves),
        "target_nodeids": leaves,
        "target_ids": [0] * len(leaves),
        "target_weights": [2.0**i for i in range(len(leaves))],
        "n_targets": 1,
    }


def one_set(
    members: list[float], tracks: int, dtype: str, subtree: bool = False
) -> Any:
    """Return ``x in members ? (a leaf, or x < 1.3 ? leaf : leaf) : leaf``."""
    attributes = {
        "nodes_featureids": [0, 0],
        "nodes_splits": tensor(np.array([0, 1.3], dtype)),
        "nodes_modes": tensor(np.array([6, 1], np.uint8)),
        "nodes_truenodeids": [1, 1],
        "nodes_trueleafs": [int(not subtree), 1],
        "nodes_falsenodeids": [0, 2],
        "nodes_falseleafs": [1, 1],
        "nodes_missing_value_tracks_true": [tracks, 1],
        "membership_values": tensor(np.array([*members, np.nan], dtype)),
        "tree_roots": [0],
        "leaf_targetids": [0, 0, 0],
        "leaf_weights": tensor(np.array([1, 2, 4], dtype)),
        "n_targets": 1,
    }
    return make_model("TreeEnsemble", attributes, 1, dtype, 5)


def least(n_targets: int = 1) -> tuple[Any, RandomTrees]:
    """Return a model that answers the least of its trees' leaves."""
    trees = RandomTrees(8, n_trees=12)
    attributes = regressor(trees, n_targets, aggregate_function="MIN")
    return make_model("TreeEnsembleRegressor", attributes, 4), trees
