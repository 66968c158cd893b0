"""Forests as plain data: what is not stored is what it was."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from lightgbm import LGBMRegressor
from numpy.testing import assert_array_equal
from sklearn.datasets import make_regression
from sklearn.ensemble import (
    AdaBoostClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
)
from xgboost import XGBRegressor

from skforge import load_forest
from skforge.exceptions import InvalidModelError
from skforge.forest.record import forest_in, forest_out
from skforge.persistence.older_formats import format_1
from tests.comparing import assert_same_forest

X, Y = make_regression(300, 6, random_state=0)
MODELS = {
    "depth first": ExtraTreesRegressor(5, random_state=0),
    "best first": ExtraTreesRegressor(5, max_leaf_nodes=20, random_state=0),
    "votes": RandomForestClassifier(5, random_state=0),
    "xgboost": XGBRegressor(n_estimators=5),
    "lightgbm": LGBMRegressor(n_estimators=5, verbose=-1),
    "one tree": ExtraTreesRegressor(1, max_depth=1, random_state=0),
}


def forest_of(name):
    model = MODELS[name]
    return load_forest(model.fit(X, Y > 0 if name == "votes" else Y))


def again(forest, change=lambda arrays: None):
    arrays = {}
    record = forest_out(forest, arrays)
    change(arrays)
    return forest_in(record, arrays).validate()


def test_arrays_that_follow_from_others_are_not_stored():
    arrays = {}
    forest_out(forest_of("depth first"), arrays)
    absent = {"left", "leaf", "source_node"}
    stored = {name.partition(".")[2] for name in arrays}
    assert not absent & stored
    assert "right" in stored
    assert {len(arrays[f"forest.{n}"]) for n in ("comparison", "missing")} == {1}
    assert arrays["forest.feature"].dtype == np.uint8


def test_numbers_of_nodes_that_do_not_follow_are_stored():
    forest = forest_of("depth first")
    odd = np.array(forest.source_node)
    odd[3] += 1
    assert_same_forest(
        replace(forest, source_node=odd), again(replace(forest, source_node=odd))
    )


@pytest.mark.parametrize("weight", [-0.0, 0.1, 1 / 3, 2.0**32, 1e300, np.inf])
def test_weights_of_rows_keep_their_bits(weight):
    forest = forest_of("depth first")
    cover = np.array(forest.cover)
    cover[2] = weight
    assert_same_forest(
        replace(forest, cover=cover), again(replace(forest, cover=cover))
    )


@pytest.mark.parametrize(
    "offset", [[], [0], [0, 1 << 40], [0, -1], [[0, 1]], [0.5, 1], [0, 1 << 40, 9]]
)
def test_trees_that_are_none_take_no_memory(offset):
    def change(arrays):
        arrays["forest.tree_offset"] = np.array(offset)

    with pytest.raises(InvalidModelError):
        again(forest_of("depth first"), change)


@pytest.mark.parametrize("name", ["predicate", "feature", "threshold"])
def test_what_does_not_follow_must_be_there(name):
    with pytest.raises(InvalidModelError, match=rf"it lacks the array forest\.{name}"):
        again(forest_of("depth first"), lambda arrays: arrays.pop(f"forest.{name}"))


def test_shapes_that_save_never_writes_are_refused():
    def change(arrays):
        arrays["forest.predicate"] = arrays["forest.predicate"][:, None]

    with pytest.raises(InvalidModelError):
        again(forest_of("depth first"), change)


def test_a_forest_without_trees_is_the_same():
    forest = forest_of("one tree")
    none = {
        name: getattr(forest, name)[:0]
        for name in ("tree_output", "predicate", "left", "right", "leaf")
    }
    none |= {name: getattr(forest, name)[:0] for name in ("source_node", "cover")}
    none |= {"feature": forest.feature[:0], "threshold": forest.threshold[:0]}
    none |= {n: getattr(forest, n)[:0] for n in ("comparison", "missing")}
    none |= {"missing_left": forest.missing_left[:0]}
    none |= {"category_offset": np.zeros(1, int), "tree_offset": np.zeros(1, int)}
    made = replace(forest, **none, leaf_value=forest.leaf_value[:0]).validate()
    assert_same_forest(made, again(made))
    assert_array_equal(again(made).tree_offset, [0])


# ------------------------------------------------------------ older formats


NAMED = dict.fromkeys(("parameter", "divisor", "offsets", "cutoff"))


@pytest.mark.parametrize("classes", [2, 3])
def test_rules_that_a_name_told_are_those_of_the_model(classes: int) -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = AdaBoostClassifier(n_estimators=2).fit(X, np.arange(60) % classes)
    forest = load_forest(model)
    rules = asdict(forest.outputs)
    named = {**NAMED, "kind": "samme"}
    old = format_1._outputs(named, forest.task, "sklearn", forest.n_outputs)
    told = "function", "probabilities", "labels", "decision"
    assert {part: old[part] for part in told} == {part: rules[part] for part in told}
