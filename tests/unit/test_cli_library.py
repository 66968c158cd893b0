"""Models in their own libraries, as judges of files: boosters answer as estimators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skforge.cli.library import library_of
from skforge.frontends import load_forest
from skforge.sources.row_spec import row_spec

pd = pytest.importorskip("pandas")

X = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 3)), columns=[*"abc"])
LABELS = {2: (X["a"] > 0).astype(int), 3: np.digitize(X["a"], [-0.5, 0.5])}


def judge(booster: Any) -> Any:
    found = library_of(Path("m"), booster, load_forest(booster), row_spec(booster))
    assert found is not None
    return found


@pytest.mark.parametrize("classes", LABELS)
@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_a_booster_answers_as_the_classifier_it_is_of(name: str, classes: int) -> None:
    library = pytest.importorskip(name)
    if name == "xgboost":
        model = library.XGBClassifier(n_estimators=3).fit(X, LABELS[classes])
        booster = model.get_booster()
    else:
        model = library.LGBMClassifier(n_estimators=3, n_jobs=1, verbose=-1)
        booster = model.fit(X, LABELS[classes]).booster_
    found = judge(booster)
    for method in ("predict", "predict_proba"):
        answer = found.answer(method, found.taken(X))
        np.testing.assert_array_equal(answer, getattr(model, method)(X))


def test_a_booster_that_predicts_labels_has_probabilities() -> None:
    xgboost = pytest.importorskip("xgboost")
    rows = xgboost.DMatrix(X, LABELS[3])
    given = {"num_class": 3, "max_depth": 3}
    labels, several = (
        judge(xgboost.train({"objective": f"multi:{name}"} | given, rows, 3))
        for name in ("softmax", "softprob")
    )
    frame = labels.taken(X)
    np.testing.assert_array_equal(
        labels.answer("predict", frame), several.answer("predict", frame)
    )
    np.testing.assert_allclose(
        labels.answer("predict_proba", frame),
        several.answer("predict_proba", frame),
        rtol=1e-6,
    )


def test_a_regressor_has_no_probabilities() -> None:
    lightgbm = pytest.importorskip("lightgbm")
    model = lightgbm.LGBMRegressor(n_estimators=3, n_jobs=1, verbose=-1)
    booster = model.fit(X, X["a"]).booster_
    found = judge(booster)
    assert [*found.answers] == ["predict", "predict_raw", "apply"]
    np.testing.assert_array_equal(found.answer("predict", X), booster.predict(X))
