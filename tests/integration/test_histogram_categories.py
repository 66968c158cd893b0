"""Categories of HistGradientBoosting* in all kinds and forms, bit by bit."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, VotingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder

import skforge
from skforge import CompiledForest
from skforge.exceptions import InvalidInputError, UnsupportedModelError
from tests.sklearn_rows import same_bits

pd = pytest.importorskip("pandas")

N = 300
RNG = np.random.default_rng(0)
PEOPLE = pd.DataFrame(
    {
        "job": RNG.choice(["a", "b", "c"], N),
        "pay": RNG.gamma(2, 9, N),
        "old": RNG.random(N) < 0.3,
    }
)
Y = ((PEOPLE.pay > 15) ^ (PEOPLE.job == "b")).to_numpy(int)
OBJECTS = np.c_[RNG.integers(0, 4, N), RNG.normal(size=N)].astype(object)


def boosted():
    return HistGradientBoostingClassifier(max_iter=4, categorical_features=[0])


def compiled(model, X):
    return CompiledForest(model, tuning="off").fit(X)


def same_answers(fast, model, rows):
    for X in rows:
        same_bits(fast.predict_proba(X), model.predict_proba(X))
        same_bits(fast.predict(X), model.predict(X))


WRAPPED = {
    "alone": lambda model: model,
    "calibrated": lambda model: CalibratedClassifierCV(model, cv=2),
    "voting": lambda model: VotingClassifier([("a", model)], voting="soft"),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_column_of_booleans_makes_objects_of_the_steps_rows(name):
    steps = make_column_transformer(
        (OrdinalEncoder(), ["job"]), remainder="passthrough"
    )
    model = make_pipeline(steps, WRAPPED[name](boosted())).fit(PEOPLE, Y)
    fast = compiled(model, PEOPLE)
    rows = [PEOPLE, PEOPLE[:1], PEOPLE[["old", "pay", "job"]]]
    same_answers(fast, model, rows)
    assert fast.counters()["library"]["calls"] == 0
    same_answers(pickle.loads(pickle.dumps(fast)), model, rows)
    floats = PEOPLE.astype({"old": float})  # its encoder fails on these
    with pytest.raises(TypeError, match="isnan") as theirs:
        model.predict(floats)
    with pytest.raises(TypeError, match="isnan") as ours:
        fast.predict(floats)
    assert str(ours.value) == str(theirs.value)


def test_pipelines_around_objects_are_stored(tmp_path):
    steps = make_column_transformer(
        (OrdinalEncoder(), ["job"]), remainder="passthrough"
    )
    model = make_pipeline(steps, boosted()).fit(PEOPLE, Y)
    fast = compiled(model, PEOPLE)
    skforge.save(fast, tmp_path / "model.skforge")
    rows = [PEOPLE, PEOPLE[:1], PEOPLE[["old", "pay", "job"]]]
    same_answers(skforge.load(tmp_path / "model.skforge"), model, rows)
    same_answers(fast.drop_estimator(), model, rows)


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("form", ["array", "frame"])
def test_numbers_that_training_had_as_objects(name, form, tmp_path):
    X = OBJECTS if form == "array" else pd.DataFrame(OBJECTS, columns=["a", "b"])
    model = WRAPPED[name](boosted()).fit(X, Y)
    fast = compiled(model, X)
    same_answers(fast, model, [X, X[:1]])
    same_answers(pickle.loads(pickle.dumps(fast)), model, [X, X[:1]])
    with pytest.raises(TypeError, match="isnan"):
        fast.predict(X.astype(float))
    told = (
        "The HistGradientBoostingClassifier got its categories of column 0 as Python "
        "objects, and a .skforge file cannot store how it reads these; fit it with "
        "numbers, as X.astype(float) has them, or use joblib.dump."
    )
    for store in (
        fast.drop_estimator,
        lambda: skforge.save(fast, tmp_path / "model.skforge"),
    ):
        with pytest.raises(UnsupportedModelError) as refused:
            store()
        assert str(refused.value) == told


def test_rows_that_the_model_itself_fails_on():
    model = boosted().fit(OBJECTS, Y)
    with pytest.raises(InvalidInputError) as refused:
        compiled(model, OBJECTS.astype(float))
    assert type(refused.value.__cause__) is TypeError
    assert str(refused.value) == (
        "HistGradientBoostingClassifier.predict raises TypeError: "
        f"{refused.value.__cause__}. Compiled answers are compared with the model's; "
        "pass rows that it answers."
    )
