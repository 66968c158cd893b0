"""Forests of XGBoost models in memory: the same bits as XGBoost's own predictor."""

from __future__ import annotations

import json

import numpy as np
import pytest

from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.arrays import Comparison
from skforge.forest.reference import draw_rows, reference_leaves, reference_raw
from skforge.frontends import load_forest
from skforge.frontends.xgboost.model import _names_of, forest_from_document
from tests.answers_of import apply_transform, predict_proba
from tests.outputs_of import XGBOOST
from tests.refusals import error_of
from tests.sklearn_rows import same_bits

xgb = pytest.importorskip("xgboost")
VERSION = tuple(int(part) for part in xgb.__version__.split(".")[:2])

N = 400


def make_rows(seed=0, missing=0.1):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 5)).astype(np.float32)
    X[rng.random(X.shape) < missing] = np.nan
    return X, rng


def train(X, y, rounds=6, group=None, **params):
    data = xgb.DMatrix(X, y)
    if params.get("objective", "").startswith("rank:"):
        data.set_group([N // 2, N - N // 2])
    if params.get("objective") == "survival:aft":
        data.set_float_info("label_lower_bound", y + 1)
        data.set_float_info("label_upper_bound", y + 2)
    params = {"max_depth": 4, "nthread": 1, **params}
    return xgb.train(params, data, rounds)


def check_booster(booster, X, **matrix):
    """Margins, leaves and predictions, on given rows and on drawn ones."""
    forest = load_forest(booster)
    for rows in (X, draw_rows(forest, 300, seed=1, missing=0.1)):
        data = xgb.DMatrix(rows, **matrix)
        raw = reference_raw(forest, rows)
        margin = booster.predict(data, output_margin=True)
        same_bits(raw, margin.reshape(len(rows), -1))
        same_bits(apply_transform(forest, raw), booster.predict(data))
        leaves = forest.source_node[reference_leaves(forest, rows)]
        expected = booster.predict(data, pred_leaf=True).reshape(len(rows), -1)
        np.testing.assert_array_equal(leaves, expected)
    return forest


OBJECTIVES = [o for o in XGBOOST if VERSION >= (3, 3) or "expectile" not in o]


@pytest.mark.sampled(25)
@pytest.mark.parametrize("booster", ["gbtree", "dart", "forest", "base score"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_objective_by_booster(objective, booster):
    X, rng = make_rows()
    y = rng.integers(0, 2, N).astype(float) + (objective == "reg:gamma")
    params = {"objective": objective}
    if objective.startswith("multi:"):
        params["num_class"], y = 3, rng.integers(0, 3, N)
    if (kind := objective[4:-5]) in ("quantile", "expectile"):
        params[f"{kind}_alpha"] = [0.1, 0.5, 0.9]
    if booster == "dart":
        params |= {"booster": "dart", "rate_drop": 0.4, "seed": 3}
    if booster == "forest":
        params |= {"num_parallel_tree": 3, "subsample": 0.7}
    if booster == "base score":  # passes the link of the objective
        params["base_score"] = 0.3
        if "num_class" in params:
            params["num_class"], y = 2, np.minimum(y, 1)
    forest = check_booster(train(X, y, **params), X)
    assert forest.n_trees >= 6


@pytest.mark.parametrize("strategy", ["one_output_per_tree", "multi_output_tree"])
@pytest.mark.parametrize(
    "objective", ["reg:squarederror", "binary:logistic", "multi:softprob"]
)
def test_many_outputs(objective, strategy):
    X, rng = make_rows()
    Y = rng.normal(size=(N, 3))
    params = {"objective": objective, "multi_strategy": strategy}
    if objective == "binary:logistic":
        Y = (Y > 0) * 1.0
    if objective == "multi:softprob":
        Y = rng.integers(0, 3, N)
        params["num_class"] = 3
    forest = check_booster(train(X, Y, tree_method="hist", **params), X)
    assert forest.n_outputs == 3
    assert forest.vector_leaves == (strategy == "multi_output_tree")
    if forest.vector_leaves:
        assert set(forest.tree_output.tolist()) == {-1}


@pytest.mark.parametrize("onehot", [1, 100], ids=["sets", "onehot"])
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_categories(onehot, missing):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N, 3)).astype(np.float32)
    X[:, 0] = rng.integers(0, 70, N)
    X[:, 1] = rng.integers(0, 5, N)
    y = (X[:, 0] % 7 == 1) * 3.0 + (X[:, 1] == 2) + 0.1 * X[:, 2]
    X[rng.random(X.shape) < missing] = np.nan
    kinds = {"feature_types": ["c", "c", "q"], "enable_categorical": True}
    params = {"max_depth": 5, "tree_method": "hist", "max_cat_to_onehot": onehot}
    booster = xgb.train(params, xgb.DMatrix(X, y, **kinds), 8)
    odd = np.zeros((12, 3), np.float32)
    odd[:, 0] = [-1, -0.5, 0.5, 69.9, 70, 71, 95, 96, 127, 128, 2**24 - 1, 2**24]
    forest = check_booster(booster, np.concatenate([X, odd]), **kinds)
    assert (forest.comparison == Comparison.NOT_IN).any()
    assert (forest.comparison == Comparison.LT).any()


def test_category_names_of_a_data_frame_are_kept():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "letter": pandas.Categorical(rng.choice(list("cab"), N)),
            "number": rng.normal(size=N),
            "year": pandas.Categorical(rng.integers(1990, 1995, N)),
        }
    )
    codes = frame.letter.cat.codes, frame.number, frame.year.cat.codes
    X = np.stack(codes, axis=1).astype(np.float32)
    model = xgb.XGBRegressor(n_estimators=4, enable_categorical=True)
    model.fit(frame, X[:, 0] + X[:, 2] % 2)
    forest = load_forest(model)
    assert forest.category_names == (
        ("a", "b", "c"),
        (),
        (1990, 1991, 1992, 1993, 1994),
    )
    assert forest.feature_names == ("letter", "number", "year")
    raw = reference_raw(forest, X)
    same_bits(apply_transform(forest, raw), model.predict(frame))


