"""Attributes that a CompiledForest has from its model, whatever the model is."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from sklearn import ensemble as e
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

import skforge
from skforge import InvalidModelError, load_forest
from tests.comparing import in_every_state, refusal
from tests.plain import plain

xgb = pytest.importorskip("xgboost")
lgb = pytest.importorskip("lightgbm")

X, Y = make_classification(200, 6, n_informative=4, random_state=0)
X = X.astype(np.float32)

# ------------------------------------------------- every kind, every attribute

NAMES = (
    *("classes_", "n_features_in_", "feature_names_in_", "feature_importances_"),
    *("n_outputs_", "n_classes_", "estimators_", "estimator_", "best_iteration"),
    *("best_score", "best_iteration_", "coef_", "intercept_", "offset_", "steps"),
    *("_repr_html_", "_repr_mimebundle_", "_sk_visual_block_", "_estimator_type"),
    *("__sklearn_is_fitted__", "__sklearn_tags__", "__sklearn_clone__"),
    *("__array__", "__array_interface__", "__cuda_array_interface__", "__len__"),
    *("predict", "predict_proba", "predict_log_proba", "decision_function", "apply"),
    *("score_samples", "predict_raw", "score", "transform", "fit_predict"),
    *("nonsense", "nonsense_", "_nonsense", "title", "name", "graph", "tree_offset"),
)


def kinds(folder):
    """Return a source of every kind, by name."""
    forest = RandomForestClassifier(3, max_depth=3, random_state=0).fit(X, Y)
    wrapper = xgb.XGBClassifier(n_estimators=3, max_depth=3, n_jobs=1).fit(X, Y)
    wrapper.save_model(folder / "model.json")
    wrapper.get_booster().save_model(folder / "booster.ubj")
    light = lgb.LGBMClassifier(n_estimators=3, num_leaves=4, verbose=-1).fit(X, Y)
    light.booster_.save_model(folder / "model.txt")
    made = {
        "estimator": forest,
        "unfitted": RandomForestClassifier(3, max_depth=3, random_state=0),
        "xgb-wrapper": wrapper,
        "xgb-booster": wrapper.get_booster(),
        "lgbm-wrapper": light,
        "lgbm-booster": light.booster_,
        "path": folder / "model.json",
        "text": str(folder / "model.json"),
        "ubj": folder / "booster.ubj",
        "lgbm-file": str(folder / "model.txt"),
        "lgbm-text": light.booster_.model_to_string(),
        "forest": load_forest(forest),
        "stored": plain(forest).fit(X).drop_estimator(),
    }
    onnx = pytest.importorskip("skl2onnx")
    made["proto"] = onnx.to_onnx(forest, X[:1], options={"zipmap": False})
    (folder / "model.onnx").write_bytes(made["proto"].SerializeToString())
    made["onnx-file"] = folder / "model.onnx"
    made["stored"] = made["stored"].estimator
    return made


def copies(compiled, folder):
    """Return a fitted one by every way on which it travels."""
    return {"copied": copy.deepcopy(compiled), **in_every_state(compiled, folder)}


def test_hasattr_never_raises(tmp_path):
    wrong = []

    def walk(what, compiled):
        for name in NAMES:
            try:
                if hasattr(compiled, name):
                    getattr(compiled, name)
            except Exception as error:  # noqa: BLE001 - any is the fault
                wrong.append((what, name, repr(error)))

    for kind, model in kinds(tmp_path).items():
        compiled = plain(model)
        walk((kind, "before"), compiled)
        fitted = compiled.fit(X, Y) if kind == "unfitted" else compiled.fit(X)
        for how, one in copies(fitted, tmp_path).items():
            walk((kind, how), one)
        if kind not in ("proto", "stored"):  # clone copies what is no estimator
            walk((kind, "cloned"), clone(fitted))
    assert wrong == []


def test_what_a_file_lacks_is_named(tmp_path):
    wrapper = xgb.XGBRegressor(n_estimators=3, max_depth=3, n_jobs=1).fit(X, Y)
    wrapper.save_model(tmp_path / "model.json")
    for path in (tmp_path / "model.json", str(tmp_path / "model.json")):
        compiled = plain(path).fit(X)
        for name in ("classes_", "title", "stem"):
            assert refusal(AttributeError, getattr, compiled, name) == (
                f"'CompiledForest' object has no attribute {name!r}"
            )
        assert compiled.n_features_in_ == 6


# ---------------------------------------------------- a model that has changed

CHANGED = (
    "The {} has changed since it was compiled: it was fitted again, trained further "
    "or edited. Its attributes and predictions no longer match the compiled ones; "
    "call fit of the CompiledForest again."
)
OTHER = np.flip(X, axis=1).copy(), 1 - Y


def grow(model):
    name = "max_iter" if hasattr(model, "max_iter") else "n_estimators"
    model.set_params(warm_start=True, **{name: 5}).fit(X, Y)


def refresh(model, **how):
    booster, data = booster_of(model), xgb.DMatrix(X, 1 - Y)
    booster.set_param({"process_type": "update", "updater": "refresh", **how})
    for number in range(3):
        booster.update(data, number)


def swap(model):
    model.estimators_[0] = clone(model.estimators_[1]).fit(X, Y)


def booster_of(model):
    return getattr(model, "_Booster", model)


CHANGES = {
    "refit": lambda model: model.fit(*OTHER),
    "grow": grow,
    "cut": lambda model: model.estimators_.__delitem__(slice(1, None)),
    "swap": swap,
    "refit_tree": lambda model: np.ravel(model.estimators_)[0].fit(X, Y),
    "move_offset": lambda model: setattr(model, "offset_", model.offset_ - 0.01),
    "other_missing": lambda model: model.set_params(missing=0.0),
    "more_rounds": lambda model: booster_of(model).update(xgb.DMatrix(X, Y), 3),
    "stop_early": lambda model: model.set_attr(best_iteration="1"),
    "other_objective": lambda model: model.set_param({"objective": "reg:tweedie"}),
    "other_base": lambda model: booster_of(model).set_param({"base_score": 0.3}),
    "refresh": refresh,
    "prune": lambda model: refresh(model, updater="prune", gamma=1000.0),
    "other_rate": lambda model: setattr(model, "learning_rate", 0.9),
    "other_classes": lambda model: setattr(model, "classes_", np.array([5, 6])),
    "edit_classes": lambda model: np.copyto(model.classes_, [5, 6]),
    "edit_baseline": lambda model: model._baseline_prediction.__iadd__(1),
    "swap_round": lambda model: model._predictors[0].__setitem__(
        0, model._predictors[1][0]
    ),
    "edit_leaf": lambda model: booster_of(model).set_leaf_output(0, 0, 77.0),
    "shuffle": lambda model: booster_of(model).shuffle_models(),
}


def sources():
    """Return models by name, each with the ways in which it may change."""
    many = {"n_estimators": 3, "random_state": 0}
    forest = RandomForestClassifier(max_depth=3, **many)
    boosting = e.GradientBoostingClassifier(**many)
    histogram = e.HistGradientBoostingClassifier(max_iter=3)
    light = lgb.LGBMClassifier(n_estimators=3, num_leaves=4, verbose=-1)
    wrapper = xgb.XGBClassifier(n_estimators=3, max_depth=3, n_jobs=1)
    of_booster = "more_rounds stop_early other_objective other_base refresh prune"
    of_forest = "refit grow cut swap refit_tree other_classes edit_classes"
    return {
        "forest": (forest, of_forest),
        "extra": (e.ExtraTreesRegressor(**many), "refit grow"),
        "tree": (DecisionTreeClassifier(random_state=0), "refit"),
        "boosting": (boosting, "refit grow refit_tree other_rate other_classes"),
        "histogram": (histogram, "refit grow edit_baseline swap_round edit_classes"),
        "isolation": (e.IsolationForest(**many), "refit grow move_offset"),
        "bagging": (e.BaggingClassifier(**many), "refit grow swap"),
        "adaboost": (e.AdaBoostClassifier(**many), "refit swap"),
        "xgb": (wrapper, "refit more_rounds other_missing other_base refresh"),
        "xgb-booster": (wrapper, of_booster),
        "lgbm": (light, "refit edit_leaf shuffle"),
        "lgbm-booster": (light, "edit_leaf shuffle"),
    }


def fresh(kind):
    model = clone(sources()[kind][0]).fit(X, Y)
    if kind.endswith("-booster"):
        return model.get_booster() if kind == "xgb-booster" else model.booster_
    return model


CASES = [(kind, way) for kind, (_, ways) in sources().items() for way in ways.split()]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("kind", "way"), CASES)
def test_a_changed_model_is_noticed(kind, way, tmp_path):
    model, change = fresh(kind), CHANGES[way]
    compiled = plain(model).fit(X)
    loaded = pickle.loads(pickle.dumps(compiled))
    expected = compiled.predict(X), compiled.predict_raw(X)
    inner = loaded.estimator_
    change(inner)
    asked = [
        lambda: pickle.dumps(loaded),
        lambda: copy.deepcopy(loaded),
        lambda: skforge.save(loaded, tmp_path / "a.skforge"),
        lambda: loaded.drop_estimator(),
        lambda: loaded.predict(X, nonsense=1),
        lambda: loaded.predict(X),  # nothing is compiled of it yet
    ]
    if hasattr(model, "n_features_in_"):
        asked += [lambda: loaded.n_features_in_, lambda: hasattr(loaded, "classes_")]
        if not hasattr(model, "classes_"):
            asked.pop()
    for ask in asked:
        assert_noticed(ask, inner)
    assert not hasattr(loaded, "nonsense_")
    # the other has a model of its own, and is what it was
    assert compiled.predict(X).tobytes() == expected[0].tobytes()
    # what is compiled goes on, of the forest that it says it is
    change(model)
    assert compiled.predict(X).tobytes() == expected[0].tobytes()
    assert compiled.predict_raw(X).tobytes() == expected[1].tobytes()
    with pytest.raises(InvalidModelError):
        pickle.dumps(compiled)
    # and fit makes all of it new
    again = compiled.fit(OTHER[0] if way == "refit" else X)
    assert again.forest_ == load_forest(model) or again.forest_.n_trees == (
        load_forest(model).n_trees
    )
    pickle.loads(pickle.dumps(again))


def assert_noticed(ask, model):
    assert refusal(InvalidModelError, ask) == CHANGED.format(type(model).__name__)


def test_a_parameter_that_the_model_cannot_have_is_noticed():
    booster = fresh("xgb-booster")
    compiled = plain(booster).fit(X)
    booster.set_param({"base_score": 9.0})  # for a logistic objective
    assert_noticed(lambda: pickle.dumps(compiled), booster)


def test_parameters_that_no_prediction_depends_on_are_no_change():
    boosting, wrapper, booster = fresh("histogram"), fresh("xgb"), fresh("xgb-booster")
    compiled = [plain(model).fit(X) for model in (boosting, wrapper, booster)]
    boosting.set_params(learning_rate=0.9, max_iter=7)
    wrapper.set_params(learning_rate=0.9, n_jobs=2)
    booster.set_param({"nthread": 2, "tree_method": "exact", "eta": 0.9})
    for one in compiled:
        one.predict(X)
        pickle.dumps(one)


def test_a_forest_may_have_an_attribute_of_gradient_boosting():
    model = fresh("forest")
    model.init_ = None  # a program's own
    np.testing.assert_array_equal(plain(model).fit(X).predict(X), model.predict(X))


@pytest.mark.parametrize("way", ["update", "rollback_one_iter"])
def test_rounds_of_lightgbm_are_counted(way):
    data = lgb.Dataset(X, Y)
    booster = lgb.train({"verbose": -1}, data, 3, keep_training_booster=True)
    compiled = plain(booster).fit(X)
    getattr(booster, way)()
    assert_noticed(lambda: pickle.dumps(compiled), booster)


def test_what_the_model_alone_answers_is_not_mixed():
    model = fresh("xgb")
    compiled = plain(model).fit(X)
    compiled.predict(X, iteration_range=(0, 2))
    model.fit(*OTHER)
    for ask in (
        lambda: compiled.predict(X, iteration_range=(0, 2)),
        lambda: compiled.predict(X[:0]),  # rows that XGBoost answers for itself
        lambda: compiled.feature_importances_,
    ):
        assert_noticed(ask, model)


@pytest.mark.parametrize("kind", sources())
def test_use_is_no_change(kind, tmp_path):
    model = fresh(kind)
    compiled = plain(model).fit(X)
    for _ in range(2):
        model.predict(xgb.DMatrix(X) if kind == "xgb-booster" else X)
        for name in NAMES:
            hasattr(compiled, name)
            hasattr(model, name)
        if hasattr(model, "set_params"):
            model.set_params(n_jobs=1) if hasattr(model, "n_jobs") else None
        skforge.save(compiled, tmp_path / "a.skforge")
        compiled = pickle.loads(pickle.dumps(compiled))
