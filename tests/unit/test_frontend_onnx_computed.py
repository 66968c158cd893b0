"""ONNX graphs that compute with what several tree ensembles answer."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    AdaBoostClassifier,
    AdaBoostRegressor,
    BaggingClassifier,
    BaggingRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from skforge import InvalidModelError, UnsupportedModelError, load_forest
from skforge.forest.record import forest_in, forest_out
from skforge.forest.reference import reference_raw
from skforge.frontends.onnx import scores
from skforge.outputs import graph_members, mlas
from skforge.outputs.answers import answer, labels_of
from skforge.outputs.graph import runner_of
from skforge.outputs.graph_members import answers_of_trees, text_of
from skforge.outputs.graph_operators import OPERATORS, UnknownError
from skforge.runtime import facts
from tests.comparing import refusal
from tests.onnx_models import assert_same_bits, onnx, run

pytest.importorskip("onnxruntime")
skl2onnx = pytest.importorskip("skl2onnx")

X = np.random.default_rng(0).normal(size=(160, 4)).astype(np.float32)
SUM = X[:, 0] + np.sin(X[:, 1])
TWO = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
THREE = np.digitize(X[:, 0] + 0.3 * X[:, 1], [-0.5, 0.5])
FIVE = np.digitize(X[:, 0] + 0.3 * X[:, 1], [-1, -0.4, 0.2, 1])
TEXTS = np.array(["a", "bb", "c"])[THREE]
BOTH_TEXTS = np.c_[np.array(["y", "no"])[TWO], TEXTS]
BOTH = np.c_[TWO, X[:, 3] > 0].astype(int)
SIZE: dict[str, Any] = {"max_depth": 3, "random_state": 0}


def forest() -> Any:
    return RandomForestClassifier(3, **SIZE)


def tree() -> Any:
    return DecisionTreeClassifier(**SIZE)


def tree_of(seed: int) -> Any:
    return DecisionTreeRegressor(max_depth=2, max_features=2, random_state=seed)


def boosted() -> Any:
    return GradientBoostingClassifier(n_estimators=3, **SIZE)


def regressors() -> Any:
    boosting = GradientBoostingRegressor(n_estimators=3, **SIZE)
    return [("a", RandomForestRegressor(3, **SIZE)), ("b", boosting)]


def voting(**how: Any) -> Any:
    members = [("a", forest()), ("b", boosted()), ("c", tree())]
    return VotingClassifier(members, flatten_transform=False, **how)


def stacking() -> Any:
    return StackingClassifier([("a", forest()), ("b", boosted())], cv=2)


def calibrated(model: Any, **how: Any) -> Any:
    return CalibratedClassifierCV(model, cv=2, **how)


MODELS: dict[str, tuple[Any, Any]] = {
    "sigmoids": (calibrated(forest()), TWO),
    "sigmoids of boosting": (calibrated(boosted()), TWO),
    "sigmoids of three": (calibrated(forest()), THREE),
    "sigmoids of five": (calibrated(forest()), FIVE),
    "isotonic": (calibrated(forest(), method="isotonic"), TWO),
    "isotonic of three": (calibrated(forest(), method="isotonic"), TEXTS),
    "soft votes": (voting(voting="soft"), THREE),
    "weighted votes": (voting(voting="soft", weights=np.array([1, 2, 0.5])), TWO),
    "hard votes": (voting(), THREE),
    "hard votes of texts": (voting(), TEXTS),
    "mean": (VotingRegressor(regressors()), SUM),
    "weighted mean": (VotingRegressor(regressors(), weights=np.array([0.3, 1])), SUM),
    "one-vs-rest": (OneVsRestClassifier(forest()), THREE),
    "one-vs-rest of five": (OneVsRestClassifier(boosted()), FIVE),
    "one-vs-rest of two": (OneVsRestClassifier(forest()), TWO),
    "one-vs-rest of targets": (OneVsRestClassifier(forest()), BOTH),
    "bagged forests": (BaggingClassifier(forest(), 3, random_state=0), TEXTS),
    "bags of columns": (BaggingClassifier(tree(), 5, max_features=2), THREE),
    "bagged regressors": (BaggingRegressor(regressors()[0][1], 3), SUM),
    "samme": (AdaBoostClassifier(tree(), n_estimators=4, random_state=0), THREE),
    "samme of five": (AdaBoostClassifier(tree(), n_estimators=3), FIVE),
    "weighted median": (
        AdaBoostRegressor(DecisionTreeRegressor(**SIZE), n_estimators=5), SUM),
    "stack": (stacking(), TWO),
    "stack of regressors": (StackingRegressor(regressors(), cv=2), SUM),
    "stack of three": (stacking(), THREE),
    "stack of five": (stacking(), FIVE),
    "stack of nine": (
        StackingRegressor([(str(i), tree_of(i)) for i in range(9)], cv=2), SUM),
    "stack with a forest": (StackingRegressor(
        regressors(), RandomForestRegressor(3, **SIZE), cv=2), SUM),
    "stack with boosting": (StackingClassifier(
        [("a", forest()), ("b", tree())], boosted(), cv=2), TEXTS),
    "stack with trees": (StackingClassifier(
        [("a", forest()), ("b", tree())], tree(), cv=2), TWO),
    "isolation": (IsolationForest(n_estimators=4, random_state=0), SUM),
    "targets": (MultiOutputClassifier(forest()), BOTH),
    "targets of texts": (MultiOutputClassifier(forest()), BOTH_TEXTS),
    "targets of voters": (MultiOutputClassifier(voting(voting="soft")), BOTH_TEXTS),
    "targets of a forest": (forest(), BOTH),
    "targets of a tree": (tree(), BOTH),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _without_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walk trees in NumPy, even after tests that compile graphs."""
    monkeypatch.setitem(graph_members.SUMS, "trees", reference_raw)


