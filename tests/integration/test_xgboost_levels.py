"""Columns with names of several levels, which XGBoost joins by spaces."""

from __future__ import annotations

import numpy as np
import pytest

import skforge
from skforge.exceptions import InvalidInputError
from tests.plain import plain

xgb = pytest.importorskip("xgboost")
pd = pytest.importorskip("pandas")

X = np.random.default_rng(0).normal(size=(120, 3))
LABELS = [("sales", 1), ("sales", 2), ("price", "b")]
FRAME = pd.DataFrame(X, columns=pd.MultiIndex.from_tuples(LABELS))


@pytest.mark.filterwarnings("error::skforge.exceptions.PerformanceWarning")
def test_kernels_answer_frames_with_several_levels(tmp_path):
    model = xgb.XGBRegressor(n_estimators=4, n_jobs=1).fit(FRAME, X[:, 0] + X[:, 2])
    fast, expected = plain(model).fit(FRAME), model.predict(FRAME)
    skforge.save(fast, tmp_path / "a.skforge")
    model.save_model(tmp_path / "a.json")
    flat = FRAME.set_axis(["sales 1", "sales 2", "price b"], axis=1)
    file = plain(tmp_path / "a.json").fit(FRAME)
    for form in (
        fast,
        fast.drop_estimator(),
        skforge.load(tmp_path / "a.skforge"),
        file,
    ):
        for rows in (FRAME, FRAME[:1], FRAME.copy(), flat):
            assert np.array_equal(form.predict(rows), expected[: len(rows)])
        assert form.counters()["library"]["calls"] == 0
    module = skforge.compile_forest(tmp_path / "a.json")
    assert np.array_equal(module.predict(FRAME), expected)


def test_other_names_are_refused(tmp_path):
    model = xgb.XGBRegressor(n_estimators=4, n_jobs=1).fit(FRAME, X[:, 0])
    fast = plain(model).fit(FRAME)
    fast.predict(FRAME)
    labels = [("sales", 1.0), *LABELS[1:]]  # equal to those before, but another text
    other = FRAME.set_axis(pd.MultiIndex.from_tuples(labels), axis=1)
    # pandas takes one level of tuples for equal to several; XGBoost has their texts
    tuples = FRAME.set_axis(FRAME.columns.to_flat_index(), axis=1)
    for rows in (other, tuples):
        with pytest.raises(ValueError, match="feature_names mismatch"):
            fast.predict(rows)
    with pytest.raises(InvalidInputError) as info:
        fast.drop_estimator().predict(other)
    assert str(info.value) == (
        "the rows have no column 'sales 1'; the column nearest to 'sales 1' is "
        "'sales 1.0'. Give every column of the model, with NaN where values are "
        "missing."
    )