def test_ubjson_holds_numbers_without_sign_as_others():
    """XGBoost 3.4 has them, and writes those of 16 and more bits with a sign."""
    for kind, value, name in (
        *((10, 200, 200), (12, -5536, 60000), (14, -1294967296, 3000000000)),
        *((13, -5, -5), (15, -5, -5), (12, 60000, 60000)),
    ):
        entry = {"type": kind, "values": np.array([1, value])}
        assert _names_of(entry, (3, 4)) == (1, name)


@pytest.mark.parametrize("marker", [-999.0, 0.0, 0.1, np.nan, None])
def test_the_wrappers_missing_marker(marker):
    X, rng = make_rows(missing=0)
    X = X.astype(np.float64).round(1)
    y = (X[:, 0] > 0.2) * 1
    X[rng.random(X.shape) < 0.2] = np.nan if marker is None else marker
    model = xgb.XGBClassifier(n_estimators=5, n_jobs=1)
    model.set_params(missing=np.nan if marker is None else marker).fit(X, y)
    forest = load_forest(model)
    raw = reference_raw(forest, X)
    same_bits(raw[:, 0], model.predict(X, output_margin=True))
    same_bits(predict_proba(forest, raw), model.predict_proba(X))
    rows = draw_rows(forest, 200, seed=0, missing=0.2)
    same_bits(
        reference_raw(forest, rows)[:, 0], model.predict(rows, output_margin=True)
    )


def test_a_link_without_any_tree_is_refused():
    X, rng = make_rows()
    y = rng.integers(0, 2, N)
    given = xgb.XGBClassifier(n_estimators=0, n_jobs=1, base_score=0.3).fit(X, y)
    forest = load_forest(given)
    same_bits(predict_proba(forest, reference_raw(forest, X)), given.predict_proba(X))
    with pytest.raises(UnsupportedModelError) as error:
        load_forest(xgb.XGBClassifier(n_estimators=0, n_jobs=1).fit(X, y))
    assert str(error.value) == (
        "The model has no trees and no base_score, so its predictions depend on the "
        "version of XGBoost. Train it for at least one round."
    )


@pytest.fixture
def early_stopped():
    X, rng = make_rows()
    y, noise = rng.integers(0, 3, N), rng.integers(0, 3, N)
    model = xgb.XGBClassifier(n_estimators=60, early_stopping_rounds=3, n_jobs=1)
    return model.fit(X, y, eval_set=[(X, noise)], verbose=False), X


@pytest.mark.parametrize("suffix", ["json", "ubj"])
def test_best_iteration_is_the_wrappers_not_the_boosters(
    early_stopped, suffix, tmp_path
):
    model, X = early_stopped
    booster = model.get_booster()
    rounds = model.best_iteration + 1
    assert rounds < booster.num_boosted_rounds()
    by_wrapper, by_booster = tmp_path / f"w.{suffix}", tmp_path / f"b.{suffix}"
    model.save_model(by_wrapper)
    booster.save_model(by_booster)
    for source in (model, by_wrapper):
        forest = load_forest(source)
        assert forest.n_trees == 3 * rounds
        same_bits(reference_raw(forest, X), model.predict(X, output_margin=True))
    for source in (booster, by_booster):
        forest = load_forest(source)
        expected = booster.predict(xgb.DMatrix(X), output_margin=True)
        same_bits(reference_raw(forest, X), expected)


def test_iteration_range(early_stopped):
    model, X = early_stopped
    booster, data = model.get_booster(), xgb.DMatrix(X)
    for rounds in ((0, 1), (1, 3), (0, 0), (2, 0)):
        forest = load_forest(booster, iteration_range=rounds)
        expected = booster.predict(data, output_margin=True, iteration_range=rounds)
        same_bits(reference_raw(forest, X), expected)
    n = booster.num_boosted_rounds()
    said = error_of(InvalidModelError, load_forest, booster, iteration_range=(1, n + 1))
    assert said == (
        f"iteration_range (1, {n + 1}) does not lie within the "
        f"{n} boosting rounds of the model."
    )


