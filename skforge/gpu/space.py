"""Templates of GPU schedules: skforge's whole GPU space, and SilvanForge's in it.

The first parameter, ``deal``, is the distribution of rows and trees over threads and
blocks. Other parameters only have an effect for some distributions, and otherwise have
their first value, as in the CPU space.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

from skforge.compiler.cost.shape import ForestShape
from skforge.schedule import families
from skforge.schedule.schedule import Schedule
from skforge.tuning.space import space as spaces

#: Distributions of the work. "rows": each thread takes rows through all trees. "parts":
#: lanes are rows and each warp takes a part of the trees, the nest of Table 5. "trees":
#: lanes are the trees of a row. "blocks": like "trees", over several blocks.
#: "stationary": blocks keep some trees in shared memory and rows stream past.
DEALS = ("rows", "parts", "trees", "blocks", "stationary")

#: Values of each parameter. The first is used where the parameter has no effect.
GPU: dict[str, tuple[Any, ...]] = {
    "deal": DEALS,
    "rows_per_block": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    "rows_per_thread": (1, 2, 4, 8, 16, 32, 64, 128),
    "tree_threads": (1, 2, 4, 8, 10, 16, 20, 32, 50, 64, 128, 256, 512, 1024),
    "tree_blocks": (1, 2, 4, 8, 16, 32),
    # Global memory; shared memory laid out by the compiler for the lanes, row by row
    # with one word of padding, or row by row; shared memory as bin codes.
    "rows_in": ("memory", "shared", "padded", "row", "codes"),
    # Trees of each thread that its block loads into shared memory at a time.
    "cached_trees": (0, 1, 2, 4, 8, 16, 32),
    "representation": ("sparse", "array", "reorg"),
    "node_tile": (1, 2, 4),
    "hops": ("checked", "peel", "unroll"),
    "interleave": (1, 2, 4, 8),
    # How threads combine sums: slots in global memory, which a second launch adds if
    # blocks share rows; shared memory; atomics. Lanes of a warp that share a row use
    # shuffles if any order of summation is allowed.
    "sums": ("memory", "shared", "atomic"),
}


def _threads(
    deal: str, rows_per_block: int, rows_per_thread: int, tree_threads: int
) -> bool:
    # Table 5 also has smaller blocks, and larger ones, which the language refuses.
    threads = rows_per_block // rows_per_thread * tree_threads
    return deal == "parts" or 32 <= threads <= 1024


def _tiles(rows_in: str, representation: str, node_tile: int, hops: str) -> bool:
    tiled = rows_in != "codes" and representation in ("sparse", "array")
    return node_tile == 1 or (tiled and hops != "peel")


def _rounds(deal: str, cached_trees: int, interleave: int) -> bool:
    if deal == "parts":
        return cached_trees in (0, interleave)
    return deal != "rows" or cached_trees == 0 or cached_trees >= interleave


_CHOICES = spaces.Choices.of("gpu", GPU)

_RULES = (
    *_CHOICES.rules(),
    spaces.rule(_threads, "a block has at least one warp and at most 1024 threads"),
    spaces.rule(_tiles, "tiles compare values, are sparse or heaps, and peel no hops"),
    spaces.rule(_rounds, "shared memory must hold at least the trees in flight"),
)


def gpu_point(deal: str, **values: Any) -> dict[str, Any]:
    return _CHOICES.point(deal, values)


def full_gpu_schedule(point: spaces.Point, shape: ForestShape) -> Schedule:
    rows, each = point["rows_per_block"], point["rows_per_thread"]
    threads, cached = point["tree_threads"], point["cached_trees"]
    match point["deal"]:
        case "stationary":
            schedule = families.stationary_trees(threads, rows, rows // each)
            return _walk(families.Dealt(schedule, "t1", ("t0",)), point, shape)
        case "trees" | "blocks":
            dealt = families.trees_on_threads(rows, threads, point["tree_blocks"])
        case deal:
            parts = threads if deal == "parts" else None
            dealt = families.rows_on_threads(rows, each, parts, cached or None)
    schedule, rows_in = dealt.schedule, point["rows_in"]
    if rows_in == "codes":
        schedule = schedule.quantize("b0")
    elif rows_in != "memory":
        schedule = schedule.cache("b0", None if rows_in == "shared" else rows_in)
    if cached:
        schedule = schedule.cache("t0")
    return _walk(dealt._replace(schedule=schedule), point, shape)


def _walk(dealt: families.Dealt, point: spaces.Point, shape: ForestShape) -> Schedule:
    schedule, trees, parts = dealt
    if point["interleave"] > 1:
        schedule = schedule.interleave(trees, point["interleave"])
    tile = point["node_tile"]
    schedule = spaces.with_hops(schedule, trees, point["hops"], tile > 1, shape)
    for loop in parts:
        if point["sums"] == "shared":
            schedule = schedule.shared_reduce(loop)
        elif point["sums"] == "atomic":
            schedule = schedule.atomic_reduce(loop)
    if tile > 1:
        schedule = schedule.tile_nodes(tile)
    return schedule.represent(point["representation"])


#: SilvanForge's Table 5 (§8.1): 3·3·4·2·2·2·3·2·3 = 5184 points.
TABLE_5 = {
    "rows_per_block": (8, 32, 64),
    "rows_per_thread": (1, 2, 4),
    "tree_threads": (2, 10, 20, 50),
    "cache_rows": (True, False),
    "cache_trees": (True, False),
    "unroll_walks": (True, False),
    "interleave": (1, 2, 4),
    "shared_reduce": (True, False),
    "representation": ("array", "sparse", "reorg"),
}


#: Values of Table 5 for parameters that a grid leaves out.
PLAIN = {
    "rows_per_block": 32,
    "rows_per_thread": 1,
    "tree_threads": 20,
    "cache_rows": True,
    "cache_trees": False,
    "unroll_walks": False,
    "interleave": 1,
    "shared_reduce": False,
    "representation": "sparse",
}


def gpu_schedule(point: spaces.Point, shape: ForestShape) -> Schedule:
    """Return the schedule of a point of Table 5.

    A block of threads takes ``rows_per_block`` rows. A thread takes ``rows_per_thread``
    of them through one in ``tree_threads`` of the trees, ``interleave`` trees at a
    time::

        for b0 in blocks of rows:                     grid.x     (cache_rows)
          for r0 in its rows, by rows_per_thread:     block.x
            for t1 in 0 to tree_threads:              block.y    (shared_reduce)
              for r1 in rows of the thread:
                for t0 in trees of the thread:        interleave, unroll_walk

    With ``cache_trees``, shared memory holds the trees that the threads of a block
    traverse at a time; the loop over trees is then outside the threads.
    """
    same = {name: point[name] for name in point.keys() & GPU.keys()}
    more = gpu_point(
        "parts",
        rows_in="shared" if point["cache_rows"] else "memory",
        cached_trees=point["interleave"] if point["cache_trees"] else 0,
        hops="unroll" if point["unroll_walks"] else "checked",
        sums="shared" if point["shared_reduce"] else "memory",
    )
    return full_gpu_schedule({**more, **same}, shape)


# Spaces are immutable, and list their points only once.
_FULL = partial(spaces.ScheduleSpace, GPU, full_gpu_schedule, _RULES, name="gpu_full")
_TABLE_5 = partial(spaces.ScheduleSpace, TABLE_5, gpu_schedule, name="gpu")
gpu_space, gpu_full_space = lru_cache(_TABLE_5), lru_cache(_FULL)