@cache
def converted(name: str) -> Any:
    model, y = MODELS[name]
    options = {"zipmap": False} if hasattr(model, "predict_proba") else {}
    fitted = model.fit(X, y)
    # without it, skl2onnx does not convert isolation forests
    how = {"target_opset": {"": 18, "ai.onnx.ml": 3}} if name == "isolation" else {}
    return skl2onnx.to_onnx(fitted, X[:1], options={type(model): options}, **how)


def answers_of(forest: Any, rows: Any) -> list[Any]:
    raw, spec = reference_raw(forest, rows), forest.answers
    methods = ("predict", "predict_proba")[: 1 + spec.classifies]
    return [answer(spec, labels_of(spec, None), name, raw) for name in methods]


def assert_equal_answers(model: Any, forest: Any, rows: Any) -> None:
    expected = run(model, rows)
    for found, wanted in zip(answers_of(forest, rows), expected, strict=True):
        pairs = [(found, wanted)]
        if isinstance(found, list):  # an array for each target
            pairs = [*zip(found, wanted, strict=True)]
        elif isinstance(wanted, list):  # maps
            pairs = [(found, np.float32([[*row.values()] for row in wanted]))]
        for mine, theirs in pairs:
            if mine.ndim == 1:  # and theirs may be a column
                theirs = theirs.reshape(-1)
            if theirs.dtype == object:
                assert mine.tolist() == theirs.tolist()
            else:
                assert_same_bits(mine, theirs)


@pytest.mark.parametrize("name", MODELS)
def test_graphs_of_converters_have_the_bits_of_onnxruntime(name):
    model = converted(name)
    forest = load_forest(model)
    assert forest.outputs.function == "graph"
    rows = np.random.default_rng(1).normal(size=(1025, 4)).astype(np.float32)
    rows[::9, 1] = np.nan
    for some in (rows, rows[:2], rows[5:6]):
        assert_equal_answers(model, forest, some)
    for one, none in zip(*(answers_of(forest, rows[:n]) for n in (1, 0)), strict=True):
        pairs = zip(one, none, strict=True) if type(one) is list else [(one, none)]
        assert all(x.dtype == y.dtype and x[:0].shape == y.shape for x, y in pairs)
    arrays: dict[str, Any] = {}
    stored = forest_in(forest_out(forest, arrays), arrays)
    assert_equal_answers(model, stored, rows)


def test_trees_read_answers_as_double():
    model, _ = MODELS["stack with trees"]
    kind = skl2onnx.common.data_types.DoubleTensorType([None, 4])
    how = {"initial_types": [("X", kind)], "options": {type(model): {"zipmap": False}}}
    graph = skl2onnx.to_onnx(model.fit(X, TWO), **how)
    rows = np.random.default_rng(1).normal(size=(30, 4))
    assert_equal_answers(graph, load_forest(graph), rows)


