"""From where tests are true, to predicates of a Forest on the rows before the steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Bools, Uint32s
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.predicates import deduplicate_predicates
from skforge.forest.reference import evaluate_predicates
from skforge.frontends.pipeline import fold
from skforge.frontends.pipeline.bounds import Bounds
from skforge.frontends.pipeline.codes import NumberCodes, TextCodes
from skforge.frontends.pipeline.columns import ColumnPlan
from skforge.frontends.pipeline.fold import TrueParts

#: Greatest whole number in a set of numbers that are not coded.
_MOST_IN_SET = 4095


class Predicates(NamedTuple):
    comparison: NDArray[np.uint8]
    threshold: Array
    categories: dict[int, Uint32s]
    swapped: Bools


def predicates_of(
    parts: TrueParts,
    source: Array,
    pieces: dict[int, Array],
    refused: dict[int, Bools],
    texts: dict[int, TextCodes],
) -> tuple[Predicates, dict[int, NumberCodes]]:
    """Return the predicates of tests, and the codes of columns of numbers.

    ``source`` is each test's column of the rows. Numbers are coded if a test of their
    column is neither a threshold, an equality, nor a set of whole numbers.
    """
    order = np.argsort(parts.test, kind="stable")
    test, answer = parts.test[order], parts.answer[order]
    first, last = parts.first[order], parts.last[order]
    n_tests, dtype = len(source), last.dtype
    starts = np.searchsorted(test, np.arange(n_tests))
    count = np.bincount(test, minlength=n_tests)
    middle = np.minimum(starts + 1, len(test) - 1)
    point = (count == 3) & (first[middle] == last[middle])
    odd = np.flatnonzero((count > 2) & ~point)

    def of(k: int) -> slice:
        return slice(starts[k], starts[k] + count[k])

    numbers = [k for k in odd.tolist() if source[k] not in texts]
    coded = {
        int(source[k])
        for k in numbers
        if source[k] in refused or not _is_set(first[of(k)], last[of(k)], answer[of(k)])
    }
    codes = {}
    for column in sorted(coded):
        tests = source[test] == column
        none = np.zeros(0, dtype)
        ends = np.unique(np.concatenate([last[tests], pieces.get(column, none)]))
        at = np.searchsorted(pieces.get(column, ends), ends)
        flags = refused.get(column, np.zeros(len(ends), np.bool_))
        codes[column] = NumberCodes(ends, flags[at], coded=True)
        first[tests] = np.searchsorted(ends, first[tests])
        last[tests] = np.searchsorted(ends, last[tests])
    point = (count == 3) & (first[middle] == last[middle])
    begins = answer[starts]
    comparison = np.where(begins, Comparison.LE, Comparison.GT).astype(np.uint8)
    threshold = np.where(count == 1, dtype.type(np.inf), last[starts])
    threshold[point] = first[middle[point]]
    comparison[point] = np.where(begins[point], Comparison.NE, Comparison.EQ)
    swapped = np.zeros(n_tests, np.bool_)
    categories = {}
    for k in np.flatnonzero((count > 2) & ~point).tolist():
        # MEMBER alone asks for whole numbers; its opposite is a swap of children
        raw = source[k] not in texts and source[k] not in coded
        comparison[k] = Comparison.MEMBER if raw else Comparison.IN
        swapped[k] = raw and answer[starts[k]]
        among = answer[of(k)] != swapped[k]
        categories[k] = _words(first[of(k)][among], last[of(k)][among])
    for column, flags in refused.items():
        if column not in codes and flags.any():
            codes[column] = NumberCodes(pieces[column], flags, coded=False)
    return Predicates(comparison, threshold, categories, swapped), codes


def _is_set(first: Array, last: Array, answer: Bools) -> bool:
    odd = answer != answer[0]
    value = first[odd]
    whole = (value == last[odd]) & (value == np.trunc(value)) & (value >= 0)
    return bool((whole & (value <= _MOST_IN_SET)).all() and answer[-1] == answer[0])


def _words(first: Array, last: Array) -> Uint32s:
    inside = np.zeros(32 * (int(last.max(initial=0)) // 32 + 1), np.bool_)
    for begin, end in zip(first.astype(int), last.astype(int), strict=True):
        inside[begin : end + 1] = True
    return np.packbits(inside, bitorder="little").view(np.uint32)


def on_rows(
    plan: ColumnPlan,
    forest: Forest,
    bounds: Bounds,
    texts: dict[int, TextCodes],
    source: Array,
    tests: Predicates,
    end: int,
    rows: dict[str, Any],
    missing: Bools | None = None,
) -> Forest:
    """Return the forest on the rows of the plan; ``missing``: the answers to NaN."""
    start = end - forest.n_predicates
    source, swaps = source[start:end], tests.swapped[start:end]
    missing = at_missing(plan, forest, texts) if missing is None else missing
    # where NaN is refused, it joins all values but one, as codes of tiles want it
    some = bounds.nan[source] | np.isin(source, [*texts])
    most = tests.comparison[start:end] == Comparison.NE
    missing = np.where(some, missing, most)
    sets = {i - start: w for i, w in tests.categories.items() if start <= i < end}
    columns = source, tests.comparison[start:end], tests.threshold[start:end]
    sides = missing ^ swaps
    distinct, index = deduplicate_predicates(*columns, Missing.NAN, sides, sets)
    swapped = np.append(swaps, False)[forest.predicate]
    fields: dict[str, Any] = {
        **distinct,
        **rows,
        "predicate": np.append(index, np.int32(-1))[forest.predicate],
        "left": np.where(swapped, forest.right, forest.left),
        "right": np.where(swapped, forest.left, forest.right),
        "source_feature": np.append(forest.feature, np.int32(-1))[forest.predicate],
        "missing_value": np.nan,
        "truncate_categories": False,
    }
    return replace(forest, **fields)


def at_missing(plan: ColumnPlan, forest: Forest, texts: dict[int, TextCodes]) -> Bools:
    rows = {source: np.full(1, np.nan, plan.dtype) for source in range(plan.width)}
    missing = np.full(1, np.nan)
    rows |= {source: codes.values(missing) for source, codes in texts.items()}
    values = np.concatenate(plan.values(plan.columns, rows) or [np.zeros(0)])
    values = fold.last_values(plan, forest, values)
    every = np.arange(forest.n_predicates)
    return evaluate_predicates(forest, every, values[forest.feature])
