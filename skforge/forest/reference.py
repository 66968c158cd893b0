"""The oracle: evaluates a forest in NumPy, slowly, with the bits of its source."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skforge._typing import Array, Bools, Float64s, Int32s
from skforge.exceptions import InvalidInputError
from skforge.forest.arrays import ZERO_THRESHOLD, Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.leaves import scores_of_leaves
from skforge.forest.rows import read_columns, whole_range

_CELLS = 1 << 20  # row-tree pairs walked at a time, to bound memory
_MOST_CUTS = 1 << 18  # thresholds around which rows are drawn
_COMPARE = {
    Comparison.LT: np.less, Comparison.LE: np.less_equal, Comparison.GT: np.greater,
    Comparison.GE: np.greater_equal, Comparison.EQ: np.equal,
    Comparison.NE: np.not_equal,
}  # fmt: skip


def reference_leaves(forest: Forest, X: ArrayLike) -> Int32s:
    """Return the node that each row reaches in each tree, int32 of (n, n_trees).

    Index ``source_node`` with it to get the source's numbers.
    """
    rows = cast_rows(forest, X)
    leaves = np.empty((len(rows), forest.n_trees), dtype=np.int32)
    step = max(1, _CELLS // max(1, forest.n_trees))
    for start in range(0, len(rows), step):
        leaves[start : start + step] = _walk(forest, rows[start : start + step])
    return leaves


@np.errstate(over="ignore", invalid="ignore")  # sums may pass the largest number
def reference_raw(forest: Forest, X: ArrayLike) -> Array:
    """Return the raw scores (margins, averages) of each row, (n, n_outputs).

    Sums start from ``base`` and add one tree at a time, in tree order and in the
    accumulator's dtype; averages are divided once at the end. Forests with another
    ``aggregate`` use the minimum or maximum.
    """
    leaf = forest.leaf[reference_leaves(forest, X)]
    if forest.aggregate != "sum":
        return scores_of_leaves(forest, leaf, cast_rows(forest, X))
    total = np.tile(forest.base, (len(leaf), 1))
    for tree, output in enumerate(forest.tree_output):
        part = total if output < 0 else total[:, output : output + 1]
        part += forest.leaf_value[leaf[:, tree]]
    forest.finish(total)
    return total


def sum_limits(forest: Forest, rows: Array, reduction: str) -> Float64s:
    """Return how far each row's sums may be off, for any order of its terms."""
    if reduction == "exact" or forest.aggregate != "sum":
        return np.zeros(len(rows))
    leaf = forest.leaf[reference_leaves(forest, rows)]
    size = np.abs(forest.leaf_value).max(axis=1)[leaf].sum(axis=1, dtype=np.float64)
    size += np.abs(forest.base[np.isfinite(forest.base)]).max(initial=0.0)
    limit = forest.n_trees * 2.0**-23 * size / forest.divisor
    limit *= abs(forest.scaling[0]) if forest.scaling else 1.0
    return np.asarray(np.maximum(limit, 5e-324))  # a sum of zeros may be -0.0


def differing_rows(
    values: Array, expected: Array, limit: Array | None = None
) -> NDArray[np.intp]:
    """Return the rows that differ in a bit, or by more than each row's ``limit`` > 0.

    All rows differ if shape or dtype do. In bits, NaN equals itself, and 0.0 differs
    from -0.0.

    >>> differing_rows(np.array([0.0, 1.0, np.nan]), np.array([-0.0, 1.0, np.nan]))
    array([0])
    """
    if values.shape != expected.shape or values.dtype != expected.dtype:
        return np.arange(len(values))
    if values.size == 0:
        return np.arange(0)
    if limit is None or not limit.any():
        parts: Any = values, expected
        if values.dtype != np.object_:  # objects, such as labels, have no bits
            if values.dtype.kind == "f":  # there are NaNs of two signs
                parts = (np.where(np.isnan(x), x.dtype.type(np.nan), x) for x in parts)
            parts = (np.ascontiguousarray(x).view(np.uint8) for x in parts)
        a, b = (part.reshape(len(values), -1) for part in parts)
        return np.flatnonzero((a != b).any(axis=1))
    with np.errstate(invalid="ignore"):  # the difference of infinities
        gap = np.abs(values.astype(np.float64) - expected.astype(np.float64))
    gap[(values == expected) | (np.isnan(values) & np.isnan(expected))] = 0.0
    bad = ~(gap.reshape(len(gap), -1) <= limit.reshape(-1, 1))
    return np.flatnonzero(bad.any(axis=1))


