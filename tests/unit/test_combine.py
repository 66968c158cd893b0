"""Forest.select_trees and Forest.concatenate, against the libraries' predictions."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.ensemble import (
    AdaBoostClassifier,
    AdaBoostRegressor,
    IsolationForest,
    RandomForestRegressor,
)

from skforge import load_forest
from skforge.exceptions import InvalidInputError, UnsupportedModelError
from skforge.forest.forest import Forest
from skforge.forest.outputs import OutputSpec
from skforge.forest.reference import (
    differing_rows,
    reference_leaves,
    reference_raw,
)
from tests.forests_by_hand import forest_of_nodes
from tests.refusals import error_of
from tests.strategies_forest import edge_rows, random_forest

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(300, 4)).astype(np.float32)
Y = (X[:, 0] * X[:, 1] > 0).astype(int) + (X[:, 2] > 1)
ROUNDS = (1, 3, 6)


def same_bits(values, expected):
    assert not len(differing_rows(np.asarray(values), np.asarray(expected)))


def test_the_first_trees_are_those_of_catboost():
    catboost = pytest.importorskip("catboost")
    model = catboost.CatBoostRegressor(
        iterations=6, depth=3, verbose=0, allow_writing_files=False
    ).fit(X, X[:, 0] + 1)
    forest = load_forest(model)
    for k in ROUNDS:
        few = forest.select_trees([*range(k), -1])  # the bias is the last tree
        same_bits(reference_raw(few, X)[:, 0], model.predict(X, ntree_end=k))


@given(forest=random_forest(), data=st.data())
def test_any_trees_in_any_order(forest, data):
    numbers = list(range(-forest.n_trees, 0))
    trees = data.draw(st.lists(st.sampled_from(numbers), unique=True))
    forest = replace(forest, divisor=1)
    few = forest.select_trees(trees)
    rows = edge_rows(forest, 20)
    leaves = reference_leaves(forest, rows)[:, trees]
    node = few.source_node[reference_leaves(few, rows)]
    assert_array_equal(node, forest.source_node[leaves])
    total = np.tile(forest.base, (len(rows), 1))
    for tree, leaf in zip(trees, leaves.T, strict=True):
        output = forest.tree_output[tree]
        part = total if output < 0 else total[:, output : output + 1]
        part += forest.leaf_value[forest.leaf[leaf]]
    same_bits(reference_raw(few, rows), total)
    assert few.n_features == forest.n_features


@cache
def averaged():
    return load_forest(RandomForestRegressor(3, random_state=0).fit(X, Y))


def test_masks_choose_trees():
    forest = averaged()
    masked = forest.select_trees([True, False, True])
    assert masked.content_hash() == forest.select_trees([0, -1]).content_hash()
    assert forest.select_trees(1).n_trees == 1


def test_averages_need_as_many_trees_for_each_output():
    lgb = pytest.importorskip("lightgbm")
    params = {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}
    params |= {"objective": "multiclass", "num_class": 3, "verbose": -1}
    forest = load_forest(lgb.train(params, lgb.Dataset(X, Y), 2))
    assert forest.select_trees([0, 4, 5]).outputs.divisor == 1
    some = error_of(InvalidInputError, forest.select_trees, [0, 3, 4])
    assert some == NO_AVERAGE.format([2, 1, 0])


@pytest.mark.parametrize(
    "model", [AdaBoostClassifier, AdaBoostRegressor, IsolationForest]
)
def test_scores_that_depend_on_all_trees(model):
    forest = load_forest(model(n_estimators=3).fit(X, Y))
    text = (
        f"The transform {forest.outputs.function!r} has a constant of all trees, which "
        "is not that of other trees; choose the trees in sklearn, and read the model "
        "again."
    )
    for call in (
        lambda: forest.select_trees([0]),
        lambda: Forest.concatenate([forest]),
    ):
        assert error_of(UnsupportedModelError, call) == text


@given(forest=random_forest(max_trees=4), other=random_forest(max_trees=4))
def test_scores_add_up_in_order(forest, other):
    names = "threshold", "leaf_value", "base"
    with np.errstate(over="ignore"):
        arrays = {k: getattr(other, k).astype(getattr(forest, k).dtype) for k in names}
    truncates = forest.truncate_categories
    other = replace(other, **arrays, truncate_categories=truncates)
    n_features = max(forest.n_features, other.n_features)
    n_outputs = max(forest.n_outputs, other.n_outputs)

    def alike(part):
        """Return a forest of the common numbers; leaves of all outputs stay alone."""
        part = replace(part, n_features=n_features, divisor=1)
        if part.vector_leaves and part.n_outputs < n_outputs:
            wider = np.zeros((part.n_leaves, n_outputs), part.accumulator_dtype)
            wider[:, : part.n_outputs] = part.leaf_value
            part = replace(part, leaf_value=wider)
        base = np.zeros(n_outputs, part.accumulator_dtype)
        base[: part.n_outputs] = part.base
        return replace(part, base=base).validate()

    parts = [alike(forest), alike(other)]
    whole = Forest.concatenate(parts)
    rows = edge_rows(whole, 20)
    total = np.tile(parts[0].base + parts[1].base, (len(rows), 1))
    for part in parts:
        leaves = reference_leaves(part, rows)
        for tree, output in enumerate(part.tree_output):
            to = total if output < 0 else total[:, output : output + 1]
            to += part.leaf_value[part.leaf[leaves[:, tree]]]
    same_bits(reference_raw(whole, rows), total)
    nodes = np.hstack([p.source_node[reference_leaves(p, rows)] for p in parts])
    assert_array_equal(whole.source_node[reference_leaves(whole, rows)], nodes)


def test_lightgbms_random_forests_are_averaged():
    lgb = pytest.importorskip("lightgbm")
    params = {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}
    model = lgb.train({"verbose": -1, **params}, lgb.Dataset(X, Y), 4)
    forest = load_forest(model)
    parts = [forest.select_trees(trees) for trees in ([0], [1, 2], [3])]
    assert [part.outputs.divisor for part in parts] == [1, 2, 1]
    again = Forest.concatenate(parts)
    assert again.content_hash() == forest.content_hash()


def test_averages_of_scores_and_of_transformed_ones():
    forest = averaged()
    later = replace(forest, divisor=1, outputs=OutputSpec(divisor=3))
    for forests, first in (([forest, later], 0), ([later, forest], 1)):
        text = error_of(InvalidInputError, lambda f=forests: Forest.concatenate(f))
        assert text.startswith(f"Forest {first} does not average the [3] trees that ")


def stumps(**changes):
    """One tree for each of two outputs; as a forest that nobody refuses."""
    fields = {
        "tree_output": [0, 1],
        "leaf_value": np.array([[1.0], [2.0], [3.0]]),
        "comparison": [1],
        "threshold": [0.5],
        "missing_left": [True],
        "n_features": 2,
        "base": [0.5, -0.0],
    }
    forest = forest_of_nodes([1, -1, -1, -1], [2, -1, -1, -1], [0, 3, 4], **fields)
    return replace(forest, **changes)


def test_leaves_of_one_output_and_of_all():
    whole = stumps(
        tree_output=np.array([-1, -1]),
        leaf_value=np.array([[1.0, 5.0], [2.0, 6.0], [-0.0, -0.0]]),
    )
    shared = stumps(leaf=np.array([-1, 0, 0, 0]), leaf_value=np.array([[4.0]]))
    mixed = Forest.concatenate([whole, shared])
    assert mixed.vector_leaves
    rows = np.array([[0.0, 0.0], [1.0, 0.0]])
    assert_array_equal(reference_raw(mixed, rows), [[6.0, 9.0], [7.0, 10.0]])
    least = {"aggregate": "min", "base": np.zeros(2)}
    mixed = Forest.concatenate([replace(whole, **least), replace(shared, **least)])
    assert_array_equal(reference_raw(mixed, rows), [[0.0, 0.0], [0.0, 0.0]])
    assert_array_equal(mixed.leaf_value[3], [4.0, np.inf])


def test_covers_and_columns_of_pipelines():
    given, missing = stumps(cover=np.array([3.0, 1, 2, 3])), stumps()
    assert_array_equal(Forest.concatenate([given] * 2).cover, [3, 1, 2, 3] * 2)
    assert not len(Forest.concatenate([given, missing]).cover)
    folded = stumps(source_feature=np.array([1, -1, -1, -1]))
    whole = Forest.concatenate([stumps(), folded])
    assert_array_equal(whole.source_feature, [0, -1, -1, -1, 1, -1, -1, -1])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"n_features": 3}, "n_features of forest 1 is 3, but that of forest 0 is 2"),
        ({"threshold": np.zeros(1, np.float32)},
         "input_dtype of forest 1 is dtype('float32'), but that of forest 0 is "
         "dtype('float64')"),
        ({"leaf_value": np.zeros((3, 1), np.float32)},
         "accumulator_dtype of forest 1 is dtype('float32'), but that of forest 0 is "
         "dtype('float64')"),
        ({"base": np.zeros(3)},
         "n_outputs of forest 1 is 3, but that of forest 0 is 2"),
        ({"task": "multiclass"},
         "task of forest 1 is 'multiclass', but that of forest 0 is 'regression'"),
        ({"source": "onnx"},
         "source of forest 1 is 'onnx', but that of forest 0 is 'unknown'"),
        ({"missing_value": -1.0},
         "missing_value of forest 1 is -1.0, but that of forest 0 is nan"),
        ({"feature_names": ("a", "b")},
         "feature_names of forest 1 is ('a', 'b'), but that of forest 0 is None"),
        ({"aggregate": "min", "base": np.zeros(2)},
         "aggregate of forest 1 is 'min', but that of forest 0 is 'sum'"),
        ({"wider_rows": True},
         "wider_rows of forest 1 is True, but that of forest 0 is False"),
        ({"scaling": (2.0,)},
         "Forest 1 scales its sums or adds numbers to them, which would apply to the "
         "sums of all forests"),
        ({"divisor": 3},
         "Forest 0 does not average the [1, 1] trees that add to its outputs as the "
         "others do, and one forest averages all of its trees, or none"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_forests_that_differ(changes, text):
    other, first = stumps(**changes), stumps()
    if "divisor" in changes:
        first = replace(first, tree_output=np.array([0, 0]))
        text = text.replace("[1, 1]", "[2, 0]")
    wanted = f"{text}; predict with each forest, and add the scores."
    error = (InvalidInputError, UnsupportedModelError)
    assert error_of(error, lambda: Forest.concatenate([first, other])) == wanted


def test_transforms_that_differ():
    spec = OutputSpec("onnx", offsets=(0.0, np.nan))
    first = stumps(outputs=spec)
    assert Forest.concatenate([first, first]).outputs == spec
    other = stumps(outputs=replace(spec, offsets=(1.0, np.nan)))
    text = error_of(InvalidInputError, lambda: Forest.concatenate([first, other]))
    assert text.startswith("outputs of forest 1 is OutputSpec(function='onnx', ")
    text = error_of(UnsupportedModelError, lambda: Forest.concatenate([other, other]))
    assert text.startswith("Forest 0 scales its sums or adds numbers to them, which ")


NO_AVERAGE = (
    "The forest averages its trees, but {} of those chosen add to its outputs; choose "
    "as many trees for each output, and at least one."
)
REFUSED = {
    **{f"trees {trees!r}": (lambda trees=trees: averaged().select_trees(trees),
        "trees must be a slice, numbers from -3 to 2, or a bool for each of the 3 "
        f"trees. Got {trees!r} instead.")
       for trees in ([3], [-4], [0.0], [True], "all", None, [[0, 1]], {0: 1})},
    "a tree twice": (lambda: averaged().select_trees([1, 0, -2]),
        "trees has tree 1 twice; choose each tree once, and use Forest.concatenate to "
        "add a forest again."),
    "an average of nothing": (lambda: averaged().select_trees([]),
        NO_AVERAGE.format([0])),
    "another divisor": (lambda: replace(averaged(), divisor=7).select_trees([0]),
        "The divisor of the sums is not the number of trees that add to each output, "
        "[3], so that of other trees is unknown; choose the trees in sklearn, and read "
        "the model again."),
    "no forests": (lambda: Forest.concatenate([]),
        "forests is empty; give at least one Forest."),
    "a model": (lambda: Forest.concatenate([RandomForestRegressor()]),
        "forests must be Forests, as load_forest returns them. Got "
        "RandomForestRegressor instead."),
    **{f"weights {weights}": (
        lambda weights=weights: Forest.concatenate([stumps()] * 2, weights=weights),
        "weights must be a finite number for each of the 2 forests. Got "
        f"{weights} instead.")
       for weights in ([1.0], [1.0, np.nan])},
    "weights of averages": (
        lambda: Forest.concatenate([averaged()] * 2, weights=[1, 1]),
        "weights are for forests that add up their trees, but these average them; "
        "leave weights out."),
    "weights of the least": (
        lambda: Forest.concatenate(
            [stumps(aggregate="min", base=np.zeros(2))], weights=[2]),
        "weights are for sums, but the aggregate of these forests is 'min'; leave "
        "weights out."),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_named(case):
    call, text = REFUSED[case]
    kind = UnsupportedModelError if case == "another divisor" else InvalidInputError
    assert error_of(kind, call) == text
