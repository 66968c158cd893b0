"""Whole pipelines: compiled answers equal the pipeline's own, bit for bit."""

from __future__ import annotations

import gc
import pickle
import warnings
import weakref

import numpy as np
import pytest
from sklearn import ensemble, tree
from sklearn import feature_selection as fs
from sklearn import preprocessing as pre
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline, make_union

import skforge
from skforge import CompiledForest, UnsupportedModelError, load_forest
from skforge.compiler.forest.reference import draw_rows, reference_raw
from skforge.compiler.frontends.pipeline import model as pipeline_model
from tests.plain import plain

pd = pytest.importorskip("pandas")
lgb = pytest.importorskip("lightgbm")
xgb = pytest.importorskip("xgboost")

WIDTH = 6


def numbers(n=400, seed=0):
    """Return features over seven orders of magnitude."""
    values = np.random.default_rng(seed).normal(size=(n, WIDTH))
    return values * np.logspace(-3, 4, WIDTH) + np.linspace(-5, 100, WIDTH)


def with_gaps(X, share=0.1, seed=1):
    X = X.copy()
    X[np.random.default_rng(seed).random(X.shape) < share] = np.nan
    return X


X = numbers()
GAPS = with_gaps(X)
Z = (X - X.mean(axis=0)) / X.std(axis=0)
Y = (Z[:, 0] + Z[:, 3] + np.sin(Z[:, 1] * 3) + Z[:, 4] / 2 > 0).astype(int)

LIGHT = {"n_estimators": 7, "min_child_samples": 2, "verbose": -1, "n_jobs": 1}
FORESTS = {
    "forest": ensemble.RandomForestClassifier(7, random_state=0),
    "xgboost": xgb.XGBClassifier(n_estimators=7, max_depth=4, n_jobs=1),
    "lightgbm": lgb.LGBMClassifier(**LIGHT),
}
MORE_FORESTS = {
    "tree": tree.DecisionTreeRegressor(random_state=0),
    "gb": ensemble.GradientBoostingClassifier(n_estimators=7, random_state=0),
    "hist": ensemble.HistGradientBoostingClassifier(max_iter=7, min_samples_leaf=3),
    "hist-r": ensemble.HistGradientBoostingRegressor(max_iter=7, min_samples_leaf=3),
    "isolation": ensemble.IsolationForest(n_estimators=7, random_state=0),
    "extra": ensemble.ExtraTreesRegressor(7, random_state=0),
    "xgb-r": xgb.XGBRegressor(n_estimators=7, max_depth=4, n_jobs=1),
    "lgb-r": lgb.LGBMRegressor(**LIGHT),
    "bagging": ensemble.BaggingClassifier(n_estimators=4, random_state=0),
    "adaboost": ensemble.AdaBoostClassifier(n_estimators=4, random_state=0),
}


def bins(n, **how):
    return pre.KBinsDiscretizer(n, encode="ordinal", **how)


TRANSFORMERS = {
    "standard": pre.StandardScaler(),
    "standard-no-mean": pre.StandardScaler(with_mean=False),
    "standard-no-std": pre.StandardScaler(with_std=False),
    "minmax": pre.MinMaxScaler((-3, 7)),
    "minmax-clip": pre.MinMaxScaler(clip=True),
    "maxabs": pre.MaxAbsScaler(),
    "robust": pre.RobustScaler(),
    "robust-unit": pre.RobustScaler(quantile_range=(10, 90), unit_variance=True),
    "robust-no-scale": pre.RobustScaler(with_scaling=False),
    "binarizer": pre.Binarizer(threshold=0.25),
    "bins-quantile": bins(5, strategy="quantile", quantile_method="linear"),
    "bins-uniform": bins(4, strategy="uniform"),
    "bins-one-hot": pre.KBinsDiscretizer(
        4, encode="onehot", quantile_method="averaged_inverted_cdf"
    ),
    "bins-one-hot-dense": pre.KBinsDiscretizer(
        3, encode="onehot-dense", strategy="uniform"
    ),
    "identity": pre.FunctionTransformer(),
    "identity-checked": pre.FunctionTransformer(validate=True),
    "variance": fs.VarianceThreshold(1e-3),
    "k-best": fs.SelectKBest(k=3),
    "percentile": fs.SelectPercentile(percentile=50),
    "from-model": fs.SelectFromModel(tree.DecisionTreeClassifier(random_state=0)),
    "rfe": fs.RFE(tree.DecisionTreeClassifier(random_state=0), n_features_to_select=3),
    "imputer": SimpleImputer(),
    "imputer-median": SimpleImputer(strategy="median"),
    "imputer-frequent": SimpleImputer(strategy="most_frequent"),
    "imputer-constant": SimpleImputer(strategy="constant", fill_value=-1.5),
    "imputer-marks": SimpleImputer(add_indicator=True),
    "imputer-number": SimpleImputer(missing_values=X[3, 1], add_indicator=True),
    "union": make_union(pre.StandardScaler(), pre.MinMaxScaler()),
    "union-marks": make_union(SimpleImputer(), MissingIndicator(features="all")),
    "columns": ColumnTransformer(
        [
            ("a", pre.StandardScaler(), [4, 1]),
            ("b", pre.RobustScaler(), slice(2, 4)),
            ("c", "drop", [0]),
        ],
        remainder="passthrough",
    ),
    "columns-mask": ColumnTransformer(
        [("a", pre.MinMaxScaler(), [True, False, True, False, False, True])]
    ),
    "columns-none": ColumnTransformer(
        [("a", pre.MinMaxScaler(), []), ("b", "passthrough", [5, 0, 3])]
    ),
    "nested": make_pipeline(
        "passthrough", pre.StandardScaler(), pre.MinMaxScaler((5, 6))
    ),
}
#: Those that make intervals of numbers, which a forest by itself cannot hold.
CODED = ("bins-one-hot", "bins-one-hot-dense", "imputer-number")
#: Those that accept missing values.
TAKE_NAN = [
    name
    for name in TRANSFORMERS
    if (
        name.startswith(("standard", "minmax", "maxabs", "robust", "imputer", "union"))
        and name != "imputer-number"
    )
    or name in ("identity", "variance", "columns", "columns-mask", "nested")
]


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


