"""ONNX tree ensembles give the bits that onnxruntime gives on one thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skforge import load_forest
from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.arrays import Comparison
from tests.onnx_models import (
    MODES,
    POSTS,
    RandomTrees,
    check,
    make_model,
    onnx,
    runtime_version,
)
from tests.refusals import error_of

CONVERTED = sorted((Path(__file__).parents[1] / "data" / "onnx_models").glob("*.onnx"))


def test_chains_of_equality_become_sets():
    path = next(path for path in CONVERTED if path.stem == "lgb_sets")
    forest = load_forest(path)
    assert (forest.comparison == Comparison.MEMBER).any()


# ------------------------------------------------------------------ random models


def regressor(
    trees: RandomTrees, n_targets: int, base: bool = True, **attributes: Any
) -> dict[str, Any]:
    weights = trees.weights("target", lambda tree: range(n_targets))
    values = trees.random.normal(size=n_targets).tolist() if base else []
    return {
        **trees.table(),
        **weights,
        "n_targets": n_targets,
        "base_values": values,
        **attributes,
    }


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_targets", [1, 3])
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE"])
@pytest.mark.parametrize("post", POSTS)
def test_regressors(post, aggregate, n_targets, dtype):
    trees = RandomTrees(7, modes=MODES, dtype=dtype)
    attributes = regressor(
        trees, n_targets, post_transform=post, aggregate_function=aggregate
    )
    if post == "PROBIT":  # of numbers between 0 and 1
        attributes["target_weights"] = (
            np.abs(attributes["target_weights"]) / 20
        ).tolist()
        attributes["base_values"] = np.abs(attributes["base_values"]).tolist()
    model = make_model("TreeEnsembleRegressor", attributes, 4, dtype, 1)
    check(model, trees.rows(200))


def test_only_the_first_weight_of_a_leaf_counts_with_one_target():
    trees = RandomTrees(2, n_trees=3)
    attributes = regressor(trees, 1)
    for name in ("treeids", "nodeids", "ids"):
        attributes[f"target_{name}"] = attributes[f"target_{name}"] * 2
    attributes["target_weights"] += [100.0] * len(attributes["target_weights"])
    check(make_model("TreeEnsembleRegressor", attributes, 4), trees.rows(100))


def test_a_leaf_without_weight_adds_its_node_value_to_one_target():
    trees = RandomTrees(2, n_trees=3)
    attributes = regressor(trees, 1)
    for name in ("treeids", "nodeids", "ids", "weights"):
        del attributes[f"target_{name}"][::2]
    values = np.array(attributes["nodes_values"])
    leaf = np.array(attributes["nodes_modes"]) == "LEAF"
    values[leaf] = trees.random.normal(size=leaf.sum())
    attributes["nodes_values"] = values.tolist()
    check(make_model("TreeEnsembleRegressor", attributes, 4), trees.rows(100))


@pytest.mark.parametrize("function", ["MIN", "MAX"])
def test_one_tree_has_any_aggregate(function):
    trees = RandomTrees(2, n_trees=1)
    attributes = regressor(trees, 2, aggregate_function=function)
    check(make_model("TreeEnsembleRegressor", attributes, 4), trees.rows(100))


LABELS: dict[str, tuple[Any, ...]] = {
    "numbers": (5, -3, 8),
    "words": ("one", "two", "drei"),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize("n_base", [0, 1, 2])
@pytest.mark.parametrize("kind", ["numbers", "words"])
def test_binary_classifiers(kind, n_base, post):
    seen = 0
    for seed, (scored, positive) in enumerate(
        (s, p) for s in ([0], [1], [0, 1]) for p in (False, True)
    ):
        trees = RandomTrees(seed, n_trees=4, modes=MODES, depth=3)
        weights = trees.weights("class", lambda tree, s=scored: s)
        if positive:
            weights["class_weights"] = np.abs(weights["class_weights"]).tolist()
        key = "classlabels_strings" if kind == "words" else "classlabels_int64s"
        base = trees.random.normal(size=n_base).tolist()
        attributes = {
            **trees.table(),
            **weights,
            key: list(LABELS[kind][:2]),
            "base_values": base,
            "post_transform": post,
        }
        model = make_model("TreeEnsembleClassifier", attributes, 4)
        if (scored == [0] and n_base < 2 and post == "PROBIT") or (
            scored == [1] and n_base == 2
        ):
            with pytest.raises(UnsupportedModelError):
                load_forest(model)
            continue
        # onnxruntime before 1.26 left the logistic function out of these.
        odd = positive and scored == [0] and n_base < 2 and post == "LOGISTIC"
        if odd and runtime_version() < (1, 26):
            continue
        check(model, trees.rows(100))
        seen += 1
    assert seen >= 4


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("post", range(5))
def test_tree_ensemble_5(post, dtype):
    for seed, n_targets in enumerate([1, 3]):
        trees = RandomTrees(seed, modes=MODES, dtype=dtype)
        attributes = trees.lists(n_targets, member=0.3)
        attributes["post_transform"] = post
        attributes["aggregate_function"] = seed
        check(make_model("TreeEnsemble", attributes, 4, dtype, 5), trees.rows(300))


# ------------------------------------------------------------------ odd trees


def table(*rows: tuple[Any, ...], weights: Any = None) -> dict[str, Any]:
    """One tree from (id, mode, value, true, false, tracks); leaves weigh 1, 2, .."""
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
        "target_weights": [float(i + 1) for i in range(len(leaves))],
        "n_targets": 1,
    }


def leaf(number: int) -> tuple[Any, ...]:
    return (number, "LEAF", 0, 0, 0, 0)


ODD_ROWS = np.array(
    [0, -0.0, 0.5, 1, 2, 2.5, 3, 33, 33.5, np.nan, np.inf, -np.inf], np.float32
)[:, np.newaxis]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("mode", ["LEQ", "LT", "GTE", "GT", "EQ", "NEQ"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, -0.0])
def test_odd_thresholds(mode, value):
    for tracks in (0, 1):
        attributes = table((0, mode, value, 1, 2, tracks), leaf(1), leaf(2))
        check(make_model("TreeEnsembleRegressor", attributes, 1), ODD_ROWS)


def test_the_first_node_is_the_root_and_unreached_nodes_do_no_harm():
    attributes = table((4, "LEQ", 1, 2, 3, 0), leaf(2), leaf(3), leaf(0), leaf(1))
    forest = check(make_model("TreeEnsembleRegressor", attributes, 1), ODD_ROWS)
    assert forest.source_node.tolist() == [4, 2, 3]


# ------------------------------------------------------------------ graphs


def node(op: str, source: str, output: str, **attributes: Any) -> Any:
    return onnx.helper.make_node(op, [source], [output], **attributes)


def simple(**options: Any) -> tuple[Any, RandomTrees]:
    trees = RandomTrees(1, modes=MODES, dtype=options.get("dtype", "float32"))
    return make_model("TreeEnsembleRegressor", regressor(trees, 1), 4, **options), trees


@pytest.mark.parametrize(
    ("graph_dtype", "dtype", "rows"),
    [
        ("float64", "float32", "float32"),
        ("float32", "float64", "float32"),
        ("int64", "float64", "float64"),
        ("int32", "float32", "float32"),
    ],
)
def test_casts_of_the_rows(graph_dtype, dtype, rows):
    to = {"float32": 1, "float64": 11}[dtype]
    cast = node("Cast", "X", "cast", to=to)
    model, trees = simple(dtype=dtype, graph_dtype=graph_dtype, before=(cast,))
    data = trees.rows(300)
    if graph_dtype.startswith("int"):
        data = np.nan_to_num(data, posinf=9, neginf=-9).clip(-99, 99)
    forest = check(model, data.astype(graph_dtype))
    assert forest.input_dtype == rows


def test_a_cast_through_float_loses_bits_as_there():
    casts = (node("Cast", "X", "a", to=1), node("Cast", "a", "b", to=11))
    model, trees = simple(dtype="float64", graph_dtype="float64", before=casts)
    rows = trees.rows(300)
    rows[::2] *= 1 + 1e-12
    assert check(model, rows).input_dtype == np.float32


def test_nodes_that_pass_values_on():
    shape = onnx.numpy_helper.from_array(np.array([-1, 4]), "shape")
    before = (
        node("Identity", "X", "a"),
        onnx.helper.make_node("Reshape", ["a", "shape"], ["b"]),
    )
    after = (node("Identity", "scores", "Y"),)
    output = onnx.helper.make_tensor_value_info("Y", 1, [None, None])
    model, trees = simple(
        before=before, after=after, outputs=(output,), initializers=(shape,)
    )
    check(model, trees.rows(50))


@pytest.mark.parametrize("op", ["Abs", "Softmax"])
def test_nodes_before_that_do_more_are_named(op):
    model, _ = simple(before=(node(op, "X", "out", name="mine"),))
    assert error_of(UnsupportedModelError, load_forest, model) == (
        f"The node 'mine' ({op}) is no operator that skforge knows there, so it cannot "
        "become part of the trees; if the model was converted from a scikit-learn "
        "pipeline, give skforge the pipeline, or convert its last step alone."
    )


def test_nodes_after_that_do_more_are_named():
    output = onnx.helper.make_tensor_value_info("Y", 1, [None, None])
    cosine = node("Cos", "scores", "Y", name="to_rate")
    model, _ = simple(after=(cosine,), outputs=(output,))
    with pytest.raises(
        UnsupportedModelError, match=r"^The node 'to_rate' \(Cos\) is no operator"
    ):
        load_forest(model)


def test_features_come_from_the_shape_or_from_the_tests():
    trees = RandomTrees(1, n_features=3)
    attributes = regressor(trees, 1)
    used = 1 + max(
        f
        for f, mode in zip(
            attributes["nodes_featureids"], attributes["nodes_modes"], strict=True
        )
        if mode != "LEAF"
    )
    model = make_model("TreeEnsembleRegressor", attributes, 9)
    assert load_forest(model).n_features == 9
    model = make_model("TreeEnsembleRegressor", attributes, None)
    assert load_forest(model).n_features == used


def test_rounds_are_refused():
    model, _ = simple()
    with pytest.raises(UnsupportedModelError) as error:
        load_forest(model, iteration_range=(0, 1))
    assert str(error.value) == "An ONNX model has no boosting rounds to choose from."


def test_a_graph_without_trees():
    model, _ = simple()
    del model.graph.node[:]
    assert error_of(InvalidModelError, load_forest, model) == (
        "The graph has no node TreeEnsembleRegressor, TreeEnsembleClassifier or "
        "TreeEnsemble, so there are no trees to read; the file is damaged or another "
        "kind of model."
    )
