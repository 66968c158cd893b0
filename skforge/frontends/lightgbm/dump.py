"""Turns the JSON of ``Booster.dump_model`` into the parts of a model's text.

LightGBM writes both from the same numbers, with all digits, but it reads only texts.
The numbers of trees become the lists that the text's lines are split into.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

from skforge.exceptions import UnsupportedModelError
from skforge.frontends import checks
from skforge.frontends.arrays import category_words
from skforge.frontends.lightgbm.text import (
    ModelText,
    as_lists,
    check_version,
    damaged,
)

T = TypeVar("T", bound="dict[str, Any] | list[Any] | str")

_KEYS = checks.known_fields("lightgbm dump")
#: Keys that predictions depend on.
_HEADER = ("version", "num_class", "num_tree_per_iteration", "max_feature_idx")
_MISSING = ("None", "Zero", "NaN")  # in the order of their numbers in texts

#: Greatest category, and most words of all category sets: a small file could ask for
#: gigabytes.
_MAX_CATEGORY, _MAX_WORDS = 1 << 24, 1 << 24
#: What LightGBM writes for infinity, and for all numbers beyond.
_LIMIT = 1e300


def is_dump(model: object) -> bool:
    return isinstance(model, dict) and model.get("name") == "tree"


def parts_of(document: Any) -> ModelText:
    _check_keys(document, _KEYS["the model"], "the model")
    header = {key: _word(document[key]) for key in _HEADER if key in document}
    check_version(header)
    if "average_output" not in document:
        header["objective"] = "unknown"  # LightGBM writes both since 2.2.3
    elif "objective" in document:
        header["objective"] = _typed(document["objective"], str, "objective")
    names = _typed(document.get("feature_names"), list, "feature_names")
    words = (_typed(name, str, "feature_names") for name in names)
    header["feature_names"] = " ".join(words)
    if _flag(document.get("average_output", False), "average_output"):
        header["average_output"] = ""
    trees, room = [], _MAX_WORDS
    infos = _typed(document.get("tree_info"), list, "tree_info")
    beyond = _beyond(document, names)
    for number, tree in enumerate(infos):
        trees.append(_lines(tree, f"tree {number}", room, beyond))
        room -= trees[-1]["cat_boundaries"][-1]
    header["feature_infos"] = _infos(document, names)
    lists = document.get("pandas_categorical")
    return ModelText(header, trees, {}, None if lists is None else as_lists(lists))


def _infos(document: Any, names: list[str]) -> str:
    """Return what a model's text says of the values of features."""
    infos = []
    for info in _values_met(document, names):
        codes, ends = info.get("values"), _range_met(info)
        if isinstance(codes, list) and codes:
            infos.append(":".join(map(str, codes)))
        else:
            infos.append("none" if None in ends else "[{}:{}]".format(*ends))
    return " ".join(infos)


def _beyond(document: Any, names: list[str]) -> list[int]:
    """Return the features that had values at the limit, or beyond, in training."""
    ends = map(_range_met, _values_met(document, names))
    return [i for i, pair in enumerate(ends) if _LIMIT in pair or -_LIMIT in pair]


def _values_met(document: Any, names: list[str]) -> list[dict[str, Any]]:
    """Return what a dump says of the values of each feature in training."""
    known = document.get("feature_infos")
    known = known if isinstance(known, dict) else {}
    infos = (known.get(name) for name in names)
    return [info if isinstance(info, dict) else {} for info in infos]


def _range_met(info: dict[str, Any]) -> tuple[Any, Any]:
    return info.get("min_value"), info.get("max_value")


def _lines(tree: Any, where: str, room: int, beyond: list[int]) -> dict[str, Any]:
    _check_keys(tree, _KEYS["tree"], where)
    inner, leaves = _nodes(tree.get("tree_structure"), where)
    if _word(tree.get("num_leaves")) != str(len(leaves)):
        damaged(f"num_leaves of {where} is not {len(leaves)}")
    thresholds: list[float] = []
    sets: list[int] = []
    ends = [0]
    decisions = [_decision(node, where) for node in inner]
    for node, decision in zip(inner, decisions, strict=True):
        threshold = node.get("threshold")
        if not decision & 1:
            number = _number(threshold, where)
            infinite = abs(number) == _LIMIT
            if infinite and node.get("split_feature") in beyond:
                raise UnsupportedModelError(
                    f"{where} tests a feature with values of {_LIMIT} or beyond, and "
                    "LightGBM's JSON has no greater thresholds; save the model as text."
                )
            thresholds.append(math.copysign(math.inf, number) if infinite else number)
            continue
        thresholds.append(len(ends) - 1)
        sets += _set(threshold, where)
        ends.append(len(sets))
        if len(sets) > room:
            raise UnsupportedModelError(
                f"The category sets up to {where} take more than {_MAX_WORDS * 4} "
                "bytes; number the categories from 0 without gaps."
            )
    linear = any("leaf_coeff" in leaf for leaf in leaves)
    return {
        "num_leaves": str(len(leaves)),
        "num_cat": str(len(ends) - 1),
        "split_feature": " ".join(_word(node.get("split_feature")) for node in inner),
        "threshold": thresholds,
        "decision_type": decisions,
        "left_child": [_child(node["left_child"], where) for node in inner],
        "right_child": [_child(node["right_child"], where) for node in inner],
        "leaf_value": [_number(leaf.get("leaf_value"), where) for leaf in leaves],
        "internal_count": _counts(inner, "internal_count", where),
        "leaf_count": _counts(leaves, "leaf_count", where),
        "cat_boundaries": ends,
        "cat_threshold": sets,
        **(_models(leaves, where) if linear else {}),
    }


