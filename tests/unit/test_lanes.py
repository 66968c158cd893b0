"""Trees in lanes: the codes of a row, how masks are laid out, what code is made."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from skforge.compiler import driver
from skforge.compiler.binning.row_blocks import BlockedBins, plan_row_codes
from skforge.compiler.binning.rules import ReadingRules, RowAt
from skforge.compiler.binning.transpose import unpacked
from skforge.compiler.forest.arrays import Comparison, Missing
from skforge.compiler.forest.bins import plan_codes
from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.reference import reference_raw
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.types import scalar_of
from skforge.compiler.ir.lir.walk import statements
from skforge.compiler.layouts.lanes import lanes
from skforge.compiler.layouts.lanes.lane_levels import CompleteRest, SparseRest
from skforge.compiler.layouts.lanes.lane_masks import _interleaved
from skforge.compiler.passes.hir import normalize_predicates
from skforge.compiler.runtime.cpu.jit import emit_assembly
from skforge.compiler.runtime.module import compile_forest
from skforge.compiler.schedule.families import lanes_schedule
from skforge.compiler.target import Target
from tests.exactness.forests import MAKERS, drawn, forest, forest_of, tree
from tests.exactness.sliced import counted
from tests.llvm_kernels import targets
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


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "name", [n for n in MAKERS if n not in ("leaves", "one leaf", "no trees")]
)
def test_codes_compare_as_the_oracles(name: str) -> None:
    """Where a missing value goes right its code is any that exceeds every rank."""
    if name == "wide records":
        return  # as the others, and large
    made = forest(name)
    check_codes(made, 30, width=0)
    check_codes(made, 30, width=8)


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


@pytest.mark.parametrize(("n_lanes", "bits"), [(64, 8), (32, 8), (16, 8), (32, 16)])
@pytest.mark.parametrize("planes", [1, 2, 4, 8])
def test_interleaving_puts_trees_where_their_number_says(
    n_lanes: int, bits: int, planes: int
) -> None:
    lane_of = _interleaved(np.arange(n_lanes), planes, bits)
    assert sorted(lane_of.tolist()) == list(range(n_lanes))
    # the parts of a mask, in order, at the place of its tree
    parts = [[np.array([(lane, k) for lane in range(n_lanes)])] for k in range(planes)]
    unit = 1
    while len(parts) > 1:
        low, high = (unpacked(n_lanes, 128 // bits, unit, k) for k in (False, True))
        parts = [
            [
                np.concatenate([a, c])[half]
                for a, c in zip(one, two, strict=True)
                for half in (low, high)
            ]
            for one, two in zip(parts[::2], parts[1::2], strict=True)
        ]
        unit *= 2
    whole = np.concatenate(parts[0]).reshape(n_lanes, planes, 2)
    assert (whole[:, :, 0] == lane_of[:, None]).all()
    assert (whole[:, :, 1] == np.arange(planes)).all()


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


def assembly(made: Forest, target: Target) -> str:
    hir = driver.build_hir(made, lanes_schedule(), "exact")
    return emit_assembly(driver.lower(hir, target).kernel.function, target)


def loop_with(text: str, instruction: str) -> list[str]:
    """Return the lines of the one block that holds an instruction most often."""
    blocks = re.split(r"^\.L\w+:.*$", text, flags=re.MULTILINE)
    best = max(blocks, key=lambda block: len(re.findall(instruction, block)))
    return [
        line for line in best.splitlines() if line.startswith("\t") and line[1] != "."
    ]


def depth_6(n_features: int) -> Forest:
    made = drawn(
        100,
        6,
        shape="full",
        n_features=n_features,
        comparisons=(Comparison.LT,),
        missing=(Missing.NEVER,),
    )
    return one_column_a_feature(made)


def one_column_a_feature(made: Forest) -> Forest:
    return replace(made, missing_left=np.zeros_like(made.missing_left))


@pytest.mark.parametrize(
    ("features", "permute", "permutes"), [(12, "vpermb", 63), (90, "vperm[it]2b", 6)]
)
def test_a_position_takes_three_and_a_half_instructions(
    features: int, permute: str, permutes: int
) -> None:
    """Codes in two registers are looked up once a level, those in one once a node."""
    host = targets()["host"]
    if not host.has("avx512vbmi"):
        pytest.skip("this machine has no AVX-512 VBMI")
    text = assembly(depth_6(features), host)
    lines = loop_with(text, permute)
    assert len(re.findall(rf"\t{permute}\s", text)) == permutes
    # load, permute, subtract, and a masked move for every second position; or two loads
    # and, for every second position, two masked moves
    assert len(lines) <= 3.5 * 63 + 30
    # the columns' loop has the constants it needs: nothing goes to the stack and back
    assert not [line for line in lines if "vmov" in line and "rbp" in line]
    assert "gather" not in text


def even(made: Forest) -> Forest:
    """Return full trees whose levels have one test each."""
    predicate = made.predicate.copy()
    depth = made.node_depths()
    for first, end in pairwise(made.tree_offset.tolist()):
        for level in range(int(depth[first:end].max())):
            nodes = first + np.flatnonzero(depth[first:end] == level)
            predicate[nodes] = predicate[nodes[0]]
    return replace(made, predicate=predicate)


@pytest.mark.parametrize("depths", [(6,), (8, 3, 0, 1), (2, 7)])
def test_a_level_of_even_trees_is_one_position(depths: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    trees = [tree("full", depth, random) for depth in depths for _ in range(30)]
    made = even(forest_of(trees, n_features=20))
    top = layout(made).top
    assert top is not None
    assert top.even
    assert top.levels == min(8, max(depths))
    assert top.tests.shape[1] == top.levels
    rows = edge_rows(made, 40, seed=1)
    module = compile_forest(made, lanes_schedule())
    wanted = reference_raw(made, rows)[:, 0]
    np.testing.assert_array_equal(module.predict_raw(rows), wanted)
    mixed = made.predicate.copy()
    mixed[2] = (mixed[1] + 1) % made.n_predicates
    assert not layout(replace(made, predicate=mixed)).top.even


@pytest.mark.parametrize("n_features", [25, 40])
@pytest.mark.parametrize("target", ["host", "v2", "v3"])
def test_whole_thresholds_need_no_search(n_features: int, target: str) -> None:
    if target not in targets():
        pytest.skip(f"this machine does not run x86-64-{target}")
    random = np.random.default_rng(0)
    made = drawn(
        40,
        6,
        n_features=n_features,
        comparisons=(Comparison.LE,),
        missing=(Missing.NAN,),
    )
    whole = made.feature >= 5
    threshold = np.where(
        whole, random.integers(-1, 254, made.n_predicates), made.threshold
    )
    made = replace(
        made,
        threshold=threshold.astype(made.threshold.dtype),
        missing_left=np.ones_like(made.missing_left),
    )
    assert lanes.first_whole(made) == 5
    assert lanes.code_columns(made)[0].n_columns <= 5
    rows = edge_rows(made, 60, seed=2)
    near = made.threshold[random.integers(0, made.n_predicates, rows.shape)]
    near = np.nextafter(near, random.choice([-np.inf, np.inf], rows.shape))
    tiny = random.choice([0.0, 1e-40, -1e-40, 0.5, -0.5, -1.0, 254.0, 1e9], rows.shape)
    other = np.where(random.random(rows.shape) < 0.5, near, tiny).astype(rows.dtype)
    rows = np.concatenate([rows, other])
    module = compile_forest(made, lanes_schedule(), targets()[target])
    wanted = reference_raw(made, rows)[:, 0]
    np.testing.assert_array_equal(module.predict_raw(rows), wanted)
    wide = replace(made, n_features=2000)  # most columns are not tested
    assert lanes.first_whole(wide) == 2000
    assert lanes.refusal(wide) is None
    odd = replace(made, threshold=(threshold + 0.5).astype(made.threshold.dtype))
    assert lanes.first_whole(odd) == n_features


def test_avx2_looks_sixteen_codes_up_with_one_shuffle() -> None:
    text = assembly(depth_6(12), Target.x86_64("v3"))
    positions = (1 << layout(depth_6(12), Target.x86_64("v3")).top.levels) - 1
    assert len(re.findall(r"\tvpshufb\s", text)) == positions
    assert "gather" not in text


def test_masks_take_one_instruction_a_plane() -> None:
    host = targets()["host"]
    if not host.has("avx512vbmi"):
        pytest.skip("this machine has no AVX-512 VBMI")
    made = drawn(100, 20, shape="chain", n_features=12, missing=(Missing.NEVER,))
    made = one_column_a_feature(made)
    masks = layout(made, host).masks
    assert masks is not None
    assert masks.planes == 4
    text = assembly(made, host)
    loops = [block for block in re.split(r"^\.L\w+:.*$", text, flags=re.MULTILINE)]
    loops = [block for block in loops if "vpermb" in block]
    assert len(loops) == len(masks.parts) > 2
    for (_, first, last), block in zip(masks.parts, loops, strict=True):
        planes = last - first
        assert len(re.findall(r"\tvpternlogq|\tvpandnq", block)) == planes
        # places, permute, compare, to a vector, the planes, three that count
        lines = re.split(r"\n\tj\w+", block)[0].strip().splitlines()
        assert len(lines) <= 7 + planes


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
def test_a_task_takes_rows_whose_leaves_are_added_together(
    sets: bool, rows: int
) -> None:
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
