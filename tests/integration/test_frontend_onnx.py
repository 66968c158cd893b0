"""Tests of ``unit/test_frontend_onnx.py`` that compile or start processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skforge import compile_forest, load_forest
from skforge.forest.arrays import Comparison
from tests.onnx_models import (
    MODES,
    POSTS,
    RandomTrees,
    assert_same_bits,
    check,
    make_model,
    onnx,
    run,
    runtime_version,
    tensor,
)
from tests.unit.test_frontend_onnx import (
    CONVERTED,
    LABELS,
    ODD_ROWS,
    leaf,
    regressor,
    table,
)

# ------------------------------------------------------------------ whole files


def test_airline(shared_models):
    path = shared_models / "airline.onnx"
    rows = np.loadtxt(shared_models / "airline_rows.csv", np.float32, delimiter=",")
    rows = np.ascontiguousarray(rows[:, :13])
    model = onnx.load(path)
    forest = check(model, rows, compiled=True)
    module = compile_forest(load_forest(path))
    expected = run(model, rows)[0][:, 0]
    assert_same_bits(module.predict(rows), expected)
    ones = [module.predict(rows[i : i + 1]) for i in range(50)]
    assert_same_bits(np.concatenate(ones), expected[:50])
    assert repr(forest) == (
        "<Forest onnx regression: 100 trees, 50942 nodes, 1387 distinct predicates, "
        "depth 5..8, 13 features, 1 outputs, float32 rows, float32 sums>"
    )


@pytest.mark.sampled(5)
@pytest.mark.parametrize("path", CONVERTED, ids=lambda path: path.stem)
def test_converted_models(path):
    random = np.random.default_rng(1)
    rows = random.normal(size=(300, 5)).astype(np.float32)
    rows[:, 3] = random.integers(-1, 7, 300) + random.choice([0, 0, 0.5], 300)
    rows[random.random(rows.shape) < 0.05] = np.nan
    check(onnx.load(path), rows, compiled=True)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_with_and_without_missing_tracks(mode, dtype):
    for seed, tracks in enumerate([False, True]):
        trees = RandomTrees(seed, modes=(mode,), tracks=tracks, dtype=dtype)
        model = make_model("TreeEnsembleRegressor", regressor(trees, 1), 4, dtype, 1)
        check(model, trees.rows(300, missing=0.2), compiled=True)


@pytest.mark.parametrize("base", [False, True])
def test_targets_of_some_trees_only(base):
    trees = RandomTrees(3, n_trees=9, modes=MODES)
    attributes = regressor(trees, 4, base)
    attributes |= trees.weights("target", lambda tree: [tree % 3])  # never target 3
    model = make_model("TreeEnsembleRegressor", attributes, 4)
    forest = check(model, trees.rows(200), compiled=True)
    assert forest.leaf_value.shape[1] == 1
    attributes |= trees.weights("target", lambda tree: [0, 1 + tree % 2])
    model = make_model("TreeEnsembleRegressor", attributes, 4)
    forest = check(model, trees.rows(200), compiled=True)
    assert forest.leaf_value.shape[1] == 4


def test_double_attributes_as_tensors():
    trees = RandomTrees(5, modes=MODES, dtype="float64")
    attributes = regressor(trees, 2)
    for name in ("nodes_values", "target_weights", "base_values"):
        exact = np.array(attributes.pop(name)) * (1 + 1e-12)
        attributes[f"{name}_as_tensor"] = tensor(exact)
    model = make_model("TreeEnsembleRegressor", attributes, 4, "float64", 3)
    rows = trees.rows(200)
    rows[::2] *= 1 + 1e-12
    forest = check(model, rows, compiled=True)
    assert forest.threshold.astype(np.float32).astype(np.float64).tolist() != (
        forest.threshold.tolist()
    )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize("base", [False, True])
@pytest.mark.parametrize("kind", ["numbers", "words"])
def test_multiclass_classifiers(kind, base, post):
    # every class, one class a tree, and never the last class
    for seed, scored in enumerate(([0, 1, 2], None, [0, 1])):
        trees = RandomTrees(seed, n_trees=6, modes=MODES)
        weights = trees.weights(
            "class", lambda tree, s=scored: [tree % 3] if s is None else s
        )
        if scored == [0, 1]:
            weights["class_weights"] = (-np.abs(weights["class_weights"])).tolist()
        key = "classlabels_strings" if kind == "words" else "classlabels_int64s"
        attributes = {
            **trees.table(),
            **weights,
            key: list(LABELS[kind]),
            "base_values": [0.25, -0.5, 0.125] if base else [],
            "post_transform": post,
        }
        model = make_model("TreeEnsembleClassifier", attributes, 4)
        check(model, trees.rows(150), compiled=seed == 1 and post == "NONE")


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32"])
def test_classifiers_of_other_rows(dtype):
    trees = RandomTrees(4, modes=MODES, dtype=dtype)
    weights = trees.weights("class", lambda tree: range(3))
    attributes = {**trees.table(), **weights, "classlabels_int64s": [0, 1, 2]}
    rows = trees.rows(200)
    if dtype != "float64":
        rows = np.nan_to_num(rows, posinf=9, neginf=-9).clip(-99, 99).astype(dtype)
    if dtype == "int64":
        rows[:5] = [[2**24 + 1, -(2**60) - 1, 2**31, 1]] * 5
    model = make_model("TreeEnsembleClassifier", attributes, 4, dtype)
    forest = check(model, rows, compiled=True)
    assert forest.input_dtype == (np.float64 if dtype == "float64" else np.float32)


def one_set(members: list[float], tracks: int, dtype: str) -> Any:
    attributes = {
        "nodes_featureids": [0],
        "nodes_splits": tensor(np.zeros(1, dtype)),
        "nodes_modes": tensor(np.array([6], np.uint8)),
        "nodes_truenodeids": [0],
        "nodes_trueleafs": [1],
        "nodes_falsenodeids": [1],
        "nodes_falseleafs": [1],
        "nodes_missing_value_tracks_true": [tracks],
        "membership_values": tensor(np.array(members, dtype)),
        "tree_roots": [0],
        "leaf_targetids": [0, 0],
        "leaf_weights": tensor(np.array([1, 2], dtype)),
        "n_targets": 1,
    }
    return make_model("TreeEnsemble", attributes, 1, dtype, 5)


VALUES = (
    *(0, 1, 1.5, 2, 2.5, 3, 5, 5.5, 30, 30.5, 31, 32, 33.9, 100, 2**24 + 2),
    *(-0.0, -0.5, -0.9, -1, -1.5, -5, 2**31, 2**32 + 5, 1e30, -1e30),
    *(np.inf, -np.inf, np.nan),
)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("tracks", [0, 1])
@pytest.mark.parametrize(
    "members",
    [[1, 2], [0], [0, 2, 5], [30, 1], [31, 1], [100, 5, 0], [*range(31)], [2**24 + 2]],
    ids=str,
)
def test_members_of_sets(members, tracks, dtype):
    rows = np.array(VALUES, dtype)[:, np.newaxis]
    check(one_set(members, tracks, dtype), rows, compiled=True)


def test_small_and_big_sets_in_one_forest():
    trees = RandomTrees(11, n_trees=20, modes=("BRANCH_LEQ", "BRANCH_EQ"))
    attributes = trees.lists(2, member=0.6)
    model = make_model("TreeEnsemble", attributes, 4, "float32", 5)
    forest = check(model, trees.rows(400), compiled=True)
    kinds = set(forest.comparison.tolist())
    assert kinds >= {Comparison.IN, Comparison.MEMBER, Comparison.EQ, Comparison.LE}


def test_a_tree_of_one_leaf():
    lone = {
        "nodes_featureids": [0, 0],
        "nodes_splits": tensor(np.zeros(2, np.float32)),
        "nodes_modes": tensor(np.zeros(2, np.uint8)),
        "nodes_truenodeids": [1, 0],
        "nodes_trueleafs": [1, 1],
        "nodes_falsenodeids": [1, 2],
        "nodes_falseleafs": [1, 1],
        "tree_roots": [0, 1],
        "leaf_targetids": [0, 0, 0],
        "leaf_weights": tensor(np.array([1, 2, 4], np.float32)),
        "n_targets": 1,
    }
    model = make_model("TreeEnsemble", lone, 1, "float32", 5)
    if runtime_version() >= (1, 30):  # earlier ones took another leaf
        check(model, np.array([[-1], [1]], np.float32), compiled=True)
    assert load_forest(model).tree_depths().tolist() == [0, 1]
    trees = RandomTrees(0, depth=0)
    model = make_model("TreeEnsembleRegressor", regressor(trees, 1), 4)
    check(model, trees.rows(9), compiled=True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("tracks", [0, 1])
@pytest.mark.parametrize("values", [(1, 2), (0, 33), (3, 2, 1), (0.5, 2)], ids=str)
def test_equality_chains_share_their_true_leaf(values, tracks):
    n = len(values)
    rows = [(i, "EQ", v, n, i + 1, tracks) for i, v in enumerate(values)]
    rows[-1] = (*rows[-1][:4], n + 1, tracks)
    attributes = table(*rows, leaf(n), leaf(n + 1))
    check(make_model("TreeEnsembleRegressor", attributes, 1), ODD_ROWS, compiled=True)


def test_equality_chains_share_a_true_subtree():
    attributes = table(
        (0, "EQ", 1, 2, 1, 0),
        (1, "EQ", 3, 2, 3, 0),
        (2, "LT", 2, 4, 5, 1),
        leaf(3),
        leaf(4),
        leaf(5),
    )
    model = make_model("TreeEnsembleRegressor", attributes, 1)
    forest = check(model, ODD_ROWS, compiled=True)
    assert forest.n_nodes == 5
