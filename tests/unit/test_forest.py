from __future__ import annotations

import copy
import pickle
import sys
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.ensemble import RandomForestRegressor

from skforge.exceptions import InvalidModelError
from skforge.forest import arrays, validation
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.combine import subset
from skforge.forest.outputs import OutputSpec
from skforge.forest.predicates import deduplicate_predicates, round_thresholds
from skforge.frontends import load_forest
from tests.forests_by_hand import forest_of_nodes
from tests.refusals import error_of


def small_forest(**changes):
    """Two trees: x0 < 1 over (x1 < 2, leaf), and category 5 or 40 of x2."""
    fields = {
        "leaf_value": np.array([[1], [2], [3], [4], [5]], np.float32),
        "feature": [0, 1, 2],
        "comparison": [Comparison.LT, Comparison.LT, Comparison.NOT_IN],
        "threshold": np.array([1, 2, 0], np.float32),
        "missing_left": [True, False, False],
        "category_offset": [0, 0, 0, 2],
        "category_words": [1 << 5, 1 << 8],
        "base": np.array([0.5], np.float32),
        **changes,
    }
    left = fields.pop("left", [1, 3, -1, -1, -1, 6, -1, -1])
    right = fields.pop("right", [2, 4, -1, -1, -1, 7, -1, -1])
    return forest_of_nodes(left, right, fields.pop("tree_offset", [0, 5, 8]), **fields)


def with_entry(name, index, value):
    array = getattr(small_forest(), name).copy()
    array[index] = value
    return replace(small_forest(), **{name: array})


def arrays_of(forest):
    return {
        f.name: getattr(forest, f.name)
        for f in fields(forest)
        if isinstance(getattr(forest, f.name), np.ndarray)
    }


def test_arrays_get_the_declared_dtypes_and_are_read_only():
    forest = small_forest(left=np.array([1, 3, -1, -1, -1, 6, -1, -1], np.int64))
    assert forest.left.dtype == np.int32
    assert forest.tree_offset.dtype == np.int64
    assert forest.comparison.dtype == np.uint8
    assert forest.missing_left.dtype == np.bool_
    for name, array in arrays_of(forest).items():
        assert not array.flags.writeable, name
        assert array.flags.c_contiguous, name


def test_the_callers_array_stays_writeable():
    left = np.array([1, 3, -1, -1, -1, 6, -1, -1], np.int32)
    forest = small_forest(left=left)
    left[0] = 1  # would raise if the forest had frozen it
    assert not forest.left.flags.writeable


@pytest.mark.parametrize(
    "rebuild", [copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f, 4))]
)
def test_copies_stay_read_only_and_equal(rebuild):
    forest = small_forest(feature_names=("a", "b", "c"))
    again = rebuild(forest)
    assert again.content_hash() == forest.content_hash()
    assert not any(a.flags.writeable for a in arrays_of(again).values())


@pytest.mark.parametrize(
    "change",
    [
        {"threshold": np.array([1, 2.5, 0], np.float32)},
        {"threshold": np.array([1, 2, 0], np.float64)},
        {"n_features": 4},
        {"feature_names": ("a", "b", "c")},
        {"base": np.array([0.25], np.float32)},
        {"divisor": 2},
    ],
)
def test_the_hash_sees_every_kind_of_field(change):
    assert small_forest(**change).content_hash() != small_forest().content_hash()


def test_sizes_and_repr():
    forest = small_forest()
    sizes = (forest.n_trees, forest.n_nodes, forest.n_leaves, forest.n_predicates)
    assert sizes == (2, 8, 5, 3)
    assert (forest.n_outputs, forest.vector_leaves) == (1, False)
    assert (forest.input_dtype, forest.accumulator_dtype) == (np.float32, np.float32)
    assert repr(forest) == (
        "<Forest unknown regression: 2 trees, 8 nodes, 3 distinct predicates, "
        "depth 1..2, 3 features, 1 outputs, float32 rows, float32 sums>"
    )


