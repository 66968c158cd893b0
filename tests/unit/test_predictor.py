"""Kernels answer a batch that an entry declined, unless a value is refused."""

from __future__ import annotations

from math import inf, nan
from types import SimpleNamespace

import numpy as np
import pytest

from skforge.prediction.predictor import ForestPredictor
from skforge.sources.row_facts import RowFacts


@pytest.mark.parametrize(
    ("declines", "limit", "accepted", "refused"),
    [
        ("nothing", inf, (1.0, nan, inf), ()),
        ("infinite", inf, (1.0, nan), (inf, -inf)),
        ("infinite", 8.0, (nan, -7.5), (8.0, -8.0)),
        ("not_finite", inf, (1.0, -1e300), (nan, inf, -inf)),
    ],
)
def test_values_decide(declines, limit, accepted, refused) -> None:
    predictor = SimpleNamespace(
        source=SimpleNamespace(facts=RowFacts(declines=declines, limit=limit)),
        forest=SimpleNamespace(whole_columns=()),
        by_members=False,
        _scored=lambda method, rows, n_jobs: rows,
    )
    for value in (*accepted, *refused):
        rows = np.array([[0.5, value], [1.0, 2.0]])
        ask = ForestPredictor.by_certain_rows
        answered = ask(predictor, "predict", None, rows) is rows
        assert answered == (value not in refused), value
