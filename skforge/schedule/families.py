"""Families of schedules, each a function of its sizes.

Presets, defaults and search spaces build their loops from these. On a GPU,
:func:`rows_by_threads` suits large batches, :func:`rows_and_trees` medium ones, where
rows alone give too few threads, and :func:`trees_by_threads` small ones, according to
the model of ``benchmarks/results/gpu_static.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from skforge.schedule.schedule import Schedule


def row_blocks(rows: int) -> Schedule:
    """Pass blocks of rows through one tree after another; threads share the blocks."""
    return (
        Schedule()
        .tile("batch", "b0", "b1", rows)
        .reorder("b0", "tree", "b1")
        .parallel("b0")
    )


def tiles(rows: int, trees: int, *order: str) -> Schedule:
    """Pass blocks of rows through tiles of trees, in an order of the four loops."""
    blocks = Schedule().tile("batch", "b0", "b1", rows)
    return blocks.tile("tree", "t0", "t1", trees).reorder(*order)


def trees_in_flight(walks: int, rows: int = 0, fetch: bool = False) -> Schedule:
    """Pass a row at a time through several trees; ``fetch`` prefetches each row."""
    schedule, row = Schedule(), "batch"
    if rows:
        schedule, row = schedule.tile("batch", "b0", "b1", rows).parallel("b0"), "b1"
    if fetch:
        schedule = schedule.cache(row)
    return schedule.interleave("tree", walks) if walks > 1 else schedule


def lanes_schedule(parallel: bool = False) -> Schedule:
    """Pass one row through all trees at once.

    ``parallel`` shares the rows among threads, which pays off only for large batches.
    100 trees of depth 8 take 0.15 us a row where the walk takes 0.41, 500 of 31 leaves
    0.8 where it takes 4.
    """
    schedule = Schedule().parallel("batch") if parallel else Schedule()
    return schedule.quantize("batch").vectorize("tree").represent("lanes")


def pairs_schedule() -> Schedule:
    """Pass eight rows through eight trees at a time; threads share the rows.

    Rows pass all trees one by one where ``represent("lanes")`` cannot do this. 100
    trees of depth 8, 8 and 16 rows: .61 and .55 of the time of single rows.
    """
    schedule = Schedule().tile("batch", "b0", "b1", 8).parallel("b0")
    return schedule.quantize("b1").vectorize("tree").represent("lanes")


def bitsliced_schedule(rows: int = 512, trees: int = 0) -> Schedule:
    """Evaluate predicates once for a block of rows, and trees as bit logic.

    ``trees`` are those whose predicates are evaluated at a time; 0: all.

    100 trees of depth 8 take 0.03 to 0.07 us a row where the best walk takes 0.39
    (histogram-trained), 0.14 where it takes 0.77 (few shared thresholds).
    """
    schedule = row_blocks(rows)
    if trees:
        schedule = tiles(rows, trees, "b0", "t0", "t1", "b1").parallel("b0")
    schedule = schedule.cache_predicates("t0" if trees else "b0").vectorize("b1")
    return schedule.represent("bitsliced")


def tiled_schedule(rows: int = 512, nodes: int = 15, codes: bool = True) -> Schedule:
    """Walk deep trees as tiles of a few whole levels, comparing codes or row values.

    100 trees of full depth take 0.46 us a row (4000 nodes a tree) to 0.6 (10,000, ten
    classes) where the best walk takes 2.6 and more.
    """
    schedule = row_blocks(rows)
    if codes:
        schedule = schedule.quantize("b0")
    return schedule.vectorize("b1").tile_nodes(nodes, "complete").represent("tiles")


def pieces_schedule(rows: int = 4096) -> Schedule:
    """Let blocks of rows meet all tests of a few subtrees of each deep tree.

    100 trees of full depth (10,000 nodes each), 4096 rows, AVX2: 2.0 us a row where
    tiles take 5.2.
    """
    return row_blocks(rows).quantize("b0").vectorize("b1").represent("pieces")


def tiled_row_schedule(nodes: int = 15, codes: bool = True) -> Schedule:
    """Pass one row through all trees of tiles at once.

    100 trees of full depth, 1.0 and 1.6 million nodes, 8 rows: 2.5 and 3.3 us a row
    where the walk takes 11 and 20; with a cold cache 6.3 and 7.9 where it takes 27 and
    36. A walk waits for a cache line at each hop; this waits for one at each tile, for
    all trees together. Without codes, 300 trees of 24 million nodes take 25 us where
    the walk takes 210.
    """
    schedule = Schedule().parallel("batch")
    if codes:
        schedule = schedule.quantize("batch")
    schedule = schedule.vectorize("tree")
    return schedule.tile_nodes(nodes, "complete").represent("tiles")


def unchecked(schedule: Schedule, loop: str, padded: int, peeled: int) -> Schedule:
    if padded:
        return schedule.unroll_walk(loop, padded)
    return schedule.peel_walk(loop, peeled) if peeled else schedule


def mapped(schedule: Schedule, **dimensions: str) -> Schedule:
    for loop, dimension in dimensions.items():
        schedule = schedule.gpu_dimension(loop, dimension)
    return schedule


class Dealt(NamedTuple):
    """Loops mapped to a GPU: the schedule, a thread's trees, and the parts of a row."""

    schedule: Schedule
    trees: str
    parts: tuple[str, ...]


