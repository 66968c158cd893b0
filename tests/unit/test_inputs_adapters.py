"""Adapters are found by registration, and are the same for live and stored models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier

from skforge import InvalidModelError
from skforge.rows import frames
from skforge.runtime.records import plain_in, plain_out
from skforge.sources.base import ADAPTERS, Source, adapter_of, register
from skforge.sources.find import source_of

X = np.random.default_rng(0).normal(size=(80, 3))
Y = (X[:, 0] > 0).astype(int)


def test_each_kind_has_one_adapter():
    adapter_of(object())  # asks all
    kinds = [adapter.kind for adapter in ADAPTERS if adapter.kind]
    assert sorted(kinds) == sorted({*kinds})
    assert {"forest", "trees", "xgboost_booster", "lightgbm_booster"} < {*kinds}


def test_an_adapter_of_somebody_else_is_found_by_its_registration():
    class Tree(DecisionTreeClassifier):
        pass

    class TreeSource(Source):
        classes = (f"{__name__}.{Tree.__qualname__}",)
        kind = "toy"

        def _rows(self, X, method):
            return X

    model = Tree().fit(X, Y)
    assert adapter_of(model) is adapter_of(DecisionTreeClassifier())
    register(TreeSource)
    try:
        assert type(source_of(model, None)) is TreeSource
        assert adapter_of(DecisionTreeClassifier()) is not TreeSource
    finally:
        ADAPTERS.remove(TreeSource)


def test_an_array_is_read_whatever_its_type_is_called():
    """NumPy 2.5 writes NDArray with ``type``."""
    named = SimpleNamespace(__value__=np.ndarray[Any, Any])
    read = plain_in(named, plain_out(np.arange(3)), "codes")
    assert read.tolist() == [0, 1, 2]


def test_arrays_of_texts_are_refused_before_they_fill_memory():
    array = {"dtype": "<U500000000", "values": ["a", "b"]}
    with pytest.raises(InvalidModelError):
        plain_in(np.ndarray, array, "columns")
    wanted = plain_in(np.ndarray, {"dtype": "<f8", "values": [1, 2]}, "columns")
    assert wanted.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("names", [["b", "a", "", "c"], [None], [None, "c"]])
@pytest.mark.parametrize("n", [1, 40, 256, 300])
def test_codes_of_few_rows_of_polars_are_those_of_many(n, names, monkeypatch):
    pl = pytest.importorskip("polars")
    texts = np.random.default_rng(0).choice(np.array(names, object), n).tolist()
    for dtype in (pl.Categorical, pl.Enum(["c", "new", "a", "b", ""])):
        column = pl.Series("x", texts, dtype)
        listed, codes = frames.codes_in(column)
        with monkeypatch.context() as patch:
            patch.setattr(frames, "_FEW_ROWS", 0)
            others, expected = frames.codes_in(column)
        assert listed == others
        assert codes.tolist() == expected.tolist()
        assert [None if i < 0 else listed[i] for i in codes] == texts
