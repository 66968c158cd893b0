"""A row's answer does not depend on the rows beside it, however a table is divided.

Columns hold whole numbers that float32 rounds, flags and floats, with and without
missing values: what a table's library makes of a part depends on the gaps in it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skforge
from skforge import CompiledForest
from skforge.cli import tables
from skforge.cli.main import app
from skforge.polars import predict
from skforge.prediction import blocks
from tests.plain import plain

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

N_ROWS = 60
NAMES = ["id", "cents", "flag", "size"]
TYPES = {"id": pl.Int64, "cents": pl.Int64, "flag": pl.Boolean, "size": pl.Float64}
rng = np.random.default_rng(0)
#: Neighbours that are one number in float32.
NUMBERS = np.column_stack(
    [
        rng.integers(1 << 24, (1 << 24) + 40, N_ROWS),
        rng.integers(1 << 55, (1 << 55) + (1 << 33), N_ROWS),
        rng.integers(0, 2, N_ROWS),
        rng.normal(size=N_ROWS),
    ]
)
TARGET = NUMBERS[:, 0] % 2 + NUMBERS[:, 1] // (1 << 29) % 2 + NUMBERS[:, 3]


def lightgbm() -> Any:
    library = pytest.importorskip("lightgbm")
    return library.LGBMRegressor(
        n_estimators=6, min_child_samples=1, n_jobs=1, verbose=-1
    )


def xgboost() -> Any:
    library = pytest.importorskip("xgboost")
    return library.XGBRegressor(n_estimators=6, n_jobs=1)


KINDS: dict[str, Callable[[], Any]] = {
    "lightgbm": lightgbm,
    "xgboost": xgboost,
    "histogram": lambda: HistGradientBoostingRegressor(max_iter=6, min_samples_leaf=1),
    "forest": lambda: RandomForestRegressor(4, random_state=0),
    "pipeline": lambda: make_pipeline(
        StandardScaler(), HistGradientBoostingRegressor(max_iter=6, min_samples_leaf=1)
    ),
}


@cache
def model_of(kind: str, named: bool) -> tuple[CompiledForest, Any]:
    rows = NUMBERS.copy()
    rows[::7] = np.nan
    given: Any = pd.DataFrame(rows, columns=NAMES) if named else rows
    model = KINDS[kind]().fit(given, TARGET)
    return plain(model).fit(given), model


def table_of(gaps: list[tuple[int, int]]) -> tuple[Any, Any]:
    """Return a frame of Polars with nulls, and the same as an array of float64."""
    cells: list[Any] = [list(column) for column in NUMBERS.T]
    for row, column in gaps:
        cells[column][row] = None
    typed = [
        [None if cell is None else make(cell) for cell in column]
        for make, column in zip((int, int, bool, float), cells, strict=True)
    ]
    rows = np.array(cells, np.float64).T
    return pl.DataFrame(typed, TYPES, orient="col"), np.ascontiguousarray(rows)


def by_polars(fast: Any, frame: Any, named: bool) -> Any:
    return frame.select(predict(fast, *NAMES)).to_series().to_numpy()


def by_vectors(fast: Any, frame: Any, _: bool) -> Any:
    numbers = [*frame.select("id", "cents")] * 2  # of one type
    vectors = pl.select(predict(fast, pl.concat_list(numbers).list.to_array(4)))
    columns = pl.select(
        predict(fast, *(c.alias(f"{i}") for i, c in enumerate(numbers)))
    )
    assert columns.equals(vectors)
    return columns.to_series().to_numpy()


def by_mapping(fast: Any, frame: Any, named: bool) -> Any:
    return fast.predict({name: frame[name] for name in NAMES})


def by_arrow(fast: Any, frame: Any, named: bool) -> Any:
    """Predict as the function for DuckDB in the documentation does."""
    table = frame.to_arrow()
    if named:
        return fast.predict(dict(zip(table.column_names, table.columns, strict=True)))
    return fast.predict(
        np.column_stack([np.asarray(c, "float64") for c in table.columns])
    )


def by_spark(fast: Any, frame: Any, named: bool) -> Any:
    pytest.importorskip("pyspark")
    from skforge.distributed._spark_udf import _answer

    return _answer(job_of(fast), frame.to_arrow().to_pandas())


def by_spark_arrays(fast: Any, frame: Any, named: bool) -> Any:
    pytest.importorskip("pyspark")
    from skforge.distributed._spark_udf import _answer

    lists = pl.select(pl.concat_list([*frame.select("id", "cents")] * 2))
    return _answer(job_of(fast), lists.to_arrow().to_pandas())


def by_ray(fast: Any, frame: Any, named: bool) -> Any:
    from skforge.distributed.ray import Predictor

    call = Predictor(job_of(fast), columns=NAMES, keep=False)
    found = call(frame.to_arrow())["prediction"].to_numpy()
    frames = call(frame.to_arrow().to_pandas())["prediction"].to_numpy()
    np.testing.assert_array_equal(frames, found)
    return found


def by_dask(fast: Any, frame: Any, named: bool) -> Any:
    pytest.importorskip("dask")
    from skforge.distributed.dask import _part

    typed = frame.to_arrow().to_pandas(types_mapper=pd.ArrowDtype)
    return _part(typed, job_of(fast)).to_numpy()


@cache
def job_of(fast: Any) -> Any:
    from skforge.distributed._artifact import job

    return job(fast, "predict", 1, "auto")


DOORS: dict[str, Callable[[Any, Any, bool], Any]] = {
    "polars": by_polars,
    "polars, vectors": by_vectors,
    "mapping": by_mapping,
    "arrow": by_arrow,
    "spark": by_spark,
    "spark, arrays": by_spark_arrays,
    "ray": by_ray,
    "dask": by_dask,
}

CELLS = st.tuples(st.integers(0, N_ROWS - 1), st.integers(0, 3))


@pytest.mark.sampled(20)
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("door", DOORS)
@given(cuts=st.sets(st.integers(1, N_ROWS - 1), max_size=4), gaps=st.lists(CELLS))
def test_parts_have_the_answers_of_the_whole(
    door: str, kind: str, named: bool, cuts: set[int], gaps: list[tuple[int, int]]
) -> None:
    vectors = door in ("polars, vectors", "spark, arrays")
    if (vectors and named) or (door == "mapping" and not named):
        pytest.skip("it has no such rows")
    fast, model = model_of(kind, named)
    frame, rows = table_of(gaps)
    if vectors:
        rows = rows[:, [0, 1, 0, 1]]
    wanted = model.predict(pd.DataFrame(rows, columns=NAMES) if named else rows)
    ends = [0, *sorted(cuts), N_ROWS]
    parts = [
        DOORS[door](fast, frame[start:stop], named) for start, stop in pairwise(ends)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), wanted)
    np.testing.assert_array_equal(DOORS[door](fast, frame, named), wanted)


GAPS = [(row, row % 4) for row in range(0, N_ROWS, 9)]


@pytest.mark.parametrize("gaps", [[], GAPS[:1], GAPS], ids=len)
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_have_the_answers_of_the_whole(
    kind: str, gaps: Any, monkeypatch: Any
) -> None:
    fast, model = model_of(kind, named=True)
    frame, rows = table_of(gaps)
    frame = pl.concat([frame] * 4)
    wanted = model.predict(pd.DataFrame(np.tile(rows, (4, 1)), columns=NAMES))
    monkeypatch.setattr(blocks, "MOST_VALUES", 0)
    monkeypatch.setattr(blocks, "BLOCK_VALUES", 64)
    nullable = frame.to_arrow().to_pandas(types_mapper=pd.ArrowDtype)
    for X in (frame, nullable.convert_dtypes(dtype_backend="numpy_nullable")):
        out = np.empty(len(frame), wanted.dtype)
        assert fast.predict_raw(X, out=out) is out
        np.testing.assert_array_equal(out, wanted)
        np.testing.assert_array_equal(fast.predict(X), wanted)


@pytest.mark.parametrize("gaps", [[], GAPS[:1], GAPS], ids=len)
@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_files_have_the_answers_of_the_whole(
    kind: str, gaps: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    fast, model = model_of(kind, named=True)
    frame, rows = table_of(gaps)
    wanted = model.predict(pd.DataFrame(rows, columns=NAMES))
    skforge.save(fast, tmp_path / "model.skforge")
    frame.write_csv(tmp_path / "rows.csv")
    frame.write_parquet(tmp_path / "rows.parquet")
    frame.write_ipc(tmp_path / "rows.arrow", compression="uncompressed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "_ROWS", 7)
    monkeypatch.setattr(tables, "_BLOCK", 300)
    for name in ("rows.csv", "rows.parquet", "rows.arrow"):
        with pytest.raises(SystemExit) as stopped:
            app(["predict", "model.skforge", name, "-o", "answers.npy"])
        assert not stopped.value.code
        np.testing.assert_array_equal(np.load("answers.npy"), wanted)
