"""CompiledForest: what ``fit`` does, what it leaves alone, what it keeps."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.datasets import make_classification
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import (
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags

from skforge import (
    CompiledForest,
    InvalidInputError,
    Schedule,
    Target,
    UnsupportedModelError,
    load_forest,
)
from skforge.exceptions import ScheduleError, TargetError
from skforge.modules.compiled import compile_forest
from tests import kinds
from tests.comparing import assert_alike
from tests.kinds import MODELS, TARGETS
from tests.plain import plain
from tests.sklearn_rows import same_bits as same

xgb = pytest.importorskip("xgboost")

X, Y = make_classification(
    300, 6, n_classes=3, n_informative=4, n_redundant=0, random_state=0
)
BLOCKS = Schedule().tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")


def forest(**params):
    return RandomForestClassifier(5, random_state=0, **params)


FITTED = forest().fit(X, Y)


def message(call, kind, *given, **how):
    with pytest.raises(kind) as error:
        call(*given, **how)
    assert type(error.value) is kind
    return str(error.value)


#: Parameters that fit refuses, and what a function says of some of them.
SIZES = "batch_sizes must be positive whole numbers of rows. Got {} instead."
KEY = {64: BLOCKS}
BOTH = "batch_sizes and a schedule given as a dict both set the batch ranges; leave "
REFUSED = {
    "preset": ("schedule", "none", message(Schedule.preset, ScheduleError, "none")),
    "key": ("schedule", KEY, message(compile_forest, ScheduleError, FITTED, KEY)),
    "both": ("schedule", {(1, None): BLOCKS}, f"{BOTH}out batch_sizes."),
    "sizes": ("batch_sizes", [0, 5], SIZES.format([0, 5])),
    "text": ("batch_sizes", ["many"], SIZES.format(["many"])),
    "part": ("batch_sizes", [1.5], SIZES.format([1.5])),
    # whose text names the targets that tests have registered by then
    "target": (
        "target",
        "abacus",
        lambda: message(Target.parse, TargetError, "abacus"),
    ),
    "jobs": ("n_jobs", 0, "n_jobs == 0 in Parallel has no meaning"),
}
KINDS_OF_ERRORS = {"preset": ScheduleError, "key": ScheduleError, "target": TargetError}
KINDS_OF_ERRORS["jobs"] = ValueError


# ------------------------------------------------------------------- values


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name",
    [
        *("forest of three names", "forest of labels", "tree of three"),
        *("extra of columns", "xgboost of labels", "xgboost, dart"),
        *("xgboost of counts", "lightgbm of names", "hist of odd"),
    ],
)
def test_trains_a_clone_and_predicts_as_it_does(name):
    """``test_kinds.py`` has models that were fitted before."""
    kind = MODELS[name]
    before = pickle.dumps(kind.model)
    compiled = CompiledForest(kind.model).fit(kinds.X, TARGETS[kind.y])
    assert pickle.dumps(kind.model) == before
    source = compiled.estimator_
    assert source is not kind.model
    methods = ("predict", "predict_proba", "predict_log_proba", "apply")
    with np.errstate(divide="ignore"):
        assert_alike(compiled, source, kinds.X, methods=methods)


def test_scores_are_the_sources():
    weight = np.linspace(0, 1, 300)
    other = (Y + (np.arange(300) % 7 == 0)) % 3
    for model in (FITTED, RandomForestRegressor(3, random_state=0).fit(X, Y)):
        compiled = plain(model).fit(X)
        assert compiled.score(X, other) == model.score(X, other)
        assert compiled.score(X, other, weight) == model.score(X, other, weight)
    group = np.arange(300) // 10
    ranker = xgb.XGBRanker(n_estimators=2, n_jobs=1).fit(X, Y, qid=group)
    table = pytest.importorskip("pandas").DataFrame(X).assign(qid=group)
    assert plain(ranker).fit(X).score(table, Y) == ranker.score(table, Y)


# ------------------------------------------------------------------- prefit


def test_a_fitted_model_is_shared_and_not_changed():
    model = copy.deepcopy(FITTED)
    state = pickle.dumps(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = plain(model).fit(X)
    assert compiled.estimator_ is model
    compiled.predict(X)
    assert pickle.dumps(model) == state


def test_targets_for_a_fitted_model_warn():
    with pytest.warns(UserWarning) as caught:
        compiled = plain(FITTED).fit(X, 2 - Y, sample_weight=np.ones(300))
    advice = "prefit=True silences this warning, and prefit=False trains it again."
    assert [str(w.message) for w in caught] == [
        f"The RandomForestClassifier is already fitted, so y is ignored; {advice}",
        "The RandomForestClassifier is already fitted, so sample_weight is ignored; "
        + advice,
    ]
    assert {w.filename for w in caught} == {__file__}
    assert compiled.estimator_ is FITTED
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CompiledForest(FITTED, prefit=True).fit(X, 2 - Y)


def test_prefit_false_trains_again():
    compiled = plain(FITTED, prefit=False).fit(X, 2 - Y)
    assert compiled.estimator_ is not FITTED
    assert np.mean(compiled.predict(X) == 2 - Y) > 0.9


def test_prefit_true_wants_a_fitted_model():
    text = message(CompiledForest(forest(), prefit=True).fit, NotFittedError, X)
    assert text == (
        "This RandomForestClassifier instance is not fitted yet. Call 'fit' with "
        "appropriate arguments before using this estimator."
    )


def test_frozen_models_are_unwrapped_and_survive_clone():
    compiled = CompiledForest(FrozenEstimator(FITTED), schedule=BLOCKS)
    copied = clone(compiled)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copied.fit(X, Y)
    assert copied.estimator_ is FITTED
    same(copied.predict_proba(X), FITTED.predict_proba(X))
    frozen = CompiledForest(FrozenEstimator(FITTED), prefit=False)
    assert message(frozen.fit, InvalidInputError, X, Y) == (
        "prefit=False asks for training, but the estimator is FrozenEstimator, which "
        "cannot be trained; use prefit='auto'."
    )


def test_a_booster_survives_clone():
    booster = xgb.XGBClassifier(n_estimators=2, n_jobs=1).fit(X, Y > 0).get_booster()
    copied = clone(CompiledForest(booster))
    assert copied.estimator is not booster
    expected = plain(booster).fit(X).predict_proba(X)
    same(copied.fit(X).predict_proba(X), expected)
    assert is_classifier(CompiledForest(booster))


def test_a_fitted_model_inside_does_not_make_it_fitted():
    for name in ("predict", "predict_proba", "apply", "predict_raw"):
        with pytest.raises(NotFittedError):
            getattr(CompiledForest(FITTED), name)(X)
    with pytest.raises(NotFittedError):
        CompiledForest(FITTED).score(X, Y)
    assert not hasattr(CompiledForest(FITTED), "classes_")


# ------------------------------------------------- attributes, methods, tags


def test_fitted_attributes_are_the_models():
    compiled = plain(FITTED).fit(X)
    same(compiled.classes_, FITTED.classes_)
    same(compiled.feature_importances_, FITTED.feature_importances_)
    assert compiled.n_features_in_ == 6
    for name in ("nothing_", "n_estimators", "__array_interface__", "_private"):
        assert not hasattr(compiled, name)
    assert message(lambda: compiled.nothing_, AttributeError) == (
        "'CompiledForest' object has no attribute 'nothing_'"
    )


def test_methods_are_those_of_the_model():
    def names(compiled):
        every = ("predict", "predict_proba", "predict_log_proba", "apply", "score")
        more = ("decision_function", "score_samples")
        return {n for n in (*every, *more) if hasattr(compiled, n)}

    regression = {"predict", "apply", "score"}
    assert names(CompiledForest(RandomForestRegressor())) == regression
    proba = {*regression, "predict_proba"}
    assert names(CompiledForest(xgb.XGBClassifier())) == proba
    assert names(CompiledForest(forest())) == {*proba, "predict_log_proba"}


def test_tags_are_the_models_before_and_after_fit():
    booster = xgb.XGBRegressor(n_estimators=2, n_jobs=1)
    for model in (forest(), RandomForestRegressor(3), booster):
        compiled = CompiledForest(model)
        for _ in range(2):
            assert get_tags(compiled) == get_tags(model)
            assert get_tags(compiled).input_tags is not get_tags(model).input_tags
            assert is_classifier(compiled) == is_classifier(model)
            assert is_regressor(compiled) == is_regressor(model)
            compiled.fit(X, Y)


def test_tags_of_files_are_read_from_them(tmp_path):
    path = tmp_path / "model.json"
    xgb.XGBClassifier(n_estimators=2, n_jobs=1).fit(X, Y).save_model(path)
    assert is_classifier(CompiledForest(path))
    assert is_regressor(CompiledForest(load_forest(RandomForestRegressor(2).fit(X, Y))))
    assert not is_classifier(CompiledForest(tmp_path / "absent.json"))


def test_fitted_values_and_inspection():
    compiled = CompiledForest(FITTED).fit(X)
    assert compiled.tuning_result_ is None
    assert 0 < compiled.compile_time_ < 60
    assert compiled.target_ == Target.host()
    ranges = sorted(compiled.schedule_)
    assert ranges[0][0] == 1
    assert ranges[-1][1] is None
    assert compiled.forest_.n_trees == 5
    assert compiled.inspect("schedule") == repr(compiled.schedule_[ranges[-1]])
    assert compiled.inspect("schedule", n_rows=1) == repr(compiled.schedule_[ranges[0]])
    assert "define" in compiled.inspect("llvm")


# ----------------------------------------------------------------- parameters


def test_parameters_round_trip():
    compiled = CompiledForest(forest(), schedule=BLOCKS, batch_sizes=[1, 64], n_jobs=2)
    made = eval(repr(compiled))
    assert repr(made) == repr(compiled)
    assert made.get_params(deep=False).keys() == {
        *("estimator", "prefit", "schedule", "target", "reduction", "tuning"),
        *("tuning_budget", "batch_sizes", "gpu_min_rows", "n_jobs", "random_state"),
        "verbose",
    }
    made.set_params(estimator__max_depth=2, schedule="xgboost")
    assert made.estimator.max_depth == 2
    assert made.fit(X, Y).schedule_.keys() == {(1, 1), (2, None)}
    assert set(made.schedule_.values()) == {Schedule.preset("xgboost")}
    assert "CompiledForest" in made._repr_html_()


def test_set_params_leaves_what_was_compiled():
    compiled = CompiledForest(FITTED).fit(X)
    before = compiled.schedule_
    compiled.set_params(schedule=BLOCKS, reduction="fast", target="aarch64")
    assert compiled.schedule_ is before
    same(compiled.predict_proba(X), FITTED.predict_proba(X))
    loaded = pickle.loads(pickle.dumps(compiled))
    assert loaded.schedule_ == before
    same(loaded.predict_proba(X), FITTED.predict_proba(X))


def test_schedules_by_hand():
    table = {(1, 63): BLOCKS, (64, None): "treebeard-row"}
    compiled = CompiledForest(FITTED, schedule=table).fit(X)
    rest = Schedule.preset("treebeard-row")
    assert compiled.schedule_ == {(1, 63): BLOCKS, (64, None): rest}
    same(compiled.predict_proba(X), FITTED.predict_proba(X))
    alone = CompiledForest(FITTED, schedule=BLOCKS).fit(X)
    assert alone.schedule_ == {(1, None): BLOCKS}


def test_batch_sizes_make_the_ranges():
    compiled = CompiledForest(FITTED, batch_sizes=[4096, 1, 100]).fit(X)
    defaults = compile_forest(compiled.forest_).schedule_for
    assert compiled.schedule_ == {
        (1, 1): defaults(1),
        (2, 100): defaults(100),
        (101, None): defaults(4096),
    }


@pytest.mark.parametrize("name", REFUSED)
def test_parameters_that_are_refused(name):
    parameter, value, text = REFUSED[name]
    params = {parameter: value} | ({"batch_sizes": [1]} if name == "both" else {})
    compiled = CompiledForest(FITTED, **params)
    kind = KINDS_OF_ERRORS.get(name, InvalidInputError)
    assert message(compiled.fit, kind, X) == (text() if callable(text) else text)
    assert not hasattr(compiled, "estimator_")


CHECKED = [
    ("reduction", "quick", "a str among {'exact', 'fast', 'reproducible'}"),
    (
        *("tuning", "no"),
        "a str among {'exhaustive', 'halving', 'heuristic', 'learned', 'off', "
        "'random'} or an object implementing 'tune'",
    ),
    (
        *("schedule", 3),
        "an instance of 'str', an instance of 'skforge.schedule.schedule.Schedule' or "
        "an instance of 'collections.abc.Mapping'",
    ),
]


@pytest.mark.parametrize(("name", "value", "what"), CHECKED)
def test_parameters_are_checked_in_fit(name, value, what):
    with pytest.raises(ValueError) as error:
        CompiledForest(FITTED, **{name: value}).fit(X)

    def words(sentence):  # the order of a set's names is not the same in each run
        return sorted(sentence.translate(dict.fromkeys(map(ord, "{},."))).split())

    text = f"The {name!r} parameter of CompiledForest must be {what}. "
    assert words(str(error.value)) == words(f"{text}Got {value!r} instead.")


class TakesNoWeight(RandomForestClassifier):
    def fit(self, X, y):
        return super().fit(X, y)


def test_models_that_cannot_be_compiled():
    dummy = DummyClassifier().fit(X, Y)
    expected = message(load_forest, UnsupportedModelError, dummy)
    found = message(CompiledForest(dummy).fit, UnsupportedModelError, X)
    assert found == expected
    fit = CompiledForest(TakesNoWeight()).fit
    text = message(fit, TypeError, X, Y, sample_weight=Y)
    assert text == "TakesNoWeight.fit does not accept sample_weight."


# ------------------------------------------------------------ metadata routing


def test_metadata_is_routed():
    weight = np.linspace(0, 1, 300)
    with config_context(enable_metadata_routing=True):
        inner = forest().set_fit_request(sample_weight=True)
        inner.set_score_request(sample_weight=False)
        compiled = plain(inner).fit(X, Y, sample_weight=weight)
        refused = plain(forest())
        with pytest.raises(ValueError) as error:
            refused.fit(X, Y, sample_weight=weight)
        assert "sample_weight" in str(error.value)
        assert not hasattr(compiled, "set_fit_request")
        compiled.get_metadata_routing()
    expected = forest().fit(X, Y, sample_weight=weight)
    same(compiled.predict_proba(X), expected.predict_proba(X))


@pytest.mark.parametrize(
    ("method", "argument"),
    [
        ("predict", {"output_margin": True}),
        ("predict", {"iteration_range": (0, 1)}),
        ("predict_proba", {"iteration_range": (0, 1)}),
    ],
)
def test_requests_of_predictions_reach_the_model(method, argument):
    with config_context(enable_metadata_routing=True):
        inner = xgb.XGBClassifier(n_estimators=2, n_jobs=1)
        getattr(inner, f"set_{method}_request")(**dict.fromkeys(argument, True))
        source = make_pipeline(StandardScaler(), inner).fit(X, Y)
        last = CompiledForest(inner, tuning="off")
        compiled = make_pipeline(StandardScaler(), last).fit(X, Y)
        expected = getattr(source, method)(X, **argument)
        same(getattr(compiled, method)(X, **argument), expected)