def test_path_lengths_of_isolation_forests_are_leaves(monkeypatch):
    rows = np.random.default_rng(1).normal(size=(19, 4)).astype(np.float32)
    model = converted("isolation")
    moved = load_forest(model)
    assert moved.n_trees == 4
    assert moved.n_outputs <= 2
    assert len(runner_of(moved.outputs.graph).program.steps) < 12
    monkeypatch.setattr(scores, "leaf_sums", lambda *_: None)
    every = load_forest(model)
    assert len(runner_of(every.outputs.graph).program.steps) > 90
    for mine, theirs in zip(
        answers_of(moved, rows), answers_of(every, rows), strict=True
    ):
        assert_same_bits(mine, theirs)


def test_labels_and_maps():
    model, y = MODELS["isotonic of three"]
    mapped = skl2onnx.to_onnx(model.fit(X, y), X[:1])
    forest = load_forest(mapped)
    assert forest.class_labels == ("a", "bb", "c")
    label, maps = run(mapped, X)
    found = answers_of(forest, X)
    assert found[0].tolist() == label.tolist()
    assert found[1].tolist() == [[*row.values()] for row in maps]
    (node,) = (node for node in mapped.graph.node if node.op_type == "ZipMap")
    node.attribute[0].strings[0] = b"d"
    assert refusal(UnsupportedModelError, load_forest, mapped) == (
        "A ZipMap gives the scores the labels ['d', 'bb', 'c'], which are not exactly "
        "those of the answers; export the model without ZipMap."
    )


@pytest.mark.parametrize("n", [1, 2])
def test_labels_of_bags_are_those_of_the_bag(n):
    """Its members number the classes; a bag of one member was taken for the member."""
    model = BaggingClassifier(tree(), n, random_state=0).fit(X, THREE * 7 + 3)
    forest = load_forest(skl2onnx.to_onnx(model, X[:1]))
    assert forest.class_labels == (3, 10, 17)


@pytest.mark.parametrize("model", [forest(), OneVsRestClassifier(forest())], ids=str)
def test_scores_in_columns(model):
    options = {type(model): {"zipmap": "columns"}}
    columns = skl2onnx.to_onnx(model.fit(X, THREE), X[:1], options=options)
    _, *scores = run(columns, X)
    _, found = answers_of(load_forest(columns), X)
    assert_same_bits(found, np.column_stack(scores))


# ------------------------------------------------------------------ arithmetic


def session(op: str, x: Any, **how: Any) -> Any:
    """Return what onnxruntime answers to an operator."""
    return run(graph_of(op, x, **how), x)[0]


def graph_of(op: str, x: Any, **how: Any) -> Any:
    helper, constants = onnx.helper, how.pop("constants", {})
    names = ["X", *constants] if how.pop("first", True) else [*constants, "X"]
    made = helper.make_node(op, names, ["Y"], **how)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [made], "one", [value("X", 1, [None] * x.ndim)], [value("Y", 1, None)],
        [onnx.numpy_helper.from_array(a, name) for name, a in constants.items()],
    )  # fmt: skip
    sets = [onnx.helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9)


@pytest.mark.parametrize(
    ("op", "ours"), [("Exp", mlas.exp), ("Sigmoid", mlas.logistic)]
)
def test_functions_of_numbers(op, ours):
    """A sweep of all float32, with steps; every eighth was tried once."""
    bits = np.arange(0, 0x7F800001, 8191, dtype=np.int64)
    x = np.concatenate([bits, bits + 0x80000000]).astype(np.uint32).view(np.float32)
    x = np.concatenate([x, np.float32([np.inf, -np.inf, 0.0, -0.0, 88.77, -103.98])])
    with np.errstate(all="ignore"):
        found = ours(x[None])
    assert_same_bits(found, session(op, x[None]))
    assert np.isnan(ours(np.float32([[np.nan]]))).all()


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean"])
@pytest.mark.parametrize("axis", [0, 1])
def test_sums_along_an_axis(op, axis):
    random = np.random.default_rng(2)
    for width in (*range(1, 21), 37, 100):
        x = random.normal(size=(9, width)).astype(np.float32)
        x = x if axis else np.ascontiguousarray(x.T)
        wanted = session(op, x, constants={"axis": np.array([axis])}, keepdims=1)
        found = mlas.row_sums(x) if axis else mlas.in_order(x, 0)
        mean = np.float32(x.shape[axis] if op == "ReduceMean" else 1)
        assert_same_bits(found / mean, wanted)


# ------------------------------------------------------------------ refusals

END = (
    "; give skforge the scikit-learn model that was converted, or end the graph before "
    "this node."
)


def changed(name: str, change: Any) -> Any:
    model = onnx.ModelProto()
    model.CopyFrom(converted(name))
    change(model.graph)
    return model


