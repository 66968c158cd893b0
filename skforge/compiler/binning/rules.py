"""How tests read rows, scalar or vector: rules for missing values and categories."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Bools, Int64s, Uint32s
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import I32, I64, U32, Buffer, CompareOp, Value
from skforge.forest.arrays import ZERO_THRESHOLD, Comparison, Missing
from skforge.forest.bins import THRESHOLDS
from skforge.forest.forest import Forest

AnyArray = Array

#: Declares a buffer of model data (once for each name) and returns it.
Model: TypeAlias = Callable[[str, AnyArray], Buffer]

#: Returns which tests have a rule for missing values; None: all.
IsKind: TypeAlias = Callable[[Missing], "Value | None"]


@dataclass(frozen=True, slots=True)
class BlockRows:
    """The rows of one block: where they start, and how many the batch has."""

    rows: Buffer
    n_rows: Value
    stride: Value
    first: Value
    n_features: int


@dataclass(frozen=True, slots=True)
class RowAt:
    rows: Buffer
    start: Value


class ThresholdPool:
    def __init__(self, align: int = 1, fill: float = np.inf) -> None:
        self._parts: list[AnyArray] = []
        self._align, self._fill, self._size = align, fill, 0

    def add(self, part: AnyArray) -> int:
        if padding := -len(part) % self._align:
            part = np.pad(part, (0, padding), constant_values=self._fill)
        self._parts.append(part)
        self._size += len(part)
        return self._size - len(part)

    def array(self, dtype: Any, spare: int = 0) -> AnyArray:
        return np.concatenate([*self._parts, np.zeros(spare)]).astype(dtype)


#: The first number that is not a category in any set: no set has a word for it.
NO_CATEGORY = 1 << 31


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """Emits how the tests of a normalised forest, all "lt" or all "le", read values."""

    forest: Forest
    comparison: str
    model: Model

    @property
    def passes(self) -> CompareOp:
        return "ge" if self.comparison == "lt" else "gt"

    # ------------------------------------------------------------ sides

    def goes_right(
        self,
        x: Value,
        number: Value,
        test: int = THRESHOLDS,
        exact: Value | None = None,
        unordered: bool = False,
    ) -> Value:
        """Return whether a test sends x right, which is a value that is not missing.

        ``number`` is the threshold, or the number of a set. If it is ``unordered``, a
        test of numbers sends NaN right. ``exact`` tells, at run time, which sets are
        tested by MEMBER.
        """
        if test >= Comparison.IN:
            members = test == Comparison.MEMBER if exact is None else exact
            return ~self.in_set(number, x, members)
        op = "ne" if test == Comparison.EQ else self.passes
        return b.compare(op, x, number, unordered=unordered)

    # ------------------------------------------------------------ missing values

    def zero_for_nan(self, x: Value) -> Value:
        return b.select(b.is_nan(x), 0.0, x)

    def is_tiny(self, x: Value) -> Value:
        """Return whether x counts as zero, which is missing under ``Missing.ZERO``."""
        return (x <= ZERO_THRESHOLD) & (x >= -ZERO_THRESHOLD)

    def is_missing(self, x: Value, rule: Missing) -> Value:
        is_nan = b.is_nan(x)
        return is_nan if rule != Missing.ZERO else is_nan | self.is_tiny(x)

    def nan_if_missing(self, x: Value, rule: Missing) -> Value:
        if rule == Missing.NEVER:
            return self.zero_for_nan(x)
        if rule == Missing.ZERO:
            nan = b.const(float("nan"), x.type)
            return b.select(self.is_tiny(x), nan, x)
        return x

    def compared(self, raw: Value, kinds: Collection[int], is_kind: IsKind) -> Value:
        """Return the value to compare: 0 for NaN where no value is missing.

        ``kinds`` are the rules of the tests, and ``is_kind`` says which have one.
        """
        if Missing.NEVER not in kinds:
            return raw
        nan = self._with(is_kind, Missing.NEVER, b.is_nan(raw))
        return b.select(nan, 0.0, raw)

    def missing(
        self, raw: Value, x: Value, kinds: Collection[int], is_kind: IsKind
    ) -> Value:
        missing = b.is_nan(x)
        if Missing.ZERO not in kinds:
            return missing
        return missing | self._with(is_kind, Missing.ZERO, self.is_tiny(raw))

    @staticmethod
    def _with(is_kind: IsKind, kind: Missing, mask: Value) -> Value:
        of_kind = is_kind(kind)
        return mask if of_kind is None else mask & of_kind

    # ------------------------------------------------------------ categories

    def _category(self, x: Value, most: int, other: int) -> Value:
        """Return the category of x, or ``other`` if it is none below ``most``.

        It is still a number, whose fraction does not count.
        """
        # Choices one after another need no logic of masks, and the second one is a
        # minimum if both numbers are the same.
        above = x > -1.0 if self.forest.truncate_categories else x >= 0.0
        x = b.select(above, x, float(other))
        return b.select(x < float(most), x, float(other))

    def category_entry(self, x: Value, entries: int, exact: bool = False) -> Value:
        """Return x's entry in a table of sets; the last two: missing, and in no set.

        With ``exact`` a number with a fraction is not a category.
        """
        found = self._category(x, entries - 2, entries - 1)
        found = b.select(b.is_nan(x), float(entries - 2), found)
        code = found.to(I32)
        if exact:
            code = b.select(code.to(x.type.element).eq(found), code, entries - 1)
        return code

    def in_set(self, number: Value, x: Value, exact: Value | bool = False) -> Value:
        """Return whether x is a category of a set, so that the row goes left.

        ``number`` is the set's number. With ``exact`` a number with a fraction is in no
        set. Both may be scalars. The result for a missing value is unspecified.
        """
        n = x.type.lanes
        start, size, words = category_tables(self.forest)
        starts = self.model("category_start", start)
        sizes = self.model("category_count", size)
        table = self.model("category_words", words)

        def spread(value: Value) -> Value:
            return value if value.type.lanes else b.splat(value, n)

        number = number.to(I64)
        first = spread(starts[number].to(I64))
        held = spread(sizes[number].to(I64))
        code = self._category(x, NO_CATEGORY, NO_CATEGORY).to(U32)
        word = (code >> 5).to(I64)
        inside = word < held
        if exact is not False:
            whole = code.to(x.type.element).eq(x)
            inside &= whole if exact is True else whole | spread(~exact)
        # Then read the spare word instead, so that no load leaves the table.
        spare = spread(b.const(len(words) - 1))
        bit = table[b.select(inside, first + word, spare)] >> (code & 31) & 1
        return inside & bit.ne(0)


def category_tables(forest: Forest) -> tuple[Uint32s, Uint32s, Uint32s]:
    """Return each set's first word, its number of words, and all words (one spare)."""
    category = np.flatnonzero(forest.comparison >= Comparison.IN)
    start = forest.category_offset[:-1][category].astype(np.uint32)
    count = np.diff(forest.category_offset)[category].astype(np.uint32)
    words = np.append(forest.category_words, np.uint32(0)).astype(np.uint32)
    return start, count, words


def set_numbers(forest: Forest) -> Int64s:
    return np.cumsum(forest.comparison >= Comparison.IN) - 1


def set_members(
    forest: Forest, predicates: NDArray[np.integer[Any]], words: int | None = None
) -> Bools:
    offset = forest.category_offset
    begin, end = offset[predicates], offset[predicates + 1]
    most = int((end - begin).max(initial=0)) if words is None else words
    at = begin[:, None] + np.arange(most)
    spare = len(forest.category_words)
    padded = np.append(forest.category_words, np.uint32(0))
    held = padded[np.where(at < end[:, None], at, spare)].astype("<u4")
    members = np.unpackbits(held.view(np.uint8), axis=1, bitorder="little")
    return members.astype(np.bool_)


def set_answers(
    forest: Forest, predicates: NDArray[np.integer[Any]], words: int | None = None
) -> Bools:
    """Return what sets send right, a set a row: categories, missing values, others."""
    inside = set_members(forest, predicates, words)
    missing = ~forest.missing_left[predicates][:, None]
    return np.hstack([~inside, missing, np.ones_like(missing)])
