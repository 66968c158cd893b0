"""Data frames for LightGBM's model files: categories by name, or refused."""

from __future__ import annotations

import numpy as np
import pytest

from skforge import CompiledForest, load_forest
from skforge.compiler.forest.rows import prepare_rows
from skforge.exceptions import InvalidInputError

lgb = pytest.importorskip("lightgbm")
pd = pytest.importorskip("pandas")

N = 200
LETTERS = ["red", "green", "blue", "grey"]


def make_frame(seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"x": rng.normal(size=N), "n": rng.integers(0, 9, N)})
    frame.insert(0, "color", pd.Categorical(rng.choice(LETTERS, N)))
    frame["code"] = pd.Categorical(rng.choice([30, 10, 20], N))
    return frame


@pytest.fixture(scope="module")
def model():
    frame = make_frame()
    y = frame["color"].cat.codes % 2 + frame["code"].astype(float) / 9 + frame["x"]
    params = {"min_child_samples": 5, "cat_smooth": 1, "min_data_per_group": 5}
    return lgb.LGBMRegressor(n_estimators=4, n_jobs=1, verbose=-1, **params).fit(
        frame, y
    )


@pytest.fixture
def file(model, tmp_path):
    path = tmp_path / "model.txt"
    model.booster_.save_model(path)
    return path


def test_categories_are_found_by_name(model, file):
    other = make_frame(1)
    # the same names under other numbers, one that is new, and a missing one
    other["color"] = pd.Categorical(
        ["new", None, *other["color"].astype(str)[2:]],
        categories=["new", "grey", "red", "blue", "green"],
    )
    other["code"] = other["code"].cat.reorder_categories([20, 30, 10])
    fast = CompiledForest(str(file)).fit(make_frame())
    expected = model.predict(other)
    assert (fast.predict(other) == expected).all()
    wrong = other.assign(
        color=other["color"].cat.codes, code=other["code"].cat.codes
    ).to_numpy(np.float64)
    assert (fast.predict(wrong) != expected).any()


def test_other_columns_of_category_dtype_are_refused(file):
    forest = load_forest(file)
    frame = make_frame()
    numbers = frame.assign(code=frame["code"].astype(int))
    with pytest.raises(InvalidInputError) as info:
        prepare_rows(forest, numbers)
    assert str(info.value) == (
        "column 'code' held categories in training, but holds none here; convert it "
        "to categories, or pass an array of their codes."
    )


def test_columns_without_numbers_are_refused(file):
    frame = make_frame()
    frame["n"] = frame["n"].astype(str).astype(object)
    with pytest.raises(InvalidInputError) as info:
        prepare_rows(load_forest(file), frame)
    assert str(info.value) == (
        "column 'n' has the dtype object, which is not plain numbers; convert it to "
        "float64."
    )
