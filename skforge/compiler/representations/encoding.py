"""How a node's test is written into words: thresholds, feature numbers and flags.

Shared by the representations that store one record a tile. Only the flags a forest
needs take bits: a forest without missing values or categories has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest import Comparison, Forest, Missing
from skforge.compiler.ir.builder import Builder, with_lanes
from skforge.compiler.ir.lir import BOOL, U32, Value
from skforge.exceptions import UnsupportedModelError

#: Flags of a test, in bit order above the feature number.
FLAGS = (
    *("default_left", "category", "nan_is_zero", "zero_is_missing"),
    *("equal", "member"),
)


@dataclass(frozen=True, slots=True)
class TestFacts:
    """Which kinds of test a normalised forest holds; code is written only for these."""

    flags: tuple[str, ...]
    all_nan_is_zero: bool = False  # every test, so that no flag is needed
    has_categories: bool = False
    exact_members: bool = False  # a fraction is in no set (of those with "member")

    @classmethod
    def of(cls, forest: Forest) -> TestFacts:
        """Look at every predicate of a forest."""
        missing = forest.missing
        category = forest.comparison >= Comparison.IN
        member = forest.comparison == Comparison.MEMBER
        flags = []
        never = bool((missing == Missing.NEVER).any())
        all_never = never and bool((missing == Missing.NEVER).all())
        if bool((forest.missing_left & (missing != Missing.NEVER)).any()):
            flags.append("default_left")
        if bool(category.any()):
            flags.append("category")
        if never and not all_never:
            flags.append("nan_is_zero")
        if bool((missing == Missing.ZERO).any()):
            flags.append("zero_is_missing")
        if bool((forest.comparison == Comparison.EQ).any()):
            flags.append("equal")
        if bool(member.any()) and bool((category & ~member).any()):
            flags.append("member")
        return cls(tuple(flags), all_never, bool(category.any()), bool(member.any()))


@dataclass(frozen=True, slots=True)
class TestEncoding:
    """A feature number and its flags in the low bits of a u32."""

    facts: TestFacts
    feature_bits: int

    @classmethod
    def of(cls, forest: Forest) -> TestEncoding:
        """Choose as few bits as the forest needs."""
        facts = TestFacts.of(forest)
        bits = max(1, int(forest.n_features - 1).bit_length())
        if bits + len(facts.flags) > 32:
            raise UnsupportedModelError(
                f"{forest.n_features} features do not fit a node's 32-bit word."
            )
        return cls(facts, bits)

    @property
    def bits(self) -> int:
        """Bits a feature number and its flags take."""
        return self.feature_bits + len(self.facts.flags)

    def encode(
        self, forest: Forest, predicate: NDArray[np.int32]
    ) -> NDArray[np.uint32]:
        """Return the words of nodes; predicate -1 (a dummy or a leaf) is 0."""
        word = forest.feature.astype(np.uint32)
        values = flag_values(forest)
        for i, flag in enumerate(self.facts.flags):
            word |= values[flag].astype(np.uint32) << np.uint32(self.feature_bits + i)
        return _take(word, predicate, np.uint32(0))

    def thresholds(
        self, forest: Forest, predicate: NDArray[np.int32]
    ) -> NDArray[np.floating[Any]]:
        """Return what tests compare with; see :func:`stored_thresholds`."""
        return stored_thresholds(forest, predicate)

    def feature(self, b: Builder, word: Value) -> Value:
        """Decode the feature number of a word."""
        if not self.facts.flags and self.feature_bits == 32:
            return word
        return b.binary("and", word, (1 << self.feature_bits) - 1)

    def flag(self, b: Builder, word: Value, flag: str) -> Value:
        """Decode a flag of a word as a truth value."""
        bit = self.feature_bits + self.facts.flags.index(flag)
        picked = b.binary("and", word, 1 << bit)
        return b.compare("ne", picked, b.const(0, with_lanes(U32, picked.type)))


def flag_values(forest: Forest) -> dict[str, NDArray[np.bool_]]:
    """Return the value of every flag for each predicate."""
    return {
        "default_left": forest.missing_left & (forest.missing != Missing.NEVER),
        "category": forest.comparison >= Comparison.IN,
        "nan_is_zero": forest.missing == Missing.NEVER,
        "zero_is_missing": forest.missing == Missing.ZERO,
        "equal": forest.comparison == Comparison.EQ,
        "member": forest.comparison == Comparison.MEMBER,
    }


def stored_thresholds(
    forest: Forest, predicate: NDArray[np.int32]
) -> NDArray[np.floating[Any]]:
    """Return what the tests of nodes compare with.

    A dummy (predicate -1) has NaN, below which nothing is: false for every row. A
    category test holds the number of its set as bits.
    """
    value = forest.threshold.copy()
    category = forest.comparison >= Comparison.IN
    as_int = np.uint32 if value.dtype == np.float32 else np.uint64
    bits = value.view(as_int)
    bits[category] = np.cumsum(category)[category] - 1
    return _take(value, predicate, value.dtype.type(np.nan))


@dataclass(frozen=True, slots=True, eq=False)
class NodeTests:
    """The tests of every HIR tile as plain arrays, for layouts of one's own.

    Attributes
    ----------
    threshold : ndarray of shape (n_items, tile_size)
        What ``load_threshold`` must return, in the forest's input dtype.
    feature : ndarray of uint32, shape (n_items, tile_size)
        What ``load_feature_index`` must return; 0 for leaves and dummies.
    flags : dict of str to ndarray of bool, shape (n_items, tile_size)
        What ``load_flag`` must return, for each flag it can be asked for. A forest
        without missing values or categories has none.
    """

    threshold: NDArray[np.floating[Any]]
    feature: NDArray[np.uint32]
    flags: dict[str, NDArray[np.bool_]]


def node_tests(forest: Forest, predicate: NDArray[np.int32]) -> NodeTests:
    """Return the tests of ``tiles.predicate`` of a normalised forest."""
    values = flag_values(forest)
    return NodeTests(
        stored_thresholds(forest, predicate),
        _take(forest.feature.astype(np.uint32), predicate, np.uint32(0)),
        {
            flag: _take(values[flag], predicate, np.False_)
            for flag in TestFacts.of(forest).flags
        },
    )


def _take(table: NDArray[Any], index: NDArray[np.int32], missing: Any) -> NDArray[Any]:
    """``table[index]`` with ``missing`` where the index is -1."""
    if not len(table):
        return np.full(index.shape, missing, table.dtype)
    taken = table[np.maximum(index, 0)]
    taken[index < 0] = missing
    return taken


def category_tables(
    forest: Forest,
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]:
    """Return each set's first word, its number of words, and all words (one spare)."""
    category = np.flatnonzero(forest.comparison >= Comparison.IN)
    start = forest.category_offset[:-1][category].astype(np.uint32)
    count = np.diff(forest.category_offset)[category].astype(np.uint32)
    words = np.append(forest.category_words, np.uint32(0)).astype(np.uint32)
    return start, count, words


__all__ = [
    "BOOL",
    "FLAGS",
    "NodeTests",
    "TestEncoding",
    "TestFacts",
    "category_tables",
    "flag_values",
    "node_tests",
    "stored_thresholds",
]
