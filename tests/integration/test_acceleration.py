"""``skforge.accelerate()``: programs keep their bits, warnings, errors and models."""

from __future__ import annotations

import gc
import inspect
import logging
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn import ensemble
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skforge
from skforge import InvalidInputError, Schedule
from skforge.acceleration import api, patching
from skforge.acceleration.kernels import Kernels, unlike
from skforge.acceleration.records import RECORDS, record_of
from skforge.acceleration.settings import Settings
from tests.accelerated_models import (
    EAGER,
    FEW,
    FRAME,
    LIGHT,
    METHODS,
    MODELS,
    OTHER,
    SCALED,
    X,
    Y,
    by_kernels,
    catboost,
    forest,
    lgb,
    plainly,
    warm,
    xgb,
)
from tests.compared_calls import called
from tests.programs import run_python
from tests.refusals import error_of

pytestmark = pytest.mark.usefixtures("restored")
#: Schedules of two ranges of batch sizes.
TABLE: Any = {(1, 9): Schedule(), (10, None): Schedule().tile("batch", "a", "b", 8)}


@pytest.mark.parametrize("name", MODELS)
def test_kernels_answer_with_the_bits_of_the_library(name):
    model = clone(MODELS[name]).fit(X, Y)
    methods = [m for m in METHODS if hasattr(model, m)]
    forms = X, X.astype(np.float32), X[:1], np.asfortranarray(X), OTHER
    expected = [[getattr(model, m)(rows) for rows in forms] for m in methods]
    api.start((), EAGER)
    for _ in range(3):
        for method, answers in zip(methods, expected, strict=True):
            for rows, wanted in zip(forms, answers, strict=True):
                assert unlike(getattr(model, method)(rows), wanted) == ""
    assert by_kernels(model) > len(methods) * len(forms)


def test_a_first_answer_is_the_librarys_and_compared(eager):
    model = forest()
    for _ in range(4):
        model.predict(X)
    (line,) = [
        x for x in skforge.acceleration_report() if x.model == type(model).__name__
    ]
    assert line.method == "predict"
    assert (line.kernel_calls, line.library_calls) == (2, 2)
    assert line.reasons == {
        "too few calls so far": 1,
        "the rows were of a new form, and compared": 1,
    }


def test_pipelines_are_compiled_whole_and_forests_behind_other_steps(eager):
    model = clone(SCALED).fit(X, Y)
    warm(model)
    assert by_kernels(model) and record_of(model[-1]) is None
    behind = make_pipeline(PCA(3), ensemble.RandomForestClassifier(**FEW)).fit(X, Y)
    for _ in range(4):
        behind.predict_proba(X)
    assert by_kernels(behind) == 0
    assert by_kernels(behind[-1]) == 1


# ------------------------------------------------------------ changes of a model


def _swap(model: Any) -> None:
    model.estimators_[0], model.estimators_[1] = model.estimators_[:2][::-1]
    model.estimators_[0] = forest(criterion="entropy").estimators_[3]


def _prune(model: Any) -> None:
    tree = model.estimators_[1].tree_
    tree.children_left[0] = tree.children_right[0] = -1


def _patch_class(model: Any) -> None:
    own = ensemble.RandomForestClassifier.predict_proba
    kind = type("Mine", (ensemble.RandomForestClassifier,), {})
    kind.predict_proba = lambda self, X: own(self, X)[:, ::-1]
    model.__class__ = kind


CHANGES: dict[str, Callable[[Any], Any]] = {
    "refit": lambda m: m.fit(OTHER, np.arange(50) % 2),
    "more trees": lambda m: m.set_params(warm_start=True, n_estimators=6).fit(X, Y),
    "other trees": _swap,
    "fewer trees": lambda m: m.estimators_.pop(),
    "another list": lambda m: setattr(m, "estimators_", m.estimators_[1:]),
    "a value": lambda m: (
        m.estimators_[2].tree_.value.__setitem__(0, 0.5)
        or m.estimators_[2].tree_.value.__imul__(0.5)
    ),
    "a threshold": lambda m: m.estimators_[0].tree_.threshold.__isub__(0.7),
    "pruned": _prune,
    "labels": lambda m: m.classes_.__iadd__(5),
    "other labels": lambda m: setattr(m, "classes_", np.array(["a", "b"])),
    "a method": lambda m: setattr(
        m, "predict_proba", lambda X: np.eye(2)[[0] * len(X)]
    ),
    "a class": _patch_class,
    "a state": lambda m: m.__setstate__(forest(bootstrap=False).__getstate__()),
    "its attributes": lambda m: setattr(
        m, "__dict__", {**vars(forest(max_features=1))}
    ),
    "a tree's tree": lambda m: setattr(
        m.estimators_[0], "tree_", forest(max_features=1).estimators_[0].tree_
    ),
}


