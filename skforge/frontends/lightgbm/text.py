"""Reads LightGBM's text format into checked arrays: header, trees, parameters.

Nothing is interpreted here. Every count, number and name is checked, because later code
follows child and category indices without checks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest import validation
from skforge.frontends import checks
from skforge.frontends.arrays import Floats, Ints, Sets, check_nodes, offsets
from skforge.frontends.content import SAVE_IT

_KNOWN = checks.known_fields("lightgbm text")
_VERSIONS = ("v2", "v3", "v4")
_REPAIR = "save it again"

#: The lines of each tree by their keys.
Lines: TypeAlias = Sequence[dict[str, Any]]


class ModelText(NamedTuple):
    """A model file split into parts; values are still text, or lists of numbers."""

    header: dict[str, str]
    trees: list[dict[str, Any]]
    parameters: dict[str, str]
    pandas_categorical: list[list[Any]] | None


def damaged(what: str) -> NoReturn:
    validation.damaged(what, _REPAIR)


def parse(text: str) -> ModelText:
    """Split a text written by ``Booster.save_model`` into its parts.

    LightGBM marks the end of the trees since 2.2, and the version since 2.0.12. Before,
    the importances follow the trees. LightGBM 4 reads texts of 2.0.5 and later.
    """
    unix = text.replace("\r\n", "\n")
    if not unix.startswith("tree\n"):
        raise InvalidModelError(
            "The text does not begin with the line 'tree', so it is not a LightGBM "
            f"model; {SAVE_IT}"
        )
    body, end, tail = unix.partition("\nend of trees\n")
    early = not end and re.search(r"\nversion=(?!v2\n)", body) is None
    if early:
        body, end, tail = unix.partition("\nfeature importances:\n")
    if not end:
        damaged("The text ends before the line 'end of trees'")
    head, first, trees = f"{body}\n".partition("\nTree=")
    header = _pairs(head[len("tree\n") :], "the header", _KNOWN["the header"])
    if not early or "version" in header:
        check_version(header)
    trees = f"Tree={trees}" if first else ""
    if "tree_sizes" not in header:
        blocks = _one_by_one(trees)
    else:
        sizes = _sizes(header["tree_sizes"])
        try:
            blocks = _by_size(trees, sizes)
        except InvalidModelError:
            # The sizes may have been counted with line ends of two characters.
            if unix == text:
                raise
            blocks = _by_size(trees.replace("\n", "\r\n"), sizes)
    known = _KNOWN["tree"]
    parts = [_pairs(block, f"tree {i}", known) for i, block in enumerate(blocks)]
    return ModelText(header, parts, _parameters(tail), _pandas_categorical(tail))


def check_version(header: dict[str, str]) -> None:
    if header.get("version") not in _VERSIONS:
        raise UnsupportedModelError(
            f"The model has the format version {header.get('version')!r}, but only "
            f"{', '.join(_VERSIONS)} are supported."
        )


def _sizes(text: str) -> list[int]:
    words = text.split()
    for word in words:
        if not re.fullmatch(r"0*[1-9][0-9]{0,17}", word, flags=re.ASCII):
            damaged(f"tree_sizes holds {word[:40]!r}, which is not a size")
    return [int(word) for word in words]


#: The end of a tree. To look for both forms by themselves reads the rest of the text
#: for each tree: 6.4 s for 3,000 trees.
_EMPTY_LINE = re.compile(rb"\n\r?\n")


def _by_size(text: str, sizes: Sequence[int]) -> list[str]:
    """Return one tree per size; each size gives the offset to the next tree.

    LightGBM seeks by sizes, too: it reads no tree that they leave out, and ignores the
    trees' numbers and everything after a tree's first empty line.
    """
    data = text.encode()
    blocks, start = [], 0
    for number, size in enumerate(sizes):
        if not data.startswith(b"Tree=", start):
            start_text = data[start : start + 20].decode(errors="replace")
            damaged(
                f"tree_sizes says that tree {number} starts at character {start} of "
                f"the trees, where {start_text!r} stands"
            )
        # the tree usually ends before the next one starts, whatever its size says
        gap = _EMPTY_LINE.search(data, start)
        if gap is None:
            _endless(number)
        end = gap.start()
        blocks.append(data[start:end].decode().replace("\r\n", "\n").partition("\n")[2])
        start += size
    return blocks


def _endless(number: int) -> NoReturn:
    # LightGBM would go on reading lines of what follows the tree
    damaged(f"Tree {number} does not end with an empty line")


def _one_by_one(text: str) -> list[str]:
    blocks: list[str] = []
    while text:
        if not text.startswith("Tree="):
            line = text.partition("\n")[0]
            damaged(f"{line[:40]!r} stands where a tree must start")
        block, gap, text = text.partition("\n\n")
        if not gap:
            _endless(len(blocks))
        blocks.append(block.partition("\n")[2])
        text = text.lstrip("\n")
    return blocks


def _pairs(text: str, where: str, known: frozenset[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for line in filter(None, text.split("\n")):
        key, equals, value = line.partition("=")
        if key not in known:
            checks.refuse_unknown(f"The line {line[:40]!r} of {where} is unknown")
        if key in pairs:
            damaged(f"{key} is given twice in {where}")
        if not equals and key not in ("average_output", "boost_from_average"):
            damaged(f"{key} has no value in {where}")
        pairs[key] = value
    return pairs


def _parameters(tail: str) -> dict[str, str]:
    _, begin, rest = tail.partition("\nparameters:\n")
    if not begin:
        return {}
    inside, end, _ = rest.partition("\nend of parameters\n")
    if not end:
        damaged("The text ends before the line 'end of parameters'")
    lines = [line[1:-1].partition(": ") for line in inside.split("\n")]
    return {name: value for name, _, value in lines}


def _pandas_categorical(tail: str) -> list[list[Any]] | None:
    _, begin, text = tail.rpartition("pandas_categorical:")
    if not begin:
        return None
    try:
        value = json.loads(text.strip())
    except (ValueError, RecursionError):
        damaged("pandas_categorical is not JSON")
    return None if value is None else as_lists(value)


def as_lists(value: Any) -> list[list[Any]]:
    if not isinstance(value, list) or not all(isinstance(v, list) for v in value):
        damaged("pandas_categorical is not a list of lists")
    return value


def integer(values: dict[str, Any], key: str, where: str) -> int:
    text = values.get(key)
    if text is None:
        damaged(f"{where} has no {key}")
    if not re.fullmatch(r"[0-9]{1,10}", text, flags=re.ASCII) or int(text) >= 2**31:
        damaged(f"{key} = {text[:40]!r} of {where} is not a size")
    return int(text)


class TextTrees(NamedTuple):
    """The numbers of all trees, concatenated.

    Inner nodes and leaves are numbered separately, as in the file; ``first_inner`` and
    ``first_leaf`` give the offset of each tree.
    """

    n_leaves: Ints  # (n_trees,)
    first_inner: Ints  # (n_trees + 1,)
    first_leaf: Ints  # (n_trees + 1,)
    feature: Ints  # (n_inner,)
    decision_type: Ints
    threshold: Floats
    left: Ints  # >= 0: an inner node of the tree, < 0: the leaf ~child
    right: Ints
    leaf_value: Floats  # (all leaves,)
    inner_count: Floats | None
    leaf_count: Floats | None
    categories: Sets  # words by inner node
    linear: Floats  # as a forest's ``leaf_linear``; (0, 0) if no leaf has a model


def read_trees(trees: Lines, n_features: int) -> TextTrees:
    sizes = []
    for number, tree in enumerate(trees):
        size = integer(tree, "num_leaves", f"tree {number}")
        if size < 1:
            damaged(f"num_leaves = 0 of tree {number} is not a size")
        sizes.append(size)
    leaves = np.array(sizes, dtype=np.int64)
    inner = leaves - 1
    first_inner = offsets(inner)
    check = partial(check_nodes, offset=first_inner, repair=_REPAIR)
    left = _numbers(trees, "left_child", inner, int)
    right = _numbers(trees, "right_child", inner, int)
    last_inner, last_leaf = np.repeat(inner - 1, inner), np.repeat(-leaves, inner)
    for name, child in (("left_child", left), ("right_child", right)):
        bad = (child > last_inner) | (child < last_leaf)
        check(name, child, bad, lambda t: f"outside {-sizes[t]}..{sizes[t] - 2}")
    feature = _numbers(trees, "split_feature", inner, int)
    bad = (feature < 0) | (feature >= n_features)
    check("split_feature", feature, bad, lambda _: f"outside 0..{n_features - 1}")
    decision = np.zeros(len(left), np.int64)
    if any("decision_type" in tree for tree in trees):
        decision = _numbers(trees, "decision_type", inner, int)
    # numeric nodes store their missing type, 0 to 2, above two flag bits
    bad = (decision < 0) | (decision > 15) | ((decision & 13) == 12)
    check("decision_type", decision, bad, lambda _: "unknown")
    threshold = _numbers(trees, "threshold", inner, float)
    leaf_value = _numbers(trees, "leaf_value", leaves, float)
    return TextTrees(
        n_leaves=leaves,
        first_inner=first_inner,
        first_leaf=offsets(leaves),
        feature=feature,
        decision_type=decision,
        threshold=threshold,
        left=left,
        right=right,
        leaf_value=leaf_value,
        inner_count=_counts(trees, "internal_count", inner),
        leaf_count=_counts(trees, "leaf_count", leaves),
        categories=_categories(trees, decision, threshold, first_inner),
        linear=_linear(trees, leaves, leaf_value),
    )


def _linear(trees: Lines, leaves: Ints, leaf_value: Floats) -> Floats:
    """Return the linear models of all leaves; those of other trees are constant."""
    are = [tree.get("is_linear", "0") != "0" for tree in trees]
    if not any(are):
        return np.zeros((0, 0))
    linear = [tree for tree, is_linear in zip(trees, are, strict=True) if is_linear]
    sizes, inside = leaves[are], np.repeat(are, leaves)
    count = _numbers(linear, "num_features", sizes, int)
    if (count < 0).any():
        damaged("num_features is less than 0")
    models = np.zeros((len(leaf_value), 2 + 2 * count.max(initial=0)))
    models[:, 0] = leaf_value
    models[inside, 0] = _numbers(linear, "leaf_const", sizes, float)
    models[inside, 1] = count
    # of each leaf so many pairs
    terms = np.add.reduceat(count, offsets(sizes)[:-1])
    row = np.repeat(np.flatnonzero(inside), count)
    place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    models[row, 2 + 2 * place] = _numbers(linear, "leaf_features", terms, int)
    models[row, 3 + 2 * place] = _numbers(linear, "leaf_coeff", terms, float)
    constant = not count.any() and np.array_equal(models[:, 0], leaf_value)
    return np.zeros((0, 0)) if constant else models


def _words(tree: dict[str, Any], key: str) -> list[Any]:
    line: str | list[Any] = tree.get(key, "")
    # Python reads 1_0 as 10
    return line.replace("_", "?").split() if isinstance(line, str) else line


def _numbers(trees: Lines, key: str, sizes: Ints, kind: type[int] | type[float]) -> Any:
    parts = []
    for number, (tree, size) in enumerate(zip(trees, sizes.tolist(), strict=True)):
        if key not in tree and size:
            damaged(f"Tree {number} has no {key}")
        if not size and key not in ("leaf_value", "leaf_features", "leaf_coeff"):
            continue  # a tree of one leaf: LightGBM does not read this line
        words = _words(tree, key)
        if len(words) != size:
            damaged(f"{key} of tree {number} has {len(words)} numbers, not {size}")
        parts.append(words)
    dtype = np.int64 if kind is int else np.float64
    try:
        return np.array([kind(w) for w in chain.from_iterable(parts)], dtype=dtype)
    except (ValueError, OverflowError):
        damaged(f"{key} holds something that is not a number")


def _counts(trees: Lines, key: str, counts: Ints) -> Floats | None:
    for tree, count in zip(trees, counts.tolist(), strict=True):
        if count and len(_words(tree, key)) != count:
            return None
    values: Floats = _numbers(trees, key, counts, float)
    return values if bool((values >= 0).all() and np.isfinite(values).all()) else None


def _categories(trees: Lines, decision: Ints, threshold: Floats, offset: Ints) -> Sets:
    sets: Sets = {}
    nodes = np.flatnonzero(decision & 1)
    owners = np.searchsorted(offset, nodes, side="right") - 1
    for number in np.unique(owners).tolist():
        where = f"tree {number}"
        tree = trees[number]
        n_sets = integer(tree, "num_cat", where)
        ends = _numbers([tree], "cat_boundaries", np.array([n_sets + 1]), int)
        if ends[0] != 0 or (np.diff(ends) < 0).any():
            damaged(f"cat_boundaries of {where} do not rise from 0")
        words = _numbers([tree], "cat_threshold", ends[-1:], int)
        if ((words < 0) | (words >= 2**32)).any():
            damaged(f"cat_threshold of {where} holds more than 32 bits")
        words = words.astype(np.uint32)
        for node in nodes[owners == number].tolist():
            chosen = threshold[node]
            if not (0 <= chosen < n_sets and chosen == int(chosen)):
                damaged(
                    f"threshold[{node - offset[number]}] = {chosen} of {where} "
                    f"is not one of its {n_sets} sets of categories"
                )
            sets[node] = words[ends[int(chosen)] : ends[int(chosen) + 1]]
    return sets
