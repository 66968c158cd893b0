"""Joins forests of one kind into a forest with the outputs of all of them.

Each output adds the leaves of its own trees in their order, so that its bits are those
of its own forest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.forest import Forest, deduplicate_predicates
from skforge.compiler.forest.outputs import SCORES

Array = NDArray[Any]


def same_kind(forest: Forest) -> tuple[Any, ...]:
    """Return what forests must share to be joined."""
    return (
        forest.input_dtype,
        forest.accumulator_dtype,
        forest.divisor,
        forest.n_features,
        repr(forest.missing_value),
        forest.category_names,
        forest.truncate_categories,
        forest.aggregate,
        forest.wider_rows,
    )


def one_output(forest: Forest, output: int) -> Forest:
    """Return a forest of a single output of one whose leaves have several."""
    return replace(
        forest,
        tree_output=np.zeros(forest.n_trees, np.int32),
        leaf_value=forest.leaf_value[:, output : output + 1],
        base=forest.base[output : output + 1],
        outputs=SCORES,
        task="regression",
        output_sizes=(),
        class_labels=(),
    )


def joined(forests: Sequence[Forest]) -> Forest:
    """Return a forest with the raw scores of all forests, in their order."""
    if len(forests) == 1:
        return forests[0]
    first = forests[0]
    nodes = _starts([one.n_nodes for one in forests])
    leaves = _starts([one.n_leaves for one in forests])
    outputs = _starts([one.n_outputs for one in forests])
    width = sum(one.n_outputs for one in forests)
    wide = any(one.vector_leaves for one in forests)
    tests, index = _tests(forests)

    def moved(name: str, start: Sequence[int]) -> Array:
        """Return node numbers of all forests, where -1 stays."""
        return np.concatenate(
            [
                np.where((own := getattr(one, name)) < 0, -1, own.astype(np.int64) + at)
                for one, at in zip(forests, start, strict=True)
            ]
        )

    def together(name: str) -> Array:
        return np.concatenate([getattr(one, name) for one in forests])

    covered = all(len(one.cover) for one in forests)
    folded = any(len(one.source_feature) for one in forests)
    fields: dict[str, Any] = {
        **tests,
        "tree_offset": np.concatenate(
            [
                [0],
                *(o.tree_offset[1:] + at for o, at in zip(forests, nodes, strict=True)),
            ]
        ),
        "tree_output": np.full(sum(one.n_trees for one in forests), -1, np.int32)
        if wide
        else moved("tree_output", outputs),
        "predicate": np.append(index, np.int32(-1))[
            moved("predicate", _starts([one.n_predicates for one in forests]))
        ],
        "left": moved("left", nodes),
        "right": moved("right", nodes),
        "leaf": moved("leaf", leaves),
        "source_node": together("source_node"),
        "cover": together("cover") if covered else np.zeros(0),
        "source_feature": together("node_feature") if folded else np.zeros(0, np.int32),
        "leaf_value": np.concatenate(
            [_wide(o, width, at) for o, at in zip(forests, outputs, strict=True)]
        )
        if wide
        else together("leaf_value"),
        "base": together("base"),
        "outputs": SCORES,
        "task": "regression",
        "output_sizes": (),
        "class_labels": (),
    }
    return replace(first, **fields)


def _starts(sizes: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(sizes[:-1], dtype=np.int64).tolist()]


def _tests(forests: Sequence[Forest]) -> tuple[dict[str, Array], NDArray[np.int32]]:
    """Return the distinct predicates of all forests, and the number of each."""
    sets: dict[int, NDArray[np.uint32]] = {}
    first = 0
    for one in forests:
        offset = one.category_offset
        for test in np.flatnonzero(np.diff(offset)).tolist():
            words = one.category_words[offset[test] : offset[test + 1]]
            sets[first + test] = words
        first += one.n_predicates
    return deduplicate_predicates(
        np.concatenate([one.feature for one in forests]),
        np.concatenate([one.comparison for one in forests]),
        np.concatenate([one.threshold for one in forests]),
        np.concatenate([one.missing for one in forests]),
        np.concatenate([one.missing_left for one in forests]),
        sets,
    )


def _wide(forest: Forest, width: int, at: int) -> Array:
    """Return leaves with a value for every output of the joined forest.

    A value of another forest is -0.0: adding it changes no number, not even -0.0.
    """
    values = np.full((forest.n_leaves, width), -0.0, forest.accumulator_dtype)
    if forest.vector_leaves:
        values[:, at : at + forest.n_outputs] = forest.leaf_value
        return values
    leaves = np.flatnonzero(forest.leaf >= 0)
    tree = np.searchsorted(forest.tree_offset, leaves, side="right") - 1
    number = forest.leaf[leaves]
    values[number, at + forest.tree_output[tree]] = forest.leaf_value[number, 0]
    return values
