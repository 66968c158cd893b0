"""ForestBuilder: random trees against a walk of the same nodes; libraries' dumps."""

from __future__ import annotations

import copy
import io
import operator
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import skforge
from skforge import ForestBuilder
from skforge.exceptions import InvalidInputError
from skforge.forest.reference import differing_rows, reference_raw
from skforge.frontends import builder
from tests.refusals import error_of

OF_NUMBERS = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
NUMBERS = (0.0, -0.0, 0.1, 0.5, 2.0, -3.0, 1e-36, -1e300, np.inf)
STUMP = {
    "feature": [0, -1, -1],
    "threshold": [0.5, 0.0, 0.0],
    "left": [1, -1, -1],
    "right": [2, -1, -1],
    "value": [0.0, 1.0, 2.0],
}


def same_bits(values, expected):
    assert not len(differing_rows(np.asarray(values), np.asarray(expected)))


def message(call):
    return error_of(InvalidInputError, call)


# ------------------------------------------------------------ any tree


def goes_left(node, value):
    kind = node["missing"]
    small = abs(value) <= float(np.float32(1e-35))
    if (np.isnan(value) and kind != "none") or (kind == "zero" and small):
        return node["default_left"]
    value = 0.0 if np.isnan(value) else value
    if "categories" not in node:
        return OF_NUMBERS[node["comparison"]](value, node["threshold"])
    inside = value >= 0 and value < 1 << 24 and int(value) in node["categories"]
    return inside != (node["comparison"] == "not in")


def walked(trees, rows, base, dtype):
    """Add up leaves in plain Python; ``trees`` are nodes with their output or None."""
    scores = np.tile(np.asarray(base, dtype), (len(rows), 1))
    for root, output in trees:
        for total, row in zip(scores, rows.tolist(), strict=True):
            node = root
            while "left" in node:
                left = goes_left(node, row[node["feature"]])
                node = node["left" if left else "right"]
            part = total if output is None else total[output : output + 1]
            part += np.asarray(node["value"], dtype)
    return scores


@st.composite
def nodes(draw, n_features, width, equal, depth=3):
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        values = st.sampled_from((0.1, -0.0, 1e8, -7.25, 3.0))
        if width is None:
            return {"value": draw(values)}
        return {"value": draw(st.lists(values, min_size=width, max_size=width))}
    node = {
        "feature": draw(st.integers(0, n_features - 1)),
        "default_left": draw(st.booleans()),
        "missing": draw(st.sampled_from(["nan", "none", "zero"])),
        "left": draw(nodes(n_features, width, equal, depth - 1)),
        "right": draw(nodes(n_features, width, equal, depth - 1)),
    }
    if draw(st.integers(0, 4)) == 0:
        sets = st.lists(st.sampled_from((0, 1, 2, 31, 32, 70)), unique=True)
        node |= {"categories": draw(sets)}
        return node | {"comparison": draw(st.sampled_from(["in", "not in"]))}
    test = draw(st.sampled_from([*OF_NUMBERS]))
    exact = (0.0, 0.5, 2.0, -3.0)  # also as float32
    threshold = draw(st.sampled_from(exact if test in ("==", "!=") else NUMBERS))
    return node | {"comparison": test, "threshold": threshold}


def arrays_of(root):
    """Return the nodes of a tree, level by level, as arguments of ``add_tree``."""
    order, at = [root], 0
    while at < len(order):
        node = order[at]
        order += [node[side] for side in ("left", "right") if side in node]
        at += 1
    number = {id(node): i for i, node in enumerate(order)}
    leaf = next(node["value"] for node in order if "value" in node)
    usual = {"feature": -2, "threshold": np.nan, "comparison": "", "missing": ""}
    usual |= {"default_left": -1, "value": np.full(np.shape(leaf), np.nan)}
    columns = {k: [node.get(k, v) for node in order] for k, v in usual.items()}
    for side in ("left", "right"):
        columns[side] = [number.get(id(node.get(side)), -1) for node in order]
    sets = {i: node.get("categories") for i, node in enumerate(order)}
    columns["categories"] = {i: s for i, s in sets.items() if s is not None}
    return columns


