"""Forests that answer with what their leaves hold: quantiles and survival curves.

Of quantile-forest and scikit-survival, with all arguments: the libraries' bits.
"""

from __future__ import annotations

import pickle
from importlib.util import find_spec
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy.sparse import csr_matrix
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

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

QUANTILES = (
    quantile_forest.RandomForestQuantileRegressor,
    quantile_forest.ExtraTreesQuantileRegressor,
)
INTERPOLATIONS = ["linear", "lower", "higher", "midpoint", "nearest"]
#: Its releases take one release of scikit-learn, so that it is not always there.
needs_sksurv = pytest.mark.skipif(not find_spec("sksurv"), reason="needs sksurv")
SURVIVAL: tuple[Any, ...] = ()
if find_spec("sksurv"):
    from sksurv import ensemble, tree

    SURVIVAL = (
        ensemble.RandomSurvivalForest,
        ensemble.ExtraSurvivalTrees,
        tree.SurvivalTree,
        tree.ExtraSurvivalTree,
    )
CURVES = "predict_cumulative_hazard_function", "predict_survival_function"


def drawn_quantiles(seed):
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
    kind = QUANTILES[int(draw.integers(2))]
    if kind is QUANTILES[1] and draw.random() < 0.5:
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


def check_quantiles(seed):
    draw, model, X, rows = drawn_quantiles(seed)
    fast = plain(model).fit(X)
    for query in queries(draw):
        for part in (rows, rows[:1], X):
            same(fast.predict(part, **query), model.predict(part, **query))


def outcomes(draw, risk):
    event, censored = draw.exponential(np.exp(risk)) + 0.01, draw.exponential(2.0)
    times = np.minimum(event, censored)
    if draw.random() < 0.5:
        times = np.round(times, 1) + 0.1
    happened = event <= censored
    happened[:2] = True, False
    times[1] += 0.5  # of one time alone the library predicts nothing
    rows = list(zip(happened, times, strict=True))
    return np.array(rows, dtype=[("event", bool), ("time", float)])


def drawn_survival(seed):
    draw = np.random.default_rng(seed)
    n, n_features = int(draw.integers(12, 150)), int(draw.integers(1, 5))
    X = draw.normal(size=(n, n_features)).astype(np.float32)
    kind = SURVIVAL[int(draw.choice(4, p=[0.4, 0.3, 0.2, 0.1]))]
    params = {
        "min_samples_leaf": int(draw.integers(1, 8)),
        "max_depth": draw.choice([None, 0, 3]) or None,
        "low_memory": bool(draw.random() < 0.25),
        "random_state": int(seed),
    }
    if kind in SURVIVAL[:2]:
        params["n_estimators"] = int(draw.choice([1, 2, 9, 40]))
    if draw.random() < 0.4:
        X[draw.random(X.shape) < 0.1] = np.nan
    model = kind(**params).fit(X, outcomes(draw, np.nan_to_num(X[:, 0])))
    rows = draw.normal(size=(int(draw.integers(1, 40)), n_features))
    if np.isnan(X).any():
        rows[draw.random(rows.shape) < 0.1] = np.nan
    return model, X, rows.astype(np.float32)


def check_survival(seed):
    model, X, rows = drawn_survival(seed)
    fast = plain(model).fit(X)
    for part in (rows, rows[:1], X, X[:2]):
        same(fast.predict(part), model.predict(part))
        for name in CURVES:
            ours, theirs = getattr(fast, name), getattr(model, name)
            if model.low_memory:
                for curves in (ours, theirs):
                    with pytest.raises(NotImplementedError):
                        curves(part)
                continue
            same(ours(part, return_array=True), theirs(part, return_array=True))
            assert (ours(part) == theirs(part)).all()


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    "check", [check_quantiles, pytest.param(check_survival, marks=needs_sksurv)]
)
@pytest.mark.parametrize(
    "seed",
    [*range(8), *(pytest.param(n, marks=pytest.mark.slow) for n in range(100, 400))],
)
def test_random_models(check, seed):
    check(seed)


@pytest.mark.parametrize("limit", ["NARROW", "MOST_COUNTED"])
def test_many_targets_or_samples_have_wide_places(limit, monkeypatch):
    monkeypatch.setattr(samples, limit, 4)
    for seed in (1, 3):
        check_quantiles(seed)


# ------------------------------------------------------------ all of them

MODELS = {
    "one sample": QUANTILES[0](15, max_samples_leaf=1, random_state=0),
    "all samples": QUANTILES[0](15, max_samples_leaf=None, random_state=0),
    "survival": SURVIVAL[0](12, random_state=0) if SURVIVAL else None,
}
#: What quantile forests and survival forests are asked.
OF_QUANTILES = [("predict", {}), ("predict", {"quantiles": [0.1, 0.5, 0.9]})]
OF_TIMES = [("predict", {}), *((name, {"return_array": True}) for name in CURVES)]


