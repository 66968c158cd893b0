"""Schedules by name: each family of the scheduling language at least once."""

from __future__ import annotations

from skforge.schedule.schedule import Schedule

ROWS = Schedule()
TREES = Schedule().reorder("tree", "batch")
BLOCKS = Schedule().tile("batch", "b0", "b1", 16).reorder("b0", "tree", "b1")
TREE_TILES = Schedule().tile("tree", "t0", "t1", 3)
#: t0 outermost: tiles of trees, in each all rows
TILES_FIRST = TREE_TILES.reorder("t0", "batch", "t1")
#: both tiled: blocks of rows outside tiles of trees
BOTH = (
    Schedule()
    .tile("batch", "b0", "b1", 8)
    .tile("tree", "t0", "t1", 2)
    .reorder("b0", "t0", "b1", "t1")
)
TWO_LEVELS = (
    Schedule()
    .tile("batch", "b0", "b1", 32)
    .tile("b1", "b1o", "b1i", 5)
    .reorder("b0", "b1o", "tree", "b1i")
)

FAMILIES: dict[str, Schedule] = {
    "rows": ROWS,
    "trees": TREES,
    "blocks": BLOCKS,
    "blocks of both": BOTH,
    "two levels": TWO_LEVELS,
    "negative tiles": Schedule()
    .tile("batch", "b0", "b1", -3)
    .tile("tree", "t0", "t1", -2)
    .reorder("b0", "t0", "b1", "t1"),
    "negative tiles within": Schedule()
    .tile("batch", "b0", "b1", -4)
    .tile("b1", "b2", "b3", -3)
    .reorder("b2", "b0", "tree", "b3"),
    "interleave rows": BLOCKS.interleave("b1", 3),
    "interleave rows 8": BLOCKS.interleave("b1", 8),
    "interleave a whole tile": TREE_TILES.interleave("t1"),
    "interleave trees": ROWS.interleave("tree", 4),
    "interleave all rows": TREES.interleave("batch", 6),
    "unroll walk": BLOCKS.unroll_walk("b1", 2),
    "unroll walk deep": BLOCKS.interleave("b1", 4).unroll_walk("b1", 7),
    "unroll walk of a row": ROWS.interleave("tree", 3).unroll_walk("tree", 5),
    "peel walk": BLOCKS.interleave("b1", 2).peel_walk("b1", 3),
    "pad": BLOCKS.pad_trees(),
    "pad and unroll": BLOCKS.pad_trees().unroll_walk("tree", 4).interleave("b1", 2),
    "reorder trees": ROWS.reorder_trees(),
    "reorder trees in blocks": BOTH.reorder_trees(),
    "specialize": BLOCKS.specialize("tree"),
    "specialize tiles": TILES_FIRST.parallel("t0").specialize("t0"),
    "specialize and interleave": BLOCKS.specialize("tree").interleave("b1", 4),
    "unroll trees": TREE_TILES.unroll("t1"),
    "unroll rows": BLOCKS.unroll("b1"),
    "vectorize": BLOCKS.vectorize("b1"),
    "vectorize and unroll walk": BLOCKS.vectorize("b1").unroll_walk("b1", 3),
    "vectorize all": TREES.vectorize("batch"),
    "vectorize specialized": BLOCKS.specialize("tree").vectorize("b1"),
    "cache rows": BLOCKS.cache("b0"),
    "cache rows one by one": ROWS.cache("batch"),
    "cache trees": TREES.cache("tree"),
    "cache tree tiles": TILES_FIRST.cache("t0"),
    "quantize": BLOCKS.quantize("b0"),
    "quantize one by one": ROWS.quantize("batch").interleave("tree", 4),
    "quantize and interleave": BLOCKS.quantize("b0").interleave("b1", 3),
    "quantize and vectorize": BLOCKS.quantize("b0").vectorize("b1"),
    "quantize inner blocks": TWO_LEVELS.quantize("b1o"),
    "quantize each row of tree tiles": TILES_FIRST.quantize("batch"),
    "quantize parts": ROWS.split("batch", "s0", "s1", 10).quantize("s0").quantize("s1"),
    "quantize node tiles": BLOCKS.quantize("b0").tile_nodes(3).interleave("b1", 2),
    "quantize in parallel": BOTH.parallel("b0").quantize("b0").specialize("t1"),
    "node tiles 2": ROWS.tile_nodes(2),
    "node tiles 3": BLOCKS.tile_nodes(3).interleave("b1", 2),
    "node tiles 4": ROWS.tile_nodes(4).interleave("tree", 3),
    "node tiles 8": BLOCKS.tile_nodes(8).unroll_walk("b1", 2),
    "likely tiles 2": BLOCKS.tile_nodes(2, "probability").interleave("b1", 4),
    "likely tiles 3": ROWS.tile_nodes(3, "probability").peel_walk("tree", 2),
    "likely tiles 8": BLOCKS.tile_nodes(8, "probability").specialize("tree"),
    "split trees": ROWS.split("tree", "s0", "s1", 2).interleave("s1", 2),
    "split rows": ROWS.split("batch", "s0", "s1", 10).interleave("tree", 2),
    "split and tile": BLOCKS.split("tree", "s0", "s1", 3).unroll_walk("b1", 2),
    "parallel rows": BLOCKS.parallel("b0").interleave("b1", 2),
    "parallel single rows": ROWS.parallel("batch"),
    "parallel trees": TREES.parallel("tree"),
    "parallel inner trees": ROWS.parallel("tree"),
    "parallel tree tiles": TILES_FIRST.parallel("t0").interleave("t1", 2),
    "parallel both": BOTH.parallel("b0").parallel("t0"),
    "parallel nested trees": TREE_TILES.parallel("t0").parallel("t1"),
    "parallel tiles then rows": TILES_FIRST.parallel("t0").parallel("batch"),
    "vector reduce": TILES_FIRST.parallel("t0").vector_reduce("t0", 4),
    "atomic": TILES_FIRST.parallel("t0").atomic_reduce("t0"),
    "atomic lanes": BOTH.reorder("t1", "b1")
    .parallel("t0")
    .atomic_reduce("t0")
    .vectorize("b1"),
    "atomic and private": TREE_TILES.reorder("t0", "t1", "batch")
    .parallel("t0")
    .parallel("t1")
    .atomic_reduce("t1")
    .vector_reduce("t0", 2),
    "negative parallel": Schedule()
    .tile("tree", "t0", "t1", -3)
    .tile("batch", "b0", "b1", -2)
    .reorder("t0", "b0", "b1", "t1")
    .parallel("t0")
    .parallel("b0")
    .interleave("t1", 2),
    **{
        f"preset {name}": Schedule.preset(name)
        for name in (
            "xgboost",
            "treebeard-tree",
            "treebeard-row",
            "parallel-rows",
            "parallel-trees",
            "parallel-both",
            "small-batch",
        )
    },
}
