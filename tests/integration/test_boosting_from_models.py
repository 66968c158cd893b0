"""Gradient boosting that starts from a model: scikit-learn's bits by every method."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn import ensemble as e
from sklearn.calibration import CalibratedClassifierCV
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import skforge
from skforge import CompiledForest, UnsupportedModelError
from skforge.exceptions import InvalidModelError
from tests.kinds import FRAME, N
from tests.plain import plain
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


@pytest.mark.sampled(4)
@pytest.mark.parametrize("loss", ["squared_error", "huber", "quantile"])
@pytest.mark.parametrize("init", REGRESSORS)
def test_regressors(init: str, loss: str) -> None:
    model = e.GradientBoostingRegressor(
        init=REGRESSORS[init], loss=loss, subsample=0.7, n_estimators=6, random_state=1
    )
    fast = check(model.fit(FRAME, VALUES), FRAME)
    check(model, FRAME[:9], pickle.loads(pickle.dumps(fast)))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("classes", "loss"), [(2, "log_loss"), (2, "exponential"), (3, "log_loss")]
)
@pytest.mark.parametrize("init", CLASSIFIERS)
def test_classifiers(init: str, classes: int, loss: str) -> None:
    labels = np.digitize(VALUES, np.quantile(VALUES, [0.3, 0.6][: classes - 1]))
    model = e.GradientBoostingClassifier(
        init=CLASSIFIERS[init], loss=loss, n_estimators=5, random_state=1
    )
    fast = check(model.fit(FRAME, labels), FRAME)
    check(model, FRAME[:9], pickle.loads(pickle.dumps(fast)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_random_models(seed: int) -> None:
    random = np.random.default_rng(seed)
    X = random.normal(size=(120, 4)).round(int(random.integers(1, 5)))
    y = X @ random.normal(size=4) + random.normal(size=120)
    how = {"n_estimators": int(random.integers(1, 30)), "random_state": seed}
    how |= {"max_depth": int(random.integers(1, 7)), "learning_rate": random.random()}
    if seed % 2:
        init: Any = random.choice([*REGRESSORS])
        model: Any = e.GradientBoostingRegressor(init=REGRESSORS[init], **how)
    else:
        init, y = random.choice([*CLASSIFIERS]), np.digitize(y, [-1, 1][: seed % 4])
        if len({*y}) < 2:
            y = (X[:, 0] > 0) * 1
        model = e.GradientBoostingClassifier(init=CLASSIFIERS[init], **how)
    check(model.fit(X, y), np.concatenate([X, random.normal(size=(1100, 4))]))


def test_sparse_rows_and_rows_that_the_model_refuses() -> None:
    X = sparse.random_array((N, 5), density=0.4, rng=0, format="csr")
    model = e.GradientBoostingClassifier(init=CLASSIFIERS["forest"], n_estimators=3)
    fast = check(model.fit(X, np.arange(N) % 3), X)
    for rows in (X[:0], np.zeros((2, 3)), np.full((2, 5), np.nan)):
        errors = []
        for own in (model, fast):
            for call in (
                own.predict,
                lambda rows, own=own: [*own.staged_predict(rows)],
            ):
                with pytest.raises(ValueError) as error:
                    call(rows)
                errors.append(str(error.value))
        assert errors[:2] == errors[2:]


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
