"""Eight rows in eight trees at a time: the same bits as rows one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from skforge.compiler.layouts.lanes import lane_pairs
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.reference import reference_raw
from skforge.modules.compiled import compile_forest
from skforge.schedule.families import pairs_schedule
from tests.exactness.checks import (
    assert_same_bits,
    emitted,
    expected,
    interpreted,
    raw_of,
)
from tests.exactness.forests import drawn, forest
from tests.strategies_forest import edge_rows, random_forest
from tests.turns import random_test

PAIRS = pairs_schedule()
#: A CPU that looks bytes up in whole registers, whatever this machine is.
V4 = Target.x86_64("v4")
VBMI = replace(V4, features=f"{V4.features},+avx512vbmi")


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "name", ["scalar", "multiclass", "vector 2", "extremes", "deep"]
)
def test_nothing_is_read_or_written_out_of_bounds(name: str) -> None:
    rows, raw, _ = expected(name)
    for n in (0, 1, 5, 9):
        got = interpreted(
            forest(name), PAIRS, rows[:n], target=VBMI, extra_stride=n % 3
        )
        assert_same_bits(got, raw[:n], n)


def check(made: Forest, rows: np.ndarray, what: object) -> None:
    """Interpret the code for whole registers, and run this machine's."""
    raw = reference_raw(made, rows)
    assert_same_bits(interpreted(made, PAIRS, rows, target=VBMI), raw, what)
    assert_same_bits(raw_of(compile_forest(made, PAIRS), rows), raw, what)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("depth", range(1, 11))
@pytest.mark.parametrize("columns", [3, 8, 16, 30, 60, 120])
def test_levels_and_columns_in_several_registers(columns: int, depth: int) -> None:
    shape = "full" if depth < 9 else "random"
    made = drawn(19, depth, n_features=columns, shape=shape)
    check(made, edge_rows(made, 11, seed=depth), (columns, depth))


@pytest.mark.parametrize("trees", [1, 7, 8, 9, 16, 17, 24, 33])
def test_trees_that_fill_no_group(trees: int) -> None:
    made = drawn(trees, 6, n_features=9)
    check(made, edge_rows(made, 11, seed=trees), trees)


def check_random(data: st.DataObject) -> None:
    made = data.draw(random_forest(max_trees=20))
    rows = edge_rows(made, data.draw(st.integers(0, 20)), seed=1)
    try:
        check(made, rows, len(rows))
    except ScheduleError as error:
        assert 'represent("lanes")' in str(error)


test_random_forests = random_test(check_random, 8, 1000)


def test_a_level_takes_a_few_permutes() -> None:
    """Of 64 pairs, levels 1 to 6 take 20 for places and ranks, and one each for codes.

    Lanes are chosen under masks that stay in registers.
    """
    made = drawn(
        48, 6, shape="full", n_features=12, comparisons=(Comparison.LT,),
        missing=(Missing.NEVER,),
    )  # fmt: skip
    made = replace(made, missing_left=np.zeros_like(made.missing_left))
    text, _ = emitted(made, PAIRS, VBMI)
    loop = max(text.split("\n.L"), key=lambda part: part.count("\tvpermb"))
    permutes = sum(loop.count(f"\tvperm{name}") for name in ("b", "i2b", "t2b"))
    assert permutes == (20 + 6) * lane_pairs.IN_TURN
    assert "kmov" not in loop
    assert loop.count("\n\tv") < 2.5 * permutes
