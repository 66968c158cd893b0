"""GPU schedules for small forests: the papers' strategies and what combines them."""

from __future__ import annotations

from skforge.schedule.schedule import Schedule

#: Words of what a schedule that binds may still ask of a forest or a block in vain:
#: complete trees of deep chains, node tiles, more shared memory than there is.
REFUSALS = ("represent(", "shared memory", "a fixed number of rows", "specialize")

#: Two dimensions of threads: rows by y, trees by x, the rows cached.
TWO_DIMENSIONS = (
    Schedule()
    .tile("batch", "b0", "b1", 4)
    .tile("tree", "t0", "t1", 4)
    .reorder("b0", "b1", "t1", "t0")
    .gpu_dimension("b0", "grid.x")
    .gpu_dimension("b1", "block.y")
    .gpu_dimension("t1", "block.x")
    .cache("b0")
)

FAMILIES: dict[str, Schedule] = {
    "direct": Schedule.preset("tahoe-direct", rows=8),
    "direct, rows cached": Schedule.preset("tahoe-direct", rows=8).cache("b0"),
    "direct, rows cached by feature": (
        Schedule.preset("tahoe-direct", rows=32).cache("b0")
    ),
    "shared data": Schedule.preset("tahoe-shared-data"),
    "shared data, shared sums": (
        Schedule.preset("tahoe-shared-data").shared_reduce("tree")
    ),
    "shared forest": Schedule.preset("tahoe-shared-forest", rows=8),
    "shared forest by tiles": (
        Schedule()
        .tile("batch", "b0", "b1", 8)
        .tile("tree", "t0", "t1", 3)
        .reorder("b0", "t0", "b1", "t1")
        .gpu_dimension("b0", "grid.x")
        .gpu_dimension("b1", "block.x")
        .cache("t0")
    ),
    "shared forest of node tiles": (
        Schedule.preset("tahoe-shared-forest", rows=8).interleave("t1", 2).tile_nodes(3)
    ),
    "splitting": Schedule.preset("tahoe-splitting-shared-forest", rows=8, trees=3),
    "rapids": Schedule.preset("rapids", threads=8),
    "hummingbird": Schedule.preset("hummingbird", rows=4, trees=8),
    "two dimensions": TWO_DIMENSIONS,
    "two dimensions, interleaved": TWO_DIMENSIONS.interleave("t0", 2),
    "two dimensions, shared sums": TWO_DIMENSIONS.shared_reduce("t1"),
    "rows of a thread": (
        Schedule()
        .tile("batch", "b0", "b1", 8)
        .tile("b1", "b2", "b3", 2)
        .tile("tree", "t0", "t1", 4)
        .reorder("b0", "b2", "t1", "t0", "b3")
        .gpu_dimension("b0", "grid.x")
        .gpu_dimension("b2", "block.y")
        .gpu_dimension("t1", "block.x")
        .cache("b0")
        .interleave("b3")
    ),
    "trees over blocks and threads": (
        Schedule()
        .tile("batch", "b0", "b1", 4)
        .tile("tree", "t0", "t1", 4)
        .tile("t1", "t2", "t3", 2)
        .reorder("b0", "t0", "b1", "t3", "t2")
        .gpu_dimension("b0", "grid.x")
        .gpu_dimension("t0", "grid.y")
        .gpu_dimension("b1", "block.y")
        .gpu_dimension("t3", "block.x")
        .cache("b0")
    ),
    "peeled and unrolled": (
        Schedule.preset("tahoe-direct", rows=8)
        .peel_walk("tree", 2)
        .interleave("tree", 2)
    ),
    "padded walks": Schedule.preset("tahoe-direct", rows=8).unroll_walk("tree", 3),
    "codes": Schedule.preset("tahoe-direct", rows=32).quantize("b0"),
    "codes, trees cached": (
        Schedule.preset("tahoe-shared-forest", rows=8)
        .quantize("b0")
        .interleave("t1", 2)
        .represent("array")
    ),
    "one block": (
        Schedule()
        .tile("tree", "t0", "t1", 4)
        .reorder("t1", "t0", "batch")
        .gpu_dimension("t1", "block.x")
    ),
    "trees of two splits": (
        Schedule()
        .tile("batch", "b0", "b1", 4)
        .split("tree", "front", "back", 2)
        .gpu_dimension("b0", "grid.x")
        .gpu_dimension("b1", "block.x")
    ),
    "blocks beside threads": (
        Schedule()
        .split("tree", "front", "back", 2)
        .gpu_dimension("batch", "grid.x")
        .gpu_dimension("front", "grid.y")
        .gpu_dimension("back", "block.x")
    ),
}