def _set_threshold(model: Any) -> None:
    model.get_metadata()["binclass_probability_threshold"] = "0.9"


BOOSTERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "xgboost, trained": (
        "xgboost",
        lambda m: m.get_booster().update(xgb.DMatrix(X, 1 - Y), 4),
    ),
    "xgboost, loaded": (
        "xgboost",
        lambda m: m.get_booster().load_model(
            clone(m).fit(X, 1 - Y).get_booster().save_raw()
        ),
    ),
    "xgboost, other rounds": (
        "xgboost",
        lambda m: (
            m.get_booster().set_attr(best_iteration="0")
            or m.set_params(early_stopping_rounds=2)
        ),
    ),
    "lightgbm, a leaf": ("lightgbm", lambda m: m.booster_.set_leaf_output(0, 0, 3.0)),
    "lightgbm, read": (
        "lightgbm",
        lambda m: m.booster_.model_from_string(
            clone(m).fit(X, 1 - Y).booster_.model_to_string()
        ),
    ),
    "lightgbm, rounds": (
        "lightgbm",
        lambda m: setattr(m.booster_, "best_iteration", 1),
    ),
    "catboost, scaled": ("catboost", lambda m: m.set_scale_and_bias(2.0, 0.25)),
    "catboost, shrunk": ("catboost", lambda m: m.shrink(2)),
    "catboost, metadata": ("catboost", _set_threshold),
}


@pytest.mark.parametrize("name", [*CHANGES, *BOOSTERS])
def test_a_changed_model_answers_as_its_library_does(eager, name):
    library, change = BOOSTERS.get(name) or ("forest", CHANGES[name])
    model = clone(MODELS[library]).fit(X, Y)
    before = warm(model, method="predict_proba"), warm(model, method="predict")
    change(model)
    asked = [
        lambda m, name=name: getattr(m, name)(X)
        for name in ("predict_proba", "predict")
    ]
    expected = [plainly(call, model) for call in asked]
    differs = [unlike(a[0], b) for a, b in zip(expected, before, strict=True)]
    assert any(differs), "the change changes nothing"
    for _ in range(3):
        for call, wanted in zip(asked, expected, strict=True):
            assert wanted[1] == "" and unlike(call(model), wanted[0]) == ""


def test_a_booster_of_lightgbm_is_watched_and_freed(eager):
    data = lgb.Dataset(X, Y, free_raw_data=False)
    how = {"objective": "binary", "verbose": -1, "num_threads": 1}
    model = lgb.train(how, data, 4, keep_training_booster=True)
    before = warm(model, method="predict")
    model.rollback_one_iter()
    expected = plainly(lambda m: m.predict(X), model)[0]
    assert unlike(before, expected)
    for _ in range(3):
        assert unlike(model.predict(X), expected) == ""
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


# ------------------------------------------------------------ calls as they were


def _with(X: Any, value: float) -> Any:
    X = X.copy()
    X[3, 2] = value
    return X


ODD: dict[str, Any] = {
    "list": X.tolist(),
    "frame": FRAME,
    "frame, other order": FRAME[[*"edcba"]],
    "matrix": np.matrix(X),
    "one dimension": X[0],
    "three dimensions": X[None],
    "too wide": np.hstack([X, X]),
    "no rows": X[:0],
    "NaN": _with(X, np.nan),
    "infinity": _with(X, np.inf),
    "too large for float32": _with(X, 1e300),
    "too small for float32": _with(X, 1e-320),
    "objects": X.astype(object),
    "texts": X.astype(str),
    "whole": X.astype(int),
    "big-endian": X.astype(">f8"),
    "None": None,
    "longdouble": X.astype(np.longdouble),
}


