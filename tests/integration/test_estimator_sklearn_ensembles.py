"""CompiledForest over scikit-learn's other ensembles: values, warnings and errors."""

from __future__ import annotations

import pickle
import warnings
from functools import cache

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    BaggingRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
)
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import check_estimator
from threadpoolctl import threadpool_limits

from skforge import CompiledForest, UnsupportedModelError
from skforge.prediction.predictor import ForestPredictor
from tests.plain import plain
from tests.sklearn_rows import tie_rows

pandas = pytest.importorskip("pandas")
sparse = pytest.importorskip("scipy.sparse")

N = 300
METHODS = (
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "score_samples",
    "apply",
)
MODELS = {
    "gb": GradientBoostingRegressor(n_estimators=4, random_state=0),
    "gb two": GradientBoostingClassifier(n_estimators=4, random_state=0),
    "gb three": GradientBoostingClassifier(n_estimators=4, random_state=0),
    "hist": HistGradientBoostingRegressor(max_iter=4, random_state=0),
    "hist log": HistGradientBoostingRegressor(max_iter=4, loss="poisson"),
    "hist two": HistGradientBoostingClassifier(max_iter=4, random_state=0),
    "hist three": HistGradientBoostingClassifier(max_iter=4, random_state=0),
    "hist sets": HistGradientBoostingRegressor(max_iter=4, categorical_features=[1]),
    "isolation": IsolationForest(n_estimators=4, random_state=0),
    "isolation some": IsolationForest(
        n_estimators=4, max_features=2, contamination=0.1
    ),
    "bag": BaggingRegressor(n_estimators=4, random_state=0),
    "bag three": BaggingClassifier(n_estimators=4, max_features=3, random_state=0),
    "ada two": AdaBoostClassifier(n_estimators=4, random_state=0),
    "ada three": AdaBoostClassifier(n_estimators=4, random_state=0),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine, threads that wait for each other cost seconds."""
    with threadpool_limits(1):
        yield


def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 4)).round(2)
    X[:, 1] = rng.integers(0, 9, N) * 3
    return X, rng


@cache
def fitted(name):
    X, rng = data()
    y = np.exp(rng.normal(size=N)) + X[:, 1] % 7
    if name.endswith("two"):
        y = np.array(["no", "yes"])[rng.integers(0, 2, N)]
    if name.endswith("three"):
        y = rng.integers(0, 3, N) * 2
    model = clone(MODELS[name]).fit(X, y)
    return model, plain(model).fit(X), X


def outcome(call, X):
    """Return the value, and warnings or the error, as something to compare."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = np.asarray(call(X))
        except Exception as error:  # noqa: BLE001
            return type(error).__name__, str(error), ()
    texts = sorted({str(w.message) for w in caught})
    return value.dtype, value.shape, value.tobytes(), texts


def inputs(X, forest):
    wide = np.hstack([X, X])
    holes = X.copy()
    holes[::7, 0] = np.nan
    gaps = X * (np.abs(X) > 0.5)
    columns = list("abcd")
    edge = [np.inf, -np.inf, 1e300, -1e300, 3.5e38, 1e-320, -0.0]
    odd = np.repeat(X[:1], len(edge), axis=0)
    odd[:, 2] = edge
    codes = np.repeat(X[:1], 8, axis=0)
    codes[:, 1] = [2.5, -1, 1e9, np.nan, 3, -0.0, 25, np.nextafter(3, 9)]
    return {
        "float64": X,
        "float32": X.astype(np.float32),
        "int64": X.astype(np.int64),
        "bool": X > 0,
        "object": X.astype(object),
        "strings": X.astype(str),
        "complex": X + 1j,
        "big endian": X.astype(">f8"),
        "Fortran": np.asfortranarray(X.astype(np.float32)),
        "reversed": X.astype(np.float32)[::-1],
        "list": X.tolist(),
        "frame": pandas.DataFrame(X, columns=columns),
        "csr": sparse.csr_matrix(gaps),
        "csr array": sparse.csr_array(gaps.astype(np.float32)),
        "csc": sparse.csc_matrix(gaps),
        "ties": tie_rows(forest, 60),
        "one row": X[:1].astype(np.float32),
        "no rows": X[:0],
        "no rows of float32": X[:0].astype(np.float32),
        "one dimension": X[0],
        "three dimensions": X[:, :, np.newaxis],
        "too wide": wide,
        "NaN": holes,
        "NaN of float32": holes.astype(np.float32),
        "infinity": odd[:1].astype(np.float32),
        "odd": odd,
        "categories": codes,
        **{f"odd {value}": odd[i : i + 1] for i, value in enumerate(edge)},
    }


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", MODELS)
def test_every_input_ends_as_the_source_says(name):
    model, fast, X = fitted(name)
    reached = 0
    for kind, rows in inputs(X, fast.forest_).items():
        for method in METHODS:
            assert hasattr(model, method) == hasattr(fast, method), method
            if hasattr(model, method):
                expected = outcome(getattr(model, method), rows)
                found = outcome(getattr(fast, method), rows)
                assert found == expected, (kind, method)
                reached += len(expected) == 4
    assert reached > 20


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["gb three", "hist", "isolation", "bag", "ada two"])
def test_frames_by_name(name):
    X, rng = data()
    frame = pandas.DataFrame(X, columns=list("abcd"))
    model = clone(MODELS[name]).fit(frame, rng.integers(0, 3, N))
    fast = CompiledForest(model).fit(frame)
    single = frame.astype(np.float32)
    for rows in (frame, single, frame[list("dcba")], X, X.astype(np.float32)):
        assert outcome(fast.predict, rows) == outcome(model.predict, rows)


