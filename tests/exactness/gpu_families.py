"""GPU schedules for small forests: the papers' strategies and what combines them."""

from __future__ import annotations

from skforge.schedule.families import mapped
from skforge.schedule.schedule import Schedule

#: Words of what a schedule that binds may still ask of a forest or a block in vain:
#: complete trees of deep chains, node tiles, more shared memory than there is.
REFUSALS = ("represent(", "shared memory", "a fixed number of rows", "specialize")


def blocks(rows: int, trees: int | None = None) -> Schedule:
    """Tile rows as b0 and b1, and maybe trees as t0 and t1."""
    made = Schedule().tile("batch", "b0", "b1", rows)
    return made if trees is None else made.tile("tree", "t0", "t1", trees)


TILED = blocks(4, 4)
#: Two dimensions of threads: rows by y, trees by x, the rows cached.
TWO_DIMENSIONS = mapped(
    TILED.reorder("b0", "b1", "t1", "t0"), b0="grid.x", b1="block.y", t1="block.x"
).cache("b0")
DIRECT = Schedule.preset("tahoe-direct", rows=8)
WIDE = Schedule.preset("tahoe-direct", rows=32)
SHARED = Schedule.preset("tahoe-shared-forest", rows=8)
BESIDE = mapped(
    Schedule().split("tree", "front", "back", 2),
    batch="grid.x", front="grid.y", back="block.x",
)  # fmt: skip
#: Two nests of one block, without a barrier between: the same sums, other threads.
SPLITS = mapped(
    blocks(4).split("tree", "front", "back", 3),
    b0="grid.x", b1="block.y", front="block.x", back="block.z",
)  # fmt: skip

FAMILIES: dict[str, Schedule] = {
    "direct": DIRECT,
    "direct, rows cached": DIRECT.cache("b0"),
    "direct, rows cached by feature": WIDE.cache("b0"),
    "shared data": Schedule.preset("tahoe-shared-data"),
    "shared data, shared sums": (
        Schedule.preset("tahoe-shared-data").shared_reduce("tree")
    ),
    "shared forest": SHARED,
    "shared forest by tiles": mapped(
        blocks(8, 3).reorder("b0", "t0", "b1", "t1"), b0="grid.x", b1="block.x"
    ).cache("t0"),
    "shared forest of node tiles": SHARED.interleave("t1", 2).tile_nodes(3),
    "splitting": Schedule.preset("tahoe-splitting-shared-forest", rows=8, trees=3),
    "rapids": Schedule.preset("rapids", threads=8),
    "hummingbird": Schedule.preset("hummingbird", rows=4, trees=8),
    "two dimensions": TWO_DIMENSIONS,
    "two dimensions, interleaved": TWO_DIMENSIONS.interleave("t0", 2),
    "two dimensions, shared sums": TWO_DIMENSIONS.shared_reduce("t1"),
    "rows of a thread": mapped(
        blocks(8)
        .tile("b1", "b2", "b3", 2)
        .tile("tree", "t0", "t1", 4)
        .reorder("b0", "b2", "t1", "t0", "b3"),
        b0="grid.x", b2="block.y", t1="block.x",
    ).cache("b0").interleave("b3"),
    "trees over blocks and threads": mapped(
        TILED.tile("t1", "t2", "t3", 2).reorder("b0", "t0", "b1", "t3", "t2"),
        b0="grid.x", t0="grid.y", b1="block.y", t3="block.x",
    ).cache("b0"),
    "peeled and unrolled": DIRECT.peel_walk("tree", 2).interleave("tree", 2),
    "padded walks": DIRECT.unroll_walk("tree", 3),
    "codes": WIDE.quantize("b0"),
    "codes, trees cached": (
        SHARED.quantize("b0").interleave("t1", 2).represent("array")
    ),
    "one block": mapped(
        Schedule().tile("tree", "t0", "t1", 4).reorder("t1", "t0", "batch"),
        t1="block.x",
    ),
    "trees of two splits": mapped(
        blocks(4).split("tree", "front", "back", 2), b0="grid.x", b1="block.x"
    ),
    "blocks beside threads": BESIDE,
    # The trees of 32 lie in shared memory, a thread each, and rows stream past.
    "forest stationary": mapped(
        blocks(12)
        .tile("b1", "b2", "b3", 2)
        .tile("tree", "t0", "t1", 4)
        .reorder("t0", "b0", "b2", "b3", "t1"),
        t0="grid.y", b0="grid.x", b3="block.y", t1="block.x",
    ).cache("t0").atomic_reduce("t0").represent("reorg"),
    # Two launches read the rows that a block shares.
    "blocks beside threads, shared rows": BESIDE.cache("batch"),
    "blocks beside threads, codes": BESIDE.quantize("batch"),
    # Blocks of trees have sums of their own, to which threads add atomically.
    "atomic threads": mapped(
        TILED.reorder("b0", "t0", "b1", "t1"),
        b0="grid.x", t0="grid.y", b1="block.y", t1="block.x",
    ).atomic_reduce("t1"),
    "splits on two dimensions": SPLITS,
    "splits, one atomic": SPLITS.atomic_reduce("front"),
    # A block has rows that do not lie side by side, and trees for threads.
    "scattered rows": mapped(
        TILED.reorder("b1", "t0", "b0", "t1"), b1="grid.x", t0="grid.y", t1="block.x"
    ),
    # A block takes its rows in turns, and its threads the rows of each.
    "rows in turns": mapped(
        blocks(6).tile("b1", "b2", "b3", 2).reorder("b0", "b2", "tree", "b3"),
        b0="grid.x", b3="block.x",
    ),
    "rows in turns, atomic threads": mapped(
        blocks(3, 4).reorder("b0", "b1", "t0", "t1"), b0="grid.x", t1="block.x"
    ).atomic_reduce("t1"),
    # Rows of a block on two dimensions of threads, the trees in a loop between.
    "trees between threads": mapped(
        blocks(12).tile("b1", "b2", "b3", 4).reorder("b0", "b2", "tree", "b3"),
        b0="grid.x", b2="block.x", b3="block.y",
    ),
    "cache in a cache": mapped(
        blocks(6, 4).tile("t1", "t2", "t3", 2).reorder("b0", "t0", "t2", "b1", "t3"),
        b0="grid.x", b1="block.x",
    ).cache("t0").cache("t2"),
    "cached trees, tiles inside out": mapped(
        blocks(4, 3).reorder("b0", "t1", "t0", "b1"), b0="grid.x", b1="block.x"
    ).cache("t0"),
}  # fmt: skip
