"""Norms of ONNX graphs' rows: forms of rows, methods, files, what is refused."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

import skforge
from skforge import UnsupportedModelError, compile_forest, load_forest
from skforge.forest.reference import reference_leaves
from skforge.rows.readers import reader_of
from tests.onnx_models import assert_same_bits, run
from tests.plain import plain
from tests.unit.test_frontend_onnx_steps import model_of, node

pytest.importorskip("onnxruntime")

COLUMNS = ("a", "b", "c", "d")
ROWS = np.random.default_rng(0).normal(size=(70, 4)).astype(np.float32)
ROWS[:4] = -abs(ROWS[:4])  # of which MAX changes signs: twice is not once


@pytest.fixture(scope="module")
def model():
    steps = [node("Concat", "a b c d", "X", axis=1), node("Normalizer", "X")]
    return model_of(*steps, inputs=dict.fromkeys(COLUMNS, ("float32", 1)))


def test_forms_and_files(model, tmp_path):
    feed = dict(zip(COLUMNS, np.hsplit(ROWS, 4), strict=True))
    expected = run(model, feed)[0][:, 0]
    fast = plain(model).fit(ROWS)
    skforge.save(fast, tmp_path / "a.skforge")
    frame = pd.DataFrame(ROWS, columns=COLUMNS)
    for each in (
        *(fast, pickle.loads(pickle.dumps(fast)), skforge.load(tmp_path / "a.skforge")),
        compile_forest(model),
    ):
        for rows in (ROWS, ROWS.astype(np.float64), ROWS.tolist(), frame[[*"dbca"]]):
            assert_same_bits(each.predict(rows), expected)
        assert_same_bits(each.predict(csr_array(ROWS)), expected)
        for row in range(3):
            assert_same_bits(each.predict(ROWS[row : row + 1]), expected[row : row + 1])
    assert_same_bits(fast.predict({n: x[:, 0] for n, x in feed.items()}), expected)
    assert_same_bits(
        fast.predict(dict(zip(COLUMNS, ROWS[0], strict=True))), expected[:1]
    )


def test_leaves_are_those_of_rows_divided_once(model):
    forest = load_forest(model)
    leaves = reference_leaves(forest, reader_of(forest).rows(ROWS))
    for each in (compile_forest(forest), plain(model).fit(ROWS)):
        assert np.array_equal(each.apply(ROWS), forest.source_node[leaves])
        values = forest.leaf_value[forest.leaf[leaves], 0]
        assert np.array_equal(each.predict_per_tree(ROWS), values)


def test_sparse_rows_of_many_columns():
    rows = np.zeros((40, 400), np.float32)
    rows[:, ::9] = np.random.default_rng(0).normal(size=(40, 45))
    model = model_of(node("Normalizer", "X", norm="L1"), n_features=400)
    fast, expected = plain(model).fit(rows), run(model, rows)[0][:, 0]
    assert_same_bits(fast.predict(csr_array(rows)), expected)
    assert np.array_equal(fast.apply(csr_array(rows)), fast.apply(rows))


def test_what_does_not_know_norms_refuses(model, tmp_path):
    fast = plain(model).fit(ROWS)
    with pytest.raises(UnsupportedModelError, match="contributions of columns are not"):
        fast.predict_contribs(ROWS)
    for kind in ("object", "c"):
        with pytest.raises(UnsupportedModelError, match="divided by a norm"):
            skforge.export(fast, tmp_path / kind, kind=kind)


def test_partial_dependence_is_that_of_the_columns(model):
    fast = plain(model).fit(ROWS)
    found = skforge.partial_dependence(fast, ROWS, [0], grid_resolution=3)
    for value, average in zip(
        found["grid_values"][0], found["average"][0], strict=True
    ):
        rows = ROWS.copy()
        rows[:, 0] = value
        assert average == pytest.approx(fast.predict(rows).mean())
