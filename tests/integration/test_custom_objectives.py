"""Objectives of the user's own: margins are exact, and the rest is the library's."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from sklearn.datasets import make_classification

import skforge
from skforge import compile_forest
from tests.plain import plain

xgb = pytest.importorskip("xgboost")
lgb = pytest.importorskip("lightgbm")
pd = pytest.importorskip("pandas")

X, Y = make_classification(
    300, 6, n_classes=3, n_informative=4, n_redundant=0, random_state=0
)
X = X.astype(np.float32)
TWO = (Y > 0).astype(int)


def squared(target, margin):
    return margin - target, np.ones_like(margin)


def logistic(target, margin):
    p = 1 / (1 + np.exp(-margin))
    return p - target, p * (1 - p)


def softmax(target, margin):
    p = np.exp(margin - margin.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    one = np.eye(3)[np.asarray(target).astype(int)]
    return p - one, np.maximum(2 * p * (1 - p), 1e-6)


FEW = {"n_estimators": 4, "max_depth": 3, "n_jobs": 1}
LIGHT = {**FEW, "verbose": -1}
MODELS = {
    "xgb-regressor": lambda: xgb.XGBRegressor(objective=squared, **FEW).fit(X, Y),
    "xgb-two": lambda: xgb.XGBClassifier(objective=logistic, **FEW).fit(X, TWO),
    "xgb-three": lambda: xgb.XGBClassifier(objective=softmax, **FEW).fit(X, Y),
    "lgbm-regressor": lambda: lgb.LGBMRegressor(objective=squared, **LIGHT).fit(X, Y),
    "lgbm-two": lambda: lgb.LGBMClassifier(objective=logistic, **LIGHT).fit(X, TWO),
    "lgbm-three": lambda: lgb.LGBMClassifier(objective=softmax, **LIGHT).fit(X, Y),
    "lgbm-frame": lambda: lgb.LGBMClassifier(objective=logistic, **LIGHT).fit(
        pd.DataFrame(X, columns=list("abcdef")), TWO
    ),
}


def answer(call, *args):
    """Return dtype, shape and bits of an answer, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = call(*args)
    told = [(w.category, str(w.message)) for w in caught]
    return found.dtype, found.shape, found.tobytes(), told


@pytest.fixture(params=MODELS)
def model(request):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MODELS[request.param]()


def margins(model, rows):
    if isinstance(model, xgb.XGBModel):
        return model.predict(rows, output_margin=True)
    return model.predict(rows, raw_score=True)


@pytest.mark.sampled(3)
def test_answers_and_warnings_are_the_models(model, tmp_path):
    rows = pd.DataFrame(X, columns=list("abcdef"))
    compiled = plain(model).fit(rows)
    skforge.save(compiled, tmp_path / "a.skforge")
    forms = (
        [rows, rows[:1]] if hasattr(model, "feature_names_in_") else [X, X[:1], rows]
    )
    for one in (
        compiled,
        pickle.loads(pickle.dumps(compiled)),
        skforge.load(tmp_path / "a.skforge"),
        compiled.drop_estimator(),
    ):
        for form in forms:
            for _ in range(5):  # what is called often is compiled
                for name in ("predict", "predict_proba"):
                    assert hasattr(one, name) == hasattr(model, name)
                    if hasattr(model, name):
                        expected = answer(getattr(model, name), form)
                        assert answer(getattr(one, name), form) == expected
                assert answer(one.predict_raw, form) == answer(margins, model, form)
            assert hasattr(one, "apply") == hasattr(model, "apply")
            if hasattr(model, "apply"):
                assert answer(one.apply, form) == answer(model.apply, form)


def test_it_is_trained(model):
    compiled = plain(type(model)(**model.get_params()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled.fit(X, TWO if model.objective is logistic else Y)
    found = compiled.predict_raw(X)
    assert found.tobytes() == margins(compiled.estimator_, X).tobytes()


@pytest.mark.sampled(3)
def test_boosters_and_files(model, tmp_path):
    rows = pd.DataFrame(X, columns=list("abcdef"))
    if isinstance(model, xgb.XGBModel):
        booster, file = model.get_booster(), tmp_path / "model.json"
        values = booster.predict(xgb.DMatrix(X))
    else:
        booster, file = model.booster_, tmp_path / "model.txt"
        values = booster.predict(X)
    booster.save_model(file)
    for source in (booster, file):
        module = compile_forest(source)
        assert module.predict(X).tobytes() == values.tobytes()
        assert module.predict_raw(X).tobytes() == margins(model, rows).tobytes()
        compiled = plain(source).fit(X)
        assert compiled.predict_raw(X).tobytes() == margins(model, rows).tobytes()


def test_a_logger_of_ones_own_is_told():
    class Logger:
        said = []  # noqa: RUF012

        def info(self, text):
            pass

        def warning(self, text):
            self.said.append(text)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MODELS["lgbm-two"]()
        compiled = plain(model).fit(X)
    before = lgb.basic._LOGGER
    lgb.register_logger(Logger())
    try:
        model.predict(X)
        compiled.predict(X)
    finally:
        lgb.register_logger(before)
    assert len(Logger.said) == 2
    assert Logger.said[0] == Logger.said[1]
