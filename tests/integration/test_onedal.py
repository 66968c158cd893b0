"""Regressors that scikit-learn-intelex trained, and what it leaves to scikit-learn.

Without the package, classes of its names add as oneDAL does, in exact fractions.
"""

from __future__ import annotations

import pickle
import warnings
from fractions import Fraction
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestRegressor, VotingRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from skforge import UnsupportedModelError, load_forest
from skforge.exceptions import SourceNeededError
from tests.comparing import is_read, saved
from tests.plain import plain

rng = np.random.default_rng(0)
FRAME = pd.DataFrame(rng.normal(size=(300, 4)), columns=[*"abcd"])
Y = FRAME.a.to_numpy() + rng.normal(size=len(FRAME))


class ForestRegressor(RandomForestRegressor):
    __module__ = "sklearnex.ensemble._forest"
    block = 1000

    def fit(self, X: Any, y: Any) -> Any:
        super().fit(X, y)
        if self.criterion == "squared_error":
            self._onedal_estimator = SimpleNamespace(_onedal_model=object())
        return self

    def predict(self, X: Any) -> Any:
        if not hasattr(self, "_onedal_estimator"):
            return super().predict(X)
        narrow = np.result_type(*X.dtypes) if hasattr(X, "dtypes") else X.dtype
        dtype = np.dtype(np.float32 if narrow == np.float32 else np.float64)
        rows, n = np.asarray(X, dtype), len(self.estimators_)
        total, share = [Fraction(0)] * len(rows), dtype.type(1) / dtype.type(n)
        for at in range(0, n, self.block):
            sums = np.zeros(len(rows), dtype)
            for one in self.estimators_[at : at + self.block]:
                sums += leaf_values(one.tree_, rows).astype(dtype)
            exact = [
                Fraction(float(x)) * Fraction(float(share)) + t
                for x, t in zip(sums, total, strict=True)
            ]
            total = [Fraction(float(rounded(x, dtype))) for x in exact]
        return np.array([float(x) for x in total], dtype)

    predict.__module__ = __module__


def rounded(exact: Fraction, dtype: Any) -> Any:
    near = dtype.type(float(exact))
    around = [near, *(np.nextafter(near, dtype.type(end)) for end in (-1e9, 1e9))]
    return min(around, key=lambda x: abs(Fraction(float(x)) - exact))


def leaf_values(tree: Any, rows: Any) -> Any:
    node = np.zeros(len(rows), int)
    for _ in range(tree.max_depth):
        inner = tree.children_left[node] >= 0
        value = rows[np.arange(len(rows)), np.maximum(tree.feature[node], 0)]
        left = value <= tree.threshold[node]
        child = np.where(left, tree.children_left[node], tree.children_right[node])
        node = np.where(inner, child, node)
    return tree.value[node, 0, 0]


def model(n_trees: int = 10, block: int = 1000, **how: Any) -> Any:
    made = ForestRegressor(n_trees, max_depth=6, random_state=0, **how)
    made.block = block
    return made.fit(FRAME, Y)


WIDE = FRAME[:60]
FORMS = {
    "frame": WIDE,
    "one row": WIDE[:1],
    "float32": WIDE.astype(np.float32),
    "one row of float32": WIDE[:1].astype(np.float32),
    "mixed": WIDE.astype({"a": np.float32}),
    "array": WIDE.to_numpy(),
    "array of float32": WIDE.to_numpy(np.float32),
}


def same(fast: Any, wanted: Any, rows: Any) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # arrays have no feature names
        ours, theirs = fast.predict(rows), wanted.predict(rows)
    return bool(ours.dtype == theirs.dtype and (ours == theirs).all())


@pytest.mark.parametrize("block", [1000, 4, 1])
def test_sums_of_blocks_have_the_bits_of_both_dtypes(block: int, tmp_path: Any) -> None:
    wanted = model(block=block)
    fast = plain(wanted).fit(FRAME)
    assert is_read(fast, WIDE)
    assert fast.forest_.n_outputs == max(1, -(-10 // block))
    kept = saved(fast, tmp_path)
    for name, rows in FORMS.items():
        assert same(fast, wanted, rows), name
        assert same(kept, wanted, rows), name
    assert fast.counters()["library"]["calls"] == 0


def test_leaf_numbers_are_those_of_scikit_learn(tmp_path: Any) -> None:
    wanted = model()
    fast = plain(wanted).fit(FRAME)
    assert np.array_equal(fast.apply(WIDE), wanted.apply(WIDE))
    with pytest.raises(SourceNeededError):
        saved(fast, tmp_path).apply(WIDE)


def test_pipelines_and_wrappers_keep_the_dtype_of_rows() -> None:
    votes = VotingRegressor([("a", model()), ("b", model(7))])
    for wanted in (votes, make_pipeline(MinMaxScaler(), votes)):
        wanted.fit(FRAME, Y)
        fast = plain(wanted).fit(FRAME)
        for name, rows in FORMS.items():
            assert same(fast, wanted, rows), name


def test_what_scikit_learn_trained_is_read_as_its_own() -> None:
    wanted = ForestRegressor(5, criterion="absolute_error", max_depth=3)
    wanted.fit(FRAME, Y)
    fast = plain(wanted).fit(FRAME)
    assert load_forest(wanted).input_dtype == np.float32
    assert same(fast, wanted, WIDE)


def test_sums_in_another_order_are_refused() -> None:
    text = "sums its trees in an order that skforge does not know"
    with pytest.raises(UnsupportedModelError, match=text):
        load_forest(Reversed.of(model()))
    with pytest.raises(UnsupportedModelError, match="overrides predict"):
        load_forest(Doubled(3).fit(FRAME, Y))


class Reversed(ForestRegressor):
    __module__ = "sklearnex.ensemble._forest"

    @classmethod
    def of(cls, other: Any) -> Any:
        made = cls(10)
        vars(made).update(vars(other))
        return made

    def predict(self, X: Any) -> Any:
        trees = self.estimators_
        self.estimators_ = trees[::-1]
        try:
            return super().predict(X)
        finally:
            self.estimators_ = trees

    predict.__module__ = __module__


class Doubled(ForestRegressor):
    def predict(self, X: Any) -> Any:
        return 2 * super().predict(X)


@pytest.mark.skipif(find_spec("sklearnex") is None, reason="needs scikit-learn-intelex")
@pytest.mark.parametrize("kind", ["RandomForestRegressor", "ExtraTreesRegressor"])
def test_models_of_the_library(kind: str) -> None:
    from sklearnex import ensemble

    n = 900  # whose 150 trees are several blocks where the cache is small
    X = rng.normal(size=(n, 4))
    wanted = getattr(ensemble, kind)(150, random_state=0).fit(X, X[:, 0] ** 3)
    fast = plain(wanted).fit(X)
    copied = pickle.loads(pickle.dumps(fast))
    for rows in (X, X[:1], X.astype(np.float32), X[:1].astype(np.float32), X * 2):
        assert same(fast, wanted, rows)
        assert same(copied, wanted, rows)