@pytest.mark.parametrize("on", ["array", "frame"])
@pytest.mark.parametrize("name", ["forest", "histogram", "xgboost", "lightgbm"])
def test_warnings_and_errors_are_the_librarys(eager, name, on):
    model = clone(MODELS[name]).fit(X if on == "array" else FRAME, Y)
    warm(model, X if on == "array" else FRAME)
    for rows in ODD.values():
        for how in ("ignore", "raise"):

            def call(m: Any, rows: Any = rows, how: Any = how) -> Any:
                with np.errstate(all=how):
                    return m.predict_proba(rows)

            expected = plainly(call, model)
            warm(model, X if on == "array" else FRAME)
            for _ in range(3):
                answer = called(call, model)
                assert answer[1:] == expected[1:]
                assert answer[1] or unlike(answer[0], expected[0]) == ""


def test_subclasses_keep_their_overrides(eager):
    class Doubtful(ensemble.RandomForestClassifier):
        def predict_proba(self, X):
            return super().predict_proba(X) * 0.5

    model = Doubtful(**FEW).fit(X, Y)
    expected = forest().predict_proba(X) * 0.5
    for _ in range(4):
        assert unlike(model.predict_proba(X), expected) == ""
    assert by_kernels(model) == 0


def test_wrapped_methods_look_as_before():
    kinds = [ensemble.RandomForestClassifier, ensemble.HistGradientBoostingClassifier]
    kinds += [xgb.XGBClassifier, lgb.LGBMClassifier, catboost.CatBoostClassifier]
    kinds += [type(SCALED)]
    names = ("predict", "predict_proba", "fit")

    def looks() -> list[Any]:
        found = []
        for kind, name in ((kind, name) for kind in kinds for name in names):
            method = getattr(kind, name)
            parts = method.__name__, method.__qualname__, method.__module__
            told = method.__doc__, str(inspect.signature(method))
            bare = kind() if kind is not kinds[-1] else SCALED
            bound = str(inspect.signature(getattr(bare, name)))
            arguments = inspect.getfullargspec(inspect.unwrap(method))
            code = inspect.getsource(method)
            found.append((*parts, *told, bound, arguments, code))
        return [*found, [sorted(vars(base)) for k in kinds for base in k.__mro__]]

    own = [vars(base).get(n) for k in kinds for base in k.__mro__ for n in names]
    before = looks()
    api.start((), EAGER)
    api.start((), EAGER)
    wrapped = looks()
    skforge.restore()
    after = [vars(base).get(n) for k in kinds for base in k.__mro__ for n in names]
    assert wrapped == before == looks()
    assert all(a is b for a, b in zip(own, after, strict=True))


def test_what_others_put_over_ours_stays(eager, monkeypatch):
    kind, model = ensemble.RandomForestRegressor, MODELS["forest of values"].fit(X, Y)
    warm(model, method="predict")
    own = kind.predict
    monkeypatch.setattr(kind, "predict", lambda self, X: own(self, X) + 1)
    expected = plainly(lambda m: own(m, X), model)[0] + 1
    for _ in range(3):
        assert unlike(model.predict(X), expected) == ""
    skforge.restore()
    assert "lambda" in repr(kind.predict)


def test_models_are_untouched_and_pickles_need_no_skforge(eager, tmp_path):
    model = forest()
    before = {**vars(model)}
    answer = warm(model)
    assert vars(model) == before and type(model) is ensemble.RandomForestClassifier
    assert clone(model).get_params() == model.get_params()
    copied = pickle.loads(pickle.dumps(model))
    assert unlike(copied.predict_proba(X), answer) == ""
    (tmp_path / "model").write_bytes(pickle.dumps((model, X)))
    code = (
        "import pickle, sys; sys.modules['skforge'] = None\n"
        "model, X = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(model.predict_proba(X).tobytes().hex())"
    )
    told = run_python(code, tmp_path / "model").strip()
    assert told == answer.tobytes().hex()


def test_a_model_that_is_gone_leaves_nothing(eager):
    for name in ("forest", "histogram", "xgboost", "lightgbm", "catboost", "pipeline"):
        model = clone(MODELS[name]).fit(X, Y)
        model.owner = [model]  # a cycle of the program's own
        if name in ("lightgbm", "catboost"):
            del model.owner
        warm(model)
        alive, key = weakref.ref(model), id(model)
        del model
        gc.collect()
        assert alive() is None, name
        assert key not in RECORDS


