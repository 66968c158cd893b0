"""One row at a time, trees in the lanes of vectors: the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from skforge.compiler.layouts.lanes import lane_levels, lanes
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.bins import column_count
from skforge.forest.reference import reference_leaves, reference_raw
from skforge.modules.compiled import compile_forest
from skforge.schedule.families import lanes_schedule
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import (
    assert_same_bits,
    check_exact,
    cpu,
    emitted,
    expected,
    interpreted,
    raw_of,
)
from tests.exactness.forests import ALL_MISSING, MAKERS, drawn, forest
from tests.exactness.test_layouts import REFUSED
from tests.strategies_forest import edge_rows, random_forest
from tests.turns import random_test

LANES = Schedule().quantize("batch").vectorize("tree").represent("lanes")
PARALLEL = lanes_schedule(parallel=True)
TAKEN = [name for name in MAKERS if name not in REFUSED["lanes"]]
SIZES = (0, 1, 2, 65)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", TAKEN)
def test_forests(name: str, way: None) -> None:
    check_exact(name, LANES, batches=SIZES)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("level", ["v2", "v3", "v4", "aarch64", "host"])
@pytest.mark.parametrize("name", ["scalar", "multiclass", "vector 2", "extremes"])
def test_nothing_is_read_or_written_out_of_bounds(
    level: str, name: str, way: None
) -> None:
    target = {"aarch64": Target.aarch64(), "host": Target.host()}.get(level)
    rows, raw, _ = expected(name)
    for n, schedule in ((0, LANES), (1, PARALLEL), (5, LANES), (5, PARALLEL)):
        got = interpreted(
            forest(name),
            schedule,
            rows[:n],
            target=target or Target.x86_64(level),
            extra_stride=n % 3,
            shuffle=n or None,  # threads come in any order
        )
        assert_same_bits(got, raw[:n], (level, n))


#: Columns of codes, about: a part of a register and several, bytes and words.
WIDTHS = (10, 30, 60, 120, 250)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("level", ["v2", "v3", "v4", "host"])
@pytest.mark.parametrize("width", WIDTHS)
def test_codes_in_several_registers(width: int, level: str, way: None) -> None:
    made = drawn(70, 5, n_features=width // 2)
    rows = edge_rows(made, 40, seed=3)
    module = compile_forest(made, LANES, cpu(level))
    assert_same_bits(raw_of(module, rows), reference_raw(made, rows), width)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", ["v2", "v3", "v4", "host"])
@pytest.mark.parametrize("shape", ["full", "random"])
def test_codes_in_several_banks(shape: str, level: str) -> None:
    made = drawn(60, 5, shape=shape, n_features=600)
    assert lane_levels.BANK < column_count(made, dtype=np.uint8) <= lanes.MOST_COLUMNS
    module = compile_forest(made, LANES, cpu(level))
    rows = edge_rows(made, 9, seed=1)
    assert_same_bits(raw_of(module, rows), reference_raw(made, rows), shape)


#: Numbers of thresholds: blocks just full and just begun, and columns cut in two.
LENGTHS = (1, 15, 16, 17, 32, 33, 240, 255, 256, 257, 300)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("missing", [*[(kind,) for kind in Missing], ALL_MISSING])
@pytest.mark.parametrize("comparison", [Comparison.LT, Comparison.LE])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_columns_of_any_length(
    dtype: str, comparison: Comparison, missing: tuple[Missing, ...], length: int
) -> None:
    made = drawn(
        20,
        7,
        n_features=1,
        dtype=dtype,
        comparisons=(comparison,),
        missing=missing,
        thresholds=np.sort(np.random.default_rng(5).standard_normal(length)).tolist(),
    )
    rows = edge_rows(made, 300, seed=length)
    module = compile_forest(made, LANES)
    assert_same_bits(raw_of(module, rows), reference_raw(made, rows), length)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["scalar", "vector 3", "double categories"])
def test_aarch64_code_is_emitted(name: str, way: None) -> None:
    text, code = emitted(forest(name), LANES, Target.aarch64())
    assert "\ttbl\t" in text
    assert int.from_bytes(code[18:20], "little") == 183


def check_random(data: st.DataObject) -> None:
    made = data.draw(random_forest(max_trees=7))
    rows = edge_rows(made, data.draw(st.integers(0, 20)), seed=1)
    try:
        module = compile_forest(made, LANES)
    except ScheduleError as error:
        assert 'represent("lanes")' in str(error)
        return
    raw = reference_raw(made, rows)
    assert_same_bits(raw_of(module, rows), raw, "compiled")
    assert_same_bits(interpreted(made, LANES, rows[:4]), raw[:4], "interpreted")
    leaves = made.source_node[reference_leaves(made, rows)]
    assert_same_bits(module.apply(rows), leaves, "apply")


test_random_forests = pytest.mark.usefixtures("way")(random_test(check_random, 3, 1000))


@pytest.mark.sampled(9)
@pytest.mark.parametrize("n_outputs", [2, 3, 7, 8, 9, 63, 64, 65, 100])
@pytest.mark.parametrize("vector", [False, True])
def test_any_number_of_outputs(n_outputs: int, vector: bool, way: None) -> None:
    """Sums in registers, some and too many; trees that end in the middle of a turn."""
    for n_trees in (1, 2 * n_outputs + 1, 29):
        made = drawn(n_trees, 4, n_outputs=n_outputs, vector=vector)
        rows = edge_rows(made, 5, seed=6)
        module = compile_forest(made, LANES)
        assert_same_bits(raw_of(module, rows), reference_raw(made, rows), n_trees)


def test_outputs_out_of_turn() -> None:
    made = drawn(20, 4, n_outputs=3)
    order = np.random.default_rng(2).integers(0, 3, 20).astype(np.int32)
    made = replace(made, tree_output=order)
    rows = edge_rows(made, 9, seed=6)
    module = compile_forest(made, LANES)
    assert_same_bits(raw_of(module, rows), reference_raw(made, rows), "drawn outputs")
