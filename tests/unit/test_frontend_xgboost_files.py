"""XGBoost files: every version's format, without xgboost, and damaged in many ways."""

from __future__ import annotations

import copy
import json
import math
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.reference import reference_leaves, reference_raw
from skforge.frontends import load_forest
from skforge.frontends.xgboost import ubjson as _ubjson
from skforge.frontends.xgboost.model import _version, forest_from_document
from tests.answers_of import apply_transform
from tests.refusals import error_of
from tests.sklearn_rows import same_bits

DATA = Path(__file__).parents[1] / "data" / "xgboost"
FILES = sorted(p for p in DATA.iterdir() if p.suffix in (".json", ".ubj"))
DAMAGED = "; the model is damaged, export it again."


def said_of(document, tmp_path, **options):
    """Return what loading a damaged document from a file says."""
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    return error_of(InvalidModelError, load_forest, path, **options)


def test_every_version_is_there():
    versions = {path.name.split("-")[0] for path in FILES}
    assert versions == {"1.7.6", "2.1.4", "3.0.5", "3.2.0", "3.4.1"}
    assert len(FILES) == 56


@pytest.mark.sampled(20)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_files_predict_as_the_version_that_wrote_them(path):
    expected = np.load(DATA / f"{path.name.split('-')[0]}.npz")
    X = expected["X"]
    forest = load_forest(path)
    raw = reference_raw(forest, X)
    margin = expected[f"{path.name}:margin"]
    same_bits(raw[:, 0] if margin.ndim == 1 else raw, margin)
    same_bits(apply_transform(forest, raw), expected[f"{path.name}:value"])
    leaves = forest.source_node[reference_leaves(forest, X)]
    np.testing.assert_array_equal(
        leaves, expected[f"{path.name}:leaf"].reshape(leaves.shape)
    )


def test_zeros_of_dropout_up_to_3_2_have_no_sign():
    """XGBoost adds each tree to a zero; the base margin stays -0.0."""
    doc = document("3.2.0-dart.json")
    doc["learner"]["learner_model_param"]["base_score"] = "[-0E0]"
    for tree in model_of(doc)["trees"]:
        inner = np.array(tree["left_children"]) >= 0
        conditions = np.where(inner, tree["split_conditions"], -0.0)
        tree["split_conditions"] = conditions.tolist()
    rows = np.zeros((1, 3), np.float32)
    for in_place in (False, True):
        forest = forest_from_document(copy.deepcopy(doc), in_place=in_place)
        same_bits(reference_raw(forest, rows), np.zeros((1, 1), np.float32))
    # XGBoost 3.4 has no such zero
    booster = doc["learner"]["gradient_booster"]
    inner = booster["gbtree"]["model"] | {"weight_drop": booster["weight_drop"]}
    doc["learner"]["gradient_booster"] = {"name": "gbtree", "model": inner}
    same_bits(reference_raw(forest_from_document(doc), rows), np.float32([[-0.0]]))


def test_dropout_up_to_3_2_has_no_vector_leaves():
    doc = document("3.4.1-vector-dart.json")
    trees = doc["learner"]["gradient_booster"]
    weights = trees["model"].pop("weight_drop")
    doc["learner"]["gradient_booster"] = {
        **{"name": "dart", "gbtree": trees, "weight_drop": weights}
    }
    error = error_of(InvalidModelError, forest_from_document, doc)
    what = "DART of XGBoost up to 3.2 has no vector leaves"
    assert error == what + DAMAGED


def document(name="3.2.0-logistic.json"):
    path = DATA / name
    if path.suffix == ".ubj":
        return _ubjson.loads(path.read_bytes())
    return json.loads(path.read_text())


def model_of(doc):
    booster = doc["learner"]["gradient_booster"]
    return booster.get("model") or booster["gbtree"]["model"]


def tree_of(doc, i=0):
    return model_of(doc)["trees"][i]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5E-1", [0.5] * 3),
        ("[5E-1]", [0.5] * 3),
        ("[1E0,2E0,-3E0]", [1, 2, -3]),
        (str(2**63 - 1), [2.0**63] * 3),
    ],
)
def test_base_score_in_every_form(text, expected):
    doc = document("3.2.0-softprob.ubj")
    doc["learner"]["learner_model_param"]["base_score"] = text
    np.testing.assert_array_equal(forest_from_document(doc).base, expected)