def rename(graph: Any, op: str, to: str) -> None:
    found = next(node for node in graph.node if node.op_type == op)
    found.op_type, found.name = to, "odd"


def set_axis(graph: Any) -> None:
    found = next(node for node in graph.node if node.op_type == "Concat")
    found.attribute[0].i, found.name = 0, "odd"


REFUSED = {
    "operator": (
        "mean", lambda graph: rename(graph, "Mul", "Cos"),
        "The node 'odd' (Cos) is no operator that skforge knows after trees" + END),
    "outputs": (
        "mean", lambda graph: graph.output.append(
            onnx.helper.make_tensor_value_info("wvar_0", 1, [None, 1])),
        "The graph has 2 outputs with scores, and skforge answers with one; give it a "
        "graph with one of them."),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_computed_is_named(name):
    kind, change, text = REFUSED[name]
    found = refusal(UnsupportedModelError, load_forest, changed(kind, change))
    assert found == text


def test_graphs_that_mix_rows_are_refused():
    model = changed("one-vs-rest of targets", set_axis)
    with pytest.raises((UnsupportedModelError, InvalidModelError)):
        load_forest(model)


def linear(kind: str, weights: Any, intercepts: Any, **how: Any) -> Any:
    return one_node(
        kind, weights.shape[1], coefficients=weights.reshape(-1),
        intercepts=intercepts, **how,
    )  # fmt: skip


def one_node(kind: str, width: int, **how: Any) -> Any:
    value, outputs = onnx.helper.make_tensor_value_info, ["Y"]
    outputs = ["L", "Y"] if kind == "LinearClassifier" else ["Y"]
    made = onnx.helper.make_node(kind, ["X"], outputs, domain="ai.onnx.ml", **how)
    x, y = value("X", 1, [None, width]), value("Y", 1, None)
    graph = onnx.helper.make_graph([made], "one", [x], [y])
    sets = [onnx.helper.make_opsetid("ai.onnx.ml", 1)]
    return onnx.helper.make_model(graph, opset_imports=sets, ir_version=9)


@pytest.mark.parametrize("n_rows", [1, 2, 9])
def test_linear_models(n_rows):
    """A single row has an order of its own, by how many sums there are.

    All widths to 300, up to 33 sums and 2 to 70 rows were tried once, also with the
    kernels for CPUs without AVX-512.
    """
    random = np.random.default_rng(3)
    for width in (*range(1, 18), 31, 100, 128):
        for n_sums in range(1, 12, 1 if width < 9 else 3):
            weights = random.normal(size=(n_sums, width)).astype(np.float32)
            intercepts = random.normal(size=n_sums).astype(np.float32)
            x = random.random((n_rows, width)).astype(np.float32)
            x[1:2, 0] = np.inf
            model = linear("LinearRegressor", weights, intercepts, targets=n_sums)
            found = OPERATORS["Linear"]({}, x, weights, intercepts)
            assert_same_bits(found, run(model, x)[0])


def test_softmax():
    random = np.random.default_rng(4)
    for width in range(2, 17):
        x = (random.normal(size=(99, width)) * 9).astype(np.float32)
        x[::7] *= 9
        assert_same_bits(OPERATORS["Softmax"]({}, x), session("Softmax", x, axis=1))
        how = {"classlabels_ints": [*range(width)], "post_transform": "SOFTMAX"}
        zeros = np.zeros(width, np.float32)
        model = linear("LinearClassifier", np.eye(width, dtype="f4"), zeros, **how)
        assert_same_bits(OPERATORS["SoftmaxOfLinear"]({}, x), run(model, x)[0])


def test_the_least_powers_of_softmax_depend_on_the_cpu(monkeypatch):
    edge = np.nextafter(mlas.LEAST_IN_SUMS, np.float32(-np.inf))
    x = np.array([[0, mlas.LEAST_IN_SUMS], [0, edge], [-100, 0]], np.float32)
    assert_same_bits(OPERATORS["Softmax"]({}, x), session("Softmax", x, axis=1))
    found = {}
    for has in (False, True):
        monkeypatch.setattr(facts, "has_avx512", lambda has=has: has)
        found[has] = OPERATORS["Softmax"]({}, x).min(axis=1).tolist()
    assert found[False] == [found[True][0], 0, 0] and found[True][2] > 0


@pytest.mark.parametrize("norm", ["L1", "L2", "MAX"])
def test_norms(norm):
    random = np.random.default_rng(6)
    for width in (1, 3, 9, 33):
        x = random.normal(size=(40, width)).astype(np.float32)
        x[::5], x[1::5, 0], x[2::5] = -0.0, np.inf, x[2::5] * np.float32(1e-24)
        x[3], x[4, 1:], x[6], x[7] = np.nan, np.nan, 0, -np.inf
        with np.errstate(all="ignore"):
            found = OPERATORS[norm]({}, x)
            assert_same_bits(found, run(one_node("Normalizer", width, norm=norm), x)[0])
            if norm != "MAX":
                p = int(norm[1])
                found = OPERATORS["LpNormalization"]({"p": [p]}, x)
                assert_same_bits(found, session("LpNormalization", x, axis=1, p=p))


@pytest.mark.parametrize(
    ("operator", "x", "text"),
    [
        ("Softmax", np.zeros((2, 17), np.float32), "of more than 16 numbers"),
        ("Softmax", np.full((2, 3), np.inf, np.float32), "numbers that are not finite"),
        ("Linear", np.zeros((2, 129), np.float32), "more than 128 products"),
    ],
)
def test_orders_that_are_not_known(operator, x, text):
    with pytest.raises(UnknownError, match=text):
        OPERATORS[operator]({}, x, *[None] * (2 if operator == "Linear" else 0))


@pytest.mark.parametrize("n", [1, 3, 4, 9])
def test_logarithms(n):
    """Whole fours have other bits than the rest; every 997th float was tried once."""
    bits = np.arange(1, 0x7F800000, 1 << 18, dtype=np.int64).astype(np.uint32)
    some = [0.0, -0.0, -1.0, np.inf, -np.inf, np.nan]
    x = np.concatenate([bits.view(np.float32), np.float32(some)])
    x = x[: len(x) // n * n].reshape(-1, n, 1)
    model = graph_of("Log", x[0])
    with np.errstate(all="ignore"):
        found = [mlas.log(part) for part in x[-9:]]
    for part, mine in zip(x[-9:], found, strict=True):
        assert_same_bits(mine, run(model, part)[0])


@pytest.mark.parametrize("op", ["Max", "Min", "Pow"])
@pytest.mark.parametrize("first", [True, False])
def test_of_two_numbers(op, first):
    x = np.float32([0.0, -0.0, 1, 2, 3, 0.5, 1.7, -1, 100, np.inf, -np.inf, np.nan])
    x = np.concatenate([x, np.random.default_rng(5).random(99, np.float32)])[:, None]
    for constant in x[:12]:
        wanted = session(op, x, constants={"C": constant}, first=first)
        pair = (x, constant) if first else (constant, x)
        with np.errstate(all="ignore"):
            assert_same_bits(OPERATORS[op]({}, *pair), wanted)


@pytest.mark.parametrize("change", ["", "{}", "number", "operator"])
def test_damaged_programs(change):
    forest = load_forest(converted("mean"))
    text = forest.outputs.graph
    if change == "number":
        text = text.replace('"inputs": [', '"inputs": [99, ')
    if change == "operator":
        text = text.replace('"Mul"', '"Mull"')
    assert text != change
    outputs = replace(forest.outputs, graph=text if len(change) > 2 else change)
    damaged = replace(forest, outputs=outputs)
    assert refusal(InvalidModelError, answers_of, damaged, X) == (
        "What the graph computes of its trees' answers is damaged; save the model "
        "again."
    )


@pytest.mark.parametrize("change", ["", "{}", "array"])
def test_damaged_trees_that_read_answers(change):
    text = text_of(load_forest(converted("mean")))
    damaged = text.replace('"<i4", [', '"<i4", [7, ') if change == "array" else change
    x = np.zeros((1, 2), np.float32)
    with pytest.raises((InvalidModelError, KeyError, ValueError)):
        answers_of_trees({"forest": (damaged,)}, x)


def test_trees_read_float_columns():
    text = text_of(load_forest(converted("mean")))
    for x in (np.zeros((2, 9)), np.zeros((2, 1), np.float32)):
        with pytest.raises(UnknownError, match="reads 2-dimensional"):
            answers_of_trees({"forest": (text,)}, x)


def test_only_what_an_answer_needs_is_computed():
    forest = load_forest(converted("one-vs-rest"))
    runner = runner_of(forest.outputs.graph)
    program = runner.program
    plans = [runner._plan((program.places,)), runner._plan(program.scores)]
    assert 0 < len(plans[0][1]) < len(plans[1][1]) < len(program.steps)
