"""Contributions beside those of every source that keeps covers, and a float64 truth.

XGBoost adds in float32 and divides terms again that it has multiplied, so that its
values are off by more than ours; LightGBM and shap add in float64.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingRegressor,
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.tree import (
    DecisionTreeClassifier,
    DecisionTreeRegressor,
    ExtraTreeRegressor,
)

from skforge import UnsupportedModelError, compile_forest, load_forest
from tests.oracles.shap_values import shap_values

N = 200
RNG = np.random.default_rng(0)
FULL = RNG.normal(size=(N, 5)).astype(np.float32)
HOLES = np.where(RNG.random(FULL.shape) < 0.1, np.nan, FULL).astype(np.float32)
Y = (FULL[:, 0] + FULL[:, 1] * FULL[:, 2] + RNG.normal(size=N) / 9).astype(float)
UP = Y > 0
CLASSES = np.digitize(Y, [-1, 0.5])
TARGETS = np.stack([Y, FULL[:, 3] - Y**2 / 3, Y * FULL[:, 4]], axis=1)
WEIGHT = RNG.random(N) * (RNG.random(N) < 0.8)
LABELS = pd.DataFrame(
    {
        "a": FULL[:, 0],
        "c": pd.Categorical(RNG.integers(0, 8, N)),
        "d": pd.Categorical(RNG.integers(0, 3, N)),
        "e": HOLES[:, 1],
    }
)
CODES = LABELS.assign(c=LABELS.c.cat.codes, d=LABELS.d.cat.codes).to_numpy(np.float64)
OF_LABELS = Y + np.array([0, 3, -2, 1, 0, 2, -1, 5])[LABELS.c.cat.codes]


def truth(forest, rows):
    """Return the SHAP values by their definition."""
    found = shap_values(forest, rows).astype(float)
    return found[:, 0] if forest.n_outputs == 1 else found


def compiled(model):
    return compile_forest(load_forest(model))


def near(found, expected, share):
    """Compare to a share of a row's sum of absolute contributions."""
    assert found.shape == expected.shape
    scale = np.abs(expected).sum(axis=-1, keepdims=True)
    assert (np.abs(found - expected) <= share * scale + 1e-300).all()


# ------------------------------------------------------------ XGBoost