def test_depths():
    forest = small_forest()
    assert_array_equal(forest.node_depths(), [0, 1, 1, 2, 2, 0, 1, 1])
    assert_array_equal(forest.leaf_depths(), [[1, 1], [2, 1]])
    assert_array_equal(forest.tree_depths(), [2, 1])


def chain(n_inner, n_trees=1):
    """Trees that are one long path: every left child is a leaf."""
    n = 2 * n_inner + 1
    inner = np.arange(n) < n_inner
    ids = np.arange(n)
    right = np.where(inner, np.where(ids + 1 < n_inner, ids + 1, n - 1), -1)
    left = np.where(inner, n_inner + ids, -1)
    start = np.repeat(np.arange(n_trees) * n, n)
    left, right = np.tile(left, n_trees), np.tile(right, n_trees)
    is_leaf = left < 0
    return small_forest(
        tree_offset=np.arange(n_trees + 1) * n,
        tree_output=np.zeros(n_trees, int),
        predicate=np.where(is_leaf, -1, 0),
        left=np.where(is_leaf, -1, left + start),
        right=np.where(is_leaf, -1, right + start),
        leaf=np.where(is_leaf, 0, -1),
        source_node=np.tile(ids, n_trees),
    )


@pytest.mark.parametrize("n_inner", [1, 2, 255, 256, 257, 5000])
def test_depths_of_chains_beyond_the_level_sweep(n_inner):
    forest = chain(n_inner, n_trees=2).validate()
    assert_array_equal(forest.leaf_depths(), [[1, 1], [n_inner, n_inner]])
    assert_array_equal(forest.node_depths()[:n_inner], np.arange(n_inner))


def test_validation_looks_at_all_trees_at_once():
    def calls(n_trees):
        forest, done = chain(7, n_trees=n_trees), []
        sys.setprofile(lambda frame, event, arg: done.append(event))
        try:
            forest.validate()
        finally:
            sys.setprofile(None)
        return len(done)

    assert calls(1000) == calls(10)


def test_subset_keeps_only_what_its_trees_use():
    forest = small_forest(cover=np.arange(8.0))
    second = subset(forest, [1]).validate()
    assert (second.n_trees, second.n_nodes, second.n_leaves) == (1, 3, 2)
    assert second.n_predicates == 1
    assert_array_equal(second.left, [1, -1, -1])
    assert_array_equal(second.leaf_value, [[4], [5]])
    assert_array_equal(second.category_words, [1 << 5, 1 << 8])
    assert_array_equal(second.cover, [5, 6, 7])
    again = subset(forest, slice(None))
    assert again.content_hash() == forest.content_hash()
    swapped = subset(subset(forest, [1, 0]), [1, 0])
    assert swapped.content_hash() == forest.content_hash()
    assert subset(forest, []).validate().n_nodes == 0