def same(found, expected):
    assert type(found) is type(expected)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


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


# ------------------------------------------------------------ every transformer


@pytest.mark.sampled(20)
@pytest.mark.parametrize("last", ["xgboost", "lightgbm"])
@pytest.mark.parametrize("name", [n for n in TRANSFORMERS if n not in CODED])
def test_a_transformer_folds_before_other_libraries(name, last):
    gaps = name in TAKE_NAN
    model = trained(name, FORESTS[last], GAPS if gaps else X)
    forest = load_forest(model)
    near = rows_around(forest)
    for rows in (X, near, with_gaps(near)) if gaps else (X, near):
        raw = reference_raw(forest, rows)[:, 0]
        transformed = model[:-1].transform(rows)
        asked = {"output_margin": True} if last == "xgboost" else {"raw_score": True}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            same(raw, model[-1].predict(transformed, **asked))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_transformer_folds(name):
    model = trained(name, FORESTS["forest"])
    fast = compiled(model)
    near = rows_around(fast.forest_)
    for rows in (X, numbers(200, 5) * 1.7, near, near[::-1] + 1e-9):
        assert is_ours(fast, rows)
        assert_same(fast, model, rows)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", TAKE_NAN)
def test_missing_values_fold(name):
    model = trained(name, FORESTS["forest"], GAPS)
    fast = compiled(model, GAPS)
    near = with_gaps(rows_around(fast.forest_), 0.2)
    for rows in (GAPS, near, np.full((2, WIDTH), np.nan)):
        assert is_ours(fast, rows)
        assert_same(fast, model, rows)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("last", MORE_FORESTS)
def test_every_forest_may_be_the_last_step(last):
    model = make_pipeline(
        SimpleImputer(), pre.StandardScaler(), clone(MORE_FORESTS[last])
    ).fit(GAPS, Y)
    fast = compiled(model, GAPS)
    near = with_gaps(rows_around(fast.forest_), 0.2)
    for rows in (GAPS, near):
        assert is_ours(fast, rows)
        assert_same(fast, model, rows)


def test_a_transformer_of_missing_values_before_a_forest_that_refuses_them():
    model = trained("standard", ensemble.GradientBoostingClassifier(n_estimators=3))
    fast = compiled(model)
    for call in (fast.predict, model.predict):
        with pytest.raises(ValueError, match=r"Input X contains NaN\.\nGradientBoost"):
            call(GAPS)


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


def random_step(random, depth=2):
    names = [
        "standard",
        "minmax",
        "minmax-clip",
        "maxabs",
        "robust",
        "imputer",
        "imputer-marks",
        "identity",
        "bins-uniform",
        "binarizer",
    ]
    kind = random.integers(0, 12)
    if depth and kind == 0:
        parts = [(f"u{i}", random_step(random, depth - 1)) for i in range(2)]
        return FeatureUnion(parts)
    if depth and kind == 1:
        return make_pipeline(*[random_step(random, depth - 1) for _ in range(2)])
    if depth and kind == 2:
        at = int(random.integers(1, 3))
        rest = ("drop", "passthrough")[random.integers(0, 2)]
        part = ("a", random_step(random, depth - 1), slice(0, at))
        return ColumnTransformer([part], remainder=rest)
    return clone(TRANSFORMERS[names[random.integers(0, len(names))]])