DEPTH = {"max_depth": 4, "learning_rate": 0.5, "nthread": 1}
RANDOM = {"num_parallel_tree": 3, "subsample": 0.5}
SOFT = {"objective": "multi:softprob", "num_class": 3}
XGBOOST = {
    "squared": ({}, HOLES, {"label": Y}),
    "base score": ({"base_score": 100.0}, HOLES, {"label": Y}),
    "logistic": ({"objective": "binary:logistic"}, HOLES, {"label": UP}),
    "prior": (
        {"objective": "binary:logistic", "base_score": 0.1},
        HOLES,
        {"label": UP},
    ),
    "classes": (SOFT, HOLES, {"label": CLASSES}),
    "dart": ({"booster": "dart", "rate_drop": 0.5}, HOLES, {"label": Y}),
    "dart classes": (
        {"booster": "dart", "rate_drop": 0.5, **SOFT},
        HOLES,
        {"label": CLASSES},
    ),
    "forest": (RANDOM, FULL, {"label": Y}),
    "forests of classes": ({**RANDOM, **SOFT}, FULL, {"label": CLASSES}),
    "targets": ({}, HOLES, {"label": TARGETS}),
    "ranking": (
        {"objective": "rank:pairwise"},
        HOLES,
        {"label": CLASSES, "group": [20] * 10},
    ),
    "counts": ({"objective": "count:poisson"}, FULL, {"label": np.exp(Y).round()}),
    "gamma": ({"objective": "reg:gamma"}, FULL, {"label": np.exp(Y)}),
    "hazard": ({"objective": "survival:cox"}, FULL, {"label": np.exp(Y)}),
    "survival": (
        {"objective": "survival:aft"},
        FULL,
        {"label_lower_bound": np.exp(Y), "label_upper_bound": np.exp(Y) + 1},
    ),
    "quantiles": (
        {"objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.9]},
        FULL,
        {"label": Y},
    ),
    "sets": ({"max_cat_to_onehot": 1}, LABELS, {"label": OF_LABELS}),
    "one label": ({"max_cat_to_onehot": 20}, LABELS, {"label": OF_LABELS}),
    "weights": ({}, HOLES, {"label": Y, "weight": WEIGHT}),
    "lossguide": (
        {"grow_policy": "lossguide", "max_leaves": 16, "max_depth": 0},
        HOLES,
        {"label": Y},
    ),
    "stumps": ({"max_depth": 1}, HOLES, {"label": Y}),
    "leaves": ({"gamma": 1e9}, HOLES, {"label": Y}),
    "no trees": ({"rounds": 0}, HOLES, {"label": Y}),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", XGBOOST)
def test_xgboost(name):
    params, rows, labels = XGBOOST[name]
    params = {**DEPTH, **params}
    rounds = params.pop("rounds", 6)
    data = xgboost.DMatrix(rows, enable_categorical=True, **labels)
    model = xgboost.train(params, data, rounds)
    theirs = model.predict(data, pred_contribs=True)
    fast = compiled(model)
    rows = CODES if rows is LABELS else rows
    ours = fast.predict_contribs(rows)
    assert ours.dtype == theirs.dtype == np.float32
    exact = truth(fast.forest, rows)
    near(ours, exact, 3e-7)
    near(theirs, exact, 1e-5)
    margin = model.predict(data, output_margin=True)
    scale = np.abs(exact).sum(axis=-1)
    assert (np.abs(ours.sum(axis=-1) - margin) <= 1e-6 * scale).all()


@pytest.mark.parametrize("objective", ["reg:squarederror", "multi:softprob"])
def test_xgboost_vector_leaves_which_it_does_not_explain(objective):
    xgboost = pytest.importorskip("xgboost", "3.0")
    params = {**DEPTH, "multi_strategy": "multi_output_tree", "objective": objective}
    label = TARGETS
    if objective == "multi:softprob":
        params["num_class"], label = 3, CLASSES
    data = xgboost.DMatrix(FULL, label)
    model = xgboost.train({**params, "tree_method": "hist"}, data, 5)
    fast = compiled(model)
    near(fast.predict_contribs(FULL), truth(fast.forest, FULL), 3e-7)


def test_xgboost_estimators_and_files(tmp_path):
    rows = np.nan_to_num(HOLES, nan=-9.0)
    model = xgboost.XGBClassifier(n_estimators=5, max_depth=3, missing=-9.0)
    model.fit(rows, CLASSES)
    data = xgboost.DMatrix(rows, missing=-9.0)
    theirs = model.get_booster().predict(data, pred_contribs=True)
    near(compiled(model).predict_contribs(rows), theirs, 1e-5)
    model.save_model(tmp_path / "model.ubj")
    found = compiled(tmp_path / "model.ubj").predict_contribs(HOLES)
    near(found, theirs, 1e-5)


@pytest.mark.filterwarnings("ignore:.*updater")
@pytest.mark.parametrize("n_rows", [1, 7])
def test_xgboost_trees_refreshed_on_rows_that_miss_nodes(n_rows):
    model = xgboost.train(DEPTH, xgboost.DMatrix(HOLES, Y), 5)
    few = xgboost.DMatrix(HOLES[:n_rows], Y[:n_rows])
    refresh = {"process_type": "update", "updater": "refresh", "refresh_leaf": False}
    model = xgboost.train({**DEPTH, **refresh}, few, 5, xgb_model=model)
    data = xgboost.DMatrix(HOLES)
    fast = compiled(model)
    assert (fast.forest.cover == 0).sum() > 20
    ours = fast.predict_contribs(HOLES)
    try:
        near(ours, model.predict(data, pred_contribs=True), 1e-5)
    except xgboost.core.XGBoostError:  # before 3.3 its shares are 0 / 0
        assert tuple(map(int, xgboost.__version__.split(".")[:2])) < (3, 3)
    near(ours, truth(fast.forest, HOLES), 1e-6)
    margin = model.predict(data, output_margin=True)
    np.testing.assert_allclose(ours.sum(axis=1), margin, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------ LightGBM

BAGGED = {"boosting": "rf", "bagging_fraction": 0.6, "bagging_freq": 1}
SEVERAL = {"objective": "multiclass", "num_class": 3}
LIGHTGBM = {
    "squared": ({}, HOLES, Y, {}),
    "binary": ({"objective": "binary"}, HOLES, UP, {}),
    "classes": (SEVERAL, HOLES, CLASSES, {}),
    "one against all": ({**SEVERAL, "objective": "multiclassova"}, HOLES, CLASSES, {}),
    "dart": ({"boosting": "dart", "drop_rate": 0.5}, HOLES, Y, {}),
    "forest": (BAGGED, HOLES, Y, {}),
    "forest of classes": ({**BAGGED, **SEVERAL}, HOLES, CLASSES, {}),
    "goss": ({"data_sample_strategy": "goss", "learning_rate": 0.5}, HOLES, Y, {}),
    "categories": ({"min_data_per_group": 1, "cat_smooth": 1}, LABELS, OF_LABELS, {}),
    "zeros": ({"zero_as_missing": True}, np.nan_to_num(HOLES), Y, {}),
    "no missing": ({"use_missing": False}, HOLES, Y, {}),
    "weights": ({}, HOLES, Y, {"weight": WEIGHT}),
    "ranking": ({"objective": "lambdarank"}, HOLES, CLASSES, {"group": [20] * 10}),
    "counts": ({"objective": "poisson"}, FULL, np.exp(Y).round(), {}),
    "small leaves": (
        {"min_data_in_leaf": 0, "min_sum_hessian_in_leaf": 0, "num_leaves": 60},
        HOLES,
        Y,
        {},
    ),
    "leaves": ({"min_data_in_leaf": 1000}, HOLES, Y, {}),
}


def lightgbm_model(params, rows, label, **fields):
    usual = {"min_data_in_leaf": 5, "num_leaves": 15, "verbose": -1, "num_threads": 1}
    data = lightgbm.Dataset(rows, label, **fields)
    return lightgbm.train({**usual, **params}, data, 8)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", LIGHTGBM)
def test_lightgbm(name):
    params, rows, label, fields = LIGHTGBM[name]
    model = lightgbm_model(params, rows, label, **fields)
    ours = compiled(model).predict_contribs(CODES if rows is LABELS else rows)
    assert ours.dtype == np.float64
    theirs = model.predict(rows, pred_contrib=True)
    near(ours, theirs.reshape(ours.shape), 1e-14)
    raw = model.predict(rows, raw_score=True)  # sums also of averaged forests
    np.testing.assert_allclose(ours.sum(axis=-1), raw, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("counts", ["leaf", "internal"])
def test_lightgbm_nodes_without_rows(counts):
    model = lightgbm_model({}, HOLES, Y)
    lines = []
    for line in model.model_to_string().splitlines():
        name, _, values = line.partition("=")
        if name == "tree_sizes":
            continue
        if name == f"{counts}_count":
            first, second, *others = values.split()
            zeros = ["0", second] if counts == "leaf" else [first, "0"]
            line = f"{name}={' '.join([*zeros, *others])}"
        lines.append(line)
    model = lightgbm.Booster(model_str="\n".join(lines))
    theirs = model.predict(HOLES, pred_contrib=True)
    finite = np.isfinite(theirs).all(axis=1)  # its shares are 0 / 0 in other rows
    assert not finite.all()
    fast = compiled(model)
    ours = fast.predict_contribs(HOLES)
    near(ours, truth(fast.forest, HOLES), 1e-14)
    if counts == "leaf":
        near(ours[finite], theirs[finite], 1e-14)
    raw = model.predict(HOLES, raw_score=True)
    np.testing.assert_allclose(ours.sum(axis=1), raw, rtol=1e-12, atol=1e-13)


# ------------------------------------------------------------ scikit-learn

SHALLOW = {"max_depth": 4, "random_state": 0}
FOREST = {"n_estimators": 5, **SHALLOW}
SKLEARN = {
    "forest": (RandomForestRegressor(**FOREST), HOLES, Y),
    "targets": (RandomForestRegressor(**FOREST), FULL, TARGETS),
    "poisson": (RandomForestRegressor(**FOREST, criterion="poisson"), FULL, Y**2),
    "extra trees": (ExtraTreesRegressor(**FOREST, bootstrap=True), HOLES, Y),
    "tree": (DecisionTreeRegressor(random_state=0), HOLES, Y),
    "extra tree": (ExtraTreeRegressor(**SHALLOW), FULL, TARGETS),
    "boosting": (GradientBoostingRegressor(n_estimators=5), FULL, Y),
    "huber": (GradientBoostingRegressor(n_estimators=5, loss="huber"), FULL, Y),
    "histograms": (HistGradientBoostingRegressor(max_iter=5), HOLES, Y),
    "gamma": (HistGradientBoostingRegressor(max_iter=5, loss="gamma"), HOLES, Y**2),
    "two classes": (RandomForestClassifier(**FOREST), HOLES, UP),
    "three classes": (RandomForestClassifier(**FOREST), FULL, CLASSES),
    "balanced": (
        ExtraTreesClassifier(**FOREST, class_weight="balanced"),
        FULL,
        CLASSES,
    ),
    "one class": (RandomForestClassifier(**FOREST), FULL, np.zeros(N)),
    "tree of classes": (DecisionTreeClassifier(**SHALLOW), HOLES, CLASSES),
    "boosted classes": (GradientBoostingClassifier(n_estimators=5), FULL, UP),
    "histograms of two": (HistGradientBoostingClassifier(max_iter=5), HOLES, UP),
    "histograms of three": (HistGradientBoostingClassifier(max_iter=5), HOLES, CLASSES),
    "leaf": (DecisionTreeClassifier(min_samples_leaf=N), FULL, CLASSES),
}


def of_shap(model, rows):
    import shap

    explainer = shap.TreeExplainer(model)
    values = np.moveaxis(explainer.shap_values(rows), 1, -1)
    bias = np.reshape(explainer.expected_value, (*values.shape[1:-1], 1))
    bias = np.broadcast_to(bias, (*values.shape[:-1], 1))
    return np.concatenate([values, bias], axis=-1)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", SKLEARN)
def test_sklearn(name):
    model, rows, label = SKLEARN[name]
    weighted = [*SKLEARN].index(name) % 2 == 0
    model.fit(rows, label, sample_weight=WEIGHT if weighted else None)
    fast = compiled(model)
    ours = fast.predict_contribs(rows)
    assert ours.dtype == np.float64
    near(ours, truth(fast.forest, rows), 1e-14)
    if find_spec("shap"):
        near(ours, of_shap(model, rows), 2e-14)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("model", "rows", "label"),
    [
        (GradientBoostingClassifier(n_estimators=3), FULL, CLASSES),
        (GradientBoostingRegressor(n_estimators=3, init="zero"), FULL, Y),
        (HistGradientBoostingRegressor(max_iter=5), LABELS, OF_LABELS),
        (RandomForestClassifier(**FOREST), FULL, np.stack([CLASSES, UP], axis=1)),
        (AdaBoostClassifier(DecisionTreeClassifier(max_depth=3)), FULL, CLASSES),
        (BaggingRegressor(max_features=0.6, n_estimators=5), FULL, Y),
    ],
    ids=["classes", "zero", "categories", "two targets", "votes", "bags"],
)
def test_sklearn_models_that_shap_misreads_or_refuses(model, rows, label):
    fast = compiled(model.fit(rows, label))
    rows = CODES if rows is LABELS else rows
    ours = fast.predict_contribs(rows)
    near(ours, truth(fast.forest, rows), 1e-14)
    raw = fast.predict_raw(rows)
    np.testing.assert_allclose(ours.sum(axis=-1), raw, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "params", [{}, {"max_features": 0.6}, {"max_samples": 50, "bootstrap": True}]
)
def test_isolation_forests_explain_the_mean_path_length(params):
    shap = pytest.importorskip("shap")
    model = IsolationForest(n_estimators=9, random_state=0, **params).fit(FULL)
    fast = compiled(model)
    ours = fast.predict_contribs(FULL)
    theirs = shap.TreeExplainer(model).shap_values(FULL, check_additivity=False)
    np.testing.assert_allclose(ours[:, :-1], theirs, rtol=0, atol=1e-13)
    paths = ours.sum(axis=1)
    np.testing.assert_allclose(paths, fast.predict_raw(FULL) / 9, rtol=1e-13)
    average = fast.forest.outputs.parameter / 9
    np.testing.assert_allclose(-(2 ** (-paths / average)), model.score_samples(FULL))


def test_negative_covers_are_refused():
    forest = compiled(DecisionTreeRegressor(max_depth=2).fit(FULL, Y)).forest
    cover = forest.cover.copy()
    cover[2] = -1.5
    with pytest.raises(UnsupportedModelError) as error:
        compile_forest(replace(forest, cover=cover)).predict_contribs(FULL)
    assert str(error.value) == (
        "node 2 of tree 0 has the cover -1.5, and path-dependent contributions need "
        "covers of at least 0; pass background rows, because contributions then need "
        "no covers."
    )
