"""The JSON of LightGBM's dump_model: the forest of the text, or an error."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skforge.exceptions import InvalidModelError, SkforgeError, UnsupportedModelError
from skforge.forest.reference import reference_raw
from skforge.frontends import load_forest
from tests.refusals import error_of

lgb = pytest.importorskip("lightgbm")

DATA = Path(__file__).parents[1] / "data" / "lightgbm"
FILES = sorted(DATA.glob("*.txt"))
DAMAGED = "; the model is damaged, save it again."


def dump_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = lgb.Booster(model_file=DATA / name).dump_model()
    return found


def train(objective: str = "regression", **params: Any) -> Any:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    X[:, 3] = rng.integers(0, 70, 300)
    X[::7, 0] = np.nan
    y = 0.2 * X[:, 1] + (X[:, 3] % 3 == 0)
    if objective == "multiclass":
        y = np.digitize(y, [0.3, 0.7])
        params |= {"num_class": 3}
    params |= {"objective": objective, "num_leaves": 9, "min_data_in_leaf": 5}
    params |= {"verbose": -1, "num_threads": 1, "cat_smooth": 1}
    params |= {"min_data_per_group": 1}
    data = lgb.Dataset(X, y, categorical_feature=[3])
    return lgb.train(params, data, 4), X


@pytest.mark.sampled(10)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_a_dump_is_the_forest_of_its_text(path):
    text, dump = load_forest(path), load_forest(dump_of(path.name))
    X = np.load(DATA / f"{path.name.split('-')[0]}.npz")["X"]
    np.testing.assert_array_equal(reference_raw(dump, X), reference_raw(text, X))
    np.testing.assert_array_equal(dump.leaf_value, text.leaf_value)
    np.testing.assert_array_equal(dump.threshold, text.threshold)
    np.testing.assert_array_equal(dump.source_node, text.source_node)
    np.testing.assert_array_equal(dump.cover, text.cover)
    assert (dump.outputs, dump.task) == (text.outputs, text.task)
    assert dump.feature_names == text.feature_names


def test_infinite_thresholds_are_1e300_in_dumps():
    """A test of whether a value is missing; LightGBM's JSON cannot write infinity."""
    X = np.linspace(-1, 1, 200).reshape(-1, 1)
    X[::2] = np.nan
    params = {"objective": "regression", "num_leaves": 2, "verbose": -1}
    booster = lgb.train(params, lgb.Dataset(X, np.isnan(X[:, 0]) * 1.0), 2)
    forest = load_forest(booster.dump_model())
    assert np.isinf(forest.threshold).any()
    rows = np.array([[np.nan], [np.inf], [-np.inf], [1.5e300], [1.0]])
    np.testing.assert_array_equal(
        reference_raw(forest, rows)[:, 0], booster.predict(rows)
    )


@pytest.mark.parametrize("least, most", [(1.0, 1.7e308), (-3e300, -2e300)])
def test_other_thresholds_beyond_1e300_are_lost_in_dumps(least, most):
    X = np.where(np.arange(200) % 2, least, most).reshape(-1, 1)
    X[::5] = np.nan
    params = {"objective": "regression", "num_leaves": 3, "verbose": -1}
    booster = lgb.train(params, lgb.Dataset(X, np.arange(200) % 2), 2)
    text = error_of(UnsupportedModelError, load_forest, booster.dump_model())
    assert text == (
        "tree 0 tests a feature with values of 1e+300 or beyond, and LightGBM's JSON "
        "has no greater thresholds; save the model as text."
    )
    found = reference_raw(load_forest(booster.model_to_string().encode()), X)[:, 0]
    np.testing.assert_array_equal(found, booster.predict(X))


def test_rounds_and_trees_of_one_leaf():
    booster, X = train()
    dump = booster.dump_model()
    some = load_forest(dump, iteration_range=(1, 3))
    expected = booster.predict(X, start_iteration=1, num_iteration=2)
    np.testing.assert_array_equal(reference_raw(some, X)[:, 0], expected)
    params = {"verbose": -1, "objective": "regression"}
    flat = lgb.train(params, lgb.Dataset(X, np.full(300, 2.5)), 1)
    forest = load_forest(flat.dump_model())
    np.testing.assert_array_equal(reference_raw(forest, X)[:, 0], flat.predict(X))