@pytest.mark.parametrize(
    "seed",
    [*range(5), *(pytest.param(i, marks=pytest.mark.slow) for i in range(5, 60))],
)
def test_random_pipelines(seed):
    random = np.random.default_rng(seed)
    steps = [random_step(random) for _ in range(random.integers(1, 5))]
    lasts = [*FORESTS.values(), *MORE_FORESTS.values()]
    last = clone(lasts[random.integers(0, len(lasts))])
    model = make_pipeline(*steps, last)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            rows = GAPS
            model.fit(rows, Y)
        except ValueError:  # a step that refuses missing values
            rows = X
            model.fit(rows, Y)
        fast = CompiledForest(model, tuning="off").fit(rows)
    near = rows_around(fast.forest_)
    for one in (rows, near, numbers(100, seed)):
        assert_same(fast, model, one)
    near = with_gaps(near)
    try:
        model.predict(near)
    except ValueError:
        return
    assert_same(fast, model, near)


# ------------------------------------------------------------ forms of rows


def named(X=X):
    return pd.DataFrame(X, columns=list("abcdef"))


def test_forms_of_rows():
    model = trained("standard", FORESTS["forest"])
    fast = compiled(model)
    whole = np.round(X * 3).astype(np.int64)
    frame = pd.DataFrame(X)
    for rows in (
        X,
        np.asfortranarray(X),
        X[::2],
        X[:, ::-1][:, ::-1],
        whole,
        whole.astype(np.int32),
        whole[:3].tolist(),
        X[:3].tolist(),
        tuple(map(tuple, X[:3])),
        frame,
        frame.astype({0: int}),
    ):
        assert is_ours(fast, rows)
        same(fast.predict_proba(rows), model.predict_proba(rows))
    for rows in (
        X.astype(np.float32),
        X.astype(np.float16),
        X > 0,
        X.astype(object),
        frame.astype(np.float32),
        frame.astype({0: np.float32}),
        frame.astype("Float64"),
    ):
        same(fast.predict_proba(rows), model.predict_proba(rows))
        assert fast._predictor._variant(rows) is not None or is_ours(fast, rows)
    assert not is_ours(fast, whole * 2**50)
    same(fast.predict_proba(whole * 2**50), model.predict_proba(whole * 2**50))


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
    big = np.random.default_rng(0).integers(-(2**26), 2**26, (400, WIDTH))
    big[::2] += 2**55
    model = make_pipeline(fs.VarianceThreshold(), clone(FORESTS[last])).fit(big, Y)
    fast = compiled(model, big)
    for rows in (big, big[1::2], big[1::2] // 8, pd.DataFrame(big[1::2])):
        same(fast.predict_proba(rows), model.predict_proba(rows))


def test_names_are_compared_by_the_first_step():
    model = make_pipeline(pre.StandardScaler(), clone(FORESTS["forest"]))
    model.fit(named(), Y)
    fast = compiled(model, named())
    assert fast.feature_names_in_.tolist() == list("abcdef")
    assert is_ours(fast, named())
    assert_same(fast, model, named())
    text = "X does not have valid feature names, but StandardScaler was fitted"
    for one in (fast, model):
        with pytest.warns(UserWarning, match=text):
            one.predict(X)
        with pytest.raises(ValueError, match="Feature names must be in the same order"):
            one.predict(named()[list("bacdef")])
        with pytest.raises(ValueError, match="Feature names unseen at fit time"):
            one.predict(named().assign(g=1.0))
    bare = trained("standard", FORESTS["forest"])
    for one in (compiled(bare), bare):
        with pytest.warns(UserWarning, match="X has feature names, but StandardScaler"):
            one.predict(named())


def by_name(last, **how):
    columns = ColumnTransformer(
        [
            ("scaled", pre.StandardScaler(), ["e", "b"]),
            ("filled", make_pipeline(SimpleImputer(), pre.MinMaxScaler()), ["c"]),
            ("gone", "drop", ["a"]),
        ],
        **how,
    )
    return make_pipeline(columns, clone(FORESTS[last]))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rest", ["drop", "passthrough"])
@pytest.mark.parametrize("last", FORESTS)
def test_columns_by_name(last, rest):
    frame = named(GAPS)
    model = by_name(last, remainder=rest).fit(frame, Y)
    fast = compiled(model, frame)
    other = frame.assign(text="some", more=1.0)
    for rows in (frame, other, other[other.columns[::-1]], frame.drop(columns="a")):
        assert is_ours(fast, rows)
        assert_same(fast, model, rows)
    if rest == "drop":
        assert is_ours(fast, frame[["c", "e", "b"]])
        assert_same(fast, model, frame[["c", "e", "b"]])
    for one in (fast, model):
        with pytest.raises(ValueError, match="columns are missing"):
            one.predict(frame.drop(columns="b"))
        with pytest.raises(ValueError, match="only supported for dataframes"):
            one.predict(GAPS)
    single = frame.astype(np.float32)
    assert not is_ours(fast, single)
    same(fast.predict_proba(single), model.predict_proba(single))


def test_columns_by_selector():
    frame = named().assign(f=np.arange(len(X)))
    columns = ColumnTransformer(
        [("a", pre.StandardScaler(), make_column_selector(dtype_include=float))],
        remainder="passthrough",
    )
    model = make_pipeline(columns, clone(FORESTS["lightgbm"])).fit(frame, Y)
    fast = compiled(model, frame)
    assert is_ours(fast, frame)
    assert_same(fast, model, frame)


def test_steps_that_give_frames():
    model = make_pipeline(pre.StandardScaler(), clone(FORESTS["forest"]))
    model.set_output(transform="pandas").fit(named(), Y)
    fast = compiled(model, named())
    assert is_ours(fast, named())
    assert_same(fast, model, named())


def test_a_function_of_arrays_that_is_to_give_frames_warns():
    steps = SimpleImputer(), pre.FunctionTransformer(np.arctan, validate=True)
    model = make_pipeline(*steps, clone(FORESTS["forest"]))
    model.set_output(transform="pandas").fit(X, Y)
    with pytest.warns(UserWarning, match="func. should return a pandas DataFrame"):
        expected = model.predict(X)
    fast = plain(model).fit(X)
    with pytest.warns(UserWarning, match="func. should return a pandas DataFrame"):
        np.testing.assert_array_equal(fast.predict(X), expected)


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


def test_values_that_a_step_refuses():
    for name, last in (("standard", "forest"), ("minmax", "lightgbm")):
        model = trained(name, FORESTS[last])
        fast = compiled(model)
        for value in (np.inf, -np.inf, 1e306, 1e308, -1e300, 1e38, 3.5e38):
            rows = X[:3].copy()
            rows[1, 0] = value
            try:
                with np.errstate(all="ignore"):
                    expected = model.predict_proba(rows)
            except ValueError as error:
                with pytest.raises(ValueError) as found, np.errstate(all="ignore"):
                    fast.predict_proba(rows)
                assert str(found.value) == str(error)
            else:
                with np.errstate(all="ignore"):
                    same(fast.predict_proba(rows), expected)
    for rows in (X[:0], X[:, :3], X[0], "text", None):
        with pytest.raises(Exception) as expected:
            model.predict(rows)
        with pytest.raises(type(expected.value)) as found:
            fast.predict(rows)
        assert str(found.value) == str(expected.value)


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
    fast = CompiledForest(model, tuning="off").fit(GAPS, Y)
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
    fast = CompiledForest(search, tuning="off").fit(GAPS, Y)
    own = clone(search).fit(GAPS, Y)
    same(fast.predict_proba(GAPS), own.predict_proba(GAPS))


def test_a_pipeline_without_transformers():
    for steps in ([], [("nothing", "passthrough")], [("none", None)]):
        model = Pipeline([*steps, ("forest", clone(FORESTS["forest"]))]).fit(X, Y)
        fast = compiled(model)
        assert_same(fast, model, X)


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


def test_an_artifact_needs_no_pipeline(tmp_path):
    model = make_pipeline(pre.StandardScaler(), clone(FORESTS["forest"]))
    model.fit(named(), np.array(["no", "yes"])[Y])
    fast = compiled(model, named())
    skforge.save(fast, tmp_path / "fast.skforge")
    kept = skforge.load(tmp_path / "fast.skforge")
    assert kept.feature_names_in_.tolist() == list("abcdef")
    assert kept.classes_.tolist() == ["no", "yes"]
    near = named(rows_around(fast.forest_))
    for rows in (named(), near, near[:1]):
        for method in ("predict", "predict_proba", "apply"):
            same(getattr(kept, method)(rows), getattr(fast, method)(rows))
    assert kept.score(named(), model.predict(named())) == 1.0
    with pytest.warns(UserWarning, match="but StandardScaler was fitted with"):
        same(kept.predict(X), model.predict(named()))
    for dtype in (np.float32, bool):
        same(
            kept.predict_proba(named().astype(dtype)),
            model.predict_proba(named().astype(dtype)),
        )
    with pytest.raises(skforge.exceptions.SourceNeededError):
        kept.predict(named().astype(np.float16))


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