DAMAGED = "; the model is damaged, export it again."


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("left", 1, 6, "left[1] = 6 in tree 0 points outside its tree"),
        ("right", 5, 2_000_000_000,
         "right[5] = 2000000000 in tree 1 is outside -1..7"),
        ("left", 5, 3, "left[5] = 3 in tree 1 points outside its tree"),
        ("left", 0, -7, "left[0] = -7 in tree 0 is outside -1..7"),
        ("left", 0, -1, "left[0] = -1 in tree 0 does not fit an inner node, leaf = -1"),
        ("right", 6, 7, "right[6] = 7 in tree 1 does not fit a leaf, leaf = 3"),
        ("predicate", 2, 0, "predicate[2] = 0 in tree 0 does not fit a leaf, leaf = 0"),
        ("predicate", 1, 3, "predicate[1] = 3 in tree 0 is outside -1..2"),
        ("leaf", 6, 5, "leaf[6] = 5 in tree 1 is outside -1..4"),
        ("right", 0, 1, "node 1 in tree 0 has 2 parents"),
        ("right", 1, 0, "the root of tree 0, node 0, is a child of another node"),
        ("feature", 2, 3,
         "feature[2] = 3 of predicate 2 (first used in tree 1) is outside 0..2"),
        ("feature", 0, -1,
         "feature[0] = -1 of predicate 0 (first used in tree 0) is outside 0..2"),
        ("comparison", 1, 9,
         "comparison[1] = 9 of predicate 1 (first used in tree 0) is outside 0..8"),
        ("missing", 1, 3,
         "missing[1] = 3 of predicate 1 (first used in tree 0) is outside 0..2"),
        ("threshold", 1, np.nan,
         "threshold[1] of predicate 1 (first used in tree 0) is not a number"),
        ("category_offset", 1, 3, "category_offset[2] = 0 runs backwards"),
        ("category_offset", 2, 1,
         "category_offset[1] gives categories to predicate 1, which compares with a "
         "threshold"),
        ("category_offset", 3, 3, "category_offset does not run from 0 to 2"),
        ("base", 0, np.nan, "base[0] is not a number"),
        ("tree_output", 1, 1, "tree_output[1] = 1 is not in 0..0"),
        ("tree_output", 0, -1, "tree_output[0] = -1 is not in 0..0"),
        ("tree_offset", 1, 8, "tree_offset[2] = 8 leaves tree 1 without nodes"),
        ("tree_offset", 0, 1,
         "tree_offset does not run from 0 to 8, the number of nodes"),
    ],
)  # fmt: skip
def test_every_wrong_entry_is_named(name, index, value, message):
    forest = with_entry(name, index, value)
    assert error_of(InvalidModelError, forest.validate) == message + DAMAGED


WIDE = np.zeros((5, 2), np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"leaf": [-1, -1, 0, 1]}, "leaf has length 4 where 8 was expected"),
        ({"tree_output": [0]}, "tree_output has length 1 where 2 was expected"),
        ({"missing_left": [True]}, "missing_left has length 1 where 3 was expected"),
        ({"cover": [1.0]}, "cover has length 1 where 8 was expected"),
        ({"n_features": 2**31},
         "the number of features, 2147483648, does not fit a 32-bit index"),
        ({"base": np.zeros(0, np.float32)},
         "base is empty, so the forest has no output"),
        ({"divisor": 0}, "divisor = 0 is not positive"),
        ({"feature_names": ("a",)}, "feature_names has 1 names for 3 features"),
        ({"outputs": OutputSpec("softmax_by_rows")},
         "the transform 'softmax_by_rows' is not for 1 outputs"),
        ({"outputs": OutputSpec("path_length"), "base": np.zeros(2)},
         "the transform 'path_length' is not for 2 outputs"),
        ({"output_sizes": (1, 1)}, "output_sizes (1, 1) do not add up to 1 outputs"),
        ({"leaf_value": WIDE}, "leaf_value has 2 columns for 1 outputs"),
        ({"leaf_value": WIDE, "base": np.zeros(2, np.float32)},
         "tree_output[0] = 0 is not -1 (vector leaves)"),
    ],
)  # fmt: skip
def test_every_fault_is_named(changes, message):
    forest = small_forest(**changes)
    assert error_of(InvalidModelError, forest.validate) == message + DAMAGED


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_leaves_that_are_not_finite(value):
    assert error_of(InvalidModelError, with_entry("leaf_value", 3, value).validate) == (
        "leaf_value[3] in tree 1 is not finite, and skforge adds finite numbers only; "
        "give the leaf another value, or train the model again."
    )


@pytest.mark.parametrize("length", [2, 300])  # found by the sweep, by doubling
def test_a_cycle_beside_the_tree_is_found(length):
    """Inner nodes of a ring each have one parent, so only depths betray them."""
    ring = np.arange(1, length + 1)
    leaves = np.arange(length + 1, 2 * length + 1)
    n = 2 * length + 1
    left = np.full(n, -1)
    right = np.full(n, -1)
    left[ring], right[ring] = np.roll(ring, -1), leaves
    is_leaf = left < 0
    forest = small_forest(
        tree_offset=[0, n], tree_output=[0], predicate=np.where(is_leaf, -1, 0),
        left=left, right=right, leaf=np.where(is_leaf, 0, -1),
        source_node=np.arange(n),
    )  # fmt: skip
    said = error_of(InvalidModelError, forest.validate)
    assert said == "node 1 in tree 0 lies on a cycle" + DAMAGED


