"""XGBoost's names of columns, and categories of whole numbers of each dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import skforge
from skforge.cli.main import app
from skforge.exceptions import InvalidInputError
from tests.comparing import in_every_state, refusal
from tests.plain import plain
from tests.sklearn_rows import same_bits

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
    for form in in_every_state(fast, tmp_path).values():
        for rows in (frame, columns):
            assert np.array_equal(form.predict(rows), expected)
        assert np.array_equal(form.predict(frame[:1]), expected[:1])
        assert form.counters()["library"]["calls"] == 0
    pd.DataFrame(columns).to_csv(tmp_path / "rows.csv", index=False)
    call = "predict", tmp_path / "model.skforge", tmp_path / "rows.csv", "-o"
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


# ------------------------------------------------------------ names of several levels

VALUES = np.random.default_rng(0).normal(size=(120, 3))
LABELS = [("sales", 1), ("sales", 2), ("price", "b")]
LEVELS = pd.DataFrame(VALUES, columns=pd.MultiIndex.from_tuples(LABELS))


@pytest.mark.filterwarnings("error::skforge.exceptions.PerformanceWarning")
def test_names_of_several_levels_are_joined_by_spaces(tmp_path):
    model = xgb.XGBRegressor(n_estimators=4, n_jobs=1).fit(LEVELS, VALUES.sum(axis=1))
    fast, expected = plain(model).fit(LEVELS), model.predict(LEVELS)
    model.save_model(tmp_path / "a.json")
    flat = LEVELS.set_axis(["sales 1", "sales 2", "price b"], axis=1)
    states = in_every_state(fast, tmp_path)
    for form in (plain(tmp_path / "a.json").fit(LEVELS), *states.values()):
        for rows in (LEVELS, LEVELS[:1], LEVELS.copy(), flat):
            same_bits(form.predict(rows), expected[: len(rows)])
        assert form.counters()["library"]["calls"] == 0
    module = skforge.compile_forest(tmp_path / "a.json")
    same_bits(module.predict(LEVELS), expected)
    labels = [("sales", 1.0), *LABELS[1:]]  # equal to those before, but another text
    other = LEVELS.set_axis(pd.MultiIndex.from_tuples(labels), axis=1)
    # pandas takes one level of tuples for equal to several; XGBoost has their texts
    tuples = LEVELS.set_axis(LEVELS.columns.to_flat_index(), axis=1)
    for rows in (other, tuples):
        with pytest.raises(ValueError, match="feature_names mismatch"):
            fast.predict(rows)
    assert refusal(InvalidInputError, states["dropped"].predict, other) == (
        "the rows have no column 'sales 1'; the column nearest to 'sales 1' is "
        "'sales 1.0'. Give every column of the model, with NaN where values are "
        "missing."
    )
