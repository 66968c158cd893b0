"""Tests of ``unit/test_frontend_onnx_scores.py`` that compile or start processes."""

from __future__ import annotations

from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.ensemble import RandomForestClassifier, StackingClassifier
from sklearn.tree import DecisionTreeClassifier

import skforge
from skforge import CompiledForest, Schedule, compile_forest, load_forest
from skforge.engine import graph_trees, mlas_routine
from skforge.exceptions import CompilerError, InvalidInputError
from skforge.forest.reference import reference_leaves, reference_raw
from skforge.outputs import mlas
from skforge.tuning import Tuner
from tests.onnx_models import (
    BLOCKED,
    MODES,
    POSTS,
    RandomTrees,
    assert_same_bits,
    check,
    make_model,
    run,
    tensor,
)
from tests.plain import plain
from tests.unit.test_frontend_onnx_scores import least, one_set, regressor

AGGREGATES = ("SUM", "AVERAGE", "MIN", "MAX")


# ------------------------------------------------------------------ MIN and MAX


@pytest.mark.sampled(7)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_targets", [1, 3])
@pytest.mark.parametrize("aggregate", ["MIN", "MAX"])
@pytest.mark.parametrize("post", POSTS)
def test_the_least_and_the_greatest_of_several_trees(post, aggregate, n_targets, dtype):
    trees = RandomTrees(17, n_trees=9, modes=MODES, dtype=dtype)
    attributes = regressor(
        trees, n_targets, post_transform=post, aggregate_function=aggregate
    )
    attributes["base_values"] = trees.random.random(n_targets).tolist()
    if post == "PROBIT":  # of numbers between 0 and 1
        attributes["target_weights"] = trees.random.uniform(
            0, 0.5, len(attributes["target_weights"])
        ).tolist()
        attributes["base_values"] = (np.array(attributes["base_values"]) / 4).tolist()
    model = make_model("TreeEnsembleRegressor", attributes, 4, dtype, 1)
    check(model, trees.rows(200), compiled=post == "NONE")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("aggregate", [2, 3])
@pytest.mark.parametrize("n_targets", [1, 4])
def test_leaves_of_one_target_each(n_targets, aggregate, sign):
    # A row that no leaf of a target is reached by has 0, not the least of nothing.
    trees = RandomTrees(10, n_trees=4, modes=MODES)
    attributes = trees.lists(n_targets, member=0.3)
    size = len(attributes["leaf_targetids"])
    weights = sign * (1 + trees.random.random(size).astype(np.float32))
    attributes["leaf_weights"] = tensor(weights.astype(np.float32))
    attributes["aggregate_function"] = aggregate
    model = make_model("TreeEnsemble", attributes, 4, version=5)
    rows = trees.rows(300)
    forest = check(model, rows, compiled=True)
    assert (run(model, rows)[0] == 0).any() == (n_targets == 4)
    assert forest.aggregate == ("min" if aggregate == 2 else "max")


@pytest.mark.parametrize("aggregate", ["MIN", "MAX"])
@pytest.mark.parametrize("n_trees", [1, 4])
@pytest.mark.parametrize("n_targets", [1, 2])
def test_signs_of_zeros(n_targets, n_trees, aggregate):
    trees = RandomTrees(2, n_trees=n_trees)
    attributes = regressor(trees, n_targets, aggregate_function=aggregate)
    size = len(attributes["target_weights"])
    attributes["target_weights"] = trees.random.choice([0.0, -0.0], size).tolist()
    model = make_model("TreeEnsembleRegressor", attributes, 4)
    check(model, trees.rows(100), compiled=True)


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule().represent("reorg"),
        Schedule().represent("sparse"),
        Schedule()
        .tile("batch", "b0", "b1", 64)
        .reorder("b0", "tree", "b1")
        .cache_predicates("b0")
        .vectorize("b1")
        .represent("bitsliced"),
        Schedule().quantize("batch").vectorize("tree").represent("lanes"),
        BLOCKED.quantize("b0")
        .vectorize("b1")
        .tile_nodes(7, "complete")
        .represent("tiles"),
        Schedule().reorder("tree", "batch").parallel("tree"),
        Schedule().tile("batch", "b0", "b1", 64).parallel("b0"),
    ],
    ids=["reorg", "sparse", "bitsliced", "lanes", "tiles", "trees", "rows"],
)
def test_every_schedule_finds_the_same_leaves(schedule):
    model, trees = least(2)
    forest, rows = load_forest(model), trees.rows(150)
    module = compile_forest(forest, schedule, n_jobs=2)
    assert_same_bits(module.predict(rows), run(model, rows)[0])
    assert_same_bits(module.predict_raw(rows[:0]), np.zeros((0, 2), np.float32))
    number = forest.source_node[reference_leaves(forest, rows)]
    assert np.array_equal(module.apply(rows), number)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("reduction", ["exact", "reproducible", "fast"])