def test_an_unreached_leaf_is_found():
    forest = small_forest(
        tree_offset=[0, 2], tree_output=[0], predicate=[-1, -1], left=[-1, -1],
        right=[-1, -1], leaf=[0, 1], source_node=[0, 1],
    )  # fmt: skip
    said = error_of(InvalidModelError, forest.validate)
    assert said == "node 1 in tree 0 has no parent" + DAMAGED


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("left", np.array([2**40] * 8),
         "holds values from 1099511627776 to 1099511627776, which do not fit int32"),
        ("left", np.array([0.5] * 8), "has dtype float64 where int32 was expected"),
        ("leaf_value", np.array([["x"]] * 5),
         "has dtype <U1 where float32 or float64 was expected"),
        ("leaf_value", np.zeros(5, np.float32),
         "has 1 dimensions where 2 were expected"),
        ("threshold", np.zeros(3, np.float16),
         "has dtype float16 where float32 or float64 was expected"),
    ],
)  # fmt: skip
def test_arrays_of_the_wrong_kind_are_refused_at_once(name, array, message):
    said = error_of(InvalidModelError, small_forest, **{name: array})
    assert said == f"{name} {message}."


COMPARE = {
    Comparison.LT: np.less,
    Comparison.LE: np.less_equal,
    Comparison.GT: np.greater,
    Comparison.GE: np.greater_equal,
}


@pytest.mark.parametrize("comparison", list(COMPARE))
@given(threshold=st.floats(allow_nan=False), value=st.floats(width=32, allow_nan=False))
def test_rounded_thresholds_decide_as_the_exact_ones(comparison, threshold, value):
    rounded = round_thresholds([threshold], comparison, np.float32)
    assert rounded.dtype == np.float32
    around = [np.float32(value)]
    for end in (-np.inf, np.inf):  # the float32 numbers next to the threshold
        with np.errstate(over="ignore"):
            near = np.float32(threshold)
            around += [near, np.nextafter(near, np.float32(end))]
    compare = COMPARE[comparison]
    for x in around:
        assert compare(np.float64(x), threshold) == compare(x, rounded[0]), x


def test_rounding_keeps_double_thresholds_and_drops_negative_zero():
    exact = round_thresholds([0.1, -0.0], Comparison.LE, np.float64)
    assert_array_equal(exact, [0.1, 0.0])
    assert not np.signbit(exact[1])


def test_rounding_an_equality_test_is_refused():
    with pytest.raises(ValueError) as error:
        round_thresholds([0.5, 0.1], [Comparison.LE, Comparison.EQ], np.float32)
    assert str(error.value) == (
        "thresholds[1] = np.float64(0.1) is tested for equality but is not a float32 "
        "number, so it cannot be rounded."
    )


def test_equal_tests_share_a_predicate():
    table, index = deduplicate_predicates(
        feature=[1, 0, 1, 1, 1, 0],
        comparison=int(Comparison.LT),
        threshold=np.array([2, 5, 2, 1, 2, 5], np.float32),
        missing=int(Missing.NAN),
        missing_left=[True, False, True, True, False, False],
    )
    assert_array_equal(table["feature"], [0, 1, 1, 1])
    assert_array_equal(table["threshold"], np.array([5, 2, 1, 2], np.float32))
    assert_array_equal(table["missing_left"], [False, False, True, True])
    assert_array_equal(index, [3, 0, 3, 2, 1, 0])
    assert_array_equal(table["category_offset"], [0] * 5)


def test_zeros_of_both_signs_are_one_threshold():
    table, index = deduplicate_predicates(
        [0, 0], 0, np.array([-0.0, 0.0], np.float32), 0, True
    )
    assert_array_equal(index, [0, 0])
    assert not np.signbit(table["threshold"][0])