@pytest.fixture(scope="module", params=MODELS)
def fitted(request):
    if MODELS[request.param] is None:
        pytest.skip("needs sksurv")
    draw = np.random.default_rng(0)
    X = draw.normal(size=(250, 3)).astype(np.float32)
    survives = request.param == "survival"
    y = outcomes(draw, X[:, 0]) if survives else X[:, 0] + draw.normal(size=250)
    model = MODELS[request.param].fit(X, y)
    made = {"model": model, "fast": plain(model).fit(X), "X": X, "y": y}
    asks = OF_TIMES if survives else OF_QUANTILES
    return SimpleNamespace(**made, asks=asks, survives=survives)


def assert_alike(fast, model, asks, rows, *others):
    """Compare answers to the rows, and to other forms of them."""
    for name, how in asks:
        expected = getattr(model, name)(rows, **how)
        for form in (rows, *others):
            same(getattr(fast, name)(form, **how), expected)


def again(model):
    file = BytesIO()
    skforge.save(model, file)
    file.seek(0)
    return skforge.load(file)


def test_kernels_answer_and_not_the_library(fitted):
    fast = fitted.fast
    before = fast.counters()["kernel"]["calls"]
    for name, how in fitted.asks:
        getattr(fast, name)(fitted.X, **how)
    assert fast.counters()["kernel"]["calls"] == before + len(fitted.asks)
    assert fast.counters()["library"]["calls"] == 0


def test_frames_lists_threads_and_blocks(fitted, monkeypatch):
    model, X = fitted.model, fitted.X
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    named = type(model)(5, random_state=0).fit(frame, fitted.y)
    of_names = plain(named, n_jobs=2).fit(frame)
    assert_alike(of_names, named, fitted.asks, pd.concat([frame] * 10))
    assert of_names.predict({"a": 0.5, "b": 0.1, "c": 0.0}).shape == (1,)
    assert_alike(fitted.fast, model, fitted.asks, X, X.tolist(), X.astype(np.float64))
    # quantile-forest itself cannot take the length of sparse rows
    same(fitted.fast.predict(csr_matrix(X)), model.predict(X))
    monkeypatch.setattr("skforge.prediction.of_leaves._BLOCK", 100)
    assert_alike(fitted.fast, model, fitted.asks, X)


def test_pickles_and_files(fitted):
    alone = fitted.fast.drop_estimator()
    unpickled = [pickle.loads(pickle.dumps(one)) for one in (fitted.fast, alone)]
    for other in (*unpickled, alone, again(fitted.fast)):
        for rows in (fitted.X, fitted.X[:1]):
            assert_alike(other, fitted.model, fitted.asks, rows)


def test_a_file_needs_neither_the_library_nor_scikit_learn(fitted, tmp_path):
    skforge.save(fitted.fast, tmp_path / "model.skforge")
    name, how = fitted.asks[-1]
    np.savez(
        tmp_path / "rows.npz",
        X=fitted.X,
        expected=getattr(fitted.model, name)(fitted.X, **how),
    )
    program = f"""if True:
        import sys
        for name in ("quantile_forest", "sksurv", "sklearn"):
            sys.modules[name] = None
        import numpy as np, skforge
        fast, rows = skforge.load("model.skforge"), np.load("rows.npz")
        answer = fast.{name}(rows["X"], **{how})
        assert np.array_equal(answer, rows["expected"])
        if {fitted.survives}:
            try:
                fast.{name}(rows["X"])
            except skforge.SourceNeededError as error:
                assert "return_array=True" in str(error)
            else:
                raise AssertionError
    """
    run_python(program, cwd=tmp_path)


def test_damaged_leaves_are_refused(fitted):
    alone = fitted.fast.drop_estimator()
    payload = alone._stored.leaves
    if fitted.survives:
        payload["hazard"] = payload["hazard"][:-1]
    else:
        payload["places"] = payload["places"] + np.int32(10**6)
    with pytest.raises(InvalidModelError):
        again(alone)


def test_inside_a_pipeline(fitted):
    inner = type(fitted.model)(8, random_state=0)
    model = make_pipeline(StandardScaler(), inner).fit(fitted.X, fitted.y)
    with pytest.warns(PerformanceWarning, match="standardscaler"):
        fast = plain(model).fit(fitted.X)
    assert_alike(fast, model, fitted.asks, fitted.X)
    assert fast.counters()["library"]["calls"] == 0