@pytest.mark.parametrize("name", ["count:poisson", "reg:tweedie", "survival:aft"])
def test_base_score_without_a_logarithm(name):
    """XGBoost trains such models, and only checks the base_score of reg:gamma."""
    doc = document("3.2.0-logistic.json")
    doc["learner"]["objective"] = {"name": name}
    doc["learner"]["learner_model_param"]["base_score"] = "[-1E0]"
    assert error_of(InvalidModelError, forest_from_document, doc) == (
        "base_score is '[-1E0]', which has no logarithm, so that XGBoost predicts NaN "
        "for all rows; train the model with a positive base_score."
    )


def test_a_gap_in_old_files_means_every_default():
    """1.0 to 1.2 wrote neither categories nor split types nor tree counts."""
    doc = document("1.7.6-logistic.json")
    expected = forest_from_document(copy.deepcopy(doc)).content_hash()
    for tree in model_of(doc)["trees"]:
        for name in list(tree):
            if name.startswith("categories") or name == "split_type":
                del tree[name]
    del model_of(doc)["gbtree_model_param"]["num_parallel_tree"]
    del doc["learner"]["learner_model_param"]["num_target"]
    assert forest_from_document(doc).content_hash() == expected


#: Beginnings of the names of places.
PLACES = {
    "param": ("learner", "learner_model_param"),
    "model": ("learner", "gradient_booster", "model"),
    "tree": ("learner", "gradient_booster", "model", "trees", 1),
}


def put(doc, path, value):
    for key in path[:-1]:
        doc = doc[key]
    doc[path[-1]] = value


def fault_of(place, value, error=InvalidModelError, name="3.2.0-logistic.json"):
    """Return what is said of another value at a place, "tree.left_children.0"."""
    first, *rest = place.split(".")
    keys = [int(key) if key.isdigit() else key for key in rest]
    doc = document(name)
    put(doc, (*PLACES.get(first, (first,)), *keys), value)
    return error_of(error, lambda: forest_from_document(doc).validate())


