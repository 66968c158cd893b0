"""Gradient boosting that starts from a model, and scikit-learn's other ensembles."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import sparse
from sklearn import ensemble as e
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.utils import get_tags
from threadpoolctl import threadpool_limits

import skforge
from skforge import CompiledForest, UnsupportedModelError
from skforge.exceptions import InvalidModelError, SourceNeededError, VerificationError
from skforge.modules.compiled import compile_forest
from skforge.prediction.given_rows import GivenRows
from skforge.prediction.predictor import ForestPredictor
from skforge.prediction.verification import verify
from skforge.sources.find import source_of
from tests.compared_calls import difference
from tests.comparing import in_every_state, refusal
from tests.kinds import FRAME, MODELS, TWO, N, X
from tests.plain import plain
from tests.programs import run_python
from tests.sklearn_rows import same_bits as same

xgb = pytest.importorskip("xgboost")

VALUES = np.random.default_rng(0).normal(size=N) + np.arctan(FRAME.to_numpy()[:, 0])
FEW: dict[str, Any] = {"n_estimators": 3, "random_state": 0}
REGRESSORS = {
    "forest": e.RandomForestRegressor(**FEW),
    "tree": DecisionTreeRegressor(max_depth=3),
    "pipeline": make_pipeline(StandardScaler(), e.ExtraTreesRegressor(**FEW)),
    "line": LinearRegression(),
    "boosted": e.GradientBoostingRegressor(**FEW),
    "from a line": e.GradientBoostingRegressor(init=LinearRegression(), **FEW),
    "medians": e.AdaBoostRegressor(**FEW),
    "xgboost": xgb.XGBRegressor(n_estimators=3, n_jobs=1),
}
CLASSIFIERS = {
    "forest": e.RandomForestClassifier(**FEW),
    "tree": DecisionTreeClassifier(max_depth=3),
    "pipeline": make_pipeline(StandardScaler(), e.ExtraTreesClassifier(**FEW)),
    "line": LogisticRegression(),
    "boosted": e.GradientBoostingClassifier(**FEW),
    "histogram": e.HistGradientBoostingClassifier(max_iter=3),
    "xgboost": xgb.XGBClassifier(n_estimators=3, n_jobs=1),
}
ANSWERS = "predict", "predict_proba", "predict_log_proba", "decision_function", "apply"
STAGED = "staged_predict", "staged_predict_proba", "staged_decision_function"


def check(model: Any, rows: Any, fast: Any = None) -> Any:
    fast = plain(model).fit(rows) if fast is None else fast
    for name in (*ANSWERS, *STAGED):
        assert hasattr(fast, name) == hasattr(model, name)
        if not hasattr(model, name):
            continue
        for part in (rows, rows[:1], rows[:2]):
            found, wanted = (getattr(own, name)(part) for own in (fast, model))
            if name in STAGED:
                for stage, own in zip(found, wanted, strict=True):
                    same(stage, own)
            else:
                same(found, wanted)
    return fast


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """Members are trained on arrays without names, and some of them say so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)
        yield


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", range(200))
def test_random_models(seed: int) -> None:
    random = np.random.default_rng(seed)
    X = random.normal(size=(120, 4)).round(int(random.integers(1, 5)))
    y = X @ random.normal(size=4) + random.normal(size=120)
    how = {"n_estimators": int(random.integers(1, 30)), "random_state": seed}
    how |= {"max_depth": int(random.integers(1, 7)), "learning_rate": random.random()}
    how["subsample"] = random.choice([0.7, 1.0])
    if seed % 2:
        how["loss"] = random.choice(["squared_error", "huber", "quantile"])
        how["init"] = REGRESSORS[[*REGRESSORS][seed // 2 % len(REGRESSORS)]]
        model: Any = e.GradientBoostingRegressor(**how)
    else:
        y = np.digitize(y, [-1, 1]) if seed % 4 else (X[:, 0] > 0) * 1
        how["loss"] = random.choice(["log_loss", "exponential"][: 4 - len({*y})])
        how["init"] = CLASSIFIERS[[*CLASSIFIERS][seed // 2 % len(CLASSIFIERS)]]
        model = e.GradientBoostingClassifier(**how)
    rows = np.concatenate([X, random.normal(size=(1100, 4))])
    if seed % 3 == 0:
        X, rows = (pd.DataFrame(given, columns=[*"abcd"]) for given in (X, rows))
    fast = check(model.fit(X, y), rows)
    check(model, rows[:9], pickle.loads(pickle.dumps(fast)))


def test_sparse_rows_and_rows_that_the_model_refuses() -> None:
    X = sparse.random_array((N, 5), density=0.4, rng=0, format="csr")
    model = e.GradientBoostingClassifier(init=CLASSIFIERS["forest"], n_estimators=3)
    fast = check(model.fit(X, np.arange(N) % 3), X)
    for rows in (X[:0], np.zeros((2, 3)), np.full((2, 5), np.nan)):
        assert not difference(fast.predict, model.predict, rows)
        both = [lambda X, own=own: [*own.staged_predict(X)] for own in (fast, model)]
        assert not difference(*both, rows)


def test_a_pipeline_a_calibrator_and_a_model_that_is_not_trained() -> None:
    model = e.GradientBoostingClassifier(init=LogisticRegression(), n_estimators=3)
    labels = np.median(VALUES) < VALUES
    for outer in (
        make_pipeline(StandardScaler(), model),
        CalibratedClassifierCV(model, cv=2),
        model,
    ):
        fast = plain(outer).fit(FRAME, labels)
        same(fast.predict_proba(FRAME), fast.estimator_.predict_proba(FRAME))
    assert str(fast._split).splitlines()[1:] == [
        "init_        LogisticRegression  runs in scikit-learn  it is not one of the "
        "tree ensembles that can be compiled",
        "estimators_  3 stages            compiled",
    ]


def test_stages_of_an_ensemble_whose_members_have_rounds() -> None:
    member = xgb.XGBRegressor(n_estimators=2, n_jobs=1)
    model = e.AdaBoostRegressor(member, n_estimators=3, random_state=0)
    check(model.fit(FRAME.to_numpy(), VALUES), FRAME.to_numpy())


def test_what_needs_scikit_learn_is_refused(tmp_path: Any) -> None:
    model = e.GradientBoostingRegressor(init=REGRESSORS["forest"], n_estimators=3)
    fast = plain(model.fit(FRAME, VALUES)).fit(FRAME)
    for call in (
        lambda: skforge.load_forest(model),
        lambda: skforge.save(fast, tmp_path / "a.skforge"),
        lambda: skforge.export(fast, tmp_path / "a"),
        lambda: fast.predict_raw(FRAME),
        lambda: fast.predict_contribs(FRAME),
    ):
        with pytest.raises(UnsupportedModelError):
            call()
    with pytest.raises(UnsupportedModelError, match="predicts at random"):
        drawn = DummyClassifier(strategy="stratified")
        CompiledForest(e.GradientBoostingClassifier(init=drawn)).fit(FRAME, VALUES > 0)


@pytest.mark.parametrize("change", ["refit", "rate", "init"])
def test_changes_are_noticed(change: str) -> None:
    model = e.GradientBoostingRegressor(init=LinearRegression(), n_estimators=3)
    fast = plain(model.fit(FRAME, VALUES)).fit(FRAME)
    if change == "refit":
        model.fit(FRAME, VALUES)
    elif change == "rate":
        model.learning_rate = 0.7
    else:
        model.init_ = LinearRegression().fit(FRAME.to_numpy("f4"), -VALUES)
    with pytest.raises(InvalidModelError, match="has changed"):
        fast.predict(FRAME)


# ------------------------------------------------------------ other ensembles

NAMES = [
    name
    for name, kind in MODELS.items()
    if name.startswith(("gb", "hist", "isolation", "bagging", "adaboost"))
    and kind.on == "array"
    and not kind.y.startswith("one ")  # whose leaves all say the same
]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """On a busy machine, threads that wait for each other cost seconds."""
    with threadpool_limits(1):
        yield


def compiled(name):
    model = MODELS[name].fitted()
    return model, plain(model).fit(X)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_verification_sees_a_wrong_leaf(name):
    model, fast = compiled(name)
    leaves = np.nextafter(fast.forest_.leaf_value, np.inf)
    forest = replace(fast.forest_, leaf_value=leaves)
    predictor = ForestPredictor(compile_forest(forest), source_of(model, forest))
    with pytest.raises(VerificationError):
        verify(predictor, GivenRows(X), False)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_a_forest_without_its_model(name):
    """As loaded where scikit-learn's estimator is not at hand."""
    model, fast = compiled(name)
    bare = plain(fast.forest_).fit(X)
    kind = get_tags(model).estimator_type
    assert get_tags(bare).estimator_type == kind
    for method in ("predict_proba", "decision_function", "score_samples"):
        if method == "decision_function" or kind != "classifier":
            assert hasattr(bare, method) == hasattr(model, method), method
        if hasattr(model, method):
            assert not difference(getattr(bare, method), getattr(model, method), X)
    expected = model.predict(X)
    if kind == "classifier":
        expected = np.searchsorted(model.classes_, expected)
    np.testing.assert_array_equal(bare.predict(X), expected)


def test_one_class_is_said_where_members_are_no_help():
    model = clone(MODELS["adaboost of names"].model).fit(np.eye(3), [1, 1, 1])
    with pytest.raises(UnsupportedModelError, match="was fitted with one class"):
        plain(model).fit(np.eye(3))


# ------------------------------------------------------------ RandomTreesEmbedding

COLUMNS = "get_feature_names_out"


def same_matrix(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    if sparse.issparse(wanted):
        for name in ("data", "indices", "indptr"):
            same_matrix(getattr(found, name), getattr(wanted, name))
    else:
        assert found.tobytes() == wanted.tobytes()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(100))
def test_random_embeddings(seed: int) -> None:
    random = np.random.default_rng(seed)
    model = e.RandomTreesEmbedding(
        int(random.integers(1, 30)),
        max_depth=random.choice([None, 1, 3, 8]),
        min_samples_leaf=int(random.integers(1, 9)),
        sparse_output=bool(random.integers(2)),
        random_state=seed,
    )
    rows = random.normal(size=(200, 4)).round(int(random.integers(0, 4)))
    missing = np.where(random.random(rows.shape) < 0.1, np.nan, rows)
    model.fit(missing if seed % 2 else rows)
    fast = plain(model).fit(rows)
    for part in (rows, rows[:1], missing, rows.tolist(), sparse.csr_matrix(rows)):
        same_matrix(fast.transform(part), model.transform(part))
    np.testing.assert_array_equal(fast.apply(rows), model.apply(rows))
    assert fast.counters()["library"]["calls"] == 0


@pytest.mark.parametrize("how", [{}, {"sparse_output": False}], ids=["sparse", "dense"])
def test_frames_pickles_and_files(how: dict[str, Any], tmp_path: Any) -> None:
    model = e.RandomTreesEmbedding(5, random_state=0, **how).fit(FRAME)
    fast = plain(model).fit(FRAME)
    for one in in_every_state(fast, tmp_path).values():
        assert not hasattr(one, "predict")
        for rows in (FRAME, FRAME[:1], FRAME[::-1]):
            same_matrix(one.transform(rows), model.transform(rows))
        for wrong in (FRAME[:0], FRAME.iloc[:, :3], FRAME * np.inf):
            assert not difference(one.transform, model.transform, wrong)
    row = FRAME.iloc[0].to_dict()
    same_matrix(fast.transform(row), model.transform(FRAME[:1]))
    code = f"""
import numpy as np, skforge, sys
fast = skforge.load({str(tmp_path / "model.skforge")!r})
matrix = fast.transform(np.full((3, {FRAME.shape[1]}), 0.5))
assert "sklearn" not in sys.modules, [*sys.modules]
print(matrix.shape, matrix.sum())
"""
    assert run_python(code) == f"(3, {fast.forest_.n_leaves}) 15.0\n"


def test_the_settings_of_scikit_learn_count() -> None:
    model = e.RandomTreesEmbedding(5, random_state=0).fit(FRAME)
    fast = plain(model).fit(FRAME)
    if "sparse_interface" in sklearn.get_config():
        with sklearn.config_context(sparse_interface="sparray"):
            same_matrix(fast.transform(FRAME), model.transform(FRAME))
    model.sparse_output = False
    model.fit(FRAME).set_output(transform="pandas")
    fast.fit(FRAME)
    pd.testing.assert_frame_equal(fast.transform(FRAME), model.transform(FRAME))
    assert fast.counters()["library"]["calls"] == 1


def test_pipelines() -> None:
    embedding = e.RandomTreesEmbedding(5, random_state=0)
    step = plain(clone(embedding))
    own, ours = (
        make_pipeline(StandardScaler(), inner, LogisticRegression()).fit(X, TWO)
        for inner in (embedding, step)
    )
    same_matrix(ours.predict_proba(X), own.predict_proba(X))
    last = make_pipeline(StandardScaler(), embedding).fit(FRAME)
    fast = plain(last).fit(FRAME)
    same_matrix(fast.transform(FRAME), last.transform(FRAME))
    assert fast.counters()["library"]["calls"] == 0
    assert "folded into the trees" in fast.inspect("pipeline")


def test_leaves_without_a_column_are_refused() -> None:
    model = e.RandomTreesEmbedding(3, random_state=0).fit(X)
    encoder = model.one_hot_encoder_
    encoder.categories_[1] = encoder.categories_[1][1:]
    with pytest.raises(UnsupportedModelError, match="leaves without a column"):
        skforge.load_forest(model)


def test_transform_is_measured_and_columns_are_not_explained():
    X = np.random.default_rng(0).normal(size=(200, 4))
    model = e.RandomTreesEmbedding(n_estimators=5, random_state=0).fit(X)
    fast = plain(model).fit(X)
    text = str(fast.summary(X[:16], batch_sizes=[1, 16]))
    assert "Time of transform by batch size" in text
    with pytest.raises(UnsupportedModelError, match="something else than sums of its"):
        fast.predict_contribs(X[:2])


@pytest.mark.parametrize("named", [False, True])
def test_names_of_columns(named: bool, tmp_path: Path) -> None:
    rows = FRAME if named else X
    model = e.RandomTreesEmbedding(7, max_depth=4, random_state=0).fit(rows)
    wanted = model.get_feature_names_out()
    live = plain(model).fit(rows)
    states = in_every_state(live, tmp_path)
    for fast in states.values():
        names = fast.get_feature_names_out()
        assert (names.dtype, names.tolist()) == (wanted.dtype, wanted.tolist())
    with pytest.raises(ValueError, match="input_features"):
        live.get_feature_names_out(["a"])
    names_of = states["file"].get_feature_names_out
    assert refusal(SourceNeededError, names_of, ["a"]) == (
        "get_feature_names_out needs the RandomTreesEmbedding itself, which this "
        "CompiledForest was saved without; use the original model."
    )


def test_models_of_one_column_each_have_no_names_of_columns() -> None:
    assert not hasattr(plain(e.RandomForestRegressor(2)).fit(X, X[:, 0]), COLUMNS)
    votes = e.VotingRegressor([("a", e.RandomForestRegressor(2))]).fit(X, X[:, 0])
    fast = plain(votes).fit(X)
    assert getattr(fast, COLUMNS)().tolist() == ["votingregressor_a"]
    assert not hasattr(fast.drop_estimator(), COLUMNS)
