"""Planted faults in mappings, Polars' expression, wheels, and the command line."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import pandas as pd
import polars as pl
import xgboost as xgb
from sklearn.ensemble import HistGradientBoostingRegressor

import skforge
from tests.reliability.planted_categories import catboost, target, towns
from tests.reliability.planted_categories import xgboost as xgboost_of_categories
from tests.reliability.planted_trial import Trial, fault, numbers, python


def frame(n: int = 240) -> Any:
    return pd.DataFrame(numbers(n), columns=["a", "b", "c"])


def histogram(X: Any, y: Any) -> Any:
    return HistGradientBoostingRegressor(max_iter=8, random_state=0).fit(X, y)


def mapped(t: Trial, fast: Any, model: Any, rows: list[dict[str, Any]], X: Any) -> None:
    for i, row in enumerate(rows):
        t.ask(
            f"the mapping {row}",
            lambda row=row: fast.predict(row),
            lambda i=i: model.predict(X[i : i + 1]),
        )


# ------------------------------------------------------------ mappings


@fault(
    "mapping-by-its-order",
    "a mapping's values by the order of its keys",
    "runtime.mappings:Mappings._values",
    "values = self._get(X)",
    "values = tuple(X.values())",
)
def order_of_keys(t: Trial) -> None:
    X = frame()
    model = histogram(X, X.a + 2 * X.b)
    fast = t.fit(model, X)
    rows = X[:6].to_dict("records")
    mapped(t, fast, model, rows[:3], X)
    mapped(t, fast, model, [dict(reversed(row.items())) for row in rows], X)


@fault(
    "columns-of-a-mapping-narrow",
    "a wrong dtype of a column",
    "runtime.mappings:Mappings._write",
    "rows[part, place] = column[part].astype(np.float64, copy=False)",
    "rows[part, place] = column[part].astype(np.float32)",
)
def columns_of_a_mapping(t: Trial) -> None:
    X = frame()
    model = histogram(X, X.a + 2 * X.b)
    fast = t.fit(model, X)
    cuts = fast.forest_.threshold
    values = np.resize(cuts[np.isfinite(cuts)], 240)
    for rows in (X[:3].round(1), X.assign(a=values, b=values, c=values)):
        columns = {name: rows[name].to_numpy() for name in rows}
        t.ask(
            "columns of values",
            lambda columns=columns: fast.predict(columns),
            lambda rows=rows: model.predict(rows),
        )


# ------------------------------------------------------------ Polars


def by_polars(t: Trial, fast: Any, rows: Any, columns: Any, expected: Any) -> None:
    from skforge.polars import predict

    def answer() -> Any:
        return rows.select(predict(fast, *columns)).to_series().to_numpy()

    t.ask("Polars' expression", answer, expected)


@fault(
    "expression-of-whole-numbers",
    "a chunk's dtype decides how numbers are rounded",
    "polars:_array",
    "return frame.cast(pl.Float64).to_numpy()",
    "return frame.to_numpy()",
    named="attack5, 2",
)
def whole_numbers_of_polars(t: Trial) -> None:
    X = np.random.default_rng(0).integers(1 << 24, (1 << 24) + 40, (400, 2))
    model = lgb.LGBMRegressor(n_estimators=5, min_child_samples=1, verbose=-1, n_jobs=1)
    model.fit(X.astype(float), X[:, 0] % 2)
    fast = t.fit(model, X.astype(float))
    for rows in (X[:4] // (1 << 20), X):
        columns = pl.DataFrame(rows, ["a", "b"])
        by_polars(t, fast, columns, "ab", lambda rows=rows: model.predict(rows * 1.0))


@fault(
    "expression-of-dates",
    "dates taken for numbers",
    "polars:_is_object",
    "if column.dtype.is_numeric() or",
    "if column.dtype.is_numeric() or column.dtype.is_temporal() or",
    named="attack5, 2",
)
def dates_of_polars(t: Trial) -> None:
    X = numbers(width=2)
    model = histogram(X, X.sum(axis=1))
    fast = t.fit(model, X)
    columns = pl.DataFrame(X, ["a", "b"])
    by_polars(t, fast, columns, "ab", lambda: model.predict(X))
    dates = columns.with_columns(a=pl.date(2020, 1, 1))

    def refused() -> Any:
        raise TypeError("dates are no numbers")

    by_polars(t, fast, dates, "ab", refused)


# ------------------------------------------------------------ wheels


def packed(t: Trial, fast: Any) -> Path:
    """Return the folder of an unpacked wheel of the model "plant"."""
    folder = t.folder / "plant"
    with t.listening("export"):
        skforge.export(fast, folder, "wheel")
    (package,) = folder.glob("*.whl")
    with zipfile.ZipFile(package) as archive:
        archive.extractall(t.folder / "site")
    return t.folder / "site"


def of_wheel(t: Trial, site: Path, rows: str, expected: Any) -> None:
    text = f"import pandas as pd, plant\nrows = {rows}\nanswer = plant.predict(rows)"
    t.ask(f"the wheel, {rows[:60]}", lambda: python(site, text), expected)


def in_wheel(old: str, new: str) -> tuple[str, str, str]:
    """Return an edit of the sources that wheels ship."""
    line = 'text = re.sub(r"from skforge'
    planted = f"text = text.replace({old!r}, {new!r})\n        {line}"
    return "exporters.wheel:wheel", line, planted


@fault(
    "wheel-by-position",
    "columns by position instead of by name",
    *in_wheel(
        "X = {name: X[there[name]] for name in self._names if name in there}",
        "X = {n: X[k] for n, k in zip(self._names, there.values())}",
    ),
)
def frames_of_wheels(t: Trial) -> None:
    X = frame()
    model = histogram(X, X.a + 2 * X.b)
    site = packed(t, t.fit(model, X))
    X[:9].to_pickle(site / "rows.pkl")
    for columns in ("abc", "bca"):
        rows = f"pd.read_pickle('rows.pkl')[[*{columns!r}]]"
        of_wheel(t, site, rows, lambda: model.predict(X[:9]))


def of_file(
    t: Trial, model: Any, X: Any, expected: Any, name: str = "model.json"
) -> None:
    path = t.folder / name
    getattr(model, "booster_", model).save_model(path)
    if (rows := t.folder / "rows.csv").suffix:
        X.to_csv(rows, index=False)
    t.command(f"skforge predict {name}", path, rows, expected)


@fault(
    "csv-empty-category",
    "categories answered that the library refuses",
    "cli.values:hashed",
    "cells = column.to_pylist()",
    "cells = [cell or '' for cell in column.to_pylist()]",
    named="CHANGELOG, Command line, CSV and CatBoost",
)
def empty_cells(t: Trial) -> None:
    X = towns().astype({"town": object})
    model = catboost(X, target(X))
    of_file(t, model, X, lambda: model.predict(X), "model.cbm")
    X.loc[::5, "town"] = np.nan
    of_file(t, model, X, lambda: model.predict(X), "model.cbm")


@fault(
    "parquet-na-as-missing",
    "a text of a file read as missing",
    "cli.data:RowsFile._part",
    "spec, spelled = self.spec, self.table.spelled",
    "spec, spelled = self.spec, True",
    named="CHANGELOG, Command line, Parquet and Arrow",
)
def texts_of_parquet(t: Trial) -> None:
    X = towns()
    model = xgboost_of_categories(X, target(X))
    path, rows = t.folder / "model.json", t.folder / "rows.parquet"
    model.save_model(path)
    new = X.astype({"town": object})
    new.to_parquet(rows)
    t.command("known texts", path, rows, lambda: model.predict(X))
    new.loc[::5, "town"] = "NA"
    new.to_parquet(rows)
    framed = new.astype({"town": "category"})
    t.command("the text NA", path, rows, lambda: model.predict(framed))


@fault(
    "file-without-its-objective",
    "a file's answers are raw scores",
    "outputs.steps:steps_of",
    'return _values(rules)\n        case "probabilities":',
    'return Steps()\n        case "probabilities":',
    named="CHANGELOG, Wrong predictions, old dumps of LightGBM",
)
def objective_of_a_file(t: Trial) -> None:
    X = frame()
    model = xgb.XGBRegressor(objective="count:poisson", n_estimators=8, n_jobs=1)
    model.fit(X, np.exp(X.a).round())
    of_file(t, model, X, lambda: model.predict(X))
