"""Pipelines with steps that do not fold: they run in their library, the rest folds."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import sklearn
from sklearn import decomposition, ensemble
from sklearn import preprocessing as pre
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.feature_selection import SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline, make_union
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits

import skforge
from skforge import InvalidInputError, UnsupportedModelError
from skforge.distributed import pack
from skforge.distributed.ray import Predictor
from skforge.exceptions import PerformanceWarning
from tests.comparing import assert_alike, refusal
from tests.forms import framed
from tests.kinds import CLASSIFIERS, FOREST, GAPS, ROWS, SCALER, X
from tests.kinds import FRAME as PLAIN
from tests.kinds import TWO as Y
from tests.kinds_of_pipelines import MIDDLE, STEPS, Own, twice
from tests.plain import fit_both, plain
from tests.sklearn_rows import same_bits as same

pd = pytest.importorskip("pandas")
sp = pytest.importorskip("scipy.sparse")
xgb = pytest.importorskip("xgboost")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Keep OpenMP from waiting for cores that other work has."""
    with threadpool_limits(1):
        yield


random = np.random.default_rng(0)
WORDS = np.array(["the", "a", "red", "green", "blue", "fast", "slow", "car", "boat"])
TEXTS = [" ".join(WORDS[random.integers(0, len(WORDS), 7)]) for _ in range(300)]
LABELS = np.array(["no", "yes"])[[int("red" in text) for text in TEXTS]]
FRAME = PLAIN.assign(text=TEXTS)
PCA = decomposition.PCA(3)


HIST_OF_CODES = ensemble.HistGradientBoostingClassifier(
    max_iter=5, categorical_features=[0]
)
XGB_OF_ZEROS = xgb.XGBClassifier(n_estimators=5, missing=0.0)


class Counting(TransformerMixin, BaseEstimator):
    """A transformer that remembers how often it was called."""

    def fit(self, X, y=None):
        self.n_features_in_, self.calls_ = X.shape[1], []
        return self

    def transform(self, X):
        self.calls_ = [*self.calls_, len(X)]
        warnings.warn("Counting counts", UserWarning, stacklevel=2)
        return X


def compiled(model, rows, **how):
    return plain(model, **how).fit(rows)


def where(fast):
    """Return where each top-level step but the last runs."""
    lines = fast.inspect("pipeline").splitlines()[1:-3]
    lines = [line for line in lines if not line.startswith(" ")]
    return ["folded" if "folded into the trees" in line else "runs" for line in lines]


def is_ours(fast, rows):
    """Tell whether the kernels answer for these rows."""
    source = fast._predictor.source
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return source.rows(source.prepared(rows), "predict") is not None


# ------------------------------------------------------------ steps

WHERE = {
    **{
        f"{name} in its library": ["runs", "runs", "folded"]
        for name in MIDDLE
        if name not in ("columns", "narrow")
    },
    "columns in its library": ["runs", "folded", "folded"],
    "narrow in its library": ["runs", "runs", "runs"],
    "taken apart": ["runs", "runs", "folded"],
    "some absent": ["runs", "runs", "folded", "folded"],
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", WHERE)
def test_steps_run_in_their_library_or_fold(name):
    """``test_kinds.py`` compares their answers."""
    model, rows = STEPS[name].fitted(), ROWS[STEPS[name].on]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast = compiled(model, rows)
    assert where(fast) == WHERE[name]
    if "folded" not in WHERE[name]:
        assert fast.forest_.n_features == model[-1].n_features_in_
    if hasattr(model, "n_features_in_"):  # no step before it, no number of columns
        assert fast.n_features_in_ == 6
    assert name != "taken apart" or "pipeline__pca" in fast.inspect("pipeline")
    assert is_ours(fast, rows)
    assert is_ours(fast, framed(rows))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in STEPS if " before " in name])
