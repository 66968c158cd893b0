"""Quantile forests of quantile-forest: the library's bits, with all arguments."""

from __future__ import annotations

import pickle
from io import BytesIO

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import skforge
from skforge import CompiledForest
from skforge.engine.leaves import samples
from skforge.exceptions import (
    InvalidInputError,
    InvalidModelError,
    PerformanceWarning,
    SourceNeededError,
    UnsupportedModelError,
)
from tests.plain import plain
from tests.programs import run_python
from tests.sklearn_rows import same_bits as same

quantile_forest = pytest.importorskip("quantile_forest")

KINDS = (
    quantile_forest.RandomForestQuantileRegressor,
    quantile_forest.ExtraTreesQuantileRegressor,
)
INTERPOLATIONS = ["linear", "lower", "higher", "midpoint", "nearest"]


def drawn(seed):
    """Return a random fitted model and rows: many ties, outputs, weights, bounds."""
    draw = np.random.default_rng(seed)
    n, n_features = int(draw.integers(5, 200)), int(draw.integers(1, 5))
    X = draw.normal(size=(n, n_features)).astype(np.float32)
    y = draw.normal(size=(n, int(draw.choice([1, 1, 2, 3])))) + X[:, :1]
    if draw.random() < 0.4:
        y = np.round(y)
        y += 0.0  # no -0.0
    monotonic = draw.random() < 0.25 and y.shape[1] == 1
    most = draw.choice([1, 1.0, None, None, 3, 0.2])
    params = {
        "n_estimators": int(draw.choice([1, 2, 7, 20])),
        "min_samples_leaf": int(draw.choice([1, 3, 10])),
        "max_samples_leaf": 1 if monotonic else most,
        "default_quantiles": draw.choice([0.5, 0.1, None]),
        "random_state": int(seed),
    }
    if monotonic:
        params["monotonic_cst"] = draw.choice([-1, 0, 1], n_features).tolist()
    kind = KINDS[int(draw.integers(2))]
    if kind is KINDS[1] and draw.random() < 0.5:
        params["bootstrap"] = True
    weights = None
    if draw.random() < 0.3 and y.shape[1] == 1 and not monotonic:
        weights = draw.choice([0.0, 1.0, 2.5], n, p=[0.2, 0.5, 0.3])
    model = kind(**params).fit(X, y[:, 0] if y.shape[1] == 1 else y, weights)
    rows = draw.normal(size=(int(draw.integers(1, 40)), n_features))
    return draw, model, X, rows.astype(np.float32)


def queries(draw):
    yield {}
    yield {"quantiles": "mean"}
    for _ in range(6):
        asked = draw.choice([0, 1, 0.5, 0.05, 0.25, 1e-17, 1 - 1e-16, draw.random()], 3)
        forms = asked.tolist(), float(asked[0]), None, "mean"
        yield {
            "quantiles": forms[int(draw.choice(4, p=[0.7, 0.1, 0.1, 0.1]))],
            "interpolation": str(draw.choice(INTERPOLATIONS)),
            "weighted_quantile": bool(draw.random() < 0.6),
            "weighted_leaves": bool(draw.random() < 0.4),
            "aggregate_leaves_first": bool(draw.random() < 0.7),
        }


def check(seed):
    draw, model, X, rows = drawn(seed)
    fast = plain(model).fit(X)
    for query in queries(draw):
        for part in (rows, rows[:1], X):
            same(fast.predict(part, **query), model.predict(part, **query))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(8))
def test_random_models(seed):
    check(seed)


@pytest.mark.parametrize("limit", ["NARROW", "MOST_COUNTED"])
def test_many_targets_or_samples_have_wide_places(limit, monkeypatch):
    monkeypatch.setattr(samples, limit, 4)
    for seed in (1, 3):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 500))
def test_many_random_models(seed):
    check(seed)


@pytest.fixture(scope="module", params=[1, None], ids=["single", "all"])
def fitted(request):
    draw = np.random.default_rng(0)
    X = draw.normal(size=(300, 3)).astype(np.float32)
    y = X[:, 0] + draw.normal(size=300)
    model = KINDS[0](15, max_samples_leaf=request.param, random_state=0).fit(X, y)
    return model, plain(model).fit(X), X


def test_kernels_answer_and_not_the_library(fitted):
    _, fast, X = fitted
    before = fast.counters()["kernel"]["calls"]
    fast.predict(X, quantiles=[0.1, 0.9])
    assert fast.counters()["kernel"]["calls"] == before + 1
    assert fast.counters()["library"]["calls"] == 0


def test_what_only_the_library_computes(fitted):
    model, fast, X = fitted
    same(fast.predict(X, oob_score=True), model.predict(X, oob_score=True))
    with pytest.raises(InvalidInputError, match="from 0 to 1"):
        fast.predict(X, quantiles=[])  # the library may end the process
    for wrong in ([2.0], np.array([0.5, 0.7])):
        with pytest.raises(ValueError) as ours:
            fast.predict(X, quantiles=wrong)
        with pytest.raises(ValueError) as theirs:
            model.predict(X, quantiles=wrong)
        assert str(ours.value) == str(theirs.value)
    with pytest.raises(TypeError, match="quantile"):
        fast.predict(X, quantile=0.5)


def test_default_quantiles_may_change_later(fitted):
    model, _, X = fitted
    model = pickle.loads(pickle.dumps(model))
    fast = plain(model).fit(X)
    model.set_params(default_quantiles=[0.2, 0.7])
    same(fast.predict(X), model.predict(X))


