"""Pipelines and ensembles of imbalanced-learn, whose samplers do nothing at prediction.

A class of the same name stands for the pipeline where the library is not installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingClassifier, RandomForestClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import skforge
from skforge import CompiledForest, load_forest
from skforge.exceptions import InvalidModelError, UnsupportedModelError
from tests.comparing import assert_alike
from tests.plain import plain

rng = np.random.default_rng(0)
X = rng.normal(size=(200, 4))
y = (X[:, 0] + rng.normal(size=200) > 1.2).astype(int)


class Doubled(BaseEstimator):
    """A sampler that has the rows of class 1 twice."""

    def fit_resample(self, X: Any, y: Any) -> Any:
        again = np.flatnonzero(y)
        return np.concatenate([X, X[again]]), np.concatenate([y, y[again]])


class Sampling(Pipeline):
    """What imbalanced-learn's pipeline does: samplers have their say in ``fit``."""

    def _validate_steps(self) -> None:
        pass

    def fit(self, X: Any, y: Any = None, **params: Any) -> Any:
        self.steps = list(self.steps)
        for _, step in self.steps[:-1]:
            if hasattr(step, "fit_resample"):
                X, y = step.fit_resample(X, y)
            else:
                X = step.fit_transform(X, y)
        self.steps[-1][1].fit(X, y)
        return self

    def _iter(self, *arguments: Any, **options: Any) -> Any:
        steps = super()._iter(*arguments, **options)
        return (each for each in steps if not hasattr(each[2], "fit_resample"))


Sampling.__module__, Sampling.__qualname__ = "imblearn.pipeline", "Pipeline"


def forest() -> Any:
    return RandomForestClassifier(4, max_depth=3, random_state=0)


def of_stand_in() -> Any:
    steps = [("s", StandardScaler()), ("d", Doubled()), ("f", forest())]
    return Sampling(steps)


def of_library() -> Any:
    module = pytest.importorskip("imblearn.pipeline")
    from imblearn.over_sampling import SMOTE

    return module.make_pipeline(StandardScaler(), SMOTE(random_state=0), forest())


PIPELINES = {"a class of its name": of_stand_in, "imbalanced-learn": of_library}


@pytest.fixture(params=PIPELINES)
def make(request: Any) -> Callable[[], Any]:
    return PIPELINES[request.param]


def compare(fast: Any, model: Any) -> None:
    assert_alike(fast, model, X, X[:1], X.astype(np.float32))


def test_pipelines_fold_and_are_saved(make: Any, tmp_path: Any) -> None:
    model = make().fit(X, y)
    fast = plain(model).fit(X)
    compare(fast, model)
    assert fast.counters()["library"]["calls"] == 0
    skforge.save(fast, tmp_path / "model.skforge")
    compare(skforge.load(tmp_path / "model.skforge"), model)
    assert load_forest(model).n_trees == 4


def test_samplers_have_their_say_in_training(make: Any) -> None:
    trained = plain(make(), prefit=False).fit(X, y)
    compare(trained, make().fit(X, y))
    without = make_pipeline(StandardScaler(), forest()).fit(X, y)
    assert (trained.predict_proba(X) != without.predict_proba(X)).any()


def test_a_pipeline_that_was_fitted_again_is_noticed(make: Any) -> None:
    model = make().fit(X, y)
    fast = plain(model).fit(X)
    model.fit(X, 1 - y)
    with pytest.raises(InvalidModelError, match="has changed since it was compiled"):
        fast.predict_log_proba(X.astype(object))
    compare(plain(model).fit(X), model)


def test_pipelines_in_searches_and_wrappers(make: Any) -> None:
    step = make().steps[-1][0]
    grid = {f"{step}__max_depth": [1, 3]}
    for around in (
        GridSearchCV(make(), grid, cv=2),
        CalibratedClassifierCV(make(), cv=2),
    ):
        model = around.fit(X, y)
        compare(plain(model).fit(X), model)


def test_ensembles_of_pipelines_are_compiled_by_member() -> None:
    ensemble = pytest.importorskip("imblearn.ensemble")
    for kind in ("BalancedBaggingClassifier", "EasyEnsembleClassifier"):
        model = getattr(ensemble, kind)(n_estimators=3, random_state=0).fit(X, y)
        compare(plain(model).fit(X), model)


def test_a_subclass_over_other_models_is_told_what_to_compile() -> None:
    class Own(BaggingClassifier):
        pass

    model = Own(make_pipeline(StandardScaler(), forest()), n_estimators=2).fit(X, y)
    with pytest.raises(UnsupportedModelError) as error:
        plain(model).fit(X)
    assert str(error.value) == (
        "Own over Pipeline cannot be one Forest: its members must be "
        "DecisionTreeClassifier or ExtraTreeClassifier. Compile the estimators_ of the "
        "Own, one by one."
    )


def test_models_of_intel_are_named() -> None:
    class Patched(RandomForestClassifier):
        pass

    Patched.__module__ = "sklearnex.ensemble._forest"
    Patched.__name__ = Patched.__qualname__ = "RandomForestClassifier"
    trained = clone(Patched(2)).fit(X, y)
    trained._onedal_estimator = object()  # without it, scikit-learn trained it
    for model, targets in (Patched(2), y), (trained, None):
        with pytest.raises(UnsupportedModelError) as error:
            CompiledForest(model, tuning="off").fit(X, targets)
        assert str(error.value) == (
            "This RandomForestClassifier is one of scikit-learn-intelex (sklearnex), "
            "and none of its forests that skforge knows. Call "
            "sklearnex.unpatch_sklearn(), import scikit-learn's class again, and fit "
            "that one."
        )