def test_raw_scores_and_leaves_behind_steps(name):
    model = STEPS[name].fitted()
    fast, rows = compiled(model, X), model[:-1].transform(X)
    asked = {"xgboost": {"output_margin": True}, "lightgbm": {"raw_score": True}}
    if how := asked.get(name.rpartition(" ")[2]):
        same(fast.predict_raw(X), model[-1].predict(rows, **how))
    if hasattr(model[-1], "apply"):
        same(fast.apply(X), model[-1].apply(rows))
        same(fast.apply(PLAIN), model[-1].apply(rows))


def test_the_last_step_that_does_not_fold_counts():
    """Also where types do not show it: dtypes, and what the forest tests."""
    bins = pre.KBinsDiscretizer(4, encode="ordinal", dtype=np.float32)
    fast = compiled(clone(make_pipeline(PCA, SCALER, bins, FOREST)).fit(X, Y), X)
    assert where(fast) == ["runs", "runs", "runs"]
    table = fast.inspect("pipeline")
    assert "comes before 'kbinsdiscretizer'" in table
    assert "KBinsDiscretizer returns columns of dtype float32" in table
    codes = np.column_stack([np.floor(X[:, 2]), X[:, [0, 1, 3, 4, 5]]])
    for step, last, X_ in (
        (pre.FunctionTransformer(np.abs), HIST_OF_CODES, np.abs(codes)),
        (pre.MaxAbsScaler(), XGB_OF_ZEROS, X),
        (None, HIST_OF_CODES, np.abs(codes)),
        (None, XGB_OF_ZEROS, X),
        (None, FOREST, X),
    ):
        steps = [step, last] if step else [last]
        model, fast = fit_both(clone(make_pipeline(*steps)), X_, Y)
        assert where(fast) == ["folded"] * (len(steps) - 1)
        zeros = np.where(X_ > 5, X_, 0)
        assert_alike(fast, model, X_, X_[:1], X_ + 50, zeros)
        assert is_ours(fast, X_)


def test_only_the_last_step_is_refused():
    model = make_pipeline(PCA, SVC())
    for one, how in ((model, (X, Y)), (clone(model).fit(X, Y), (X,))):
        with pytest.raises(UnsupportedModelError, match=r"sklearn\.svm\._classes\.SVC"):
            plain(one).fit(*how)
    model = clone(make_pipeline(PCA, FOREST)).fit(X, Y)
    with pytest.raises(UnsupportedModelError, match=r"'pca' of the pipeline, PCA, is"):
        skforge.load_forest(model)


def test_no_step_folds_into_a_model_that_knows_categories_by_name():
    catboost = pytest.importorskip("catboost")
    how = {"iterations": 4, "verbose": 0, "allow_writing_files": False}
    last = catboost.CatBoostClassifier(cat_features=["text"], **how)
    frame = FRAME.assign(text=np.where(Y, "red", WORDS[np.arange(len(Y)) % 9]))
    for step in ("passthrough", pre.FunctionTransformer()):
        model = make_pipeline(step, last).fit(frame, Y)
        with pytest.warns(PerformanceWarning, match="categories by their names"):
            fast = plain(model).fit(frame)
        assert_alike(fast, model, frame, frame[:1], frame.assign(text="new"))
        assert not fast.counters()["library"]["calls"]


def test_a_step_runs_once_a_call_and_warns_itself():
    model = clone(make_pipeline(Counting(), SCALER, FOREST))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, Y)
        fast = compiled(model, X)
    for rows in (X, X[:3], X.astype("f4")):
        assert_alike(fast, model, rows)
        model[0].calls_ = []
        with pytest.warns(UserWarning, match="Counting counts") as caught:
            fast.predict(rows)
        assert len(caught) == 1
        assert model[0].calls_ == [len(rows)]
    pickle.dumps(fast)  # calls change the step, not what was compiled


# ------------------------------------------------------------ texts and sparse rows


