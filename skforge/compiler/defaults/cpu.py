"""Chooses a CPU schedule for each batch size by estimates, without measuring.

Every kind of schedule that the forest allows is estimated (``compiler/cost``); each
range of batch sizes gets the cheapest. The tuner starts from these schedules and never
returns a slower one.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np

from skforge.compiler.cost.counts import counted
from skforge.compiler.cost.estimate import L3_SHARE, CostEstimate, plan_of
from skforge.compiler.cost.profile import MachineProfile
from skforge.compiler.cost.shape import ForestShape
from skforge.compiler.defaults.walks import walking_schedules, without_checks
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.target import Target
from skforge.forest.forest import Forest
from skforge.schedule import families
from skforge.schedule.ranges import BatchRange, SchedulesByRange
from skforge.schedule.schedule import Schedule

#: Batch sizes at which schedules are compared; between two, every size is.
SIZES = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192),
    *(256, 512, 1024, 2048, 4096, 16384),
)

#: A schedule also serves larger batches while it is estimated within this factor of the
#: best: each further one has a kernel to compile.
KEPT = 1.04

#: Rows of a block of predicates, at most as many as a register has bits: of 87 forests,
#: larger ones were never better by more than a tenth, and up to 2.2 times worse.
BIT_BLOCKS = (64, 128, 256, 512)

#: Trees whose predicates are evaluated at a time, where lines outgrow half of L2, and
#: the rows for which they are estimated.
TREE_TILES, MANY_ROWS = (25, 50, 100, 200), 4096

#: The most of the estimate of all at once that they may take, and so for lines of at
#: least ``FAR`` times L2. (Zen 4, 1 MiB of L2; 512 and 4,096 rows of 300 to 1000 trees,
#: the best tiles: 1.7 to 2.5 times L2 take .97 to 1.0, 3.6 times .94 and .81, 5.6 times
#: .67 and .65.)
TILES_PAY, FAR_PAY, FAR = 0.9, 0.98, 3

#: Rows of a block and nodes of a tile, by codes; each block reads its tiles again, so
#: larger ones win where trees outgrow L2.
TILE_BLOCKS = (
    *((256, 15), (2048, 15), (4096, 15)),
    *((512, 7), (4096, 7), (2048, 7)),
)

#: Rows of a block whose rows share pieces.
PIECE_BLOCKS = (512, 4096)

#: Rows of a block, and of a group, of few rows.
FEW_BLOCK, FEW_TOGETHER = 64, 8

#: Rows from which threads share those that go through lanes one by one: fewer take a
#: thread less time than to wake another.
SHARED_ROWS = 128

#: Rows are walked instead if the table of predicates exceeds this many bytes.
TABLE_LIMIT = 1 << 28


def default_schedules(
    forest: Forest | ForestShape,
    target: Target,
    reduction: Reduction = "exact",
    profile: MachineProfile | None = None,
) -> SchedulesByRange:
    """Return a schedule for every batch range; equal ones share a kernel.

    ``profile`` is the speed of the machine; None uses the one stored for the target.
    All but walks sum floats in model order, so ``reproducible`` uses walks.
    """
    if reduction == "reproducible" or not forest.n_predicates:
        return walking_schedules(forest, target)
    counts = counted(forest, target)
    walks = walking_schedules(counts, target)
    offered = [*dict.fromkeys(walks.values()), *candidates(counts, target)]
    if FEW_TOGETHER * counts.row_bytes <= target.l1_bytes:
        offered.append(few_rows(counts))
    estimate = CostEstimate(counts, target, profile)
    return cheapest(estimate, [_by_tree_tiles(estimate, s) for s in offered])


def _by_tree_tiles(estimate: CostEstimate, schedule: Schedule) -> Schedule:
    """Return bit logic by the best tiles of trees, where lines outgrow L2."""
    counts, l2 = estimate.counts, estimate.target.l2_bytes
    plan = plan_of(schedule)
    if plan is None or plan.kind != "bitsliced":
        return schedule
    lines = counts.n_predicates * plan.block // 8
    sizes = [trees for trees in TREE_TILES if trees < counts.n_trees]
    if lines <= l2 // 2 or not sizes:
        return schedule
    tiled = [families.bitsliced_schedule(plan.block, trees) for trees in sizes]
    costs = [float(estimate.seconds(other, MANY_ROWS)) for other in tiled]
    pays = FAR_PAY if lines >= FAR * l2 else TILES_PAY
    worth = min(costs) <= pays * estimate.seconds(schedule, MANY_ROWS)
    return tiled[int(np.argmin(costs))] if worth else schedule


def candidates(forest: Forest | ForestShape, target: Target) -> list[Schedule]:
    if not forest.n_predicates:
        return []
    counts, allowed = counted(forest, target), []
    if counts.allows_lanes:
        allowed.append(families.lanes_schedule())
    if counts.pairs is not None:
        allowed.append(families.pairs_schedule())
    if counts.allows_tile_rows:
        allowed += [families.tiled_row_schedule(nodes) for nodes in (7, 15)]
    if counts.allows_value_rows:
        allowed.append(families.tiled_row_schedule(7, codes=False))
    if counts.allows_tiles:
        allowed += [families.tiled_schedule(rows, nodes) for rows, nodes in TILE_BLOCKS]
    if counts.allows_pieces:
        allowed += [families.pieces_schedule(rows) for rows in PIECE_BLOCKS]
    if counts.allows_value_tiles:
        # Rows that outgrow half of L2 take 1.2 times as long (784 and 2000 columns),
        # and trees that outgrow L3 in blocks of 256 1.4 to 2.5 (24 and 1 M nodes).
        fit = max(64, target.l2_bytes // (2 * counts.row_bytes))
        far = 0 < target.l3_bytes / L3_SHARE < counts.values.lines.size
        rows = min(4096 if far else 256, 1 << (fit.bit_length() - 1))
        allowed.append(families.tiled_schedule(rows, 7, codes=False))
    if counts.allows_bits:
        allowed += [
            families.bitsliced_schedule(rows)
            for rows in BIT_BLOCKS
            if rows <= target.vector_bits
            and forest.n_predicates * rows // 8 <= TABLE_LIMIT
        ]
    return allowed


def few_rows(forest: Forest | ForestShape) -> Schedule:
    """Return a walk of few rows together, which do not fill the groups of other walks.

    They have to fit L1: at 968 columns, trees in flight took half the time. Rows that
    fill no group are walked one by one: 8 rows of one tree took 1.9 to 2.2 times as
    long in groups of 16.
    """
    shape = ForestShape.of(forest)
    blocks = families.row_blocks(FEW_BLOCK).interleave("b1", FEW_TOGETHER)
    return without_checks(blocks, "b1", shape)


def cheapest(estimate: CostEstimate, offered: list[Schedule]) -> SchedulesByRange:
    costs = np.array([estimate.seconds(schedule, SIZES) for schedule in offered])
    chosen: list[int] = []
    for cost in costs.T:
        best = int(np.argmin(cost))
        serves = chosen and cost[chosen[-1]] <= KEPT * cost[best]
        chosen.append(chosen[-1] if serves else best)
    firsts = [(1, offered[chosen[0]])]
    for (small, old), (large, new) in pairwise(zip(SIZES, chosen, strict=True)):
        if new != old:
            # the first size after ``small`` at which the new one is the cheaper one
            sizes = np.arange(small + 1, large + 1)
            old_costs, costs = (estimate.seconds(offered[i], sizes) for i in (old, new))
            cheaper = costs < old_costs
            cheaper[-1] = True
            firsts.append((int(sizes[np.argmax(cheaper)]), offered[new]))
    ends = [*(first - 1 for first, _ in firsts[1:]), None]
    table: SchedulesByRange = {}
    for (first, schedule), last in zip(firsts, ends, strict=True):
        table |= _shared(first, last, schedule)
    return table


def _shared(first: int, last: int | None, schedule: Schedule) -> SchedulesByRange:
    if schedule != families.lanes_schedule() or (last or SHARED_ROWS) < SHARED_ROWS:
        return {(first, last): schedule}
    large = families.lanes_schedule(parallel=True)
    if first >= SHARED_ROWS:
        return {(first, last): large}
    return {(first, SHARED_ROWS - 1): schedule, (SHARED_ROWS, last): large}


# ---------------------------------------------------------------- contributions

#: Rows of a block: a tree's constants are read once for all its vectors. Large batches
#: take large blocks, unless rows are wide (50 trees of 2,200 nodes: 296 us a row in
#: blocks of 64, 230 in blocks of 256; 100 of 510 nodes: 18.1, 16.8).
BLOCK, LARGE_BLOCK, WIDE = 64, 256, 512

#: Rows that are walked one by one, with points as the lanes: a vector of rows costs as
#: much as two (100 trees of depth 8: 190 us a row, 330 for 1 to 16 rows).
SINGLE_ROWS = 2


def contribution_schedules(
    forest: Forest, represent: Literal["contributions", "interactions"]
) -> dict[BatchRange, Schedule]:
    vector = 64 // forest.leaf_value.itemsize
    large = LARGE_BLOCK if forest.n_features <= WIDE else BLOCK
    table: dict[BatchRange, Schedule] = {}
    first = 1
    if represent == "contributions":
        first = SINGLE_ROWS + 1
        table[1, SINGLE_ROWS] = _blocks(1, represent)
    # Walks take up to four vectors; five or six are cheaper two by two.
    two = 2 * vector
    ends = (vector, two, 4 * vector, 6 * vector, LARGE_BLOCK, None)
    sizes = (vector, two, BLOCK, two, BLOCK, large)
    for last, size in zip(ends, sizes, strict=True):
        table[first, last] = _blocks(size, represent)
        first = (last or 0) + 1
    return table


def _blocks(size: int, represent: str) -> Schedule:
    return families.row_blocks(size).vectorize("b1").represent(represent)
