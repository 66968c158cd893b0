"""ONNX tree ensembles give the bits that onnxruntime gives on one thread."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skforge
from skforge import compile_forest, load_forest
from skforge.exceptions import (
    InvalidInputError,
    InvalidModelError,
    UnsupportedModelError,
)
from skforge.forest.arrays import Comparison
from skforge.forest.record import forest_in, forest_out
from skforge.forest.reference import reference_raw
from skforge.frontends.onnx import trees as trees_of_onnx
from tests.onnx_models import (
    MODES,
    POSTS,
    RandomTrees,
    assert_same_bits,
    check,
    classifier,
    least,
    make_model,
    one_set,
    onnx,
    regressor,
    run,
    runtime_version,
    table,
    tensor,
)
from tests.refusals import error_of

CONVERTED = sorted((Path(__file__).parents[1] / "data" / "onnx_models").glob("*.onnx"))


def check_regressor(
    attributes: Any, rows: Any, width: int | None = 4, dtype: str = "float32"
) -> Any:
    model = make_model("TreeEnsembleRegressor", attributes, width, dtype, 3)
    return check(model, rows)


def rows_of_converted() -> Any:
    random = np.random.default_rng(1)
    rows = random.normal(size=(300, 5)).astype(np.float32)
    rows[:, 3] = random.integers(-1, 7, 300) + random.choice([0, 0, 0.5], 300)
    rows[random.random(rows.shape) < 0.05] = np.nan
    return rows


@pytest.mark.parametrize("path", CONVERTED, ids=lambda path: path.stem)
def test_converted_models(path):
    forest = check(onnx.load(path), rows_of_converted())
    if path.stem == "lgb_sets":  # of chains of tests of equality
        assert (forest.comparison == Comparison.MEMBER).any()


# ------------------------------------------------------------------ regressors


@pytest.mark.sampled(14)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_targets", [1, 3])
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("post", POSTS)
def test_regressors(post, aggregate, n_targets, dtype):
    trees = RandomTrees(7, modes=MODES, dtype=dtype)
    how = {"post_transform": post, "aggregate_function": aggregate}
    attributes = regressor(trees, n_targets, base=True, **how)
    if post == "PROBIT":  # of numbers between 0 and 1
        weights = np.abs(attributes["target_weights"]) / 20
        attributes["target_weights"] = weights.tolist()
        attributes["base_values"] = (np.abs(attributes["base_values"]) / 4).tolist()
    model = make_model("TreeEnsembleRegressor", attributes, 4, dtype, 1)
    check(model, trees.rows(200))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_with_and_without_missing_tracks(mode, dtype):
    for seed, tracks in enumerate([False, True]):
        trees = RandomTrees(seed, modes=(mode,), tracks=tracks, dtype=dtype)
        check_regressor(regressor(trees), trees.rows(300, missing=0.2), 4, dtype)


@pytest.mark.parametrize("base", [False, True])
def test_targets_of_some_trees_only(base):
    trees = RandomTrees(3, n_trees=9, modes=MODES)
    attributes = regressor(trees, 4, base)
    for outputs, width in (
        (lambda tree: [tree % 3], 1),  # never target 3
        (lambda tree: [0, 1 + tree % 2], 4),
    ):
        attributes |= trees.weights("target", outputs)
        forest = check_regressor(attributes, trees.rows(200))
        assert forest.leaf_value.shape[1] == width


def test_double_attributes_as_tensors():
    trees = RandomTrees(5, modes=MODES, dtype="float64")
    attributes = regressor(trees, 2, base=True)
    for name in ("nodes_values", "target_weights", "base_values"):
        exact = np.array(attributes.pop(name)) * (1 + 1e-12)
        attributes[f"{name}_as_tensor"] = tensor(exact)
    rows = trees.rows(200)
    rows[::2] *= 1 + 1e-12
    forest = check_regressor(attributes, rows, 4, "float64")
    assert (forest.threshold.astype(np.float32) != forest.threshold).any()


def test_only_the_first_weight_of_a_leaf_counts_with_one_target():
    trees = RandomTrees(2, n_trees=3)
    attributes = regressor(trees)
    for name in ("treeids", "nodeids", "ids"):
        attributes[f"target_{name}"] = attributes[f"target_{name}"] * 2
    attributes["target_weights"] += [100.0] * len(attributes["target_weights"])
    check_regressor(attributes, trees.rows(100))


def test_a_leaf_without_weight_adds_its_node_value_to_one_target():
    trees = RandomTrees(2, n_trees=3)
    attributes = regressor(trees)
    for name in ("treeids", "nodeids", "ids", "weights"):
        del attributes[f"target_{name}"][::2]
    values = np.array(attributes["nodes_values"])
    leaf = np.array(attributes["nodes_modes"]) == "LEAF"
    values[leaf] = trees.random.normal(size=leaf.sum())
    check_regressor(attributes | {"nodes_values": values.tolist()}, trees.rows(100))


@pytest.mark.parametrize("aggregate", ["MIN", "MAX"])
@pytest.mark.parametrize("n_trees", [1, 4])
@pytest.mark.parametrize("n_targets", [1, 2])
def test_signs_of_zeros(n_targets, n_trees, aggregate):
    trees = RandomTrees(2, n_trees=n_trees)
    attributes = regressor(trees, n_targets, aggregate_function=aggregate)
    size = len(attributes["target_weights"])
    attributes["target_weights"] = trees.random.choice([0.0, -0.0], size).tolist()
    check_regressor(attributes, trees.rows(100))


def with_more_weights(
    trees: RandomTrees, attributes: dict[str, Any], kind: str
) -> dict[str, Any]:
    """Give a third of the leaves further weights, some of them for the same output."""
    names = [f"{kind}_{name}" for name in ("treeids", "nodeids", "ids", "weights")]
    size = len(attributes[names[0]])
    for at in trees.random.choice(size, size // 3).tolist():
        for name in names[:3]:
            attributes[name].append(attributes[name][at])
        attributes[names[3]].append(float(trees.random.normal()))
    order = trees.random.permutation(len(attributes[names[0]]))
    return attributes | {n: [attributes[n][i] for i in order] for n in names}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("n_trees", [1, 6])
def test_several_weights_of_a_leaf_for_one_target(n_trees, aggregate, dtype):
    for seed in range(3):
        trees = RandomTrees(seed, n_trees=n_trees, modes=MODES, dtype=dtype)
        attributes = regressor(trees, 3, aggregate_function=aggregate)
        attributes = with_more_weights(trees, attributes, "target")
        check_regressor(attributes, trees.rows(150), 4, dtype)


# ------------------------------------------------------------------ classifiers

LABELS: dict[str, tuple[Any, ...]] = {
    "numbers": (5, -3, 8),
    "words": ("one", "two", "drei"),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize("n_base", [0, 1, 2])
@pytest.mark.parametrize("kind", LABELS)
def test_binary_classifiers(kind, n_base, post):
    seen = 0
    for seed, (scored, positive) in enumerate(
        (s, p) for s in ([0], [1], [0, 1]) for p in (False, True)
    ):
        trees = RandomTrees(seed, n_trees=4, modes=MODES, depth=3)
        labels, outputs = LABELS[kind][:2], lambda tree, s=scored: s
        attributes = classifier(
            trees, labels, outputs, int(positive), post_transform=post
        )
        attributes["base_values"] = trees.random.normal(size=n_base).tolist()
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


@pytest.mark.sampled(6)
@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize("base", [[], [0.25, -0.5, 0.125]])
@pytest.mark.parametrize("kind", LABELS)
def test_multiclass_classifiers(kind, base, post):
    # every class, one class a tree, and never the last class
    for seed, outputs, sign in (
        (0, lambda tree: [0, 1, 2], 0),
        (1, lambda tree: [tree % 3], 0),
        (2, lambda tree: [0, 1], -1),
    ):
        trees = RandomTrees(seed, n_trees=6, modes=MODES)
        how = {"base_values": base, "post_transform": post}
        attributes = classifier(trees, LABELS[kind], outputs, sign, **how)
        check(make_model("TreeEnsembleClassifier", attributes, 4), trees.rows(150))


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32"])
def test_classifiers_of_other_rows(dtype):
    trees = RandomTrees(4, modes=MODES, dtype=dtype)
    attributes = classifier(trees, (0, 1, 2), lambda tree: range(3))
    rows = trees.rows(200)
    if dtype != "float64":
        rows = np.nan_to_num(rows, posinf=9, neginf=-9).clip(-99, 99).astype(dtype)
    if dtype == "int64":
        rows[:5] = [[2**24 + 1, -(2**60) - 1, 2**31, 1]] * 5
    forest = check(make_model("TreeEnsembleClassifier", attributes, 4, dtype), rows)
    assert forest.input_dtype == (np.float64 if dtype == "float64" else np.float32)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("post", ["NONE", "SOFTMAX"])
def test_several_weights_of_a_leaf_for_one_class(post, n_classes):
    for seed in range(3):
        trees = RandomTrees(seed, modes=MODES)
        attributes = classifier(
            trees, [*range(n_classes)], lambda tree: range(n_classes)
        )
        attributes = with_more_weights(trees, attributes, "class")
        attributes["post_transform"] = post
        check(make_model("TreeEnsembleClassifier", attributes, 4), trees.rows(150))


# ------------------------------------------------------------------ TreeEnsemble, sets


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("post", range(5))
def test_tree_ensemble_5(post, dtype):
    for seed, n_targets in enumerate([1, 3]):
        trees = RandomTrees(seed, modes=MODES, dtype=dtype)
        attributes = trees.lists(n_targets, member=0.3)
        attributes |= {"post_transform": post, "aggregate_function": seed}
        check(make_model("TreeEnsemble", attributes, 4, dtype, 5), trees.rows(300))


VALUES = (
    *(0, 1, 1.5, 2, 2.5, 3, 5, 5.5, 30, 30.5, 31, 32, 33.9, 100, 2**24 + 2),
    *(-0.0, -0.5, -0.9, -1, -1.5, -5, 2**31, 2**32 + 5, 1e30, -1e30),
    *(np.inf, -np.inf, np.nan),
)
SETS = (
    [1, 2],
    [0],
    [0, 2, 5],
    [30, 1],
    [31, 1],
    [100, 5, 0],
    [*range(31)],
    [2**24 + 2],
)
FRACTIONS = ([1.2, 3.7, 8, 9], [0.5], [1.5, 0.5], [1.5, 1.5, 3], [2, 30, 0.1, 0])


@pytest.mark.sampled(14)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("subtree", [False, True])
@pytest.mark.parametrize("tracks", [0, 1])
@pytest.mark.parametrize("members", [*SETS, *FRACTIONS, [1e-40, 7]], ids=str)
def test_members_of_sets(members, tracks, subtree, dtype):
    values = np.array([*members, *VALUES, *range(-2, 33)], dtype)
    beside = np.nextafter(values, values.dtype.type(9))
    rows = np.concatenate([values, beside, values + values.dtype.type(0.5)])
    check(one_set(members, tracks, dtype, subtree), rows[:, np.newaxis])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_random_trees_with_fractions_in_sets(dtype):
    for seed in range(6):
        trees = RandomTrees(seed, n_trees=8, modes=MODES, dtype=dtype)
        attributes = trees.lists(2)
        modes = trees.random.integers(0, 7, len(attributes["nodes_featureids"]))
        sets: list[float] = []
        for _ in range((modes == 6).sum()):
            whole = trees.random.choice(30, trees.random.integers(0, 4), replace=False)
            some = trees.random.choice(trees.cuts, trees.random.integers(1, 3))
            sets += [*whole, *np.abs(some), np.nan]
        attributes["nodes_modes"] = tensor(modes.astype(np.uint8))
        attributes["membership_values"] = tensor(np.array(sets, dtype))
        check(make_model("TreeEnsemble", attributes, 4, dtype, 5), trees.rows(300))


def test_small_and_big_sets_in_one_forest():
    trees = RandomTrees(11, n_trees=20, modes=("BRANCH_LEQ", "BRANCH_EQ"))
    model = make_model("TreeEnsemble", trees.lists(2, member=0.6), 4, version=5)
    kinds = {*check(model, trees.rows(400)).comparison.tolist()}
    assert kinds >= {Comparison.IN, Comparison.MEMBER, Comparison.EQ, Comparison.LE}


# ------------------------------------------------------------------ odd trees

ODD_ROWS = np.array(
    [
        0,
        -0.0,
        0.25,
        0.5,
        1,
        1.5,
        2,
        2.5,
        3,
        33,
        33.5,
        -1,
        -1.5,
        np.nan,
        np.inf,
        -np.inf,
    ],
    np.float32,
)[:, np.newaxis]


@pytest.mark.parametrize("mode", ["LEQ", "LT", "GTE", "GT", "EQ", "NEQ"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, -0.0])
def test_odd_thresholds(mode, value):
    for tracks in (0, 1):
        check_regressor(table((0, mode, value, 1, 2, tracks), 1, 2), ODD_ROWS, 1)


CHAINS = ((1, 2), (0, 33), (3, 2, 1), (0.5, 2), (0.5, 1.5), (1, 0.5, 3), (-1, 2))


@pytest.mark.sampled(9)
@pytest.mark.parametrize("tracks", [0, 1])
@pytest.mark.parametrize("subtree", [False, True])
@pytest.mark.parametrize("values", [*CHAINS, (0.5, -1.5, 2), (-1.5, -2)], ids=str)
def test_equality_chains_share_what_is_true(values, subtree, tracks):
    n = len(values)
    rows = [(i, "EQ", v, n, i + 1, tracks) for i, v in enumerate(values)]
    rows[-1] = (*rows[-1][:4], n + 1, tracks)
    shared = [(n, "LT", 1.3, n + 2, n + 3, 1)] if subtree else [n]
    ends = range(n + 1, n + 4) if subtree else [n + 1]
    forest = check_regressor(table(*rows, *shared, *ends), ODD_ROWS, 1)
    assert values != (1, 2) or forest.n_nodes == 3 + 2 * subtree


def test_the_first_node_is_the_root_and_unreached_nodes_do_no_harm():
    attributes = table((4, "LEQ", 1, 2, 3, 0), 2, 3, 0, 1)
    forest = check_regressor(attributes, ODD_ROWS, 1)
    assert forest.source_node.tolist() == [4, 2, 3]


def test_trees_of_one_leaf():
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
        check(model, np.array([[-1], [1]], np.float32))
    assert load_forest(model).tree_depths().tolist() == [0, 1]
    trees = RandomTrees(0, depth=0)
    check_regressor(regressor(trees, base=True), trees.rows(9))


# ------------------------------------------------------------------ graphs


def node(op: str, source: str, output: str, **attributes: Any) -> Any:
    return onnx.helper.make_node(op, source.split(), [output], **attributes)


def simple(**options: Any) -> tuple[Any, RandomTrees]:
    trees = RandomTrees(1, modes=MODES, dtype=options.get("dtype", "float32"))
    attributes = regressor(trees, base=True)
    return make_model("TreeEnsembleRegressor", attributes, 4, **options), trees


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


@pytest.mark.parametrize("op", ["Abs", "Softmax"])
def test_nodes_before_that_do_more_are_named(op):
    model, _ = simple(before=(node(op, "X", "out", name="mine"),))
    assert error_of(UnsupportedModelError, load_forest, model) == (
        f"The node 'mine' ({op}) is no operator that skforge knows there, so it cannot "
        "become part of the trees; if the model was converted from a scikit-learn "
        "pipeline, give skforge the pipeline, or convert its last step alone."
    )


def test_features_come_from_the_shape_or_from_the_tests():
    trees = RandomTrees(1, n_features=3)
    attributes = regressor(trees)
    columns = zip(
        attributes["nodes_featureids"], attributes["nodes_modes"], strict=True
    )
    used = 1 + max(feature for feature, mode in columns if mode != "LEAF")
    for width, n_features in ((9, 9), (None, used)):
        model = make_model("TreeEnsembleRegressor", attributes, width)
        assert load_forest(model).n_features == n_features


def test_a_forest_that_reads_nothing_takes_wide_rows():
    trees = RandomTrees(0, n_trees=2, depth=0)
    rows = np.ones((6, 4), np.float32)
    forest = check_regressor(regressor(trees), rows, None)
    assert forest.n_features == 1
    assert_same_bits(reference_raw(forest, rows), reference_raw(forest, rows[:, :1]))


def test_rounds_are_refused_and_graphs_without_trees():
    model, _ = simple()
    said = error_of(UnsupportedModelError, load_forest, model, iteration_range=(0, 1))
    assert said == "An ONNX model has no boosting rounds to choose from."
    del model.graph.node[:]
    assert error_of(InvalidModelError, load_forest, model) == (
        "The graph has no node TreeEnsembleRegressor, TreeEnsembleClassifier or "
        "TreeEnsemble, so there are no trees to read; the file is damaged or another "
        "kind of model."
    )


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize("kind", ["object", "c"])
def test_the_least_leaf_cannot_be_exported(kind, tmp_path):
    module = compile_forest(load_forest(least()[0]))
    with pytest.raises(UnsupportedModelError) as error:
        skforge.export(module, tmp_path / "least", kind=kind)
    assert str(error.value) == (
        "The aggregate function MIN of several trees cannot be exported, because "
        "libraries only add leaf values; predict in Python."
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"aggregate": "mean"},
            "aggregate = 'mean' is not 'sum', 'min', 'max' or 'linear'",
        ),
        ({"divisor": 2}, "aggregate = 'min' allows neither a divisor nor a base"),
        ({"aggregate": "max"}, "leaf_value[0] in tree 0 is not finite"),
    ],
)
def test_damaged_aggregates(changes, text):
    forest = load_forest(least()[0])
    absent = np.full_like(forest.leaf_value, np.inf)
    forest = replace(forest, leaf_value=absent).validate()
    said = error_of(InvalidModelError, replace(forest, **changes).validate)
    assert said.startswith(text)


def test_copies_of_trees_are_bounded(monkeypatch):
    monkeypatch.setattr(trees_of_onnx, "_MAX_NODES", 1 << 16)
    trees = RandomTrees(1, n_trees=1, depth=9)
    attributes = regressor(trees, 2)
    size = 1 << 8
    for name in ("treeids", "nodeids", "ids", "weights"):
        attributes[f"target_{name}"] += attributes[f"target_{name}"][:1] * size
    model = make_model("TreeEnsembleRegressor", attributes, 4)
    with pytest.raises(
        UnsupportedModelError, match="nodes, because each weight of a leaf"
    ):
        load_forest(model)


@pytest.mark.parametrize("kind", ["a set", "the least leaf"])
def test_a_record_has_every_field(kind):
    forest = load_forest(
        one_set([1, 2], 0, "float32") if kind == "a set" else least()[0]
    )
    arrays: dict[str, Any] = {}
    record = forest_out(forest, arrays)
    assert forest_in(record, arrays).content_hash() == forest.content_hash()
    del record["divisor"]
    with pytest.raises(InvalidModelError, match="'divisor' of its manifest"):
        forest_in(record, arrays)


def test_weights_that_onnxruntime_moves_are_refused(tmp_path):
    """It gives a lost node's weight to the first root where that is a leaf."""
    first = {
        "nodes_treeids": [0, 0], "nodes_nodeids": [0, 1], "nodes_featureids": [0, 0],
        "nodes_values": [0.0, 0.0], "nodes_modes": ["LEAF", "LEAF"],
        "nodes_truenodeids": [0, 0], "nodes_falsenodeids": [0, 0],
        "target_treeids": [0, 0], "target_nodeids": [0, 1], "target_ids": [0, 1],
        "target_weights": [1.0, 5.0], "n_targets": 2,
    }  # fmt: skip
    model = make_model("TreeEnsembleRegressor", first, 3)
    rows = np.zeros((1, 3), np.float32)
    assert run(model, rows)[0].tolist() == [[1.0, 5.0]]  # 5 belongs to node 1
    with pytest.raises(
        InvalidModelError, match="node 1 has a weight but is not a leaf"
    ):
        load_forest(model)


def test_a_declared_width_is_the_only_one():
    trees = RandomTrees(3, n_features=3)
    model = make_model("TreeEnsembleRegressor", regressor(trees), 3)
    trees.n_features = 5
    with pytest.raises(InvalidInputError, match="5 columns"):
        compile_forest(load_forest(model)).predict(trees.rows(4))
