"""Some trees of a forest; the trees of several forests in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from skforge._typing import Array, Int32s, Int64s, Uint32s
from skforge.exceptions import InvalidInputError, UnsupportedModelError, shortened
from skforge.forest.arrays import ForestArrays
from skforge.forest.outputs import OF_ONEDAL
from skforge.forest.predicates import AnyForest, deduplicate_predicates
from skforge.forest.validation import ABSENT

#: Transforms with a constant that depends on all trees.
_OF_ALL_TREES = ("samme", "path_length", "weighted_median", *OF_ONEDAL)
_INSTEAD = "predict with each forest, and add the scores"
_AT_SOURCE = "choose the trees in {}, and read the model again"


def subset(forest: AnyForest, trees: Any) -> AnyForest:
    """Return a forest with some of the trees, in the given order.

    ``trees`` is a slice or numbers, which may repeat. Predicates and leaves that are no
    longer used are left out; ``base`` and ``divisor`` stay as they are.
    """
    chosen = np.arange(forest.n_trees)[
        trees if isinstance(trees, slice) else np.asarray(trees, dtype=np.int64)
    ]
    sizes = np.diff(forest.tree_offset)[chosen]
    offset = np.concatenate(([0], np.cumsum(sizes)))
    shift = np.repeat(offset[:-1] - forest.tree_offset[:-1][chosen], sizes)
    nodes = np.arange(offset[-1]) - shift
    predicate, used = _renumber(forest.predicate[nodes], forest.n_predicates)
    leaf, used_leaves = _renumber(forest.leaf[nodes], forest.n_leaves)
    words = np.diff(forest.category_offset)[used]
    ends = np.concatenate(([0], np.cumsum(words)))
    starts = np.repeat(forest.category_offset[:-1][used] - ends[:-1], words)
    of_nodes = {
        name: values[nodes]
        for name in ("source_node", "cover", "source_feature")
        if len(values := getattr(forest, name))
    }
    names = "feature", "comparison", "threshold", "missing", "missing_left"
    of_predicates = {name: getattr(forest, name)[used] for name in names}
    left, right = forest.left[nodes], forest.right[nodes]
    return replace(
        forest,
        tree_offset=offset,
        tree_output=forest.tree_output[chosen],
        predicate=predicate,
        left=np.where(left < 0, -1, left + shift),
        right=np.where(right < 0, -1, right + shift),
        leaf=leaf,
        leaf_value=forest.leaf_value[used_leaves],
        leaf_linear=forest.leaf_linear[used_leaves[: len(forest.leaf_linear)]],
        category_offset=ends,
        category_words=forest.category_words[np.arange(ends[-1]) + starts],
        **of_nodes,
        **of_predicates,
    )


def _renumber(values: Int32s, size: int) -> tuple[Int32s, Int32s]:
    """Return values replaced by ranks among those in use, and the values in use."""
    mark = np.zeros(size + 1, dtype=np.bool_)
    mark[values] = True  # -1 marks the last place, which is not a value
    rank = np.cumsum(mark, dtype=np.int32) - 1
    rank[-1] = -1
    return rank[values].astype(np.int32), np.flatnonzero(mark[:-1]).astype(np.int32)


def joined(
    forests: Sequence[AnyForest], places: Sequence[int], **fields: Any
) -> AnyForest:
    """Return the first forest with the trees of all, one forest after the other.

    ``places`` has the number that the first output of each forest gets; ``fields`` are
    those of the result that differ from the first forest's, with ``base``.
    """
    if any(part.vector_leaves for part in forests):
        pairs = zip(forests, places, strict=True)
        forests = [_widened(part, len(fields["base"]), at) for part, at in pairs]
    nodes, leaves, tests = (
        np.cumsum([0, *(getattr(part, name) for part in forests)])[:-1]
        for name in ("n_nodes", "n_leaves", "n_predicates")
    )
    distinct, index = _distinct(forests)

    def together(name: str, start: Any = None) -> Array:
        """Return an array of all forests; of numbers from a start, -1 stays."""
        parts = [getattr(part, name) for part in forests]
        if start is not None:
            pairs = zip(parts, start, strict=True)
            parts = [np.where(x < 0, -1, x.astype(np.int64) + at) for x, at in pairs]
        return np.concatenate(parts)

    ends = [part.tree_offset[1:] + at for part, at in zip(forests, nodes, strict=True)]
    covered = all(len(part.cover) == part.n_nodes for part in forests)
    folded = any(len(part.source_feature) for part in forests)
    return replace(
        forests[0],
        **distinct,
        tree_offset=np.concatenate([[0], *ends]),
        tree_output=together("tree_output", places),
        predicate=np.append(index, np.int32(-1))[together("predicate", tests)],
        left=together("left", nodes),
        right=together("right", nodes),
        leaf=together("leaf", leaves),
        leaf_value=together("leaf_value"),
        source_node=together("source_node"),
        cover=together("cover") if covered else np.zeros(0),
        source_feature=together("node_feature" if folded else "source_feature"),
        **fields,
    )


def _distinct(forests: Sequence[ForestArrays]) -> tuple[dict[str, Any], Int32s]:
    sets: dict[int, Uint32s] = {}
    first = 0
    for forest in forests:
        offset = forest.category_offset
        for test in np.flatnonzero(np.diff(offset)).tolist():
            sets[first + test] = forest.category_words[offset[test] : offset[test + 1]]
        first += forest.n_predicates
    names = "feature", "comparison", "threshold", "missing", "missing_left"
    columns = {k: np.concatenate([getattr(o, k) for o in forests]) for k in names}
    return deduplicate_predicates(**columns, categories=sets)


def _widened(forest: AnyForest, width: int, at: int) -> AnyForest:
    """Return leaves with a value for each output; of others, one that does nothing."""
    nothing = ABSENT.get(forest.aggregate, -0.0)
    leaves = np.flatnonzero(forest.leaf >= 0)
    number = forest.leaf[leaves]
    values = np.full((len(leaves), width), nothing, forest.accumulator_dtype)
    if forest.vector_leaves:
        values[:, at : at + forest.n_outputs] = forest.leaf_value[number]
    else:
        tree = np.searchsorted(forest.tree_offset, leaves, side="right") - 1
        outputs = at + forest.tree_output[tree]
        values[np.arange(len(leaves)), outputs] = forest.leaf_value[number, 0]
    leaf = np.full(forest.n_nodes, -1, np.int32)
    leaf[leaves] = np.arange(len(leaves))
    tree_output = np.full(forest.n_trees, -1)
    return replace(forest, leaf=leaf, leaf_value=values, tree_output=tree_output)


# ------------------------------------------------------------ methods of forests


def selected(forest: AnyForest, trees: Any) -> AnyForest:
    chosen = _numbers(trees, forest.n_trees)
    times = np.bincount(chosen, minlength=1)
    if times.max() > 1:
        raise InvalidInputError(
            f"trees has tree {int(times.argmax())} twice; choose each tree once, and "
            "use Forest.concatenate to add a forest again."
        )
    _check_transform(forest)
    few = subset(forest, chosen)
    if not _averages(forest):
        return few
    if not _is_average(forest):
        raise UnsupportedModelError(
            "The divisor of the sums is not the number of trees that add to each "
            f"output, {trees_by_output(forest)}, so that of other trees is unknown; "
            f"{_AT_SOURCE.format(forest.source)}."
        )
    counts = trees_by_output(few)
    if len({*counts}) > 1 or not counts[0]:
        raise InvalidInputError(
            f"The forest averages its trees, but {counts} of those chosen add to its "
            "outputs; choose as many trees for each output, and at least one."
        )
    return replace(few, **_divisors(forest, counts[0]))


def _numbers(trees: Any, n_trees: int) -> Int64s:
    index = trees if isinstance(trees, slice) else np.asarray(trees)
    if not isinstance(index, slice) and not index.size:
        index = index.astype(np.int64)
    try:
        chosen = np.atleast_1d(np.arange(n_trees)[index])
    except (IndexError, TypeError):
        chosen = np.zeros((0, 0), np.int64)
    if chosen.ndim > 1:
        raise InvalidInputError(
            f"trees must be a slice, numbers from {-n_trees} to {n_trees - 1}, or a "
            f"bool for each of the {n_trees} trees. Got {shortened(repr(trees), 100)} "
            "instead."
        )
    return chosen


def _check_transform(forest: ForestArrays) -> None:
    if forest.outputs.function in _OF_ALL_TREES:
        raise UnsupportedModelError(
            f"The transform {forest.outputs.function!r} has a constant of all trees, "
            f"which is not that of other trees; {_AT_SOURCE.format(forest.source)}."
        )


def trees_by_output(forest: ForestArrays) -> list[int]:
    if forest.vector_leaves:
        return [forest.n_trees] * forest.n_outputs
    counts = np.bincount(forest.tree_output, minlength=forest.n_outputs)
    return [*map(int, counts)]


def _averages(forest: ForestArrays) -> bool:
    return forest.divisor * forest.outputs.divisor > 1


def _is_average(forest: ForestArrays) -> bool:
    return {*trees_by_output(forest)} == {forest.divisor * forest.outputs.divisor}


def _divisors(forest: ForestArrays, divisor: int) -> dict[str, Any]:
    """Return the field with a divisor: of LightGBM, only the transform divides."""
    if forest.outputs.divisor > 1:
        return {"outputs": replace(forest.outputs, divisor=divisor)}
    return {"divisor": divisor}


#: What forests must share to be concatenated, beside their outputs.
_SHARED = (
    *("n_features", "input_dtype", "accumulator_dtype", "n_outputs", "task", "source"),
    *("missing_value", "feature_names", "category_names", "truncate_categories"),
    *("output_sizes", "class_labels", "aggregate", "wider_rows", "hashed", "outputs"),
    "category_lists",
    "closed_columns",
    "whole_columns",
    "row_norms",
)


def concatenated(
    forests: Sequence[AnyForest], weights: Sequence[float] | None, average: bool
) -> AnyForest:
    _check_alike(forests)
    average = average or any(map(_averages, forests))
    fields: dict[str, Any] = {}
    if average:
        if weights is not None:
            raise InvalidInputError(
                "weights are for forests that add up their trees, but these average "
                "them; leave weights out."
            )
        largest = max(forests, key=lambda forest: forest.outputs.divisor)
        later = largest.outputs.divisor > 1
        for number, forest in enumerate(forests):
            if not _is_average(forest) or (later and forest.divisor > 1):
                raise InvalidInputError(
                    f"Forest {number} does not average the {trees_by_output(forest)} "
                    "trees that add to its outputs as the others do, and one forest "
                    f"averages all of its trees, or none; {_INSTEAD}."
                )
        fields = _divisors(largest, sum(trees_by_output(f)[0] for f in forests))
    elif weights is not None:
        forests = _weighted(forests, weights)
    base = forests[0].base
    for forest in forests[1:]:
        base = base + forest.base
    return joined(forests, [0] * len(forests), base=base, **fields)


def _check_alike(forests: Sequence[ForestArrays]) -> None:
    first = forests[0]
    for number, forest in enumerate(forests):
        _check_transform(forest)
        for name in _SHARED:
            ours, theirs = (_comparable(f, name) for f in (first, forest))
            if ours != theirs:
                raise InvalidInputError(
                    f"{name} of forest {number} is {shortened(theirs, 200)}, but that "
                    f"of forest 0 is {shortened(ours, 200)}; {_INSTEAD}."
                )
        if forest.aggregate == "linear":
            raise UnsupportedModelError(
                f"Forest {number} has linear models in its leaves, which are not "
                f"joined; {_INSTEAD}."
            )
        if forest.scaling or np.nan_to_num(forest.outputs.offsets).any():
            raise UnsupportedModelError(
                f"Forest {number} scales its sums or adds numbers to them, which "
                f"would apply to the sums of all forests; {_INSTEAD}."
            )


def _comparable(forest: ForestArrays, name: str) -> str:
    value = getattr(forest, name)
    return repr(replace(value, divisor=1) if name == "outputs" else value)


def _weighted(
    forests: Sequence[AnyForest], weights: Sequence[float]
) -> list[AnyForest]:
    if len(weights) != len(forests) or not np.isfinite(weights).all():
        raise InvalidInputError(
            f"weights must be a finite number for each of the {len(forests)} forests. "
            f"Got {shortened(repr(weights), 200)} instead."
        )
    if forests[0].aggregate != "sum":
        raise InvalidInputError(
            f"weights are for sums, but the aggregate of these forests is "
            f"{forests[0].aggregate!r}; leave weights out."
        )
    pairs = zip(forests, map(float, weights), strict=True)
    return [
        replace(f, base=f.base * weight, leaf_value=f.leaf_value * weight)
        for f, weight in pairs
    ]
