"""CompiledForest inside scikit-learn's own tools gives what the bare model gives."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.ensemble import (
    BaggingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_selection import SelectFromModel
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    RandomizedSearchCV,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_val_score,
)
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder

from skforge import Schedule
from skforge.exceptions import UnsupportedModelError
from tests.comparing import refusal
from tests.plain import fit_both, plain

pd = pytest.importorskip("pandas")
xgb = pytest.importorskip("xgboost")

X, Y = make_classification(200, 6, n_informative=4, random_state=0)
BLOCKS = Schedule().tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")
SCHEDULES = ["auto", BLOCKS, "xgboost", {(1, 7): BLOCKS, (8, None): "xgboost"}]


def forest():
    return RandomForestClassifier(4, random_state=0)


def regressor():
    return RandomForestRegressor(4, random_state=0)


@pytest.mark.parametrize("n_jobs", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_grid_search_over_schedules_and_the_models_parameters(n_jobs):
    grid = {"schedule": SCHEDULES, "estimator__max_depth": [1, 4]}
    search = GridSearchCV(plain(forest()), grid, cv=2, n_jobs=n_jobs)
    search.fit(X, Y)
    bare = GridSearchCV(forest(), {"max_depth": [1, 4]}, cv=2).fit(X, Y)
    found = search.cv_results_["mean_test_score"]
    expected = bare.cv_results_["mean_test_score"]
    for depth, score in zip((1, 4), expected, strict=True):
        params = search.cv_results_["param_estimator__max_depth"]
        assert set(found[np.asarray(params) == depth]) == {score}
    assert np.array_equal(search.predict_proba(X), bare.predict_proba(X))


def test_a_frozen_model_is_searched_without_training():
    frozen = FrozenEstimator(forest().fit(X, Y))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search = RandomizedSearchCV(
            plain(frozen), {"schedule": SCHEDULES[:2]}, n_iter=2, cv=2
        ).fit(X, Y)
    assert search.best_estimator_.estimator_ is frozen.estimator


def test_cross_validation_trains_in_every_fold():
    fitted = plain(forest().fit(X, Y))
    assert np.array_equal(
        cross_val_score(fitted, X, Y, cv=3), cross_val_score(forest(), X, Y, cv=3)
    )
    model = plain(xgb.XGBClassifier(n_estimators=3, n_jobs=1))
    assert np.array_equal(
        cross_val_predict(model, X, Y, method="predict_proba", cv=3),
        cross_val_predict(model.estimator, X, Y, method="predict_proba", cv=3),
    )


def test_outliers_are_found_in_one_call():
    source = IsolationForest(n_estimators=5, random_state=0)
    expected = clone(source).fit_predict(X)
    assert np.array_equal(plain(source).fit_predict(X), expected)
    pipeline = make_pipeline(plain(source))
    assert np.array_equal(pipeline.fit_predict(X, Y), expected)
    assert not hasattr(plain(forest()), "fit_predict")


def test_what_only_the_model_has_is_said_to_be_there():
    compiled = plain(xgb.XGBClassifier(n_estimators=2, n_jobs=1)).fit(X, Y)
    for name in ("get_booster", "n_estimators"):
        assert refusal(AttributeError, getattr, compiled, name) == (
            f"'CompiledForest' object has no attribute {name!r}; "
            f"the model's own is estimator_.{name}"
        )
    for name in ("decision_function", "nothing"):
        assert refusal(AttributeError, getattr, compiled, name) == (
            f"'CompiledForest' object has no attribute {name!r}"
        )


def test_names_that_a_library_made_up_are_no_names():
    lgb = pytest.importorskip("lightgbm")
    source, compiled = fit_both(lgb.LGBMClassifier(n_estimators=2, verbose=-1), X, Y)
    for one in (source, compiled, compiled.drop_estimator()):
        assert not hasattr(one, "feature_names_in_")
    assert plain(source.booster_).fit(X).feature_names_in_[0] == "Column_0"


def test_column_transformers_with_frames():
    frame = pd.DataFrame(X, columns=list("abcdef")).assign(kind=np.where(Y, "x", "y"))

    def columns():
        encoder = make_column_transformer(
            (OrdinalEncoder(), ["kind"]), remainder="passthrough"
        )
        return encoder.set_output(transform="pandas")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = make_pipeline(columns(), plain(forest())).fit(frame, Y)
        bare = make_pipeline(columns(), forest()).fit(frame, Y)
        assert np.array_equal(ours.predict_proba(frame), bare.predict_proba(frame))
    assert np.array_equal(ours[-1].feature_names_in_, bare[-1].feature_names_in_)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: CalibratedClassifierCV(model, cv=2),
        lambda model: TunedThresholdClassifierCV(model, cv=2),
        lambda model: FixedThresholdClassifier(model, threshold=0.3),
        lambda model: VotingClassifier([("a", model), ("b", clone(model))]),
        lambda model: StackingClassifier(
            [("a", model)], final_estimator=LogisticRegression(), cv=2
        ),
        lambda model: CalibratedClassifierCV(FrozenEstimator(model.fit(X, Y))),
    ],
    ids=["calibrated", "tuned", "fixed", "voting", "stacking", "frozen"],
)
def test_meta_classifiers(wrap):
    ours, bare = wrap(plain(forest())).fit(X, Y), wrap(forest()).fit(X, Y)
    assert np.array_equal(ours.predict(X), bare.predict(X))
    if hasattr(bare, "predict_proba"):
        assert np.array_equal(ours.predict_proba(X), bare.predict_proba(X))


def test_meta_regressors():
    targets = np.c_[X[:, 0], X[:, 1]]
    ours = MultiOutputRegressor(plain(regressor())).fit(X, targets)
    bare = MultiOutputRegressor(regressor()).fit(X, targets)
    assert np.array_equal(ours.predict(X), bare.predict(X))
    # bagging seeds its members' parameters: the wrapper's own seed trains nothing
    ours = BaggingRegressor(plain(regressor()), 2, random_state=0).fit(X, Y)
    parts = [member.estimator_.predict(X) for member in ours.estimators_]
    assert np.array_equal(ours.predict(X), sum(parts) / 2)


def test_feature_selection_and_inspection():
    source, compiled = fit_both(regressor(), X, Y)
    chosen = SelectFromModel(compiled, prefit=True).get_support()
    assert np.array_equal(chosen, SelectFromModel(source, prefit=True).get_support())
    found = permutation_importance(compiled, X, Y, n_repeats=2, random_state=0)
    expected = permutation_importance(source, X, Y, n_repeats=2, random_state=0)
    assert np.array_equal(found.importances, expected.importances)
    found = partial_dependence(compiled, X, [0], grid_resolution=5, method="brute")
    expected = partial_dependence(source, X, [0], grid_resolution=5, method="brute")
    assert np.array_equal(found["average"], expected["average"])


def test_estimators_from_before_scikit_learns_tags_are_named():
    # XGBoost's wrappers before 2.1.4
    own = {"fit": lambda self, X, y=None: self, "get_params": lambda *_, **__: {}}
    old = type("XGBClassifier", (), {"__module__": "xgboost.sklearn", **own})
    if sklearn.__version__.startswith(("1.6.1", "1.7.")):
        pytest.skip("this scikit-learn takes estimators without tags")
    assert refusal(UnsupportedModelError, plain(old()).fit, X) == (
        "XGBClassifier is an estimator of xgboost from before scikit-learn 1.6, so "
        f"scikit-learn {sklearn.__version__} cannot tell whether it is fitted. "
        "Upgrade xgboost (XGBoost to at least 2.1.4), or pass the estimator's Booster "
        "or a file that it saved."
    )


def test_a_predictor_may_outlive_its_module(monkeypatch):
    fast = plain(forest().fit(X, Y)).fit(X)
    # When Python ends, names of modules are None before the last objects go.
    monkeypatch.setattr("skforge.prediction.of_entries._METHODS_CHANGE", None)
    fast._predictor.__del__()