NO_MODEL = "so it is not an XGBoost model; save it with Booster.save_model."
CHANGES = "which may change predictions, so the model cannot be compiled."
BOOSTER = "learner.gradient_booster.name"
DROPPED = "learner.gradient_booster.weight_drop"
#: A place, another value there, what is said of it, and of which file, if another.
FAULTS = [
    ("tree.left_children.0", 999_999_999,
     "left_children[0] = 999999999 of tree 1 is outside 0..6"),
    ("tree.right_children.0", 7, "right_children[0] = 7 of tree 1 is outside 0..6"),
    ("tree.right_children.2", 0,
     "the root of tree 1, node 7, is a child of another node"),
    ("tree.left_children.1", 1, "node 8 in tree 1 has 2 parents"),
    ("tree.split_conditions", [1.0],
     "split_conditions of tree 1 has length 1 for 7 nodes"),
    ("tree.split_conditions.0", "1.5",
     "split_conditions holds something that is not a number"),
    ("tree.left_children.0", 1.0,
     "left_children holds something that is not an integer"),
    ("tree.default_left", None,
     "default_left of tree 1 is missing or not an array"),
    ("tree.tree_param.num_nodes", "8",
     "trees[1] has 7 left_children and num_nodes = 8"),
    ("tree.tree_param.num_nodes", "many",
     "tree_param.num_nodes of tree 1 is 'many', which is not a number"),
    ("tree.tree_param.size_leaf_vector", "3",
     "size_leaf_vector takes the values [1, 3] in a model of 1 outputs"),
    ("model.trees.1", None, "trees[1] is not an object"),
    ("model.tree_info", [0, 0], "tree_info is for 2 trees, but the model has 3"),
    ("model.tree_info", [[0], [0, 1], 0], "tree_info is not a list of integers"),
    ("tree.left_children.0", [0, 1],
     "left_children holds something that is not an integer"),
    ("model.tree_info", [0, 0, 1], "tree_output[2] = 1 is not in 0..0"),
    ("model.gbtree_model_param.num_trees", "4",
     "num_trees is for 4 trees, but the model has 3"),
    ("param.num_feature", "-3", "num_feature is '-3'"),
    ("param.num_class", "2000000000", "The model has 2000000000 outputs"),
    ("param.base_score", "half", "base_score is 'half'"),
    ("param.base_score", "[1E0,2E0]", "base_score has 2 values for 1 outputs"),
    ("param.base_score", "[2E0]", "base_score is '[2E0]'"),
    ("param.base_score", "[NaN]", "base_score is '[NaN]'"),
    ("param.base_score", "[" * 100_000, f"base_score is '{'[' * 59}"),
    ("param.base_score", str(2**63), f"base_score is '{2**63}'"),
    *((f"tree.{name}.0", True, f"{name} holds something that is not {what}")
      for name, what in (
          ("left_children", "an integer"), ("split_indices", "an integer"),
          ("split_conditions", "a number"))),
    *((f"tree.{name}", [1.0] * n, f"{name} of tree 1 has length {n} for 7 nodes")
      for name in ("base_weights", "loss_changes", "parents", "sum_hessian")
      for n in (6, 8)),
    *(("model.trees.0.id", value,
       f"id of trees[{2 if value == 2 else 0}] is {value!r}, which is not a "
       "number from 0 to 2 or is the id of another tree")
      for value in (2, -1, 3, "0", None, 1.5, True)),
    ("learner.feature_names", ["a"], "feature_names has 1 names for 3 features"),
    (DROPPED, [1.0] * 4, "weight_drop is for 4 trees, but the model has 3", "dart"),
    ("model.trees.0.leaf_weights", [1.0] * 4,
     "right_children of a leaf of tree 0 is 2, which is outside 0..1, the rows of "
     "leaf_weights", "vector"),
    *((f"model.trees.0.{field}", value,
       "The categories of tree 0 do not fit its nodes", "onehot")
      for field, value in (
          ("categories_sizes", [10**6]), ("categories_segments", [-1]),
          ("categories_nodes", [6]), ("categories", [-1] * 50),
          ("categories", [2**24] * 50))),
    # UBJSON has typed arrays, which NumPy compares element by element
    ("model.trees.0.id", np.arange(2),
     "id of trees[0] is array([0, 1]), which is not a number from 0 to 2 or is the "
     "id of another tree"),
]  # fmt: skip
#: The same of models that are whole, or that end in other words.
OTHERS = [
    ("tree.linear_leaves", [],
     "trees[1] has the unknown field 'linear_leaves', " + CHANGES),
    ("model.piecewise", {},
     "gradient_booster.model has the unknown field 'piecewise', " + CHANGES),
    ("learner.intercept", [0.5],
     "learner has the unknown field 'intercept', " + CHANGES),
    ("param.shrink", "1",
     "learner.learner_model_param has the unknown field 'shrink', " + CHANGES),
    ("tree.split_type.0", 2, f"split_type 2 is unknown, {CHANGES}"),
    ("learner.objective.name", "my:objective",
     "The objective 'my:objective' is not built into XGBoost, so its predictions "
     "cannot be reproduced."),
    (BOOSTER, "gbforest",
     "The booster 'gbforest' is not a tree ensemble that can be compiled; train with "
     "booster='gbtree' or 'dart'."),
    (BOOSTER, np.array([1.0, 2.0]), f"gradient_booster has no name, {NO_MODEL}"),
    ("learner", [], f"The document has no learner, {NO_MODEL}"),
    ("tree.split_conditions.6", float("inf"),
     "leaf_value[7] in tree 1 is not finite, and skforge adds finite numbers only; "
     "give the leaf another value, or train the model again."),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_every_fault_is_named(number):
    place, value, message, *file = FAULTS[number]
    name = f"3.2.0-{file[0] if file else 'logistic'}.json"
    assert fault_of(place, value, name=name) == message + DAMAGED


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_what_has_no_forest_is_named(number):
    place, value, message = OTHERS[number]
    damaged = "no name" in message or "no learner" in message or "leaf_v" in message
    kind = InvalidModelError if damaged else UnsupportedModelError
    assert fault_of(place, value, kind) == message


@pytest.mark.parametrize(
    ("place", "value", "start", "end"),
    [
        ("tree.split_indices.1", 3, "feature", "is outside 0..2"),
        ("tree.split_conditions.1", float("nan"), "threshold",
         "(first used in tree 1) is not a number"),
    ],
)  # fmt: skip
def test_faults_of_predicates_are_named(place, value, start, end):
    text = fault_of(place, value)  # the predicate's number depends on the model
    assert text.startswith(f"{start}["), text
    assert text.endswith(end + DAMAGED), text


def test_an_endless_number_of_rounds_is_refused(tmp_path):
    doc = document()
    doc["learner"]["attributes"] = {"scikit_learn": "{}", "best_iteration": math.inf}
    assert said_of(doc, tmp_path) == "model.json: best_iteration is inf" + DAMAGED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\n", "The model is not valid JSON (Expecting value: line 2 column 1"),
        (b"\xff\xfe\x00", "The model is not valid JSON ('utf-16-le' codec can't"),
        (b"{", "The model is not valid JSON (Expecting property name"),
        (b"[1, 2]", "The document has no learner, so it is not an XGBoost model; "),
        (b"[" * 100_000, "The JSON is nested too deep to be read; save the"),
    ],
)
def test_files_that_are_no_json(text, message, tmp_path):
    (tmp_path / "m.json").write_bytes(text)
    said = error_of(InvalidModelError, load_forest, tmp_path / "m.json")
    assert said.startswith(f"m.json: {message}")


