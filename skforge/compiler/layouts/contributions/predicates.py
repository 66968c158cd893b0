"""Tests of predicates, sorted by feature and kind.

All kinds of tests are evaluated; missing values follow the rule of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.binning.rules import Rules, set_numbers
from skforge.compiler.forest.arrays import Comparison, Missing
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import CompareOp, Value


@dataclass(frozen=True, slots=True, eq=False)
class Tests:
    """The predicates of a normalised forest, by feature and kind of test."""

    kinds: tuple[tuple[Comparison, Missing, bool], ...]
    of_line: NDArray[np.int64]  # (2, n_lines): feature and kind
    jobs: NDArray[np.int64]  # (n_jobs, 4): feature, kind, first line, last line + 1
    line_of: NDArray[np.int64]  # (n_predicates,)
    numbers: NDArray[np.floating]  # of each line: threshold, or the number of its set

    @classmethod
    def of(cls, forest: Forest) -> Tests:
        """Sort the predicates of a normalised forest."""
        number = forest.comparison.astype(int) * 8 + forest.missing * 2
        kinds, kind = np.unique(number + forest.missing_left, return_inverse=True)
        kind = kind.reshape(-1)
        order = np.lexsort((forest.threshold, kind, forest.feature))
        line_of = np.zeros(forest.n_predicates, np.int64)
        line_of[order] = np.arange(forest.n_predicates)
        keys = np.stack([forest.feature, kind])[:, order]
        first = np.flatnonzero(np.diff(keys, prepend=-1).any(axis=0))
        last = np.append(first[1:], forest.n_predicates)[: len(first)]
        jobs = np.stack([*keys[:, first], first, last], axis=1)
        numbers = np.where(
            forest.comparison >= Comparison.IN, set_numbers(forest), forest.threshold
        ).astype(forest.threshold.dtype)
        rules = [(k // 8, k // 2 % 4, bool(k % 2)) for k in kinds.tolist()]
        named = tuple((Comparison(op), Missing(gone), left) for op, gone, left in rules)
        return cls(named, keys, jobs, line_of, numbers[order])


class TestCode:
    """Emits the tests of predicates on values, scalars or vectors."""

    def __init__(self, rules: Rules, tests: Tests) -> None:
        self.b: Builder = rules.b
        self._rules, self._tests = rules, tests
        self.numbers = rules.model("test_numbers", tests.numbers)

    def left(self, kind: int, number: Value, x: Value) -> Value:
        """Return which values of a column go left."""
        b, rules = self.b, self._rules
        comparison, missing, missing_left = self._tests.kinds[kind]
        x = rules.nan_if_missing(x, missing)
        if comparison >= Comparison.IN:
            inside = rules.in_set(number, x, comparison == Comparison.MEMBER)
            gone = b.is_nan(x)
            if missing_left:
                return inside | gone
            return inside & ~gone
        op: CompareOp = "lt" if rules.comparison == "lt" else "le"
        op = "eq" if comparison == Comparison.EQ else op
        return b.compare(op, x, number, unordered=missing_left)