def rows_on_threads(
    rows: int, each: int = 1, parts: int | None = None, tile: int | None = None
) -> Dealt:
    """Give each thread ``each`` of a block's rows, and all trees or one of ``parts``.

    With ``tile``, each thread takes that many trees at a time and then synchronises; a
    block may cache these trees.
    """
    schedule = Schedule().tile("batch", "b0", "b1", rows)
    thread, inner, around = "b1", [], []
    if each > 1:
        schedule = schedule.tile("b1", "r0", "r1", each)
        thread, inner = "r0", ["r1"]
    part, trees = "", "tree"
    if tile is not None:
        schedule = schedule.tile("tree", "t0", "t1", (parts or 1) * tile)
        around, trees = ["t0"], "t1"
        if parts is not None:
            schedule = schedule.tile("t1", "t2", "t3", tile)
            part, trees = "t2", "t3"
    elif parts is not None:
        schedule = schedule.tile("tree", "t0", "t1", parts)
        part, trees = "t1", "t0"
    shared = (part,) if part else ()
    schedule = schedule.reorder("b0", *around, thread, *shared, *inner, trees)
    dimensions = {"b0": "grid.x", thread: "block.x"} | dict.fromkeys(shared, "block.y")
    return Dealt(mapped(schedule, **dimensions), trees, shared)


def trees_on_threads(rows: int, threads: int, blocks: int = 1) -> Dealt:
    if blocks > 1:
        schedule = Schedule().tile("batch", "b0", "b1", rows)
        schedule = schedule.tile("tree", "t0", "t1", -blocks)
        schedule = schedule.tile("t1", "t2", "t3", threads)
        schedule = schedule.reorder("b0", "t0", "b1", "t3", "t2")
        schedule = mapped(
            schedule, b0="grid.x", t0="grid.y", b1="block.y", t3="block.x"
        )
        return Dealt(schedule, "t2", ("t0",))
    schedule = tiles(rows, threads, "b0", "b1", "t1", "t0")
    schedule = mapped(schedule, b0="grid.x", b1="block.y", t1="block.x")
    return Dealt(schedule, "t0", ("t1",))


def stationary_trees(trees: int, rows: int, warps: int) -> Schedule:
    """Keep some trees in each block, one a thread; rows stream past, one a warp."""
    schedule = (
        Schedule()
        .tile("batch", "b0", "b1", rows)
        .tile("b1", "b2", "b3", warps)
        .tile("tree", "t0", "t1", trees)
        .reorder("t0", "b0", "b2", "b3", "t1")
    )
    dimensions = {"t0": "grid.y", "b0": "grid.x", "b3": "block.y", "t1": "block.x"}
    return mapped(schedule, **dimensions).cache("t0")


RowMemory: TypeAlias = Literal["memory", "shared", "codes"]


@dataclass(frozen=True, slots=True)
class WalkKind:
    """How a thread walks its trees, independent of how rows and trees are assigned.

    It reads its row in global memory, or a copy of the values or of their codes in
    shared memory.
    """

    rows: RowMemory = "shared"
    representation: str = "sparse"
    in_flight: int = 4  # trees walked together: the latencies of their reads overlap
    padded: int = 0  # hops of every walk; 0 for walks that check for leaves
    peeled: int = 0  # hops without a leaf check, if walks are not padded

    def on(self, schedule: Schedule, trees: str) -> Schedule:
        if self.rows == "shared":
            schedule = schedule.cache("b0")
        elif self.rows == "codes":
            schedule = schedule.quantize("b0")
        if self.in_flight > 1:
            schedule = schedule.interleave(trees, self.in_flight)
        schedule = unchecked(schedule, trees, self.padded, self.peeled)
        return schedule.represent(self.representation)


def rows_by_threads(rows: int, walk: WalkKind, tile: int = 0) -> Schedule:
    """Give each thread a row, which it takes through all trees in order.

    Sums stay in registers in every mode. With ``tile``, a block copies that many trees
    at a time to shared memory: each node is read from memory once for all its rows.
    """
    schedule, trees, _ = rows_on_threads(rows, tile=tile or None)
    return walk.on(schedule.cache("t0") if tile else schedule, trees)


def rows_and_trees(
    rows: int, parts: int, walk: WalkKind, shared_sums: bool = True
) -> Schedule:
    """Give all warps of a block the same rows and each a part of the trees.

    Lanes are rows. As in :func:`rows_by_threads`, lanes read adjacent values and the
    same upper nodes, but a batch has ``parts`` times as many threads.
    """
    schedule = tiles(rows, parts, "b0", "t1", "b1", "t0")
    schedule = mapped(schedule, b0="grid.x", t1="block.y", b1="block.x")
    return walk.on(schedule.shared_reduce("t1") if shared_sums else schedule, "t0")


def trees_by_threads(
    rows: int, threads: int, walk: WalkKind, shared_sums: bool = True
) -> Schedule:
    """Distribute the trees of a row over threads; a block takes some rows.

    With 32 threads a row, they form one warp, which reduces by shuffles if the order of
    summation is free.
    """
    schedule, trees, _ = trees_on_threads(rows, threads)
    return walk.on(schedule.shared_reduce("t1") if shared_sums else schedule, trees)


def trees_by_blocks(rows: int, threads: int, blocks: int, walk: WalkKind) -> Schedule:
    """Distribute a few rows' trees over blocks; a second launch adds their results."""
    schedule, trees, _ = trees_on_threads(rows, threads, blocks)
    return walk.on(schedule, trees)