@pytest.mark.parametrize("target", ["cpu", "emulated"])
def test_the_least_leaf_is_exact_in_every_mode(target, reduction):
    model, trees = least()
    rows = trees.rows(100)
    module = compile_forest(load_forest(model), target=target, reduction=reduction)
    module.compile_all()
    assert_same_bits(module.predict(rows), run(model, rows)[0][:, 0])
    fast = CompiledForest(model, tuning="off", target=target, reduction=reduction)
    assert_same_bits(fast.fit(rows).predict(rows), run(model, rows)[0][:, 0])


@pytest.mark.parametrize("tuning", ["off", Tuner(budget=0.3)])
def test_a_compiled_forest_of_the_least_leaf(tuning, tmp_path):
    model, trees = least()
    rows = trees.rows(300)
    expected = run(model, rows)[0][:, 0]
    fast = CompiledForest(model, tuning=tuning).fit(rows)
    skforge.save(fast, tmp_path / "least.skforge")
    joblib.dump(fast, tmp_path / "least.joblib")
    for one in (
        fast,
        skforge.load(tmp_path / "least.skforge"),
        joblib.load(tmp_path / "least.joblib"),
    ):
        assert_same_bits(one.predict(rows), expected)
        for _ in range(6):  # small batches get compiled entries, where there are any
            assert_same_bits(one.predict(rows[:3]), expected[:3])
        assert_same_bits(one.predict_raw(rows), expected)


# ------------------------------------------------------------------ several weights


