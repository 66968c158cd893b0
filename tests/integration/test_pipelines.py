"""Whole pipelines: warnings, refusals, changes, and what is known of their steps.

``test_kinds.py`` compares the answers of all of them with the pipeline's own.
"""

from __future__ import annotations

import gc
import pickle
import warnings
import weakref

import numpy as np
import pytest
from sklearn import ensemble
from sklearn import feature_selection as fs
from sklearn import preprocessing as pre
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, make_pipeline

import skforge
from skforge import CompiledForest, UnsupportedModelError, load_forest
from skforge.compiler.forest.reference import draw_rows, reference_raw
from skforge.compiler.frontends.pipeline import model as pipeline_model
from tests.kinds import GAPS, TWO, WIDTH, N, X
from tests.kinds_of_pipelines import TRANSFORMERS, bins
from tests.plain import plain
from tests.sklearn_rows import same_bits as same

pd = pytest.importorskip("pandas")
lgb = pytest.importorskip("lightgbm")
xgb = pytest.importorskip("xgboost")

Y = TWO
FORESTS = {
    "forest": ensemble.RandomForestClassifier(7, random_state=0),
    "xgboost": xgb.XGBClassifier(n_estimators=7, max_depth=4, n_jobs=1),
    "lightgbm": lgb.LGBMClassifier(
        n_estimators=7, min_child_samples=2, verbose=-1, n_jobs=1
    ),
}


def trained(name, last, rows=X):
    model = make_pipeline(clone(TRANSFORMERS[name]), clone(last))
    return model.fit(rows, Y)


def rows_around(forest, n=300, seed=3):
    """Return rows whose values are folded thresholds, or one ulp away from one."""
    random = np.random.default_rng(seed)
    rows = draw_rows(forest, n, seed)
    for j in range(forest.n_features):
        cuts = forest.threshold[(forest.feature == j) & np.isfinite(forest.threshold)]
        if len(cuts):
            at = cuts[random.integers(0, len(cuts), n)]
            way = random.integers(-1, 2, n)
            toward = np.sign(way).astype(at.dtype) * np.finfo(at.dtype).max
            rows[:, j] = np.where(way == 0, at, np.nextafter(at, toward))
    return np.clip(rows, -1e30, 1e30)


METHODS = ("predict", "predict_proba", "decision_function", "score_samples")


def assert_same(fast, model, rows):
    own = model.steps[-1][1]
    if hasattr(own, "n_jobs"):
        own.n_jobs = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for method in METHODS:
            assert hasattr(fast, method) == hasattr(model, method)
            if hasattr(model, method):
                same(getattr(fast, method)(rows), getattr(model, method)(rows))
                same(getattr(fast, method)(rows[:1]), getattr(model, method)(rows[:1]))


def compiled(model, rows=X):
    return plain(model).fit(rows)


def is_ours(fast, rows):
    """Tell whether the kernels answer, not the pipeline."""
    read = fast._predictor.source.read(rows)
    return read is not None


