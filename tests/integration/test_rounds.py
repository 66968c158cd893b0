"""Some boosting rounds, and the answers after each: the libraries' bits for every k."""

from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import replace
from functools import cache
from typing import Any

import catboost as cb
import lightgbm as lgb
import numpy as np
import pytest
import xgboost as xgb
from scipy import sparse
from sklearn import ensemble as e
from sklearn.tree import DecisionTreeClassifier

from skforge import CompiledForest, InvalidInputError, load_forest
from skforge.engine import by_round, targets
from skforge.exceptions import SourceNeededError, UnsupportedModelError
from skforge.forest.rounds import BoostingRounds
from skforge.frontends.xgboost.model import _parallel_trees
from skforge.modules import methods
from skforge.modules.auto import AutoModule
from skforge.modules.compiled import compile_forest
from skforge.schedule.schedule import Schedule
from tests.compared_calls import called
from tests.comparing import refusal, saved
from tests.exactness.forests import forest
from tests.plain import plain

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(1200, 6)).astype(np.float32)
GAPS = np.where(RANDOM.random(X.shape) < 0.1, np.nan, X).astype(np.float32)
SCORE = X[:, 0] * X[:, 1] + X[:, 2]
TWO, THREE = (SCORE > 0).astype(int), np.digitize(SCORE, [-0.5, 0.5])
BOTH = np.c_[SCORE, 2 * SCORE]
N = 9

OF_THREE = {"objective": "multi:softprob", "num_class": 3}
XGBOOST = {
    "regression": ({}, SCORE),
    "binary": ({"objective": "binary:logistic"}, TWO),
    "classes": (OF_THREE, THREE),
    "parallel": ({"num_parallel_tree": 3, "subsample": 0.5}, SCORE),
    "parallel classes": ({"num_parallel_tree": 2, "subsample": 0.5, **OF_THREE}, THREE),
    "dart": ({"booster": "dart", "rate_drop": 0.3}, SCORE),
    "targets": ({}, BOTH),
    "vectors": ({"multi_strategy": "multi_output_tree", "tree_method": "hist"}, BOTH),
    "gamma": ({"objective": "reg:gamma"}, np.abs(SCORE) + 0.1),
}
BAGS = {"bagging_freq": 1, "bagging_fraction": 0.6}
LIGHTGBM = {
    "regression": ({}, SCORE),
    "binary": ({"objective": "binary"}, TWO),
    "classes": ({"objective": "multiclass", "num_class": 3}, THREE),
    "averages": ({"boosting": "rf", **BAGS}, SCORE),
    "dart": ({"boosting": "dart"}, SCORE),
}
CATBOOST = {
    "regression": ("CatBoostRegressor", {}, SCORE),
    "binary": ("CatBoostClassifier", {}, TWO),
    "classes": ("CatBoostClassifier", {}, THREE),
    "poisson": ("CatBoostRegressor", {"loss_function": "Poisson"}, np.abs(SCORE)),
    "targets": ("CatBoostRegressor", {"loss_function": "MultiRMSE"}, BOTH),
    "lossguide": ("CatBoostRegressor", {"grow_policy": "Lossguide"}, SCORE),
    "scaled": ("CatBoostRegressor", {}, SCORE),
}


