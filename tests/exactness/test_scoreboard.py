"""Models that other tools predict differently, and rows on their thresholds.

Each was measured to be wrong in some converter or compiler, most by far more than
rounding. Here every answer of the compiled forest has the bits of the source's own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from sklearn.base import is_classifier
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)

from skforge import CompiledForest, compile_forest, load_forest
from tests.sklearn_rows import same_bits

N, CATEGORIES = 300, 12
Case = Callable[[], tuple[Any, np.ndarray]]


def rows(missing: float = 0.0) -> np.ndarray:
    """Float64 rows: three that float32 cannot hold, many zeros, codes of categories."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(N, 5))
    X[:, 2] = np.where(rng.random(N) < 0.4, 0.0, X[:, 2])
    X[:, 4] = rng.integers(0, CATEGORIES, N)
    X[:, :4][rng.random((N, 4)) < missing] = np.nan
    return X


def signal(X: np.ndarray) -> np.ndarray:
    noise = np.random.default_rng(6).normal(size=N)
    known = np.nan_to_num(X, nan=0.7)
    return known[:, 0] + known[:, 2] * known[:, 1] + np.sin(3 * known[:, 4]) + noise / 4


def three(X: np.ndarray) -> np.ndarray:
    return np.digitize(signal(X), [-0.6, 0.6])


