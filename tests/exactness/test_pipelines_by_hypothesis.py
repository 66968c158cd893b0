"""Random pipelines: compiled answers, errors and warnings are the pipeline's own.

A model that cannot be fitted, or that is refused, says nothing and is counted in the
statistics of Hypothesis (``--hypothesis-show-statistics``). Thousands of models are
compared by ``python -m benchmarks.reliability --only pipelines``.
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

from tests.fuzz_pipelines import Outcome, Setting, attempt, draw_and_compare
from tests.random_pipelines import draw_pipeline, draw_steps, draw_table
from tests.random_wrappers import Example, draw_example

DEFAULTS = Setting(default_schedules=True)


def pipeline(choose, counts=(1, 2, 3, 4, 5)):
    table = draw_table(choose)
    return Example(table, table.X, table.y, draw_pipeline(choose, table, counts))


def of_many_steps(choose):
    return pipeline(choose, (3, 4, 5, 6))


def of_steps_that_refuse(choose):
    table = draw_table(choose)
    return Example(table, table.X, table.y, draw_steps(choose, table))


def slow_from(first, last):
    fast, slow = range(first), range(first, last)
    return [*fast, *(pytest.param(i, marks=pytest.mark.slow) for i in slow)]


def assert_alike(outcome):
    assert not outcome.differs, "\n".join(
        [*outcome.differs, outcome.how, outcome.example]
    )


def compared(draw, setting, data, n_forms):
    """Compare one model that Hypothesis chooses, and may make smaller."""

    def choose(options):
        return data.draw(st.sampled_from(options))

    outcome = Outcome()
    random = np.random.default_rng(data.draw(st.integers(0, 9)))
    draw_and_compare(choose, random, n_forms, draw, setting, outcome)
    why = [*outcome.refused, *outcome.not_fitted, "compared"][0]
    event(why[:100])
    assume(outcome.how)
    assert_alike(outcome)


@settings(suppress_health_check=list(HealthCheck), max_examples=8)
@given(st.data())
def test_a_pipeline_answers_as_itself(data):
    compared(pipeline, DEFAULTS, data, n_forms=20)


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck), max_examples=100)
@given(st.data())
def test_a_model_with_wrappers_answers_as_itself(data):
    compared(draw_example, None, data, n_forms=14)


@pytest.mark.parametrize("seed", slow_from(7, 200))
def test_a_random_pipeline_of_three_to_six_steps(seed):
    outcome = attempt([seed], 24, of_many_steps, DEFAULTS)
    assert outcome.how, outcome.refused
    assert_alike(outcome)


@pytest.mark.parametrize("seed", slow_from(3, 400))
def test_steps_refuse_rows_of_all_forms_with_their_own_errors(seed):
    """An artifact answers as well, or says that the pipeline has to."""
    outcome = attempt([seed], 24, of_steps_that_refuse, Setting(copies=True))
    assert outcome.how, outcome.refused
    assert_alike(outcome)


@pytest.mark.parametrize("seed", slow_from(6, 300))
def test_a_random_model_with_wrappers(seed):
    """Wrappers, searches and frozen models, in all modes, with 0 to 120 sample rows."""
    outcome = attempt([seed, 0], 14)
    assert outcome.how, outcome.refused
    assert_alike(outcome)
