"""CatBoost's models answer with their own bits, by their forests' reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skforge.exceptions import SourceNeededError
from skforge.forest.categories import ABOVE, ABOVE_OR_NAN, MULTIPLIER
from skforge.forest.encoder_tables import _pairs_of
from skforge.frontends import load_forest
from skforge.sources.find import read_model, source_of
from tests.by_reference import answer, stored_of

cb = pytest.importorskip("catboost")
pd = pytest.importorskip("pandas")

N = 300
random = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "size": np.where(random.random(N) < 0.2, np.nan, random.normal(size=N)),
        "city": random.choice([f"città {i}" for i in range(9)], N).astype(object),
        "age": random.integers(18, 90, N).astype(float),
        "code": random.integers(-3, 9, N),
    }
)
SIGNAL = FRAME["city"].str[-1].astype(int) % 4 + np.nan_to_num(FRAME["size"])
SIGNAL += (FRAME["code"] == 2) * (FRAME["age"] > 40) * 2
NUMBERS, CATEGORIES = ["size", "age", "code"], ["city", "code"]


def train(kind: str, columns: list[str], y: Any, **how: Any) -> Any:
    how = {"iterations": 12, "depth": 4, "thread_count": 1, "verbose": 0, **how}
    made = getattr(cb, f"CatBoost{kind}")(allow_writing_files=False, **how)
    return made.fit(FRAME[columns], y)


def test_a_stored_model_refuses_one_row_without_a_second_axis() -> None:
    model = train("Regressor", NUMBERS, SIGNAL)
    forest = read_model(model)
    stored = stored_of(model, forest)
    with pytest.raises(SourceNeededError) as error:
        answer(source_of(stored, forest), stored, "predict", np.zeros(3))
    assert str(error.value) == (
        "predict of one row without a second axis needs the CatBoostRegressor itself, "
        "which this CompiledForest was saved without: Use X.reshape(1, -1), or use "
        "the original model."
    )


@pytest.mark.parametrize("nan_mode", ["Min", "Max"])
def test_combinations_of_categories_are_the_same_in_both_files(nan_mode, tmp_path):
    how = {"cat_features": CATEGORIES, "max_ctr_complexity": 3, "iterations": 40}
    model = train("Regressor", [*FRAME], SIGNAL, nan_mode=nan_mode, **how)
    pool = cb.Pool(FRAME, SIGNAL, CATEGORIES)
    forests = []
    for suffix in ("cbm", "json"):
        path = tmp_path / f"model.{suffix}"
        model.save_model(str(path), format=suffix, pool=pool)
        forests.append(load_forest(path))
    binary, text = forests
    assert np.isin(binary.hashed.part_kind, [ABOVE, ABOVE_OR_NAN]).any()
    assert (binary.hashed.part_kind == ABOVE_OR_NAN).any() == (nan_mode == "Max")
    for name, array in binary.hashed.arrays().items():
        np.testing.assert_array_equal(getattr(text.hashed, name), array, name)
    for name in ("left", "right", "feature", "threshold", "missing_left"):
        np.testing.assert_array_equal(getattr(text, name), getattr(binary, name), name)


# ------------------------------------------------------------ encoder tables


@pytest.mark.parametrize("factor", [pow(MULTIPLIER, k, 2**64) for k in (1, 2, 5)])
def test_every_pair_of_hashes_is_among_those_of_its_key(factor: int) -> None:
    pairs = np.random.default_rng(0).integers(-(2**31), 2**31, (2, 50))
    pairs[:, :2] = [[-(2**31), 2**31 - 1], [2**31 - 1, -(2**31)]]
    with np.errstate(over="ignore"):
        key = pairs.astype(np.uint64) * np.array([[factor], [1]], np.uint64)
        total = key.sum(axis=0)
        found = _pairs_of(total.view(np.int64), factor)
        keys = found.astype(np.uint64) * np.array([factor, 1], np.uint64)[:, None, None]
    assert (keys.sum(axis=0) == total).all()
    assert (found == pairs[:, None]).all(axis=0).any(axis=0).all()
