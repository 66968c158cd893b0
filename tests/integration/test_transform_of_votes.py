"""``transform`` of voting models; ``test_surface.py`` compares what it returns."""

from __future__ import annotations

import numpy as np
import sklearn
from sklearn.base import clone

from skforge.exceptions import InvalidModelError, SourceNeededError
from skforge.sources.base import Answers
from tests.comparing import refusal
from tests.kinds import FRAME, TARGETS, WRAPPERS
from tests.plain import plain


def test_frames_need_the_model() -> None:
    mean = WRAPPERS["mean of votes"]
    model = clone(mean.model).fit(FRAME, TARGETS[mean.y])
    dropped = plain(model).fit(FRAME).drop_estimator()
    frames = sklearn.config_context(transform_output="pandas")
    with frames:
        assert refusal(SourceNeededError, dropped.transform, FRAME) == (
            "transform of these rows needs the VotingRegressor itself, which this "
            "CompiledForest was saved without; use the original model."
        )
    model.set_output(transform="pandas")
    dropped = plain(model).fit(FRAME).drop_estimator()
    assert refusal(SourceNeededError, lambda: dropped.transform(FRAME)) == (
        "transform needs the VotingRegressor itself, which this CompiledForest was "
        "saved without; use the original model."
    )


def test_columns_that_are_none() -> None:
    answers = Answers(matrix="sparse")
    for wrong in ([[0, 3]], [[-1, 0]], [[np.nan, 0]]):
        assert refusal(InvalidModelError, answers.one_hot, np.array(wrong), 3) == (
            "The forest's scores are no columns of a matrix of 3, as they are in a "
            "RandomTreesEmbedding; the model is damaged, save it again."
        )
