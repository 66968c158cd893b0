"""ONNX graphs that divide columns of rows by a norm before the trees."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from skforge import load_forest
from skforge.forest.reference import reference_raw
from skforge.rows.readers import reader_of
from tests.answers_of import apply_transform
from tests.onnx_models import assert_same_bits, run
from tests.unit.test_frontend_onnx_steps import model_of, node

pytest.importorskip("onnxruntime")

NORMS = {
    "alone": [node("Normalizer", "X", norm="L1")],
    "then scaled": [
        node("Normalizer", "X", "n", norm="MAX"),
        node("Scaler", "n", offset=[0.5], scale=[0.3]),
    ],
    "of some, in another order": [
        node("ArrayFeatureExtractor", "X some", "a"),
        node("ArrayFeatureExtractor", "X rest", "b"),
        node("Normalizer", "a", "n", norm="L2"),
        node("Concat", "b n", axis=1),
    ],
    "two": [
        node("Split", "X", "a b", axis=1, num_outputs=2),
        node("Normalizer", "a", "n", norm="L2"),
        node("Normalizer", "b", "m", norm="MAX"),
        node("Concat", "m n", axis=1),
    ],
}  # fmt: skip


@pytest.mark.parametrize("steps", NORMS)
def test_norms_of_rows(steps):
    places = [("some", np.array([3, 1, 0])), ("rest", np.array([2]))]
    model = model_of(*NORMS[steps], constants=places)
    forest = load_forest(model)
    rows = np.random.default_rng(0).normal(size=(900, 4)).astype(np.float32)
    odd = np.array([0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 1e38], np.float32)
    chosen = np.random.default_rng(1).integers(0, 20, rows.shape)
    rows = np.where(chosen < 7, odd[chosen % 7], rows)
    before = rows.copy()
    made = reader_of(forest).rows(rows)
    assert np.array_equal(rows, before, equal_nan=True)
    found = apply_transform(forest, reference_raw(forest, made))
    assert_same_bits(found, run(model, rows)[0][:, 0])
    sparse = csr_array(np.where(np.isnan(rows), 1, rows))
    read = reader_of(forest).rows(sparse)
    assert np.array_equal(read, reader_of(forest).rows(sparse.toarray()), True)
    norms = ", ".join(norm for norm, _ in forest.row_norms)
    assert f"float32 rows divided by norms ({norms})," in repr(forest)


def test_norms_of_inputs_with_names():
    steps = [
        node("Concat", "pay tax", "n", axis=1),
        node("Normalizer", "n", "p", norm="L1"),
        node("Cast", "age", "a", to=1),
        node("Concat", "p a", axis=1),
    ]
    inputs = {"age": ("float64", 1), "tax": ("float32", 1), "pay": ("float32", 1)}
    model = model_of(*steps, width=3, inputs=inputs)
    forest = load_forest(model)
    assert forest.row_norms == (("L1", (2, 1)),)
    random = np.random.default_rng(0)
    feed = {
        name: random.normal(size=(500, 1)).astype(dtype)
        for name, (dtype, _) in inputs.items()
    }
    made = reader_of(forest).rows(np.hstack([*feed.values()]))
    found = apply_transform(forest, reference_raw(forest, made))
    assert_same_bits(found, run(model, feed)[0][:, 0])
