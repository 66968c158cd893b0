"""ONNX models compiled: least leaves, sets, rows of any width, functions of graphs."""

from __future__ import annotations

from typing import Any

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
from tests.comparing import saved
from tests.onnx_models import (
    BLOCKED,
    MODES,
    RandomTrees,
    assert_same_bits,
    check,
    least,
    make_model,
    onnx,
    regressor,
    run,
    tensor,
)
from tests.plain import plain


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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_targets", [1, 3])
def test_all_modes_and_sets_in_one_forest(n_targets, dtype):
    trees = RandomTrees(0, n_trees=12, modes=MODES, dtype=dtype)
    attributes = trees.lists(n_targets, member=0.3)
    model = make_model("TreeEnsemble", attributes, 4, dtype, 5)
    check(model, trees.rows(300, missing=0.2), compiled=True)


# ------------------------------------------------------------------ MIN and MAX


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
    sparse = np.nan_to_num(rows, posinf=9, neginf=-9) * (rows > 0)
    for one in (fast, saved(fast, tmp_path)):
        assert_same_bits(one.predict(rows), expected)
        assert_same_bits(one.predict(pd.DataFrame(rows)), expected)
        for _ in range(6):
            assert_same_bits(one.predict(rows[:2]), expected[:2])
        found = one.predict(scipy.sparse.csr_matrix(sparse))
        assert_same_bits(found, run(model, sparse)[0][:, 0])
        assert one.n_features_in_ == 3


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
