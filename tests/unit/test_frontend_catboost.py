"""CatBoost models and files: the same bits as CatBoost's own predictor."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.reference import reference_raw
from skforge.frontends import load_forest
from skforge.outputs import catboost as of_catboost
from tests.plain import plain
from tests.refusals import error_of

cb = pytest.importorskip("catboost")

N = 300
QUIET = {"verbose": 0, "allow_writing_files": False, "thread_count": 1}
POLICIES = ("SymmetricTree", "Lossguide", "Depthwise")
FILES = [f"{policy}.{kind}" for policy in POLICIES[:2] for kind in ("cbm", "json")]
DAMAGED = "; the model is damaged, save it again."


def make_rows(seed=0, missing=0.1):
    random = np.random.default_rng(seed)
    X = random.normal(size=(N, 5)).astype(np.float32)
    X[:, 3] = random.integers(0, 4, N)
    X[random.random(X.shape) < missing] = np.nan
    signal = np.nan_to_num(X[:, 0]) + np.nan_to_num(X[:, 3]) / 2 - 0.7
    return X, signal + 0.5 * random.normal(size=N)


def train(kind="Regressor", X=None, y=None, fit=(), **params):
    if X is None:
        X, signal = make_rows()
        y = signal if y is None else y(signal)
    params = {"iterations": 8, "depth": 4, **QUIET, **params}
    return getattr(cb, f"CatBoost{kind}")(**params).fit(X, y, **dict(fit))


def same_bits(actual, expected):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if actual.dtype == object:
        np.testing.assert_array_equal(actual, expected)
    assert actual.dtype == object or actual.tobytes() == expected.tobytes()


def raw_of(model, rows, **params):
    """Return the model's raw scores, one column per output."""
    raw = cb.CatBoost.predict(model, rows, prediction_type="RawFormulaVal", **params)
    return raw.reshape(len(rows), -1)


def classes(labels):
    """Return a function that draws labels for a signal."""
    return lambda signal: np.array(labels)[
        np.digitize(signal, np.linspace(-0.7, 0.7, len(labels) - 1))
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_some_of_the_trees_of_two_targets(policy):
    X, y = make_rows()
    both = np.stack([y, -y * y], 1)
    model = train(X=X, y=both, grow_policy=policy, loss_function="MultiRMSE")
    for begin, end in ((0, 3), (2, 5), (7, 8), (0, 8)):
        forest = load_forest(model, iteration_range=(begin, end))
        wanted = raw_of(model, X, ntree_start=begin, ntree_end=end)
        same_bits(reference_raw(forest, X), wanted)


def test_the_exponential_at_its_limits():
    values = [-1e300, -709.0, -708.39641853226408, -708.39, 0.0, -0.0, 709.7, 709.79]
    values += [np.inf, -np.inf, 1.0, -1.0, 1e-300]
    for n in range(1, len(values)):
        found = of_catboost.exp(np.array(values[:n]))
        with np.errstate(over="ignore"):
            wanted = np.exp(values[:n])
        assert np.allclose(found, wanted, rtol=1e-12, atol=3e-308)


# ---------------------------------------------------------------- refusals


def refused(model, **params):
    return error_of(UnsupportedModelError, load_forest, model, **params)


def test_texts_and_embeddings_are_refused():
    pandas = pytest.importorskip("pandas")
    X, y = make_rows()
    frame = pandas.DataFrame(X[:, :2], columns=["a", "b"])
    frame["text"] = np.array(["good day", "bad day", "a word"])[np.arange(N) % 3]
    frame["vector"] = [*np.nan_to_num(X[:, 2:4])]
    for kind, name, short in (
        ("text", "text", "text_features"),
        ("embedding", "vector", "embedding_features"),
    ):
        rows = frame[["a", "b", name]]
        model = train("Classifier", rows, y > 0, {short: [name]})
        text = (
            f"The model has {kind} features ({name}), which skforge cannot compile "
            "yet; compute numbers of them before training, or predict with CatBoost."
        )
        assert refused(model) == text
        with pytest.raises(UnsupportedModelError) as error:
            plain(cb.CatBoostClassifier(**{short: [name]}, **QUIET)).fit(rows, y > 0)
        assert str(error.value) == text


# ------------------------------------------------------------ damaged files


@pytest.fixture(scope="module")
def contents(tmp_path_factory) -> dict[str, bytes]:
    """Contents of a file of each kind."""
    folder = tmp_path_factory.mktemp("catboost")
    found = {}
    for policy in POLICIES[:2]:
        model = train(iterations=3, depth=2, grow_policy=policy)
        for suffix in ("cbm", "json"):
            path = Path(folder / f"{policy}.{suffix}")
            model.save_model(path, format=suffix)
            found[path.name] = path.read_bytes()
    assert [*found] == FILES
    return found


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("split_index", 99), "is none of its tests"),
        (("split_index", "x"), "is none of its tests"),
        (("split_type", "OneHotFeature"), "is none of its tests"),
        (("nan_value_treatment", "Odd"), "the treatment 'Odd' of missing values"),
        (("flat_feature_index", 7), "its columns are not numbered from 0"),
        (("leaf_values", [1.0]), "tree 0 has 1 leaf values"),
        (("leaf_values", None), "a value is missing or of another type"),
        (("borders", "abc"), "a value is no number"),
        (("scale_and_bias", [1]), "a value is no number"),
        (("scale_and_bias", [1, []]), "it has 0 biases"),
        *(
            (("scale_and_bias", [1, [x]]), f"it adds [{x}] to its sums")
            for x in (-np.inf, np.inf, np.nan)
        ),
    ],
)
def test_json_with_a_wrong_value(change, what, contents):
    def put(part):
        if isinstance(part, list):
            return [put(item) for item in part]
        if not isinstance(part, dict):
            return part
        return {k: change[1] if k == change[0] else put(v) for k, v in part.items()}

    document = put(json.loads(contents["SymmetricTree.json"]))
    text = error_of(InvalidModelError, load_forest, json.dumps(document).encode())
    assert what in text
    assert text.endswith(DAMAGED)


