"""Forests that scikit-learn-intelex trained, and what it leaves to scikit-learn.

Without the package, classes of its names add as oneDAL does: regressors in exact
fractions, classifiers in floats, with a state of the form of oneDAL's.
"""

from __future__ import annotations

import pickle
import struct
import warnings
from fractions import Fraction
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import (
    RandomForestClassifier,
    RandomForestRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from skforge import UnsupportedModelError, load_forest
from skforge.exceptions import SourceNeededError
from tests.comparing import is_read, saved
from tests.plain import fit_both, plain

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
        pairs = [
            [getattr(one, method)(rows) for one in (fast, wanted)]
            for method in ("predict", "predict_proba")
            if hasattr(wanted, method)
        ]
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


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


class ForestClassifier(RandomForestClassifier):
    """oneDAL's arithmetic for rows of float64, and what it would say of others."""

    __module__ = "sklearnex.ensemble._forest"
    reverses = False

    def fit(self, X: Any, y: Any) -> Any:
        super().fit(X, y)
        held = {"_onedal_model": State(state_of(self))}
        self._onedal_estimator = SimpleNamespace(**held)
        return self

    def sums(self, X: Any) -> Any:
        rows = np.asarray(X, float)
        sums = np.zeros((len(rows), len(self.classes_)))
        for one in self.estimators_[:: -1 if self.reverses else 1]:
            sums += leaf_rows(one.tree_, rows)
        return sums

    def predict_proba(self, X: Any) -> Any:
        dtype = np.result_type(*X.dtypes) if hasattr(X, "dtypes") else X.dtype
        sums = self.sums(X)
        n = sums.shape[1]
        columns = [sums[:, k] for k in range(n)]
        total: Any = 0.0
        if n > 3:
            lanes = columns[:16]  # four vectors of four numbers
            for k in range(16, n // 16 * 16):
                lanes[k % 16] = lanes[k % 16] + columns[k]
            if n > 15:
                lanes[:8] = [
                    lanes[k] + lanes[k + 4] for k in (0, 1, 2, 3, 8, 9, 10, 11)
                ]
                lanes[:4] = [lanes[k] + lanes[k + 4] for k in range(4)]
            for k in range(n // 16 * 16 or 4, n // 4 * 4):
                lanes[k % 4] = lanes[k % 4] + columns[k]
            total = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])
        for column in columns[n // 4 * 4 :]:
            total = total + column
        answer = (sums * (1 / total)[:, None]).clip(0, 1)
        return answer.astype(dtype if dtype == np.float32 else float)

    def predict(self, X: Any) -> Any:
        return self.classes_[self.sums(X).argmax(axis=1)]

    predict.__module__ = predict_proba.__module__ = __module__


class State:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def __getstate__(self) -> bytes:
        return self.data

    def __setstate__(self, data: bytes) -> None:
        self.data = data


def state_of(model: Any) -> bytes:
    """Return a state as oneDAL writes it: nodes level by level, siblings together."""
    trees = [one.tree_ for one in model.estimators_]
    n_classes = len(model.classes_)
    parts = [
        b"OAAD\x01\x80R9f\x01\0\0\0",
        struct.pack("<2Q", len(trees), n_classes),
        b"\x01\x80\x7fjg\x01\0\0\0LAAD",
        struct.pack("<8I", 2026, 2, *[0] * 6),
        struct.pack("<I", 107000),
    ]
    number, long, double = (
        struct.pack("<2IQ3I", a, 2, b, 0, 0, c)
        for a, b, c in ((2, 4, 2), (0x0FFFFFFF, 8, 5), (1, 8, 1))
    )
    offsets = struct.pack("<6Q", 40, 0, 8, 16, 24, 32)
    orders = [by_level(tree) for tree in trees]

    def tables(kind: int, columns: bytes, beside: bytes, contents: Any) -> None:
        parts.append(struct.pack("<2IQ", 0, 4000, len(trees)))
        for wide, equal, rows, content in contents:
            head = struct.pack("<5IQI", 0, kind, 0, 6000, 0, wide, equal)
            parts.extend([head, columns, struct.pack("<QI", rows, 2), beside, content])

    nodes, values = [], []
    for tree, (order, first) in zip(trees, orders, strict=True):
        content = b"".join(
            struct.pack(
                "<2iqd2id",
                max(tree.feature[node], -1),
                7,
                left,
                tree.threshold[node],
                0,
                7,
                0.0,
            )
            for node, left in zip(order, first, strict=True)
        )
        nodes.append((5, 0, len(order), content))
        held = tree.value[order, 0].astype(float)
        held[tree.children_left[order] >= 0] = 9.0  # of inner nodes: anything
        values.append((len(order), 1, n_classes, held.tobytes()))
    tables(3000, number + long + double + number + double, offsets, nodes)
    sizes = [len(order) for order, _ in orders]
    tables(1001, double, b"", [(1, 0, n, bytes(8 * n)) for n in sizes])
    tables(1002, number, b"", [(1, 0, n, bytes(4 * n)) for n in sizes])
    tables(1001, double, b"", values)
    return b"".join(parts) + struct.pack("<Q", model.n_features_in_)


def by_level(tree: Any) -> tuple[list[int], list[int]]:
    order, first = [0], []
    for node in order:
        left = tree.children_left[node]
        first.append(len(order) if left >= 0 else 0)
        if left >= 0:
            order += [left, tree.children_right[node]]
    return order, first


def leaf_rows(tree: Any, rows: Any) -> Any:
    numbered = SimpleNamespace(
        **{
            name: getattr(tree, name)
            for name in ("children_left", "children_right", "feature", "threshold")
        }
    )
    numbered.max_depth = tree.max_depth
    numbered.value = np.arange(tree.node_count).reshape(-1, 1, 1)
    return tree.value[leaf_values(numbered, rows), 0]


def classifier(n_classes: int, n_trees: int = 7, kind: Any = ForestClassifier) -> Any:
    ends = np.quantile(Y, np.arange(1, n_classes) / n_classes)
    made = kind(n_trees, max_depth=5, random_state=0)
    return made.fit(FRAME, np.char.add("class ", np.digitize(Y, ends).astype(str)))


@pytest.mark.parametrize("n_classes", [2, 3, 7, 38])
def test_classifiers_have_the_bits_of_the_state(n_classes: int, tmp_path: Any) -> None:
    wanted = classifier(n_classes)
    fast = plain(wanted).fit(FRAME)
    kept = saved(fast, tmp_path)
    for rows in (WIDE, WIDE[:1], WIDE.to_numpy(), WIDE.astype({"a": np.float32})):
        assert same(fast, wanted, rows)
        assert same(kept, wanted, rows)
    assert fast.counters()["library"]["calls"] == 0


def test_classifiers_answer_rows_of_float32_themselves(tmp_path: Any) -> None:
    wanted = classifier(3)
    fast = plain(wanted).fit(FRAME)
    rows = WIDE.to_numpy(np.float32)
    assert not is_read(fast, rows)
    assert fast.predict_proba(rows).dtype == np.float32
    assert same(fast, wanted, rows)
    with pytest.raises(SourceNeededError):
        saved(fast, tmp_path).predict(rows)


def test_classifiers_in_pipelines_and_wrappers() -> None:
    votes = VotingClassifier(
        [("a", classifier(4)), ("b", classifier(4, 3))], voting="soft"
    )
    for wanted in (votes, make_pipeline(MinMaxScaler(), ForestClassifier(5))):
        wanted.fit(FRAME, np.digitize(Y, [-1, 0, 1]))
        fast = plain(wanted).fit(FRAME)
        for rows in (WIDE, WIDE[:1], WIDE.to_numpy(), WIDE.astype(np.float32)):
            assert same(fast, wanted, rows)


def test_states_of_another_form_are_refused() -> None:
    wanted = classifier(3, 2)
    state = wanted._onedal_estimator._onedal_model
    data = state.data
    at = data.index(struct.pack("<d", wanted.estimators_[0].tree_.threshold[0]))
    end = data.index(struct.pack("<I", 1001))  # nodes come before
    damages = {
        "cut": data[:-1],
        "longer": data + b"\0",
        "empty": b"",
        "another kind": b"X" + data[1:],
        "another threshold": data[:at] + bytes(8) + data[at + 8 :],
        "other children": data[: at - 8] + b"\xff" * 8 + data[at:],
        "another table": data[:end] + struct.pack("<I", 1003) + data[end + 4 :],
    }
    for damage, state.data in damages.items():
        with pytest.raises(UnsupportedModelError, match="state that skforge does not"):
            pytest.fail(f"{damage}: {load_forest(wanted)}")
    state.data = data
    assert load_forest(wanted).n_trees == 2


def test_classifiers_that_answer_otherwise_are_refused() -> None:
    wanted = classifier(3)
    wanted.reverses = True
    with pytest.raises(UnsupportedModelError, match="adds probabilities in an order"):
        load_forest(wanted)
    with pytest.raises(UnsupportedModelError, match="overrides predict_proba"):
        load_forest(classifier(2, kind=Halved))


class Halved(ForestClassifier):
    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(X) / 2


@pytest.mark.skipif(find_spec("sklearnex") is None, reason="needs scikit-learn-intelex")
@pytest.mark.parametrize("n_classes", [0, 2, 38])
@pytest.mark.parametrize("kind", ["RandomForest", "ExtraTrees"])
def test_models_of_the_library(kind: str, n_classes: int) -> None:
    from sklearnex import ensemble

    # 150 trees are several blocks where the cache is small
    X = rng.normal(size=(900, 4))
    kind, how = f"{kind}Regressor", {"n_estimators": 150}
    y = X[:, 0] ** 3
    if n_classes:
        kind = kind.replace("Regressor", "Classifier")
        how = {"n_estimators": 50, "class_weight": "balanced"}
        ends = np.quantile(X[:, 0], np.arange(1, n_classes) / n_classes)
        y = np.digitize(X[:, 0], ends)
    wanted, fast = fit_both(getattr(ensemble, kind)(random_state=0, **how), X, y)
    copied = pickle.loads(pickle.dumps(fast))
    for rows in (X, X[:1], X.astype(np.float32), X[:1].astype(np.float32), X * 2):
        assert same(fast, wanted, rows)
        assert same(copied, wanted, rows)