#: The trees of 32 lie in shared memory, a thread each, and rows stream past.
FAMILIES["forest stationary"] = (
    Schedule()
    .tile("batch", "b0", "b1", 12)
    .tile("b1", "b2", "b3", 2)
    .tile("tree", "t0", "t1", 4)
    .reorder("t0", "b0", "b2", "b3", "t1")
    .gpu_dimension("t0", "grid.y")
    .gpu_dimension("b0", "grid.x")
    .gpu_dimension("b3", "block.y")
    .gpu_dimension("t1", "block.x")
    .cache("t0")
    .atomic_reduce("t0")
    .represent("reorg")
)

#: Two launches read the rows that a block shares.
for _name, _shared in {
    "shared rows": FAMILIES["blocks beside threads"].cache("batch"),
    "codes": FAMILIES["blocks beside threads"].quantize("batch"),
}.items():
    FAMILIES[f"blocks beside threads, {_name}"] = _shared

#: Blocks of trees have sums of their own, to which threads add atomically.
FAMILIES["atomic threads"] = (
    Schedule()
    .tile("batch", "b0", "b1", 4)
    .tile("tree", "t0", "t1", 4)
    .reorder("b0", "t0", "b1", "t1")
    .gpu_dimension("b0", "grid.x")
    .gpu_dimension("t0", "grid.y")
    .gpu_dimension("b1", "block.y")
    .gpu_dimension("t1", "block.x")
    .atomic_reduce("t1")
)

#: Two nests of one block, without a barrier between: the same sums, other threads.
FAMILIES["splits on two dimensions"] = (
    Schedule()
    .tile("batch", "b0", "b1", 4)
    .split("tree", "front", "back", 3)
    .gpu_dimension("b0", "grid.x")
    .gpu_dimension("b1", "block.y")
    .gpu_dimension("front", "block.x")
    .gpu_dimension("back", "block.z")
)
FAMILIES["splits, one atomic"] = FAMILIES["splits on two dimensions"].atomic_reduce(
    "front"
)

#: A block has rows that do not lie side by side, and trees for threads.
FAMILIES["scattered rows"] = (
    Schedule()
    .tile("batch", "b0", "b1", 4)
    .tile("tree", "t0", "t1", 4)
    .reorder("b1", "t0", "b0", "t1")
    .gpu_dimension("b1", "grid.x")
    .gpu_dimension("t0", "grid.y")
    .gpu_dimension("t1", "block.x")
)

#: A block takes its rows in turns, and its threads the rows of each.
FAMILIES["rows in turns"] = (
    Schedule()
    .tile("batch", "b0", "b1", 6)
    .tile("b1", "b2", "b3", 2)
    .reorder("b0", "b2", "tree", "b3")
    .gpu_dimension("b0", "grid.x")
    .gpu_dimension("b3", "block.x")
)
FAMILIES["rows in turns, atomic threads"] = (
    Schedule()
    .tile("batch", "b0", "b1", 3)
    .tile("tree", "t0", "t1", 4)
    .reorder("b0", "b1", "t0", "t1")
    .gpu_dimension("b0", "grid.x")
    .gpu_dimension("t1", "block.x")
    .atomic_reduce("t1")
)

#: Rows of a block on two dimensions of threads, the trees in a loop between.
FAMILIES["trees between threads"] = (
    Schedule()
    .tile("batch", "b0", "b1", 12)
    .tile("b1", "b2", "b3", 4)
    .reorder("b0", "b2", "tree", "b3")
    .gpu_dimension("b0", "grid.x")
    .gpu_dimension("b2", "block.x")
    .gpu_dimension("b3", "block.y")
)

FAMILIES["cache in a cache"] = (
    Schedule()
    .tile("batch", "b0", "b1", 6)
    .tile("tree", "t0", "t1", 4)
    .tile("t1", "t2", "t3", 2)
    .reorder("b0", "t0", "t2", "b1", "t3")
    .gpu_dimension("b0", "grid.x")
    .gpu_dimension("b1", "block.x")
    .cache("t0")
    .cache("t2")
)
FAMILIES["cached trees, tiles inside out"] = (
    Schedule()
    .tile("batch", "b0", "b1", 4)
    .tile("tree", "t0", "t1", 3)
    .reorder("b0", "t1", "t0", "b1")
    .gpu_dimension("b0", "grid.x")
    .gpu_dimension("b1", "block.x")
    .cache("t0")
)
