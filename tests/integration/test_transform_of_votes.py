"""``transform`` of voting models: live, unpickled, dropped and loaded alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from skforge.exceptions import InvalidModelError, SourceNeededError
from skforge.sources.base import Answers
from tests.comparing import in_every_state, refusal
from tests.kinds import FRAME, SCALER, TARGETS, WRAPPERS
from tests.plain import plain

VOTES = {
    name: (WRAPPERS[name].model, TARGETS[WRAPPERS[name].y])
    for name in (
        *("soft votes", "soft votes, weighted", "hard votes", "hard votes, weighted"),
        *("hard votes that tie", "votes of some", "mean of votes"),
        *("votes of calibrated", "pipeline of votes"),
    )
}
_SOFT, _Y = VOTES["soft votes, weighted"]
_MEAN, _VALUES = VOTES["mean of votes"]
VOTES |= {
    "not flat": (clone(_SOFT).set_params(flatten_transform=False), _Y),
    "large values": (_MEAN, _VALUES * 1e8),
    "pipeline of a mean": (make_pipeline(SCALER, _MEAN), _VALUES),
    "search": (GridSearchCV(_MEAN, {"weights": [None]}, cv=2), _VALUES),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", VOTES)
def test_votes(name: str, tmp_path: Any) -> None:
    model, y = VOTES[name]
    model = clone(model).fit(FRAME, y)
    fast = plain(model).fit(FRAME)
    for form, one in in_every_state(fast, tmp_path).items():
        for rows in (FRAME, FRAME[:1], FRAME[:0:-1]):
            found, wanted = one.transform(rows), model.transform(rows)
            assert type(found) is np.ndarray, form
            assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype), form
            assert found.strides == wanted.strides, form
            assert found.tobytes() == wanted.tobytes(), form


def test_frames_need_the_model() -> None:
    model = clone(_MEAN).fit(FRAME, _VALUES)
    dropped = plain(model).fit(FRAME).drop_estimator()
    frames = sklearn.config_context(transform_output="pandas")
    with frames, pytest.raises(SourceNeededError) as error:
        dropped.transform(FRAME)
    assert str(error.value) == (
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