def test_a_column_that_is_always_missing_draws_a_warning_in_every_call():
    rows = GAPS.copy()
    rows[:, 2] = np.nan
    imputer = SimpleImputer(add_indicator=True)
    last = clone(FORESTS["forest"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make_pipeline(imputer, pre.StandardScaler(), last).fit(rows, Y)
        fast = compiled(model, rows)
    for one in (fast, model):
        with pytest.warns(UserWarning, match="Skipping features"):
            same(one.predict_proba(rows), model.predict_proba(rows))
    imputer.set_params(keep_empty_features=True)
    kept = make_pipeline(imputer, pre.StandardScaler(), last).fit(rows, Y)
    fast = compiled(kept, rows)
    assert is_ours(fast, rows)
    assert_same(fast, kept, rows)


def test_a_negative_scale_turns_comparisons_around():
    model = trained("minmax", FORESTS["forest"])
    model[0].scale_ = -model[0].scale_
    fast = compiled(model)
    assert_same(fast, model, rows_around(fast.forest_))
    model = trained("standard", FORESTS["xgboost"])
    model[0].scale_ = -model[0].scale_
    fast = compiled(model)
    assert_same(fast, model, rows_around(fast.forest_))


# ------------------------------------------------------------ forms of rows


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_float32_rows_have_a_forest_of_their_own(name):
    last = ("forest", "xgboost", "lightgbm")[len(name) % 3]
    model = trained(name, FORESTS[last])
    fast = compiled(model)
    narrow = X.astype(np.float32)
    same(fast.predict_proba(narrow), model.predict_proba(narrow))
    own = fast._predictor.variants[narrow.dtype]
    assert own.forest.input_dtype == np.float32
    near = rows_around(own.forest).astype(np.float32)
    for rows in (narrow, near, near[::2]):
        assert own.source.read(rows) is not None
        assert_same(fast, model, rows)


@pytest.mark.parametrize("last", FORESTS)
def test_large_integers(last):
    """Steps that hand integers on leave the rounding to the last step."""
    big = np.random.default_rng(0).integers(-(2**26), 2**26, (N, WIDTH))
    big[::2] += 2**55
    model = make_pipeline(fs.VarianceThreshold(), clone(FORESTS[last])).fit(big, Y)
    fast = compiled(model, big)
    for rows in (big, big[1::2], big[1::2] // 8, pd.DataFrame(big[1::2])):
        same(fast.predict_proba(rows), model.predict_proba(rows))


@pytest.mark.parametrize(
    "name, last, nan", [("standard", "forest", 1), ("binarizer", "lightgbm", 0)]
)
def test_compiled_entries_decline_values_that_a_step_refuses(name, last, nan):
    model = trained(name, FORESTS[last])
    fast = compiled(model)
    entry, limit = (
        fast._predictor.entries["predict_proba"],
        fast._predictor.source.limit,
    )
    assert entry(X[:1].astype(np.float32)) is None
    for column in range(WIDTH):
        rows = X[:2].copy()
        for value in (limit, -limit, np.inf, -np.inf, 1.7e308):
            rows[1, column] = value
            assert entry(rows) is None or abs(value) < limit
        rows[1, column] = np.nan
        assert (entry(rows) is not None) == nan
        for value in (np.nextafter(limit, 0), -np.nextafter(limit, 0), 5e-324):
            rows[1, column] = value
            with np.errstate(all="ignore"):
                same(entry(rows), model.predict_proba(rows))


# ------------------------------------------------------------ the estimator


def test_the_estimator():
    model = trained("imputer-marks", FORESTS["forest"], GAPS)
    fast = compiled(model, GAPS)
    assert fast.estimator_ is model
    assert fast.score(GAPS, Y) == model.score(GAPS, Y)
    assert fast.n_features_in_ == WIDTH
    assert fast.classes_.tolist() == [0, 1]
    rows = model[:-1].transform(GAPS)
    same(fast.apply(GAPS), model[-1].apply(rows))
    same(
        fast.apply(GAPS.astype("f4")),
        model[-1].apply(model[:-1].transform(GAPS.astype("f4"))),
    )
    same(fast.predict_raw(GAPS), model.predict_proba(GAPS))
    same(fast.predict_log_proba(X), model.predict_log_proba(X))
    again = pickle.loads(pickle.dumps(fast))
    same(again.predict_proba(GAPS), model.predict_proba(GAPS))
    assert not hasattr(compiled(trained("standard", FORESTS["lightgbm"])), "apply")
    with pytest.raises(AttributeError):
        fast.decision_function(X)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("last", FORESTS)
def test_a_pipeline_that_is_not_fitted_is_trained(last):
    model = make_pipeline(SimpleImputer(), pre.StandardScaler(), clone(FORESTS[last]))
    fast = plain(model).fit(GAPS, Y)
    own = clone(model).fit(GAPS, Y)
    same(fast.predict_proba(GAPS), own.predict_proba(GAPS))
    fast = clone(fast).set_params(estimator__simpleimputer__strategy="median")
    own = clone(model).set_params(simpleimputer__strategy="median").fit(GAPS, Y)
    same(fast.fit(GAPS, Y).predict_proba(GAPS), own.predict_proba(GAPS))
    with pytest.raises(NotFittedError):
        CompiledForest(model, prefit=True).fit(GAPS)


def test_a_search_over_a_pipeline():
    model = make_pipeline(SimpleImputer(), clone(FORESTS["forest"]))
    search = GridSearchCV(model, {"simpleimputer__strategy": ["mean", "median"]}, cv=2)
    fast = plain(search).fit(GAPS, Y)
    own = clone(search).fit(GAPS, Y)
    same(fast.predict_proba(GAPS), own.predict_proba(GAPS))


def test_load_forest():
    model = trained("robust", FORESTS["xgboost"])
    forest = load_forest(model)
    assert (forest.n_features, forest.input_dtype) == (WIDTH, np.float64)
    raw = reference_raw(forest, rows_around(forest))[:, 0]
    rows = model[:-1].transform(rows_around(forest))
    same(raw, model[-1].predict(rows, output_margin=True))
    part = load_forest(model, iteration_range=(0, 2))
    assert part.n_trees == 2


def test_a_pipeline_that_changes_is_noticed():
    model = trained("standard", FORESTS["forest"])
    fast = compiled(model)
    model[0].fit(X * 2)
    with pytest.raises(skforge.InvalidModelError, match="has changed since"):
        fast.predict(X.astype(np.float32))


def edit_mean(model):
    model[0].named_transformers_["scale"].mean_[:] = 3


def edit_category(model):
    model[0].named_transformers_["encode"].categories_[0][0] = 7.0


def edit_bins(model):
    model[0].named_transformers_["bins"].bin_edges_[0][1:-1] += 0.5


@pytest.mark.sampled(2)
@pytest.mark.parametrize("edit", [edit_mean, edit_category, edit_bins])
def test_numbers_edited_inside_a_step_are_noticed(edit):
    rows = np.column_stack([X[:, :4], X[:, 4:5].round()])
    steps = [
        ("scale", pre.StandardScaler(), [0, 1]),
        ("bins", pre.KBinsDiscretizer(3, encode="ordinal"), [2, 3]),
        ("encode", pre.OneHotEncoder(handle_unknown="ignore"), [4]),
    ]
    model = make_pipeline(ColumnTransformer(steps), clone(FORESTS["forest"]))
    fast = compiled(model.fit(rows, Y), rows)
    pickle.dumps(fast)
    before = fast.predict_proba(rows)
    edit(model)
    assert (model.predict_proba(rows) != before).any()
    same(fast.predict_proba(rows), before)
    with pytest.raises(skforge.InvalidModelError, match="has changed since"):
        pickle.dumps(fast)


def test_each_pipeline_folds_once_and_none_is_kept(monkeypatch):
    folds, fold = [], pipeline_model.folded
    monkeypatch.setattr(
        pipeline_model, "folded", lambda *how: folds.append(1) or fold(*how)
    )
    for n in (1, 2):  # what is known of the first makes room for the second
        model = make_pipeline(pre.StandardScaler(), clone(FORESTS["forest"])).fit(X, Y)
        plain(model).fit(X)
        assert len(folds) == n
    ended = weakref.ref(model[-1])
    del model
    gc.collect()
    assert ended() is None


@pytest.mark.parametrize("steps", ["texts", "numbers", "by position"])
def test_an_artifact_says_that_the_pipeline_itself_answers(steps, tmp_path):
    pd = pytest.importorskip("pandas")
    rows = pd.DataFrame({"t": np.where(Y, "a", "b"), "x": X[:, 0], "k": Y})
    if steps == "texts":
        step = ColumnTransformer([("a", pre.OneHotEncoder(), ["t"])], remainder="drop")
    else:
        rows = rows[["x", "k"]]
        step = pre.StandardScaler()
        if steps == "numbers":
            step = ColumnTransformer([("a", step, ["x", "k"])])
    model = make_pipeline(step, clone(FORESTS["forest"])).fit(rows, Y)
    skforge.save(compiled(model, rows), tmp_path / "fast.skforge")
    kept = skforge.load(tmp_path / "fast.skforge")
    last, few = rows.columns[0], rows[:3]
    forms = [
        few.to_numpy(object),
        few.assign(**{last: pd.Timestamp("2020-01-01")}),
        few.assign(**{last: 1j}),
        few.assign(**{last: pd.array([1, None, 3], "Int64")}),
        [["x"] * rows.shape[1]],
    ]
    if steps != "texts":
        forms += [few.convert_dtypes(), few.astype("category")]
        for numbers in (few.astype(object), few.assign(**{last: True})):
            np.testing.assert_array_equal(kept.predict(numbers), model.predict(numbers))
    else:
        forms.append(few.assign(**{last: True, "more": "any"}))
    for form in forms:
        try:
            model.predict(form)
        except (TypeError, ValueError):
            with pytest.raises(
                (skforge.exceptions.SourceNeededError, skforge.InvalidInputError)
            ):
                kept.predict(form)
        else:
            with pytest.raises(skforge.exceptions.SourceNeededError):
                kept.predict(form)
    for wrong, why in {
        "path": r"rows are the text or path 'path'",
        (1.0, 2.0): r"rows must be two-dimensional",
        ((1.0, 2.0), (1.0,)): r"rows do not form a rectangular array",
    }.items():
        with pytest.raises(skforge.InvalidInputError, match=why):
            kept.predict(wrong)


# ------------------------------------------------------------ refusals

REFUSED = {
    "pca": (PCA(2), r"'pca' of the pipeline, PCA, is not one of"),
    "function": (
        pre.FunctionTransformer(np.tan),
        r"FunctionTransformer, calls tan",
    ),
    "narrow-bins": (bins(3, dtype=np.float32), r"returns columns of dtype float32"),
    "weights": (
        FeatureUnion([("a", pre.StandardScaler())], transformer_weights={"a": 2}),
        r"'featureunion' of the pipeline, FeatureUnion, has transformer_weights",
    ),
    "within": (
        ColumnTransformer([("a", make_pipeline(PCA(1)), [0, 1])]),
        r"'columntransformer__a__pca' of the pipeline, PCA, is not one of",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_forest_cannot_hold_it(kind):
    step, why = REFUSED[kind]
    model = make_pipeline(clone(step), clone(FORESTS["forest"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(np.round(X), Y)
        with pytest.raises(UnsupportedModelError, match=why) as error:
            load_forest(model)
    assert "CompiledForest(pipeline) runs it in its own library" in str(error.value)


def test_subclasses_are_refused():
    class Own(pre.StandardScaler):
        pass

    model = make_pipeline(Own(), clone(FORESTS["forest"])).fit(X, Y)
    with pytest.raises(UnsupportedModelError, match="'own' of the pipeline, Own, is"):
        load_forest(model)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("step", [pre.RobustScaler(), "passthrough"])
@pytest.mark.parametrize("marker", [0.0, -3.0])
def test_a_number_may_mean_missing_to_the_last_step(marker, step):
    rows = np.round(X)
    model = make_pipeline(
        step, xgb.XGBClassifier(missing=marker, n_estimators=5, n_jobs=1)
    )
    rows[::3] = np.median(rows, axis=0)
    model.fit(rows, Y)
    fast = compiled(model, rows)
    tiny = rows * [1e-300, 1.0, 1e-42, 0.0, 1e-46, 1e-30]
    for one in (rows, tiny, tiny + rows, X):
        assert is_ours(fast, one)
        assert_same(fast, model, one)
