"""ONNX: scores that are no plain sums, sets with fractions, and rows of any width."""

from __future__ import annotations

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
from skforge.forest.record import forest_in, forest_out
from skforge.frontends.onnx import trees as trees_of_onnx
from tests.onnx_models import RandomTrees, least, make_model, one_set, regressor, run


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
    from dataclasses import replace

    forest = load_forest(least()[0])
    absent = np.full_like(forest.leaf_value, np.inf)
    forest = replace(forest, leaf_value=absent).validate()
    with pytest.raises(InvalidModelError) as error:
        replace(forest, **changes).validate()
    assert str(error.value).startswith(text)


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


# ------------------------------------------------------------------ fractions in sets


def test_a_declared_width_is_the_only_one():
    trees = RandomTrees(3, n_features=3)
    model = make_model("TreeEnsembleRegressor", regressor(trees), 3)
    trees.n_features = 5
    with pytest.raises(InvalidInputError, match="5 columns"):
        compile_forest(load_forest(model)).predict(trees.rows(4))


def test_a_record_has_every_field():
    forest = load_forest(one_set([1, 2], 0, "float32"))
    arrays: dict[str, Any] = {}
    record = forest_out(forest, arrays)
    assert forest_in(record, arrays).content_hash() == forest.content_hash()
    del record["divisor"]
    with pytest.raises(InvalidModelError, match="'divisor' of its manifest"):
        forest_in(record, arrays)


# ------------------------------------------------------------------ damaged weights


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