def test_what_fit_asks_is_left_alone(eager, monkeypatch):
    asked = []
    model = ensemble.HistGradientBoostingClassifier(
        max_iter=3, early_stopping=True, scoring="accuracy", random_state=0
    )
    own = api.calls.first
    monkeypatch.setattr(api.calls, "first", lambda *a: asked.append(a) or own(*a))
    model.fit(X, Y)
    assert asked == []
    model.predict(X)
    assert len(asked) == 1


# ------------------------------------------------------------ faults of ours


def test_a_wrong_kernel_never_answers(eager, monkeypatch, caplog):
    own = Kernels.answer
    monkeypatch.setattr(Kernels, "answer", lambda *a: own(*a) + 1)
    model = forest()
    expected = plainly(lambda m: m.predict_proba(X), model)[0]
    with caplog.at_level(logging.WARNING, "skforge"):
        for _ in range(4):
            assert unlike(model.predict_proba(X), expected) == ""
    assert [r.message for r in caplog.records] == [
        "accelerate: RandomForestClassifier.predict_proba of ndarray: kernels give "
        "other values. The library answers. Please report this."
    ]
    assert by_kernels(model) == 0


def test_a_share_of_calls_is_compared_later(monkeypatch, caplog):
    monkeypatch.setenv("SKFORGE_CHECK", "1")
    model = forest()
    expected = model.predict_proba(X)
    api.start((), EAGER)
    warm(model)
    own = Kernels.answer
    monkeypatch.setattr(Kernels, "answer", lambda *a: own(*a) + 1)
    with caplog.at_level(logging.WARNING, "skforge"):
        assert unlike(model.predict_proba(X), expected) == ""
    assert "kernels give other values" in caplog.text
    assert record_of(model).state == "left"


