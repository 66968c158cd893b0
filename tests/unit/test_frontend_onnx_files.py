"""Damaged, hostile and unsupported ONNX models end in our exceptions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skforge import load_forest
from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.outputs import OutputSpec
from tests.onnx_models import make_model, onnx, tensor
from tests.refusals import error_of

DAMAGED = "; the model is damaged, export it again."
NO_TREE = "node 0 is reached in more than one way, so its tree is not a tree"


def numbers(*values: Any, dtype: Any = np.float32) -> Any:
    return tensor(np.array(values, dtype))


#: The mode of a test of membership.
MEMBER = numbers(6, dtype=np.uint8)


def stump(**changes: Any) -> dict[str, Any]:
    """Attributes of a regressor of one test and two leaves."""
    return {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [1, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_values": [0.5, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "target_weights": [1.0, 2.0],
        "n_targets": 1,
        **changes,
    }


def classifier(**changes: Any) -> dict[str, Any]:
    """Attributes of a classifier of two classes."""
    attributes = stump()
    result = {k: v for k, v in attributes.items() if k.startswith("nodes")}
    for name in ("treeids", "nodeids", "ids", "weights"):
        result[f"class_{name}"] = attributes[f"target_{name}"]
    return {**result, "classlabels_int64s": [0, 1], **changes}


def ensemble(**changes: Any) -> dict[str, Any]:
    """Attributes of a ``TreeEnsemble`` of one test and two leaves."""
    return {
        "nodes_featureids": [1],
        "nodes_splits": numbers(0.5),
        "nodes_modes": numbers(0, dtype=np.uint8),
        "nodes_truenodeids": [0],
        "nodes_trueleafs": [1],
        "nodes_falsenodeids": [1],
        "nodes_falseleafs": [1],
        "tree_roots": [0],
        "leaf_targetids": [0, 0],
        "leaf_weights": numbers(1, 2),
        "n_targets": 1,
        **changes,
    }


def by_number(value: Any) -> str | None:
    """Name parameter sets by number: their texts are long."""
    return "" if isinstance(value, str) else None


def refusal(kind: type[Exception], model: Any) -> str:
    return error_of(kind, load_forest, model)


def of_set(*members: float) -> dict[str, Any]:
    return {"nodes_modes": MEMBER, "membership_values": numbers(*members)}


def two_stumps(**changes: Any) -> dict[str, Any]:
    two = {k: v * 2 for k, v in stump().items() if k != "n_targets"}
    two |= {"nodes_treeids": [0, 0, 0, 1, 1, 1], "target_treeids": [0, 0, 1, 1]}
    return {**two, "n_targets": 1, **changes}


WHOLE = (
    "only whole numbers from 0 to 2147483647 are supported in sets with numbers above "
    "30, below 0, or more than 30 of them."
)
#: Attributes by what makes those of a model, and what is said of their damage.
DAMAGES: dict[Any, list[tuple[dict[str, Any], str]]] = {
    stump: [
        ({"nodes_treeids": [0, 0]},
         "nodes_treeids has 2 entries, but nodes_nodeids has 3"),
        ({"nodes_values": [0.5]},
         "nodes_values has 1 entries, but nodes_nodeids has 3"),
        ({"nodes_missing_value_tracks_true": [1]},
         "nodes_missing_value_tracks_true has 1 entries, but nodes_nodeids has 3"),
        ({"target_ids": [0]}, "target_nodeids has 2 entries, but target_ids has 1"),
        ({"target_weights": [1.0]},
         "target_weights has 1 entries, but target_ids has 2"),
        ({"nodes_truenodeids": [7, 0, 0]},
         "nodes_truenodeids[0] = 7 is not a node of tree 0"),
        ({"nodes_falsenodeids": [-1, 0, 0]},
         "nodes_falsenodeids[0] = -1 is not a node of tree 0"),
        ({"nodes_nodeids": [0, 1, 1]}, "node 1 of tree 0 is given twice"),
        ({"nodes_nodeids": [0, 1, 2**31]},
         f"nodes_nodeids[2] = {2**31} is outside 0..{2**31 - 1}"),
        ({"nodes_treeids": [-1, -1, -1]},
         f"nodes_treeids[0] = -1 is outside 0..{2**31 - 1}"),
        ({"nodes_treeids": [0, 1, 0], "nodes_truenodeids": [2, 0, 0]},
         "the nodes of tree 0 are not next to each other"),
        ({"nodes_modes": ["BRANCH_LT", "BRANCH_LT", "LEAF"],
          "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 2, 0]}, NO_TREE),
        ({"nodes_featureids": [4, 0, 0]},
         "nodes_featureids holds 4, but the input has 2 features"),
        ({"nodes_featureids": [-2, 0, 0]}, "nodes_featureids holds -2"),
        ({"target_nodeids": [1, 5]}, "target_nodeids[1] = 5 is not a node of tree 0"),
        ({"target_ids": [0, 1]}, "target_ids[1] = 1 is outside 0..0"),
        ({"n_targets": 0}, "The model has 0 outputs, which is outside 1..1048576"),
        ({"n_targets": 2**40},
         f"The model has {2**40} outputs, which is outside 1..1048576"),
        ({"base_values": [1.0, 2.0]}, "base_values has 2 entries for 1 outputs"),
        ({"n_targets": [1, 2]}, "n_targets is not an integer"),
        ({"nodes_values": [1, 2, 3]}, "nodes_values is not a list of floats"),
    ],
    ensemble: [
        ({"nodes_truenodeids": [2]}, "nodes_truenodeids[0] = 2 is not a leaf"),
        ({"nodes_truenodeids": [1], "nodes_trueleafs": [0]},
         "nodes_truenodeids[0] = 1 is not a node"),
        ({"nodes_falsenodeids": [0], "nodes_falseleafs": [0]}, NO_TREE),
        ({"tree_roots": [1]}, "tree_roots is empty or does not name nodes"),
        ({"tree_roots": [0, 0]}, NO_TREE),
        ({"nodes_falseleafs": [1, 1]},
         "nodes_falseleafs has 2 entries, but nodes_featureids has 1"),
        ({"leaf_targetids": [0]},
         "leaf_weights has 2 entries, but leaf_targetids has 1"),
        ({"nodes_modes": numbers(0.0)}, "nodes_modes holds float32 numbers"),
        ({"nodes_modes": MEMBER}, "membership_values has no numbers"),
        ({"nodes_modes": MEMBER, "membership_values": numbers(np.nan)},
         "membership_values has no set for node 0"),
        ({"leaf_weights": numbers([1, 2])},
         "leaf_weights is not a list of float, double or uint8 numbers (data type 1, "
         "2 dimensions)"),
    ],
}  # fmt: skip
#: The same of what is whole, but has no answer of onnxruntime's or of skforge's.
UNSUPPORTED: dict[Any, list[tuple[dict[str, Any], str]]] = {
    stump: [
        ({"nodes_treeids": [0] * 4, "nodes_nodeids": [0, 1, 2, 3],
          "nodes_featureids": [0] * 4,
          "nodes_modes": ["BRANCH_EQ", "BRANCH_EQ", "LEAF", "LEAF"],
          "nodes_values": [1.0, 2.0, 0.0, 0.0],
          "nodes_truenodeids": [2, 2, 0, 0], "nodes_falsenodeids": [1, 3, 0, 0],
          "nodes_missing_value_tracks_true": [0, 1, 0, 0], "target_nodeids": [2, 3]},
         "node 0 starts a chain of equality tests with different "
         "nodes_missing_value_tracks_true, which onnxruntime treats as one test, so "
         "its predictions cannot be reproduced."),
    ],
    two_stumps: [
        ({"aggregate_function": "MEDIAN"},
         "aggregate_function is 'MEDIAN', which is unknown; known are AVERAGE, SUM, "
         "MIN, MAX."),
        ({"post_transform": "EXP"},
         "post_transform is 'EXP', which is unknown; known are NONE, SOFTMAX, "
         "LOGISTIC, SOFTMAX_ZERO, PROBIT."),
        ({"nodes_modes": ["BRANCH_MEMBER", *["LEAF"] * 2] * 2},
         "nodes_modes[0] is the unknown mode 'BRANCH_MEMBER'."),
        ({"nodes_speed": 3},
         "TreeEnsembleRegressor has the unknown attribute 'nodes_speed', which may "
         "change predictions, so the model cannot be compiled."),
        ({"n_targets": 2, "target_ids": [0, 0, 0, 1], "base_values": [0.0, 1.0]},
         "Target 1 has a base value but leaves for only some rows, and onnxruntime "
         "adds it only to those rows; give every leaf a weight for every target."),
    ],
    classifier: [
        ({"classlabels_int64s": [4]},
         "The classifier has 1 class label(s); onnxruntime gives no defined output "
         "for fewer than two."),
        ({"post_transform": "PROBIT"},
         "PROBIT of a classifier with one score column leaves the second column "
         "undefined in onnxruntime; export the model with another post_transform."),
        ({"class_ids": [0, 1]},
         "Class 0 has a score for only some rows, which onnxruntime treats "
         "differently; give every leaf a weight for that class."),
        ({"class_ids": [0, 1], "classlabels_int64s": [1, 2, 3],
          "class_weights": [1.0, -1.0]},
         "Class 0 has a score for only some rows, and onnxruntime chooses the label "
         "of each row among the classes that have a score for it. Give every leaf a "
         "weight for every class."),
        ({"class_ids": [1, 1], "base_values": [0.5, 0.5]},
         "The model has two base_values but weights only for the second class, and "
         "onnxruntime ignores the trees of such a model."),
    ],
    ensemble: [
        # which onnxruntime refuses, too
        (of_set(1.5, 40), f"node 0 tests membership of a set with 1.5; {WHOLE}"),
        (of_set(3, -4), f"node 0 tests membership of a set with -4.0; {WHOLE}"),
        (of_set(2.0**30, 3),
         "The sets of the model's membership tests take more than 16777216 words of "
         "32 bits; use smaller category numbers."),
        ({"nodes_modes": numbers(7, dtype=np.uint8)},
         "nodes_modes[0] is the unknown mode 7."),
        ({"post_transform": 5}, "post_transform is the unknown number 5."),
        ({"aggregate_function": -1}, "aggregate_function is the unknown number -1."),
        ({"leaf_weights": numbers(1, 2, dtype=np.float64)},
         "leaf_weights holds float64 numbers where the input asks for float32; "
         "onnxruntime rejects such a model, so export it again."),
        ({"nodes_splits": numbers(1, dtype=np.float16)},
         "nodes_splits holds float16 numbers where the input asks for float32; "
         "onnxruntime rejects such a model, so export it again."),
    ],
}  # fmt: skip
OPERATORS = {
    stump: ("TreeEnsembleRegressor", 3),
    two_stumps: ("TreeEnsembleRegressor", 3),
    classifier: ("TreeEnsembleClassifier", 3),
    ensemble: ("TreeEnsemble", 5),
}


def model_of(attributes: Any, **changes: Any) -> Any:
    op, version = OPERATORS[attributes]
    return make_model(op, attributes(**changes), 2, version=version)


@pytest.mark.parametrize(
    ("attributes", "changes", "text", "kind", "end"),
    [
        pytest.param(made, *row, kind, end, id=f"{made.__name__} {number}{end[:1]}")
        for table, kind, end in (
            (DAMAGES, InvalidModelError, DAMAGED),
            (UNSUPPORTED, UnsupportedModelError, ""),
        )
        for made, rows in table.items()
        for number, row in enumerate(rows)
    ],
)
def test_attributes_that_are_refused(attributes, changes, text, kind, end):
    assert refusal(kind, model_of(attributes, **changes)) == text + end


def weights(model: Any) -> Any:
    (found,) = (a for a in model.graph.node[0].attribute if a.name == "leaf_weights")
    return found.t


def shape(model: Any) -> Any:
    return model.graph.input[0].type.tensor_type


def shorten(model: Any) -> None:
    weights(model).raw_data = weights(model).raw_data[:-1]


#: Models that are changed in other places than values of attributes.
CHANGED: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "a short tensor": (ensemble, shorten, InvalidModelError,
        f"leaf_weights holds 1 numbers, but its dims say 2{DAMAGED}"),
    "weights in another file": (ensemble,
        lambda m: setattr(weights(m), "data_location", onnx.TensorProto.EXTERNAL),
        UnsupportedModelError,
        "leaf_weights is stored in another file; save the model in one file "
        "(save_as_external_data=False)."),
    "an attribute twice": (stump,
        lambda m: m.graph.node[0].attribute.append(m.graph.node[0].attribute[0]),
        InvalidModelError, f"n_targets is given twice{DAMAGED}"),
    "float16 rows": (stump,
        lambda m: setattr(shape(m), "elem_type", onnx.TensorProto.FLOAT16),
        UnsupportedModelError,
        "The input 'X' holds float16 values; skforge reads float, double, int32, "
        "int64, bool and string."),
    "integer rows": (stump,
        lambda m: setattr(shape(m), "elem_type", onnx.TensorProto.INT64),
        UnsupportedModelError,
        "TreeEnsembleRegressor on integer rows has no kernel in onnxruntime; export "
        "the model with float input."),
    "three dimensions": (stump, lambda m: shape(m).shape.dim.add(),
        UnsupportedModelError,
        "The input 'X' has 3 dimensions, but rows have two."),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_models_that_are_refused(name):
    attributes, change, kind, text = CHANGED[name]
    model = model_of(attributes)
    change(model)
    assert refusal(kind, model) == text


@pytest.mark.parametrize(
    ("op", "version"),
    [("TreeEnsembleRegressor", 5), ("TreeEnsemble", 3), ("TreeEnsemble", 6)],
)
def test_versions_that_onnxruntime_refuses(op, version):
    attributes = ensemble() if op == "TreeEnsemble" else stump()
    model = make_model(op, attributes, 2, version=version)
    assert refusal(UnsupportedModelError, model) == (
        f"{op} in version {version} of ai.onnx.ml is unknown to onnxruntime, which "
        "knows TreeEnsembleRegressor and TreeEnsembleClassifier in versions 1 to 4 "
        "and TreeEnsemble in version 5."
    )


def test_files_that_are_no_models(tmp_path):
    path = tmp_path / "a.onnx"
    path.write_bytes(b"\xff" * 50)
    text = refusal(InvalidModelError, path)
    assert text.startswith("a.onnx: This is not an ONNX model (")
    assert text.endswith("); if it was one, it is damaged, so save the model again.")
    path.write_bytes(b"")
    text = refusal(InvalidModelError, path)
    assert text == f"{path} is empty; save the model again."


def test_without_onnx_the_error_says_what_to_install(tmp_path, monkeypatch):
    path = tmp_path / "a.onnx"
    path.write_bytes(b"\xff" * 50)
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    assert refusal(UnsupportedModelError, path) == (
        "a.onnx: Reading ONNX models needs the onnx package; install it with 'pip "
        "install onnx'."
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"outputs": OutputSpec("onnx", layout="target", offsets=(0.0, 1.0))},
         "transform.offsets has length 2 where 1 was expected"),
        ({"class_labels": ("a", "b", "c")},
         "class_labels has length 3 where 2 was expected"),
    ],
    ids=by_number,
)  # fmt: skip
def test_damaged_outputs_of_a_forest(changes, text):
    forest = load_forest(make_model("TreeEnsembleRegressor", stump(), 2))
    said = error_of(InvalidModelError, replace(forest, **changes).validate)
    assert said == text + DAMAGED


@pytest.mark.parametrize("labels", [[1, 0], [0, 0], [0], [0, 1, 2], ["0", "1"]])
def test_labels_of_a_zipmap_are_the_classifier_s(labels):
    """onnxruntime's dictionaries have the ZipMap's labels, our columns have none."""
    path = Path(__file__).parents[1] / "data" / "onnx_models" / "lgb_binary.onnx"
    model = onnx.load(path)
    assert load_forest(model).class_labels == (0, 1)
    (node,) = (node for node in model.graph.node if node.op_type == "ZipMap")
    del node.attribute[:]
    kind = "strings" if isinstance(labels[0], str) else "int64s"
    node.attribute.append(onnx.helper.make_attribute(f"classlabels_{kind}", labels))
    error = error_of(UnsupportedModelError, load_forest, model)
    said = [one.encode() for one in labels] if kind == "strings" else labels
    assert error == (
        f"A ZipMap gives the scores the labels {said}, which are not exactly the "
        "classifier's labels; export the model without ZipMap."
    )
