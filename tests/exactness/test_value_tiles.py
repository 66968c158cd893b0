"""Deep trees walked as tiles by the values of rows, without codes: the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from skforge.compiler.defaults.cpu import candidates
from skforge.compiler.ir.lir.nodes import (
    Alloc,
    Body,
    Compare,
    Gather,
    If,
    Load,
    Permute,
    Prefetch,
    Vec,
)
from skforge.compiler.ir.lir.walk import statements
from skforge.compiler.layouts.tiles.tile_rows import value_tests
from skforge.compiler.target import Target
from skforge.forest.arrays import Missing
from skforge.forest.combine import subset
from skforge.forest.reference import draw_rows, reference_raw
from skforge.modules.compiled import compile_forest
from skforge.schedule.families import tiled_row_schedule, tiled_schedule
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import (
    assert_same_bits,
    interpreted,
    lowered,
    raw_of,
)
from tests.exactness.test_tiles import of_features, trained


def values(size: int = 7, rows: int = 64) -> Schedule:
    return tiled_schedule(rows, size, codes=False)


V4 = Target.x86_64("v4")
BY_ROW = tiled_row_schedule(7, codes=False)
SCHEDULES = (
    *(values(7), values(15, 48), values(7, 32).cache("b0")),
    *(BY_ROW, tiled_row_schedule(15, codes=False).cache("batch")),
)


def test_blocks_without_missing_values_do_not_ask_for_them() -> None:
    made, rows, _ = trained("numbers")
    assert not made.missing_left.all()
    module = compile_forest(made, values(7, 32))
    whole = np.nan_to_num(rows)
    one = whole.copy()
    one[70, -1] = np.nan  # in the third block alone
    for given_rows in (rows, whole, one):
        raw = reference_raw(made, given_rows)
        assert_same_bits(raw_of(module, given_rows), raw, "some blocks")

    def unordered(body: Body) -> int:
        ops = [getattr(s, "op", s) for s in statements(body)]
        return sum(isinstance(o, Compare) and o.unordered for o in ops)

    found = statements(lowered(made, values(), V4).function.body)
    branches = [s for s in found if isinstance(s, If)]
    walks = max(branches, key=lambda s: len(list(statements(s.orelse))))
    # four rows in tiles; nodes of the top
    assert (unordered(walks.then), unordered(walks.orelse)) == (4 + 63, 0)


@pytest.mark.parametrize("level", ["v3", "v4"])
def test_tops_compare_registers_of_rows(level: str) -> None:
    made = of_features(40)
    made = replace(made, missing_left=np.ones(made.n_predicates, np.bool_)).validate()
    function = lowered(made, values(), Target.x86_64(level)).function
    ops = [getattr(s, "op", s) for s in statements(function.body)]
    loads = [o for o in ops if isinstance(o, Load)]
    of_columns = [o for o in loads if o.buffer.name.startswith("columns")]
    assert len(of_columns) == {"v3": 31, "v4": 63}[level]
    # too many features to be turned: tiles begin at the root
    assert value_tests(made, 6).top_levels == 6
    many = np.arange(made.n_predicates, dtype=np.int32)
    assert len(many) > 1024
    assert value_tests(replace(made, feature=many), 6).top_levels == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [Missing.NAN, Missing.NEVER])
@pytest.mark.parametrize("left", [False, True])
def test_missing_values(kind: Missing, left: bool) -> None:
    made, rows, _ = trained("numbers")
    n = made.n_predicates
    same = np.full(n, left) if left else np.arange(n) % 2 == 0
    missing = np.full(n, kind, made.missing.dtype)
    made = replace(made, missing=missing, missing_left=same).validate()
    assert np.isnan(rows).any()
    for schedule in SCHEDULES:
        found = raw_of(compile_forest(made, schedule), rows)
        assert_same_bits(found, reference_raw(made, rows), (kind, left))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 7, 16, 21, 33, 64, 65])
def test_single_rows_of_any_width(width: int, dtype: type) -> None:
    """The last register of a row ends with it; wide rows stay in memory."""
    made = of_features(width, dtype)
    rows = draw_rows(made, 9, 1)
    kernel = lowered(made, BY_ROW, V4)
    ops = [getattr(s, "op", s) for s in statements(kernel.function.body)]
    held = 32 // np.dtype(dtype).itemsize * 8
    assert any(isinstance(o, Permute) for o in ops) == (width <= held)
    found = raw_of(compile_forest(made, BY_ROW), rows)
    assert_same_bits(found, reference_raw(made, rows), width)
    few = subset(made, [0])
    got = interpreted(few, BY_ROW, rows[:3])
    assert_same_bits(got, reference_raw(few, rows[:3]), "inside")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("level", ["v2", "v3"])
def test_registers_that_are_narrower_than_a_tile(level: str, dtype: type) -> None:
    made, target = of_features(5, dtype), Target.x86_64(level)
    rows = draw_rows(made, 30, 1)
    raw = reference_raw(made, rows)
    for size in (7, 15):
        by_row = tiled_row_schedule(size, codes=False)
        found = raw_of(compile_forest(made, by_row, target=target), rows)
        assert_same_bits(found, raw, size)


def test_a_tile_is_one_line_and_its_values_are_loaded_one_by_one() -> None:
    made = of_features(400)
    kernel = lowered(made, values(), V4)
    ops = [getattr(s, "op", s) for s in statements(kernel.function.body)]
    of_rows = [o for o in ops if isinstance(o, Load) and o.buffer.name == "rows"]
    # four rows at a time, seven nodes, with missing values and without
    of_tiles = [o for o in of_rows if not isinstance(o.index.type, Vec)]
    assert len(of_tiles) >= 2 * 4 * 7
    assert not any(isinstance(o, Gather) and o.buffer.name == "rows" for o in ops)
    fetched = [o for o in ops if isinstance(o, Prefetch) and o.buffer.name == "tiles"]
    assert len(fetched) == 2 * 4
    # rows are not turned to codes
    assert not any(isinstance(o, Alloc) and "codes" in o.buffer.name for o in ops)
    (tiles,) = [item.data for item in kernel.data if item.buffer.name == "tiles"]
    assert tiles.size % 64 == 0
    assert tiles.size < 26 * made.n_nodes  # twice a node of a walk


def test_a_default_may_compare_values_where_there_are_too_many_codes() -> None:
    target = Target.x86_64("v3")
    many = repr(candidates(of_features(400), target))
    few = repr(candidates(of_features(3), target))
    by_codes = repr(tiled_schedule(512, 7))
    by_values = repr(tiled_schedule(256, 7, codes=False))
    # as many rows as half of L2 holds
    by_wide = repr(tiled_schedule(128, 7, codes=False))
    assert by_wide in many and by_values not in many and by_codes not in many
    assert by_values in few and by_codes in few
    assert repr(BY_ROW) in many and repr(BY_ROW) in few
