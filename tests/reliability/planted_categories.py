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
    "arrow-dictionary-gap",
    "a missing number read as another one",
    "rows.frames:any_numbers",
    "values = column.__arrow_array__().cast(arrow.value_type).to_numpy()",
    "chunk = column.__arrow_array__().combine_chunks()\n"
    "        codes = chunk.indices.fill_null(0).to_numpy()\n"
    "        values = chunk.dictionary.to_numpy().astype(float)[codes]",
    named="CHANGELOG, Wrong predictions, Arrow's dictionaries",
)
def dictionaries_of_numbers(t: Trial) -> None:
    X = towns().assign(k=np.arange(240) % 4.0)
    X.loc[::3, "k"] = np.nan
    model = lightgbm(X, X.x + 3 * X.k.fillna(9))
    loaded = t.load(t.fit(model, X))
    kind = pd.ArrowDtype(pa.dictionary(pa.int32(), pa.float64()))

    def coded(rows: Any) -> Any:
        column = pa.array(rows.k, from_pandas=True).dictionary_encode()
        return rows.assign(k=pd.Series(column, index=rows.index, dtype=kind))

    t.ask(
        "no gaps", lambda: loaded.predict(coded(X[1:3])), lambda: model.predict(X[1:3])
    )
    t.ask("gaps", lambda: loaded.predict(coded(X)), lambda: model.predict(X))


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


def stars(n: int = 400) -> tuple[Any, Any]:
    """Return a frame with two ordered categories, and LightGBM's model of it."""
    random = np.random.default_rng(4)
    columns = {
        name: pd.Categorical(random.integers(0, 5, n) + low, [*known], ordered=True)
        for name, low, known in (
            ("stars", 1, range(1, 6)),
            ("rank", 10, range(14, 9, -1)),
        )
    }
    X = pd.DataFrame({"x": random.normal(size=n), **columns})
    return X, lightgbm(X, X.x + X.stars.astype(int) * 2 + (X["rank"] == 12) * 7)


def of_values(t: Trial) -> None:
    X, model = stars()
    loaded = t.load(t.fit(model, X))
    t.method(loaded, model, X)
    plain = X.astype({"stars": int, "rank": int})
    for rows in (plain[:3].to_dict("records"), plain.to_dict("list")):
        n = 3 if isinstance(rows, list) else len(X)
        t.ask(
            f"{type(rows).__name__} of mappings",
            lambda rows=rows: loaded.predict(rows),
            lambda n=n: model.predict(X[:n]),
        )


fault(
    "ordered-values-as-codes",
    "values taken for codes",
    "sources.base:Source.columns",
    "table = {label: float(code) for code, label in enumerate(labels)}",
    "table = {label: float(label) for label in labels}",
    named="faults5, A",
)(of_values)
fault(
    "lists-of-other-columns",
    "a column's categories given to another one",
    "sources.base:Source.columns",
    "zip(names, forest.category_names or [()] * len(names), strict=True)",
    "zip(names, (forest.category_names[:1] + forest.category_names[:0:-1]) or "
    "[()] * len(names), strict=True)",
    named="faults5, A, the second snippet",
)(of_values)


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