def test_dart_follows_predict_for_boosters_and_inplace_predict_for_wrappers():
    """XGBoost's two predictors round DART's leaves differently, up to 3.2."""
    X, _ = make_rows()
    y = np.nan_to_num(X[:, 0]) * 3 + 7
    model = xgb.XGBRegressor(
        booster="dart", rate_drop=0.5, n_estimators=20, base_score=7.3, n_jobs=1
    ).fit(X, y)
    booster = model.get_booster()
    by_booster = reference_raw(load_forest(booster), X)
    by_wrapper = reference_raw(load_forest(model), X)
    same_bits(by_booster[:, 0], booster.predict(xgb.DMatrix(X), output_margin=True))
    same_bits(by_wrapper[:, 0], model.predict(X))
    assert (by_booster != by_wrapper).any() == (VERSION < (3, 3))


def test_predicates_are_shared_and_covers_kept():
    X, rng = make_rows(missing=0)
    forest = load_forest(train(X.round(0), rng.normal(size=N), 20))
    assert forest.n_predicates < (forest.leaf < 0).sum() / 3
    assert forest.cover[0] == N
    rows = np.stack([forest.feature, forest.threshold, forest.missing_left], axis=1)
    assert len(np.unique(rows, axis=0)) == forest.n_predicates


def test_dropout_is_read_wherever_versions_keep_it():
    X, rng = make_rows()
    params = {"booster": "dart", "rate_drop": 0.5, "base_score": 0.25}
    booster = train(X, rng.normal(size=N), 6, **params)
    document = json.loads(booster.save_raw("json"))
    found = document["learner"]["gradient_booster"]
    inner = found.get("gbtree", found)["model"]
    weights = inner.pop("weight_drop", found.get("weight_drop"))
    assert min(weights) < 1.0
    forms = (
        {"name": "dart", "gbtree": {"name": "gbtree", "model": inner}}
        | {"weight_drop": weights},  # up to 3.2
        {"name": "dart", "model": inner, "weight_drop": weights},  # 3.3
        {"name": "gbtree", "model": inner | {"weight_drop": weights}},  # from 3.4
    )
    expected = booster.predict(xgb.DMatrix(X), output_margin=True)
    for form in forms:
        document["learner"]["gradient_booster"] = form
        same_bits(reference_raw(forest_from_document(document), X)[:, 0], expected)


class Louder(xgb.XGBRegressor):
    def predict(self, X, **kwargs):
        return 2 * super().predict(X, **kwargs)


def fitted(model):
    X, rng = make_rows()
    return model.fit(X, rng.normal(size=N))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: fitted(xgb.XGBRegressor(booster="gblinear", n_estimators=1)),
         UnsupportedModelError,
         "The booster 'gblinear' is not a tree ensemble that can be compiled; train "
         "with booster='gbtree' or 'dart'."),
        (lambda: fitted(Louder(n_estimators=1)), UnsupportedModelError,
         "Louder overrides predict, so its predictions cannot be reproduced."),
        (xgb.XGBClassifier, InvalidModelError,
         "This XGBClassifier is not fitted; call fit before load_forest."),
        (object, UnsupportedModelError,
         "skforge cannot read builtins.object; pass a fitted model, or the path or "
         "bytes of a saved one. It reads models of catboost, lightgbm, onnx, "
         "quantile-forest, scikit-survival, sklearn, xgboost."),
        (lambda: "absent.json", InvalidModelError,
         "absent.json does not exist; give the path of a saved model."),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_name(make, error, message):
    assert error_of(error, load_forest, make()) == message


@pytest.mark.parametrize("name", ["airline", "epsilon", "year_prediction_msd"])
def test_published_models(name, shared_models):
    path = shared_models / f"{name}.json"
    forest = load_forest(path)
    xgb.set_config(verbosity=0)  # 3.2 warns about the format of 1.4
    booster = xgb.Booster(model_file=path)
    booster.feature_names = booster.feature_types = None
    assert forest.n_trees == 100
    np.testing.assert_array_equal(load_forest(booster).threshold, forest.threshold)
    for missing in (0.0, 0.1):
        rows = draw_rows(forest, 500, seed=2, missing=missing)
        raw = reference_raw(forest, rows)[:, 0]
        same_bits(raw, booster.inplace_predict(rows, predict_type="margin"))
        leaves = forest.source_node[reference_leaves(forest, rows)]
        np.testing.assert_array_equal(
            leaves, booster.predict(xgb.DMatrix(rows), pred_leaf=True)
        )
    file = shared_models / f"{name}_rows.csv"
    if file.exists():
        table = np.loadtxt(file, delimiter=",")
        raw = reference_raw(forest, table[:, :-1])
        same_bits(apply_transform(forest, raw), table[:, -1].astype(np.float32))