def test_categories_by_name():
    X, rng = data()
    frame = pandas.DataFrame(X, columns=list("abcd"))
    names = np.array(["pear", "apple", "fig"])
    frame["c"] = pandas.Categorical(names[rng.integers(0, 3, N)])
    frame["b"] = pandas.Categorical(frame["b"].astype(int))
    y = frame["c"].astype(str).str.len() + X[:, 1] % 7
    model = HistGradientBoostingRegressor(max_iter=9).fit(frame, y)
    fast = CompiledForest(model).fit(frame)
    unknown = frame.astype({"c": object})
    unknown.loc[::3, "c"] = "quince"
    missing = frame.copy()
    missing.loc[::3, "c"] = np.nan
    recoded = frame.copy()
    recoded["c"] = pandas.Categorical(frame["c"], categories=["pear", "fig", "apple"])
    for rows in (frame, unknown, missing, recoded, frame[list("dcba")], X):
        assert outcome(fast.predict, rows) == outcome(model.predict, rows)
    assert np.isfinite(fast.predict(unknown)).all()


@pytest.mark.sampled(6)
@pytest.mark.filterwarnings("ignore:divide by zero encountered in log")
@pytest.mark.parametrize("name", MODELS)
def test_the_kernels_are_what_answers(name, monkeypatch):
    """Not the source, which every check above compares with."""
    model, fast, X = fitted(name)
    expected = {m: getattr(model, m)(X) for m in METHODS if hasattr(model, m)}
    asked = []
    source = fast._predictor.source
    monkeypatch.setattr(
        type(source), "call", lambda self, method, X: asked.append(method)
    )
    for method, values in expected.items():
        if method == "predict_log_proba" and name == "bag three":
            continue  # sums of logarithms: the model's own
        np.testing.assert_array_equal(getattr(fast, method)(X), values)
    assert asked == []


@pytest.mark.parametrize("name", ["gb two", "hist sets", "isolation", "ada three"])
def test_copies(name):
    model, fast, X = fitted(name)
    again = pickle.loads(pickle.dumps(fast))
    for method in ("predict", "decision_function", "score_samples"):
        if hasattr(model, method):
            assert outcome(getattr(again, method), X) == outcome(
                getattr(model, method), X
            )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", MODELS)
def test_verification_sees_a_wrong_leaf(name):
    from dataclasses import replace

    from skforge.compiler.runtime.module import compile_forest
    from skforge.exceptions import VerificationError
    from skforge.prediction.verification import verify

    model, fast, X = fitted(name)
    forest = replace(
        fast.forest_, leaf_value=np.nextafter(fast.forest_.leaf_value, np.inf)
    )
    with pytest.raises(VerificationError):
        verify(ForestPredictor(compile_forest(forest), model), X, False)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", MODELS)
def test_a_forest_without_its_model(name):
    """As loaded where scikit-learn's estimator is not at hand."""
    model, fast, X = fitted(name)
    bare = CompiledForest(fast.forest_).fit(X)
    kind = get_tags(model).estimator_type
    assert get_tags(bare).estimator_type == kind
    for method in ("predict_proba", "decision_function", "score_samples"):
        if method == "decision_function" or kind != "classifier":
            assert hasattr(bare, method) == hasattr(model, method), method
        if hasattr(model, method):
            expected = outcome(getattr(model, method), X)
            assert outcome(getattr(bare, method), X) == expected
    expected = model.predict(X)
    if kind == "classifier":
        expected = np.searchsorted(model.classes_, expected)
    np.testing.assert_array_equal(bare.predict(X), expected)


def test_one_class_is_said_where_members_are_no_help():
    model = clone(MODELS["ada two"]).fit(np.eye(3), [1, 1, 1])
    with pytest.raises(UnsupportedModelError, match="was fitted with one class"):
        CompiledForest(model).fit(np.eye(3))


def failing(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(estimator, on_fail=None, on_skip=None)
    return {r["check_name"] for r in results if r["status"] == "failed"}


CHECKED = ["gb", "gb two", "hist", "hist two", "isolation", "bag three", "ada two"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKED)
def test_nothing_fails_that_the_model_passes(name):
    model = clone(MODELS[name]).set_params(random_state=0)
    assert failing(CompiledForest(model)) <= failing(model)
