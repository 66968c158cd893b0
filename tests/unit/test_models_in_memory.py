"""Models as bytes, buffers, open files and texts: the forest of their file."""

from __future__ import annotations

import io
import json
import mmap
import pickle
import zipfile

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier

import skforge
from skforge import CompiledForest, compile_forest, load_forest
from skforge.exceptions import InvalidModelError, UnsupportedModelError
from tests.refusals import error_of
from tests.unit.test_frontends import ANY_NAME

lgb = pytest.importorskip("lightgbm")
xgb = pytest.importorskip("xgboost")
skl2onnx = pytest.importorskip("skl2onnx")

rng = np.random.default_rng(0)
X = rng.normal(size=(90, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """Return the content of a file of every kind."""
    quiet = {"verbose": -1, "num_threads": 1, "objective": "binary"}
    light = lgb.train(quiet, lgb.Dataset(X, Y), 3)
    booster = xgb.train({"objective": "binary:logistic"}, xgb.DMatrix(X, Y), 3)
    tree = DecisionTreeClassifier(max_depth=3).fit(X, Y)
    saved = tmp_path_factory.mktemp("saved") / "forest.skforge"
    skforge.save(load_forest(tree), saved)
    return {
        "ubj": bytes(booster.save_raw("ubj")),
        "json": bytes(booster.save_raw("json")),
        "spaced json": b"\n " + bytes(booster.save_raw("json")),
        "text": light.model_to_string().encode(),
        "dump": json.dumps(light.dump_model()).encode(),
        "spaced dump": json.dumps(light.dump_model(), indent=2).encode(),
        "onnx": skl2onnx.to_onnx(tree, X[:1]).SerializeToString(),
        "skforge": saved.read_bytes(),
    }


KINDS = ("ubj", "json", "spaced json", "text", "dump", "spaced dump", "onnx", "skforge")


def forms(data, folder):
    """Return a content in every form that memory can have it in."""
    path = folder / "model"
    path.write_bytes(data)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("model", data)
    found = {
        "bytes": data,
        "bytearray": bytearray(data),
        "memoryview": memoryview(data),
        "BytesIO": io.BytesIO(data),
        "open": path.open("rb"),
        "mapped": mapped,
        "in a zip": zipfile.ZipFile(zipped).open("model"),  # noqa: SIM115
    }
    if data[:1] in b"t{" and data[1:2] != b"L":
        found |= {"str": data.decode(), "StringIO": io.StringIO(data.decode())}
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:.*was saved by skforge.save:FutureWarning")
def test_every_form_is_the_forest_of_the_file(kind, contents, tmp_path):
    expected = load_forest(contents[kind]).content_hash()
    for name in [*ANY_NAME, "model.ubj", "model.onnx", "model.skforge"]:
        path = tmp_path / name
        path.write_bytes(contents[kind])
        for given in (path, str(path)):
            assert load_forest(given).content_hash() == expected, name
    for form, model in forms(contents[kind], tmp_path).items():
        assert load_forest(model).content_hash() == expected, form
    for form, model in forms(contents[kind], tmp_path).items():
        assert compile_forest(model).forest.content_hash() == expected, form


@pytest.mark.filterwarnings("ignore:.*was saved by skforge.save:FutureWarning")
def test_rounds_of_bytes_can_be_chosen(contents):
    for kind in ("ubj", "text"):
        assert load_forest(contents[kind], iteration_range=(1, 3)).n_trees == 2
    with pytest.raises(UnsupportedModelError) as error:
        load_forest(contents["skforge"], iteration_range=(0, 1))
    assert str(error.value) == (
        "This bytes object was saved by skforge.save, which fixes the boosting rounds; "
        "pass iteration_range when you read the original model."
    )


OTHER = (
    ". Pass the content of a file that XGBoost, LightGBM, CatBoost or skforge.save "
    "wrote, or of an ONNX model."
)


@pytest.mark.parametrize(
    ("model", "kind", "text"),
    [
        (b"", InvalidModelError, "This bytes object is empty; it holds no model."),
        (bytearray(), InvalidModelError,
         "This bytes object is empty; it holds no model."),
        (b"a,b\n1,2\n", UnsupportedModelError,
         "This bytes object is not a model that skforge recognises: it begins with "
         rf"b'a,b\n1,2\n'{OTHER}"),
        ("a,b\n1,2\n", UnsupportedModelError,
         "This text is not a model that skforge recognises: it begins with "
         rf"b'a,b\n1,2\n'{OTHER}"),
        (
            "tree\rversion=v4\r" + "Tree=0\r" * 999,  # lines of old Macs
            UnsupportedModelError,
            "This text is not a model that skforge recognises: it begins with "
            rf"b'tree\rversion=v4\r'{OTHER}",
        ),
        (b"/models/fraud.json", UnsupportedModelError,
         "This bytes object is not a model that skforge recognises: it begins with "
         f"b'/models/fraud.js'{OTHER}"),
        (pickle.dumps({}), UnsupportedModelError,
         "This bytes object is pickled or compressed, as by joblib.dump, and skforge "
         "does not open it, because a pickle can run any code; load it yourself and "
         "pass the model."),
        ('{"a": 1}', InvalidModelError,
         "The document has no learner, so it is not an XGBoost model; save it with "
         "Booster.save_model."),
    ],
    ids=[
        "empty", "empty array", "csv", "csv text", "old lines", "path", "pickle",
        "json",
    ],
)  # fmt: skip
def test_contents_that_are_no_models_say_what_they_are(model, kind, text):
    for call in (load_forest, compile_forest, lambda m: CompiledForest(m).fit(X)):
        assert error_of(kind, call, model) == text


def test_a_saved_estimator_in_memory_is_not_compiled_again(contents):
    assert error_of(InvalidModelError, CompiledForest(contents["skforge"]).fit, X) == (
        "This model was saved by skforge.save; use skforge.load(path)."
    )
