"""Categories of whole numbers: of each NumPy dtype, nullable ones and pyarrow's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import skforge
from skforge.cli.main import app
from tests.plain import plain

xgb = pytest.importorskip("xgboost")
pd = pytest.importorskip("pandas")

N = 200
rng = np.random.default_rng(0)
CODES = rng.integers(0, 4, N)
DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"]
#: XGBoost before 3.4 fails for these.
NULLABLE = ("Int16", "Int64", "UInt8", "UInt32", "int64[pyarrow]", "int16[pyarrow]")


def trained(dtype: str) -> tuple[Any, Any]:
    if "pyarrow" in dtype:
        pytest.importorskip("pyarrow")
    largest = np.iinfo(dtype.removesuffix("[pyarrow]").lower()).max
    values = pd.Series(np.array([1, 2, 5, min(largest, 3_000_000_000)])[CODES])
    column = values.astype(dtype).astype("category")
    frame = pd.DataFrame({"x": rng.normal(size=N), "k": column})
    model = xgb.XGBRegressor(n_estimators=4, n_jobs=1, enable_categorical=True)
    try:
        model.fit(frame, frame["x"] + CODES * 3 % 4)
    except (TypeError, xgb.core.XGBoostError):
        pytest.skip("this XGBoost knows no such categories")
    return model, frame


@pytest.mark.filterwarnings("error::skforge.exceptions.PerformanceWarning")
@pytest.mark.parametrize("dtype", [*DTYPES, *NULLABLE])
def test_kernels_answer_frames_and_values(dtype, tmp_path):
    model, frame = trained(dtype)
    fast, expected = plain(model).fit(frame), model.predict(frame)
    columns = {"x": frame["x"].tolist(), "k": frame["k"].tolist()}
    skforge.save(fast, tmp_path / "a.skforge")
    loaded = skforge.load(tmp_path / "a.skforge")
    for form in (fast, fast.drop_estimator(), loaded):
        for rows in (frame, columns):
            assert np.array_equal(form.predict(rows), expected)
        assert np.array_equal(form.predict(frame[:1]), expected[:1])
        assert form.counters()["library"]["calls"] == 0
    pd.DataFrame(columns).to_csv(tmp_path / "rows.csv", index=False)
    call = "predict", tmp_path / "a.skforge", tmp_path / "rows.csv", "-o"
    ran = CliRunner().invoke(app, [*map(str, call), str(tmp_path / "out.npy")])
    assert ran.exit_code == 0, ran.output
    assert np.array_equal(np.load(tmp_path / "out.npy"), expected)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
@pytest.mark.parametrize("ending", ["json", "ubj"])
def test_files_hold_numbers_without_sign(dtype, ending, tmp_path):
    """UBJSON has no type for these, so that XGBoost writes others of their size."""
    model, frame = trained(dtype)
    path = tmp_path / f"model.{ending}"
    model.save_model(path)
    module = skforge.compile_forest(path)
    assert module.forest.category_names[1] == tuple(frame["k"].cat.categories)
    assert np.array_equal(module.predict(frame), model.predict(frame))
