"""Chooses a good CPU schedule for each batch size without measuring.

The rules of thumb come from measurements on one AVX-512 core (100 trees of depth 8);
the comments have the numbers. The tuner starts from these schedules and never returns a
slower one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.binning.transpose import WIDE
from skforge.compiler.forest.bins import column_count
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.layouts.bitsliced.predicate_table import refusal
from skforge.compiler.layouts.bitsliced.sliced_layout import fits_bits, folds
from skforge.compiler.layouts.lanes.lanes import lanes_cost
from skforge.compiler.layouts.nodes.records import CACHE_LINE
from skforge.compiler.layouts.tiles.tile_layout import (
    BYTES_A_NODE,
    MAX_LEAVES,
    TOP_LEVELS,
)
from skforge.compiler.layouts.tiles.tiled_values import refusal as values_refusal
from skforge.compiler.layouts.tiles.tiles import MAX_COLUMNS, MAX_TREES
from skforge.compiler.passes.hir import normalize_predicates
from skforge.compiler.schedule import families
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target

#: Batch sizes (first, last) where another schedule may win; a last of None is open.
BatchRange = tuple[int, int | None]
BATCH_RANGES: tuple[BatchRange, ...] = (
    (1, 1),
    (2, 15),
    (16, 127),
    (128, 2048),
    (2049, None),
)

#: Walks in flight. For 16 rows of one tree, 8 are 30-40 % slower, 12 and 24 8-17 %
#: (airline, year_prediction_msd). For one row of 1000 columns or more, walked, 10 trees
#: take 12 to 25 % longer than 20, and 25 take 4 to 10 % longer.
ROWS_IN_FLIGHT = 16
TREES_IN_FLIGHT = 20

#: Rows in a block. If the forest fits L2, 64 are as good as more. If it does not, each
#: block fetches it again: 256 and 1024 were 1.15 to 2 times faster than 64 (full-depth
#: random forests, 512 to 4096 rows).
BLOCK = 64
BLOCK_OF_MANY, BLOCK_OF_MOST = 256, 1024

#: Most nodes after padding to equal depth, as a multiple of the forest's own.
PADDING_LIMIT = 2.0

#: Deeper trees are walked with leaf checks, because each unrolled hop costs code.
UNROLL_LIMIT = 10


#: Rows of a block whose predicates are evaluated at once, by batch size. A block costs
#: nearly the same however many of its rows are real (airline: 8, 9.7 and 15.9 us for
#: 128, 256 and 512 rows, where walking 16, 32, 128 and 512 takes 8, 14, 52 and 207).
#: Wide rows gain nothing from more than 256: reading them is the bottleneck.
PREDICATE_BLOCK, MIDDLE_BLOCK, SMALL_BLOCK = 512, 256, 128

#: Largest share of L2 for the predicates of a block of 512 rows. Above it 256 rows are
#: better: 1.1 to 1.4 times for 100 trees of depth 8 of drawn thresholds and more, but
#: not for small trees, which cost more than predicates.
TABLE_SHARE, TABLE_SHARE_NARROW = 0.5, 0.25

#: Cost of a small block, however many of its rows are real, with mask registers and
#: without, in the instructions of ``WALK_HOP``: a node of a folded tree, a node of
#: another, a predicate, a tree, a column of the rows. Fitted to 28 forests, 0.3 to 50
#: us, off by 1.1 times. A block beats single rows as soon as they cost as much: from 10
#: rows (1000 trees of depth 3) to 46 (100 of depth 8).
BLOCK_COST = (2.7, 14.0, 7.5, 28.0, 180.0)
BLOCK_COST_NARROW = (3.9, 21.0, 17.5, 230.0, 95.0)

#: Least and greatest number of rows for that switch.
FIRST_BLOCKS = (8, 64)

#: A block of half the size is better for half the rows without mask registers. With
#: them it is better if rows are wide, trees are not folded, or trees have few nodes:
#: 500 trees of 15 leaves take 0.78 of the time, 100 trees of depth 8 1.2 times.
HALF_BLOCK, HALF_BLOCK_NODES = 64, 24

#: Instructions of a hop of the interleaved walk, with mask registers and without; of a
#: hop with a leaf check (which waits for the deepest walk); and of a tree besides its
#: hops. They decide whether lanes are worth searching a code for every column. An
#: instruction takes about 0.09 ns.
WALK_HOP, WALK_HOP_NARROW, WALK_HOP_CHECKED, WALK_TREE = 7.0, 8.0, 16.0, 4.0

#: The same for hops that wait for nodes: in forests above a quarter of L2, above twice
#: L2 (0.8 to 1.6 million nodes), and the latter with leaf checks.
WALK_HOP_MIDDLE, WALK_HOP_FAR, WALK_HOP_CHECKED_FAR = 12.0, 36.0, 48.0

#: A row of more than this many bytes is fetched before its walks, if they touch about
#: half of its cache lines or more: 8 rows of 60 to 16,000 columns, 10 to 1000 trees,
#: take 0.5 to 0.97 of the time. A column then costs this many instructions, and small
#: blocks win from 15 to 36 rows on.
FETCHED_ROW, FETCHED_LINES_A_HOP = 256, 2.0
FETCHED_COLUMN, FETCHED_ROW_BLOCKS = 5.0, 14

#: Rows are walked instead if the table of predicates exceeds this many bytes.
TABLE_LIMIT = 1 << 28

#: Rows of a block for tiles, and in large batches for forests that outgrow L2, or
#: outgrow it ``OUTGROWN`` times: each block reads its tiles again (1.6 million nodes
#: take 1.6 us a row by 512 rows, 1.3 by 1024, 1.0 by 4096). Larger blocks leave fewer
#: parts for threads.
TILE_BLOCK, TILE_BLOCK_OF_MANY, TILE_BLOCK_OF_MOST = 512, 1024, 2048
OUTGROWN = 16

#: The same for tiles that compare values: more rows cause more misses on values.
VALUE_BLOCK = 256

#: Rows from which tiles by block beat tiles by row: for tiles of at most about twice
#: L2; and for larger ones, or searches without mask registers. 0.16 million nodes: 24
#: from cache, 80 from memory; 0.8 to 1.6 million: 64 from cache, more from memory; 0.25
#: million of 100 trees: 128; AVX2: 64 to 128.
TILE_BATCH, TILE_BATCH_OF_MANY = 32, 96

#: Rows from which tiles by block beat walks, by codes or by values (500 columns, 10 to
#: 100 trees of 300 to 5000 leaves: 1.1 to 2 times at 16, 1.6 to 8 at 512).
WALKED_BATCH = 16

#: Cost of a row with AVX2, in ns: in tiles by values, for a tree and for a tile of
#: three levels; in lanes, for an instruction. The last number is how much cheaper lanes
#: must be to be used at any batch size. 50 to 200 trees of 250 to 700 nodes: 0.20 to
#: 0.90 us a row, tiles 0.46 to 1.8; random forests of 200 to 1100 nodes a tree: 0.78 to
#: 1.3, tiles 0.53 to 0.93.
VALUE_TREE_NS, VALUE_TILE_NS, LANES_NS, LANES_GAIN = 3.8, 4.0, 0.115, 0.85

#: Approximate cost of a row in tiles by row, in the instructions of ``WALK_HOP``: a
#: constant, searching a column, and trees decoded together; then reading the top of a
#: tree and visiting a tile, with mask registers and without. 28 columns: 100 trees of
#: 31, 255 and 1000 leaves take 0.31, 0.44 and 0.60 us a row, lanes 0.15, 0.60 and 1.1;
#: AVX2 1.1, 1.2 and 1.6, lanes 0.33, 0.74 and 1.3. 10 trees cost 0.9 to 1.2 of their
#: walk.
ROW, ROW_COLUMN, ROW_TREES = 700.0, 30.0, 16
ROW_TREE, ROW_TILE = 22.0, 14.0
ROW_TREE_NARROW, ROW_TILE_NARROW = 140.0, 30.0

#: Approximate cost of a row in tiles by block, in ns: searching a column of up to
#: ``SEARCH_MANY`` thresholds and of more, walking a tree as tiles, and walking a tree
#: with 16 rows in flight.
SEARCH_NS, SEARCH_MANY_NS, SEARCH_MANY, TILED_NS, WALK_NS = 4.0, 8.0, 256, 5.0, 18.0

#: Tiles of four levels are larger, but rows visit fewer of them. Three levels win if a
#: row visits hardly more of them (trees cut at depth 12 are 6 + 3 + 3).
MORE_TILES = 1.1

#: Tile size by block for forests larger than L2: less of each tile is fetched in vain
#: (0.5 and 1.0 million nodes, 512 rows: 1.07 and 1.15 times faster).
FAR_TILE = 7


@dataclass(frozen=True, slots=True)
class ForestShape:
    """The properties of a forest that decide its schedules.

    Parameters
    ----------
    n_trees, n_features : int
        Number of trees, and columns of a row.
    row_bytes : int
        Bytes of a row in the forest's input dtype.
    node_bytes : int
        Approximate bytes of all nodes in the sparse representation.
    min_depth, max_depth : int
        Depths of the shallowest and the deepest leaf.
    padded_nodes : float
        Nodes after padding to ``max_depth``, divided by nodes now.
    """

    n_trees: int
    n_features: int
    row_bytes: int
    node_bytes: int
    min_depth: int
    max_depth: int
    padded_nodes: float

    @classmethod
    def of(cls, forest: Forest) -> ForestShape:
        """Measure a forest in one pass over its leaves."""
        low, high = forest.leaf_depths()
        deepest = int(high.max(initial=0))
        return cls(
            n_trees=forest.n_trees,
            n_features=forest.n_features,
            row_bytes=forest.n_features * forest.input_dtype.itemsize,
            node_bytes=forest.n_nodes * 2 * forest.threshold.dtype.itemsize,
            min_depth=int(low.min()) if len(low) else 0,
            max_depth=deepest,
            padded_nodes=_padded_nodes(forest, deepest),
        )


def _padded_nodes(forest: Forest, depth: int) -> float:
    """Estimate how much the forest grows if every leaf is padded to ``depth``."""
    if depth > UNROLL_LIMIT:
        return float("inf")
    leaves = forest.leaf >= 0
    missing = depth - forest.node_depths()[leaves]
    return 1.0 + 2.0 * float(np.sum(missing)) / max(1, forest.n_nodes)


def default_schedules(
    forest: Forest, target: Target, reduction: Reduction = "exact"
) -> dict[BatchRange, Schedule]:
    """Return a schedule for every batch range; equal ones share a kernel.

    Bit-sliced trees sum floats in model order, so ``reproducible`` uses walks.
    """
    walks = walking_schedules(forest, target)
    if reduction == "reproducible":
        return walks
    tiles = _TileFacts.of(forest, target)
    row, row_cost = _row_schedule(forest, target, tiles)
    table_bytes = forest.n_predicates * PREDICATE_BLOCK // 8
    if table_bytes > TABLE_LIMIT or not allows_bits(forest):
        if tiles is not None and tiles.win_by_blocks:
            return _tiled(forest, target, tiles, row, walks)
        return {
            batch: row if row is not None and batch in BATCH_RANGES[:3] else walk
            for batch, walk in walks.items()
        }
    wide = forest.n_features > WIDE
    narrow = not target.has_mask_registers
    blocks = [SMALL_BLOCK, MIDDLE_BLOCK, *([] if wide else [PREDICATE_BLOCK])]
    folded = folds(forest)
    small = forest.n_nodes < 2 * HALF_BLOCK_NODES * forest.n_trees
    if narrow or small or wide or not folded.mean() >= 0.5:
        blocks = [HALF_BLOCK, *blocks]
    share = TABLE_SHARE_NARROW if narrow else TABLE_SHARE
    if not small and not wide and table_bytes > share * target.l2_bytes:
        blocks.pop()
    low, high = FIRST_BLOCKS
    first = round(block_cost(forest, target, folded) / max(1.0, row_cost))
    if row is None and _fetches_rows(shape := ForestShape.of(forest)):
        row, low = _few_rows(shape), FETCHED_ROW_BLOCKS
    first = min(max(low, first), high)
    table: dict[BatchRange, Schedule] = {}
    if row is not None:
        table[1, first - 1] = row
    else:
        for (one, last), walk in list(walks.items())[:3]:
            if one < first:
                table[one, min(last or first, first - 1)] = walk
    for block in blocks[:-1]:
        if first <= block:
            table[first, block] = families.bitsliced_schedule(block)
            first = block + 1
    return {**table, (first, None): families.bitsliced_schedule(blocks[-1])}


def block_cost(forest: Forest, target: Target, folded: NDArray[np.bool_]) -> float:
    """Return the approximate instructions of a small block of bit logic.

    ``folded`` has, for each tree, whether it is folded.
    """
    masks = target.has_mask_registers
    node, other, predicate, tree, column = BLOCK_COST if masks else BLOCK_COST_NARROW
    nodes = np.diff(forest.tree_offset) // 2
    cost = float(np.where(folded, node, other) @ nodes)
    cost += predicate * forest.n_predicates + tree * forest.n_trees
    return cost + column * forest.n_features


def _row_schedule(
    forest: Forest, target: Target, tiles: _TileFacts | None
) -> tuple[Schedule | None, float]:
    """Return the cheapest schedule for single rows (None for a walk) and its cost.

    The cost is in instructions.
    """
    hops = float(forest.leaf_depths()[1].sum())
    shape = ForestShape.of(forest)
    walk = _hop_cost(shape, target) * hops + WALK_TREE * forest.n_trees
    lanes = lanes_cost(forest, target)
    if tiles is not None and tiles.row_cost < min(lanes, walk):
        return families.tiled_row_schedule(tiles.nodes), tiles.row_cost
    if lanes < walk:
        return families.lanes_schedule(), lanes
    if _fetches_rows(shape):
        walk += FETCHED_COLUMN * forest.n_features
    return None, walk


def _hop_cost(shape: ForestShape, target: Target) -> float:
    """Return the instructions that a hop executes or waits for."""
    far = shape.node_bytes > 2 * target.l2_bytes
    if shape.padded_nodes > PADDING_LIMIT:
        return WALK_HOP_CHECKED_FAR if far else WALK_HOP_CHECKED
    if shape.node_bytes > target.l2_bytes // 4:
        return WALK_HOP_FAR if far else WALK_HOP_MIDDLE
    return WALK_HOP if target.has_mask_registers else WALK_HOP_NARROW


def allows_bits(forest: Forest) -> bool:
    """Whether trees are small enough to be evaluated whole, as bits."""
    fits = forest.n_predicates > 0 and fits_bits(forest)
    return fits and refusal(forest) is None


def leaf_weights(forest: Forest) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return the depth of each leaf, and how many training rows ended there.

    If the counts are not known, all leaves weigh the same.
    """
    leaves = forest.leaf >= 0
    depths = forest.node_depths()[leaves]
    if len(forest.cover) and float(forest.cover[leaves].sum()) > 0:
        return depths, forest.cover[leaves]
    return depths, np.ones(len(depths))