@pytest.mark.parametrize("value", [-np.inf, np.inf, np.nan])
def test_biases_are_finite(value, tmp_path):
    """-inf is the score of a class without rows, which no file has."""
    model = train(iterations=2)
    model.set_scale_and_bias(1, 0.1234567)
    model.save_model(tmp_path / "cbm", format="cbm")
    data = (tmp_path / "cbm").read_bytes()
    old, new = (np.float64(x).tobytes() for x in (0.1234567, value))
    assert old in data
    said = error_of(InvalidModelError, load_forest, data.replace(old, new))
    assert said == f"it adds [{value}] to its sums{DAMAGED}"


def test_classes_without_rows(tmp_path):
    X, signal = make_rows()
    params = {"loss_function": "MultiClass", "classes_count": 7, "iterations": 4}
    model = train("Classifier", X, classes([0, 2, 5])(signal), **params)
    model.set_scale_and_bias(1.5, [0.25, -1.0, 0.5])
    for suffix in ("cbm", "json"):
        model.save_model(tmp_path / suffix, format=suffix)
        forest = load_forest((tmp_path / suffix).read_bytes())
        same_bits(reference_raw(forest, X), raw_of(model, X))
    forest = load_forest(model, iteration_range=(1, 3))
    same_bits(reference_raw(forest, X), raw_of(model, X, ntree_start=1, ntree_end=3))
    document = json.loads((tmp_path / "json").read_text())
    told = document["model_info"]["class_params"]
    for name, values in (
        ("class_to_label", ([0, 2, 7], [0, 2, 2], [0, 5], [0, 5, []], "025", None)),
        ("classes_count", (2, "7", 1 << 20)),
    ):
        for value in values:
            changed = {**document["model_info"], "class_params": {**told, name: value}}
            data = json.dumps({**document, "model_info": changed}).encode()
            said = error_of(InvalidModelError, load_forest, data)
            what = "it has values of 3 classes, but does not say of which"
            assert said == what + DAMAGED


@pytest.mark.parametrize("suffix", ["cbm", "json"])
def test_damaged_information_about_classes(suffix, tmp_path):
    X, signal = make_rows()
    model = train("Classifier", X, classes(["no", "yes"])(signal), iterations=2)
    model.set_probability_threshold(0.25)
    model.save_model(tmp_path / "model", format=suffix)
    data = (tmp_path / "model").read_bytes()
    label = "its labels are not of the type"
    for old, new, what in (
        (b"0.25", b"0.2x", "the threshold '0.2x' is not between 0 and 1"),
        (b"0.25", b"7.25", "the threshold '7.25' is not between 0 and 1"),
        (b"String", b"Stripe", f"{label} 'Stripe'"),
        (b'"no"', b"1234", f"{label} 'String'"),
    ):
        assert old in data
        said = error_of(InvalidModelError, load_forest, data.replace(old, new))
        assert said == what + DAMAGED


def test_dropped_columns_are_as_many_as_files_may_have(tmp_path):
    """A place far behind the last column would take memory for all before it."""
    random = np.random.default_rng(0)
    X = random.normal(size=(200, 4))
    model = train(X=X, y=X[:, 3], ignored_features=[1, 2])
    model.drop_unused_features()
    model.save_model(str(tmp_path / "model.json"), format="json")
    contents = json.loads((tmp_path / "model.json").read_text())
    last = contents["features_info"]["float_features"][-1]
    assert last["flat_feature_index"] == 3
    last["flat_feature_index"] = 70_000
    assert error_of(InvalidModelError, load_forest, json.dumps(contents).encode()) == (
        f"it has a column 70000, but only 2 of those before{DAMAGED}"
    )