@pytest.mark.parametrize("last", ["forest", "hist", "xgboost", "lightgbm"])
def test_texts(last):
    steps = [TfidfVectorizer()]
    if last == "hist":
        steps.append(decomposition.TruncatedSVD(3, random_state=0))
    y = LABELS if last != "xgboost" else (LABELS == "yes").astype(int)
    model, fast = fit_both(clone(make_pipeline(*steps, CLASSIFIERS[last])), TEXTS, y)
    assert is_ours(fast, TEXTS)
    assert not hasattr(fast, "n_features_in_")
    assert not hasattr(model, "n_features_in_")
    assert fast.score(TEXTS, y) == model.score(TEXTS, y)
    array, series = np.array(TEXTS), pd.Series(TEXTS, index=range(7, 307))
    assert_alike(fast, model, TEXTS, TEXTS[:1], array, tuple(TEXTS), series)
    assert_alike(fast, model, ["unknown", "red car"], "a text", [], [1, 2], None)
    compiled(model, series)
    compiled(model, tuple(TEXTS))


def test_steps_behind_texts_fold_where_rows_are_dense():
    for step in (SelectKBest(k=5), pre.MaxAbsScaler()):
        model = clone(make_pipeline(TfidfVectorizer(), step, FOREST))
        fast = compiled(model.fit(TEXTS, LABELS), TEXTS)
        assert where(fast) == ["runs", "runs"]
        assert "gets sparse rows, which cannot be folded" in fast.inspect("pipeline")
        assert is_ours(fast, TEXTS)
        assert_alike(fast, model, TEXTS)


def test_a_column_of_texts():
    filled = make_pipeline(SimpleImputer(), pre.StandardScaler())
    columns = ColumnTransformer(
        [("words", TfidfVectorizer(), "text"), ("filled", filled, ["c", "a"])],
        sparse_threshold=0,
    )
    model = clone(make_pipeline(columns, pre.MinMaxScaler(), FOREST))
    model.fit(FRAME, LABELS)
    fast = compiled(model, FRAME)
    assert where(fast) == ["folded", "folded"]
    assert fast.feature_names_in_.tolist() == list(FRAME)
    table = fast.inspect("pipeline")
    assert "TfidfVectorizer is not one of the transformers" in table
    assert "\n  words " in table
    assert "\n    simpleimputer " in table
    turned = FRAME[FRAME.columns[::-1]].assign(more=1)
    assert_alike(fast, model, FRAME, FRAME[:1], turned, FRAME.drop(columns="d"))
    assert_alike(fast, model, FRAME.drop(columns="text"), X, FRAME.to_numpy())


def test_sparse_rows():
    rows = sp.csr_matrix(np.where(X > 5, X, 0))
    for steps in ([decomposition.TruncatedSVD(3), SCALER], [pre.MaxAbsScaler(), Own()]):
        if isinstance(steps[1], Own):
            steps[1].set_params(with_mean=False)
        model, fast = fit_both(clone(make_pipeline(*steps, FOREST)), rows, Y)
        assert is_ours(fast, rows)
        assert_alike(fast, model, rows, rows[:1], rows.tocsc(), rows.toarray())


# ------------------------------------------------------------ the estimator


@pytest.fixture
def behind():
    """Return a pipeline of which a step runs, and what is compiled of it."""
    model = clone(make_pipeline(PCA, SCALER, FOREST)).fit(X, Y)
    return model, compiled(model, X)


def test_the_estimator(behind, tmp_path):
    model, fast = behind
    assert fast.estimator_ is model
    assert_alike(fast.warm_up(), model, X, methods=("predict", "predict_log_proba"))
    out = np.empty((300, 2))
    assert fast.predict_proba(X, out=out) is out
    same(out, model.predict_proba(X))
    html = fast._repr_html_()
    assert '<th scope="row">steps</th><td>1 in their library, 1 folded</td>' in html
    assert "PCA is not one of the transformers that can be folded" in html
    # what needs plain data is refused
    for store in (lambda: skforge.save(fast, tmp_path / "a"), fast.drop_estimator):
        with pytest.raises(UnsupportedModelError, match="Some steps of the pipeline r"):
            store()
    with pytest.raises(UnsupportedModelError, match=r"skforge\.export\(fast\.forest_"):
        skforge.export(fast, tmp_path / "model.c", kind="c")
    assert pack(fast).pickled
    bare = compiled(clone(FOREST).fit(X, Y), X)
    with pytest.raises(InvalidInputError, match="has no such steps; use another"):
        bare.inspect("pipeline")


