"""Tests of ``unit/test_gpu_directive_counts.py`` that compile or start processes."""

from __future__ import annotations

import numpy as np
import pytest

from skforge import compile_forest
from skforge.schedule import families
from tests.exactness.forests import drawn


@pytest.mark.parametrize("n_features", [0, 1, 5, 61])
@pytest.mark.parametrize(("rows", "threads"), [(1, 7), (1, 64), (2, 50), (3, 12)])
def test_each_value_of_a_row_is_copied_once(rows, threads, n_features) -> None:
    """Threads that outnumber rows share them, whatever divides these numbers."""
    made = drawn(70, 3 if n_features else 0, n_features=n_features)
    schedule = families.trees_by_threads(rows, threads, families.WalkKind())
    batch = np.random.default_rng(0).normal(size=(17, made.n_features))
    batch = batch.astype(np.float32)
    got = compile_forest(made, schedule, "emulated").predict_raw(batch)
    wanted = compile_forest(made).predict_raw(batch)
    assert got.tobytes() == wanted.tobytes()
