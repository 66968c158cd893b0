"""What workers are given: only fitted models."""

from __future__ import annotations

import pytest
from sklearn.exceptions import NotFittedError
from sklearn.tree import DecisionTreeClassifier

from skforge import load_forest
from skforge.distributed import pack
from skforge.exceptions import InvalidInputError
from tests.plain import plain
from tests.refusals import error_of


def test_what_is_no_fitted_model_is_refused():
    model = DecisionTreeClassifier(max_depth=2).fit([[0.0], [1.0]], [0, 1])
    assert error_of(InvalidInputError, pack, load_forest(model)) == (
        "model must be a fitted CompiledForest, or the path of a .skforge file that "
        "holds one. Got Forest instead."
    )
    with pytest.raises(NotFittedError):
        pack(plain(model))