def node(dump: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = dump["tree_info"][0]["tree_structure"]
    return found


def first_node(dump: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the first node with a kind of test, such as "==" for categories."""
    waiting = [tree["tree_structure"] for tree in dump["tree_info"]]
    while True:
        one: dict[str, Any] = waiting.pop(0)
        if one.get("decision_type") == kind:
            return one
        waiting += [one[side] for side in ("left_child", "right_child") if side in one]


FAULTS: dict[str, tuple[Any, type[SkforgeError], str]] = {
    "version": (lambda d: d.update(version="v9"), UnsupportedModelError,
        "The model has the format version 'v9', but only v2, v3, v4 are supported."),
    "no version": (lambda d: d.pop("version"), UnsupportedModelError,
        "The model has the format version None, but only v2, v3, v4 are supported."),
    "something new": (lambda d: d.update(rotation=3), UnsupportedModelError,
        "'rotation' of the model is unknown, which may change predictions, so the "
        "model cannot be compiled."),
    "something new in a node": (lambda d: node(d).update(bias=1.0),
        UnsupportedModelError,
        "'bias' of tree 0 is unknown, which may change predictions, so the model "
        "cannot be compiled."),
    "another test": (lambda d: node(d).update(decision_type=">"), UnsupportedModelError,
        "A test '>' of tree 0 is unknown, which may change predictions, so the model "
        "cannot be compiled."),
    "no trees": (lambda d: d.pop("tree_info"), InvalidModelError,
        f"tree_info is not a list{DAMAGED}"),
    "no child": (lambda d: node(d).pop("left_child"), InvalidModelError,
        f"tree 0 holds something that is not a node{DAMAGED}"),
    "a circle": (lambda d: node(d).update(left_child=node(d)), InvalidModelError,
        f"a node of tree 0 stands there twice{DAMAGED}"),
    "a gap": (lambda d: node(d).update(split_index=90), InvalidModelError,
        f"the nodes of tree 0 are not numbered from 0{DAMAGED}"),
    "leaves": (lambda d: d["tree_info"][0].update(num_leaves=3), InvalidModelError,
        f"num_leaves of tree 0 is not 9{DAMAGED}"),
    "a feature": (lambda d: node(d).update(split_feature=True), InvalidModelError,
        f"split_feature holds something that is not a number{DAMAGED}"),
    "a threshold": (lambda d: first_node(d, "<=").update(threshold="0.5"),
        InvalidModelError, f"tree 0 holds '0.5' where a number must be{DAMAGED}"),
    "a side": (lambda d: node(d).update(default_left=1), InvalidModelError,
        f"default_left of tree 0 is 1{DAMAGED}"),
    "a name": (lambda d: d["feature_names"].append(5), InvalidModelError,
        f"feature_names is not text{DAMAGED}"),
    "a set": (lambda d: first_node(d, "==").update(threshold="1||x"), InvalidModelError,
        f"threshold = '1||x' of tree 0 is not a set of categories{DAMAGED}"),
    "a large category": (lambda d: first_node(d, "==").update(threshold="16777216"),
        UnsupportedModelError,
        "A category of tree 0 is 16777216 or more; number the categories from 0 "
        "without gaps."),
}  # fmt: skip


@pytest.fixture(scope="module")
def dump() -> dict[str, Any]:
    found: dict[str, Any] = train(zero_as_missing=True)[0].dump_model()
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_named(fault, dump):
    change, kind, message = FAULTS[fault]
    wrong = copy.deepcopy(dump)
    change(wrong)
    assert error_of(kind, load_forest, wrong) == message


def test_a_small_file_cannot_ask_for_huge_category_sets(dump, monkeypatch):
    monkeypatch.setattr("skforge.frontends.lightgbm.dump._MAX_WORDS", 1 << 20)
    wrong = copy.deepcopy(dump)
    first_node(wrong, "==")["threshold"] = "16777215"
    wrong["tree_info"] = wrong["tree_info"][:1] * 60
    assert error_of(UnsupportedModelError, load_forest, wrong) == (
        "The category sets up to tree 2 take more than 4194304 bytes; number the "
        "categories from 0 without gaps."
    )


def test_trees_too_deep_for_json(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text('{"name": "tree", "tree_info": ' + "[" * 300_000)
    with pytest.raises(InvalidModelError, match=r"^deep\.json: The JSON is nested"):
        load_forest(path)
