"""A frontend as a third party would write it: stumps that vote with a steep logistic.

Only what CONTRIBUTING names is used; no file of skforge knows this library.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from skforge.exceptions import UnsupportedModelError
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.outputs import OutputSpec
from skforge.forest.predicates import deduplicate_predicates
from skforge.frontends.base import Frontend, class_names, register

SLOPE = 2.5


class ToyClassifier:
    """Of rows of float64: ``stumps`` are (feature, threshold, below, above)."""

    def __init__(self, stumps, n_features, labels=("no", "yes")):
        self.stumps, self.n_features, self.labels = stumps, n_features, labels

    def scores(self, X):
        """Sum the stumps in order; what is below the threshold, or NaN, is below."""
        found = []
        for row in X.tolist():
            total = 0.0
            for feature, threshold, below, above in self.stumps:
                total += above if row[feature] >= threshold else below
            found.append(total)
        return np.array(found)

    def predict_proba(self, X):
        second = [1.0 / (1.0 + math.exp(-SLOPE * x)) for x in self.scores(X)]
        return np.array([[1.0 - p, p] for p in second])

    def predict(self, X):
        return np.array(self.labels, object)[(self.predict_proba(X)[:, 1] > 0.5) * 1]

    def save(self, path):
        Path(path).write_text(json.dumps(vars(self)), encoding="utf-8")


def detect(model: object) -> bool:
    return f"{ToyClassifier.__module__}.ToyClassifier" in class_names(model)


def load(model: ToyClassifier, iteration_range: tuple[int, int] | None = None):
    if iteration_range is not None:
        raise UnsupportedModelError("ToyClassifier has no boosting rounds.")
    stumps = np.array(model.stumps, np.float64).reshape(-1, 4)
    n_trees = len(stumps)
    predicates, index = deduplicate_predicates(
        stumps[:, 0].astype(int), Comparison.LT, stumps[:, 1], Missing.NAN, True
    )
    root = 3 * np.arange(n_trees)

    def nodes(of_root, left, right):
        return np.stack([of_root, left, right], axis=1).reshape(-1)

    none = np.full(n_trees, -1)
    return Forest(
        **predicates,
        tree_offset=3 * np.arange(n_trees + 1),
        tree_output=np.zeros(n_trees, int),
        predicate=nodes(index, none, none),
        left=nodes(root + 1, none, none),
        right=nodes(root + 2, none, none),
        leaf=nodes(none, 2 * np.arange(n_trees), 2 * np.arange(n_trees) + 1),
        source_node=np.tile([0, 1, 2], n_trees),
        cover=np.zeros(0),
        leaf_value=stumps[:, 2:].reshape(-1, 1),
        n_features=model.n_features,
        base=np.zeros(1),
        outputs=OutputSpec(
            "logistic", SLOPE, probabilities="complement", labels="half"
        ),
        task="binary",
        source="toy",
        class_labels=tuple(model.labels),
    )


def load_bytes(data: bytes, iteration_range: tuple[int, int] | None = None):
    return load(ToyClassifier(**json.loads(data)), iteration_range)


FRONTEND = Frontend("toy", (".toy",), detect, load, load_bytes)
register(FRONTEND)
