"""CompiledForest of ONNX models: what onnxruntime gives, labels included."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone, is_classifier, is_regressor

import skforge
from skforge import (
    InvalidInputError,
    UnsupportedModelError,
    compile_forest,
    load_forest,
)
from skforge.forest.reference import reference_leaves
from skforge.rows.readers import reader_of
from tests.comparing import in_every_state, refusal
from tests.onnx_models import assert_same_bits, make_model, run
from tests.plain import plain
from tests.unit.test_frontend_onnx_steps import (
    ONE_HOT,
    WHOLE,
    model_of,
    node,
    people,
    travel,
)

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

X = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
X[0, 1], X[1, 1] = 0.25, np.nan


#: A stump on feature 1 and 0.25.
STUMP = {"nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2]}
STUMP |= {"nodes_featureids": [1, 0, 0], "nodes_values": [0.25, 0.0, 0.0]}
STUMP |= {"nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0]}
STUMP["nodes_modes"] = ["BRANCH_LEQ", "LEAF", "LEAF"]
CLASSES = {
    "class_treeids": [0] * 6,
    "class_nodeids": [1, 1, 1, 2, 2, 2],
    "class_ids": [0, 1, 2] * 2,
    "class_weights": [0.5, 0.25, 1.5, -1.0, 2.0, 0.125],
    "classlabels_strings": ["no", "maybe", "yes"],
    "post_transform": "SOFTMAX",
}
TARGETS = {"target_treeids": [0, 0], "target_nodeids": [1, 2], "n_targets": 1}
TARGETS |= {"target_ids": [0, 0], "target_weights": [0.5, -3.0]}
CLASSIFIER = make_model("TreeEnsembleClassifier", STUMP | CLASSES, 3)
REGRESSOR = make_model("TreeEnsembleRegressor", STUMP | TARGETS, 3)


@pytest.mark.parametrize("kind", ["model", "file", "clone", "pickle"])
def test_classifiers_give_labels_and_scores(kind, tmp_path):
    source = CLASSIFIER
    if kind == "file":
        source = tmp_path / "model.onnx"
        onnx.save(CLASSIFIER, source)
    compiled = plain(source)
    assert is_classifier(compiled)
    if kind == "clone":
        compiled = clone(compiled)
    compiled.fit(X)
    if kind == "pickle":
        compiled = pickle.loads(pickle.dumps(compiled))
    label, scores = run(CLASSIFIER, X)
    assert compiled.predict(X).tolist() == label.tolist()
    assert np.array_equal(compiled.predict_proba(X), scores)
    assert compiled.classes_.tolist() == ["no", "maybe", "yes"]
    assert compiled.score(X, label) == 1


def test_regressors_give_targets():
    compiled = plain(REGRESSOR)
    assert is_regressor(compiled)
    assert np.array_equal(compiled.fit(X).predict(X), run(REGRESSOR, X)[0][:, 0])
    assert not hasattr(compiled, "predict_proba")
    assert not hasattr(compiled, "classes_")


def test_rows_are_checked():
    compiled = plain(REGRESSOR).fit(X)
    assert refusal(InvalidInputError, compiled.predict, X[:, :2]) == (
        f"the model was trained on {compiled.n_features_in_} features, but the rows "
        "have 2 columns."
    )
    assert refusal(InvalidInputError, compiled.predict, X, threads=1) == (
        "predict of a model read from a file takes only rows of numbers, without "
        "other arguments. Got threads."
    )


ROWS = ["frame", "reordered", "categories", "polars", "objects", "lists"]
ROWS += ["feed", "columns", "mappings", "mapping", "one row"]


@pytest.mark.parametrize("kind", ["live", "pickle", "file", "dropped"])
def test_rows_of_a_graph_with_an_input_for_each_column(kind, tmp_path):
    """All forms have the bits of a session that gets its feed by name."""
    import polars as pl

    model = travel(*ONE_HOT, width=6, constants=[("shape", [-1, 4])])
    feed = people(300)
    expected = run(model, feed)[0][:, 0]
    flat = {name: values[:, 0] for name, values in feed.items()}
    frame = pd.DataFrame(flat)
    fast = plain(model).fit(frame)
    assert fast.feature_names_in_.tolist() == ["age", "city", "pay"]
    fast = in_every_state(fast, tmp_path)[kind]
    records = frame.to_dict("records")
    forms: dict[str, Any] = {
        "frame": frame,
        "reordered": frame[["pay", "age", "city"]].assign(more=1),
        "categories": frame.astype({"city": "category"}),
        "polars": pl.DataFrame(flat, schema_overrides={"city": pl.String}),
        "objects": frame.to_numpy(object),
        "lists": frame.to_numpy(object).tolist(),
        "feed": feed,
        "columns": flat,
        "mappings": records,
        "mapping": records[7],
        "one row": frame.iloc[7:8],
    }
    assert [*forms] == ROWS
    for name, rows in forms.items():
        wanted = expected[7:8] if name in ROWS[-2:] else expected
        assert np.array_equal(fast.predict(rows), wanted), name
    with pytest.MonkeyPatch.context() as patch:  # it need not be installed
        patch.setitem(sys.modules, "pyarrow", None)
        assert np.array_equal(fast.predict(forms["polars"]), expected)
    for value in (None, np.nan):  # onnxruntime makes texts of them
        given = frame.iloc[:1].to_dict("records")[0] | {"city": value}
        text = {name: values[:1] for name, values in feed.items()}
        text["city"] = np.array([[str(value)]], object)
        wanted = run(model, text)[0][:, 0]
        for rows in (given, pd.DataFrame([given], dtype=object)):
            assert np.array_equal(fast.predict(rows), wanted), value
    unknown = frame.assign(city=None)
    other = run(model, {**feed, "city": np.full((300, 1), "None", object)})[0][:, 0]
    assert np.array_equal(fast.predict(unknown), other)
    assert refusal(InvalidInputError, fast.predict, frame[["age", "pay"]]) == (
        "the columns ['city'] are not in the rows; the graph has an input for each."
    )


@pytest.mark.parametrize("dtype", WHOLE)
def test_entries_look_for_whole_numbers(dtype):
    """They answer arrays, lists and frames, and leave others to who refuses them."""
    model = model_of(node("Cast", "X", to=1), graph_dtype=dtype)
    rows = np.random.default_rng(5).integers(-9, 9, (30, 4))
    rows = rows > 0 if dtype == "bool" else rows.astype(dtype)
    fast, module = plain(model).fit(rows), skforge.compile_forest(model)
    expected = run(model, rows)[0][:, 0]
    plains = rows.astype(np.float32), rows.astype(np.float64), rows.astype(int)
    forms = [*plains, rows.tolist(), pd.DataFrame(rows.astype(int))]
    for form in forms:
        for answers in (fast.predict, module.predict):
            for _ in range(4):  # then a module has its entry
                assert np.array_equal(answers(form), expected)
    assert fast._predictor.entries["predict"](plains[0]) is not None
    assert module._entries["transformed"](plains[0]) is not None
    for value in (0.5, np.nan, -np.inf, WHOLE[dtype], -WHOLE[dtype]):
        odd = plains[0].copy()
        odd[7, 2] = value
        odd_forms = odd, odd.astype(np.float64), odd.tolist(), pd.DataFrame(odd)
        for form in (odd[7:8], *odd_forms):
            methods = fast.predict, fast.predict_raw, module.predict, module.predict_raw
            for method in methods:
                text = refusal(InvalidInputError, method, form)
                assert f"column 2 holds {value} in row " in text


# ------------------------------------------------------------ norms of rows

COLUMNS = ("a", "b", "c", "d")
NORMED = np.random.default_rng(0).normal(size=(70, 4)).astype(np.float32)
NORMED[:4] = -abs(NORMED[:4])  # of which MAX changes signs: twice is not once


@pytest.fixture(scope="module")
def divided():
    steps = [node("Concat", "a b c d", "X", axis=1), node("Normalizer", "X")]
    return model_of(*steps, inputs=dict.fromkeys(COLUMNS, ("float32", 1)))


def test_forms_and_files(divided, tmp_path):
    feed = dict(zip(COLUMNS, np.hsplit(NORMED, 4), strict=True))
    expected = run(divided, feed)[0][:, 0]
    fast = plain(divided).fit(NORMED)
    frame = pd.DataFrame(NORMED, columns=COLUMNS)
    forms = [NORMED, NORMED.astype(np.float64), NORMED.tolist(), frame[[*"dbca"]]]
    forms += [csr_array(NORMED), *(NORMED[row : row + 1] for row in range(3))]
    wanted = [*[expected] * 5, *(expected[row : row + 1] for row in range(3))]
    states = in_every_state(fast, tmp_path).values()
    for each in (*states, compile_forest(divided)):
        for rows, own in zip(forms, wanted, strict=True):
            assert_same_bits(each.predict(rows), own)
    assert_same_bits(fast.predict({n: x[:, 0] for n, x in feed.items()}), expected)
    assert_same_bits(
        fast.predict(dict(zip(COLUMNS, NORMED[0], strict=True))), expected[:1]
    )


def test_leaves_are_those_of_rows_divided_once(divided):
    forest = load_forest(divided)
    leaves = reference_leaves(forest, reader_of(forest).rows(NORMED))
    for each in (compile_forest(forest), plain(divided).fit(NORMED)):
        assert np.array_equal(each.apply(NORMED), forest.source_node[leaves])
        values = forest.leaf_value[forest.leaf[leaves], 0]
        assert np.array_equal(each.predict_per_tree(NORMED), values)


def test_sparse_rows_of_many_columns():
    rows = np.zeros((40, 400), np.float32)
    rows[:, ::9] = np.random.default_rng(0).normal(size=(40, 45))
    divided = model_of(node("Normalizer", "X", norm="L1"), n_features=400)
    fast, expected = plain(divided).fit(rows), run(divided, rows)[0][:, 0]
    assert_same_bits(fast.predict(csr_array(rows)), expected)
    assert np.array_equal(fast.apply(csr_array(rows)), fast.apply(rows))


def test_what_does_not_know_norms_refuses(divided, tmp_path):
    fast = plain(divided).fit(NORMED)
    with pytest.raises(UnsupportedModelError, match="contributions of columns are not"):
        fast.predict_contribs(NORMED)
    for kind in ("object", "c"):
        with pytest.raises(UnsupportedModelError, match="divided by a norm"):
            skforge.export(fast, tmp_path / kind, kind=kind)


def test_partial_dependence_is_that_of_the_columns(divided):
    fast = plain(divided).fit(NORMED)
    found = skforge.partial_dependence(fast, NORMED, [0], grid_resolution=3)
    for value, average in zip(
        found["grid_values"][0], found["average"][0], strict=True
    ):
        rows = NORMED.copy()
        rows[:, 0] = value
        assert average == pytest.approx(fast.predict(rows).mean())