def with_more_weights(
    trees: RandomTrees, attributes: dict[str, Any], kind: str
) -> None:
    """Give a third of the leaves further weights, some of them for the same output."""
    names = [f"{kind}_{name}" for name in ("treeids", "nodeids", "ids", "weights")]
    size = len(attributes[names[0]])
    for at in trees.random.choice(size, size // 3).tolist():
        for name in names[:3]:
            attributes[name].append(attributes[name][at])
        attributes[names[3]].append(float(trees.random.normal()))
    order = trees.random.permutation(len(attributes[names[0]]))
    for name in names:
        attributes[name] = [attributes[name][i] for i in order]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("n_trees", [1, 6])
def test_several_weights_of_a_leaf_for_one_target(n_trees, aggregate, dtype):
    for seed in range(3):
        trees = RandomTrees(seed, n_trees=n_trees, modes=MODES, dtype=dtype)
        attributes = regressor(trees, 3, aggregate_function=aggregate)
        with_more_weights(trees, attributes, "target")
        model = make_model("TreeEnsembleRegressor", attributes, 4, dtype)
        check(model, trees.rows(150), compiled=seed == 0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("post", ["NONE", "SOFTMAX"])
def test_several_weights_of_a_leaf_for_one_class(post, n_classes):
    for seed in range(3):
        trees = RandomTrees(seed, modes=MODES)
        attributes = {
            **trees.table(),
            **trees.weights("class", lambda tree: range(n_classes)),
            "classlabels_int64s": list(range(n_classes)),
            "post_transform": post,
        }
        with_more_weights(trees, attributes, "class")
        model = make_model("TreeEnsembleClassifier", attributes, 4)
        check(model, trees.rows(150), compiled=True)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("subtree", [False, True])
@pytest.mark.parametrize("tracks", [0, 1])
@pytest.mark.parametrize(
    "members",
    [[1.2, 3.7, 8, 9], [0.5], [1.5, 0.5], [1.5, 1.5, 3], [2, 30, 0.1, 0], [1e-40, 7]],
    ids=str,
)
def test_sets_with_fractions(members, tracks, subtree, dtype):
    model = one_set(members, tracks, subtree, dtype)
    values = np.array([*members, *range(-2, 33), np.nan, np.inf, -np.inf], dtype)
    beside = np.nextafter(values, values.dtype.type(9))
    rows = np.concatenate([values, beside, values + values.dtype.type(0.5)])
    check(model, rows[:, np.newaxis], compiled=True)


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
        model = make_model("TreeEnsemble", attributes, 4, dtype, 5)
        check(model, trees.rows(300), compiled=seed < 2)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("tracks", [0, 1])
@pytest.mark.parametrize(
    "values", [(0.5, 1.5), (1, 0.5, 3), (-1, 2), (0.5, -1.5, 2), (-1.5, -2)], ids=str
)
def test_equality_chains_of_any_numbers_share_a_subtree(values, tracks):
    n = len(values)
    nodes = [(i, "BRANCH_EQ", v, n, i + 1, tracks) for i, v in enumerate(values)]
    nodes[-1] = (*nodes[-1][:4], n + 1, tracks)
    nodes += [(n, "BRANCH_LT", 1.3, n + 2, n + 3, 1)]
    nodes += [(n + i, "LEAF", 0, 0, 0, 0) for i in (1, 2, 3)]
    columns = list(zip(*nodes, strict=True))
    attributes = {
        "nodes_treeids": [0] * len(nodes),
        "nodes_nodeids": list(columns[0]),
        "nodes_featureids": [0] * len(nodes),
        "nodes_modes": list(columns[1]),
        "nodes_values": [float(v) for v in columns[2]],
        "nodes_truenodeids": list(columns[3]),
        "nodes_falsenodeids": list(columns[4]),
        "nodes_missing_value_tracks_true": list(columns[5]),
        "target_treeids": [0] * 3,
        "target_nodeids": [n + 1, n + 2, n + 3],
        "target_ids": [0] * 3,
        "target_weights": [1.0, 2.0, 4.0],
        "n_targets": 1,
    }
    rows = np.array([*values, *range(-3, 5), 0.25, np.nan, np.inf, -0.0], np.float32)
    model = make_model("TreeEnsembleRegressor", attributes, 1)
    check(model, rows[:, np.newaxis], compiled=True)


# ------------------------------------------------------------------ rows of any width


def of_no_width(shape: bool = True) -> tuple[Any, np.ndarray]:
    """Return a model that declares no width, and rows with columns nobody reads."""
    trees = RandomTrees(3, n_features=3, modes=MODES)
    model = make_model("TreeEnsembleRegressor", regressor(trees, 1), None)
    if not shape:
        model.graph.input[0].type.tensor_type.ClearField("shape")
    trees.n_features = 5
    return model, trees.rows(200)


@pytest.mark.parametrize("shape", [True, False])
def test_rows_may_be_wider_than_the_last_feature_used(shape):
    model, rows = of_no_width(shape)
    forest = check(model, rows, compiled=True)
    assert forest.n_features == 3
    expected = run(model, rows)[0][:, 0]
    module = compile_forest(forest)
    for X in (rows, np.asfortranarray(rows), rows.tolist(), rows.astype(np.float64)):
        assert_same_bits(module.predict(X), expected)
        ones = [module.predict(np.asarray(X)[i : i + 1]) for i in range(20)]
        assert_same_bits(np.concatenate(ones), expected[:20])
    assert np.array_equal(module.apply(rows), module.apply(rows[:, :3]))
    with pytest.raises(InvalidInputError, match=r"^the model was trained on 3 feat"):
        module.predict(rows[:, :2])


def test_wider_rows_in_every_form(tmp_path):
    model, rows = of_no_width()
    expected = run(model, rows)[0][:, 0]
    path = tmp_path / "any.onnx"
    path.write_bytes(model.SerializeToString())
    fast = CompiledForest(path, tuning=Tuner(budget=0.2)).fit(rows)
    skforge.save(fast, tmp_path / "any.skforge")
    sparse = np.nan_to_num(rows, posinf=9, neginf=-9) * (rows > 0)
    for one in (fast, skforge.load(tmp_path / "any.skforge")):
        assert_same_bits(one.predict(rows), expected)
        assert_same_bits(one.predict(pd.DataFrame(rows)), expected)
        for _ in range(6):
            assert_same_bits(one.predict(rows[:2]), expected[:2])
        found = one.predict(scipy.sparse.csr_matrix(sparse))
        assert_same_bits(found, run(model, sparse)[0][:, 0])
        assert one.n_features_in_ == 3


def test_a_forest_that_reads_nothing_takes_wide_rows():
    trees = RandomTrees(0, n_trees=2, depth=0)
    model = make_model("TreeEnsembleRegressor", regressor(trees, 1), None)
    rows = np.ones((6, 4), np.float32)
    forest = check(model, rows, compiled=True)
    assert forest.n_features == 1
    assert_same_bits(reference_raw(forest, rows), reference_raw(forest, rows[:, :1]))


@pytest.mark.parametrize("name", ["exp", "logistic"])
def test_machine_code_of_functions_has_the_bits_of_numpys(name):
    mlas_routine.install()
    bits = np.arange(0, 0x7F800001, 65_521, dtype=np.int64)
    x = np.concatenate([bits, bits + 0x80000000]).astype(np.uint32).view(np.float32)
    x = np.concatenate([x, np.linspace(-110, 95, 9_999, dtype=np.float32)])
    with np.errstate(all="ignore"):
        expected = getattr(mlas, name)(x)
    assert mlas.FUNCTIONS[name](x).tobytes() == expected.tobytes()
    assert mlas.FUNCTIONS[name](x[::2]).tobytes() == expected[::2].tobytes()
    assert np.isnan(mlas.FUNCTIONS[name](np.float32([np.nan]))).all()


def test_graphs_go_without_a_compiler(monkeypatch):
    def refused(*args):
        raise CompilerError("no executable memory")

    monkeypatch.setattr(mlas_routine, "routine", lambda *args: refused)
    mlas_routine.install()
    x = np.linspace(-3, 3, 50, dtype=np.float32)
    assert mlas.FUNCTIONS["exp"](x).tobytes() == mlas.exp(x).tobytes()
    assert {"exp": mlas.exp, "logistic": mlas.logistic} == mlas.FUNCTIONS


def test_machine_code_of_trees_that_read_answers(tmp_path, monkeypatch):
    skl2onnx = pytest.importorskip("skl2onnx")
    random = np.random.default_rng(0)
    X = random.normal(size=(120, 3)).astype(np.float32)
    members = [
        ("a", DecisionTreeClassifier(max_depth=3)),
        ("b", RandomForestClassifier(3, max_depth=2)),
    ]
    last = DecisionTreeClassifier(max_depth=4)
    y = np.array(["no", "yes", "so"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    model = StackingClassifier(members, last, cv=2).fit(X, y)
    graph = skl2onnx.to_onnx(
        model, X[:1], options={StackingClassifier: {"zipmap": False}}
    )
    fast = plain(graph).fit(X).warm_up()
    skforge.save(fast, tmp_path / "stack.skforge")
    monkeypatch.setattr(graph_trees, "reference_raw", None)
    loaded = skforge.load(tmp_path / "stack.skforge")
    for some in (X, X[:1], X[:7], X[:0]):
        labels, scores = (
            run(graph, some) if len(some) else (y[:0], np.zeros((0, 3), "f4"))
        )
        for one in (fast, loaded):
            assert one.predict(some).tolist() == labels.tolist()
            assert_same_bits(one.predict_proba(some), scores)


def test_trees_that_read_answers_go_without_a_compiler(monkeypatch):
    def refused(*args):
        raise CompilerError("no executable memory")

    monkeypatch.setattr(graph_trees.KernelCache, "kernel", refused)
    forest = load_forest(least()[0])
    rows = least()[1].rows(5)
    assert_same_bits(graph_trees._sums(forest, rows), reference_raw(forest, rows))
