"""Reads the JSON that CatBoost's ``save_model(format="json")`` writes.

All digits of its numbers are there. Python reads them to the nearest float64, which
CatBoost's own reader of JSON does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge.compiler.frontends import checks
from skforge.compiler.frontends.arrays import offsets
from skforge.compiler.frontends.catboost import parts


def read_dump(data: bytes) -> parts.Parts:
    document = checks.read_json(data)
    try:
        return _parts(document)
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        parts.damaged(f"a value is missing or of another type ({error})"[:200])
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        parts.damaged(f"a value is no number ({error})"[:200])


def _parts(document: Any) -> parts.Parts:
    info = document["features_info"]
    features = {kind: info.get(f"{kind}_features") or [] for kind in parts.KINDS}
    names = parts.column_names(
        {
            kind: [
                (f["flat_feature_index"], str(f.get("feature_id", ""))) for f in same
            ]
            for kind, same in features.items()
        }
    )
    floats = features["float"]
    borders = [np.array(f["borders"] or [], np.float32) for f in floats]
    counts = [*map(len, borders)]
    right = [
        parts.nan_goes_right(f["nan_value_treatment"], f["has_nans"]) for f in floats
    ]
    column = np.array([f["flat_feature_index"] for f in floats], np.int64)
    scale, bias = document["scale_and_bias"]
    bias = np.array(bias, np.float64)
    if not 1 <= len(bias) <= checks.MAX_OUTPUTS:
        parts.damaged(f"it has {len(bias)} biases")
    if "trees" in document:
        nodes = _nodes(document["trees"] or [], len(bias))
    else:
        nodes = _symmetric(document["oblivious_trees"] or [], len(bias))
    return parts.Parts(
        nodes,
        np.repeat(column, counts),
        np.concatenate([np.zeros(0, np.float32), *borders]),
        ~np.repeat(np.array(right, np.bool_), counts),
        names,
        float(scale),
        bias,
        dict(document.get("model_info") or {}),
    )


def _symmetric(trees: Any, n_outputs: int) -> parts.Nodes:
    """Return the nodes of trees whose levels have one split each."""
    depths: list[int] = []
    splits: list[int] = []
    values: list[float] = []
    weights: list[float] = []
    for number, tree in enumerate(trees):
        levels, leaves = tree["splits"] or [], tree["leaf_values"]
        if len(leaves) != n_outputs << len(levels):
            parts.damaged(f"tree {number} has {len(leaves)} leaf values")
        depths.append(len(levels))
        splits += map(_split, levels)
        values += leaves
        weights += tree.get("leaf_weights") or []
    return parts.symmetric_nodes(
        np.array(depths, np.int64),
        np.array(splits, np.int64),
        np.array(values, np.float64).reshape(-1, n_outputs),
        parts.known_weights(weights, len(values) // n_outputs),
    )


def _nodes(trees: Any, n_outputs: int) -> parts.Nodes:
    """Return the nodes of trees that are nested objects, each tree's root first."""
    sizes: list[int] = []
    children: list[list[int]] = []  # at leaves -1
    splits: list[int] = []
    values: list[Any] = []
    weights: list[float] = []
    numbers: list[int] = []
    for tree in trees:
        first, first_leaf = len(children), len(values)
        waiting = [(tree, -1, 0)]  # nodes, their parents and sides
        while waiting:
            node, parent, side = waiting.pop()
            here = len(children)
            if parent >= 0:
                children[parent][side] = here
            if "split" in node:
                splits.append(_split(node["split"]))
                children.append([0, 0])
                waiting += [(node["right"], here, 1), (node["left"], here, 0)]
            else:
                value = node["value"]
                numbers.append(len(values) - first_leaf)
                values.append(value if isinstance(value, list) else [value])
                weights.append(node.get("weight", -1))
                children.append([-1, -1])
        sizes.append(len(children) - first)
    if any(len(value) != n_outputs for value in values):
        parts.damaged(f"a leaf has not {n_outputs} values")
    pairs = np.array(children, np.int64).reshape(-1, 2)
    return parts.Nodes(
        offsets(sizes),
        pairs[:, 0] >= 0,
        pairs[:, 0],
        pairs[:, 1],
        np.array(splits, np.int64),
        np.array(values, np.float64).reshape(-1, n_outputs),
        np.array(numbers, np.int64),
        parts.known_weights(weights, len(values)),
    )


def _split(split: Any) -> int:
    number = split["split_index"]
    if split["split_type"] != "FloatFeature" or type(number) is not int:
        parts.damaged(f"the split {str(split)[:80]} does not compare a number")
    return number
