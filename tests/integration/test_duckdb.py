"""The function of docs/queries.md: DuckDB's rows by Arrow, with the library's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

import skforge
from tests.plain import plain

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
duckdb = pytest.importorskip("duckdb")

N_ROWS = 5000  # three batches of DuckDB's
NAMES = ["age", "income", "member", "city"]
CITIES = ["Oslo", "Bergen", "Rome"]
ROW = "STRUCT(age DOUBLE, income DOUBLE, member BOOLEAN, city VARCHAR)"
rng = np.random.default_rng(0)
TABLE = pa.table(
    {
        "id": np.arange(N_ROWS),
        "city": rng.choice(CITIES, N_ROWS),
        "member": rng.random(N_ROWS) < 0.5,
        "age": rng.integers(18, 90, N_ROWS).astype(np.int16),
        "income": rng.normal(size=N_ROWS) * 1000,
    }
)
LABELS = np.where(np.asarray(TABLE["age"]) > 50, "old", "young")
LABELS[np.asarray(TABLE["city"]) == "Rome"] = "from Rome"
HOLES = TABLE.to_pylist()
for place, hole in enumerate(HOLES):
    for i, name in enumerate(NAMES):
        if place % (7 + i) == 0:
            hole[name] = None
HOLES = pa.Table.from_pylist(HOLES, TABLE.schema)


def given(table: Any) -> Any:
    frame = table.select(NAMES).to_pandas()
    frame["city"] = pd.Categorical(frame["city"], CITIES)
    return frame.astype({name: np.float64 for name in NAMES[:3]})


def boosting(library: str) -> Any:
    module = pytest.importorskip(library)
    if library == "xgboost":
        return module.XGBClassifier(n_estimators=5, n_jobs=1, enable_categorical=True)
    return module.LGBMClassifier(n_estimators=5, n_jobs=1, verbose=-1)


@pytest.fixture(scope="module", params=["xgboost", "lightgbm", "scikit-learn"])
def fitted(request: Any, tmp_path_factory: Any) -> tuple[Any, Any]:
    """Return a model and what its file holds."""
    _, codes = np.unique(LABELS, return_inverse=True)
    if request.param == "scikit-learn":
        model: Any = HistGradientBoostingClassifier(max_iter=5)
        model = model.fit(given(TABLE), LABELS)
    else:
        model = boosting(request.param).fit(given(TABLE), codes)
    path = tmp_path_factory.mktemp("models") / "model.skforge"
    skforge.save(plain(model).fit(given(TABLE)), path)
    return model, skforge.load(path)


def registered(method: Any, returns: str, wide: bool = False) -> Any:
    """Return a connection with the tables and with the function ``score``."""

    def score(rows: Any) -> Any:
        table = pa.Table.from_struct_array(rows)
        answer = method(dict(zip(table.column_names, table.columns, strict=True)))
        if not wide:
            return pa.array(answer)
        names = [f"p{i}" for i in range(answer.shape[1])]
        return pa.StructArray.from_arrays([*answer.T.copy()], names)

    con = duckdb.connect()
    how = {"type": "arrow", "null_handling": "special"}
    con.create_function("score", score, [ROW], returns, **how)
    con.register("people", TABLE)
    con.register("holes", HOLES)
    return con


@pytest.mark.parametrize("table", ["people", "holes"])
def test_a_function_of_sql_has_the_bits_of_the_library(fitted: Any, table: str) -> None:
    model, fast = fitted
    wanted = model.predict_proba(given(TABLE if table == "people" else HOLES))
    kind = {"float32": "FLOAT", "float64": "DOUBLE"}[str(wanted.dtype)]
    struct = f"STRUCT(p0 {kind}, p1 {kind}, p2 {kind})"
    con = registered(fast.predict_proba, struct, wide=True)
    rows = "{member: member, city: city, age: age, income: income}"
    for query in (
        f"SELECT id, unnest(score({rows})) FROM {table} ORDER BY id",
        "SELECT unnest(score(r)) FROM "
        f"(SELECT income, city, age, member FROM {table}) r",
    ):
        found = con.sql(query).df()[["p0", "p1", "p2"]].to_numpy()
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


def test_labels_one_row_and_no_rows(fitted: Any) -> None:
    model, fast = fitted
    wanted = model.predict(given(TABLE))
    returns = "VARCHAR" if wanted.dtype.kind == "U" else "BIGINT"
    con = registered(fast.predict, returns)
    query = "SELECT score(r) AS s FROM (SELECT age, income, member, city FROM people"
    for limit in (N_ROWS, 1, 0):
        found = con.sql(f"{query} LIMIT {limit}) r").fetchall()
        assert [label for (label,) in found] == wanted[:limit].tolist()
    row = "{age: 40, income: 12.5, member: true, city: 'Rome'}"
    frame = given(
        pa.table({"age": [40], "income": [12.5], "member": [1], "city": ["Rome"]})
    )
    assert con.sql(f"SELECT score({row})").fetchall() == [(model.predict(frame)[0],)]
