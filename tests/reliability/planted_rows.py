"""Planted faults in the readers of numbers: arrays, frames, tables and sparse rows."""

from __future__ import annotations

from typing import Any

import lightgbm as lgb
import numpy as np
import pandas as pd
import pyarrow as pa
import xgboost as xgb
from scipy import sparse
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)

from tests.reliability.planted_trial import Trial, beside, fault, numbers

NAMES = ["a", "b", "c"]


def lightgbm(X: Any, y: Any, **params: Any) -> Any:
    known = {"n_estimators": 8, "verbose": -1, "n_jobs": 1, "min_child_samples": 5}
    return lgb.LGBMRegressor(**known | params).fit(X, y)


def xgboost(X: Any, y: Any, **params: Any) -> Any:
    known = {"n_estimators": 8, "n_jobs": 1, "max_depth": 4}
    return xgb.XGBRegressor(**known | params).fit(X, y)


def histogram(X: Any, y: Any) -> Any:
    return HistGradientBoostingRegressor(max_iter=8, random_state=0).fit(X, y)


def frame(X: Any) -> Any:
    return pd.DataFrame(X, columns=NAMES)


@fault(
    "list-through-float32",
    "a rounding to float32 added",
    "rows.plain:PlainRows._array",
    "X.dtype not in (np.float32, np.float64)",
    "X.dtype != np.float32",
)
def lists_of_floats(t: Trial) -> None:
    X = numbers()
    model = lightgbm(X, X.sum(axis=1))
    fast = t.fit(model, X)
    t.both(fast, model, np.round(X[:5], 1).tolist(), beside(fast).tolist())