def test_frames_sparse_rows_lists_and_several_threads(fitted):
    import pandas as pd
    from scipy.sparse import csr_matrix

    model, fast, X = fitted
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    named = KINDS[0](5, random_state=0).fit(frame, X[:, 0])
    of_names = plain(named).fit(frame)
    same(of_names.predict(frame), named.predict(frame))
    assert of_names.predict({"a": 0.5, "b": 0.1, "c": 0.0}).shape == (1,)
    for rows in (X.tolist(), X.astype(np.float64), X[::2]):
        same(fast.predict(rows, quantiles=[0.3]), model.predict(rows, quantiles=[0.3]))
    # the library itself cannot take the length of these
    same(fast.predict(csr_matrix(X)), model.predict(X))
    threads = plain(model, n_jobs=2).fit(X)
    many = np.tile(X, (20, 1))
    same(threads.predict(many), model.predict(many))


def test_no_rows_have_the_librarys_error(fitted):
    model, fast, X = fitted
    for predict in (model.predict, fast.predict):
        with pytest.raises(ValueError, match="0 sample"):
            predict(X[:0])


def test_blocks_of_rows(fitted, monkeypatch):
    model, fast, X = fitted
    monkeypatch.setattr("skforge.prediction.of_leaves._BLOCK", 100)
    same(fast.predict(X, quantiles=[0.4, 0.6]), model.predict(X, quantiles=[0.4, 0.6]))


def test_pickles_and_files(fitted, tmp_path):
    model, fast, X = fitted
    query = {"quantiles": [0.1, 0.5, 0.9]}
    expected = model.predict(X, **query)
    same(pickle.loads(pickle.dumps(fast)).predict(X, **query), expected)
    alone = fast.drop_estimator()
    file = BytesIO()
    skforge.save(fast, file)
    file.seek(0)
    for other in (alone, pickle.loads(pickle.dumps(alone)), skforge.load(file)):
        same(other.predict(X, **query), expected)
        same(other.predict(X), model.predict(X))
        with pytest.raises(SourceNeededError, match="oob_score"):
            other.predict(X, oob_score=True)
        with pytest.raises(InvalidInputError, match="from 0 to 1"):
            other.predict(X, quantiles=3)


def test_a_file_needs_neither_the_library_nor_scikit_learn(fitted, tmp_path):
    model, fast, X = fitted
    skforge.save(fast, tmp_path / "model.skforge")
    np.save(tmp_path / "rows.npy", X)
    np.save(tmp_path / "expected.npy", model.predict(X, quantiles=[0.2, 0.8]))
    program = """if True:
        import sys
        sys.modules["quantile_forest"] = sys.modules["sklearn"] = None
        import numpy as np, skforge
        fast = skforge.load("model.skforge")
        answer = fast.predict(np.load("rows.npy"), quantiles=[0.2, 0.8])
        assert np.array_equal(answer, np.load("expected.npy"))
    """
    run_python(program, cwd=tmp_path)


def test_damaged_samples_are_refused(fitted):
    _, fast, _ = fitted
    alone = fast.drop_estimator()
    payload = alone._stored.leaves
    payload["places"] = payload["places"] + np.int32(10**6)
    file = BytesIO()
    skforge.save(alone, file)
    file.seek(0)
    with pytest.raises(InvalidModelError):
        skforge.load(file)


def test_inside_a_pipeline_and_other_models(fitted):
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    _, _, X = fitted
    inner = KINDS[0](8, random_state=0)
    around = TransformedTargetRegressor(
        inner, func=np.negative, inverse_func=np.negative
    )
    around.fit(X, X[:, 0])
    same(plain(around).fit(X).predict(X), around.predict(X))
    model = make_pipeline(StandardScaler(), inner).fit(X, X[:, 0])
    with pytest.warns(PerformanceWarning, match="standardscaler"):
        fast = plain(model).fit(X)
    same(fast.predict(X), model.predict(X))
    same(fast.predict(X, quantiles=[0.1]), model.predict(X, quantiles=[0.1]))
    assert fast.counters()["library"]["calls"] == 0


def test_what_explains_or_exports_sums_is_refused(fitted, tmp_path):
    model, fast, X = fitted
    assert_array_equal(fast.apply(X), model.apply(X))
    for explain in (fast.predict_contribs, fast.predict_per_tree):
        with pytest.raises(UnsupportedModelError, match="than sums of its trees"):
            explain(X)
    with pytest.raises(UnsupportedModelError, match="leaves"):
        skforge.export(fast, tmp_path / "exported")
    with pytest.raises(UnsupportedModelError, match="CompiledForest"):
        skforge.load_forest(model)


def test_both_zeros_among_targets_are_refused():
    X = np.arange(20.0)[:, None]
    y = np.where(X[:, 0] % 2, 0.0, -0.0)
    model = KINDS[0](3, max_samples_leaf=None).fit(X, y)
    with pytest.raises(UnsupportedModelError, match=r"-0\.0"):
        CompiledForest(model).fit(X)


def test_trains_the_model_itself(fitted):
    _, _, X = fitted
    fast = plain(KINDS[1](5, random_state=0)).fit(X, X[:, 0])
    same(fast.predict(X, quantiles=0.9), fast.estimator_.predict(X, quantiles=0.9))


def test_another_fit_is_noticed(fitted):
    model, _, X = fitted
    model = pickle.loads(pickle.dumps(model))
    fast = plain(model).fit(X)
    model.fit(X, -X[:, 0])
    with pytest.raises(InvalidModelError, match="changed"):
        fast.predict(X, oob_score=True)


def test_warm_up_compiles_what_calls_need(fitted):
    model, _, X = fitted
    fast = plain(model).fit(X).warm_up()
    same(fast.predict(X), model.predict(X))