@given(data=st.data())
def test_trees_add_up_as_their_nodes_say(data):
    n_outputs = data.draw(st.integers(1, 3))
    dtypes = st.sampled_from(["float32", "float64"])
    dtype, sum_dtype = data.draw(dtypes), data.draw(dtypes)
    base = data.draw(st.sampled_from([[0.1] * n_outputs, [-0.0] * n_outputs]))
    options = {"n_outputs": n_outputs, "dtype": dtype, "sum_dtype": sum_dtype}
    by_nodes, by_arrays = (ForestBuilder(2, base=base, **options) for _ in range(2))
    trees = []
    for _ in range(data.draw(st.integers(1, 4))):
        wide = n_outputs > 1 and data.draw(st.booleans())
        output = None if wide else data.draw(st.integers(0, n_outputs - 1))
        root = data.draw(nodes(2, n_outputs if wide else None, dtype))
        root = copy.deepcopy(root)  # ``arrays_of`` knows nodes by their id
        where = {} if n_outputs == 1 or wide else {"output": output}
        assert by_nodes.add_nodes(root, **where) is by_nodes
        assert by_arrays.add_tree(**arrays_of(root), **where) is by_arrays
        trees.append((root, output))
    numbers = [*NUMBERS, np.nan, -np.inf, 31.0, 32.5, -0.5, 70.0, 1e-40, 5e7]
    numbers += [np.float32(0.1), np.nextafter(np.float32(0.1), np.float32(0))]
    with np.errstate(over="ignore"):
        rows = np.array([[a, b] for a in numbers for b in (a, 0.5)]).astype(dtype)
    expected = walked(trees, rows, base, sum_dtype)
    forest = by_nodes.build()
    same_bits(reference_raw(forest, rows), expected)
    same_bits(reference_raw(by_arrays.build(), rows), expected)


# ------------------------------------------------------------ as any other model


def rules(**options):
    builder = ForestBuilder(2, feature_names=["age", "fare"], **options)
    return builder.add_tree(**STUMP)


def test_rounds_of_a_forest():
    with pytest.raises(skforge.UnsupportedModelError) as caught:
        skforge.load_forest(rules().build(), iteration_range=(0, 1))
    assert str(caught.value) == (
        "A Forest has no boosting rounds to choose from; use select_trees, which "
        "chooses trees."
    )


def test_nodes_of_numpys_numbers():
    root = {"feature": np.int64(1), "threshold": np.float32(0.1)}
    root |= {"left": {"value": np.array([1.0, 2.0])}, "right": {"value": (3, 4)}}
    forest = ForestBuilder(2, n_outputs=2).add_nodes(root).build()
    twice = ForestBuilder(2, n_outputs=2).add_nodes({**root, "left": root}).build()
    assert (forest.n_nodes, twice.n_nodes) == (3, 5)
    assert forest.threshold[0] == np.float32(0.1)
    scores = reference_raw(forest, [[0.0, 0.1], [0.0, 0.2]])
    assert scores.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_averages():
    builder = rules(average=True).add_tree(**STUMP).add_tree(**STUMP)
    assert builder.build().divisor == 3
    pairs = ForestBuilder(2, n_outputs=2, average=True)
    leaf = {"feature": 0, "threshold": 0, "left": [-1], "right": [-1]}
    pairs.add_tree(value=[[2.0, 4.0]], **leaf).add_tree(value=[6.0], output=0, **leaf)
    text = (
        "average=True needs as many trees for each output, and at least one. Got {}; "
        "add trees, or use average=False."
    )
    assert message(pairs.build) == text.format([2, 1])
    assert message(ForestBuilder(1, average=True).build) == text.format([0])
    pairs.add_tree(value=[-8.0], output=1, **leaf)
    assert reference_raw(pairs.build(), np.zeros((1, 2))).tolist() == [[4.0, -2.0]]


# ------------------------------------------------------------ mistakes


OPTIONS = (
    {"n_features": 0},
    {"n_outputs": 1.0},
    {"dtype": "f2"},
    {"sum_dtype": int},
    {"transform": "probit"},
    {"task": "outlier"},
    {"task": "multiclass"},
    {"task": "binary", "n_outputs": 3},
    {"base": [0.0, 1.0]},
    {"base": 1e39, "sum_dtype": "float32"},
    {"base": "x"},
    {"feature_names": ["a", "a"]},
    {"feature_names": [1, 2]},
    {"feature_names": ["a"]},
    {"class_labels": [0, 1]},
    {"class_labels": ["a", 1], "task": "binary"},
    {"class_labels": ["a"], "task": "binary"},
)


def test_options_that_do_not_fit(golden):
    calls = [lambda o=o: ForestBuilder(**{"n_features": 2, **o}) for o in OPTIONS]
    golden("\n".join(map(message, calls)) + "\n", "errors")


ARRAYS = (
    {"feature": [2, 0, 0]},
    {"feature": ["ages", "", ""]},
    {"feature": [0.0, 0.0, 0.0]},
    {"threshold": [np.nan, 0, 0]},
    {"threshold": [2**53 + 1, 0, 0]},
    {"threshold": [0.5, None, 0]},
    {"threshold": [0.5, 0.5]},
    {"threshold": None},
    {"threshold": np.zeros((3, 1))},
    {"threshold": 0.1, "comparison": "=="},
    {"comparison": "=<"},
    {"comparison": ["in", "", ""]},
    {"comparison": np.array(["<=", "<=", "<="]), "missing": "NaN"},
    {"default_left": 2},
    {"default_left": "left"},
    {"categories": {1: [0]}},
    {"categories": {0: [-1]}},
    {"categories": {0: [0.5]}},
    {"categories": {0: np.array([1 << 24])}},
    {"value": [0, 1, np.inf]},
    {"value": [0, 1e39, 2]},
    {"value": np.zeros((3, 3))},
    {"value": np.zeros((3, 1, 1))},
    {"value": np.zeros((3, 2))},
    {"output": None},
    {"output": 2},
    {"node_id": [0, 1, 2**31]},
    {"cover": [3.0, -1.0, 2.0]},
    {"left": [3, -1, -1]},
    {"left": [2**63, -1, -1]},
    {"left": [-2, -1, -1]},
    {"left": [0, -1, -1]},
    {"right": [1, -1, -1]},
    {"right": [2, 1, -1]},
    {"left": [1.0, -1.0, -1.0]},
    {"left": []},
    {"left": 1},
    {
        "feature": 0,
        "threshold": 0.0,
        "left": [-1, 2, 1, -1, -1],
        "right": [-1, 3, 4, -1, -1],
        "value": 1.0,
    },
)


