"""Tables of CatBoost's combinations: the hashes of two texts, from their key."""

from __future__ import annotations

import numpy as np
import pytest

from skforge.forest.categories import MULTIPLIER
from skforge.forest.encoder_tables import _pairs_of


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
