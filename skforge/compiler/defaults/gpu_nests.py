"""The ways to deal rows and trees out to a GPU's blocks and threads, by their sizes.

Each function returns a schedule. What they are good for, by the model that
``benchmarks/gpu/static.py`` prints: :func:`rows_by_threads` for large batches,
:func:`rows_and_trees` between, where rows alone are too few threads, and
:func:`trees_by_threads` for a few rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from skforge.compiler.schedule.schedule import Schedule

Rows: TypeAlias = Literal["memory", "shared", "codes"]


@dataclass(frozen=True, slots=True)
class Walk:
    """How a thread walks its trees, whoever its rows and trees are.

    Parameters
    ----------
    rows : {"memory", "shared", "codes"}
        Where it reads its row: global memory, or a copy in shared memory, of values or
        of codes.
    representation : {"sparse", "array", "reorg", "packed"}
        How nodes are stored.
    in_flight : int
        Trees walked together, so that reads of one hide behind those of the others.
    padded : int
        Hops of every walk; 0 for walks that look for their leaf.
    peeled : int
        Hops without a look at the leaf, where walks are not padded.
    """

    rows: Rows = "shared"
    representation: str = "sparse"
    in_flight: int = 4
    padded: int = 0
    peeled: int = 0

    def on(self, schedule: Schedule, batch: str, trees: str) -> Schedule:
        """Add to a schedule whose block of rows and innermost loop are given."""
        if self.rows == "shared":
            schedule = schedule.cache(batch)
        elif self.rows == "codes":
            schedule = schedule.quantize(batch)
        if self.in_flight > 1:
            schedule = schedule.interleave(trees, self.in_flight)
        if self.padded:
            schedule = schedule.unroll_walk(trees, self.padded)
        elif self.peeled:
            schedule = schedule.peel_walk(trees, self.peeled)
        if self.representation == "packed":
            schedule = schedule.tile_nodes(7, "complete")
        return schedule.represent(self.representation)


def rows_by_threads(rows: int, walk: Walk, tile: int = 0) -> Schedule:
    """Give each thread a row, which it takes through all trees in their order.

    Sums stay in registers in every mode. With ``tile``, a block brings so many trees at
    a time to shared memory: each node is read from memory once for all its rows.
    """
    schedule = Schedule().tile("batch", "b0", "b1", rows)
    if tile:
        schedule = schedule.tile("tree", "t0", "t1", tile)
        schedule = schedule.reorder("b0", "t0", "b1", "t1")
    else:
        schedule = schedule.reorder("b0", "b1", "tree")
    schedule = schedule.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    if tile:
        schedule = schedule.cache("t0")
    return walk.on(schedule, "b0", "t1" if tile else "tree")


def rows_as_bits(rows: int, each: int = 4, tile: int = 0) -> Schedule:
    """Evaluate every distinct predicate for a block of rows, 32 of them a word.

    Threads fold trees, one logic operation a node for 32 rows, and add the leaves of
    ``each`` rows in the trees' order. With ``tile``, so many trees share a table.
    """
    schedule = Schedule().tile("batch", "b0", "b1", rows).tile("b1", "b2", "b3", each)
    if tile:
        schedule = schedule.tile("tree", "t0", "t1", tile)
        schedule = schedule.reorder("b0", "t0", "t1", "b2", "b3")
    else:
        schedule = schedule.reorder("b0", "tree", "b2", "b3")
    return (
        schedule.gpu_dimension("b0", "grid.x")
        .gpu_dimension("b2", "block.x")
        .cache_predicates("b0")
        .vectorize("b3")
        .represent("bitsliced")
    )


def rows_and_trees(
    rows: int, parts: int, walk: Walk, shared_sums: bool = True
) -> Schedule:
    """Give each warp the same rows and a part of the trees: lanes are rows.

    As in :func:`rows_by_threads`, lanes read neighbouring values and the same upper
    nodes, but a batch is ``parts`` times as many threads.
    """
    schedule = (
        Schedule()
        .tile("batch", "b0", "b1", rows)
        .tile("tree", "t0", "t1", parts)
        .reorder("b0", "t1", "b1", "t0")
        .gpu_dimension("b0", "grid.x")
        .gpu_dimension("t1", "block.y")
        .gpu_dimension("b1", "block.x")
    )
    if shared_sums:
        schedule = schedule.shared_reduce("t1")
    return walk.on(schedule, "b0", "t0")


def trees_by_threads(
    rows: int, threads: int, walk: Walk, shared_sums: bool = True
) -> Schedule:
    """Deal the trees of a row out to threads; a block takes some rows.

    With 32 threads a row they are one warp, which adds by shuffles where order is free.
    """
    schedule = (
        Schedule()
        .tile("batch", "b0", "b1", rows)
        .tile("tree", "t0", "t1", threads)
        .reorder("b0", "b1", "t1", "t0")
        .gpu_dimension("b0", "grid.x")
        .gpu_dimension("b1", "block.y")
        .gpu_dimension("t1", "block.x")
    )
    if shared_sums:
        schedule = schedule.shared_reduce("t1")
    return walk.on(schedule, "b0", "t0")


def trees_by_blocks(rows: int, threads: int, blocks: int, walk: Walk) -> Schedule:
    """Deal the trees of a few rows out to threads of several blocks.

    What blocks found is added by a second launch.
    """
    schedule = (
        Schedule()
        .tile("batch", "b0", "b1", rows)
        .tile("tree", "t0", "t1", -blocks)
        .tile("t1", "t2", "t3", threads)
        .reorder("b0", "t0", "b1", "t3", "t2")
        .gpu_dimension("b0", "grid.x")
        .gpu_dimension("t0", "grid.y")
        .gpu_dimension("b1", "block.y")
        .gpu_dimension("t3", "block.x")
    )
    return walk.on(schedule, "b0", "t2")
