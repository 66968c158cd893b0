"""What workers are given: only fitted models."""

from __future__ import annotations

import pytest
from sklearn.exceptions import NotFittedError
from sklearn.tree import DecisionTreeClassifier

from skforge import load_forest
from skforge.distributed import dask, pack
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


class _NoGraph:
    __module__ = "dask.array.core"


class _NoDask:
    dask = ()


@pytest.mark.parametrize("rows", [[[1.0]], _NoGraph(), _NoDask()])
def test_only_lazy_rows_of_dask_are_taken(rows):
    kind = type(rows)
    assert error_of(InvalidInputError, dask.predict, None, rows) == (
        "X must be a Dask array or data frame. Got "
        f"{kind.__module__}.{kind.__name__} instead; for data in memory, call "
        "model.predict(X)."
    )