def _models(leaves: Sequence[dict[str, Any]], where: str) -> dict[str, Any]:
    features, factors = (
        [_typed(leaf.get(key), list, f"{key} of {where}") for leaf in leaves]
        for key in ("leaf_features", "leaf_coeff")
    )
    return {
        "is_linear": "1",
        "leaf_const": [_number(leaf.get("leaf_const"), where) for leaf in leaves],
        "num_features": [*map(len, features)],
        "leaf_features": [_word(feature) for each in features for feature in each],
        "leaf_coeff": [_number(x, where) for each in factors for x in each],
    }


def _counts(nodes: Sequence[dict[str, Any]], key: str, where: str) -> list[float]:
    if not all(key in node for node in nodes):
        return []
    return [_number(node[key], where) for node in nodes]


def _nodes(root: Any, where: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    by_place: dict[int, dict[str, Any]] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        place = _child(node, where)
        if place in by_place:
            damaged(f"a node of {where} stands there twice")
        by_place[place] = node
        if place >= 0:
            _check_keys(node, _KEYS["node"], where)
            waiting += [node.get("right_child"), node.get("left_child")]
        else:
            _check_keys(node, _KEYS["leaf"], where)
    n_leaves = len(by_place) // 2 + 1
    if {*by_place} != {*range(-n_leaves, n_leaves - 1)}:
        damaged(f"the nodes of {where} are not numbered from 0")
    leaves = [by_place[~i] for i in range(n_leaves)]
    return [by_place[i] for i in range(n_leaves - 1)], leaves


def _child(node: Any, where: str) -> int:
    if isinstance(node, dict):
        is_leaf = "leaf_value" in node
        # a tree of one leaf gives it no number
        index = node.get("leaf_index", 0) if is_leaf else node.get("split_index")
        if type(index) is int and index >= 0:
            return ~index if is_leaf else index
    damaged(f"{where} holds something that is not a node")


def _decision(node: dict[str, Any], where: str) -> int:
    kind, missing = node.get("decision_type"), node.get("missing_type", "None")
    if kind not in ("<=", "==") or missing not in _MISSING:
        checks.refuse_unknown(f"A test {kind!r:.40} of {where} is unknown")
    left = _flag(node.get("default_left", False), f"default_left of {where}")
    return int(kind == "==") | left << 1 | _MISSING.index(missing) << 2


def _set(text: Any, where: str) -> list[int]:
    words = text.split("||") if isinstance(text, str) and text else []
    if text != "" and not all(w.isascii() and w.isdigit() for w in words or ["-"]):
        damaged(f"threshold = {text!r:.40} of {where} is not a set of categories")
    if any(len(word) > 8 or int(word) >= _MAX_CATEGORY for word in words):
        raise UnsupportedModelError(
            f"A category of {where} is {_MAX_CATEGORY} or more; number the categories "
            "from 0 without gaps."
        )
    return category_words([int(word) for word in words]).tolist()


def _check_keys(value: Any, keys: frozenset[str], where: str) -> None:
    for key in _typed(value, dict, where):
        if key not in keys:
            checks.refuse_unknown(f"{key!r:.40} of {where} is unknown")


def _typed(value: Any, kind: type[T], where: str) -> T:
    if not isinstance(value, kind):
        names: dict[type, str] = {dict: "an object", list: "a list", str: "text"}
        damaged(f"{where} is not {names[kind]}")
    return value


def _flag(value: Any, key: str) -> bool:
    if not isinstance(value, bool):
        damaged(f"{key} is {value!r:.40}")
    return value


def _word(value: Any) -> str:
    if isinstance(value, str) or (type(value) is int and abs(value) < 1 << 63):
        return str(value)
    return "?"


def _number(value: Any, where: str) -> float:
    if type(value) is float or (type(value) is int and abs(value) < 1 << 63):
        return float(value)
    damaged(f"{where} holds {value!r:.40} where a number must be")