@pytest.mark.parametrize(
    "where", ["__init__", "compile", "compare", "answer", "is_same"]
)
def test_a_failure_of_ours_is_logged_once(eager, monkeypatch, caplog, where):
    def fail(*_: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(Kernels, where, fail)
    model = forest()
    expected = plainly(lambda m: m.predict(X), model)[0]
    with caplog.at_level(logging.WARNING, "skforge"):
        for _ in range(5):
            assert unlike(model.predict(X), expected) == ""
    assert [r.message for r in caplog.records] == [
        "accelerate: the library answers for a RandomForestClassifier from now on, as "
        "skforge failed: RuntimeError: planted. Please report this."
    ]


def test_models_that_print_or_are_not_watched_are_left(eager):
    talking = forest(verbose=1)
    strange = forest()
    strange.estimators_[0].owner = object()
    own = make_pipeline(StandardScaler(), forest()).fit(X, Y)
    own[-1].predict = lambda rows: np.zeros(len(rows))
    ignoring = "not compiled: it prints which of its parameters it ignores"

    def lightgbm(**named: Any) -> Any:
        return lgb.LGBMClassifier(n_estimators=2, **named).fit(X, Y)

    for model, why in (
        (
            own,
            "not compiled: the predict of its RandomForestClassifier is not the "
            "class's",
        ),
        (talking, "not compiled: it prints what it does"),
        (strange, "not compiled: a part of it has owner, a object"),
        (lightgbm(subsample_freq=1, bagging_freq=2), ignoring),
        (lightgbm(verbose=1, nonsense=3), ignoring),
        (lightgbm(verbose=-1, nonsense=3), ""),
        (lightgbm(max_bin=63, num_threads=1, seed=3), ""),
    ):
        for _ in range(3):
            model.predict(X)
        state = "left" if why else "ready"
        assert (record_of(model).state, record_of(model).why) == (state, why)


# ------------------------------------------------------------ switching


def test_errors_of_floats_are_about_the_users_arithmetic(eager):
    model = forest()
    with np.errstate(under="raise"):
        for _ in range(3):
            model.predict_proba(X)
    assert record_of(model).state == "ready"


def test_a_thread_of_its_own_compiles(monkeypatch):
    model = forest()
    expected = model.predict_proba(X)
    skforge.accelerate("sklearn", min_calls=2)
    how = {**vars(api.ACTIVE.settings), "least_seconds": 0.0, "schedule": TABLE}
    monkeypatch.setattr(api.calls, "seconds_to_compile", lambda *_: 0.0)
    monkeypatch.setattr(api.calls, "debt", lambda: 0.0)
    monkeypatch.setattr(api.calls, "_WORTH", 0.0)
    api.ACTIVE.settings = Settings(**how)
    for _ in range(3):  # imports, reads and compiles
        assert unlike(model.predict_proba(X), expected) == ""
        api.wait()
    assert record_of(model).state == "ready"
    for rows in (X, X[:5]):
        for _ in range(3):
            answer = model.predict_proba(rows)
            assert answer.tobytes() == expected[: len(rows)].tobytes()
            api.wait()
    assert record_of(model).kernels._own == {0: {0, 1}}


def test_a_kernel_answers_for_other_sizes_until_they_have_their_own():
    linear = lgb.LGBMClassifier(**LIGHT, linear_tree=True).fit(X, Y)
    models = forest(), linear
    wanted, few = (
        [plainly(lambda m, rows=rows: m.predict_proba(rows), m)[0] for m in models]
        for rows in (X, X[:5])
    )
    api.start((), Settings(min_calls=1, eager=True, schedule=TABLE))
    for model, of_all, of_few in zip(models, wanted, few, strict=True):
        warm(model)
        own = record_of(model).kernels._own[0]
        assert own == {1}
        before = by_kernels(model)
        for _ in range(3):  # the first call compiles another kernel in the end
            assert unlike(model.predict_proba(X[:5]), of_few) == ""
            assert own == {0, 1}
        assert unlike(model.predict_proba(X), of_all) == ""
        assert by_kernels(model) == before + 4


@pytest.mark.parametrize("name", ["forest", "xgboost", "lightgbm", "pipeline"])
def test_a_simple_kernel_answers_until_another_takes_its_place(monkeypatch, name):
    model = clone(MODELS[name]).fit(X, Y)
    expected = [plainly(lambda m, r=r: m.predict(r), model)[0] for r in (X, X[:5])]
    monkeypatch.setattr(api.calls, "begins_simple", lambda *_: True)
    api.start((), Settings(min_calls=1, eager=True, schedule=TABLE))
    found = []
    for _ in range(4):
        for rows, wanted in zip((X, X[:5]), expected, strict=True):
            assert unlike(model.predict(rows), wanted) == ""
            found.append((record_of(model).kernels.is_simple, by_kernels(model)))
    # the first call compiles, and the second is compared; others are compared anew
    assert found[:4] == [(True, 0), (True, 0), (False, 1), (False, 1)]
    assert found[-1] == (False, 5) and record_of(model).kernels._own == {0: {0, 1}}


def test_calls_with_few_rows_are_left_alone():
    model = forest()
    api.start((), Settings(min_rows=100, min_calls=1, eager=True, schedule=Schedule()))
    for _ in range(3):
        model.predict(X[:99])
    assert record_of(model).state == "watched"
    warm(model)


def test_a_block_is_accelerated():
    own = vars(ensemble.GradientBoostingRegressor)["predict"]
    with skforge.accelerated("sklearn"):
        assert vars(ensemble.GradientBoostingRegressor)["predict"] is not own
        with skforge.accelerated("xgboost", min_rows=7):
            assert api.ACTIVE.settings.min_rows == 7
        assert api.ACTIVE.settings.min_rows == 1
    assert vars(ensemble.GradientBoostingRegressor)["predict"] is own
    assert patching._PATCHED == [] and api.ACTIVE.settings is None


def test_nothing_is_wrapped_where_the_library_is_to_answer(monkeypatch):
    monkeypatch.setenv("SKFORGE_OFF", "1")
    own = vars(ensemble.GradientBoostingRegressor)["predict"]
    skforge.accelerate()
    assert vars(ensemble.GradientBoostingRegressor)["predict"] is own


@pytest.mark.parametrize(
    ("libraries", "how", "told"),
    [
        (
            ("torch",),
            {},
            "'torch' is no library that skforge accelerates; name some of sklearn, "
            "xgboost, lightgbm, catboost, or none for all.",
        ),
        (
            (),
            {"min_rows": -1},
            "min_rows must be a whole number from 0 on. Got -1 instead.",
        ),
        (
            (),
            {"min_calls": 0},
            "min_calls must be a whole number from 1 on. Got 0 instead.",
        ),
    ],
)
def test_wrong_arguments_are_refused(libraries, how, told):
    assert error_of(InvalidInputError, skforge.accelerate, *libraries, **how) == told
    assert api.ACTIVE.settings is None
