"""Encodes the test of a node in words: threshold, feature index and flags.

Representations that store one record a tile share this module. Only flags that a forest
needs take bits: a forest without missing values or categories has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Bools, Int32s, Uint32s
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import Value
from skforge.exceptions import UnsupportedModelError
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest


@dataclass(frozen=True, slots=True, eq=False)
class EncodedTests:
    """The value each predicate reads and the threshold it compares with.

    For quantised rows these are a column of codes and the smallest code that goes
    right. There are no flags then, since codes include missing values and categories.
    """

    feature: Uint32s  # (n_predicates,)
    threshold: Array  # (n_predicates,) floats, or codes
    n_features: int
    #: The flags that tests differ in, in bit order; code is emitted only for these.
    flags: dict[str, Bools]
    all_nan_is_zero: bool = False  # true of every test, so no flag is needed
    exact_members: bool = False  # for "member": fractions are in no set

    @classmethod
    def of(cls, hir: PredictEnsemble) -> EncodedTests:
        forest, table = hir.forest, hir.codes
        if table is not None:
            least = (table.rank_of + 1).astype(table.dtype)
            return cls(table.column_of.astype(np.uint32), least, table.n_columns, {})
        flags = {k: values for k, values in flag_values(forest).items() if values.any()}
        exact = "member" in flags
        all_never = "nan_is_zero" in flags and bool(flags["nan_is_zero"].all())
        if all_never:
            del flags["nan_is_zero"]
        if exact and bool((flags["member"] == flags["category"]).all()):
            del flags["member"]
        feature, numbers = forest.feature.astype(np.uint32), stored_thresholds(forest)
        return cls(feature, numbers, forest.n_features, flags, all_never, exact)

    @property
    def are_codes(self) -> bool:
        return bool(self.threshold.dtype.kind == "u")

    @property
    def never_left(self) -> Any:
        """The threshold of a dummy, which sends every row right."""
        return self.threshold.dtype.type(0 if self.are_codes else np.nan)


@dataclass(frozen=True, slots=True)
class TestEncoding:
    """A feature index and its flags in the low bits of a u32, and a code above them."""

    tests: EncodedTests
    feature_bits: int
    code_bits: int  # bits of the code, which is in the same word
    code_at: int  # the code's lowest bit

    @classmethod
    def of(cls, hir: PredictEnsemble, code_on_top: bool = False) -> TestEncoding:
        """Choose as few bits as the forest needs.

        With ``code_on_top`` a code ends at the word's highest bit, so that one shift
        decodes it; the free bits lie between the feature index and the code.
        """
        tests = EncodedTests.of(hir)
        bits = max(1, int(tests.n_features - 1).bit_length())
        greatest = int(tests.threshold.max(initial=0)) if tests.are_codes else 0
        code_bits = greatest.bit_length()
        if bits + len(tests.flags) + code_bits > 32:
            raise UnsupportedModelError(
                f"{tests.n_features} features do not fit into a node's 32-bit word, "
                "so the model cannot be compiled."
            )
        code_at = 32 - code_bits if code_on_top else bits
        return cls(tests, bits, code_bits, code_at)

    @property
    def threshold_words(self) -> int:
        """Words of a threshold: 1 (float32), 2 (float64), 0 for codes."""
        return 0 if self.tests.are_codes else self.tests.threshold.dtype.itemsize // 4

    @property
    def free_bit(self) -> int:
        """The lowest bit that neither feature index, flags nor code use."""
        below = self.feature_bits + len(self.tests.flags)
        return below if self.code_at > below else self.bits

    @property
    def bits(self) -> int:
        return self.feature_bits + len(self.tests.flags) + self.code_bits

    def encode(self, predicate: Int32s) -> Uint32s:
        """Return the words of nodes; predicate -1 (a dummy or a leaf) gives 0."""
        tests = self.tests
        word = tests.feature.copy()
        for up, flag in enumerate(tests.flags.values(), self.feature_bits):
            word |= flag.astype(np.uint32) << np.uint32(up)
        if tests.are_codes and self.code_bits:
            word |= tests.threshold.astype(np.uint32) << np.uint32(self.code_at)
        return _take(word, predicate, np.uint32(0))

    def thresholds(self, predicate: Int32s) -> Array:
        return _take(self.tests.threshold, predicate, self.tests.never_left)

    def feature(self, word: Value) -> Value:
        return word if self.feature_bits == 32 else word & (1 << self.feature_bits) - 1

    def code(self, word: Value) -> Value:
        if not self.code_bits:
            return b.const(0, word.type)
        up = word >> self.code_at
        if self.code_at + self.code_bits == 32:
            return up
        return up & (1 << self.code_bits) - 1

    def flag(self, word: Value, flag: str) -> Value:
        bit = self.feature_bits + list(self.tests.flags).index(flag)
        return (word & 1 << bit).ne(0)


def flag_values(forest: Forest) -> dict[str, Bools]:
    return {
        "default_left": forest.missing_left & (forest.missing != Missing.NEVER),
        "category": forest.comparison >= Comparison.IN,
        "nan_is_zero": forest.missing == Missing.NEVER,
        "zero_is_missing": forest.missing == Missing.ZERO,
        "equal": forest.comparison == Comparison.EQ,
        "member": forest.comparison == Comparison.MEMBER,
    }


def stored_thresholds(forest: Forest) -> NDArray[np.floating[Any]]:
    """Return each predicate's threshold; for sets, the set's number as bits."""
    value: NDArray[np.floating[Any]] = forest.threshold.copy()
    category = forest.comparison >= Comparison.IN
    as_int = np.uint32 if value.dtype == np.float32 else np.uint64
    bits = value.view(as_int)
    bits[category] = np.cumsum(category)[category] - 1
    return value


@dataclass(frozen=True, slots=True, eq=False)
class NodeTests:
    """The tests of every HIR tile as plain arrays, for custom layouts."""

    #: What ``load_threshold`` must return: in the forest's input dtype, or unsigned
    #: integers where rows are quantised.
    threshold: Array
    #: What ``load_feature_index`` must return; 0 for leaves and dummies.
    feature: Uint32s
    #: What ``load_flag`` must return, for each flag that it can be asked for. A forest
    #: without missing values or categories has none.
    flags: dict[str, Bools]


def node_tests(hir: PredictEnsemble) -> NodeTests:
    tests, predicate = EncodedTests.of(hir), hir.tiles.predicate
    return NodeTests(
        _take(tests.threshold, predicate, tests.never_left),
        _take(tests.feature, predicate, np.uint32(0)),
        {
            flag: _take(values, predicate, np.False_)
            for flag, values in tests.flags.items()
        },
    )


def _take(table: Array, index: Int32s, missing: Any) -> Array:
    return np.append(table, np.asarray(missing, table.dtype))[index]