def test_arrays_that_are_no_tree(golden):
    options = {"n_outputs": 2, "dtype": "float32", "sum_dtype": "float32"}
    builder = ForestBuilder(2, feature_names=["a", "b"], **options)
    builder.add_tree(**STUMP, output=0)
    before = builder.build().content_hash()
    arrays = [{**STUMP, "output": 0, **changes} for changes in ARRAYS]
    calls = [lambda a=a: builder.add_tree(**a) for a in arrays]
    golden("\n".join(map(message, calls)) + "\n", "errors")
    assert builder.build().content_hash() == before


LEAF = {"value": 1.0}
TEST = {"feature": "age", "threshold": 0.5, "left": {"value": 0.0}}
CIRCLE = TEST | {"right": {}}
CIRCLE["right"] = TEST | {"right": CIRCLE}
ROOTS = (
    [],
    TEST | {"right": 3.0},
    TEST | {"right": CIRCLE},
    TEST | {"split": 1},
    TEST,
    TEST | {"right": {}},
    TEST | {"right": TEST | {"left": LEAF, "right": {"value": [1.0]}}},
    TEST | {"right": {"left": {"value": 2.0}, "right": LEAF, "threshold": 0.0}},
    TEST | {"right": {"left": {"value": 2.0}, "right": LEAF, "feature": "fare"}},
    TEST | {"right": {"value": 1.0, "cover": 2.0}},
    TEST | {"right": LEAF, "categories": 5},
    TEST | {"right": LEAF, "comparison": "in"},
)


def test_nodes_that_are_no_tree(golden):
    builder = rules()
    before = builder.build().content_hash()
    calls = [lambda root=root: builder.add_nodes(root) for root in ROOTS]
    golden("\n".join(map(message, calls)) + "\n", "errors")
    assert builder.build().content_hash() == before


def chain(depth):
    root = {"value": 0.0}
    for i in range(depth):
        leaf = {"value": float(i)}
        root = {"feature": 0, "threshold": float(i), "left": leaf, "right": root}
    return root


class Id(int):
    """A number of a node that counts how often it is compared with others."""

    compared = 0

    def __eq__(self, other):
        Id.compared += 1
        return int(self) == int(other)

    def __hash__(self):
        Id.compared += 1
        return hash(int(self))


def test_a_node_is_compared_with_few_others_however_deep_it_is(monkeypatch):
    monkeypatch.setattr(builder, "id", lambda node: Id(id(node)), raising=False)
    for depth in (50, 200):
        Id.compared = 0
        ForestBuilder(1).add_nodes(chain(depth))
        assert 0 < Id.compared <= 6 * (2 * depth + 1)
    shared = {"value": 1.0}
    root = {"feature": 0, "threshold": 0.0, "left": shared, "right": shared}
    assert ForestBuilder(1).add_nodes(root).build().n_nodes == 3  # it is above no other


def calls_of(work):
    """Count the calls of functions, of Python and of C, that some work takes."""
    count = 0

    def counted(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_calls_grow_as_the_depth_does():
    """Arrays, nested nodes, saving, loading and the reference walk level by level."""

    def work(depth):
        root = chain(depth)

        def every():
            forest = ForestBuilder(1).add_nodes(root).build()
            file = io.BytesIO()
            skforge.save(forest, file)
            skforge.load(file.getvalue()).validate().tree_depths()

        return calls_of(every)

    work(8)  # imports
    once, twice, four = work(64), work(128), work(256)
    assert four - twice <= 2.2 * (twice - once)


def test_deep_trees_are_no_problem():
    node = {"value": 0.0}
    for i in range(3000):
        test = {"feature": 0, "comparison": ">=", "threshold": float(i)}
        node = {**test, "left": {"value": float(i)}, "right": node}
    forest = ForestBuilder(1).add_nodes(node).build()
    assert forest.tree_depths().tolist() == [3000]
    rows = np.array([[-1.0], [0.5], [2999.0]])
    assert reference_raw(forest, rows)[:, 0].tolist() == [0.0, 0.0, 2999.0]
