"""Every directive changes what it must on a GPU: counted in LIR, launches and buffers.

Each test says what there is without the directive, too, so that one that does nothing
fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from skforge.compiler.ir.lir import nodes as lir
from skforge.exceptions import ScheduleError
from skforge.forest.forest import Forest
from skforge.gpu.backend import BACKEND, GPU_LIR_PASSES
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


def test_specialize_makes_a_case_for_each_depth() -> None:
    random = np.random.default_rng(0)
    made = forest_of([tree("full", depth, random) for depth in (2, 4, 3, 2, 4, 2)])
    assert of_type(build(made, direct()).grids[0], lir.Switch) == []
    inside = build(made, direct().specialize("tree"))
    (switch,) = of_type(regions(inside)[0], lir.Switch)
    assert len(switch.cases) == 3
    assert [walks(case) for case in switch.cases] == [[]] * 3  # each knows its depth
    # around what the block does together, it is the block's
    cached = Schedule.preset("tahoe-splitting-shared-forest", rows=32, trees=1)
    (outer,) = of_type(build(made, cached.specialize("t0")).grids[1], lir.Switch)
    assert len(of_type(outer.cases[0], lir.BlockRegion)) >= 1


# ---------------------------------------------------------------------------- walks


# ------------------------------------------------------------------------ reductions


def test_sums_of_one_thread_need_nothing() -> None:
    for reduction in ("exact", "fast", "reproducible"):
        one = build(full(), direct(), reduction)  # type: ignore[arg-type]
        assert (len(one.grids), barriers(one.grids[0]), shared(one)) == (1, 0, 0)
        assert allocs(one, "global") == allocs(one, "shared") == []


@pytest.mark.parametrize(
    ("reduction", "launches", "scratch"),
    [
        ("exact", 3, [32 * 4]),  # the base, a leaf of each tree, their sum in order
        ("fast", 4, [4 * 4]),  # slots of four blocks of trees start at zero
        ("reproducible", 5, [8, 4 * 8]),  # fixed point, which is made a float at last
    ],
)
def test_trees_on_the_grid_are_summed_by_launches_of_their_own(
    reduction: Any, launches: int, scratch: list[int]
) -> None:
    one = build(full(), splitting(8), reduction)
    assert of_type(one.lowered.kernel.function, lir.AtomicAdd) == []
    seen = run(one, 100)
    assert len(seen.launches) == launches
    assert seen.scratch == [100 * size for size in scratch]


@pytest.mark.parametrize("outputs", [1, 3])
def test_atomic_reduce_adds_atomically(outputs: int) -> None:
    made = drawn(32, 4, n_outputs=outputs)
    atomic = splitting(8).atomic_reduce("t0")
    one = build(made, atomic, "fast")
    assert len(of_type(one.lowered.kernel.function, lir.AtomicAdd)) == 1
    assert allocs(one, "global") == []
    assert len(one.grids) == 2  # the base, and the walks
    # in exact mode the order counts
    exact = build(made, atomic)
    assert of_type(exact.lowered.kernel.function, lir.AtomicAdd) == []
    fixed = build(made, atomic, "reproducible")
    (add,) = of_type(fixed.lowered.kernel.function, lir.AtomicAdd)
    assert add.buffer.element == lir.I64


@pytest.mark.parametrize(
    ("reduction", "slots", "left"),
    [
        ("exact", 32 * 4, []),  # a leaf a tree
        ("fast", 12 * 4, []),  # a sum a thread
        ("reproducible", 12 * 8, [8]),
    ],
)
def test_shared_reduce_keeps_slots_in_shared_memory(reduction, slots, left):
    """Twelve threads a row, four rows a block, of which there are 25."""
    schedule = dealt(4, 12)
    plain = build(full(), schedule, reduction)
    assert shared(plain) == 0
    assert run(plain, 100).scratch == [100 * size for size in (*left, slots)]
    one = build(full(), schedule.shared_reduce("t1"), reduction)
    assert shared(one) == 4 * slots
    assert run(one, 100).scratch == [100 * size for size in left]


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("trees", [2, 8, 32])
def test_lanes_of_a_warp_sum_by_exchanges(trees: int, outputs: int) -> None:
    made = drawn(64, 3, n_outputs=outputs)
    one = build(made, dealt(4, trees), "fast")
    sums = ops(one.grids[-1], lir.WarpReduce)
    assert [op.width for op in sums] == [trees] * outputs
    assert (len(one.grids), barriers(one.grids[0])) == (1, 0)
    assert allocs(one, "global") == []
    # a register, or where trees differ in their output a bank for each of these
    assert shared(one) == (0 if outputs == 1 else 4 * trees * outputs * 4)
    # the order of exchanges is not the model's
    exact = build(made, dealt(4, trees))
    assert ops(exact.grids[-1], lir.WarpReduce) == []
    # twelve threads are no part of a warp: their slots are memory
    twelve = build(made, dealt(4, 12), "fast")
    assert (barriers(twelve.grids[0]) > 0, allocs(twelve, "global")) == (
        True,
        ["result_1"],
    )


def test_threads_divide_few_sums_among_them() -> None:
    """One row's 64 slots: 32 threads take two each, then exchange."""
    rapids = Schedule.preset("rapids", threads=64)
    one = build(drawn(128, 3), rapids, "fast")
    assert [op.width for op in ops(one.grids[-1], lir.WarpReduce)] == [32]
    # as many sums as threads: one each
    many = build(drawn(128, 3, n_outputs=40, vector=True), rapids, "fast")
    assert ops(many.grids[-1], lir.WarpReduce) == []
    assert ops(build(drawn(128, 3), rapids).grids[-1], lir.WarpReduce) == []


def test_reorder_trees_stores_leaves_to_add_them_in_order() -> None:
    made = drawn(9, 5)
    assert allocs(build(made, direct()), "shared") == []
    sorted_ = build(made, direct().reorder_trees())
    assert allocs(sorted_, "shared") == ["leaves_1"]
    assert shared(sorted_) == 64 * 9 * 4  # no barrier: threads read what is theirs
    assert barriers(sorted_.grids[0]) == 0


def test_sums_of_several_outputs_stay_with_their_thread() -> None:
    """Global memory is written once a row, not once a tree."""
    one = build(drawn(32, 3, n_outputs=3), direct())
    assert shared(one) == 64 * 3 * 4
    assert barriers(one.grids[0]) == 0
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


def without(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Leave a pass on LIR out."""
    passes = tuple(p for p in GPU_LIR_PASSES if p.name != name)
    assert len(passes) == len(GPU_LIR_PASSES) - 1
    monkeypatch.setattr(BACKEND, "lir_passes", passes)


def wide_values(one: Built) -> int:
    return sum(s.value.type == lir.I64 for s in of_type(one.grids[-1], lir.Let))


@pytest.mark.parametrize("representation", ["sparse", "array", "reorg"])
def test_indices_are_narrow(representation, monkeypatch):
    schedule = direct().cache("b0").represent(representation)
    assert wide_values(build(full(), schedule)) == 0
    without(monkeypatch, "narrow-indices")
    assert wide_values(build(full(), schedule)) > 10


def test_shared_memory_is_addressed_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def elements(one: Built) -> set[str]:
        found = of_type(one.grids[0], lir.Alloc)
        return {a.buffer.element.name for a in found if a.buffer.space == "shared"}

    schedule = direct().cache("b0")
    scaled = build(full(), schedule)
    assert elements(scaled) == {"u8"}
    without(monkeypatch, "scale-shared")
    words = build(full(), schedule)
    assert elements(words) == {"f32"}
    assert shared(words) == shared(scaled)
