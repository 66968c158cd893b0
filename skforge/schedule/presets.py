"""Known strategies by name, each a function of its sizes.

Strategies of other systems follow the descriptions of SilvanForge's and Treebeard's
authors; their sizes are parameters.
"""

from __future__ import annotations

from skforge.schedule import families
from skforge.schedule.schedule import PRESETS, Schedule


def xgboost(rows: int = 64) -> Schedule:
    """Blocks of rows, one tree at a time for each: XGBoost on the CPU."""
    return families.row_blocks(rows)


_ROWS_FIRST = "b0", "t0", "b1", "t1"


def treebeard_tree(
    rows: int = 512, interleave: int = 8, node_tile: int = 8
) -> Schedule:
    """Treebeard, one tree at a time: node tiles, several rows interleaved."""
    walks = families.row_blocks(rows).interleave("b1", interleave)
    return walks.tile_nodes(node_tile).pad_trees()


def treebeard_row(rows: int = 64, interleave: int = 8, node_tile: int = 8) -> Schedule:
    """Treebeard, one row at a time: node tiles, several trees interleaved."""
    return (
        Schedule()
        .tile("batch", "b0", "b1", rows)
        .parallel("b0")
        .interleave("tree", interleave)
        .tile_nodes(node_tile)
        .pad_trees()
    )


def tahoe_direct(rows: int = 256) -> Schedule:
    """Tahoe's direct method: a GPU thread walks all trees for its row."""
    return families.rows_on_threads(rows).schedule


def tahoe_shared_data() -> Schedule:
    """Tahoe's shared data: a GPU block per row, a thread per tree, the row cached."""
    nest = Schedule().reorder("batch", "tree")
    return families.mapped(nest, batch="grid.x", tree="block.x").cache("batch")


def tahoe_shared_forest(rows: int = 256) -> Schedule:
    """Tahoe's shared forest: a GPU thread per row, all trees cached by each block."""
    return families.rows_on_threads(rows, tile=-1).schedule.cache("t0")


def tahoe_splitting_shared_forest(rows: int = 256, trees: int = 16) -> Schedule:
    """Tahoe's splitting shared forest: tiles of trees on grid.y, each tile cached."""
    tiles = families.tiles(rows, trees, *_ROWS_FIRST)
    tiles = families.mapped(tiles, b0="grid.x", t0="grid.y", b1="block.x")
    return tiles.cache("t0").atomic_reduce("t0")


def rapids(threads: int = 256) -> Schedule:
    """RAPIDS FIL: a GPU block per row, the trees distributed over its threads."""
    nest = Schedule().tile("tree", "t0", "t1", threads).reorder("batch", "t1", "t0")
    schedule = families.mapped(nest, batch="grid.x", t1="block.x").cache("batch")
    return schedule.shared_reduce("t1").represent("reorg")


def xgboost_gpu(rows: int = 128) -> Schedule:
    """XGBoost on a GPU: a thread per row, rows stored one by one in shared memory."""
    return tahoe_direct(rows).cache("b0", "row")


def hummingbird(rows: int = 8, trees: int = 32) -> Schedule:
    """Hummingbird's perfect tree traversal: all trees of all rows in parallel.

    Trees are complete, a GPU thread takes one row through one tree, and a second launch
    adds the leaves. Hummingbird chooses it for trees of depth 4 to 10 (Nakandala et
    al., "A Tensor Compiler for Unified Machine Learning Prediction Serving", OSDI
    2020). There, each level is a few kernels of a tensor library; here, all are one.
    """
    dimensions = {"b0": "grid.x", "t0": "grid.y", "b1": "block.y", "t1": "block.x"}
    tiles = families.mapped(families.tiles(rows, trees, *_ROWS_FIRST), **dimensions)
    return tiles.pad_trees().represent("array")


def subtrees(rows: int = 256, trees: int = 16, interleave: int = 4) -> Schedule:
    """Four-byte nodes: rows as codes, tiles of complete trees in shared memory."""
    return (
        families.rows_on_threads(rows, tile=trees)
        .schedule.quantize("b0")
        .cache("t0")
        .interleave("t1", interleave)
        .represent("array")
    )


def forest_stationary(trees: int = 32, rows: int = 1024, warps: int = 8) -> Schedule:
    """Blocks keep some trees, one a thread, while rows stream past, one a warp."""
    schedule = families.stationary_trees(trees, rows, warps)
    return schedule.atomic_reduce("t0").represent("reorg")


def parallel_rows(rows: int = 64, interleave: int = 8) -> Schedule:
    """Threads share blocks of rows; a block passes one tree at a time."""
    return xgboost(rows).interleave("b1", interleave)


def parallel_trees(tiles: int = 8) -> Schedule:
    """Threads share tiles of trees; each passes all rows through its tile."""
    return (
        Schedule()
        .tile("tree", "t0", "t1", -tiles)
        .reorder("t0", "t1", "batch")
        .parallel("t0")
    )


def parallel_both(rows: int = 64, tiles: int = 2) -> Schedule:
    """Threads share blocks of rows and tiles of trees."""
    nest = families.tiles(rows, -tiles, "b0", "t0", "t1", "b1")
    return nest.parallel("b0").parallel("t0")


def small_batch(rows: int = 8, tiles: int = 8, interleave: int = 8) -> Schedule:
    """SilvanForge §9.4, batches of 32 rows: threads share few rows of some trees."""
    both = parallel_both(rows, tiles).interleave("b1", interleave)
    return both.vector_reduce("t0", 8)


def predicate_tiles(rows: int = 512, trees: int = 50) -> Schedule:
    """Bit logic on tiles of trees whose predicates lie in L2, of larger forests."""
    return families.bitsliced_schedule(rows, trees)


_STRATEGIES = (
    xgboost, treebeard_tree, treebeard_row,
    tahoe_direct, tahoe_shared_data, tahoe_shared_forest, tahoe_splitting_shared_forest,
    rapids, xgboost_gpu, hummingbird, subtrees, forest_stationary,
    parallel_rows, parallel_trees, parallel_both, small_batch, predicate_tiles,
)  # fmt: skip
PRESETS.update((make.__name__.replace("_", "-"), make) for make in _STRATEGIES)

__all__ = ["PRESETS"]
