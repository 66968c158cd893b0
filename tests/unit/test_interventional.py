"""Interventional interactions of pairs of features, without machine code."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from skforge.compiler.layouts.background import interactions
from skforge.compiler.layouts.blocks.paths import trace
from skforge.forest.reference import draw_rows
from tests.exactness.forests import drawn
from tests.oracles.shap_values import interventional_interactions


@pytest.mark.parametrize(
    ("how", "depth", "most"),
    [
        ({"n_features": 4, "divisor": 3}, 4, 4),
        ({"n_features": 3, "n_outputs": 2, "vector": True}, 5, 3),
        # more than have a table of all patterns
        ({"n_features": 8, "n_outputs": 2, "shape": "chain"}, 30, 8),
    ],
)
def test_interactions_are_those_of_all_subsets(how, depth, most) -> None:
    forest = drawn(3, depth, **how)
    rows, background = draw_rows(forest, 3, 0), draw_rows(forest, 5, 1)
    found = interactions.interactions(forest, background, rows)
    wanted = interventional_interactions(forest, rows, background)
    assert trace(forest).distinct.max() == most
    assert (wanted != 0).mean() > 0.2
    limit = 1e-13 * np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted.astype(float), rtol=0, atol=limit)


def test_features_that_all_rows_meet_change_no_interactions() -> None:
    """Leaves of more than 63 features, whose patterns are no bits of a number."""
    random = np.random.default_rng(0)
    few = random.random((2, 5, 40)) < 0.6
    always = np.ones((2, 65, 40), bool)
    wanted, which = interactions._table(*few)
    many, places = interactions._table(*np.concatenate([few, always], axis=1))
    own = [k for k, pair in enumerate(combinations(range(70), 2)) if max(pair) < 5]
    found = many[:, places]
    np.testing.assert_allclose(found[own], wanted[:, which], rtol=0, atol=1e-15)
    assert np.abs(wanted).max() > 0.01
    assert (np.delete(found, own, axis=0) == 0).all()
