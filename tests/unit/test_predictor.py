"""Kernels answer a batch that an entry declined, unless a value is refused."""

from __future__ import annotations

from math import inf, nan
from types import SimpleNamespace

import numpy as np
import pytest

from skforge.engine.entry.entry import _labels
from skforge.prediction.predictor import ForestPredictor
from skforge.sources.row_facts import RowFacts
from skforge.sources.stored_model.declined import first_refused


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


# ------------------------------------------------------------ declined


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9])
def test_the_first_refused_value_is_found_in_few_steps(n: int) -> None:
    for refused in range(n):
        asked = []

        def reads(taken: int, refused: int = refused, asked: list[int] = asked) -> bool:
            assert len(asked) < 6
            asked.append(taken)
            return taken <= refused

        assert first_refused(n, reads) == refused
        assert refused or asked in ([], [1])  # the first one is most often to blame


# ------------------------------------------------------------ entry labels


def test_entries_have_a_label_for_each_class() -> None:
    """Code that chooses one of two classes never reads a table with one label."""
    assert _labels(np.array([5])) is None
    assert _labels(np.array([0])) is None
    assert _labels(np.array([5, 7])) == (5, 7)
