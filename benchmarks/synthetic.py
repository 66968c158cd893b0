"""The random models of SilvanForge's evaluation.

100 to 1,000 trees over 8 to 1,024 features, with leaves from depth 2 to a maximum of
6, 7 or 8. Thresholds are drawn anew for each node: hardly any test occurs twice.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from training import Trained

#: Corners of the family, and its middle; ``synthetic-<trees>x<features>-<depth>``.
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


def random_model(name: str) -> Trained:
    """Return a model of the family as an XGBoost Booster, and uniform rows."""
    import xgboost

    sizes, depth = name.removeprefix("synthetic-").split("-")
    n_trees, n_features = map(int, sizes.split("x"))
    random = np.random.default_rng([n_trees, n_features, int(depth)])
    rows = random.random((4096, n_features), dtype=np.float32)
    # A Booster of the right shape lends its file's outer parts.
    X = np.zeros((2, n_features), np.float32)
    booster = xgboost.train({"base_score": 0.5}, xgboost.DMatrix(X, [0.0, 1.0]), 1)
    document = json.loads(booster.save_raw("json"))
    model = document["learner"]["gradient_booster"]["model"]
    trees = [_tree(i, n_features, int(depth), random) for i in range(n_trees)]
    model["trees"] = trees
    model["tree_info"] = [0] * n_trees
    model["iteration_indptr"] = list(range(n_trees + 1))
    model["gbtree_model_param"]["num_trees"] = str(n_trees)
    booster = xgboost.Booster(model_file=bytearray(json.dumps(document).encode()))
    return Trained("xgboost", booster, rows, "uniform")


def _tree(
    number: int, n_features: int, max_depth: int, random: np.random.Generator
) -> dict[str, Any]:
    """Grow a tree level by level, in the form of XGBoost's JSON."""
    left: list[int] = [-1]
    right: list[int] = [-1]
    parents: list[int] = [2147483647]
    level = [0]
    for depth in range(max_depth):
        following = []
        for node in level:
            if depth >= SHALLOWEST and random.random() < STOP:
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
    feature = np.where(is_leaf, 0, random.integers(0, n_features, n))
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
            "num_feature": str(n_features),
            "num_nodes": str(n),
            "size_leaf_vector": "1",
        },
    }