def cast_rows(forest: Forest, X: ArrayLike) -> Array:
    with np.errstate(over="ignore"):
        rows: Array = np.array(X, dtype=forest.input_dtype)
        marker = forest.input_dtype.type(forest.missing_value)
    rows = read_columns(forest, rows)
    if rows.ndim != 2 or rows.shape[1] != forest.n_features:
        raise InvalidInputError(
            f"X has shape {rows.shape}, but the model takes rows of shape (n, "
            f"{forest.n_features})."
        )
    if not np.isnan(marker):
        rows[rows == marker] = np.nan
    return rows


def _walk(forest: Forest, rows: Array) -> Int32s:
    at = np.tile(forest.tree_offset[:-1].astype(np.int32), (len(rows), 1))
    row, tree = np.nonzero(forest.left[at] >= 0)
    while len(row):
        node = at[row, tree]
        predicate = forest.predicate[node]
        value = rows[row, forest.feature[predicate]]
        goes_left = evaluate_predicates(forest, predicate, value)
        node = np.where(goes_left, forest.left[node], forest.right[node])
        at[row, tree] = node
        going = forest.left[node] >= 0
        row, tree = row[going], tree[going]
    return at


def evaluate_predicates(forest: Forest, predicate: Array, value: Array) -> Bools:
    """Tell for each predicate and value whether the row goes left.

    Values are in ``forest.input_dtype``, with NaN for the source's missing value.
    """
    kind = forest.missing[predicate]
    is_nan = np.isnan(value)
    is_missing = is_nan & (kind != Missing.NEVER)
    is_missing |= (kind == Missing.ZERO) & (np.abs(value) <= ZERO_THRESHOLD)
    value = np.where(is_nan, value.dtype.type(0), value)
    test = forest.comparison[predicate]
    threshold = forest.threshold[predicate]
    result = np.zeros(len(value), dtype=np.bool_)
    for comparison, compare in _COMPARE.items():
        at = test == comparison
        result[at] = compare(value[at], threshold[at])
    at = test >= Comparison.IN
    test, tested = test[at], value[at]
    inside = _in_set(forest, predicate[at], tested)
    fraction = (test == Comparison.MEMBER) & (tested != np.trunc(tested))
    result[at] = np.where(test == Comparison.NOT_IN, ~inside, inside & ~fraction)
    return np.where(is_missing, forest.missing_left[predicate], result)


