"""Codes: every predicate is one comparison of integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeRegressor

from skforge import load_forest
from skforge.compiler.binning.rules import (
    ReadingRules,
    ThresholdPool,
    set_answers,
    set_numbers,
)
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import Buffer, Vec
from skforge.compiler.passes.hir import normalize_predicates
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.bins import (
    THRESHOLDS,
    TestColumns,
    code_dtype,
    column_count,
    missing_right,
    plan_codes,
)
from skforge.forest.forest import Forest
from skforge.forest.reference import draw_rows, evaluate_predicates
from tests.exactness.forests import forest
from tests.lir_tools import buffer_of, run
from tests.oracles.codes import encode_rows
from tests.strategies_forest import edge_rows, random_forest


@given(random_forest(), st.sampled_from([np.uint8, np.uint16]), st.integers(0, 99))
def test_code_above_rank_is_the_predicate(forest, dtype, seed):
    normal, comparison = normalize_predicates.run(forest)
    table = plan_codes(normal, dtype)
    X = edge_rows(normal, 40, seed)
    codes = encode_rows(table, normal, comparison, X)
    for p in range(normal.n_predicates):
        left = evaluate_predicates(normal, np.full(len(X), p), X[:, normal.feature[p]])
        right = codes[:, table.column_of[p]] > table.rank_of[p]
        np.testing.assert_array_equal(right, ~left)


@given(random_forest(), st.integers(0, 99))
def test_tests_for_equality_share_columns(forest: Forest, seed: int) -> None:
    normal, comparison = normalize_predicates.run(forest)
    table = plan_codes(normal, np.uint16, merge=True)
    X = edge_rows(normal, 40, seed)
    codes = encode_rows(table, normal, comparison, X)
    own, rank = codes[:, table.column_of], table.rank_of
    right = np.where(table.equal, own != rank, own > rank)
    for p in range(normal.n_predicates):
        x = X[:, normal.feature[p]]
        left = evaluate_predicates(normal, np.full(len(X), p), x)
        kind = table.ordered[table.column_of[p]], normal.missing[p]
        fine = np.full(len(X), True)  # merged codes do not cover missing values
        if kind[0] and kind[1] != Missing.NEVER:
            fine = ~np.isnan(x) & ((kind[1] == Missing.NAN) | (abs(x) > 1e-30))
        np.testing.assert_array_equal(right[fine, p], ~left[fine])


def test_one_column_holds_all_values_of_a_feature() -> None:
    X = np.random.default_rng(0).choice(5, (300, 1))
    model = make_pipeline(OneHotEncoder(), DecisionTreeRegressor(random_state=0))
    normal, _ = normalize_predicates.run(load_forest(model.fit(X, X[:, 0] % 2)))
    assert (normal.comparison == Comparison.EQ).sum() == 2
    assert column_count(normal) == 2
    assert column_count(normal, merge=True) == 1


def test_long_columns_are_cut(big_forest: Forest) -> None:
    normal, comparison = normalize_predicates.run(big_forest)
    assert code_dtype(normal) is np.uint16
    table = plan_codes(normal, np.uint8)
    assert table.counts.max() == 255
    assert table.n_columns > len(np.unique(normal.feature))
    X = draw_rows(normal, 50, 0)
    codes = encode_rows(table, normal, comparison, X)
    p = np.arange(normal.n_predicates)
    for row, own in zip(X, codes, strict=True):
        left = evaluate_predicates(normal, p, row[normal.feature])
        np.testing.assert_array_equal(own[table.column_of] > table.rank_of, ~left)


@pytest.fixture
def big_forest() -> Forest:
    from sklearn.ensemble import RandomForestRegressor

    from skforge import load_forest

    random = np.random.default_rng(0)
    X = random.standard_normal((2000, 3))
    model = RandomForestRegressor(10, random_state=0).fit(X, X[:, 0] * X[:, 1])
    return load_forest(model)


# ------------------------------------------------------------ columns


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


# ------------------------------------------------------------ sides


#: Forests that together have each kind of test and of missing value.
KINDS = ("scalar", "categories", "never missing", "zero missing", "equal", "members")


def normalized(name: str) -> tuple[Forest, str]:
    """Return a forest; some of its tests are for equality, or of whole numbers."""
    changed = {"equal": "any missing", "members": "categories"}
    normal, comparison = normalize_predicates.run(forest(changed.get(name, name)))
    tests = normal.comparison.copy()
    if name == "equal":
        tests[::2] = Comparison.EQ
    if name == "members":
        tests[tests == Comparison.IN] = Comparison.MEMBER
    return replace(normal, comparison=tests), comparison


def sides(forest: Forest, comparison: str, p: int, x: np.ndarray) -> np.ndarray:
    """Return where values go right at a predicate, by LIR."""
    data: dict[str, np.ndarray] = {"x": x, "right": np.zeros(len(x), np.uint8)}

    def model(name: str, array: np.ndarray) -> Buffer:
        data[name] = array
        return buffer_of(array, name)

    b = Builder()
    rules = ReadingRules(forest, comparison, model)
    kind, test = Missing(int(forest.missing[p])), int(forest.comparison[p])
    with b:
        values = model("x", x)
        right, lanes = model("right", data["right"]), 4
        with b.loop(0, len(x), lanes) as i:
            raw = values[i, Vec(values.element, lanes)]
            value = rules.compared(raw, [kind], lambda kind: None)
            number = b.const(float(forest.threshold[p]), values.element)
            if test >= Comparison.IN:
                number = b.const(int(set_numbers(forest)[p]))
            which = test if test >= Comparison.EQ else THRESHOLDS
            side = rules.goes_right(value, number, which)
            gone = rules.missing(raw, value, [kind], lambda kind: None)
            to = bool(missing_right(forest)[p])
            side = side | gone if to else side & ~gone
            one, zero = (b.const(k, Vec(right.element, lanes)) for k in (1, 0))
            right[i] = b.select(side, one, zero)
    run(b, **data)
    return data["right"] != 0


@pytest.mark.parametrize("name", KINDS)
def test_sides_are_those_of_the_reference(name: str) -> None:
    normal, comparison = normalized(name)
    X = edge_rows(normal, 64, seed=3)
    for p in range(0, normal.n_predicates, 3):
        x = np.ascontiguousarray(X[:, normal.feature[p]])
        x[:4] = np.nan, 0, normal.threshold[p], 1.5
        left = evaluate_predicates(normal, np.full(len(x), p), x)
        np.testing.assert_array_equal(sides(normal, comparison, p, x), ~left)


def test_the_forests_have_every_kind() -> None:
    normal = [normalized(name)[0] for name in KINDS]
    tests = {Comparison(int(c)).name for made in normal for c in made.comparison}
    assert tests == {"LT", "LE", "EQ", "IN", "MEMBER"}
    assert {int(k) for made in normal for k in made.missing} == {*Missing}
