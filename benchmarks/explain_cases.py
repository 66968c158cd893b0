"""Models whose predictions are explained, and the systems that explain them.

A system gives, for one model and kind of contributions, a function of rows. Its answer
has shape (rows, features + 1), the bias last, or (rows, features + 1, features + 1).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle
from typing import Any

import numpy as np
from models import shared_folder

#: What is asked for.
VALUES, INTERACTIONS = "values", "interactions"
APPROXIMATE, INTERVENTIONAL = "approximate", "interventional"
KINDS = (VALUES, INTERACTIONS, APPROXIMATE, INTERVENTIONAL)
#: Measured by itself, see ``GRIDS``.
DEPENDENCE = "dependence"
#: Interventional values with as many background rows as rows.
AS_MANY = "as many background rows"
#: Numbers of both, and the model.
LARGE, LARGE_CASE = (1_000, 4_000, 20_000), "XGBoost, 100 trees of depth 6"
#: Background rows of interventional values.
N_BACKGROUND = 100

Answer = Callable[[Any], Any]


class CannotError(Exception):
    """A system does not do this: the message says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model, what its predictions are asked for, and who made it."""

    source: str
    make: Callable[[], tuple[Any, Any]]  # the model, and rows
    kinds: tuple[str, ...] = (VALUES,)

    @cache  # noqa: B019 - cases live as long as the program
    def made(self) -> tuple[Any, Any]:
        """Return the model and rows that it was not trained on."""
        return self.make()

    def background(self) -> Any:
        """Return the last rows, which are never explained."""
        return self.made()[1][-N_BACKGROUND:]


@cache
def _table() -> tuple[Any, Any, Any]:
    """Return 8,000 rows of 28 columns with a target, and 2,000 rows more."""
    random = np.random.default_rng(0)
    X = random.normal(size=(10_000, 28)).astype(np.float32)
    y = X[:, 0] * 2 + np.sin(3 * X[:, 1]) + X[:, 2] * X[:, 3]
    y = y + 0.3 * random.normal(size=len(X))
    return X[:8_000], y[:8_000], X[8_000:]


def _airline() -> tuple[Any, Any]:
    import xgboost

    file = shared_folder() / "airline.json"
    data = file.with_name("airline_rows.csv")
    rows = np.loadtxt(data, np.float32, delimiter=",")[:, :-1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = xgboost.Booster(model_file=str(file))
    model.feature_names = None
    return model, np.ascontiguousarray(rows)


def _xgb(name: str = "XGBRegressor", jobs: int = 1) -> Any:
    import xgboost

    return getattr(xgboost, name)(n_estimators=100, max_depth=6, n_jobs=jobs)


def _lgbm(leaves: int = 31, jobs: int = 1) -> Any:
    from lightgbm import LGBMRegressor

    return LGBMRegressor(n_estimators=100, num_leaves=leaves, n_jobs=jobs, verbose=-1)


def _random_forest(depth: int | None = None, jobs: int = 1) -> Any:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(50, max_depth=depth, n_jobs=jobs, random_state=0)


@cache
def _xgboost() -> tuple[Any, Any]:
    X, y, rows = _table()
    return _xgb(jobs=2).fit(X, y).get_booster(), rows


def _lightgbm(leaves: int) -> tuple[Any, Any]:
    X, y, rows = _table()
    return _lgbm(leaves, jobs=2).fit(X, y).booster_, rows


def _forest(depth: int | None) -> tuple[Any, Any]:
    X, y, rows = _table()
    return _random_forest(depth, jobs=2).fit(X, y), rows


CASES: dict[str, Case] = {
    "XGBoost, 100 trees of depth 8 (airline)": Case("XGBoost", _airline),
    "XGBoost, 100 trees of depth 6": Case("XGBoost", _xgboost, KINDS),
    "LightGBM, 100 trees of 31 leaves": Case("LightGBM", lambda: _lightgbm(31)),
    "LightGBM, 100 trees of 255 leaves": Case("LightGBM", lambda: _lightgbm(255)),
    "random forest, 50 trees of depth 12": Case(
        "shap", lambda: _forest(12), (VALUES, INTERACTIONS, INTERVENTIONAL)
    ),
    "random forest, 50 trees of full depth": Case("shap", lambda: _forest(None)),
}


def _of_estimator(make: Callable[[], Any], n: int, classes: bool = False) -> Any:
    """Return an estimator and ``n`` rows for partial dependence."""
    X, y, _ = _table()
    rows = np.random.default_rng(1).normal(size=(n, X.shape[1])).astype(np.float32)
    return make().fit(X, y > 0 if classes else y), rows


#: Models of partial dependence: from a number of rows to a model and rows.
GRIDS: dict[str, Callable[[int], Any]] = {
    "XGBoost, 100 trees of depth 6": partial(_of_estimator, _xgb),
    "XGBoost, 100 trees of depth 6, classes": partial(
        _of_estimator, partial(_xgb, "XGBClassifier"), classes=True
    ),
    "LightGBM, 100 trees of 31 leaves": partial(_of_estimator, _lgbm),
    "random forest, 50 trees of depth 12": partial(
        _of_estimator, partial(_random_forest, 12)
    ),
    "random forest, 50 trees of full depth": partial(_of_estimator, _random_forest),
}


# ------------------------------------------------------------ systems


def options_of(case: Case, kind: str) -> dict[str, Any]:
    return {
        VALUES: {},
        INTERACTIONS: {"interactions": True},
        APPROXIMATE: {"approximate": True},
        INTERVENTIONAL: {"background": case.background()},
    }[kind]


def skforge(case: Case, kind: str, threads: int, level: str = "") -> Answer:
    """Compile the model with default schedules; nothing is tuned."""
    from skforge import Target, compile_forest

    target = Target.x86_64(level) if level else "cpu"
    module = compile_forest(case.made()[0], target=target, n_jobs=threads)
    options = options_of(case, kind)
    return lambda rows: module.predict_contribs(rows, **options)


def xgboost(case: Case, kind: str, threads: int) -> Answer:
    """Call ``Booster.predict``; the DMatrix is made within the call, as users must."""
    import xgboost

    model = case.made()[0]
    if not isinstance(model, xgboost.Booster) or kind == INTERVENTIONAL:
        raise CannotError("")
    model.set_param({"nthread": threads})
    options = {
        "pred_interactions" if kind == INTERACTIONS else "pred_contribs": True,
        "approx_contribs": kind == APPROXIMATE,
    }
    return lambda rows: model.predict(
        xgboost.DMatrix(rows, nthread=threads), validate_features=False, **options
    )


def lightgbm(case: Case, kind: str, threads: int) -> Answer:
    import lightgbm

    model = case.made()[0]
    if not isinstance(model, lightgbm.Booster) or kind != VALUES:
        raise CannotError("")
    return lambda rows: model.predict(rows, pred_contrib=True, num_threads=threads)


def shap(case: Case, kind: str, threads: int) -> Answer:
    """Call ``shap.TreeExplainer``, which has one thread.

    Without background rows it gives XGBoost's and LightGBM's models to these libraries.
    """
    import shap

    if threads > 1:
        raise CannotError("has one thread")
    if kind == APPROXIMATE or (case.source != "shap" and kind != INTERVENTIONAL):
        raise CannotError("")
    data = case.background() if kind == INTERVENTIONAL else None
    made = shap.TreeExplainer(case.made()[0], data=data)
    return _with_bias(made, kind, {"check_additivity": False})


def _with_bias(explainer: Any, kind: str, options: dict[str, Any]) -> Answer:
    """Return calls of an explainer whose answers have the expected value as well."""
    if kind == INTERACTIONS:
        return lambda rows: np.asarray(explainer.shap_interaction_values(rows))
    expected = float(np.ravel(explainer.expected_value)[0])

    def values(rows: Any) -> Any:
        made = explainer.shap_values(rows, **options)
        return np.concatenate([made, np.full((len(made), 1), expected)], axis=1)

    return values


def shapiq(case: Case, kind: str, threads: int) -> Answer:
    """Call ``shapiq.TreeExplainer.explain`` row by row: it takes one at a time."""
    import shapiq

    if kind != VALUES or threads > 1:
        raise CannotError("")
    made = shapiq.TreeExplainer(case.made()[0], max_order=1, index="SV")

    def values(rows: Any) -> Any:
        found = [made.explain(row) for row in rows]
        return np.array([[*f.get_n_order_values(1), f.baseline_value] for f in found])

    return values


def daal4py(case: Case, kind: str, threads: int) -> Answer:
    import daal4py

    names = {VALUES: "pred_contribs", INTERACTIONS: "pred_interactions"}
    if case.source == "shap" or kind not in names:
        raise CannotError("")
    model = daal4py.mb.convert_model(case.made()[0])
    daal4py.daalinit(threads)
    options = {names[kind]: True}
    return lambda rows: model.predict(rows, **options)


#: skforge with vectors of 256 bits.
IN_HALVES = "skforge AVX2"

SYSTEMS: dict[str, Callable[[Case, str, int], Answer]] = {
    "skforge": skforge,
    IN_HALVES: partial(skforge, level="v3"),
    "XGBoost": xgboost,
    "LightGBM": lightgbm,
    "shap": shap,
    "shapiq": shapiq,
    "daal4py": daal4py,
}


# ------------------------------------------------------------ as many background rows


def large_rows(n: int) -> tuple[Any, list[Any]]:
    random = np.random.default_rng(1)
    rows, *sets = random.normal(size=(3, n, 28)).astype(np.float32)
    return rows, sets


def large_skforge(sets: list[Any], threads: int) -> Answer:
    """Take other background rows in each call, so that no table is kept."""
    from skforge import compile_forest

    module = compile_forest(_xgboost()[0], n_jobs=threads)
    turns = cycle(sets)
    return lambda rows: module.predict_contribs(rows, background=next(turns))[:, :-1]


def large_woodelf(sets: list[Any], threads: int) -> Answer:
    import pandas as pd
    from woodelf import WoodelfExplainer

    if threads > 1:
        raise CannotError("has one thread")
    names = [f"f{i}" for i in range(28)]
    explainers = [
        WoodelfExplainer(_xgboost()[0], pd.DataFrame(rows, columns=names))
        for rows in sets
    ]
    turns = cycle(explainers)
    return lambda rows: np.asarray(
        next(turns).shap_values(pd.DataFrame(rows, columns=names))
    )


def large_shap(sets: list[Any], threads: int) -> Answer:
    """Call ``shap.TreeExplainer`` with all background rows, not a sample."""
    import shap

    if threads > 1:
        raise CannotError("has one thread")
    model = _xgboost()[0]
    explainers = [
        shap.TreeExplainer(model, shap.maskers.Independent(rows, max_samples=len(rows)))
        for rows in sets
    ]
    turns = cycle(explainers)
    return lambda rows: next(turns).shap_values(rows, check_additivity=False)


LARGE_SYSTEMS = {
    "skforge": large_skforge,
    "Woodelf": large_woodelf,
    "shap": large_shap,
}
