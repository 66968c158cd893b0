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
from sklearn import preprocessing as pre
from sklearn import tree
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import FeatureUnion, make_pipeline, make_union

import skforge
from skforge import CompiledForest, UnsupportedModelError, load_forest
from skforge.exceptions import SourceNeededError
from skforge.forest.reference import draw_rows, reference_raw
from skforge.frontends.pipeline import model as pipeline_model
from tests.compared_calls import difference
from tests.comparing import assert_alike, is_read, saved
from tests.kinds import BOOSTED, FOREST, GAPS, SCALER, WIDTH, X, soft
from tests.kinds import CLASSIFIERS as FORESTS
from tests.kinds import TWO as Y
from tests.kinds_of_pipelines import TRANSFORMERS, Own, bins
from tests.plain import fit_both, plain
from tests.sklearn_rows import same_bits as same

pd = pytest.importorskip("pandas")
xgb = pytest.importorskip("xgboost")

LAST = ("forest", "xgboost", "lightgbm")


def trained(name, last, rows=X):
    return make_pipeline(clone(TRANSFORMERS[name]), clone(FORESTS[last])).fit(rows, Y)


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


def assert_same(fast, model, rows):
    assert_alike(fast, model, rows, rows[:1])


def compiled(model, rows=X):
    return plain(model).fit(rows)


@pytest.mark.parametrize("name, last", [("minmax", "forest"), ("standard", "xgboost")])
def test_a_negative_scale_turns_comparisons_around(name, last):
    model = trained(name, last)
    model[0].scale_ = -model[0].scale_
    fast = compiled(model)
    assert_same(fast, model, rows_around(fast.forest_))


# ------------------------------------------------------------ forms of rows


@pytest.mark.parametrize(
    "name, last, nan", [("standard", "forest", 1), ("binarizer", "lightgbm", 0)]
)
def test_compiled_entries_decline_values_that_a_step_refuses(name, last, nan):
    model = trained(name, last)
    fast = compiled(model)
    entry = fast._predictor.entries["predict_proba"]
    limit = fast._predictor.source.facts.limit
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
    model = trained("imputer-marks", "forest", GAPS)
    fast = compiled(model, GAPS)
    assert fast.estimator_ is model
    assert fast.score(GAPS, Y) == model.score(GAPS, Y)
    assert fast.n_features_in_ == WIDTH
    for rows in (GAPS, GAPS.astype("f4")):
        same(fast.apply(rows), model[-1].apply(model[:-1].transform(rows)))
    same(fast.predict_raw(GAPS), model.predict_proba(GAPS))
    assert_alike(fast, model, X, methods=("predict_log_proba",))
    assert not hasattr(compiled(trained("standard", "lightgbm")), "apply")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("last", LAST)
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


def test_load_forest():
    model = trained("robust", "xgboost")
    forest = load_forest(model)
    assert (forest.n_features, forest.input_dtype) == (WIDTH, np.float64)
    raw = reference_raw(forest, rows_around(forest))[:, 0]
    rows = model[:-1].transform(rows_around(forest))
    same(raw, model[-1].predict(rows, output_margin=True))
    part = load_forest(model, iteration_range=(0, 2))
    assert part.n_trees == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("edited", ["scale", "encode", "bins"])
def test_numbers_edited_inside_a_step_are_noticed(edited):
    rows = np.column_stack([X[:, :4], X[:, 4:5].round()])
    steps = [
        ("scale", pre.StandardScaler(), [0, 1]),
        ("bins", pre.KBinsDiscretizer(3, encode="ordinal"), [2, 3]),
        ("encode", pre.OneHotEncoder(handle_unknown="ignore"), [4]),
    ]
    model = make_pipeline(ColumnTransformer(steps), clone(FOREST))
    fast = compiled(model.fit(rows, Y), rows)
    pickle.dumps(fast)
    before = fast.predict_proba(rows)
    step = model[0].named_transformers_[edited]
    if edited == "scale":
        step.mean_[:] = 3
    elif edited == "encode":
        step.categories_[0][0] = 7.0
    else:
        step.bin_edges_[0][1:-1] += 0.5
    assert (model.predict_proba(rows) != before).any()
    same(fast.predict_proba(rows), before)
    for ask in (lambda: pickle.dumps(fast), lambda: fast.predict(rows.astype("f4"))):
        with pytest.raises(skforge.InvalidModelError, match="has changed since"):
            ask()


def test_each_pipeline_folds_once_and_none_is_kept(monkeypatch):
    folds, fold = [], pipeline_model.folded
    monkeypatch.setattr(
        pipeline_model, "folded", lambda *how: folds.append(1) or fold(*how)
    )
    for n in (1, 2):  # what is known of the first makes room for the second
        model = make_pipeline(pre.StandardScaler(), clone(FOREST)).fit(X, Y)
        plain(model).fit(X)
        assert len(folds) == n
    ended = weakref.ref(model[-1])
    del model
    gc.collect()
    assert ended() is None


