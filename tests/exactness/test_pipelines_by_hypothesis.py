"""Random pipelines: compiled answers, errors and warnings are the pipeline's own.

A pipeline that cannot be fitted, or that is refused, says nothing and is counted in
the statistics of Hypothesis (``--hypothesis-show-statistics``).
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

pytest.importorskip("pandas")
pytest.importorskip("lightgbm")
pytest.importorskip("xgboost")

import skforge
from skforge import CompiledForest, UnsupportedModelError
from tests.plain import plain
from tests.random_pipelines import (
    MOST_COLUMNS,
    Table,
    draw_pipeline,
    draw_steps,
    draw_table,
    failure,
    stored_failure,
)


def compared(table: Table, model, compare) -> tuple[str, str]:
    """Return why a pipeline is not compared, and how its compiled answers differ."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.fit(table.X, table.y)
            model.predict(table.X)
        except Exception as error:  # noqa: BLE001 - of any step
            return f"not fitted: {type(error).__name__}", ""
        if model[-1].n_features_in_ > MOST_COLUMNS:
            return "too wide", ""
        try:
            return "", compare(table, model)
        except UnsupportedModelError as error:
            return f"refused: {error}", ""


def by_default(seed: int):
    """Compare all methods of a pipeline with those of the default kernels."""

    def compare(table, model):
        fast = CompiledForest(model, tuning="off").fit(table.X)
        return failure(table, model, fast, seed)

    return compare


def explained(table: Table, model) -> str:
    parts = [f"{table.kinds}", f"{type(table.X).__name__}", f"labels {table.y[:3]}"]
    return f"{', '.join(parts)}\n{model!r}"


@settings(suppress_health_check=list(HealthCheck), max_examples=8)
@given(st.data())
def test_a_pipeline_answers_as_itself(data):
    def choose(options):
        return data.draw(st.sampled_from(options))

    table = draw_table(choose)
    model = draw_pipeline(choose, table, [1, 2, 3, 4, 5])
    why, found = compared(table, model, by_default(data.draw(st.integers(0, 9))))
    event(why[:100] or "compared")
    assume(not why)
    assert not found, f"{found}\n{explained(table, model)}"


@pytest.mark.parametrize(
    "seed",
    [*range(10), *(pytest.param(i, marks=pytest.mark.slow) for i in range(10, 200))],
)
def test_a_random_pipeline_of_three_to_six_steps(seed):
    random = np.random.default_rng(seed)

    def choose(options):
        return options[random.integers(len(options))]

    why = "not drawn"
    for _ in range(50):  # pipelines that cannot be fitted or compiled say nothing
        if not why:
            break
        table = draw_table(choose)
        model = draw_pipeline(choose, table, [3, 4, 5, 6])
        why, found = compared(table, model, by_default(seed))
    assert not why, f"no pipeline of 50: {why}"
    assert not found, f"{found}\n{explained(table, model)}"


@pytest.mark.parametrize(
    "seed",
    [*range(3), *(pytest.param(i, marks=pytest.mark.slow) for i in range(3, 400))],
)
def test_steps_refuse_rows_of_all_forms_with_their_own_errors(seed, tmp_path):
    """An artifact answers as well, or says that the pipeline has to."""
    random = np.random.default_rng(seed)

    def choose(options):
        return options[random.integers(len(options))]

    def compare(table, model):
        fast = plain(model).fit(table.X)
        if found := failure(table, model, fast, seed, ["predict"]):
            return found
        try:
            skforge.save(fast, tmp_path / "model.skforge")
        except UnsupportedModelError:
            return ""
        return stored_failure(
            table, model, skforge.load(tmp_path / "model.skforge"), seed
        )

    why = "not drawn"
    for _ in range(50):
        if not why:
            break
        table = draw_table(choose)
        model = draw_steps(choose, table)
        why, found = compared(table, model, compare)
    assert not why, f"no pipeline of 50: {why}"
    assert not found, f"{found}\n{explained(table, model)}"
