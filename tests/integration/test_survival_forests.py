"""Survival forests of scikit-survival: the library's bits of risks and curves."""

from __future__ import annotations

import pickle
from io import BytesIO

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import skforge
from skforge.exceptions import (
    InvalidModelError,
    PerformanceWarning,
    UnsupportedModelError,
)
from tests.plain import plain
from tests.programs import run_python
from tests.sklearn_rows import same_bits as same

ensemble = pytest.importorskip("sksurv.ensemble")
trees = pytest.importorskip("sksurv.tree")

KINDS = (
    ensemble.RandomSurvivalForest,
    ensemble.ExtraSurvivalTrees,
    trees.SurvivalTree,
    trees.ExtraSurvivalTree,
)
CURVES = "predict_cumulative_hazard_function", "predict_survival_function"


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


def drawn(seed):
    draw = np.random.default_rng(seed)
    n, n_features = int(draw.integers(12, 150)), int(draw.integers(1, 5))
    X = draw.normal(size=(n, n_features)).astype(np.float32)
    kind = KINDS[int(draw.choice(4, p=[0.4, 0.3, 0.2, 0.1]))]
    params = {
        "min_samples_leaf": int(draw.integers(1, 8)),
        "max_depth": draw.choice([None, 0, 3]) or None,
        "low_memory": bool(draw.random() < 0.25),
        "random_state": int(seed),
    }
    if kind in KINDS[:2]:
        params["n_estimators"] = int(draw.choice([1, 2, 9, 40]))
    if draw.random() < 0.4:
        X[draw.random(X.shape) < 0.1] = np.nan
    model = kind(**params).fit(X, outcomes(draw, np.nan_to_num(X[:, 0])))
    rows = draw.normal(size=(int(draw.integers(1, 40)), n_features))
    if np.isnan(X).any():
        rows[draw.random(rows.shape) < 0.1] = np.nan
    return model, X, rows.astype(np.float32)


def check(seed):
    model, X, rows = drawn(seed)
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


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(8))
def test_random_models(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 400))
def test_many_random_models(seed):
    check(seed)


@pytest.fixture(scope="module")
def fitted():
    draw = np.random.default_rng(0)
    X = draw.normal(size=(200, 3)).astype(np.float32)
    y = outcomes(draw, X[:, 0])
    model = KINDS[0](12, random_state=0).fit(X, y)
    return model, plain(model).fit(X), X, y


def test_kernels_answer_and_not_the_library(fitted):
    _, fast, X, _ = fitted
    before = fast.counters()["kernel"]["calls"]
    fast.predict(X)
    fast.predict(X[:1])
    fast.predict_survival_function(X, return_array=True)
    assert fast.counters()["kernel"]["calls"] == before + 3
    assert fast.counters()["library"]["calls"] == 0


def test_functions_are_the_librarys(fitted):
    model, fast, X, _ = fitted
    ours = fast.predict_survival_function(X[:3])
    theirs = model.predict_survival_function(X[:3])
    assert type(ours[0]) is type(theirs[0])
    assert_array_equal(ours[0](model.unique_times_), theirs[0](model.unique_times_))
    assert ours[1].domain == theirs[1].domain
    assert fast.score(X, fitted[3]) == model.score(X, fitted[3])


def test_frames_lists_threads_and_blocks(fitted, monkeypatch):
    import pandas as pd

    model, fast, X, y = fitted
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    named = KINDS[1](5, random_state=0).fit(frame, y)
    of_names = plain(named, n_jobs=2).fit(frame)
    many = pd.concat([frame] * 10)
    for name in ("predict", *CURVES):
        how = {} if name == "predict" else {"return_array": True}
        same(getattr(of_names, name)(many, **how), getattr(named, name)(many, **how))
        same(getattr(fast, name)(X.tolist(), **how), getattr(model, name)(X, **how))
        monkeypatch.setattr("skforge.prediction.of_leaves._BLOCK", 1000)
        same(getattr(fast, name)(X, **how), getattr(model, name)(X, **how))


