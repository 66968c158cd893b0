"""Random models in memory, in dumps and in files, against what the library answers."""

from __future__ import annotations

import pytest

pytest.importorskip("xgboost")
pytest.importorskip("lightgbm")
pytest.importorskip("skl2onnx")
pytest.importorskip("onnxruntime")

from tests import random_sparse
from tests.random_models import drawn, outcome

pytestmark = pytest.mark.doors


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "seed",
    [*range(3), *(pytest.param(i, marks=pytest.mark.slow) for i in range(3, 300))],
)
def test_every_form_of_a_model_answers_as_its_library(seed, tmp_path):
    """One form is compiled; the others are compared by the reference evaluation."""
    model = drawn(seed, tmp_path)
    assert len(model.forms) > 5
    for number, form in enumerate(model.forms):
        what = outcome(form, model.rows, compiled=number == seed % len(model.forms))
        assert what in ("same", "refused"), form.name


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "seed",
    [*range(8), *(pytest.param(i, marks=pytest.mark.slow) for i in range(8, 300))],
)
def test_wide_sparse_rows_are_answered_as_by_the_library(seed):
    outcome = random_sparse.compare([seed])
    assert outcome.calls > 7 or outcome.refused
    assert outcome.differs == [], f"{outcome.how} {outcome.example}"
