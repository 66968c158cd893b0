"""Random programs see the same with ``accelerate()`` as without it."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("catboost")
pytest.importorskip("lightgbm")
pytest.importorskip("xgboost")
pytest.importorskip("polars")

from tests.fuzz_acceleration import compared

pytestmark = [
    pytest.mark.doors,
    pytest.mark.skipif(sys.platform != "linux", reason="some calls are forked"),
]


@pytest.mark.parametrize(
    ("seed", "calls"),
    [
        (828, 250),
        *(pytest.param(i, 1000, marks=pytest.mark.slow) for i in range(821, 835)),
    ],
)
def test_a_random_program_sees_the_same(seed: int, calls: int) -> None:
    differences, kernels = compared(seed, calls)
    assert not differences, "\n".join(differences[:6])
    word, answered, differed = kernels.split()
    assert (word, differed) == ("kernels", "0") and int(answered) > 10
