"""Draws models of each library whose columns have every role.

Categories that are no categorical features, columns that are not read, a constant
target; some models were saved, and are read by another class. ``choose`` is that of
:mod:`tests.random_pipelines`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import catboost as cb
import lightgbm as lgb
import numpy as np
import pandas as pd
import xgboost as xgb
from sklearn import ensemble

from tests.random_pipelines import (
    NAN,
    NUMBERS,
    Choose,
    Table,
    column,
    draw_pipeline,
    labels,
    last_step,
)
from tests.random_wrappers import Example

#: Columns that tables of :mod:`tests.random_pipelines` lack, by a generator, and what
#: they are called there.
ROLES: dict[str, tuple[str, Callable[[Any, int], Any]]] = {
    "large": ("whole", lambda r, n: r.integers(1 << 24, (1 << 24) + 30, n)),
    "ordered": (
        "codes",
        lambda r, n: pd.Categorical(r.integers(1, 6, n), [5, 3, 1, 2, 4], ordered=True),
    ),
    "flags": ("codes", lambda r, n: pd.Categorical(r.random(n) < 0.5)),
}
PLAIN = (*NUMBERS, "large")
CATEGORIES = ("category", "codes", "ordered", "flags")
QUIET = {"verbose": 0, "thread_count": 1, "allow_writing_files": False}


def draw_roles(choose: Choose) -> Example:
    """Draw a table, and a model of it."""
    make, roles = choose(MAKERS)
    random = np.random.default_rng(choose(range(1000)))
    chosen, n = [choose(roles) for _ in range(choose([1, 3, 5]))], choose([40, 160])
    columns, kinds = {}, []
    for name, role in zip("abcde", chosen, strict=False):
        kind, draw = ROLES.get(role, (role, None))
        columns[name] = column(role, random, n) if draw is None else draw(random, n)
        kinds.append(kind)
    frame = pd.DataFrame(columns)
    y = labels(frame, choose(["two", "three", "regression"]), random)
    if choose([False] * 6 + [True]):
        y = np.full_like(y, 2.5) if y.dtype.kind == "f" else np.zeros_like(y)
    if set(chosen) <= set(PLAIN) and choose([True, False, False]):
        frame = frame.to_numpy(np.float64)
    table = Table(frame, y, tuple(kinds))
    model, more = make(choose, table)
    return Example(table, frame, y, model, "forests", **more)


Made = tuple[Any, dict[str, Any]]


def _named(choose: Choose, table: Table) -> list[str]:
    """Return columns that are to be categorical features, and maybe some numbers."""
    if table.names is None:
        return []
    dtypes = table.X.dtypes
    named = [n for n in dtypes.index if dtypes[n].kind not in "fiub"]
    return [
        *named,
        *(n for n in dtypes.index if dtypes[n].kind in "ib" and choose([0, 1])),
    ]


def _kind(table: Table) -> str:
    return "Regressor" if table.y.dtype.kind == "f" else "Classifier"


def _lightgbm(choose: Choose, table: Table) -> Made:
    how = {"n_estimators": choose([1, 5]), "verbose": -1, "n_jobs": 1}
    how |= {"min_child_samples": choose([1, 10]), "min_data_per_group": 1}
    how |= {"boosting_type": choose(["gbdt", "gbdt", "dart"]), "cat_smooth": 1.0}
    named = choose(["auto", "auto", _named(choose, table)]) or "auto"
    model = getattr(lgb, f"LGBM{_kind(table)}")(**how)
    return model, {"how": {"categorical_feature": named}}


def _xgboost(choose: Choose, table: Table) -> Made:
    how = {"n_estimators": choose([1, 5]), "n_jobs": 1, "max_depth": choose([2, 5])}
    how |= {"missing": choose([NAN, NAN, 0.0, 1.0]), "enable_categorical": True}
    return getattr(xgb, f"XGB{_kind(table)}")(**how), {}


def _catboost(choose: Choose, table: Table) -> Made:
    named = _named(choose, table) or None
    model = getattr(cb, f"CatBoost{_kind(table)}")
    return model(iterations=choose([1, 5]), cat_features=named, **QUIET), {}


def _histogram(choose: Choose, table: Table) -> Made:
    how = {"max_iter": choose([1, 5]), "min_samples_leaf": choose([1, 10])}
    how["categorical_features"] = _named(choose, table) or "from_dtype"
    return getattr(ensemble, f"HistGradientBoosting{_kind(table)}")(**how), {}


def _other_class(choose: Choose, table: Table) -> Made:
    """Return a model that is written, and read by another class, when it is trained."""
    if choose([True, False]):
        other = choose([xgb.XGBRegressor, xgb.XGBClassifier, xgb.XGBModel])
        return _xgboost(choose, table)[0], {"other": other}
    other = choose([cb.CatBoost, cb.CatBoostRegressor, cb.CatBoostClassifier])
    model = getattr(cb, f"CatBoost{_kind(table)}")(iterations=choose([1, 5]), **QUIET)
    return model, {"other": other}


def _ensemble(choose: Choose, table: Table) -> Made:
    """Return what answers by other methods, too."""
    one, two = last_step(choose, table), last_step(choose, table)
    members, few = [("a", one), ("b", two)], {"n_estimators": 4, "random_state": 0}
    kinds = [
        one,
        ensemble.IsolationForest(**few),
        ensemble.RandomTreesEmbedding(**few),
        getattr(ensemble, f"Bagging{_kind(table)}")(one, n_estimators=2),
        getattr(ensemble, f"Voting{_kind(table)}")(members),
    ]
    return choose(kinds), {}


def _pipeline(choose: Choose, table: Table) -> Made:
    return draw_pipeline(choose, table, (2,)), {}


#: What makes a model, and the roles of columns that it takes.
MAKERS: list[tuple[Callable[[Choose, Table], Made], tuple[str, ...]]] = [
    (_lightgbm, (*PLAIN, *CATEGORIES, *CATEGORIES)),
    (_xgboost, (*PLAIN, *CATEGORIES[:3])),
    (_catboost, (*PLAIN, *CATEGORIES[:2], "text")),
    (_other_class, PLAIN),
    (_histogram, (*PLAIN, *CATEGORIES, *CATEGORIES)),
    (_ensemble, PLAIN),
    (_pipeline, (*PLAIN, "text", "text", "category")),
]
