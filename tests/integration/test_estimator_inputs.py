"""Inputs that sources treat in their own way; ``test_kinds.py`` has the others."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.ensemble import RandomForestClassifier

from skforge import CompiledForest, load_forest
from skforge.engine.sparse import SparseWalk
from skforge.exceptions import InvalidInputError, SourceNeededError
from skforge.modules.compiled import CompiledModule
from tests.compared_calls import apart, called, difference
from tests.comparing import refusal
from tests.forms import COLUMNS as NAMES
from tests.forms import NUMBERS, absent, framed, with_value
from tests.kinds import FRAME, ROWS, THREE, X
from tests.kinds import MODELS as KINDS
from tests.plain import fit_both, plain

pd = pytest.importorskip("pandas")
lgb = pytest.importorskip("lightgbm")
xgb = pytest.importorskip("xgboost")
VERSION = tuple(int(part) for part in xgb.__version__.split(".")[:2])

X32, Y = X.astype(np.float32), THREE
MODELS = {
    "rf": "forest of three",
    "tree": "tree of three",
    "xgb": "xgboost of three",
    "xgb-names": "xgboost of values of a frame",
    "xgb-dart": "xgboost, dart",
    "lgb": "lightgbm of three",
}
#: One of each library has the schedules of an ordinary user; all take rows alike.
DEFAULTS = ("rf", "xgb", "lgb")


@cache
def fitted(model):
    kind = KINDS[MODELS[model]]
    source = kind.fitted()
    compiled = CompiledForest(source) if model in DEFAULTS else plain(source)
    return source, compiled.fit(ROWS[kind.on])


@pytest.mark.parametrize("kind", [np.asarray, np.ndarray.tolist, sp.csr_matrix])
def test_leaves_of_too_many_columns_are_refused(kind):
    source, compiled = fitted("xgb")
    for model in (compiled, plain(source.get_booster()).fit(X)):
        said = refusal(ValueError, model.apply, kind(np.c_[X32, X32]))
        assert said == "Feature shape mismatch, expected: 6, got 12"


@pytest.mark.parametrize("kind", [sp.csc_matrix, sp.coo_matrix, sp.csr_array])
def test_dart_without_its_source_declines_what_is_rounded_otherwise(kind):
    """XGBoost makes a ``DMatrix`` of these, and DART's ``predict`` rounds, up to 3.2,
    otherwise than the ``inplace_predict`` of all other rows."""
    source, compiled = fitted("xgb-dart")
    alone, rows = compiled.drop_estimator(), kind(absent(X))
    if VERSION < (3, 3):
        with pytest.raises(SourceNeededError):
            alone.predict(rows)
    else:
        np.testing.assert_array_equal(alone.predict(rows), source.predict(rows))
    np.testing.assert_array_equal(alone.apply(rows), source.apply(rows))


@pytest.mark.parametrize(
    "kind", [np.asarray, np.asfortranarray, pd.DataFrame, np.ndarray.tolist]
)
def test_xgboost_casts_whatever_numpy_is_told_to_raise(kind):
    source = fitted("xgb")[0]
    compiled = plain(source).fit(X)
    rows = X[:9].copy()
    rows[0, 0], rows[1, 1] = 1e300, 1e-310
    expected = called(source.predict, kind(rows))
    with np.errstate(all="raise"):
        assert not apart(called(compiled.predict, kind(rows)), expected, rows)


@pytest.mark.parametrize("model", ["rf", "lgb", "xgb"])
def test_a_scalar_array_is_refused_as_by_the_source(model):
    source, compiled = fitted(model)
    assert not difference(compiled.predict, source.predict, np.array(1.0))
    said = called(source.predict, np.array(1.0))[1]
    assert model == "xgb" or "ValueError: Expected 2D array" in said


@pytest.mark.parametrize(
    ("kind", "trained", "other"),
    [
        (xgb.XGBClassifier, [*range(6)], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
        (xgb.XGBClassifier, [*range(6)], pd.Index([0, True, 2, 3, 4, 5], dtype=object)),
        (RandomForestClassifier, NAMES, pd.Index(map(np.str_, NAMES), dtype=object)),
    ],
    ids=["floats", "a boolean", "NumPy's texts"],
)
def test_labels_that_are_equal_but_of_other_classes(kind, trained, other):
    frame = pd.DataFrame(X, columns=trained)
    source, compiled = fit_both(kind(n_estimators=4, n_jobs=1), frame, Y)
    first, renamed = frame, frame.set_axis(other, axis=1)
    assert apart(*(called(source.predict, rows) for rows in (first, renamed)), frame)
    for labels in (trained, other, trained):
        rows = frame.set_axis(labels, axis=1)
        assert not difference(compiled.predict, source.predict, rows)


@pytest.mark.parametrize("family", ["rf", "xgb", "lgb"])
def test_columns_that_no_tree_reads_are_left_out_of_sparse_rows(family, monkeypatch):
    random = np.random.default_rng(0)
    rows = sp.random(120, 3000, density=0.05, format="csr", rng=random)
    y = np.asarray(rows[:, ::9].sum(axis=1)).ravel() > 8
    source = {
        "rf": RandomForestClassifier(9, max_depth=4, random_state=0),
        "xgb": xgb.XGBClassifier(n_estimators=9, max_depth=3),
        "lgb": lgb.LGBMClassifier(n_estimators=9, min_child_samples=2, verbose=-1),
    }[family].fit(rows, y)
    compiled = plain(source).fit(rows)
    asked = []
    run = CompiledModule.run

    def noted(module, what, X, *given):
        asked.append(X.shape)
        return run(module, what, X, *given)

    monkeypatch.setattr(CompiledModule, "run", noted)
    monkeypatch.setattr(SparseWalk, "pays", lambda *_: False)  # entries alone would do
    read = len(np.unique(compiled.forest_.feature))
    assert read < 300
    for form in (rows, rows.tocsc(), rows.tocoo(), rows[:1]):
        asked.clear()
        expected = source.predict_proba(form)
        np.testing.assert_array_equal(compiled.predict_proba(form), expected)
        assert asked == [(form.shape[0], read)]
    if family != "lgb":  # whose wrappers have no such method
        np.testing.assert_array_equal(compiled.apply(rows), source.apply(rows))
    if family == "xgb":  # which alone takes no rows; kernels answer for a stored one
        none = compiled.drop_estimator().predict_proba(rows[:0])
        np.testing.assert_array_equal(none, source.predict_proba(rows[:0]))


def scores_of(booster, rows, checks=False, **kind):
    return booster.predict(xgb.DMatrix(rows), validate_features=checks, **kind)


def test_a_booster_gives_labels_and_its_own_scores():
    booster = fitted("xgb")[0].get_booster()
    compiled = plain(booster).fit(X)
    probability = scores_of(booster, X)
    assert np.array_equal(compiled.predict_proba(X), probability)
    assert np.array_equal(compiled.predict(X), probability.argmax(axis=1))
    margin = scores_of(booster, X, output_margin=True)
    assert np.array_equal(compiled.predict_raw(X), margin)
    leaves = scores_of(booster, X, pred_leaf=True)
    assert np.array_equal(compiled.apply(X), leaves)
    assert compiled.classes_.tolist() == [0, 1, 2]
    assert compiled.n_features_in_ == 6
    assert compiled.score(X, Y) == np.mean(probability.argmax(axis=1) == Y)


def test_a_boosters_names_are_checked_where_rows_have_some():
    booster = fitted("xgb-names")[0].get_booster()
    compiled = plain(booster).fit(FRAME)
    for rows in (FRAME, X):
        assert np.array_equal(compiled.predict(rows), scores_of(booster, FRAME))
    assert compiled.feature_names_in_.tolist() == NAMES
    turned = FRAME[NAMES[::-1]]
    said = refusal(ValueError, compiled.predict, turned)
    assert said == refusal(ValueError, scores_of, booster, turned, checks=True)


def test_a_booster_refuses_infinities_and_further_arguments():
    compiled = plain(fitted("xgb")[0].get_booster()).fit(X)
    odd = with_value(X32, 3, 2, np.inf)
    for rows in (odd, odd.astype(np.float64), sp.csr_matrix(odd)):
        assert not difference(compiled.predict, xgb.DMatrix, rows)
    said = refusal(TypeError, compiled.predict, X, training=True)
    assert said == "predict() got an unexpected keyword argument 'training'"
    said = refusal(InvalidInputError, compiled.predict, X, output_margin=True)
    assert said == "predict of a Booster takes no output_margin; call predict_raw."


CHOOSE = (
    "compile load_forest(model, iteration_range=(begin, end)), which reads the "
    "boosting rounds of your choice."
)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("method", ["predict", "predict_proba"])
@pytest.mark.parametrize(
    ("kind", "name", "whose"),
    [
        ("xgb", "num_iteration", "an XGBClassifier"),
        ("xgb", "ntree_limit", "an XGBClassifier"),
        ("lgb", "iteration_range", "an LGBMClassifier"),
        ("xgb booster", "num_iteration", "a Booster"),
        ("lgb booster", "iteration_range", "a Booster"),
        ("content", "num_iteration", "a model read from a file"),
    ],
)
def test_rounds_that_a_model_does_not_take_are_chosen_when_it_is_read(
    kind, name, whose, method
):
    model = fitted("lgb" if "lgb" in kind else "xgb")[0]
    if "booster" in kind:
        model = model.booster_ if "lgb" in kind else model.get_booster()
    elif kind == "content":
        model = bytes(model.get_booster().save_raw())
    compiled = plain(model).fit(X)
    said = refusal(InvalidInputError, getattr(compiled, method), X, **{name: 2})
    assert said == f"{method} of {whose} takes no {name}; {CHOOSE}"
    rounds = plain(load_forest(model, iteration_range=(0, 2))).fit(X)
    own = {"iteration_range": (0, 2)} if "lgb" not in kind else {"num_iteration": 2}
    source = fitted("lgb" if "lgb" in kind else "xgb")[0]
    expected = source.predict_proba(X, **own)
    assert np.array_equal(rounds.predict_proba(X), expected)


def test_other_arguments_are_answered_by_the_model():
    source, compiled = fitted("xgb")
    margin = compiled.predict(X, output_margin=True)
    assert np.array_equal(margin, source.predict(X, output_margin=True))
    unchecked = compiled.predict_proba(X, validate_features=False)
    assert np.array_equal(unchecked, source.predict_proba(X))
    theirs, ours = (partial(one.predict, check=1) for one in fitted("rf"))
    assert not difference(ours, theirs, X)


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:X has feature names:UserWarning")
@pytest.mark.parametrize(
    "rows",
    [
        *("list", "array, F-order", "frame, float64", "CSR", "CSC", "COO"),
        *("arrow, float64", "array, int64", "array, no rows"),
    ],
)
def test_sample_rows_come_in_every_form(rows):
    for model in ("rf", "xgb", "lgb"):
        source = fitted(model)[0]
        if model == "rf" and rows == "array, no rows":
            continue
        compiled = plain(source).fit(NUMBERS[rows](framed(X)))
        assert np.array_equal(compiled.predict_proba(X), source.predict_proba(X))


@pytest.mark.parametrize(
    "model, rows", [("rf", "infinite"), ("rf", "one dimension"), ("tree", "narrow")]
)
def test_sample_rows_that_the_source_refuses(model, rows):
    source, rows = fitted(model)[0], NUMBERS[f"array, {rows}"](framed(X))
    assert not difference(plain(source).fit, source.predict, rows)
