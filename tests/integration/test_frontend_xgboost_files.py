"""Tests of ``unit/test_frontend_xgboost_files.py`` that compile or start processes."""

from __future__ import annotations

import numpy as np
import pytest

from skforge import load, save
from tests.plain import plain
from tests.unit.test_frontend_xgboost_files import DATA, same_bits


@pytest.mark.parametrize(
    "name", ["expectile.json", "expectile.ubj", "vector-dart.json"]
)
def test_what_releases_from_3_3_train(name, tmp_path):
    """Expectiles that are sums of increments, and vector leaves with dropout."""
    expected = np.load(DATA / "3.4.1.npz")
    X = expected["X"]
    fast = plain(DATA / f"3.4.1-{name}").fit(X)
    save(fast, tmp_path / "model.skforge")
    for one in (fast, load(tmp_path / "model.skforge")):
        same_bits(one.predict_raw(X), expected[f"3.4.1-{name}:margin"])
        for n in (len(X), *[1] * 4):  # few rows have an entry in the end
            same_bits(one.predict(X[:n]), expected[f"3.4.1-{name}:value"][:n])