def test_equal_category_sets_share_a_predicate():
    table, index = deduplicate_predicates(
        feature=[0, 0, 0, 0, 1],
        comparison=[7, 7, 7, 0, 7],
        threshold=np.array([9, 8, 7, 1, 0], np.float32),
        missing=0,
        missing_left=False,
        categories={
            0: np.array([3, 1], np.uint32),
            1: np.array([3, 1, 0], np.uint32),  # the same set, written longer
            2: np.array([3], np.uint32),
            4: np.array([3], np.uint32),
        },
    )
    assert index[0] == index[1]
    assert len({*index.tolist()}) == 4
    offset, words = table["category_offset"], table["category_words"]
    sets = [words[a:b].tolist() for a, b in pairwise(offset)]
    assert [sets[i] for i in index] == [[3, 1], [3, 1], [3], [], [3]]
    assert_array_equal(table["threshold"][index], np.array([0, 0, 0, 1, 0], np.float32))


@pytest.mark.parametrize("features", [[0, 1], [0, 70_000, 2**31 - 1], [-1, 0, 65_535]])
def test_predicates_are_sorted_however_large_their_features_are(features):
    random = np.random.default_rng(0)
    feature = random.choice(features, 200)
    threshold = random.choice(np.array([-1, 0.5, np.inf], np.float32), 200)
    left = random.random(200) < 0.5
    table, index = deduplicate_predicates(feature, 1, threshold, 0, left)
    rows = [*zip(feature.tolist(), left.tolist(), threshold.tolist(), strict=True)]
    columns = (table[name] for name in ("feature", "missing_left", "threshold"))
    wanted = sorted(set(rows))
    assert [*zip(*(c.tolist() for c in columns), strict=True)] == wanted
    assert [wanted[i] for i in index] == rows


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 5),
            st.floats(-1, 1, width=16),
            st.integers(0, 2),
            st.booleans(),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_the_table_says_the_same_as_the_tests(tests):
    feature, comparison, threshold, missing, left = map(list, zip(*tests, strict=True))
    table, index = deduplicate_predicates(
        feature, comparison, np.array(threshold), missing, left
    )
    assert_array_equal(table["feature"][index], feature)
    assert_array_equal(table["comparison"][index], comparison)
    assert_array_equal(table["threshold"][index], threshold)
    assert_array_equal(table["missing"][index], missing)
    assert_array_equal(table["missing_left"][index], left)
    rows = list(zip(*(table[k].tolist() for k in list(table)[:5]), strict=True))
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("part", [1, 40, 1 << 17])
def test_sweeps_of_parts_of_the_trees_agree(part, monkeypatch):
    """Each tree by itself, a few at once or all at once."""
    monkeypatch.setattr(arrays, "_PART", part)
    X = np.random.default_rng(0).random((60, 3))
    model = RandomForestRegressor(9, max_depth=5, random_state=0).fit(X, X[:, 0])
    forest = load_forest(model)
    left, right, offset = forest.left, forest.right, forest.tree_offset
    assert np.diff(offset).max() > 20
    order, levels = arrays.level_order(left, right, offset)
    found, expected = [], []
    for root in offset[:-1].tolist():
        front, level = [root], 0
        while front:
            expected += [(node, level) for node in front]
            below = [(left[node], right[node]) for node in front]
            front = [child for pair in below for child in pair if child >= 0]
            level += 1
    found = list(zip(order.tolist(), levels.tolist(), strict=True))
    assert found == expected
    by_node = arrays.node_depths(left, right, offset)
    assert by_node[order].tolist() == levels.tolist()


def test_a_forest_is_checked_once(monkeypatch):
    checked = []
    monkeypatch.setattr(validation, "validate", checked.append)
    forest = small_forest()
    assert forest.validate().validate() is forest
    assert checked == [forest]
    copy.deepcopy(forest).validate()  # others are checked again
    replace(forest, divisor=1).validate()
    assert len(checked) == 3
