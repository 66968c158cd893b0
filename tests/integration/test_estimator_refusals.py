"""What is refused before it is trained, and what searches of parameters become."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn import dummy, linear_model, svm, tree
from sklearn import ensemble as e
from sklearn import model_selection as ms
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.decomposition import PCA
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.frozen import FrozenEstimator
from sklearn.multiclass import OneVsOneClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags

import skforge
from skforge import CompiledForest, UnsupportedModelError, load_forest
from skforge.exceptions import InvalidInputError, InvalidModelError
from tests.comparing import refusal, saved
from tests.plain import fit_both, plain

xgb = pytest.importorskip("xgboost")
lgb = pytest.importorskip("lightgbm")

X, Y = make_classification(200, 6, n_informative=4, random_state=0)


def message(call, kind=UnsupportedModelError, *given, **how):
    with pytest.raises(kind) as error:
        call(*given, **how)
    assert type(error.value) is kind
    return str(error.value)


def test_a_fitted_model_needs_rows():
    model = tree.DecisionTreeClassifier(max_depth=2).fit(X, Y)
    text = message(lambda: CompiledForest(model).fit(None), InvalidInputError)
    assert text.startswith("X is None, but fit compares compiled predictions with the ")
    assert "CompiledForest(model).fit(X_train[:1000])" in text


# ------------------------------------------------- models that are not fitted

UNFITTED = {
    "XGBClassifier": xgb.XGBClassifier(),
    "XGBRegressor": xgb.XGBRegressor(),
    "XGBRanker": xgb.XGBRanker(),
    "LGBMClassifier": lgb.LGBMClassifier(),
    "LGBMRanker": lgb.LGBMRanker(),
    "RandomForestRegressor": e.RandomForestRegressor(),
    "HistGradientBoostingClassifier": e.HistGradientBoostingClassifier(),
    "Pipeline": make_pipeline(StandardScaler(), xgb.XGBRegressor()),
    "CalibratedClassifierCV": CalibratedClassifierCV(lgb.LGBMClassifier()),
    "VotingRegressor": e.VotingRegressor([("a", tree.DecisionTreeRegressor())]),
    "GridSearchCV": ms.GridSearchCV(xgb.XGBRegressor(), {"max_depth": [1]}),
}


@pytest.mark.parametrize("name", UNFITTED)
def test_a_model_that_is_not_fitted_needs_y(name):
    text = message(lambda: CompiledForest(UNFITTED[name]).fit(X), InvalidInputError)
    assert text == (
        f"{name} is not fitted, and training it requires y to be passed, but the "
        "target y is None. Call fit(X, y), or give CompiledForest a model that is "
        "fitted."
    )


def test_a_model_whose_booster_is_gone_is_not_fitted():
    light = lgb.LGBMClassifier(n_estimators=2, verbose=-1).fit(X, Y)
    light._Booster = None
    for call in (load_forest, lambda m: CompiledForest(m).fit(X)):
        assert message(lambda c=call: c(light), InvalidModelError) == (
            "This LGBMClassifier is not fitted; call fit before load_forest."
        )
        assert message(lambda c=call: c(xgb.Booster()), InvalidModelError) == (
            "XGBoost cannot save this Booster, so it is empty, or its base_score does "
            "not fit: train it, or call its load_model."
        )


# ------------------------------------------------- methods that a model lacks


@pytest.mark.parametrize("fit", [False, True])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("XGBRegressor", "a regressor"),
        ("content", "a regressor"),
        ("IsolationForest", "an outlier detector"),
        ("file of a ranker", "a ranker"),
    ],
)
def test_predict_proba_of_models_without_classes(kind, words, fit, tmp_path):
    params = {"n_estimators": 2, "n_jobs": 1}
    if kind == "IsolationForest":
        model = e.IsolationForest(n_estimators=2).fit(X)
    elif kind == "file of a ranker":
        model = tmp_path / "ranker.json"
        xgb.XGBRanker(**params).fit(X, Y, group=[len(X)]).save_model(model)
    else:
        model = xgb.XGBRegressor(**params).fit(X, Y)
        model = model if kind != "content" else bytes(model.get_booster().save_raw())
    fast = plain(model)
    fast = fast.fit(X) if fit else fast
    for method in ("predict_proba", "predict_log_proba"):
        assert not hasattr(fast, method)
        assert message(lambda m=method: getattr(fast, m), AttributeError) == (
            f"'CompiledForest' object has no attribute {method!r}: the model is {words}"
        )


# ------------------------------------------------- refused before it is trained


def zeros(self, X):
    return np.zeros(len(X))


def own(base, method="predict"):
    """Return a subclass that computes a method in its own way."""
    name = f"Own{base.__name__.removesuffix('Classifier')}"
    return type(name, (base,), {method: zeros})


OwnXGB = own(xgb.XGBClassifier)


class OwnPipeline(Pipeline):
    pass


def forest(**params):
    return e.RandomForestClassifier(3, random_state=0, **params)


OTHER = "it is not one of the tree ensembles that can be compiled. "
SVC = f"skforge cannot read sklearn.svm._classes.SVC; {OTHER}It reads models of "
SVR = SVC.replace("SVC", "SVR")
NONE = "has no member that can be compiled: "
LOST = "so its predictions cannot be reproduced."
DRAWN = e.GradientBoostingClassifier(init=dummy.DummyClassifier(strategy="stratified"))
AT_RANDOM = "GradientBoostingClassifier starts from DummyClassifier(strategy="
AT_RANDOM += "'stratified'), which predicts at random; fit with another strategy."
PIPELINE = "pass its last step; a pipeline also accepts a compiled last step. "
REFUSED = {
    "svc": (svm.SVC(), OTHER),
    "linear": (linear_model.LogisticRegression(), OTHER),
    "dummy": (dummy.DummyClassifier(), OTHER),
    **{
        type(model).__name__: (model, f"{type(model).__name__} {NONE}{SVC}")
        for model in (
            e.StackingClassifier([("a", svm.SVC())], linear_model.LogisticRegression()),
            e.VotingClassifier([("a", svm.SVC()), ("b", OwnXGB())]),
            *(ClassifierChain(svm.SVC()), OneVsOneClassifier(svm.SVC())),
            *(MultiOutputClassifier(svm.SVC()), ms.FixedThresholdClassifier(svm.SVC())),
            *(e.BaggingClassifier(svm.SVC()), e.AdaBoostClassifier(svm.SVC())),
            CalibratedClassifierCV(svm.SVC(), cv=2),
        )
    },
    "calibrated-gb": (
        CalibratedClassifierCV(DRAWN),
        f"CalibratedClassifierCV {NONE}{AT_RANDOM}",
    ),
    "pipeline": (make_pipeline(PCA(), OwnXGB()), f"OwnXGB overrides predict, {LOST}"),
    "own-pipeline": (OwnPipeline([("s", StandardScaler()), ("f", forest())]), PIPELINE),
    "compiled": (CompiledForest(forest()), "it is compiled already; use it as it is. "),
    "calibrated-compiled": (
        CalibratedClassifierCV(CompiledForest(forest()), cv=2),
        f"CalibratedClassifierCV {NONE}its members are compiled already, so use it as "
        "it is.",
    ),
    "adaboost-r": (e.AdaBoostRegressor(svm.SVR()), f"AdaBoostRegressor {NONE}{SVR}"),
    "gb-drawn": (DRAWN, AT_RANDOM),
    "own-predict": (
        own(e.RandomForestClassifier)(),
        f"OwnRandomForest overrides predict, {LOST}",
    ),
    "own-proba": (
        own(e.HistGradientBoostingClassifier, "predict_proba")(),
        f"OwnHistGradientBoosting overrides predict_proba, {LOST}",
    ),
    "own-xgb": (OwnXGB(), f"OwnXGB overrides predict, {LOST}"),
    "own-lgbm": (own(lgb.LGBMClassifier)(), f"OwnLGBM overrides predict, {LOST}"),
    "gblinear": (
        xgb.XGBClassifier(booster="gblinear"),
        "The booster 'gblinear' is not a tree ensemble that can be compiled; train "
        "with booster='gbtree' or 'dart'.",
    ),
    "early-stop": (
        lgb.LGBMClassifier(pred_early_stop=True),
        "This LGBMClassifier predicts with pred_early_stop=True, which skips trees; "
        "call set_params(pred_early_stop=False).",
    ),
}


@pytest.fixture
def trained(monkeypatch):
    """Note what is trained, whichever class it is of."""
    noted = []
    for base in {cls for model, _ in REFUSED.values() for cls in type(model).__mro__}:
        if "fit" in vars(base) and base is not CompiledForest:

            def fit(self, *args, _fit=base.fit, **params):
                noted.append(type(self).__name__)
                return _fit(self, *args, **params)

            monkeypatch.setattr(base, "fit", fit)
    return noted


@pytest.mark.parametrize("kind", REFUSED)
def test_it_is_refused_before_it_is_trained(kind, trained):
    model, why = REFUSED[kind]
    if why.endswith(". "):  # no frontend knows the class: that is said first and last
        cls = type(model)
        why = (
            f"skforge cannot read {cls.__module__}.{cls.__qualname__}; {why}It reads "
            "models of "
        )
    for one in (model, ms.GridSearchCV(model, {})):
        compiled = CompiledForest(one)
        text = message(lambda: compiled.fit(X, Y))  # noqa: B023
        assert text == why or (why.endswith(" models of ") and text.startswith(why))
        assert vars(compiled).keys() == CompiledForest(one).get_params(False).keys()
    assert trained == []


def test_nobody_with_a_fitted_model_is_told_to_fit_it():
    for model in (svm.SVC(), e.StackingClassifier([("a", svm.SVC())])):
        fitted = model.fit(X, Y)
        assert "fitted" not in refusal(UnsupportedModelError, load_forest, fitted)
        fit = CompiledForest(fitted).fit
        assert "fitted" not in refusal(UnsupportedModelError, fit, X)


def test_parameters_that_are_no_refusal():
    for model in (
        e.BaggingClassifier(n_estimators=2),
        e.BaggingClassifier(tree.ExtraTreeClassifier(), n_estimators=2),
        e.AdaBoostClassifier(n_estimators=2),
        e.GradientBoostingClassifier(n_estimators=2, init="zero"),
        e.GradientBoostingClassifier(n_estimators=2, init=dummy.DummyClassifier()),
        xgb.XGBClassifier(n_estimators=2, booster="dart", n_jobs=1),
        lgb.LGBMClassifier(n_estimators=2, linear_tree=False, verbose=-1),
    ):
        compiled = plain(model).fit(X, Y)
        expected = compiled.estimator_.predict_proba(X)
        assert compiled.predict_proba(X).tobytes() == expected.tobytes()


# ---------------------------------------------------------------------- searches

GRID = {"max_depth": [1, 4]}
SEARCHES = {
    "grid": ms.GridSearchCV(forest(), GRID, cv=2),
    "random": ms.RandomizedSearchCV(forest(), GRID, n_iter=2, cv=2, random_state=0),
    "halving": ms.HalvingGridSearchCV(forest(), GRID, cv=2, random_state=0),
    "halving-random": ms.HalvingRandomSearchCV(forest(), GRID, cv=2, random_state=0),
}


def check_unwrapped(compiled, search):
    best = search.best_estimator_
    assert compiled.estimator_ is best
    assert compiled.search_ is search
    assert compiled.forest_.n_trees == 3
    assert get_tags(compiled) == get_tags(best)
    assert is_classifier(compiled)
    assert compiled.predict(X).tobytes() == search.predict(X).tobytes()
    assert compiled.predict_proba(X).tobytes() == search.predict_proba(X).tobytes()
    assert compiled.apply(X).tobytes() == best.apply(X).tobytes()
    assert compiled.score(X, Y) == best.score(X, Y)
    assert compiled.classes_ is best.classes_
    assert not hasattr(compiled, "decision_function")
    assert not hasattr(compiled, "best_params_")


@pytest.mark.parametrize("kind", SEARCHES)
def test_a_fitted_search_is_its_best_estimator(kind):
    search = clone(SEARCHES[kind]).fit(X, Y)
    before = pickle.dumps(search)
    compiled = plain(search)
    assert is_classifier(compiled)
    assert get_tags(compiled) == get_tags(search.best_estimator_)
    check_unwrapped(compiled.fit(X), search)
    assert pickle.dumps(search) == before
    read = load_forest(search)
    assert read.leaf_value.tobytes() == compiled.forest_.leaf_value.tobytes()


def test_another_best_estimator_is_noticed(tmp_path):
    search, compiled = fit_both(clone(SEARCHES["grid"]), X, Y)
    before = compiled.predict_proba(X)
    search.best_estimator_ = forest().set_params(random_state=7).fit(X, Y)
    assert compiled.predict_proba(X).tobytes() == before.tobytes()
    for ask in (
        lambda: pickle.dumps(compiled),
        lambda: skforge.save(compiled, tmp_path / "a.skforge"),
        lambda: compiled.classes_,
    ):
        with pytest.raises(InvalidModelError, match="GridSearchCV has changed since"):
            ask()


@pytest.mark.parametrize("kind", SEARCHES)
def test_a_search_that_is_not_fitted_is_trained(kind):
    search = SEARCHES[kind]
    compiled = plain(search)
    assert is_classifier(compiled)
    assert hasattr(compiled, "predict_proba")
    compiled.fit(X, Y)
    assert not hasattr(search, "best_estimator_")
    assert type(compiled.search_) is type(search)
    check_unwrapped(compiled, compiled.search_)


def test_searches_are_cloned_saved_and_trained_again(tmp_path):
    search, compiled = fit_both(clone(SEARCHES["grid"]), X, Y)
    expected = search.predict_proba(X).tobytes()
    again = pickle.loads(pickle.dumps(compiled))
    assert again.search_.best_estimator_ is again.estimator_
    loaded = saved(compiled, tmp_path)
    for one in (again, loaded, compiled.drop_estimator()):
        assert one.predict_proba(X).tobytes() == expected
    for one in (loaded, compiled.drop_estimator()):
        assert not hasattr(one, "search_")
    frozen = clone(plain(FrozenEstimator(search)))
    assert frozen.fit(X).estimator_ is search.best_estimator_
    copied = clone(compiled)
    assert not hasattr(copied.estimator, "best_estimator_")
    assert copied.fit(X, Y).predict_proba(X).tobytes() == expected
    fresh = plain(search, prefit=False).fit(X, 1 - Y)
    assert fresh.search_ is not search
    assert np.mean(fresh.predict(X) == 1 - Y) > 0.8
    copied.set_params(estimator=forest()).fit(X, Y)
    assert not hasattr(copied, "search_")


def test_a_search_passes_weights_on():
    weight = np.linspace(0, 1, 200)
    search = SEARCHES["grid"]
    compiled = plain(search).fit(X, Y, sample_weight=weight)
    expected = clone(search).fit(X, Y, sample_weight=weight)
    found = compiled.predict_proba(X)
    assert found.tobytes() == expected.predict_proba(X).tobytes()
    assert found.tobytes() != clone(search).fit(X, Y).predict_proba(X).tobytes()


def test_a_search_without_refit_says_so(trained):
    search = ms.GridSearchCV(forest(), GRID, cv=2, refit=False)
    why = (
        "skforge cannot read sklearn.model_selection._search.GridSearchCV; with "
        "refit=False it has no best_estimator_; search with refit=True. It reads "
        "models of "
    )
    assert message(lambda: CompiledForest(search).fit(X, Y)).startswith(why)
    assert trained == []
    fitted = clone(search).fit(X, Y)
    assert message(lambda: CompiledForest(fitted).fit(X)).startswith(why)
    assert message(lambda: load_forest(fitted)).startswith(why)
    assert message(lambda: load_forest(clone(SEARCHES["grid"]))).startswith(
        "skforge cannot read sklearn.model_selection._search.GridSearchCV; fit it "
        "first, so that its best_estimator_ can be read. "
    )


# ------------------------------------------- models whose own methods fail

FAILING = "the model lacks what this method needs. Load it into the class that it was "
FAILING += "trained as, or give CompiledForest its file or Booster."


def of_hand(trained):
    model = xgb.XGBClassifier(n_jobs=1)
    model._Booster = trained.get_booster()
    return model


def why_not(model):
    return message(CompiledForest(model, tuning="off").fit, UnsupportedModelError, X)


def test_a_booster_put_into_an_empty_classifier():
    trained = xgb.XGBClassifier(n_estimators=2, n_jobs=1).fit(X, Y)
    missing = "AttributeError: 'XGBClassifier' object has no attribute 'n_classes_'"
    said = f"XGBClassifier.predict_proba raises {missing}, although predict answers: "
    assert why_not(of_hand(trained)) == said + FAILING
    fast = CompiledForest(trained.get_booster(), tuning="off").fit(X)
    assert np.array_equal(fast.predict(X), trained.predict(X))
    trained.fit(X, Y + (X[:, 0] > 1))  # several classes
    said = f"XGBClassifier.predict raises {missing}: "
    assert why_not(of_hand(trained)) == said + FAILING


def test_a_classifier_of_lightgbm_without_its_labels():
    trained = lgb.LGBMClassifier(n_estimators=2, n_jobs=1, verbose=-1).fit(X, Y)
    del trained._le
    assert why_not(trained) == (
        "LGBMClassifier.predict raises AttributeError: 'LGBMClassifier' object has no "
        f"attribute '_le', although predict_proba answers: {FAILING}"
    )


def test_a_regressor_of_catboost_loaded_into_a_classifier(tmp_path):
    cb = pytest.importorskip("catboost")
    path = str(tmp_path / "regressor.cbm")
    quiet = {"verbose": 0, "allow_writing_files": False}
    trained = cb.CatBoostRegressor(iterations=2, **quiet).fit(X, Y)
    trained.save_model(path)
    model = cb.CatBoostClassifier()
    model.load_model(path)
    assert why_not(model) == (
        "CatBoostClassifier.predict raises IndexError: index 0 is out of bounds for "
        f"axis 0 with size 0, although predict_proba answers: {FAILING}"
    )
    fast = CompiledForest(path, tuning="off").fit(X)
    assert np.array_equal(fast.predict(X), trained.predict(X))


@pytest.mark.parametrize(
    "kind", [e.RandomForestClassifier, e.HistGradientBoostingClassifier]
)
def test_a_classifier_with_fewer_labels_than_classes(kind):
    numbers = np.arange(60.0).reshape(-1, 1)
    model = kind(max_depth=2, random_state=0).fit(numbers, np.arange(60) // 20)
    model.classes_ = model.classes_[:2]
    few = lgb.LGBMClassifier(objective="multiclass", num_class=3, verbose=-1)
    few.fit(numbers, np.arange(60) // 30)
    assert "num_class= is greater" in message(
        lambda: plain(few).fit(numbers), InvalidModelError
    )
    rows = numbers[:20]  # of the first class, for which scikit-learn has a label
    assert (model.predict(rows) == 0).all()
    assert message(lambda: plain(model).fit(rows), InvalidModelError) == (
        "classes_ has 2 labels, and the trees tell 3 classes apart: the model was "
        "changed after training, or LightGBM's num_class= is greater. Put the labels "
        "back, or train it again."
    )