def long_array(count, kind=b"d"):
    return (
        b"{L" + struct.pack(">q", 1) + b"a[$" + kind + b"#L" + struct.pack(">q", count)
    )


@pytest.mark.parametrize(
    ("data", "place", "message"),
    [
        (long_array(2**40), "24 of 24",
         "4398046511104 bytes are announced, but fewer follow"),
        (long_array(2**62, b"Z"), "24 of 24",
         "an array of constants is not supported"),
        (long_array(-1), "24 of 24", "a length is -1"),
        (b"SL" + struct.pack(">q", 2**60), "10 of 10",
         "1152921504606846976 bytes are announced, but fewer follow"),
        (b"[" * 1000, "65 of 1000", "values are nested more than 64 deep"),
        (b"[$d", "3 of 3", "a typed container has no count"),
        (b"x", "1 of 1", "'x' is not a type"),
        (b"ZZ", "1 of 2", "data follows the end of the document"),
        (b"SU\x01\xff", "4 of 4", "a string is not UTF-8"),
        (b"SS", "2 of 2", "a length has the type 'S'"),
        (b"", "0 of 0", "the document ends too early"),
    ],
)  # fmt: skip
def test_damaged_ubjson_is_named_and_costs_no_memory(data, place, message):
    tracemalloc.start()
    text = error_of(InvalidModelError, _ubjson.loads, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert text == (
        f"Byte {place} of the UBJSON document: {message}; the file is damaged or not "
        "UBJSON, so save the model again."
    )
    assert peak < 1 << 20


def test_ubjson_reads_every_type():
    data = (
        b"{U\x01a[i\xffU\xffI\xff\xfel\x00\x00\x00\x07L"
        + struct.pack(">q", -(2**40))
        + b"d"
        + struct.pack(">f", 0.5)
        + b"D"
        + struct.pack(">d", 0.1)
        + b"NTFZCxSU\x02hi]i\x01b[#U\x02TFi\x01c{#i\x01i\x01kZ"
        + b"i\x01d[$I#i\x02\x00\x01\xff\xff}"
    )
    value = _ubjson.loads(data)
    numbers = [-1, 255, -2, 7, -(2**40), 0.5, 0.1]
    assert value["a"] == [*numbers, True, False, None, "x", "hi"]
    assert value["b"] == [True, False]
    assert value["c"] == {"k": None}
    assert value["d"].tolist() == [1, -1]


def test_a_small_file_cannot_ask_for_huge_category_sets():
    doc = document("3.2.0-onehot.json")
    trees = model_of(doc)["trees"]
    tree = tree_of(doc)
    tree["categories"] = [2**24 - 1] * len(tree["categories"])
    model_of(doc)["trees"] = [{**trees[0], "id": number} for number in range(200)]
    model_of(doc)["iteration_indptr"] = [*range(201)]
    model_of(doc)["tree_info"] = [0] * 200
    model_of(doc)["gbtree_model_param"]["num_trees"] = "200"
    assert error_of(UnsupportedModelError, forest_from_document, doc).endswith(
        "trees take more than 268435456 bytes; number the categories from 0 "
        "without gaps."
    )


def _document():
    """Return a document of XGBoost's, and rows with gaps."""
    xgb = pytest.importorskip("xgboost")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)).astype(np.float32)
    X[rng.random(X.shape) < 0.3] = np.nan
    y = np.nan_to_num(X[:, 0]) + np.nan_to_num(X[:, 1]) ** 2
    booster = xgb.train({"max_depth": 3, "nthread": 1}, xgb.DMatrix(X, y), 4)
    return json.loads(bytes(booster.save_raw("json"))), X


