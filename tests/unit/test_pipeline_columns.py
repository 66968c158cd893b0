"""Columns of pipelines, where outputs of several steps are joined."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_array_equal
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeRegressor

from skforge import load_forest
from skforge.forest.reference import reference_raw

ROWS = np.random.default_rng(0).integers(0, 4, (60, 2)).astype(float)
TREE = DecisionTreeRegressor(max_depth=4, random_state=0)


def test_numbers_of_several_dtypes_are_joined() -> None:
    steps = (OneHotEncoder(dtype=np.int32), [0]), (StandardScaler(), [1])
    model = make_pipeline(make_column_transformer(*steps), TREE)
    model.fit(ROWS, ROWS @ [1.0, -3.0])
    forest = load_forest(model)
    rows = ROWS.astype(forest.input_dtype)
    assert_array_equal(reference_raw(forest, rows)[:, 0], model.predict(ROWS))