@fault(
    "int64-not-through-float32",
    "a rounding to float32 left out",
    "rows.plain:PlainRows._array",
    "X = X.astype(self._r.through)",
    "X = X.astype(np.float64)",
)
def whole_numbers_of_lightgbm(t: Trial) -> None:
    X = np.random.default_rng(0).integers(1 << 24, (1 << 24) + 40, (400, 3))
    model = lightgbm(X.astype(float), X[:, 0] % 2, min_child_samples=1)
    t.both(t.fit(model, X.astype(float)), model, X[:4] // (1 << 20), X)


@fault(
    "nullable-null-as-zero",
    "pandas' NA read as 0",
    "rows.frames:write_numbers",
    "rows[gaps, place] = np.nan",
    "rows[gaps, place] = 0.0",
)
def nullable_columns(t: Trial) -> None:
    X = frame(numbers())
    X.loc[::3, "b"] = np.nan
    model = histogram(X, X.b.fillna(-9) + X.a)
    fast = t.fit(model, X)
    nullable = X.assign(b=X.b.astype("Float64"))
    t.both(fast, model, nullable.dropna()[:4], nullable)


@fault(
    "names-in-any-order",
    "reordered names ignored",
    "rows.plain:PlainRows._compared",
    "names is None or texts == names",
    "names is None or sorted(texts) == sorted(names)",
)
def reordered_names(t: Trial) -> None:
    X = frame(numbers())
    model = xgboost(X, X.a + 2 * X.b)
    t.both(t.fit(model, X), model, X[:4].astype(np.float32), X[["b", "a", "c"]])


@fault(
    "labels-1-and-1.0",
    "column labels of other classes taken for the same",
    "rows.frames:same_labels",
    "return labels.dtype == others.dtype and bool(labels.equals(others))",
    "return bool(labels.equals(others))",
    named="CHANGELOG, Labels of columns",
)
def labels_of_numbers(t: Trial) -> None:
    X = pd.DataFrame(numbers(), columns=pd.Index([0, 1, 2], dtype=np.int64))
    model = xgboost(X, X[0] + 2 * X[1])
    t.both(t.fit(model, X), model, X[:4], X.set_axis([0.0, 1.0, 2.0], axis=1))


@fault(
    "infinities-for-a-dmatrix",
    "infinities mishandled",
    "sources.xgboost:_has_infinity",
    "with np.errstate",
    "return False\n    with np.errstate",
)
def infinite_rows(t: Trial) -> None:
    X = numbers()
    model = xgb.train({"max_depth": 3}, xgb.DMatrix(X, X.sum(axis=1)), 8)
    fast = t.fit(model, X)
    data = lambda rows: model.predict(xgb.DMatrix(rows))  # noqa: E731
    rows = np.array(X[:5])
    t.ask("finite rows", lambda: fast.predict(rows), lambda: data(rows))
    rows[2, 1] = np.inf
    t.ask("infinite rows", lambda: fast.predict(rows), lambda: data(rows))


@fault(
    "limit-of-zeros-in-tables",
    "a small number counted as 0",
    "sources.lightgbm:LightGBMBoosterSource.passed_on",
    'compares = is_table(X) or type(X).__name__ == "csr_matrix"',
    'compares = type(X).__name__ == "csr_matrix"',
    named="CHANGELOG, Wrong predictions, LightGBM and tables",
)
def limit_in_tables(t: Trial) -> None:
    model, X = zeros_of_lightgbm()
    fast = t.fit(model, X)
    table = pa.table([X[:, i] for i in range(2)], ["a", "b"])
    t.method(fast, model, table.slice(0, 4))
    X[::2, 0] = -1.0000000180025095e-35
    table = pa.table([X[:, i] for i in range(2)], ["a", "b"])
    t.method(fast, model, table)


def zeros_of_lightgbm() -> tuple[Any, Any]:
    X = np.random.default_rng(0).integers(-1, 1, (200, 2)).astype(float)
    return lightgbm(X, X[:, 0] * 3 + X[:, 1]), X


@fault(
    "limit-of-zeros-in-csr",
    "a small number counted as 0",
    "sources.lightgbm:LightGBMBoosterSource.passed_on",
    'compares = is_table(X) or type(X).__name__ == "csr_matrix"',
    "compares = is_table(X)",
    "sources.lightgbm:_by_row",
    "if most_entries(rows) > 1 or plain.has_limit(X, rows.data):",
    "if most_entries(rows) > 1:",
    named="CHANGELOG, Wrong predictions, LightGBM and CSR rows",
)
def limit_in_csr(t: Trial) -> None:
    model, X = zeros_of_lightgbm()
    fast = t.fit(model, X)
    t.method(fast, model, sparse.csr_matrix(X[:4]))
    X[::2, 0] = -1.0000000180025095e-35
    t.method(fast, model, sparse.csr_matrix(X))


@fault(
    "half-floats-of-arrow",
    "a dtype answered that the library refuses",
    "rows.plain:PlainRows._table",
    'if self._r.compares != "sklearn" and not _REFUSED.isdisjoint(kinds):',
    "if False:",
    named="CHANGELOG, LightGBM, half floats",
)
def half_floats(t: Trial) -> None:
    X = numbers(width=2)
    model = lightgbm(X, X.sum(axis=1))
    fast = t.fit(model, X)
    t.method(fast, model, X[:4])
    halves = [pa.array(column.astype(np.float16), pa.float16()) for column in X.T]
    t.method(fast, model, pa.table(halves, ["a", "b"]))


@fault(
    "big-endian-frames",
    "a dtype answered that the library refuses",
    "rows.frames:is_plain",
    "dtype in _PLAIN",
    'dtype.newbyteorder("=") in _PLAIN',
    named="CHANGELOG, Rows that libraries refuse",
)
def big_endian(t: Trial) -> None:
    X = numbers()
    model = histogram(X, X.sum(axis=1))
    t.both(t.fit(model, X), model, pd.DataFrame(X[:4]), pd.DataFrame(X.astype(">f8")))


@fault(
    "absent-as-missing",
    "sparse absent entries as missing instead of 0",
    "rows.plain:PlainRows._csr",
    "np.full(shape, fill, self._r.dtype)",
    "np.full(shape, np.nan, self._r.dtype)",
)
def absent_zeros(t: Trial) -> None:
    X = np.where(numbers() > 0.3, numbers(), 0)
    X[::7, 1] = np.nan
    model = lightgbm(X, np.nan_to_num(X, nan=-9).sum(axis=1))
    t.both(
        t.fit(model, X),
        model,
        sparse.csr_matrix(np.ones((3, 3))),
        sparse.csr_matrix(np.nan_to_num(X)),
    )


@fault(
    "gaps-of-sparse-columns",
    "a missing value to the wrong side",
    "sources.sklearn:SklearnSource._gaps_go_right",
    "if missing.any():",
    "if False:",
    named="CHANGELOG, Wrong predictions, frames of sparse columns",
)
def sparse_columns_with_gaps(t: Trial) -> None:
    X = numbers()
    X[::3, 1] = np.nan
    model = RandomForestRegressor(5, random_state=0)
    model.fit(X, np.nan_to_num(X, nan=-9).sum(axis=1))
    fast = t.fit(model, X)
    columns = pd.DataFrame(X).astype(pd.SparseDtype(float, 0.0))
    t.both(fast, model, columns[1:3], columns)


@fault(
    "unsorted-csc",
    "entries read that the library passes over",
    "sources.lightgbm:_by_row",
    "if not fresh.has_sorted_indices:",
    "if False:",
    named="CHANGELOG, LightGBM, CSC rows",
)
def unsorted_columns(t: Trial) -> None:
    X = np.where(numbers() > 0, numbers(), 0)
    model = lightgbm(X, X.sum(axis=1))
    fast = t.fit(model, X)
    t.method(fast, model, sparse.csc_matrix(X[:4]))
    columns = sparse.csc_matrix(X)
    for first, last in zip(columns.indptr[:-1], columns.indptr[1:], strict=True):
        for part in (columns.data, columns.indices):
            part[first:last] = part[first:last][::-1]
    t.method(fast, model, columns)


@fault(
    "out-over-the-rows",
    "answers written over rows that were not read",
    "prediction.of_out:written",
    "apart = arrays and not np.may_share_memory(X, out)",
    "apart = arrays",
    named="CHANGELOG, Wrong predictions, out= that overlaps the rows",
)
def out_over_rows(t: Trial) -> None:
    from unittest.mock import patch

    from skforge.prediction import blocks

    X = numbers(1024, 2)
    model = HistGradientBoostingClassifier(max_iter=5).fit(X, X[:, 0] > 0)
    fast = t.fit(model, X)
    wanted = model.predict_proba(X)
    memory = np.concatenate([X, X[:1]])

    def overlapping() -> Any:
        return fast.predict_proba(memory[:-1], out=memory[1:])

    with (
        patch.object(blocks, "MOST_VALUES", 256),
        patch.object(blocks, "BLOCK_VALUES", 256),
    ):
        t.method(fast, model, X, "predict_proba")
        t.ask("out over the rows", overlapping, lambda: wanted)


@fault(
    "batches-for-dart",
    "a rounding of another container's",
    "sources.xgboost:_XGBoostRows.tried",
    'return None if rounds and kind_of(X) == "batch" else super().tried(X, method)',
    "return super().tried(X, method)",
    named="CHANGELOG, Files of XGBoost's DART models",
)
def batches_of_dart(t: Trial) -> None:
    X = numbers(400)
    how = {"booster": "dart", "rate_drop": 0.5, "n_estimators": 20}
    model = xgboost(X, X.sum(axis=1), **how)
    t.both(
        t.load(t.fit(model, X)), model, X[:4], pa.RecordBatch.from_arrays([*X.T], NAMES)
    )
