"""Reads the JSON that CatBoost's ``save_model(format="json")`` writes.

All digits of its numbers are there. Python reads them to the nearest float64, which
CatBoost's own reader of JSON does not.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect
from collections.abc import Sequence
from typing import Any

import numpy as np

from skforge.exceptions import UnsupportedModelError
from skforge.forest.categories import EQUAL, HASH
from skforge.frontends import checks
from skforge.frontends.arrays import offsets
from skforge.frontends.catboost import ctr, parts


def read_dump(data: bytes) -> parts.CatBoostParts:
    document = checks.read_json(data)
    try:
        return _parts(document)
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        parts.damaged(f"a value is missing or of another type ({error})"[:200])
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        parts.damaged(f"a value is no number ({error})"[:200])


def _parts(document: Any) -> parts.CatBoostParts:
    info = document["features_info"]
    features = {kind: info.get(f"{kind}_features") or [] for kind in parts.KINDS}
    places = {
        kind: [(f["flat_feature_index"], str(f.get("feature_id", ""))) for f in some]
        for kind, some in features.items()
    }
    names, kinds = parts.columns_of(places)
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
    model_info = dict(document.get("model_info") or {})
    if info.get("ctrs") and _are_ambiguous(model_info.get("params")):
        raise UnsupportedModelError(
            "This JSON lacks which targets or classes of them the statistics of its "
            "categories are of, because CatBoost does not write it; save the model as "
            ".cbm."
        )
    known = _categories(document, kinds)
    split_of = _Splits(sum(counts), known)
    if "trees" in document:
        nodes = _nodes(document["trees"] or [], len(bias), split_of)
    else:
        nodes = _symmetric(document["oblivious_trees"] or [], len(bias), split_of)
    return parts.CatBoostParts(
        nodes,
        np.repeat(column, counts),
        np.concatenate([np.zeros(0, np.float32), *borders]),
        ~np.repeat(np.array(right, np.bool_), counts),
        names,
        float(scale),
        bias,
        model_info,
        known,
    )


#: Losses of several targets.
_TARGETS = "MultiRMSE", "MultiLogloss", "MultiCrossEntropy"


def _are_ambiguous(params: Any) -> bool:
    """Tell whether a combination may have several tables; JSON has the last alone."""
    params = json.loads(params) if isinstance(params, str) else params
    if str(params["loss_function"]["type"]).startswith(_TARGETS):
        return True
    features = params["cat_feature_params"]
    lists = [features["simple_ctrs"], features["combinations_ctrs"]]
    lists += features["per_feature_ctrs"].values()
    known: dict[str, Any] = {}
    return any(
        known.setdefault(ctr["ctr_type"], target) != target
        for ctr in itertools.chain.from_iterable(lists)
        if (target := ctr.get("target_binarization")) is not None
    )


def _categories(document: Any, kinds: Sequence[str]) -> parts.Categories:
    info = document["features_info"]
    categorical = info.get("categorical_features") or []
    columns = {f["feature_index"]: f["flat_feature_index"] for f in categorical}
    numbers = {f["feature_index"]: f for f in info.get("float_features") or []}

    def part(element: Any) -> parts.PartPosition:
        kind = element["combination_element"]
        if kind == "float_feature":
            known = numbers[element["float_feature_index"]]
            mode, has_nans = known["nan_value_treatment"], known["has_nans"]
            right = parts.nan_goes_right(mode, has_nans)
            return ctr.above(known["flat_feature_index"], element["border"], right)
        column = columns[element["cat_feature_index"]]
        if kind == "cat_feature_value":
            return HASH, column, 0
        return EQUAL, column, int(np.int32(element["value"]))

    def ctr_of(feature: Any) -> parts.Ctr:
        if (kind := feature["ctr_type"]) not in ctr.KINDS:
            checks.refuse_unknown(f"The model has statistics of the kind {kind!r}")
        return parts.Ctr(
            tuple(map(part, feature["elements"])),
            kind,
            feature["identifier"],
            feature["target_border_idx"],
            (feature["prior_numerator"], feature["prior_denomerator"]),  # misspelled
            feature["shift"],
            feature["scale"],
            np.array(feature["borders"], np.float32),
        )

    ctrs = [ctr_of(feature) for feature in info.get("ctrs") or []]
    data = document.get("ctr_data") or {}
    tables = {name: _table(record) for name, record in data.items()}
    values = [np.array(f.get("values") or [], np.int32) for f in categorical]
    known = parts.Categories(tuple(columns.values()), values, ctrs, tables)
    ctr.check(known, kinds)
    return known


def _table(record: Any) -> parts.CtrTable:
    numbers, stride = record["hash_map"], record["hash_stride"]
    if stride < 2 or len(numbers) % stride:
        parts.damaged(f"a table of its categories has {len(numbers)} entries")
    hashes = [int(number) for number in numbers[::stride]]
    used = np.array([number != ctr.EMPTY for number in hashes], np.bool_)
    counts = [numbers[i::stride] for i in range(1, stride)]
    rows = np.array(counts, np.float64).T.reshape(-1, stride - 1)
    keys = np.array(hashes, np.uint64)
    return ctr.table_of(keys[used], rows[used], record["counter_denominator"])


def _symmetric(trees: Any, n_outputs: int, split_of: _Splits) -> parts.Nodes:
    depths: list[int] = []
    splits: list[int] = []
    values: list[float] = []
    weights: list[float] = []
    for number, tree in enumerate(trees):
        levels, leaves = tree["splits"] or [], tree["leaf_values"]
        if len(leaves) != n_outputs << len(levels):
            parts.damaged(f"tree {number} has {len(leaves)} leaf values")
        depths.append(len(levels))
        splits += map(split_of, levels)
        values += leaves
        weights += tree.get("leaf_weights") or []
    depth, split = np.array(depths, np.int64), np.array(splits, np.int64)
    value = np.array(values, np.float64).reshape(-1, n_outputs)
    weight = parts.known_weights(weights, len(value))
    return parts.symmetric_nodes(depth, split, value, weight)


def _nodes(trees: Any, n_outputs: int, split_of: _Splits) -> parts.Nodes:
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
                splits.append(split_of(node["split"]))
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
    left, right = np.array(children, np.int64).reshape(-1, 2).T
    value = np.array(values, np.float64).reshape(-1, n_outputs)
    weight = parts.known_weights(weights, len(values))
    split, number = np.array(splits, np.int64), np.array(numbers, np.int64)
    offset, inner = offsets(sizes), left >= 0
    return parts.Nodes(offset, inner, left, right, split, value, number, weight)


class _Splits:
    """The numbers of splits, each of which is of a kind by its number."""

    def __init__(self, n_borders: int, known: parts.Categories) -> None:
        self._first = np.cumsum([n_borders, sum(map(len, known.values))]).tolist()
        self._end = n_borders + known.n_splits

    def __call__(self, split: Any) -> int:
        number = split["split_index"]
        kinds = "FloatFeature", "OneHotFeature", "OnlineCtr"
        fits = type(number) is int and 0 <= number < self._end
        if not fits or split["split_type"] != kinds[bisect(self._first, number)]:
            parts.damaged(f"the split {str(split)[:80]} is none of its tests")
        return int(number)
