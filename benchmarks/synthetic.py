"""Forests of a given shape: SilvanForge's random models, and stand-ins.

SilvanForge §9 has 700 random models: 100 to 1,000 trees over 8 to 1,024 features
(powers of two), with leaves from depth 2 to a maximum of 6, 7 or 8. Thresholds are
drawn anew for each node: hardly any test occurs twice. Trees are written directly, in
the form of XGBoost's JSON, so that XGBoost loads and predicts them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count, islice, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from training import Trained

#: Some of the random models: corners of the family, and its middle. Any name
#: ``synthetic-<trees>x<features>-<depth>`` is a model, and so is one with ``-<copy>``;
#: ``complete-<trees>x<features>-<depth>`` has all leaves at that depth.
FAMILY = (
    "synthetic-100x8-6",
    "synthetic-100x1024-8",
    "synthetic-300x64-7",
    "synthetic-500x256-8",
    "synthetic-1000x8-8",
    "synthetic-1000x1024-6",
)
SHALLOWEST = 2
STOP = 0.2  # the chance of a node below that depth to be a leaf
N_RANDOM = 700


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a forest: its trees have leaves from depth 2 to ``depth``.

    All leaves are at ``depth`` if ``stop`` is 0.
    """

    trees: int
    features: int
    depth: int
    classes: int = 1
    objective: str = "reg:squarederror"
    stop: float = STOP


#: Stand-ins for those of SilvanForge's eight real models that are not public, by name.
#: Shapes are those of Treebeard's table of benchmarks (MICRO 2022, §6), which counts
#: the nodes of a path and so has depths of 7 and 9, and of SilvanForge §9 (letters).
#: Only the shape is theirs: tests, leaves and the form of the trees are random.
STAND_INS = {
    "stand-in-abalone": Shape(1000, 8, 6),
    "stand-in-airline-ohe": Shape(1000, 692, 8, objective="binary:logistic"),
    "stand-in-covtype": Shape(800, 54, 8, 8, "multi:softprob"),
    "stand-in-higgs": Shape(100, 28, 8, objective="binary:logistic"),
    "stand-in-letters": Shape(26_000, 16, 6, 26, "multi:softprob"),
}


def random_models(number: int = N_RANDOM) -> list[str]:
    """Return the names of the random models of SilvanForge's Figures 8 and 9.

    The paper says which trees, features and depths occur, but not how often: here every
    combination once, then every one again as another copy, until there are enough.
    """
    family = (
        f"synthetic-{trees}x{features}-{depth}" + (f"-{copy}" if copy else "")
        for copy in count()
        for depth, features, trees in product(
            (6, 7, 8), (8 << i for i in range(8)), range(100, 1001, 100)
        )
    )
    return list(islice(family, number))


def random_model(name: str) -> Trained:
    """Return a random model or a stand-in as an XGBoost Booster, and uniform rows."""
    import xgboost

    text, rows = random_file(name)
    booster = xgboost.Booster(model_file=bytearray(text.encode()))
    return Trained("xgboost", booster, rows, "uniform")


def random_file(name: str) -> tuple[str, NDArray[np.float32]]:
    """Return a random model or a stand-in as XGBoost's JSON, and uniform rows."""
    shape, seed = shape_of(name)
    random = np.random.default_rng(seed)
    rows = random.random((4096, shape.features), dtype=np.float32)
    n, classes = shape.trees, shape.classes
    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(n)},
        "iteration_indptr": list(range(0, n + 1, classes)),
        "tree_info": [i % classes for i in range(n)],
        "trees": [_tree(i, shape, random) for i in range(n)],
    }
    learner = {
        "attributes": {},
        "feature_names": [],
        "feature_types": [],
        "gradient_booster": {"model": model, "name": "gbtree"},
        "learner_model_param": {
            "base_score": "5E-1",
            "boost_from_average": "0",
            "num_class": str(classes if classes > 1 else 0),
            "num_feature": str(shape.features),
            "num_target": "1",
        },
        "objective": {
            "name": shape.objective,
            "reg_loss_param": {"scale_pos_weight": "1"},
            "softmax_multiclass_param": {"num_class": str(classes)},
        },
    }
    # A version before 3.0 has one base score for all classes.
    return json.dumps({"learner": learner, "version": [2, 1, 4]}), rows


def shape_of(name: str) -> tuple[Shape, list[int]]:
    """Return the shape that a name stands for, and the numbers it is drawn from."""
    if name in STAND_INS:
        shape = STAND_INS[name]
        return shape, [shape.trees, shape.features, shape.depth]
    family, sizes, *numbers = name.split("-")
    trees, features = map(int, sizes.split("x"))
    depth, *copy = map(int, numbers)
    stop = STOP if family == "synthetic" else 0.0
    return Shape(trees, features, depth, stop=stop), [trees, features, depth, *copy]


def _tree(number: int, shape: Shape, random: np.random.Generator) -> dict[str, Any]:
    left: list[int] = [-1]
    right: list[int] = [-1]
    parents: list[int] = [2147483647]
    level = [0]
    for depth in range(shape.depth):
        following = []
        for node in level:
            if depth >= SHALLOWEST and random.random() < shape.stop:
                continue
            first = len(left)
            left[node], right[node] = first, first + 1
            left += [-1, -1]
            right += [-1, -1]
            parents += [node, node]
            following += [first, first + 1]
        level = following
    n = len(left)
    is_leaf = np.array(left) < 0
    threshold = random.random(n, dtype=np.float32)
    value = random.standard_normal(n).astype(np.float32) / 10
    feature = np.where(is_leaf, 0, random.integers(0, shape.features, n))
    return {
        "base_weights": [0.0] * n,
        "categories": [],
        "categories_nodes": [],
        "categories_segments": [],
        "categories_sizes": [],
        "default_left": [0] * n,
        "id": number,
        "left_children": left,
        "loss_changes": [0.0] * n,
        "parents": parents,
        "right_children": right,
        "split_conditions": np.where(is_leaf, value, threshold).tolist(),
        "split_indices": feature.tolist(),
        "split_type": [0] * n,
        "sum_hessian": [1.0] * n,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(shape.features),
            "num_nodes": str(n),
            "size_leaf_vector": "1",
        },
    }
