"""What the live model itself answers, for comparisons with compiled answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from skforge.prediction.of_kernels import OfKernels
from skforge.prediction.rounds import rounds_asked, rule
from skforge.sources.base import METHODS


def of_source(
    predictor: OfKernels, method: str, X: Any, params: Mapping[str, Any]
) -> Any:
    """Return the model's own answer; a Booster's follows from its raw scores."""
    source = predictor.source
    if source.members:  # whose adapter calls the compiled ones
        return getattr(source.model, method)(X, **params)
    known = not params or rounds_asked(predictor, params) is not None
    of_scores = method in (*METHODS, "predict_raw")
    if of_scores and known and not source.answers.labels:  # a Booster
        raw = np.asarray(source.call("predict_raw", X, **params))
        return rule(predictor, params)(method, raw)
    if method == "predict_raw":  # few models have a method for it
        return source.raw_of(X)
    return source.call(method, X, **params)