@pytest.mark.parametrize("steps", ["texts", "numbers", "by position"])
def test_an_artifact_says_that_the_pipeline_itself_answers(steps, tmp_path):
    rows = pd.DataFrame({"t": np.where(Y, "a", "b"), "x": X[:, 0], "k": Y})
    if steps == "texts":
        step = ColumnTransformer([("a", pre.OneHotEncoder(), ["t"])], remainder="drop")
    else:
        rows = rows[["x", "k"]]
        step = pre.StandardScaler()
        if steps == "numbers":
            step = ColumnTransformer([("a", step, ["x", "k"])])
    model = make_pipeline(step, clone(FOREST)).fit(rows, Y)
    kept = saved(compiled(model, rows), tmp_path)
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
        expected: tuple[type[Exception], ...] = (SourceNeededError,)
        try:
            model.predict(form)
        except (TypeError, ValueError):
            expected = (SourceNeededError, skforge.InvalidInputError)
        with pytest.raises(expected):
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
    "function": (pre.FunctionTransformer(np.tan), "FunctionTransformer, calls tan"),
    "own": (Own(), "'own' of the pipeline, Own, is"),
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
    model = make_pipeline(clone(step), clone(FOREST))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(np.round(X), Y)
        with pytest.raises(UnsupportedModelError, match=why) as error:
            load_forest(model)
    assert "CompiledForest(pipeline) runs it in its own library" in str(error.value)


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
        assert is_read(fast, one)
        assert_same(fast, model, one)


# ------------------------------------------------- pipelines inside pipelines

random = np.random.default_rng(0)
FEW = np.c_[random.integers(0, 5, 200), random.integers(-9, 10, 200) / 2]
ABOVE = (FEW.sum(axis=1) + random.normal(size=200) > 1).astype(int)
BINS = pre.KBinsDiscretizer(3, quantile_method="averaged_inverted_cdf")
MARKED = SimpleImputer(missing_values=0, add_indicator=True)
ORDINAL = make_pipeline(pre.OrdinalEncoder(), FOREST)
INNER = {
    "forest": make_pipeline(FOREST),
    "scaled": make_pipeline(pre.MinMaxScaler(), FOREST),
    "boosting": make_pipeline(SCALER, BOOSTED),
    "one-hot": make_pipeline(pre.OneHotEncoder(), FOREST),
    "ordinal": ORDINAL,
    "bins": make_pipeline(BINS, FOREST),
    "marked": make_pipeline(MARKED, make_pipeline(FOREST)),
    "threshold": FixedThresholdClassifier(ORDINAL, threshold=0.7),
    "votes": soft(ORDINAL, make_pipeline(SCALER, FOREST)),
}
BEFORE = {
    "identity": pre.FunctionTransformer(),
    "scaler": SCALER,
    "nothing": make_pipeline("passthrough", "passthrough"),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("step", BEFORE)
@pytest.mark.parametrize("last", INNER)
def test_the_inner_steps_are_folded_and_refuse_what_they_refuse(last, step):
    model, fast = fit_both(clone(make_pipeline(BEFORE[step], INNER[last])), FEW, ABOVE)
    if last != "votes":  # several pipelines inside
        assert "runs in" not in fast.inspect("pipeline")
    assert not difference(fast.predict_proba, model.predict_proba, FEW)
    for value in (1e30, 1e39, 1e300, 77, np.nan, 2.5):
        for column in (0, 1):
            rows = FEW[:24].copy()
            rows[3, column] = value
            found = difference(fast.predict, model.predict, rows)
            assert not found, (value, column)


def test_a_wrapper_s_own_number_of_columns_is_that_before_the_steps():
    wide = make_pipeline(make_union(PCA(1), pre.FunctionTransformer()), "passthrough")
    inner = make_pipeline(wide, "passthrough", clone(FOREST)).fit(FEW, ABOVE)
    model = CalibratedClassifierCV(FrozenEstimator(inner), ensemble=False).fit(
        FEW, ABOVE
    )
    assert model.n_features_in_ == 2
    assert inner[-1].n_features_in_ == 3
    fast = plain(model).fit(FEW)
    assert not difference(fast.predict_proba, model.predict_proba, FEW)


def test_pipelines_without_a_step_store_no_columns():
    nothing = make_pipeline("passthrough", make_pipeline("passthrough"))
    first = make_pipeline(nothing, tree.DecisionTreeClassifier(random_state=0))
    model = OneVsRestClassifier(CalibratedClassifierCV(first, cv=2)).fit(FEW, ABOVE)
    fast = plain(model).fit(FEW)
    assert not difference(fast.predict_proba, model.predict_proba, FEW)
