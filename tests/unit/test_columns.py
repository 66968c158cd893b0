"""Tests sorted into columns, from which all tables of tests are made."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skforge.compiler.binning.rules import ThresholdPool, set_answers
from skforge.compiler.passes.hir import normalize_predicates
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.bins import TestColumns
from skforge.forest.reference import evaluate_predicates
from tests.exactness.forests import forest

NUMBERS = st.lists(st.tuples(*3 * [st.integers(0, 3)]), max_size=40)


@given(NUMBERS, st.integers(1, 5), st.data())
def test_columns_agree_on_keys_and_ascend(numbers, most, data) -> None:
    first, second, threshold = np.array(numbers, np.int64).reshape(-1, 3).T
    chosen = data.draw(st.lists(st.booleans(), min_size=40, max_size=40))
    tests = np.flatnonzero(chosen[: len(first)])
    columns = TestColumns.of(tests, threshold.astype(float), first, second)
    assert sorted(columns.tests.tolist()) == tests.tolist()
    keys = [(first[c[0]], second[c[0]]) for c in columns]
    assert keys == sorted(set(keys))
    for key, column in zip(keys, columns, strict=True):
        assert {*zip(first[column], second[column], strict=True)} == {key}
        # equal thresholds keep their order
        assert column.tolist() == sorted(column, key=lambda t: (threshold[t], t))
    cut = columns.cut(most)
    assert cut.tests is columns.tests and cut.counts.max(initial=0) <= most
    assert len(cut) == sum(-(-count // most) for count in columns.counts)
    assert cut.rank.tolist() == [k for count in cut.counts for k in range(count)]
    assert cut.first.tolist() == [column[0] for column in cut]


def test_a_pool_says_where_arrays_begin() -> None:
    pool = ThresholdPool(align=4, fill=-1)
    parts = [np.arange(3), np.zeros(0), np.arange(5), np.arange(4)]
    assert [pool.add(part) for part in parts] == [0, 4, 4, 12]
    joined = pool.array(np.float32, spare=2)
    assert joined.tolist() == [0, 1, 2, -1, 0, 1, 2, 3, 4, -1, -1, -1, *range(4), 0, 0]
    assert joined.dtype == np.float32
    assert ThresholdPool().array(np.uint8).tolist() == []


def test_answers_of_sets_are_those_of_the_reference() -> None:
    normal, _ = normalize_predicates.run(forest("categories"))
    sets = np.flatnonzero(normal.comparison >= Comparison.IN)
    answers = set_answers(normal, sets)
    assert len(sets) > 5 and answers.any() and not answers.all()
    x = np.append(np.arange(answers.shape[1] - 2.0), [np.nan, 1e6])
    for p, right in zip(sets, answers, strict=True):
        left = evaluate_predicates(normal, np.full(len(x), p), x)
        same = right == ~left
        same[0] |= normal.missing[p] == Missing.ZERO  # 0 is missing there
        same[-2] |= normal.missing[p] == Missing.NEVER
        assert same.all()