def mean_tiles(forest: Forest) -> tuple[float, float]:
    """Return how many tiles of three and of four levels a row visits in a tree."""
    depths, weight = leaf_weights(forest)
    below = np.maximum(depths - TOP_LEVELS, 0)
    total = max(float(weight.sum()), 1e-300)
    three, four = (float((np.ceil(below / k) * weight).sum()) / total for k in (3, 4))
    return three, four


@dataclass(frozen=True, slots=True)
class _TileFacts:
    """Facts about a forest as tiles."""

    nodes: int  # nodes of a tile
    win_by_blocks: bool  # whether tiles by block beat walks
    by_values: bool  # compare row values instead of codes
    row_cost: float  # approximate instructions, one row at a time
    value_ns: float  # approximate ns a row, by block and by values

    @classmethod
    def of(cls, forest: Forest, target: Target) -> _TileFacts | None:
        """Measure a forest; None without permutes, or if tiles do not support it."""
        if not target.has("avx2") or not forest.n_predicates:
            return None
        normal, _ = normalize_predicates.run(forest)
        columns = column_count(normal, merge_missing=True)
        most = int(np.diff(forest.tree_offset).max()) // 2 + 1
        if most > MAX_LEAVES:
            return None
        many = forest.n_predicates > SEARCH_MANY * columns
        searched = (SEARCH_MANY_NS if many else SEARCH_NS) * columns
        by_codes = columns <= MAX_COLUMNS
        saved = (WALK_NS - TILED_NS) * forest.n_trees
        narrow = not target.has_mask_registers  # codes take four shuffles a register
        by_values = values_refusal(normal) is None and (
            narrow or not by_codes or saved < searched
        )
        if not by_codes and not by_values:
            return None
        three, four = mean_tiles(forest)
        n = forest.n_trees
        tree, tile = ROW_TREE, ROW_TILE
        if not target.has_mask_registers:
            tree, tile = ROW_TREE_NARROW, ROW_TILE_NARROW
        cost = ROW + ROW_COLUMN * columns + tile * four * n
        cost += tree * ROW_TREES * -(-n // ROW_TREES)
        return cls(
            nodes=7 if three < MORE_TILES * four else 15,
            win_by_blocks=by_values or saved >= searched,
            by_values=by_values,
            row_cost=cost if by_codes and n <= MAX_TREES else float("inf"),
            value_ns=VALUE_TREE_NS * n + VALUE_TILE_NS * three * n,
        )


def _tiled(
    forest: Forest,
    target: Target,
    tiles: _TileFacts,
    row: Schedule | None,
    walks: dict[BatchRange, Schedule],
) -> dict[BatchRange, Schedule]:
    """Return tiles by block for batches, and the chosen schedule for few rows."""
    size, rows = forest.n_nodes * BYTES_A_NODE, TILE_BLOCK
    nodes = FAR_TILE if size > target.l2_bytes else tiles.nodes
    if size > 2 * target.l2_bytes:
        small = size <= OUTGROWN * target.l2_bytes
        rows = TILE_BLOCK_OF_MANY if small else TILE_BLOCK_OF_MOST
    few: dict[BatchRange, Schedule]
    if row == families.tiled_row_schedule(tiles.nodes):
        small = rows == TILE_BLOCK and target.has_mask_registers
        first = TILE_BATCH if small else TILE_BATCH_OF_MANY
        few = {(1, first - 1): row}
    elif row is not None and target.has_mask_registers:
        first = TILE_BATCH
        few = {(1, first - 1): row}
    else:
        first = WALKED_BATCH
        few = {batch: row or walks[batch] for batch in BATCH_RANGES[:2]}
    if tiles.by_values:
        many = families.tiled_schedule(VALUE_BLOCK, 7, codes=False)
        if row == families.lanes_schedule() and not target.has_mask_registers:
            lanes = LANES_NS * lanes_cost(forest, target)
            if lanes < LANES_GAIN * tiles.value_ns:
                many = families.lanes_schedule(parallel=True)
        return {**few, (first, None): many}
    return {
        **few,
        (first, 2048): families.tiled_schedule(TILE_BLOCK, nodes),
        (2049, None): families.tiled_schedule(rows, nodes),
    }


def walking_schedules(forest: Forest, target: Target) -> dict[BatchRange, Schedule]:
    """Return a schedule of plain walks for every batch range."""
    shape = ForestShape.of(forest)
    few = _few_rows(shape)
    fits = shape.node_bytes <= target.l2_bytes // 2
    small = _blocked(shape, target, BLOCK)
    many = _blocked(shape, target, BLOCK if fits else BLOCK_OF_MANY)
    most = BLOCK if fits else BLOCK_OF_MOST
    large = _blocked(shape, target, most, streaming=True)
    return dict(zip(BATCH_RANGES, (few, few, small, many, large), strict=True))


def _walk(schedule: Schedule, index: str, shape: ForestShape) -> Schedule:
    """Omit leaf checks if that costs little padding."""
    padded = shape.max_depth if shape.padded_nodes <= PADDING_LIMIT else 0
    return families.unchecked(schedule, index, padded, shape.min_depth)


def _fetches_rows(shape: ForestShape) -> bool:
    """Whether it pays to fetch a row as a whole before walking it."""
    hops = shape.n_trees * shape.max_depth
    lines = shape.row_bytes / CACHE_LINE
    return shape.row_bytes > FETCHED_ROW and lines <= FETCHED_LINES_A_HOP * hops


def _few_rows(shape: ForestShape) -> Schedule:
    """Walk one row through several trees in flight; the sum stays in a register."""
    in_flight = min(TREES_IN_FLIGHT, shape.n_trees)
    schedule = families.trees_in_flight(in_flight, fetch=_fetches_rows(shape))
    return _walk(schedule, "tree", shape)


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
    return _walk(schedule, "b1", shape)