def _other_places(document):
    trees = model_of(document)["trees"]
    trees[0]["id"], trees[3]["id"] = 3, 0


def _fewer_rounds(steps):
    def change(document):
        model_of(document)["iteration_indptr"] = steps

    return change


def _default_left(value):
    def change(document):
        for tree in model_of(document)["trees"]:
            tree["default_left"] = [value for _ in tree["default_left"]]

    return change


READ_AS_XGBOOST_READS_THEM = {
    "as they are": lambda document: None,
    "trees in other places": _other_places,
    "rounds that begin late": _fewer_rounds([1, 2, 3, 4]),
    "rounds of several trees": _fewer_rounds([0, 2, 4]),
    "rounds of no trees": _fewer_rounds([0, 0, 4, 4]),
    "no rounds told": lambda document: model_of(document).pop("iteration_indptr"),
    "no kinds of splits": lambda document: model_of(document)["trees"][1].pop(
        "split_type"
    ),
    **{f"default_left {v}": _default_left(v) for v in (0, 1, 2, -1, 128, 256, 257)},
    "default_left true": _default_left(True),
    "default_left false": _default_left(False),
}


@pytest.mark.parametrize("case", READ_AS_XGBOOST_READS_THEM)
def test_documents_are_read_as_xgboost_reads_them(case, tmp_path):
    xgb = pytest.importorskip("xgboost")
    document, X = _document()
    READ_AS_XGBOOST_READS_THEM[case](document)
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    booster = xgb.Booster({"nthread": 1})
    try:
        booster.load_model(path)
    except xgb.core.XGBoostError:
        assert case == "trees in other places"
        assert tuple(map(int, xgb.__version__.split(".")[:2])) >= (3, 4)
        pytest.skip("XGBoost refuses it since 3.4")
    expected = booster.predict(xgb.DMatrix(X, nthread=1), output_margin=True)
    for number in range(2):
        if number:  # the same as UBJSON, which XGBoost writes with types of its own
            path = tmp_path / "model.ubj"
            booster.save_model(path)
        found = reference_raw(load_forest(path), X)[:, 0]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rounds", [None, (0, 1), (0, 0)])
@pytest.mark.parametrize(
    "steps",
    [
        *([0, 1, 2], [0, 1, 2, 4], [0, 2, 1, 3], [], [0, -1, 2, 3]),
        *(None, "abc", [0, 1.0, 2, 3], [[0, 3]]),
    ],
    ids=str,
)
def test_rounds_that_make_no_sense_are_refused(steps, rounds):
    doc = document()
    model_of(doc)["iteration_indptr"] = steps
    known = isinstance(steps, list) and all(type(step) is int for step in steps)
    said = "has to rise from round to round and to end at 3, the number of trees, but"
    said = f"{said} is {steps}" if known else "is not a list of integers"
    assert error_of(InvalidModelError, forest_from_document, doc, rounds) == (
        f"iteration_indptr {said}{DAMAGED}"
    )


def test_a_version_that_is_infinite_is_none():
    assert _version({"version": [3, 2, 0]}) == (3, 2, 0)
    assert _version({"version": [float("inf"), 2, 0]}) == ()