def _in_set(forest: Forest, predicate: Array, value: Array) -> Bools:
    if not len(forest.category_words):
        return np.zeros(len(value), np.bool_)
    start = forest.category_offset[predicate]
    bits = (forest.category_offset[predicate + 1] - start) * 32
    above = value > -1 if forest.truncate_categories else value >= 0
    inside = above & (value < bits) & (bits > 0)
    category = np.where(inside, value, 0).astype(np.int64)
    word = forest.category_words[np.where(inside, start + category // 32, 0)]
    bit = (word >> (category % 32).astype(np.uint32)) & np.uint32(1)
    return np.asarray(inside & (bit != 0))


def draw_rows(forest: Forest, n: int, seed: int, missing: float = 0.0) -> Array:
    """Draw ``n`` rows that exercise a forest's thresholds and categories.

    Each feature is uniform within a random gap between its sorted thresholds; a tenth
    of the values are a threshold or an adjacent floating-point number. ``missing`` is
    the share of values that are missing.
    """
    random = np.random.default_rng(seed)
    rows = random.standard_normal((n, forest.n_features)).astype(forest.input_dtype)
    in_sets = forest.comparison >= Comparison.IN
    with np.errstate(over="ignore", under="ignore"):
        _draw_around(rows, forest.feature, forest.threshold, random)
    for feature in sorted({*forest.feature[in_sets].tolist()}):
        sets = np.flatnonzero(in_sets & (forest.feature == feature))
        rows[:, feature] = _draw_categories(forest, sets, n, random)
    rows[random.random(rows.shape) < missing] = forest.missing_value
    for column, bits in forest.whole_columns:
        least, most = whole_range(bits, forest.input_dtype)
        whole = np.round(np.nan_to_num(rows[:, column]))
        rows[:, column] = whole.clip(least, most)
    return rows


def _draw_around(
    rows: Array, feature: Int32s, threshold: Array, random: np.random.Generator
) -> None:
    if len(feature) > _MOST_CUTS:  # sorting 12 million takes 3 s
        some = np.append(True, feature[1:] != feature[:-1])
        some[:: len(feature) // _MOST_CUTS] = True
        feature, threshold = feature[some], threshold[some]
    finite = np.flatnonzero(np.isfinite(threshold))
    at = finite[np.lexsort((threshold[finite], feature[finite]))]
    column, cuts = feature[at], threshold[at]
    new = (np.diff(column, prepend=-1) != 0) | (np.diff(cuts, prepend=0) != 0)
    cuts = cuts[new]
    column = column[new]  # sorted; ``np.unique`` imports masked arrays, in 7 ms
    first = np.flatnonzero(np.diff(column, prepend=-1))
    columns, count = column[first], np.diff(first, append=len(column))
    least, most = (cuts[i].astype(np.float64) for i in (first, first + count - 1))
    margin = np.maximum(np.abs(least) * 1e-3, most / 4 - least / 4).clip(1e-30)
    # the edges of a column's gaps: its cuts, and one more at either end
    start = first + 2 * np.arange(len(first))
    edges = np.empty(len(cuts) + 2 * len(first))
    edges[start], edges[start + count + 1] = least - margin, most + margin
    edges[np.arange(len(cuts)) + 2 * np.repeat(np.arange(len(first)), count) + 1] = cuts
    info = np.finfo(cuts.dtype)
    edges = edges.clip(info.min, info.max)
    step = max(1, _CELLS // max(1, len(columns)))
    for part in (rows[i : i + step] for i in range(0, len(rows), step)):
        shape = len(part), len(columns)
        gap = start + (random.random(shape) * (count + 1)).astype(np.intp)
        share = random.random(shape)
        values = (edges[gap] * (1 - share) + edges[gap + 1] * share).astype(cuts.dtype)
        on = np.nonzero(random.random(shape) < 0.1)
        which = (random.random(len(on[1])) * count[on[1]]).astype(np.intp)
        tie = first[on[1]] + which
        ways = np.array([-np.inf, np.nan, np.inf], cuts.dtype)  # NaN: none
        toward = random.choice(ways, len(tie))
        near = np.nextafter(cuts[tie], toward)
        values[on] = np.where(np.isfinite(near), near, cuts[tie])
        part[:, columns] = values


def _draw_categories(
    forest: Forest, sets: Array, n: int, random: np.random.Generator
) -> Array:
    words = int(np.max(np.diff(forest.category_offset)[sets]))
    highest = words * 32 + 3
    values: Array = random.integers(0, highest, n).astype(forest.input_dtype)
    odd = random.random(n)
    values[odd < 0.05] += forest.input_dtype.type(0.5)  # truncated to the category
    values[odd < 0.02] = -1
    values[odd < 0.015] = -0.5  # negative, or category 0 if truncated
    values[odd < 0.01] = 1 << 24
    return values