def test_the_table():
    model = make_pipeline(
        SCALER, make_union(SimpleImputer(), decomposition.PCA(2)), SCALER, FOREST
    )
    fast = compiled(clone(model).fit(X, Y), X)
    assert fast.inspect("pipeline").splitlines() == [
        "step                    transformer             where                  why",
        "standardscaler-1        StandardScaler          runs in scikit-learn   comes "
        "before 'featureunion'",
        "featureunion            FeatureUnion            runs in scikit-learn   'pca' "
        "in it cannot be folded",
        "  simpleimputer         SimpleImputer           runs in scikit-learn",
        "  pca                   PCA                     runs in scikit-learn   PCA is "
        "not one of the transformers that can be folded",
        "standardscaler-2        StandardScaler          folded into the trees",
        "randomforestclassifier  RandomForestClassifier  compiled",
        "",
        "Rows like those given to fit are answered by compiled code after 2 steps in "
        "their library.",
    ]
    again = pickle.loads(pickle.dumps(fast))
    assert again.inspect("pipeline") == fast.inspect("pipeline")


def test_a_step_that_is_not_fitted():
    for steps in ([SCALER], [PCA, SCALER], [SCALER, PCA]):
        model = clone(make_pipeline(*steps, FOREST)).fit(X, Y)
        model.steps[-2] = "unfitted", clone(steps[-1])
        # In scikit-learn 1.7 steps say what they lack, and pipelines speak for others.
        old = sklearn.__version__.startswith("1.7.")
        expected = AttributeError if old else NotFittedError
        said = refusal(expected, model.predict, X)
        assert refusal(expected, compiled, model, X) == said or old


def test_a_model_that_changes(behind):
    model, fast = behind
    model[0].fit(X * 2)  # it runs as it is now
    assert_alike(fast, model, X)
    model[1].fit(model[0].transform(X))
    with pytest.raises(skforge.InvalidModelError, match="has changed since"):
        pickle.dumps(fast)


# ------------------------------------------------------------ training, searches


@pytest.mark.parametrize("compiles", [False, True], ids=["whole", "its last step"])
def test_searches(compiles):
    steps, depth = [("scale", SCALER), ("pca", PCA)], "clf__max_depth"
    own = Pipeline([*steps, ("clf", FOREST)])
    own = GridSearchCV(own, {depth: [2, 5], "pca__n_components": [3]}, cv=2).fit(X, Y)
    if compiles:
        depth = "clf__estimator__max_depth"
    model = Pipeline([*steps, ("clf", plain(FOREST) if compiles else FOREST)])
    grid = {depth: [2, 5], "pca__n_components": [3]}
    inner = plain(GridSearchCV(model, grid, cv=2)).fit(X, Y)
    same(inner.predict_proba(X), own.predict_proba(X))
    assert where(inner).count("runs") == 2
    grid = {f"estimator__{name}": values for name, values in grid.items()}
    outer = GridSearchCV(plain(model), grid, cv=2).fit(X, Y)
    same(outer.predict_proba(X), own.predict_proba(X))
    assert [*outer.best_params_.values()] == [*own.best_params_.values()]
    scores = "mean_test_score"
    np.testing.assert_array_equal(outer.cv_results_[scores], own.cv_results_[scores])


# ------------------------------------------------------------ a compiled last step


