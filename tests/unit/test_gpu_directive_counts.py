"""Every directive changes what it must on a GPU: counted in LIR, launches and buffers.

Each test says what there is without the directive, too, so that one that does nothing
fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from skforge.compiler.ir.lir import nodes as lir
from skforge.exceptions import ScheduleError
from skforge.forest.forest import Forest
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import drawn, forest, forest_of, tree
from tests.gpu_gates import Built, barriers, build, constants, of_type, ops
from tests.gpu_gates import shared_bytes as block_bytes

GRID = ("grid.x", "grid.y", "grid.z")
BLOCK = ("block.x", "block.y", "block.z")


def direct(rows: int = 64) -> Schedule:
    return Schedule.preset("tahoe-direct", rows=rows)


#: Threads of x take trees, those of y rows.
def dealt(rows: int = 4, trees: int = 8) -> Schedule:
    return (
        Schedule()
        .tile("batch", "b0", "b1", rows)
        .tile("tree", "t0", "t1", trees)
        .reorder("b0", "b1", "t1", "t0")
        .gpu_dimension("b0", "grid.x")
        .gpu_dimension("b1", "block.y")
        .gpu_dimension("t1", "block.x")
    )


#: Tiles of trees on blocks, all of a tile in a thread.
def splitting(trees: int = 8) -> Schedule:
    return (
        Schedule()
        .tile("batch", "b0", "b1", 32)
        .tile("tree", "t0", "t1", trees)
        .reorder("b0", "t0", "b1", "t1")
        .gpu_dimension("b0", "grid.x")
        .gpu_dimension("t0", "grid.y")
        .gpu_dimension("b1", "block.x")
    )


@cache
def full(
    n_trees: int = 32, depth: int = 4, features: int = 6, dtype: str = "float32"
) -> Forest:
    return drawn(n_trees, depth, shape="full", n_features=features, dtype=dtype)


@dataclass(frozen=True)
class Seen:
    """Grid, block and shared bytes of all launches, and bytes of scratch."""

    launches: list[tuple[tuple[int, ...], tuple[int, ...], int]]
    scratch: list[int]


def run(one: Built, n: int) -> Seen:
    """Walk a plan for a batch of ``n`` rows."""
    env = dict.fromkeys(one.plan.params, 0)
    env.update(n_rows=n, row_stride=one.lowered.hir.forest.n_features)
    made = one.plan.run(env)
    launches = [(call.grid, call.block, call.shared_bytes) for call in made.calls]
    return Seen(launches, list(made.scratch.values()))


def regions(one: Built, launch: int = -1) -> list[lir.BlockRegion]:
    return of_type(one.grids[launch], lir.BlockRegion)


def loads(body: Any, buffer: str) -> int:
    """Return how often a buffer is read in a body; names end in a number."""
    return sum(op.buffer.name.split(".")[0] == buffer for op in ops(body, lir.Load))


def walks(body: Any) -> list[int]:
    """Return how many walks each loop of hops with leaf checks carries."""
    return [len(loop.inits) for loop in of_type(body, lir.While)]


def allocs(one: Built, space: str) -> list[str]:
    found = of_type(one.lowered.kernel.function, lir.Alloc)
    return [a.buffer.name.split(".")[0] for a in found if a.buffer.space == space]


def shared(one: Built, launch: int = -1) -> int:
    """Return the shared bytes of a launch, by LIR and by the plan alike."""
    grid, plan = one.grids[launch], list(one.plan.launches.values())[launch]
    needed = block_bytes(one.lowered.kernel.function, grid)
    assert plan.shared_bytes == needed
    return needed


# --------------------------------------------------------------------- gpu_dimension


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gpu_dimension_sets_blocks_and_threads(axis: int, n: int) -> None:
    schedule = Schedule().tile("batch", "b0", "b1", 64).reorder("b0", "b1", "tree")
    schedule = schedule.gpu_dimension("b0", GRID[axis]).gpu_dimension("b1", BLOCK[axis])
    one = build(forest("scalar"), schedule)
    (grid,) = one.grids
    (region,) = regions(one)
    assert [dim for dim, _, _ in grid.dims] == [GRID[axis]]
    known = constants(one.lowered.kernel.function)
    assert [(d, known[c.name]) for d, _, c in region.dims] == [(BLOCK[axis], 64)]
    blocks, threads = [1, 1, 1], [1, 1, 1]
    blocks[axis], threads[axis] = -(-n // 64), 64
    assert run(one, n).launches == [(tuple(blocks), tuple(threads), 0)]


def test_rows_and_trees_take_dimensions_of_their_own() -> None:
    """Seven trees by threads of x, four rows by threads of y."""
    one = build(forest("scalar"), dealt(4, 7).cache("b0"), "fast")
    rows = 4 * 5 * 4
    for n in (1, 4, 5, 1000):
        ((grid, block, _),) = run(one, n).launches
        assert (grid, block) == ((-(-n // 4), 1, 1), (7, 4, 1))
    # slots of seven trees are no lanes: the block's scratch is global
    assert shared(one) == rows


@pytest.mark.parametrize(("size", "blocks"), [(3, 3), (7, 1), (1, 7), (-2, 2)])
def test_trees_on_the_grid(size: int, blocks: int) -> None:
    one = build(forest("scalar"), splitting(size), "fast")
    for n in (1, 33, 1000):
        (grid,) = [g for g, block, _ in run(one, n).launches if block == (32, 1, 1)]
        assert grid == (-(-n // 32), blocks, 1)


def test_empty_batches_launch_nothing() -> None:
    assert run(build(forest("scalar"), direct()), 0).launches == []


# ----------------------------------------------------------------------------- cache


@pytest.mark.parametrize(
    ("rows", "layout", "stride", "features"),
    [
        (64, "row", 6, None),
        (64, "padded", 7, None),
        (64, "feature", None, 6),
        (64, None, None, 6),  # neighbouring threads take rows: a bank each
        (24, None, 7, None),  # not whole warps
    ],
)
@pytest.mark.parametrize(("dtype", "bytes_"), [("float32", 4), ("float64", 8)])
def test_cache_of_rows(rows, layout, stride, features, dtype, bytes_):
    made = full(dtype=dtype)
    plain = build(made, direct(rows))
    assert (len(regions(plain)), barriers(plain.grids[0]), shared(plain)) == (1, 0, 0)
    assert loads(regions(plain)[0], "rows") == 1
    cached = build(made, direct(rows).cache("b0", layout))
    wanted = rows * stride if stride is not None else rows * (features or 0)
    assert shared(cached) == wanted * bytes_
    assert allocs(cached, "shared") == ["cached_rows"]
    copy, walk = regions(cached)
    assert barriers(cached.grids[0]) == 1
    # two threads a row of six columns, so each copies three, written out
    assert (loads(copy, "rows"), loads(copy, "cached_rows")) == (3, 0)
    assert (loads(walk, "rows"), loads(walk, "cached_rows")) == (0, 1)


def test_threads_next_to_each_other_copy_neighbours() -> None:
    one = build(full(), dealt().cache("b0"))
    copy = regions(one)[1]  # after the sums are started
    (loop,) = of_type(copy, lir.For)
    known = constants(one.lowered.kernel.function)
    # all threads of the block: four a row, for there are eight rows
    assert known[loop.step.name] == 8 * 4 // 4
    lets = {s.value.name: s.op for s in of_type(copy, lir.Let)}
    pair = lets[loop.lo.name]
    assert (pair.op, known[pair.b.name]) == ("div", 4)
    # numbered x first: y * 8 + x
    number = lets[pair.a.name]
    assert number.op == "add"
    assert {copy.dims[0][1].name, copy.dims[1][1].name} & {number.a.name, number.b.name}


@pytest.mark.parametrize(
    ("representation", "quantized", "a_node"),
    [("array", False, 8), ("array", True, 4), ("reorg", True, 4)],
)
def test_cache_of_complete_trees(representation, quantized, a_node):
    made = full(32, 4)
    plain = Schedule().tile("batch", "b0", "b1", 64).tile("tree", "t0", "t1", 8)
    plain = plain.reorder("b0", "t0", "b1", "t1").represent(representation)
    plain = plain.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    if quantized:
        plain = plain.quantize("b0")
    off, on = build(made, plain), build(made, plain.cache("t0"))
    assert shared(on) - shared(off) == 8 * 31 * a_node
    assert loads(regions(off)[-1], "nodes") >= 1
    assert loads(regions(on)[-1], "nodes") == 0
    # a copy more for each tile of trees, which waits for the walks of the last one
    assert len(regions(on)) == len(regions(off)) + 1
    assert barriers(on.grids[0]) == barriers(off.grids[0]) + 2


def test_cache_of_sparse_trees_takes_the_widest_tile() -> None:
    made = full(32, 4)
    one = build(made, Schedule.preset("tahoe-shared-forest", rows=64))
    nodes = next(d for d in one.lowered.kernel.data if d.buffer.name == "nodes")
    assert shared(one) <= nodes.data.nbytes + 32 * 8
    assert shared(one) >= 32 * 31 * 8
    few = build(made, splitting(8).cache("t0"))
    assert shared(few, 1) <= shared(one) // 4 + 64


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"cache of trees brings .* sm_90 has 232"):
        build(drawn(200, 9, shape="full"), Schedule.preset("tahoe-shared-forest"))
    wide = drawn(4, 3, n_features=2000)
    with pytest.raises(ScheduleError, match="cache of rows brings"):
        build(wide, direct(64).cache("b0"))
    assert shared(build(wide, direct(16).cache("b0"))) == 16 * 2001 * 4


# ------------------------------------------------------------------------ reductions


#: What of kernels and launches directives change, and how it is counted.
COUNTED: dict[str, Callable[[Built], Any]] = {
    "launches": lambda one: len(run(one, 100).launches),
    "scratch": lambda one: [size / 100 for size in run(one, 100).scratch],  # by row
    "grids": lambda one: len(one.grids),
    "barriers": lambda one: barriers(one.grids[0]),
    "shared": shared,
    "global": lambda one: allocs(one, "global"),
    "names": lambda one: allocs(one, "shared"),
    "warps": lambda one: [op.width for op in ops(one.grids[-1], lir.WarpReduce)],
    "atomic": lambda one: [
        stmt.buffer.element
        for stmt in of_type(one.lowered.kernel.function, lir.AtomicAdd)
    ],
    "cases": lambda one: [len(s.cases) for s in of_type(one.grids[-1], lir.Switch)],
    "walks": lambda one: [
        walks(case) for s in of_type(one.grids[-1], lir.Switch) for case in s.cases
    ],
}
OWN = {"grids": 1, "barriers": 0, "shared": 0, "global": [], "names": []}
#: Sums of trees by threads of a row, of which there are 25 blocks of four.
TWELVE, MANY = dealt(4, 12), Schedule.preset("rapids", threads=64)
OF_DEPTHS = forest_of(
    [tree("full", depth, np.random.default_rng(0)) for depth in (2, 4, 3, 2, 4, 2)]
)
#: A forest, a schedule, what is counted then, and how trees are summed.
CASES: dict[str, tuple[Any, ...]] = {
    **{f"a thread's sums, {how}": (full(), direct(), OWN, how)
       for how in ("exact", "fast", "reproducible")},
    # the base, a leaf of each tree, their sum in order
    "blocks of trees, exact": (full(), splitting(8),
        {"launches": 3, "scratch": [32 * 4], "atomic": []}, "exact"),
    # slots of four blocks of trees start at zero
    "blocks of trees, fast": (full(), splitting(8),
        {"launches": 4, "scratch": [4 * 4], "atomic": []}, "fast"),
    # fixed point, which is made a float at last
    "blocks of trees, reproducible": (full(), splitting(8),
        {"launches": 5, "scratch": [8, 4 * 8], "atomic": []}, "reproducible"),
    # the base, and the walks; in exact mode the order counts
    **{f"atomic, {how}, {n}": (drawn(32, 4, n_outputs=n),
                               splitting(8).atomic_reduce("t0"), wanted, how)
       for n in (1, 3) for how, wanted in (
           ("fast", {"atomic": [lir.F32], "global": [], "grids": 2}),
           ("exact", {"atomic": []}),
           ("reproducible", {"atomic": [lir.I64]}))},
    # a leaf a tree, or a sum a thread, which a block of four rows may share
    **{f"{'shared' * kept} slots, {how}": (full(),
        TWELVE.shared_reduce("t1") if kept else TWELVE,
        {"shared": 4 * slots * kept, "scratch": [*left, *[slots] * (not kept)]}, how)
       for kept in (False, True) for how, slots, left in (
           ("exact", 32 * 4, []),
           ("fast", 12 * 4, []),
           ("reproducible", 12 * 8, [8]))},
    # a register, or where trees differ in their output a bank for each of these
    **{f"{n} lanes of a warp, {outputs}": (drawn(64, 3, n_outputs=outputs), dealt(4, n),
        {"warps": [n] * outputs, "grids": 1, "barriers": 0, "global": [],
         "shared": 0 if outputs == 1 else 4 * n * outputs * 4}, "fast")
       for n in (2, 8, 32) for outputs in (1, 3)},
    # the order of exchanges is not the model's
    "no lanes in exact sums": (drawn(64, 3), dealt(4, 8), {"warps": []}),
    # twelve threads are no part of a warp: their slots are memory
    "no lanes of twelve": (drawn(64, 3), TWELVE,
        {"global": ["result_1"], "barriers": 3}, "fast"),
    # one row's 64 slots: 32 threads take two each, then exchange
    "few sums": (drawn(128, 3), MANY, {"warps": [32]}, "fast"),
    # as many sums as threads: one each
    "many sums": (drawn(128, 3, n_outputs=40, vector=True), MANY, {"warps": []},
        "fast"),
    "few exact sums": (drawn(128, 3), MANY, {"warps": []}),
    # no barrier: threads read what is theirs
    "sorted trees": (drawn(9, 5), direct().reorder_trees(),
        {"names": ["leaves_1"], "shared": 64 * 9 * 4, "barriers": 0}),
    "no case": (OF_DEPTHS, direct(), {"cases": []}),
    # each knows its depth
    "a case for each depth": (OF_DEPTHS, direct().specialize("tree"),
        {"cases": [3], "walks": [[]] * 3}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_a_directive_changes(name: str) -> None:
    made, schedule, wanted, *how = CASES[name]
    one = build(made, schedule, *how)
    assert {what: COUNTED[what](one) for what in wanted} == wanted


def test_cases_around_what_a_block_does_together_are_the_blocks() -> None:
    cached = Schedule.preset("tahoe-splitting-shared-forest", rows=32, trees=1)
    (outer,) = of_type(build(OF_DEPTHS, cached.specialize("t0")).grids[1], lir.Switch)
    assert len(of_type(outer.cases[0], lir.BlockRegion)) >= 1


def test_sums_of_several_outputs_stay_with_their_thread() -> None:
    """Global memory is written once a row, not once a tree."""
    one = build(drawn(32, 3, n_outputs=3), direct())
    assert (shared(one), barriers(one.grids[0])) == (64 * 3 * 4, 0)
    for loop in of_type(one.grids[0], lir.For):
        stores = of_type(loop.body, lir.Store)
        assert all(store.buffer.name != "result" for store in stores)


# --------------------------------------------------------------------- nodes, indices


def node_bytes(schedule: Schedule) -> float:
    """Return bytes of a node, of trees with 31 places each."""
    one = build(full(32, 4), schedule)
    return sum(
        item.data.nbytes
        for item in one.lowered.kernel.data
        if item.buffer.name == "nodes"
    ) / (32 * 31)


@pytest.mark.parametrize(
    ("representation", "values", "codes"),
    [("sparse", 8, 4), ("array", 8, 4), ("reorg", 8, 4)],
)
def test_represent_and_quantize_set_the_bytes_of_a_node(representation, values, codes):
    schedule = direct(64).represent(representation)
    assert node_bytes(schedule) == pytest.approx(values, rel=0.1)
    assert node_bytes(schedule.quantize("b0")) == pytest.approx(codes, rel=0.1)


def test_quantize_compares_integers() -> None:
    def compared(one: Built) -> set[str]:
        (loop,) = of_type(regions(one)[-1], lir.While)
        order = [op for op in ops(loop.body, lir.Compare) if op.op in ("ge", "lt")]
        return {op.a.type.name for op in order}

    plain, coded = (build(full(), s) for s in (direct(), direct().quantize("b0")))
    assert compared(plain) == {"f32"}
    assert compared(coded) == {"u32"}
    assert loads(regions(coded)[-1], "rows") == 0
    assert barriers(coded.grids[0]) == 1
    # a word for each row and feature, by feature
    table = coded.lowered.hir.codes
    assert table is not None
    assert shared(coded) == 64 * table.n_columns * 4