def test_pickles_and_files(fitted):
    model, fast, X, _ = fitted
    alone, file = fast.drop_estimator(), BytesIO()
    skforge.save(fast, file)
    file.seek(0)
    again = pickle.loads(pickle.dumps(fast))
    for other in (again, alone, pickle.loads(pickle.dumps(alone)), skforge.load(file)):
        for rows in (X, X[:1]):
            same(other.predict(rows), model.predict(rows))
            for name in CURVES:
                curves = getattr(other, name)(rows, return_array=True)
                same(curves, getattr(model, name)(rows, return_array=True))
        assert_array_equal(other.unique_times_, model.unique_times_)
        assert (other.predict_survival_function(X[:2])[0].y == curves[0]).all()


def test_files_of_little_memory_have_risks_alone(fitted):
    _, _, X, y = fitted
    model = KINDS[0](5, low_memory=True, random_state=0).fit(X, y)
    alone = plain(model).fit(X).drop_estimator()
    same(alone.predict(X), model.predict(X))
    with pytest.raises(AttributeError):
        alone.predict_survival_function(X)


def test_a_file_needs_neither_the_library_nor_scikit_learn(fitted, tmp_path):
    model, fast, X, _ = fitted
    skforge.save(fast, tmp_path / "model.skforge")
    np.save(tmp_path / "rows.npy", X)
    curves = model.predict_survival_function(X, return_array=True)
    np.save(tmp_path / "expected.npy", curves)
    program = """if True:
        import sys
        sys.modules["sksurv"] = sys.modules["sklearn"] = None
        import numpy as np, skforge
        fast, rows = skforge.load("model.skforge"), np.load("rows.npy")
        curves = fast.predict_survival_function(rows, return_array=True)
        assert np.array_equal(curves, np.load("expected.npy"))
        try:
            fast.predict_survival_function(rows)
        except skforge.SourceNeededError as error:
            assert "return_array=True" in str(error)
        else:
            raise AssertionError
    """
    run_python(program, cwd=tmp_path)


def test_damaged_curves_are_refused(fitted):
    _, fast, _, _ = fitted
    alone, file = fast.drop_estimator(), BytesIO()
    payload = alone._stored.leaves
    payload["hazard"] = payload["hazard"][:-1]
    skforge.save(alone, file)
    file.seek(0)
    with pytest.raises(InvalidModelError):
        skforge.load(file)


def test_inside_a_pipeline(fitted):
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    _, _, X, y = fitted
    model = make_pipeline(StandardScaler(), KINDS[0](6, random_state=0)).fit(X, y)
    with pytest.warns(PerformanceWarning, match="standardscaler"):
        fast = plain(model).fit(X)
    same(fast.predict(X), model.predict(X))
    curves = fast.predict_survival_function(X, return_array=True)
    same(curves, model.predict_survival_function(X, return_array=True))
    assert fast.counters()["library"]["calls"] == 0


def test_contributions_explain_risks_and_exports_are_refused(fitted, tmp_path):
    model, fast, X, _ = fitted
    sums = fast.predict_contribs(X).sum(axis=1)
    np.testing.assert_allclose(sums, model.predict(X), rtol=1e-9)
    with pytest.raises(UnsupportedModelError, match="leaves"):
        skforge.export(fast, tmp_path / "exported")
    with pytest.raises(UnsupportedModelError, match="CompiledForest"):
        skforge.load_forest(model)


def test_one_time_alone_is_refused(fitted):
    _, _, X, y = fitted
    y = y.copy()
    y["time"] = 1.0
    model = KINDS[0](2, random_state=0).fit(X, y)
    with pytest.raises(IndexError):
        model.predict(X)
    with pytest.raises(UnsupportedModelError, match="one time"):
        plain(model).fit(X)


def test_trains_the_model_itself(fitted):
    _, _, X, y = fitted
    fast = plain(KINDS[1](4, random_state=0)).fit(X, y)
    same(fast.predict(X), fast.estimator_.predict(X))