@pytest.mark.parametrize("first", [SCALER, PCA])
def test_the_last_step_may_be_compiled(first):
    own = clone(make_pipeline(first, FOREST)).fit(X, Y)
    last = plain(clone(FOREST))
    fitted, whole = fit_both(make_pipeline(clone(first), last), X, Y)
    assert whole.estimator_ is fitted
    assert where(whole) == ["runs" if first is PCA else "folded"]
    assert_alike(whole, own, X, X[:1], X.astype("f4"), PLAIN)
    same(whole.apply(X), own[-1].apply(own[:-1].transform(X)))
    trained = plain(make_pipeline(clone(first), clone(last))).fit(X, Y)
    assert_alike(trained, own, X, X[:1])
    assert where(trained) == where(whole)
    assert isinstance(trained.estimator_[-1], ensemble.RandomForestClassifier)
    frozen = FrozenEstimator(fitted)
    for again in (pickle.loads(pickle.dumps(whole)), compiled(frozen, X)):
        assert_alike(again, own, X)
    fitted[-1].fit(first.fit_transform(X), Y)
    with pytest.raises(skforge.InvalidModelError, match="has changed since"):
        pickle.dumps(whole)


def test_a_compiled_last_step_without_an_estimator(tmp_path):
    rows = clone(PCA).fit_transform(X)
    booster = xgb.train({"max_depth": 3}, xgb.DMatrix(rows, Y), 5)
    booster.save_model(tmp_path / "model.json")
    stored = compiled(clone(FOREST).fit(rows, Y), rows).drop_estimator()
    for last in (
        compiled(booster, rows),
        compiled(str(tmp_path / "model.json"), rows),
        stored,
    ):
        model = Pipeline([("pca", clone(PCA).fit(X)), ("clf", last)])
        whole = compiled(model, X)
        same(whole.predict(X), model.predict(X))
        same(whole.predict(X[:1]), model.predict(X[:1]))
        same(whole.predict_raw(X), last.predict_raw(model[0].transform(X)))
        same(whole.apply(X), last.apply(model[0].transform(X)))
        same(pickle.loads(pickle.dumps(whole)).predict(X), model.predict(X))


def test_weights_reach_the_forest():
    weights = np.random.default_rng(1).random(len(X))
    own = clone(make_pipeline(PCA, FOREST))
    own.fit(X, Y, randomforestclassifier__sample_weight=weights)
    last = plain(FOREST)
    fast = plain(make_pipeline(PCA, last), prefit=False)
    fast.fit(X, Y, compiledforest__sample_weight=weights)
    same(fast.predict_proba(X), own.predict_proba(X))


def test_workers_get_the_pipelines_own_columns():
    model = clone(make_pipeline(PCA, SCALER, FOREST)).fit(PLAIN, Y)
    worker = Predictor(compiled(model, PLAIN), "predict_proba", keep=False)
    found = worker({name: PLAIN[name].to_numpy() for name in "fedcba"})
    same(found["probability_1"], model.predict_proba(PLAIN)[:, 1])


# ------------------------------------------------------------ parts of a step


def parts_of_days(frame):
    days = frame["when"].dt
    return np.column_stack([days.day_of_week, days.hour]).astype(float)


def days(frame):
    return pd.DataFrame({"day": frame["when"].dt.day_of_week})


def orders():
    random = np.random.default_rng(0)
    seconds = pd.to_timedelta(random.integers(0, 10**7, 400), unit="s")
    return pd.DataFrame(
        {
            "a": random.normal(size=400),
            "b": random.normal(size=400) * 5,
            "n": random.integers(0, 9, 400),
            "city": random.choice(["Oslo", "Rome", "Bern"], 400),
            "when": pd.Timestamp("2024-01-01") + seconds,
            "text": random.choice(["red cat", "red dog", "old dog dog"], 400),
        }
    )


