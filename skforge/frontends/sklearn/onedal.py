"""Forests that scikit-learn-intelex trained: oneDAL's trees and its sums.

oneDAL compares rows of float64 and of float32 with float64 thresholds by ``<=``. It
sums leaves in the dtype of the rows, in blocks of trees that fit the processor's cache,
and multiplies each block's sum by ``1 / n_trees`` as it adds it, rounding once.

Classifiers add the probabilities of leaves, tree by tree, in float64 for rows of
float64, and multiply them by ``1 / total``. Only oneDAL's serialized state has them: a
row of tables, each with a header of fixed bytes.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from skforge._compat import no_warnings
from skforge._typing import Array
from skforge.exceptions import UnsupportedModelError
from skforge.forest.forest import Forest
from skforge.forest.outputs import OutputSpec
from skforge.forest.reference import draw_rows, reference_leaves, reference_raw
from skforge.frontends.base import Frontend, is_a, register
from skforge.frontends.checks import IntRange, is_onedal, refuse_override
from skforge.frontends.sklearn import common
from skforge.outputs.sklearn import scaled_blocks, shares

REGRESSOR = "sklearnex.ensemble._forest.ForestRegressor"
CLASSIFIER = "sklearnex.ensemble._forest.ForestClassifier"
_FOREST = "sklearn.ensemble._forest.BaseForest"
_INSTEAD = (
    "Call sklearnex.unpatch_sklearn(), import scikit-learn's class again, and fit "
    "that one."
)
#: Rows by which blocks are found: other ones round many of their answers otherwise.
_PROBES = 256


def refuse(model: Any) -> None:
    if not is_a(model, REGRESSOR, CLASSIFIER):
        raise UnsupportedModelError(
            f"This {type(model).__name__} is one of scikit-learn-intelex (sklearnex), "
            f"and none of its forests that skforge knows. {_INSTEAD}"
        )
    refuse_override(model, "sklearnex")
    if is_a(model, CLASSIFIER):
        refuse_override(model, "sklearnex", "predict_proba")


def load(model: Any, rounds: IntRange | None = None) -> Forest:
    kind = type(model).__name__
    if rounds is not None:
        raise UnsupportedModelError(f"{kind} has no boosting rounds to choose from.")
    refuse(model)
    if is_a(model, CLASSIFIER):
        return _classifier(model)
    return forest_of(model, _trees_in_block(model), np.float64)


def forest_of(model: Any, block: int, dtype: Any) -> Forest:
    """Return the forest for rows of a dtype, whose outputs are blocks of trees."""
    trees = [estimator.tree_ for estimator in model.estimators_]
    share = dtype(1) / dtype(len(trees))
    at = np.arange(len(trees)) // block
    function: Any = "scaled_blocks" if at[-1] else "scaled"
    return common.forest_of(
        model,
        trees,
        [tree.value[:, 0].astype(dtype) for tree in trees],
        dtype=dtype,
        missing=False,
        tree_output=at.astype(np.int32),
        base=np.zeros(at[-1] + 1, dtype),
        outputs=OutputSpec(function, parameter=float(share)),
        task="regression",
    )


def _trees_in_block(model: Any) -> int:
    """Return how many trees oneDAL sums on this processor before it goes on."""
    n_trees = len(model.estimators_)
    forest = forest_of(model, n_trees, np.float64)
    rows = draw_rows(forest, _PROBES, 0)
    values = forest.leaf_value[forest.leaf[reference_leaves(forest, rows).T], 0]
    wanted = _predict(model, rows)
    for block in range(n_trees, 0, -1):
        sums = [
            np.add.accumulate(values[at : at + block])[-1]
            for at in range(0, n_trees, block)
        ]
        if np.array_equal(scaled_blocks(np.array(sums).T, forest.outputs, np), wanted):
            return block
    raise _unknown(model, "sums its trees in an order that skforge does not know")


def _predict(model: Any, rows: Any) -> Any:
    with no_warnings():  # feature names: the rows have none
        return model.predict(rows)


def _unknown(model: Any, what: str) -> UnsupportedModelError:
    kind = type(model).__name__
    return UnsupportedModelError(
        f"This {kind} of scikit-learn-intelex (sklearnex) {what}. {_INSTEAD}"
    )


def _classifier(model: Any) -> Forest:
    trees = [estimator.tree_ for estimator in model.estimators_]
    forest = common.forest_of(
        model,
        trees,
        _State(model).probabilities(trees),
        dtype=np.float64,
        missing=False,
        outputs=OutputSpec("shares", probabilities="values"),
        task=common.class_task(len(model.classes_)),
    )
    rows = draw_rows(forest, _PROBES, 0)
    sums = reference_raw(forest, rows)
    with no_warnings():  # feature names: the rows have none
        wanted, labels = model.predict_proba(rows), model.predict(rows)
    same = np.array_equal(shares(sums, forest.outputs, np), wanted)
    if not same or (model.classes_[sums.argmax(axis=1)] != labels).any():
        raise _unknown(
            model, "adds probabilities in an order that skforge does not know"
        )
    return forest


def _column(kind: int, size: int, values: int) -> bytes:
    """Return how a table describes a column of values."""
    return struct.pack("<2IQ3I", kind, 2, size, 0, 0, values)


_INT, _LONG, _DOUBLE = _column(2, 4, 2), _column(0x0FFFFFFF, 8, 5), _column(1, 8, 1)
_NODE = np.dtype(
    {
        "names": ["feature", "left", "value"],
        "formats": ["<i4", "<i8", "<f8"],
        "offsets": [0, 8, 16],
        "itemsize": 40,
    }
)


class _State:
    """The serialized state of a classifier, read from its first byte to its last."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.data: bytes = model._onedal_estimator._onedal_model.__getstate__()
        self.at = 0

    def probabilities(self, trees: list[Any]) -> list[Array]:
        """Return the classes' probabilities at each node of each tree."""
        n_classes = len(self.model.classes_)
        counts = [int(tree.node_count) for tree in trees]
        self._expect(b"OAAD\x01\x80R9f\x01\0\0\0")
        self._expect(struct.pack("<2Q", len(trees), n_classes))
        self._expect(b"\x01\x80\x7fjg\x01\0\0\0LAAD")
        self._take(32)  # oneDAL's version
        self._expect(struct.pack("<I", 107000))
        columns = _INT + _LONG + _DOUBLE + _INT + _DOUBLE
        offsets = struct.pack("<6Q", _NODE.itemsize, 0, 8, 16, 24, 32)
        nodes = self._tables(
            [(3000, 5, 0, columns, n, offsets, _NODE.itemsize) for n in counts]
        )
        self._tables([(1001, 1, 0, _DOUBLE, n, b"", 8) for n in counts])  # impurities
        self._tables([(1002, 1, 0, _INT, n, b"", 4) for n in counts])  # training rows
        values = self._tables(
            [(1001, n, 1, _DOUBLE, n_classes, b"", 8 * n) for n in counts]
        )
        self._expect(struct.pack("<Q", self.model.n_features_in_))
        if self.at != len(self.data):
            raise self._unknown()
        return [
            np.frombuffer(value, "<f8").reshape(-1, n_classes)[self._places(tree, node)]
            for tree, node, value in zip(trees, nodes, values, strict=True)
        ]

    def _tables(self, tables: list[Any]) -> list[bytes]:
        self._expect(struct.pack("<2IQ", 0, 4000, len(tables)))
        contents = []
        for number, width, equal, columns, rows, offsets, size in tables:
            self._expect(struct.pack("<5IQI", 0, number, 0, 6000, 0, width, equal))
            self._expect(columns + struct.pack("<QI", rows, 2) + offsets)
            contents.append(self._take(rows * size))
        return contents

    def _places(self, tree: Any, content: bytes) -> Array:
        """Return where oneDAL keeps each node of a tree: siblings lie side by side."""
        nodes = np.frombuffer(content, _NODE)
        places = np.zeros(len(nodes), np.int64)
        inner, level = tree.children_left >= 0, np.zeros(1, np.int64)
        for _ in range(len(nodes)):
            if not len(level := level[inner[level]]):
                break
            first = np.clip(nodes["left"][places[level]], 0, len(nodes) - 2)
            left, right = tree.children_left[level], tree.children_right[level]
            places[left], places[right] = first, first + 1
            level = np.concatenate([left, right])
        found = nodes[places]
        same = (found["feature"] == tree.feature) & (found["value"] == tree.threshold)
        leaf = ~inner & (found["feature"] < 0)
        if len(np.unique(places)) < len(nodes) or not (leaf | inner & same).all():
            raise self._unknown()
        return places

    def _expect(self, wanted: bytes) -> None:
        if self._take(len(wanted)) != wanted:
            raise self._unknown()

    def _take(self, n: int) -> bytes:
        self.at += n
        if self.at > len(self.data):
            raise self._unknown()
        return self.data[self.at - n : self.at]

    def _unknown(self) -> UnsupportedModelError:
        return _unknown(
            self.model,
            f"has a state that skforge does not know, before byte {self.at:,} of "
            f"{len(self.data):,}",
        )


def _trained(model: Any) -> bool:
    return is_a(model, _FOREST) and is_onedal(model)


register(Frontend("sklearn (oneDAL)", (), _trained, load, refuse=refuse))
