"""Turns the parts on which tests are true into predicates of a forest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.arrays import Array, Comparison
from skforge.compiler.frontends.pipeline.codes import NumberCodes, TextCodes
from skforge.compiler.frontends.pipeline.fold import Flags, Parts

Words = NDArray[np.uint32]

#: Greatest whole number in a set of numbers that are not coded.
_MOST_IN_SET = 4095


@dataclass(frozen=True, slots=True)
class Predicates:
    """The tests of a forest, on the pipeline's own rows.

    Tests in ``swapped`` are true where the forest's were false.
    """

    comparison: NDArray[np.uint8]
    threshold: Array
    categories: dict[int, Words]
    swapped: Flags


def predicates_of(
    parts: Parts,
    source: Array,
    pieces: dict[int, Array],
    refused: dict[int, Flags],
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

    def of(one: int) -> slice:
        return slice(starts[one], starts[one] + count[one])

    numbers = [one for one in odd.tolist() if source[one] not in texts]
    coded = {
        int(source[one])
        for one in numbers
        if source[one] in refused
        or not _is_set(first[of(one)], last[of(one)], answer[of(one)])
    }
    codes = {}
    for column in sorted(coded):
        own = source[test] == column
        none = np.zeros(0, dtype)
        ends = np.unique(np.concatenate([last[own], pieces.get(column, none)]))
        at = np.searchsorted(pieces.get(column, ends), ends)
        flags = refused.get(column, np.zeros(len(ends), np.bool_))
        codes[column] = NumberCodes(ends, flags[at], coded=True)
        first[own] = np.searchsorted(ends, first[own])
        last[own] = np.searchsorted(ends, last[own])
    point = (count == 3) & (first[middle] == last[middle])
    begins = answer[starts]
    comparison = np.where(begins, Comparison.LE, Comparison.GT).astype(np.uint8)
    threshold = np.where(count == 1, dtype.type(np.inf), last[starts])
    threshold[point] = first[middle[point]]
    comparison[point] = np.where(begins[point], Comparison.NE, Comparison.EQ)
    swapped = np.zeros(n_tests, np.bool_)
    categories = {}
    for one in np.flatnonzero((count > 2) & ~point).tolist():
        # MEMBER alone asks for whole numbers; its opposite is a swap of children
        raw = source[one] not in texts and source[one] not in coded
        comparison[one] = Comparison.MEMBER if raw else Comparison.IN
        swapped[one] = raw and answer[starts[one]]
        among = answer[of(one)] != swapped[one]
        categories[one] = _words(first[of(one)][among], last[of(one)][among])
    for column, flags in refused.items():
        if column not in codes and flags.any():
            codes[column] = NumberCodes(pieces[column], flags, coded=False)
    return Predicates(comparison, threshold, categories, swapped), codes


def _is_set(first: Array, last: Array, answer: Flags) -> bool:
    """Tell whether the answer differs at a few whole numbers alone."""
    odd = answer != answer[0]
    value = first[odd]
    whole = (value == last[odd]) & (value == np.trunc(value)) & (value >= 0)
    return bool((whole & (value <= _MOST_IN_SET)).all() and answer[-1] == answer[0])


def _words(first: Array, last: Array) -> Words:
    """Return ranges of whole numbers as a set, in words of bits."""
    inside = np.zeros(32 * (int(last.max(initial=0)) // 32 + 1), np.bool_)
    for begin, end in zip(first.astype(int), last.astype(int), strict=True):
        inside[begin : end + 1] = True
    return np.packbits(inside, bitorder="little").view(np.uint32)