TWO_OF_THEM = make_pipeline(SCALER, decomposition.PCA(2, random_state=0))
PARTS = {
    "array": ("part", pre.FunctionTransformer(parts_of_days), ["when"]),
    "frame": ("part", pre.FunctionTransformer(days), ["when"]),
    "sparse": ("part", TfidfVectorizer(), "text"),
    "pipeline": ("part", TWO_OF_THEM, ["a", "b"]),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rest", [[], [pre.MaxAbsScaler()]])
@pytest.mark.parametrize("name", PARTS)
def test_the_other_parts_of_a_column_transformer_fold(name, rest):
    frame = orders()
    y = (frame["a"] + (frame["city"] == "Oslo") > 0.5).astype(int)
    codes = pre.OneHotEncoder(handle_unknown="ignore")
    first = [("scaled", pre.StandardScaler(), ["a", "b"]), ("codes", codes, ["city"])]
    columns = ColumnTransformer([*first, PARTS[name], ("n", "passthrough", ["n"])])
    model, fast = fit_both(make_pipeline(columns, *rest, clone(FOREST)), frame, y)
    assert where(fast) == ["folded"] * (1 + len(rest))
    table = fast.inspect("pipeline").splitlines()
    (line,) = (one for one in table if one.startswith("  part "))
    assert "runs in scikit-learn" in line
    assert fast.summary().steps_summary == f"1 in their library, {1 + len(rest)} folded"
    forms = [frame[["when", "text", "city", "n", "b", "a"]].assign(more=1)[3:9]]
    forms += [frame.assign(n=frame["n"] > 3), frame.assign(city="another")]
    forms += [frame.astype({"a": "float32"}), frame.astype({"n": "Int64"})]
    for rows in (frame, frame[:1], *forms):
        before = fast.counters()
        assert_alike(fast, model, rows)
        after = fast.counters()
        assert after["steps"]["calls"] > before["steps"]["calls"]
        assert after["library"] == before["library"]
    odd = [frame.assign(a=value) for value in (np.inf, np.nan)]
    odd += [frame.assign(when="soon"), frame.assign(**{"part\0000": 1.0}), frame[:0]]
    odd += [frame.set_axis([*range(6)], axis=1), frame.to_numpy()]
    assert_alike(fast, model, frame.drop(columns="a"), *odd)
    same(fast.apply(frame), model[-1].apply(model[:-1].transform(frame)))
    again = pickle.loads(pickle.dumps(fast))
    same(again.predict_proba(frame), fast.predict_proba(frame))
    if name == "pipeline":  # mappings
        one = frame[:1].to_dict("records")
        same(fast.predict_proba(one), model.predict_proba(frame[:1]))


def test_parts_of_arrays():
    both = [("a", TWO_OF_THEM, [0, 1, 2]), ("b", pre.FunctionTransformer(twice), [3])]
    columns = ColumnTransformer(both, remainder=pre.MinMaxScaler())
    model = make_pipeline(SimpleImputer(), columns, clone(FOREST)).fit(GAPS, Y)
    fast = compiled(model, GAPS)
    assert where(fast) == ["runs", "folded"]
    assert fast.summary().steps_summary == "3 in their library, 1 folded"
    assert_alike(fast, model, GAPS, X[:1], X.astype("f4"), X.tolist(), X[:, :3], X[:0])
    same(fast.apply(X.astype("f4")), fast.apply(X.astype("f4").astype(float)))
    fast._compiled().fingerprint.check()
    model[1].fit(X)
    with pytest.raises(skforge.InvalidModelError):
        fast._compiled().fingerprint.check()


def nothing(frame):
    return np.zeros((len(frame), 0))


def test_a_part_without_columns_widens_the_others():
    parts = [
        ("a", "passthrough", ["a"]),
        ("none", pre.FunctionTransformer(nothing), ["b"]),
    ]
    border = 0.09996  # float16 has 0.09998 for it
    model = make_pipeline(
        ColumnTransformer(parts), pre.Binarizer(threshold=border), clone(FOREST)
    )
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    model.fit(frame, frame["a"] > border)
    fast = compiled(model, frame)
    rows = pd.DataFrame({"a": np.float16([border, 0, 1]), "b": 0.0})
    assert model.predict(rows)[0]
    assert_alike(fast, model, frame, rows, rows.assign(a=np.float16(np.inf)))