@pytest.fixture(autouse=True)
def plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile kernels in a tenth of the time; ``test_by_tree`` has the others."""
    table = {(1, None): Schedule()}
    monkeypatch.setattr(targets, "default_table", lambda *_, **__: table)


def same(found: Any, wanted: Any, what: Any = "") -> None:
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), what
    assert found.tobytes() == wanted.tobytes(), what


def all_same(found: Any, wanted: Any, what: Any = "") -> None:
    found, wanted = list(found), list(wanted)
    assert len(found) == len(wanted) > 1, what
    for k, (one, other) in enumerate(zip(found, wanted, strict=True)):
        same(one, other, (what, k))


@cache
def boosted(library: str, kind: str) -> Any:
    """Return a model, and its module."""
    if library == "xgboost":
        params, labels = XGBOOST[kind]
        how = {"max_depth": 3, "nthread": 1, **params}
        model = xgb.train(how, xgb.DMatrix(GAPS, labels), N)
    elif library == "lightgbm":
        params, labels = LIGHTGBM[kind]
        how = {"verbose": -1, "num_threads": 1, "num_leaves": 7, **params}
        model = lgb.train(how, lgb.Dataset(GAPS, labels), N)
    else:
        name, params, labels = CATBOOST[kind]
        how = {"iterations": N, "depth": 3, "verbose": 0, "thread_count": 1, **params}
        model = getattr(cb, name)(allow_writing_files=False, **how).fit(GAPS, labels)
        if kind == "scaled":
            model.set_scale_and_bias(0.3, 0.7)
    return model, compile_forest(model)


def rows_of(library: str) -> Any:
    return GAPS.astype(float) if library == "lightgbm" else GAPS


def own(library: str, model: Any, begin: int, end: int, raw: bool = False) -> Any:
    rows = rows_of(library)
    if library == "xgboost":
        import xgboost as xgb

        how = {"output_margin": raw, "iteration_range": (begin, end)}
        return model.predict(xgb.DMatrix(rows), **how)
    if library == "lightgbm":
        how = {"start_iteration": begin, "num_iteration": end - begin}
        return model.predict(rows, raw_score=raw, **how)
    import catboost as cb

    how = {"ntree_start": begin, "ntree_end": end}
    return cb.CatBoost.predict(model, rows, prediction_type="RawFormulaVal", **how)


def chosen(library: str, begin: int, end: int) -> dict[str, Any]:
    names = by_round.ARGUMENTS[library]
    if library == "xgboost":
        return {names[0]: (begin, end)}
    return dict(
        zip(names, (begin, end - begin if library == "lightgbm" else end), strict=True)
    )


MODELS = [("xgboost", kind) for kind in XGBOOST]
MODELS += [("lightgbm", kind) for kind in LIGHTGBM]
MODELS += [("catboost", kind) for kind in CATBOOST]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("library", "kind"), MODELS)
def test_modules_answer_for_rounds_with_the_librarys_bits(library, kind):
    model, module = boosted(library, kind)
    rows = rows_of(library)
    raw = [*module.staged_predict_raw(rows)]
    if library == "catboost":
        how = {"prediction_type": "RawFormulaVal"}
        all_same(raw, model.staged_predict(rows, **how))
        for begin, step in ((0, 2), (3, 4)):
            steps: Any = begin, N, step
            found = module.stages(lambda: [rows[:500], rows[500:]], len(rows), *steps)
            more = {"ntree_start": begin, "eval_period": step}
            all_same((r for _, r in found), model.staged_predict(rows, **how, **more))
    else:
        all_same(raw, (own(library, model, 0, k, True) for k in range(1, N + 1)))
        values = (own(library, model, 0, k) for k in range(1, N + 1))
        all_same(module.staged_predict(rows), values)
    for begin, end in ((0, 1), (0, N), (2, 5), (N - 1, N)):
        rounds = chosen(library, begin, end)
        found = module.predict_raw(rows, **rounds)
        same(found, own(library, model, begin, end, True), rounds)
        few = load_forest(model, iteration_range=(begin, end))
        part = module.rounds.part(begin, end)
        assert part.content_hash() == few.content_hash(), rounds
        if library != "catboost":
            found = module.predict(rows, **rounds)
            same(found, own(library, model, begin, end), rounds)
    for n in (0, 1, 2):
        all_same(module.staged_predict_raw(rows[:n]), (stage[:n] for stage in raw))
    other = pickle.loads(pickle.dumps(module))
    all_same(other.staged_predict_raw(rows[:5]), (stage[:5] for stage in raw))


def test_lightgbm_goes_on_to_the_end() -> None:
    model, module = boosted("lightgbm", "binary")
    rows = rows_of("lightgbm")
    for start in (-1, 0, 2):
        for count in (None, -1, 0, 3, N - 1, N + 1, 100):
            how = {"start_iteration": start, "num_iteration": count}
            same(module.predict(rows, **how), model.predict(rows, **how), how)


def test_catboost_begins_later_only_with_an_end() -> None:
    _, module = boosted("catboost", next(iter(CATBOOST)))
    same(module.predict_raw(GAPS, ntree_start=0), module.predict_raw(GAPS))
    with pytest.raises(InvalidInputError, match="ntree_start=2 does not lie within"):
        module.predict_raw(GAPS, ntree_start=2)


def test_all_rounds_are_chosen_by_zeros() -> None:
    _, module = boosted("xgboost", "classes")
    wanted = module.predict(GAPS)
    same(module.predict(GAPS, iteration_range=(0, 0)), wanted)
    out = np.empty_like(wanted)
    assert module.predict(GAPS, iteration_range=(0, N), out=out) is out
    same(out, wanted)
    few = module.predict(GAPS, iteration_range=(2, 0), out=out)
    assert few is out
    same(out, module.predict(GAPS, iteration_range=(2, N)))


def test_rounds_asked_for_often_get_a_kernel(monkeypatch: Any) -> None:
    _, module = boosted("xgboost", "parallel classes")
    wanted = module.predict_raw(GAPS, iteration_range=(1, 4))
    assert isinstance(module._of_rounds[1, 4], int)
    monkeypatch.setattr(by_round, "MANY_LEAVES", 1)
    same(module.predict_raw(GAPS, iteration_range=(1, 4)), wanted)
    assert module._of_rounds[1, 4].forest.n_trees == 3 * 6
    monkeypatch.setattr(by_round, "KEPT", 1)
    module._of_rounds.clear()
    module.predict_raw(GAPS[:3], iteration_range=(1, 3))
    module.predict_raw(GAPS[:3], iteration_range=(0, 3))
    assert [*module._of_rounds] == [(0, 3)]
    both = AutoModule(module, module, 10)
    same(
        both.predict(GAPS, iteration_range=(1, 4)),
        module.predict(GAPS, iteration_range=(1, 4)),
    )
    all_same(both.staged_predict(GAPS), module.staged_predict(GAPS))


@pytest.mark.parametrize(
    ("library", "kind"), [("xgboost", "parallel classes"), ("catboost", "regression")]
)
def test_many_rows_are_kept_for_some_rounds_at_a_time(library, kind, monkeypatch):
    _, module = boosted(library, kind)
    rows = np.resize(GAPS, (3000, 6))
    wanted = [*module.staged_predict_raw(rows)]
    size = rows.shape[0] * module.rounds.width * module.forest._dtypes[1].itemsize
    monkeypatch.setattr(by_round, "MOST_BYTES", 5 * size)
    tracemalloc.start()
    for k, raw in enumerate(module.staged_predict_raw(rows)):
        same(raw, wanted[k], k)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 7 * size + (2 << 20), peak


# --------------------------------------------------------------------- estimators

STAGED = ("staged_predict", "staged_predict_proba", "staged_decision_function")
LETTERS = np.array(list("abc"))[THREE]
STUMPS = e.AdaBoostClassifier(
    DecisionTreeClassifier(max_depth=2), n_estimators=11, random_state=0
)
SKLEARN = {
    "two": (e.GradientBoostingClassifier(n_estimators=5, random_state=0), TWO),
    "three": (e.GradientBoostingClassifier(n_estimators=4, random_state=0), LETTERS),
    "regression": (e.GradientBoostingRegressor(n_estimators=5, init="zero"), SCORE),
    "histogram": (e.HistGradientBoostingClassifier(max_iter=5), LETTERS),
    "histogram two": (e.HistGradientBoostingClassifier(max_iter=5), TWO),
    "poisson": (
        e.HistGradientBoostingRegressor(max_iter=5, loss="poisson"),
        np.abs(SCORE),
    ),
    "adaboost": (STUMPS, TWO),
    "adaboost three": (STUMPS, LETTERS),
    "medians": (e.AdaBoostRegressor(n_estimators=11, random_state=0), SCORE),
}


@pytest.mark.parametrize("kind", SKLEARN)
def test_scikit_learns_stages(kind: str) -> None:
    """``test_surface.py`` compares them in all states."""
    model, labels = SKLEARN[kind]
    model.fit(X, labels)
    fast = plain(model).fit(X[:50])
    for name in STAGED:
        assert hasattr(fast, name) == hasattr(model, name)
        if not hasattr(model, name):
            continue
        stages = getattr(model, name)
        for rows in (X, X[:1], X[:2].tolist()):
            all_same(getattr(fast, name)(rows), stages(rows), (name, len(rows)))
        if "istogram" in kind:
            all_same(getattr(fast, name)(GAPS), stages(GAPS), name)
        elif kind != "poisson":
            rows = sparse.csr_matrix(X[:60])
            all_same(getattr(fast, name)(rows), stages(rows), name)
        for wrong in (X[:, :3], np.full_like(X, np.inf)):
            errors = {
                called(lambda rows, ask=ask: next(ask(rows)), wrong)[1]
                for ask in (getattr(fast, name), stages)
            }
            assert len(errors) == 1
    assert fast.counters()["library"]["rows"] == 0


def test_stages_are_offered_where_the_model_has_rounds() -> None:
    forest_ = e.RandomForestClassifier(3)
    assert not any(hasattr(CompiledForest(forest_), name) for name in STAGED)
    fast = plain(forest_.fit(X, TWO)).fit(X[:50])
    assert not any(hasattr(fast, name) for name in STAGED)
    unfitted = CompiledForest(e.GradientBoostingClassifier())
    assert hasattr(unfitted, "staged_predict_proba")
    assert not hasattr(CompiledForest(e.GradientBoostingRegressor()), STAGED[1])
    module = compile_forest(forest_)
    assert refusal(UnsupportedModelError, module.staged_predict, X) == (
        "The model has no boosting rounds, so there are no predictions after each of "
        "them."
    )


def wrapped(library: str, early: bool) -> Any:
    noisy = np.where(RANDOM.random(300) < 0.3, 2 - THREE[:300], THREE[:300])
    if library == "xgboost":
        how: Any = {"early_stopping_rounds": 4} if early else {}
        model = xgb.XGBClassifier(n_estimators=40 if early else N, n_jobs=1, **how)
        given = {"eval_set": [(X[:300], noisy)], "verbose": False} if early else {}
    else:
        model = lgb.LGBMClassifier(
            n_estimators=40 if early else N, verbose=-1, n_jobs=1
        )
        stop = [lgb.early_stopping(4, verbose=False)]
        given = {"eval_set": [(X[:300], noisy)], "callbacks": stop} if early else {}
    return model.fit(GAPS, THREE, **given)


@pytest.mark.parametrize("kind", ["kept", "by hand", "wrapper"])
def test_rounds_behind_the_best_one_of_lightgbm(kind: str, tmp_path: Any) -> None:
    """Boosters that are trained further keep them, and a file does not have them."""
    if kind == "wrapper":
        model = wrapped("lightgbm", early=False)
        model.booster_.best_iteration = 4
    else:
        stop = {"early_stopping_round": 4 if kind == "kept" else 0, "verbose": -1}
        data = lgb.Dataset(X[:300], np.random.default_rng(1).permutation(SCORE[:300]))
        more = [lgb.Dataset(X[300:600], SCORE[300:600])]
        how = {"num_boost_round": 12, "valid_sets": more, "keep_training_booster": True}
        model = lgb.train(stop, data, **how)
        model.best_iteration = 4 if kind == "by hand" else model.best_iteration
        assert 0 < model.best_iteration < model.current_iteration()
    fast = plain(model).fit(X)
    loaded, arguments = saved(fast, tmp_path), [{}, {"num_iteration": 1}]
    arguments += [{"num_iteration": k} for k in (-1, 0, 99)] + [{"start_iteration": 1}]
    for i, params in enumerate(arguments):
        expected = model.predict(X[:9], **params)
        np.testing.assert_array_equal(fast.predict(X[:9], **params), expected)
        if i < 2:
            np.testing.assert_array_equal(loaded.predict(X[:9], **params), expected)
        else:
            refusal(SourceNeededError, loaded.predict, X[:9], **params)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_wrappers_answer_for_rounds(library: str, early: bool, tmp_path: Any) -> None:
    model = wrapped(library, early)
    fast = plain(model).fit(GAPS[:50])
    n = fast._compiled().module.rounds.n
    loaded = saved(fast, tmp_path)
    for method in ("predict", "predict_proba"):
        ask = getattr(model, method)
        wanted = [ask(GAPS, **chosen(library, 0, k)) for k in range(1, n + 1)]
        for one in (fast, loaded):
            all_same(getattr(one, f"staged_{method}")(GAPS), wanted, method)
            for begin, end in ((0, 1), (1, n), (0, n)):
                rounds = chosen(library, begin, end)
                same(getattr(one, method)(GAPS, **rounds), ask(GAPS, **rounds), rounds)
    assert fast.counters()["library"]["rows"] == 0
    if library == "xgboost":
        for last in (None, (0, 0), (2, 0)):  # the best, whichever is the first
            same(fast.predict(GAPS, iteration_range=last), model.predict(GAPS))
    if not early:
        return
    more = chosen(library, 1, n + 2)
    if library == "xgboost":
        same(fast.predict(GAPS, **more), model.predict(GAPS, **more))
        assert fast.counters()["library"]["rows"] == len(GAPS)
        with pytest.raises((SourceNeededError, InvalidInputError)):
            loaded.predict(GAPS, **more)
        return
    # LightGBM's wrappers keep no rounds behind the best one
    for how in (more, {"num_iteration": -1}, {"start_iteration": 1}):
        for one in (fast, loaded):
            same(one.predict(GAPS, **how), model.predict(GAPS, **how), how)
    assert fast.counters()["library"]["rows"] == 0
    how = {"objective": "multiclass", "num_class": 3, "verbose": -1}
    data = lgb.Dataset(GAPS, THREE)
    further = lgb.train(how, data, 2, init_model=model.booster_)
    assert further.current_iteration() > n
    model._Booster, further.best_iteration = further, n
    further = plain(model).fit(GAPS[:50])
    for how in (more, {"num_iteration": -1}, {"start_iteration": 1}):
        same(further.predict(GAPS, **how), model.predict(GAPS, **how), how)
        refusal(SourceNeededError, saved(further, tmp_path).predict, GAPS, **how)


def test_ranges_of_rounds_are_read_as_xgboost_reads_them() -> None:
    model = wrapped("xgboost", early=False)
    fast = plain(model).fit(GAPS[:50])
    for rounds in ((0,), (2,), 0, 3):
        with pytest.raises((IndexError, TypeError)) as own:
            model.predict(GAPS, iteration_range=rounds)
        assert refusal(own.type, fast.predict, GAPS, iteration_range=rounds) == str(
            own.value
        )
    for two in ((0, 0), (0, 2)):
        wanted = model.predict(GAPS, iteration_range=two)
        same(fast.predict(GAPS, iteration_range=two), wanted, two)


def test_no_rounds_have_no_stages() -> None:
    model = xgb.XGBRegressor(n_estimators=0).fit(X, SCORE)
    assert list(plain(model).fit(X[:50]).staged_predict(X)) == []


def test_catboosts_stages(tmp_path: Any) -> None:
    for kind in ("binary", "classes", "poisson"):
        model, _ = boosted("catboost", kind)
        fast = plain(model).fit(GAPS[:50])
        for one in (fast, saved(fast, tmp_path)):
            for how in ({}, {"ntree_start": 2, "eval_period": 3}, {"ntree_end": 4}):
                for method in ("predict", "predict_proba"):
                    name = f"staged_{method}"
                    assert hasattr(one, name) == hasattr(model, name)
                    if not hasattr(model, name):
                        continue
                    wanted = getattr(model, name)(GAPS, **how)
                    all_same(getattr(one, name)(GAPS, **how), wanted, (kind, how))
                    if "eval_period" not in how:
                        wanted = getattr(model, method)(GAPS, **how)
                        same(getattr(one, method)(GAPS, **how), wanted, (kind, how))
            how = {"prediction_type": "RawFormulaVal"}
            wanted = model.staged_predict(GAPS, **how)
            all_same(one.staged_predict(GAPS, **how), wanted)
    how = {"prediction_type": "Exponent"}  # which the model itself answers
    all_same(fast.staged_predict(GAPS, **how), model.staged_predict(GAPS, **how))


def test_catboost_has_no_stages_of_classes_without_rows() -> None:
    """Modules have, and classes that training did not meet have a score of -inf."""
    how = {"loss_function": "MultiClass", "classes_count": 5, "thread_count": 1}
    model = cb.CatBoostClassifier(
        iterations=N, allow_writing_files=False, verbose=0, **how
    )
    fast = plain(model.fit(GAPS, THREE)).fit(GAPS[:50])
    for name in ("staged_predict", "staged_predict_proba"):
        with pytest.raises(cb.CatBoostError, match="invalid approx index"):
            next(getattr(fast, name)(GAPS))
    wanted = (own("catboost", model, 0, k) for k in range(1, N + 1))
    all_same(compile_forest(model).staged_predict_raw(GAPS), wanted)


def test_rows_with_categories() -> None:
    rows = X.astype(object)
    rows[:, 0] = np.array(list("abc"))[THREE]
    how = {"iterations": 5, "verbose": 0, "allow_writing_files": False}
    model = cb.CatBoostClassifier(cat_features=[0], thread_count=1, **how)
    model.fit(rows, np.roll(TWO, 1))
    fast, module = plain(model).fit(rows[:50]), compile_forest(model)
    wanted = [*model.staged_predict_proba(rows)]
    all_same(fast.staged_predict_proba(rows), wanted)
    same(fast.predict_proba(rows, ntree_end=3), model.predict_proba(rows, ntree_end=3))
    raw = model.predict(rows, "RawFormulaVal", ntree_end=3)
    same(module.predict_raw(rows, ntree_end=3), raw)
    assert len([*module.staged_predict_raw(rows)]) == 5
    trees = module.predict_per_tree(rows)
    same(fast.predict_per_tree(rows), trees)
    same(module.apply(rows), fast._compiled().module.apply(rows))


@pytest.mark.parametrize("form", ["booster", "file"])
def test_boosters_and_files_answer_with_labels(form: str) -> None:
    model = wrapped("xgboost", early=False)
    booster = model.get_booster()
    given = booster if form == "booster" else bytes(booster.save_raw("json"))
    fast = plain(given).fit(GAPS[:50])
    for k, labels in enumerate(fast.staged_predict(GAPS)):
        same(
            labels, model.predict(GAPS, iteration_range=(0, k + 1)).astype(labels.dtype)
        )
    for method in ("predict", "predict_proba"):
        wanted = getattr(model, method)(GAPS, iteration_range=(2, 4))
        found = getattr(fast, method)(GAPS, iteration_range=(2, 4))
        same(found.astype(wanted.dtype), wanted, method)
    for wrong in ((0, 100), (3, 2), 2):
        assert refusal(
            InvalidInputError, fast.predict, GAPS, iteration_range=wrong
        ) == (
            f"iteration_range={wrong!r} does not lie within the {N} boosting rounds "
            "that are compiled."
        )


def test_arguments_of_other_libraries_are_refused() -> None:
    for (library, kind), names in {
        ("xgboost", "regression"): ("num_iteration", "ntree_end"),
        ("lightgbm", "regression"): ("iteration_range", "ntree_end"),
    }.items():
        _, module = boosted(library, kind)
        for name in names:
            assert refusal(InvalidInputError, module.predict, GAPS, **{name: 1}) == (
                f"predict takes no {name}; compile load_forest(model, "
                "iteration_range=(begin, end)), which reads the boosting rounds of "
                "your choice."
            )
    _, module = boosted("xgboost", "regression")
    assert refusal(InvalidInputError, module.predict, GAPS, iteration_range=(4, 2)) == (
        "iteration_range=(4, 2) does not lie within the 9 boosting rounds that are "
        "compiled."
    )


def test_what_has_no_rounds() -> None:
    for name in ("averaged", "scalar", "no trees"):
        assert BoostingRounds.of(forest(name)) is None
    made = load_forest(boosted("xgboost", "parallel")[0])
    assert made.parallel_trees == 3
    for number in (-1, 2):  # rounds that differ, and not as many trees
        uneven = replace(made, parallel_trees=number)
        assert BoostingRounds.of(uneven) is None
        again = pickle.loads(pickle.dumps(uneven))
        assert again.content_hash() == uneven.content_hash() != made.content_hash()
    steps = [
        _parallel_trees(np.array(s), 2) for s in ([0], [0, 2], [0, 4, 8], [0, 2, 6])
    ]
    assert steps == [0, 0, 2, -1]


def test_rows_on_a_gpu_have_no_stages(monkeypatch: Any) -> None:
    _, module = boosted("xgboost", "regression")
    monkeypatch.setattr(methods, "is_device_array", lambda X: True)
    assert refusal(InvalidInputError, module.staged_predict, X) == (
        "predictions after each round need rows in host memory, but these are on a "
        "GPU; pass a NumPy array."
    )


def test_the_model_answers_if_skforge_is_off(monkeypatch: Any) -> None:
    monkeypatch.setenv("SKFORGE_OFF", "1")
    gb, labels = SKLEARN["two"]
    for model, rows, n in (
        (gb.fit(X, labels), X, 5),
        (wrapped("lightgbm", early=False), GAPS, N),
        (wrapped("xgboost", early=False).get_booster(), GAPS, N),
    ):
        fast = plain(model).fit(rows[:50])
        stages = [*fast.staged_predict(rows)]
        assert len(stages) == n
        same(stages[-1], fast.predict(rows))
        counts = fast.counters()
        assert counts["library"]["calls"] == n + 1 and not counts["kernel"]["calls"]
