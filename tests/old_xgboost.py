"""Writes XGBoost's documents in its old binary format, as 0.90 or 3.0 would.

The structures are XGBoost's: of a learner, a forest and a tree, with their spare
numbers, and of nodes and their statistics. Files of eight releases that it has written
again are those that it had read (``test_frontend_xgboost_old.py``).
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

#: Objectives whose base score is a logit, or a logarithm, in files of 0.90.
_LOGITS = ("binary:logistic", "reg:logistic")
_LOGARITHMS = ("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox")


def old_bytes(document: Any, release: tuple[int, int] = (3, 0)) -> bytes | None:
    """Return the bytes of a document; None if the format has no place for it."""
    learner = document["learner"]
    booster, param = learner["gradient_booster"], learner["learner_model_param"]
    inner = booster if "model" in booster else booster["gbtree"]
    model = inner["model"]
    weights = model.get("weight_drop", booster.get("weight_drop"))
    base = np.atleast_1d(json.loads(str(param["base_score"])))
    if len({*base.tolist()}) > 1 or not _is_plain(model["trees"]):
        return None
    objective = learner["objective"]
    name, new = objective["name"], release >= (1, 0)
    score = np.float32(base[0])
    if not new and name in _LOGITS:
        score = -np.log(1 / score - 1)
    elif not new and name in _LOGARITHMS:
        score = np.log(score)
    attributes = {key.encode(): value for key, value in learner["attributes"].items()}
    if new:
        attributes[b"objective"] = json.dumps(objective)
    targets = int(param.get("num_target", 1)) if new else 0
    counts = int(param["num_feature"]), int(param.get("num_class", 0))
    head = struct.pack("<fIiii", score, *counts, bool(attributes), 0)
    estimates = int(param.get("boost_from_average", 0)) if new else 0
    head += struct.pack("<IIIi", *(release if new else (0, 0)), targets, estimates)
    parts = [b"binf" if new else b"", head.ljust(136, b"\0"), _text(name)]
    parts.append(_text("gbtree" if weights is None else "dart"))
    trees, info = model["trees"], np.asarray(model["tree_info"], "<i4")
    parallel = int(model["gbtree_model_param"]["num_parallel_tree"]) if new else 1
    parts.append(struct.pack("<ii", len(trees), parallel).ljust(160, b"\0"))
    parts += [_tree(tree, counts[0], int(release >= (2, 0))) for tree in trees]
    parts.append(info.tobytes())
    if weights is not None and len(trees):
        parts += [struct.pack("<Q", len(trees)), np.asarray(weights, "<f4").tobytes()]
    if attributes:
        parts.append(struct.pack("<Q", len(attributes)))
        for key, value in sorted(attributes.items()):
            parts += [_text(key.decode()), _text(value)]
    return b"".join(parts)


def _is_plain(trees: list[Any]) -> bool:
    """Tell whether no tree has categories or vectors in its leaves."""
    wide = (int(tree["tree_param"]["size_leaf_vector"]) > 1 for tree in trees)
    return not any(wide) and not any(any(tree["split_type"]) for tree in trees)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _tree(tree: Any, n_features: int, leaf_size: int) -> bytes:
    param = tree["tree_param"]
    n = len(tree["left_children"])
    numbers = 1, n, int(param["num_deleted"]), 0, n_features, leaf_size
    parents = np.asarray(tree["parents"], "<i8")
    left = np.asarray(tree["left_children"], "<i4")
    of_left = np.isin(np.arange(n), left[left >= 0])
    root = parents == 2**31 - 1
    nodes = np.zeros(n, "<i4,<i4,<i4,<u4,<f4")
    nodes["f0"] = np.where(root, -1, parents - (of_left.astype("i8") << 31))
    nodes["f1"], nodes["f2"] = left, tree["right_children"]
    goes_left = np.asarray(tree["default_left"], "<u4") << 31
    nodes["f3"] = np.asarray(tree["split_indices"], "<u4") | goes_left
    nodes["f4"] = tree["split_conditions"]
    known = np.zeros(n, "<f4,<f4,<f4,<i4")
    known["f0"], known["f1"] = tree["loss_changes"], tree["sum_hessian"]
    known["f2"] = tree["base_weights"]
    head = struct.pack("<6i", *numbers).ljust(148, b"\0")
    return head + nodes.tobytes() + known.tobytes()
