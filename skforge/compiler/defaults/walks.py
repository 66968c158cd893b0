"""Schedules that walk trees node by node, for each batch size.

They support every forest and every use of leaf numbers. The rules come from
measurements on one AVX-512 core (100 trees of depth 8); the comments have the numbers.
"""

from __future__ import annotations

from skforge.compiler.cost.shape import ForestShape
from skforge.compiler.layouts.nodes.records import CACHE_LINE
from skforge.compiler.target import Target
from skforge.forest.forest import Forest
from skforge.schedule import families
from skforge.schedule.ranges import BATCH_RANGES, BatchRange
from skforge.schedule.schedule import Schedule

#: Walks in flight. For 16 rows of one tree, 8 are 30-40 % slower, 12 and 24 8-17 %
#: (airline, year_prediction_msd). For one row of 1000 columns or more, walked, 10 trees
#: take 12 to 25 % longer than 20, and 25 take 4 to 10 % longer.
ROWS_IN_FLIGHT = 16
TREES_IN_FLIGHT = 20

#: The same for complete trees: as many as have a register of their own (968 and 3,000
#: columns, one row and 8, Emerald Rapids: 10 take .69 to .81 of the time of 20 trees
#: with pointers, 12 to 20 take .7 to .93).
HEAPS_IN_FLIGHT = 10

#: Rows in a block. If the forest fits L2, 64 are as good as more. If it does not, each
#: block fetches it again: 256 and 1024 were 1.15 to 2 times faster than 64 (full-depth
#: random forests, 512 to 4096 rows).
BLOCK = 64
BLOCK_OF_MANY, BLOCK_OF_MOST = 256, 1024

#: Most nodes after padding to equal depth, as a multiple of the forest's own.
PADDING_LIMIT = 2.0

#: Most nodes of complete trees, as a multiple of the forest's own, that padded trees
#: are laid out as: a hop takes 7 instructions where it takes 12 with pointers.
HEAP_LIMIT = 2.0

#: A row of more than this many bytes is fetched before its walks, if they touch about
#: half of its cache lines or more: 8 rows of 60 to 16,000 columns, 10 to 1000 trees,
#: take 0.5 to 0.97 of the time.
FETCHED_ROW, FETCHED_LINES_A_HOP = 256, 2.0


def walking_schedules(
    forest: Forest | ForestShape, target: Target
) -> dict[BatchRange, Schedule]:
    """Return a schedule of plain walks for every batch range.

    If rows in flight do not fit L1, trees are in flight instead: 64 rows of 968 columns
    take .57 of the time, 32 rows .47.
    """
    shape = ForestShape.of(forest)
    few = _few_rows(shape)
    fits = shape.node_bytes <= target.l2_bytes // 2
    if fits and shape.row_bytes * ROWS_IN_FLIGHT > target.l1_bytes:
        blocks = _few_rows(shape, BLOCK)
        return dict(zip(BATCH_RANGES, (few, few, *3 * [blocks]), strict=True))
    small = _blocked(shape, target, BLOCK)
    many = _blocked(shape, target, BLOCK if fits else BLOCK_OF_MANY)
    most = BLOCK if fits else BLOCK_OF_MOST
    large = _blocked(shape, target, most, streaming=True)
    return dict(zip(BATCH_RANGES, (few, few, small, many, large), strict=True))


def without_checks(schedule: Schedule, index: str, shape: ForestShape) -> Schedule:
    padded = shape.max_depth if shape.padded_nodes <= PADDING_LIMIT else 0
    schedule = families.unchecked(schedule, index, padded, shape.min_depth)
    return schedule.represent("array") if _heaped(shape) else schedule


def _heaped(shape: ForestShape) -> bool:
    return shape.padded_nodes <= PADDING_LIMIT and shape.heap_nodes <= HEAP_LIMIT


def _fetches_rows(shape: ForestShape) -> bool:
    hops = shape.n_trees * shape.max_depth
    lines = shape.row_bytes / CACHE_LINE
    return shape.row_bytes > FETCHED_ROW and lines <= FETCHED_LINES_A_HOP * hops


def _few_rows(shape: ForestShape, rows: int = 0) -> Schedule:
    """Walk one row through several trees in flight; the sum stays in a register."""
    most = HEAPS_IN_FLIGHT if _heaped(shape) else TREES_IN_FLIGHT
    in_flight = min(most, shape.n_trees)
    schedule = families.trees_in_flight(in_flight, rows, fetch=_fetches_rows(shape))
    return without_checks(schedule, "tree", shape)


def _blocked(
    shape: ForestShape, target: Target, rows: int, streaming: bool = False
) -> Schedule:
    """Walk blocks of rows that stay in cache while every tree passes over them."""
    # Rows of two blocks (this and the next) may take a quarter of L2.
    fit = max(1, target.l2_bytes // 8 // max(1, shape.row_bytes))
    block = max(ROWS_IN_FLIGHT, min(rows, 1 << (fit.bit_length() - 1)))
    schedule = families.row_blocks(block).interleave("b1", ROWS_IN_FLIGHT)
    # Rows that do not fit in cache are prefetched while trees are walked.
    if streaming and shape.row_bytes * block > target.l1_bytes:
        schedule = schedule.cache("b0")
    return without_checks(schedule, "b1", shape)
