"""Trees in lanes: the codes of a row, how masks are laid out, what code is made."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from skforge.compiler import driver
from skforge.compiler.binning.row_blocks import BlockedBins, plan_row_codes
from skforge.compiler.binning.rules import ReadingRules, RowAt
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.types import scalar_of
from skforge.compiler.ir.lir.walk import statements
from skforge.compiler.layouts.lanes import lanes
from skforge.compiler.layouts.lanes.lane_levels import CompleteRest, SparseRest
from skforge.compiler.passes.hir import normalize_predicates
from skforge.compiler.target import Target
from skforge.forest.arrays import Missing
from skforge.forest.bins import plan_codes
from skforge.forest.forest import Forest
from skforge.modules.compiled import compile_forest
from skforge.schedule.families import lanes_schedule
from tests.exactness.forests import drawn, forest
from tests.exactness.sliced import counted
from tests.oracles.codes import encode_rows
from tests.oracles.lir_interpreter import interpret_lir
from tests.strategies_forest import edge_rows


def searcher(made: Forest, width: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return what gives a row's codes in the order of the table, by their LIR."""
    normal, comparison = normalize_predicates.run(made)
    table = plan_codes(normal, np.uint8)
    plan = plan_row_codes(table, normal, width)
    data: dict[str, np.ndarray] = {}

    def model(name: str, array: np.ndarray) -> lir.Buffer:
        data[name] = array
        return lir.Buffer(name, scalar_of(array.dtype))

    b = Builder()
    rows = lir.Buffer("rows", scalar_of(made.input_dtype))
    out = lir.Buffer("out", lir.U8)
    search = BlockedBins(ReadingRules(normal, comparison, model), plan)
    with b:
        search.evaluate(RowAt(rows, b.const(0)), out.part(b.const(0)))
    params = [rows, out, *(lir.Buffer(n, scalar_of(a.dtype)) for n, a in data.items())]
    function = lir.Function("search", tuple(params), b.finish())

    def codes_of(row: np.ndarray) -> np.ndarray:
        found = np.zeros(table.n_columns, np.uint8)
        interpret_lir(function, {"rows": row, "out": found, **data})
        return found[plan.code_index]

    return codes_of


def check_codes(made: Forest, n: int, width: int) -> None:
    normal, comparison = normalize_predicates.run(made)
    table = plan_codes(normal, np.uint8)
    rows = edge_rows(made, n, seed=4)
    wanted = encode_rows(table, normal, comparison, rows)
    codes_of = searcher(made, width)
    for row, codes in zip(rows, wanted, strict=True):
        found = codes_of(row)
        assert (np.minimum(found, table.counts) == codes).all()


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("sides", ["left", "right"])
@pytest.mark.parametrize("missing", [Missing.NAN, Missing.ZERO, Missing.NEVER])
def test_codes_by_buckets(even: bool, sides: str, missing: Missing) -> None:
    """The last threshold is infinite, and a code of 255 stays one."""
    given = dict(even=even, sides=sides, missing=missing, infinite=True)
    for width, dtype in ((8, "float32"), (4, "float64"), (2, "float64")):
        made = counted((1, 5, 9, 40, 250, 255), dtype=dtype, **given)
        normal, _ = normalize_predicates.run(made)
        table = plan_codes(normal, np.uint8)
        plan = plan_row_codes(table, normal, width)
        assert any(part.buckets for part in plan.classes)
        check_codes(made, 60, width)


V4 = Target.x86_64("v4")


def layout(made: Forest, target: Target = V4) -> lanes.LanesLayout:
    hir = driver.build_hir(made, lanes_schedule(), "exact")
    return lanes.LanesLayout(hir, target)


def test_the_way_follows_the_shape() -> None:
    complete = layout(drawn(100, 8, shape="full"))
    assert complete.masks is None
    assert isinstance(complete.rest, CompleteRest)
    assert complete.top.levels + complete.rest.levels == 8
    # chains: as many nodes as levels
    assert layout(drawn(100, 20, shape="chain")).masks is not None
    # more leaves than a mask has bits, in trees that padding would blow up
    long = layout(drawn(40, 70, shape="chain"))
    assert long.masks is None
    assert isinstance(long.rest, SparseRest)


def test_registers_follow_the_columns() -> None:
    def shape(target: Target, columns: int) -> tuple:
        made = lanes.lane_shape(target, columns)
        return made.element.name, made.lanes, made.tables, made.narrow

    v2, v3 = Target.x86_64("v2"), Target.x86_64("v3")
    assert shape(v2, 16) == ("u8", 16, 1, 0)
    assert shape(v3, 16) == ("u8", 32, 1, 16)
    assert shape(v3, 90) == ("u8", 32, 4, 0)
    assert shape(V4, 32) == ("u8", 64, 1, 32)
    assert shape(V4, 33) == ("u16", 32, 2, 0)


def test_slots_hold_the_planes_they_need() -> None:
    made = drawn(9, 20, shape="chain")
    masks = layout(made).masks
    assert masks is not None
    sizes = [count * (2 + last - first) for count, first, last in masks.parts]
    assert len(masks.slots) == masks.groups * masks.lanes * sum(sizes)


def test_nodes_of_one_plane_take_slots_of_one(monkeypatch) -> None:
    """Leaves left of a node seldom lie in two parts of a mask."""
    monkeypatch.setattr(lanes, "masks_are_cheaper", lambda made, shape: True)
    masks = layout(drawn(64, 5, shape="full")).masks
    assert masks is not None
    # the left of the root is of two planes, that of all others of one
    planes = [last - first for count, first, last in masks.parts for _ in range(count)]
    assert sorted(planes) == [1] * 30 + [2]


def test_code_does_not_grow_with_the_number_of_trees() -> None:
    def size(n_trees: int) -> int:
        made = drawn(n_trees, 8, shape="full", n_features=12)
        hir = driver.build_hir(made, lanes_schedule(), "exact")
        function = driver.lower(hir, V4).kernel.function
        return len(list(statements(function.body)))

    # but for constants that happen to be equal
    assert abs(size(128) - size(1024)) < 10


@pytest.mark.parametrize(("sets", "rows"), [(False, 4), (True, 1)])
def test_a_task_takes_rows_whose_leaves_are_added_together(sets, rows):
    made = forest("double categories") if sets else drawn(9, 6)
    text = compile_forest(made, lanes_schedule(parallel=True)).inspect("lir")
    count = re.search(r"parallel_for %p\S* i64 < (%\S+) {", text)
    assert count is not None
    value = re.search(rf"{re.escape(count[1])}: i64 = (\S+) (\S+?),? (%\S+)", text)
    assert value is not None
    if rows == 1:  # all rows
        assert value[1] == "max" and value[2] == "%n_rows"
    else:
        assert value[1] == "div" and f"{value[3]}: i64 = const {rows}\n" in text
