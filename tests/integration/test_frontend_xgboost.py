"""Tests of ``unit/test_frontend_xgboost.py`` that compile or start processes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from skforge import CompiledForest
from skforge.exceptions import InvalidInputError, UnsupportedModelError
from skforge.forest.reference import reference_raw
from skforge.frontends import load_forest
from skforge.frontends.xgboost.model import forest_from_document
from tests.answers_of import apply_transform
from tests.comparing import in_every_state, saved
from tests.plain import plain
from tests.unit.test_frontend_xgboost import VERSION, N, make_rows, same_bits
from tests.unit.test_frontend_xgboost_files import DATA

xgb = pytest.importorskip("xgboost")


def test_names_that_xgboost_itself_garbles_are_no_texts_of_rows():
    pandas = pytest.importorskip("pandas")
    names = np.array(["äb", "c", "d"])[np.arange(N) % 3]
    frame = pandas.DataFrame({"a": pandas.Categorical(names), "b": np.arange(N)})
    model = xgb.XGBRegressor(n_estimators=2, enable_categorical=True)
    (known, none) = load_forest(model.fit(frame, np.arange(N) % 3)).category_names
    assert none == ()
    if VERSION >= (3, 4):
        assert known == ("c", "d", "äb")
    else:
        assert known == ("\ufffd0", "\ufffd1", "\ufffd2")
    fast = plain(model).fit(frame)
    rows = frame[:7].assign(a=frame["a"].astype(object)[:7].astype("category"))
    for X in (frame, frame[:1], rows):
        same_bits(fast.predict(X), model.predict(X))
    one = {"a": "c", "b": 1}
    if known[0] == "c":
        same_bits(fast.predict(one), model.predict(frame[1:2]))
    else:
        with pytest.raises(InvalidInputError, match="cuts the names"):
            fast.predict(one)
    with pytest.raises(Exception, match="categor"):  # numbers in place of names
        fast.predict(frame.assign(a=1.0))


def test_quantiles_that_cross_are_in_order_as_the_source_has_them():
    X, rng = make_rows()
    model = xgb.XGBRegressor(
        n_estimators=3, objective="reg:quantileerror", quantile_alpha=[0.45, 0.5, 0.55]
    ).fit(X, rng.normal(size=N))
    forest = load_forest(model)
    raw = reference_raw(forest, X)
    assert (np.diff(raw, axis=1) < 0).any()
    same_bits(raw, model.predict(X, output_margin=True))
    same_bits(apply_transform(forest, raw), model.predict(X))
    fast = CompiledForest(model).fit(X)
    for rows in (X, X[:1], X[:1], X[:1], X[:1]):  # few rows have an entry in the end
        same_bits(fast.predict(rows), model.predict(rows))
    # A file is by the version that wrote it, whatever reads it.
    document = json.loads(model.get_booster().save_raw("json"))
    for version, crossing in (([3, 3, 0], True), ([3, 4, 0], False), (None, True)):
        document["version"] = version
        value = apply_transform(forest_from_document(document), raw)
        assert (np.diff(value, axis=1) < 0).any() == crossing


def test_a_training_that_fails_leaves_classes_of_others():
    X, rng = make_rows()
    y = rng.integers(0, 3, N)
    model = xgb.XGBClassifier(n_estimators=2, max_depth=3).fit(X, y)
    model.n_classes_ = 2  # as of fit(X, y > 1), which XGBoost 3.2 refuses afterwards
    assert model.predict(X).shape == (N, 3)
    fast = plain(model).fit(X)
    for rows in (X, X[:1], X[:1], X[:1], X[:1]):
        same_bits(fast.predict(rows), model.predict(rows))
        same_bits(fast.predict_proba(rows), model.predict_proba(rows))


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({"n_classes_": 4}, "n_classes_ is 4, but its Booster has 3 outputs"),
        ({"objective": "multi:softmax"}, "objective is 'multi:softmax', but"),
    ],
)
def test_a_classifier_of_another_booster_is_refused(attributes, told):
    X, rng = make_rows()
    model = xgb.XGBClassifier(n_estimators=2).fit(X, rng.integers(0, 3, N))
    vars(model).update(attributes)
    with pytest.raises(UnsupportedModelError, match=told):
        load_forest(model)


@pytest.mark.parametrize("kind", ["quantile", "expectile"])
@pytest.mark.parametrize(
    "params",
    [
        {"alpha": 0.3},
        {"base_score": [-1.0, -1.0, 40.0]},
        {"multi_strategy": "multi_output_tree"},
        {"multi_strategy": "multi_output_tree", "booster": "dart", "rate_drop": 0.5},
        {"alpha": np.linspace(0.01, 0.99, 66).tolist(), "n_estimators": 1},
    ],
    ids=lambda params: "-".join(params),
)
@pytest.mark.skipif(VERSION < (3, 4), reason="before there were no expectiles")
def test_several_alphas_live_pickled_and_saved(kind, params, tmp_path):
    X, rng = make_rows()
    params = {"alpha": [0.1, 0.5, 0.9], "n_estimators": 5, "max_depth": 3} | params
    params[f"{kind}_alpha"] = params.pop("alpha")
    model = xgb.XGBRegressor(objective=f"reg:{kind}error", n_jobs=1, **params)
    model.fit(X, np.nan_to_num(X[:, 0]) + rng.normal(size=N))
    booster = model.get_booster()
    booster.save_model(tmp_path / "model.json")
    fast = plain(model).fit(X)
    states = in_every_state(fast, tmp_path).values()
    files = plain(booster).fit(X), plain(tmp_path / "model.json").fit(X)
    for one in (*states, *files):
        for rows in (X, *[X[:1]] * 4):  # few rows have an entry in the end
            same_bits(one.predict(rows), model.predict(rows))
            margin = model.predict(rows, output_margin=True)
            same_bits(one.predict_raw(rows), margin)
    several = {"quantile": "sorted", "expectile": "expectiles"}[kind]
    one = params[f"{kind}_alpha"] == 0.3
    assert fast.forest_.outputs.function == ("identity" if one else several)


@pytest.mark.parametrize(
    "name", ["expectile.json", "expectile.ubj", "vector-dart.json"]
)
def test_what_releases_from_3_3_train(name, tmp_path):
    """Expectiles that are sums of increments, and vector leaves with dropout."""
    expected = np.load(DATA / "3.4.1.npz")
    X = expected["X"]
    fast = plain(DATA / f"3.4.1-{name}").fit(X)
    for one in (fast, saved(fast, tmp_path)):
        same_bits(one.predict_raw(X), expected[f"3.4.1-{name}:margin"])
        for n in (len(X), *[1] * 4):  # few rows have an entry in the end
            same_bits(one.predict(X[:n]), expected[f"3.4.1-{name}:value"][:n])
