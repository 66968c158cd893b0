"""Planted faults in the readers of categories, by pandas, polars, Arrow and objects."""

from __future__ import annotations

from typing import Any

import lightgbm as lgb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import xgboost as xgb

from tests.reliability.planted_trial import Trial, fault, numbers

TOWNS = ["oslo", "bern", "riga", "lima"]
WORTH = dict(zip(TOWNS, (3.0, -2.0, 7.0, 0.5), strict=True))


def towns(n: int = 240, known: Any = TOWNS, order: Any = None) -> Any:
    """Return a frame of a number and a category, which has the worth of a town."""
    drawn = np.random.default_rng(3).integers(0, len(known), n)
    column = pd.Categorical.from_codes(drawn, known)
    if order is not None:
        column = column.set_categories(order)
    return pd.DataFrame({"x": numbers(n)[:, 0], "town": column})


def target(X: Any) -> Any:
    worth = X.town.astype(object).map(lambda name: WORTH.get(name, 0.0))
    return (X.x + worth.astype(float)).to_numpy()


def lightgbm(X: Any, y: Any) -> Any:
    how = {"n_estimators": 8, "verbose": -1, "n_jobs": 1, "min_child_samples": 3}
    return lgb.LGBMRegressor(**how, min_data_per_group=1, cat_smooth=1).fit(X, y)


def xgboost(X: Any, y: Any, **params: Any) -> Any:
    how = {"n_estimators": 8, "n_jobs": 1, "enable_categorical": True}
    return xgb.XGBRegressor(**how | params).fit(X, y)


def catboost(X: Any, y: Any, columns: Any = ("town",)) -> Any:
    from catboost import CatBoostRegressor

    how = {"iterations": 8, "verbose": 0, "allow_writing_files": False}
    model = CatBoostRegressor(**how, thread_count=1, cat_features=[*columns])
    return model.fit(X, y)


def of_polars(X: Any, dtype: Any) -> Any:
    texts = X.town.astype(object).where(X.town.notna(), None).tolist()
    column = pl.Series("town", texts, dtype=pl.String).cast(dtype)
    return pl.DataFrame([pl.Series("x", X.x.to_numpy()), column])


@fault(
    "pandas-categories-by-position",
    "categories by position instead of by name",
    "rows.frames:FrameColumns._table",
    "[place.get(name, np.nan) for name in listed]",
    "[min(i, len(names) - 1) for i, _ in enumerate(listed)]",
)
def reordered_categories(t: Trial) -> None:
    X = towns()
    model = lightgbm(X, target(X))
    fast = t.fit(model, X)
    t.both(fast, model, X[:4].astype({"x": np.float32}), towns(order=TOWNS[::-1]))


@fault(
    "dictionary-by-position",
    "categories by position instead of by name",
    "rows.frames:_arrow_codes",
    "return column.dictionary.to_pylist()",
    "return sorted(column.dictionary.to_pylist())",
)
def dictionaries_of_arrow(t: Trial) -> None:
    X = towns()
    model = xgboost(X, target(X))
    fast = t.fit(model, X)
    for rows in (X[X.town == "oslo"][:3], X):
        texts = rows.town.astype(object).tolist()
        column = pa.array(texts, pa.string()).dictionary_encode()
        t.method(fast, model, pa.table([rows.x.to_numpy(), column], ["x", "town"]))


@fault(
    "unknown-category-as-first",
    "an unknown category mapped to 0",
    "rows.frames:FrameColumns._table",
    "place.get(name, np.nan)",
    "place.get(name, 0)",
)
def unknown_categories(t: Trial) -> None:
    X = towns()
    model = lightgbm(X, target(X))
    fast = t.fit(model, X)
    t.both(fast, model, X[:4].astype({"x": np.float32}), towns(known=[*TOWNS, "rome"]))


@fault(
    "marker-among-categories",
    "XGBoost's missing= compared with the codes of training",
    "rows.frames:FrameColumns._table",
    "numbers[numbers == self._marker] += 0.25",
    "pass",
    "rows.frames:FrameColumns._table",
    "numbers[np.arange(len(numbers)) == self._marker] = np.nan",
    "pass",
    named="CHANGELOG, Wrong predictions, XGBoost's missing=",
)
def marker_of_xgboost(t: Trial) -> None:
    X = towns()
    model = xgboost(X, target(X), missing=1)
    t.both(t.fit(model, X), model, X[:4], towns(order=TOWNS[::-1]))


@fault(
    "unused-unknown-enum",
    "categories answered that the library refuses",
    "rows.plain:PlainRows.by_column",
    "strict=True",
    "strict=False",
    named="CHANGELOG, XGBoost, polars' Enum",
)
def unused_enums(t: Trial) -> None:
    X = towns()
    model = xgboost(X, target(X))
    t.both(
        t.fit(model, X),
        model,
        of_polars(X, pl.Enum(TOWNS)),
        of_polars(X, pl.Enum([*TOWNS, "rome"])),
    )


@fault(
    "mapping-values-as-codes",
    "values taken for codes",
    "sources.base:Source.columns",
    "{label: float(code) for code, label in enumerate(labels)}",
    "{n: float(c if isinstance(n, str) else n) for c, n in enumerate(labels)}",
    named="CHANGELOG, LightGBM, categories that are floats; faults5, A",
)
def mappings_of_values(t: Trial) -> None:
    X = towns(known=[3, 1, 2, 0])
    model = lightgbm(X, X.x + 3.0 * X.town.isin([3, 2]))
    fast = t.fit(model, X)
    rows = [{"x": x, "town": int(town)} for x, town in zip(X.x, X.town, strict=True)]
    alike = [row for row in rows if row["town"] in (1, 2)][:3]
    for part in (alike, rows):
        framed = pd.DataFrame(part).astype({"town": X.town.dtype})
        t.ask(
            f"{len(part)} mappings",
            lambda part=part: fast.predict(part),
            lambda framed=framed: model.predict(framed),
        )


@fault(
    "hashes-by-position",
    "categories by position instead of by name",
    "rows.hashed_rows:HashedRows._hashes",
    "objects[:, 0] = listed",
    "objects[:, 0] = sorted(listed)",
)
def categories_of_catboost(t: Trial) -> None:
    X = towns()
    objects = X.astype({"town": object})
    model = catboost(objects, target(X))
    fast = t.fit(model, objects)
    ordered = X.assign(town=X.town.cat.set_categories(sorted(TOWNS)))
    t.both(fast, model, ordered[:4], X)
