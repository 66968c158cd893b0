"""Tests of ``unit/test_cost_reach.py`` that compile or start processes."""

from __future__ import annotations

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from skforge import load_forest
from skforge.compiler.cost.counts import ForestCounts
from skforge.compiler.target import Target
from tests.unit.test_cost_reach import X, Y


def test_tiles_of_wide_values_begin_at_the_roots():
    model = HistGradientBoostingRegressor(max_iter=5, max_leaf_nodes=200)
    forest = load_forest(model.fit(X.astype(np.float64), Y))
    found = ForestCounts(forest, Target.parse("cpu"))
    assert found.values.top == 0 and found.values.visits > found.three.visits
