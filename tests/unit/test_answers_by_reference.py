"""Every kind of model answers with its own bits, by its forest's reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import joblib
import numpy as np
import pytest
from joblib.externals.loky import cpu_count
from threadpoolctl import threadpool_limits

for library in ("pandas", "polars", "lightgbm", "xgboost"):
    pytest.importorskip(library)

# these import the libraries
from skforge.sources.find import read_model, source_of  # noqa: E402
from tests import forms, kinds, kinds_of_pipelines  # noqa: E402
from tests.by_reference import answer  # noqa: E402
from tests.compared_calls import apart, called  # noqa: E402

KINDS = {
    **kinds.MODELS,
    **kinds.WRAPPERS,
    **kinds_of_pipelines.PIPELINES,
    **kinds_of_pipelines.TEXTS,
}
#: Boosters have rows of their own class or no labels, and a vote with negative weights
#: is its library's.
LEFT_OUT = {"xgboost, booster", "lightgbm, booster", "hard votes, negative"}
#: A step between others does not fold.
LEFT_OUT |= {name for name in KINDS if name.endswith("around texts")}
METHODS = ("predict", "predict_proba", "decision_function", "score_samples")

cpu_count(only_physical_cores=True)  # it asks another program once


def rows_of(kind: kinds.Kind, forest: Any) -> Any:
    """Return rows of training and rows on thresholds, in the form of training."""
    frame = kinds.base_rows(kind, SimpleNamespace(forest_=forest))
    if kind.on == "categories":
        return forms.with_categories(frame)
    return frame.to_numpy() if isinstance(kinds.ROWS[kind.on], np.ndarray) else frame


@pytest.mark.sampled(160)
@pytest.mark.parametrize("name", sorted({*KINDS} - LEFT_OUT))
def test_answers_are_the_models_own(name: str) -> None:
    kind, compared = KINDS[name], 0
    with threadpool_limits(1), joblib.parallel_config("threading"):
        model = kind.fitted()
        source = source_of(model, read_model(model))
        X = rows_of(kind, source.forest)
        for method in METHODS:
            if not hasattr(model, method):
                continue
            ours = called(lambda X, m=method: answer(source, model, m, X), X)
            if ours[0] is None and (not ours[1] or ours[1].startswith("UnsureError")):
                continue
            theirs = called(getattr(model, method), X)
            assert not apart(ours, theirs, X), method
            compared += 1
    assert compared