def test_trains_the_model_itself_and_warms_up(fitted):
    fast = plain(type(fitted.model)(5, random_state=0)).fit(fitted.X, fitted.y)
    assert_alike(fast.warm_up(), fast.estimator_, fitted.asks, fitted.X)


def test_exports_are_refused(fitted, tmp_path):
    with pytest.raises(UnsupportedModelError, match="leaves"):
        skforge.export(fitted.fast, tmp_path / "exported")
    with pytest.raises(UnsupportedModelError, match="CompiledForest"):
        skforge.load_forest(fitted.model)


# ------------------------------------------------------------ quantiles


@pytest.fixture
def quantiles():
    X = np.random.default_rng(0).normal(size=(90, 3)).astype(np.float32)
    model = QUANTILES[0](5, max_samples_leaf=None, random_state=0).fit(X, X[:, 0])
    return model, plain(model).fit(X), X


def test_what_only_the_library_computes(quantiles):
    model, fast, X = quantiles
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
    for predict in (model.predict, fast.predict):
        with pytest.raises(ValueError, match="0 sample"):
            predict(X[:0])
    alone = fast.drop_estimator()
    with pytest.raises(SourceNeededError, match="oob_score"):
        alone.predict(X, oob_score=True)
    with pytest.raises(InvalidInputError, match="from 0 to 1"):
        alone.predict(X, quantiles=3)
    for explain in (fast.predict_contribs, fast.predict_per_tree):
        with pytest.raises(UnsupportedModelError, match="than sums of its trees"):
            explain(X)
    assert_array_equal(fast.apply(X), model.apply(X))


def test_default_quantiles_may_change_later(quantiles):
    model, fast, X = quantiles
    model.set_params(default_quantiles=[0.2, 0.7])
    same(fast.predict(X), model.predict(X))


def test_another_fit_is_noticed(quantiles):
    model, fast, X = quantiles
    model.fit(X, -X[:, 0])
    with pytest.raises(InvalidModelError, match="changed"):
        fast.predict(X, oob_score=True)


def test_around_a_target_that_is_transformed(quantiles):
    model, _, X = quantiles
    turn = {"func": np.negative, "inverse_func": np.negative}
    around = TransformedTargetRegressor(model, **turn).fit(X, X[:, 0])
    same(plain(around).fit(X).predict(X), around.predict(X))


def test_both_zeros_among_targets_are_refused():
    X = np.arange(20.0)[:, None]
    y = np.where(X[:, 0] % 2, 0.0, -0.0)
    model = QUANTILES[0](3, max_samples_leaf=None).fit(X, y)
    with pytest.raises(UnsupportedModelError, match=r"-0\.0"):
        CompiledForest(model).fit(X)


# ------------------------------------------------------------ survival


@pytest.fixture
def risks():
    pytest.importorskip("sksurv")
    draw = np.random.default_rng(0)
    X = draw.normal(size=(90, 3)).astype(np.float32)
    y = outcomes(draw, X[:, 0])
    model = SURVIVAL[0](5, random_state=0).fit(X, y)
    return model, plain(model).fit(X), X, y


def test_functions_are_the_librarys(risks):
    model, fast, X, y = risks
    theirs = model.predict_survival_function(X[:3])
    for one in (fast, fast.drop_estimator()):
        assert_array_equal(one.unique_times_, model.unique_times_)
        ours = one.predict_survival_function(X[:3])
        assert (ours[0].y == theirs[0].y).all()
    ours = fast.predict_survival_function(X[:3])
    assert type(ours[0]) is type(theirs[0])
    assert_array_equal(ours[0](model.unique_times_), theirs[0](model.unique_times_))
    assert ours[1].domain == theirs[1].domain
    assert fast.score(X, y) == model.score(X, y)
    sums = fast.predict_contribs(X).sum(axis=1)
    np.testing.assert_allclose(sums, model.predict(X), rtol=1e-9)


def test_files_of_little_memory_have_risks_alone(risks):
    _, _, X, y = risks
    model = SURVIVAL[0](5, low_memory=True, random_state=0).fit(X, y)
    alone = plain(model).fit(X).drop_estimator()
    same(alone.predict(X), model.predict(X))
    with pytest.raises(AttributeError):
        alone.predict_survival_function(X)


def test_one_time_alone_is_refused(risks):
    _, _, X, y = risks
    y["time"] = 1.0
    model = SURVIVAL[0](2, random_state=0).fit(X, y)
    with pytest.raises(IndexError):
        model.predict(X)
    with pytest.raises(UnsupportedModelError, match="one time"):
        plain(model).fit(X)