def strange_categories(X: np.ndarray) -> np.ndarray:
    """Codes no training row had, negative ones, fractions, and none."""
    X = X.copy()
    odd = [np.nan, -1.0, -7.0, CATEGORIES + 3.0, 1e6, 2.5]
    X[: N // 2, 4] = np.resize(odd, N // 2)
    return X


def sklearn(model: Any, missing: float = 0.0) -> tuple[Any, np.ndarray]:
    X = rows(missing)
    classifies = is_classifier(model)
    return model.fit(X, three(X) if classifies else signal(X)), X


def hist_with_categories() -> tuple[Any, np.ndarray]:
    X = rows(0.1)
    model = HistGradientBoostingRegressor(max_iter=8, categorical_features=[4])
    return model.fit(X, signal(X)), strange_categories(X)


def xgboost(
    kind: str = "XGBRegressor", missing: float = 0.1, **params: Any
) -> tuple[Any, np.ndarray]:
    xgb = pytest.importorskip("xgboost")
    X = rows(missing)
    target = three(X) if kind == "XGBClassifier" else signal(X)
    if params.get("objective") == "count:poisson":
        target = np.exp(target / 2)
    if "multi_strategy" in params:
        target = np.stack([target, X[:, 4]], axis=1)
    model = getattr(xgb, kind)(n_estimators=8, max_depth=4, n_jobs=1, **params)
    return model.fit(X, target), X


def xgboost_stopped_early() -> tuple[Any, np.ndarray]:
    xgb = pytest.importorskip("xgboost")
    X = rows(0.1)
    noise = np.random.default_rng(0).integers(0, 3, N)
    model = xgb.XGBClassifier(n_estimators=50, early_stopping_rounds=2, n_jobs=1)
    model.fit(X, three(X), eval_set=[(X, noise)], verbose=False)
    assert model.best_iteration + 1 < model.get_booster().num_boosted_rounds()
    return model, X


def xgboost_marker() -> tuple[Any, np.ndarray]:
    xgb = pytest.importorskip("xgboost")
    X = rows(0.2)
    target = signal(X)
    X[np.isnan(X)] = -999
    model = xgb.XGBRegressor(n_estimators=8, missing=-999, n_jobs=1)
    return model.fit(X, target), X


def lightgbm(
    kind: str = "LGBMRegressor", missing: float = 0.1, **params: Any
) -> tuple[Any, np.ndarray]:
    lgb = pytest.importorskip("lightgbm")
    X = rows(missing)
    fit = {"categorical_feature": params.pop("categories", "auto")}
    common = {"num_leaves": 15, "min_child_samples": 5, "n_jobs": 1, "verbose": -1}
    model = getattr(lgb, kind)(n_estimators=8, **common, **params)
    classifies = kind == "LGBMClassifier"
    return model.fit(X, three(X) if classifies else signal(X), **fit), X


def lightgbm_with_categories() -> tuple[Any, np.ndarray]:
    model, X = lightgbm(categories=[4], max_cat_to_onehot=2)
    return model, strange_categories(X)


def lightgbm_without_missing() -> tuple[Any, np.ndarray]:
    return lightgbm(missing=0.0)[0], rows(0.3)


def forests(kind: Any, **params: Any) -> Any:
    return kind(n_estimators=8, max_depth=6, random_state=0, **params)


BAGS = {"boosting_type": "rf", "subsample_freq": 1, "subsample": 0.6}
CASES: dict[str, Case] = {
    "sklearn rf": lambda: sklearn(forests(RandomForestRegressor, n_jobs=1)),
    "sklearn rf, classes, NaN": lambda: sklearn(forests(RandomForestClassifier), 0.2),
    "sklearn gb": lambda: sklearn(forests(GradientBoostingRegressor)),
    "sklearn gb, classes": lambda: sklearn(forests(GradientBoostingClassifier)),
    "histgb": lambda: sklearn(HistGradientBoostingRegressor(max_iter=8), 0.1),
    "histgb, categories": hist_with_categories,
    "xgboost": xgboost,
    "xgboost, base_score": partial(xgboost, base_score=7.3),
    "xgboost, classes": partial(xgboost, "XGBClassifier"),
    "xgboost, poisson": partial(xgboost, objective="count:poisson", base_score=0.3),
    "xgboost, vector leaves": partial(
        xgboost, multi_strategy="multi_output_tree", tree_method="hist"
    ),
    "xgboost, dart": partial(xgboost, booster="dart", rate_drop=0.5),
    "xgboost, stopped early": xgboost_stopped_early,
    "xgboost, missing=-999": xgboost_marker,
    "lightgbm": lightgbm,
    "lightgbm, classes": partial(lightgbm, "LGBMClassifier"),
    "lightgbm, strange categories": lightgbm_with_categories,
    "lightgbm, zero_as_missing": partial(lightgbm, zero_as_missing=True),
    "lightgbm, NaN not in training": lightgbm_without_missing,
    "lightgbm, rf": partial(lightgbm, **BAGS),
    "lightgbm, dart": partial(lightgbm, boosting_type="dart", drop_rate=0.5),
}


def with_ties(forest: Any, X: np.ndarray) -> np.ndarray:
    """Return the rows, and rows with one value on a threshold or just beside it."""
    rng = np.random.default_rng(1)
    tests = np.flatnonzero(np.isfinite(forest.threshold) & (forest.feature != 4))
    tests = rng.choice(tests, min(len(tests), 150), replace=False)
    feature, on = forest.feature[tests], forest.threshold[tests].astype(np.float64)
    narrow, low, high = on.astype(np.float32), *np.float32([-np.inf, np.inf])
    near = [on, np.nextafter(on, -np.inf), np.nextafter(on, np.inf)]
    near += [narrow, np.nextafter(narrow, low), np.nextafter(narrow, high)]
    near += [on * (1 - 3e-9), on * (1 + 3e-9)]
    ties = X[rng.integers(0, len(X), len(near) * len(tests))]
    ties[np.arange(len(ties)), np.tile(feature, len(near))] = np.concatenate(near)
    return np.concatenate([X, ties])


def raw_scores(model: Any, X: np.ndarray) -> np.ndarray | None:
    """Return the source's scores before any transform, where it gives them."""
    library = type(model).__module__.partition(".")[0]
    if library == "xgboost":
        return model.predict(X, output_margin=True)
    if library == "lightgbm":
        return model.predict(X, raw_score=True)
    if hasattr(model, "decision_function"):
        return model.decision_function(X)
    return model.predict_proba(X) if hasattr(model, "predict_proba") else None


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_answers_are_the_sources(name):
    model, X = CASES[name]()
    forest = load_forest(model)
    X = with_ties(forest, X)
    assert len(X) > N + 100
    # the sample rows are few: what they do not show has to be right as well
    compiled = CompiledForest(model).fit(X[:20])
    module = compile_forest(forest)
    same_bits(module.predict_raw(X[:40]), compiled.predict_raw(X[:40]))
    for batch in (X, X[:40], X[-9:], X[-1:]):
        raw = raw_scores(model, batch)
        raw = model.predict(batch) if raw is None else raw
        same_bits(compiled.predict_raw(batch), raw)
        same_bits(compiled.predict(batch), model.predict(batch))
        if hasattr(model, "predict_proba"):
            same_bits(compiled.predict_proba(batch), model.predict_proba(batch))
        if hasattr(model, "apply"):
            same_bits(compiled.apply(batch), model.apply(batch))
