"""Random pipelines: compiled answers, errors and warnings are the pipeline's own.

A model that cannot be fitted, or that is refused, says nothing and is counted in the
statistics of Hypothesis (``--hypothesis-show-statistics``). Thousands of models are
compared by ``python -m tests.reliability --only pipelines``.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

pytest.importorskip("pandas")
pytest.importorskip("polars")
pytest.importorskip("pyarrow")
pytest.importorskip("lightgbm")
pytest.importorskip("xgboost")

from tests.fuzz_pipelines import DRAWN, Outcome, attempt, draw_and_compare

pytestmark = pytest.mark.doors


def assert_alike(outcome):
    assert not outcome.differs, "\n".join(
        [*outcome.differs, outcome.how, outcome.example]
    )


def compared(family, data, n_forms):
    """Compare one model that Hypothesis chooses, and may make smaller."""

    def choose(options):
        return data.draw(st.sampled_from(options))

    outcome = Outcome()
    random = np.random.default_rng(data.draw(st.integers(0, 9)))
    draw_and_compare(choose, random, n_forms, *DRAWN[family], outcome)
    why = [*outcome.refused, *outcome.not_fitted, "compared"][0]
    event(why[:100])
    assume(outcome.how)
    assert_alike(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["random pipelines", "random wrappers"])
@settings(suppress_health_check=list(HealthCheck), max_examples=100)
@given(data=st.data())
def test_a_model_answers_as_itself(family, data):
    compared(family, data, n_forms=14)


@pytest.mark.parametrize(
    ("family", "seed"),
    [
        pytest.param(family, seed, marks=[pytest.mark.slow] if seed >= few else [])
        for family, few, many in (
            ("random pipelines", 2, 200),
            ("random steps that refuse rows", 1, 400),
            ("random wrappers", 1, 300),
        )
        for seed in range(many)
    ],
)
def test_a_random_model(family, seed):
    """Wrappers, searches and frozen models come in all modes, with few sample rows.

    An artifact of steps that refuse rows answers, or says that the pipeline has to.
    """
    outcome = attempt([seed, 0], 20, *DRAWN[family])
    assert outcome.how, outcome.refused
    assert_alike(outcome)


#: Draws in which something else than the model's own answer or error was once given.
ONCE = (10148, 20183, 40718, 40826, 50510, 51533, 51869, 61254)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", ONCE)
def test_models_that_once_differed(number):
    assert_alike(attempt([number, 1], 20, *[*DRAWN.values()][number % len(DRAWN)]))
