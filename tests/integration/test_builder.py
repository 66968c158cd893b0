"""Tests of ``unit/test_builder.py`` that compile or start processes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import skforge
from skforge import ForestBuilder, Schedule, compile_forest
from skforge.exceptions import InvalidInputError
from skforge.forest.reference import reference_raw
from tests.plain import plain
from tests.unit.test_builder import STUMP, rules, same_bits

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(300, 4)).astype(np.float32)
Y = X[:, 0] * X[:, 1] + 0.1 * RANDOM.normal(size=300)


# ------------------------------------------------------------ other libraries' dumps


def of_lightgbm(node):
    if "leaf_value" in node:
        return {"value": node["leaf_value"], "cover": node.get("leaf_count", 0)}
    made = {
        "feature": node["split_feature"],
        "default_left": node["default_left"],
        "missing": node["missing_type"].lower(),
        "cover": node["internal_count"],
        "left": of_lightgbm(node["left_child"]),
        "right": of_lightgbm(node["right_child"]),
    }
    if node["decision_type"] == "==":
        return made | {"categories": [*map(int, node["threshold"].split("||"))]}
    return made | {"threshold": node["threshold"]}


@pytest.mark.parametrize("kind", ["regression", "binary", "multiclass"])
def test_a_dump_of_lightgbm_by_hand(kind):
    lgb = pytest.importorskip("lightgbm")
    rows = np.column_stack([X, RANDOM.integers(0, 6, len(X))]).astype(np.float64)
    rows[RANDOM.random(rows.shape) < 0.1] = np.nan
    labels = Y + np.isin(rows[:, 4], [1, 4])
    if kind != "regression":
        labels = (labels > 0) + (1 * (labels > 1) if kind == "multiclass" else 0)
    n_outputs = 3 if kind == "multiclass" else 1
    params = {"objective": kind, "num_class": n_outputs, "verbose": -1}
    params |= {"num_leaves": 7, "min_data_per_group": 1, "cat_smooth": 1}
    params |= {"max_cat_to_onehot": 1}
    data = lgb.Dataset(rows, labels, categorical_feature=[4])
    model = lgb.train(params, data, 5)
    transform = {"binary": "logistic", "multiclass": "softmax"}.get(kind)
    builder = ForestBuilder(5, n_outputs=n_outputs, task=kind, transform=transform)
    for i, tree in enumerate(model.dump_model()["tree_info"]):
        root = of_lightgbm(tree["tree_structure"])
        builder.add_nodes(root, output=i % n_outputs)
    forest = builder.build()
    assert (forest.comparison == 6).any()
    same_bits(
        compile_forest(forest, schedule=Schedule()).predict(rows), model.predict(rows)
    )
    assert len(forest.cover) == forest.n_nodes


def test_a_forest_of_scikit_learn_by_hand():
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(5, random_state=0).fit(X, Y > 0)
    options = {"n_outputs": 2, "task": "binary", "class_labels": [False, True]}
    builder = ForestBuilder(4, dtype="float32", average=True, **options)
    for estimator in model.estimators_:
        tree = estimator.tree_
        builder.add_tree(
            tree.feature,
            tree.threshold,
            tree.children_left,
            tree.children_right,
            tree.value[:, 0],
            default_left=tree.missing_go_to_left,
            cover=tree.weighted_n_node_samples,
        )
    fast = plain(builder.build()).fit(X)
    same_bits(fast.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(fast.predict(X), model.predict(X))
    loaded = skforge.load_forest(model)
    for name in ("threshold", "left", "cover", "leaf_value", "divisor", "base"):
        same_bits(
            np.ravel(getattr(fast.forest_, name)), np.ravel(getattr(loaded, name))
        )


def test_classes_follow_from_scores():
    rows = np.array([[0.0, 0.0], [1.0, 0.0]])
    named = {"task": "binary", "class_labels": ["no", "yes"], "base": -1.5}
    fast = plain(rules(transform="logistic", **named).build()).fit(rows)
    second = 1 / (1 + np.exp([0.5, -0.5]))
    np.testing.assert_allclose(fast.predict_proba(rows), np.c_[1 - second, second])
    assert fast.predict(rows).tolist() == ["no", "yes"]
    assert fast.classes_.tolist() == ["no", "yes"]
    values = STUMP | {"value": [[0, 0, 0], [1, 3, 2], [5, 3, 2]]}
    for transform in (None, "softmax", "sigmoid"):
        options = {"n_outputs": 3, "task": "multiclass", "transform": transform}
        fast = plain(ForestBuilder(2, **options).add_tree(**values).build()).fit(rows)
        assert fast.predict(rows).tolist() == [1, 0]
        assert fast.predict_proba(rows).shape == (2, 3)
    growth = compile_forest(rules(transform="exp", task="ranking").build())
    np.testing.assert_allclose(growth.predict(rows), np.exp([1.0, 2.0]))


def test_a_forest_by_hand_goes_where_others_go(tmp_path):
    joblib = pytest.importorskip("joblib")
    builder = rules(task="binary", class_labels=["no", "yes"])
    forest = builder.build()
    assert skforge.load_forest(forest) is forest
    rows = np.array([[0.0, 0.0], [1.0, 0.0]])
    fast = plain(forest).fit(rows)
    wanted = fast.predict(rows).tolist()
    skforge.save(fast, tmp_path / "a.skforge")
    assert skforge.load(tmp_path / "a.skforge").predict(rows).tolist() == wanted
    for each in (forest, fast, builder):
        joblib.dump(each, tmp_path / "a.joblib")
        again = joblib.load(tmp_path / "a.joblib")
        if each is fast:
            assert again.predict(rows).tolist() == wanted
        else:
            made = again if each is forest else again.build()
            assert made.content_hash() == forest.content_hash()
    skforge.save(forest, tmp_path / "forest.skforge")
    loaded = skforge.load(tmp_path / "forest.skforge")
    assert loaded.content_hash() == forest.content_hash()
    skforge.export(forest, tmp_path / "stump.c")
    assert (tmp_path / "stump.c").exists()
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InvalidInputError, match="the model was trained on"):
        fast.predict(pandas.DataFrame(rows, columns=["fare", "age"]))


def test_a_builder_goes_on():
    builder = rules()
    first = builder.build()
    assert repr(builder) == "<ForestBuilder: 1 trees, 2 features, 1 outputs>"
    second = builder.add_tree(**STUMP).build()
    assert (first.n_trees, second.n_trees) == (1, 2)
    assert second.n_predicates == 1
    assert pickle.loads(pickle.dumps(builder)).build().n_trees == 2
    none = ForestBuilder(2, base=0.25).build()
    assert compile_forest(none).predict(np.zeros((2, 2))).tolist() == [0.25] * 2


def test_markers_names_and_single_values():
    builder = ForestBuilder(2, feature_names=["age", "fare"], missing_value=-999.0)
    builder.add_tree(
        ["fare", "", ""], 0.5, [1, -1, -1], [2, -1, -1], [0, 1, 2], default_left=True
    )
    forest = builder.build()
    rows = np.array([[9.0, 0.5], [9.0, 0.6], [9.0, -999.0], [9.0, np.nan]])
    assert reference_raw(forest, rows)[:, 0].tolist() == [1.0, 2.0, 1.0, 1.0]
    assert not len(forest.cover)
    leaf = ForestBuilder(1).add_tree(0, 0, [-1], [-1], 4.0, node_id=[7], cover=[2.0])
    module = compile_forest(leaf.build())
    assert module.apply(np.zeros((1, 1))).tolist() == [[7]]
    assert module.predict(np.zeros((1, 1))).tolist() == [4.0]
