"""Templates of CPU schedules: SilvanForge's, and skforge's whole CPU space."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from skforge.compiler.cost.shape import ForestShape
from skforge.schedule import families
from skforge.schedule.schedule import Schedule
from skforge.tuning.space.space import (
    Choices,
    Point,
    ScheduleSpace,
    rule,
    with_hops,
)


def _has_rows_to_share(parallel: str, rows_per_block: int) -> bool:
    return parallel != "trees" or rows_per_block == 64


def _has_trees_to_share(parallel: str, tree_tiles: int) -> bool:
    return parallel != "rows" or tree_tiles == 8


def _has_rows_in_flight(parallel: str, interleave: int, rows_per_block: int) -> bool:
    return parallel == "trees" or interleave <= rows_per_block


_PAPER_RULES = (
    rule(_has_rows_to_share, "blocks are of rows that threads share"),
    rule(_has_trees_to_share, "tiles are of trees that threads share"),
    rule(_has_rows_in_flight, "no more rows are in flight than a block has"),
)


@lru_cache(maxsize=1)
def cpu_paper_space() -> ScheduleSpace:
    """Return SilvanForge's CPU space (§8.3); blocks of 8 rows are for §9.4."""
    parameters = {
        "parallel": ("rows", "trees", "both"),
        "interleave": (1, 2, 4, 8, 16),
        "rows_per_block": (64, 32, 16, 8),
        "tree_tiles": (8, 16),
    }
    return ScheduleSpace(parameters, paper_schedule, _PAPER_RULES, name="cpu_paper")


def paper_schedule(point: Point, _shape: ForestShape) -> Schedule:
    kind, in_flight = point["parallel"], point["interleave"]
    rows, tiles = point["rows_per_block"], point["tree_tiles"]
    match kind:
        case "rows":
            schedule = families.row_blocks(rows)
        case "trees":
            schedule = Schedule.preset("parallel-trees", tiles=tiles)
        case _:
            schedule = Schedule.preset("parallel-both", rows=rows, tiles=tiles)
    inner = "batch" if kind == "trees" else "b1"
    return schedule.interleave(inner, in_flight) if in_flight > 1 else schedule


#: Kinds of traversal. "rows" interleaves several rows of one tree; "trees" interleaves
#: several trees of one row; "vector" puts rows of one tree in SIMD lanes; "bitsliced"
#: evaluates each predicate once for a block of rows; "tiles" traverses tiles of nodes
#: for blocks of rows; "tile-row" and "lanes" process one row through all trees at once,
#: and "pairs" eight rows through eight trees.
WALKS = (
    "bitsliced",
    "lanes",
    "pairs",
    "tiles",
    "pieces",
    "tile-row",
    "rows",
    "trees",
    "vector",
)

#: Values of each parameter. The first is used where the parameter has no effect.
CPU: dict[str, tuple[Any, ...]] = {
    "walk": WALKS,
    "block": (0, 16, 64, 128, 256, 512, 1024, 2048, 4096),
    "node_tile": (1, 4, 7, 8, 15),
    "layout": ("sparse", "array", "reorg"),
    "hops": ("checked", "peel", "unroll"),
    "in_flight": (1, 8, 10, 16, 20, 24),
    "codes": (False, True),
    "prefetch": (False, True),
    "parallel": ("rows", "trees", "both"),
    "tree_tiles": (1, 2, 4, 8),
    "predicates_of": (0, 25, 50, 100, 200),
}


def _has_blocks(walk: str, block: int, codes: bool, prefetch: bool) -> bool:
    single = walk == "tile-row"
    return block > 0 or single or not (codes or (prefetch and walk != "trees"))


def _tiles_hop(node_tile: int, hops: str) -> bool:
    return node_tile == 1 or hops != "peel"


def _tiles_compare(walk: str, node_tile: int, codes: bool) -> bool:
    return walk in ("tiles", "tile-row") or node_tile == 1 or not codes


def _stores_tiles(node_tile: int, layout: str) -> bool:
    return node_tile == 1 or layout != "reorg"


def _tiles_trees(parallel: str, tree_tiles: int) -> bool:
    return (parallel == "rows") == (tree_tiles == 1)


def _shares_rows(parallel: str, block: int) -> bool:
    return parallel != "both" or block > 0


def _fills_blocks(block: int, in_flight: int, walk: str) -> bool:
    return walk != "rows" or not 0 < block < in_flight


_CHOICES = Choices.of("cpu", CPU)

_RULES = (
    *_CHOICES.rules(),
    rule(
        _has_blocks,
        "codes need blocks of rows, and so does prefetching unless rows go one by one",
    ),
    rule(_tiles_hop, "walks over tiles are padded or checked"),
    rule(_tiles_compare, "walks over tiles compare the values of rows, not codes"),
    rule(_stores_tiles, "reorg stores single nodes"),
    rule(_tiles_trees, "trees are tiled only to share them among threads"),
    rule(_shares_rows, "threads that share rows need blocks of rows"),
    rule(_fills_blocks, "a block must have at least as many rows as are in flight"),
)


@lru_cache(maxsize=2)  # spaces are immutable and list their points only once
def cpu_space(threads: bool = True) -> ScheduleSpace:
    parameters = dict(CPU)
    if not threads:
        parameters |= {"parallel": ("rows",), "tree_tiles": (1,)}
    return ScheduleSpace(parameters, cpu_schedule, _RULES, name="cpu")


def cpu_point(walk: str, **values: Any) -> dict[str, Any]:
    return _CHOICES.point(walk, values)


def cpu_schedule(point: Point, shape: ForestShape) -> Schedule:
    match point["walk"]:
        case "bitsliced":
            given = point["block"], point["predicates_of"]
            return families.bitsliced_schedule(*given)
        case "lanes":
            return families.lanes_schedule()
        case "pairs":
            return families.pairs_schedule()
        case "tiles":
            return families.tiled_schedule(
                point["block"], point["node_tile"], point["codes"]
            )
        case "pieces":
            return families.pieces_schedule(point["block"])
        case "tile-row":
            return families.tiled_row_schedule(point["node_tile"], point["codes"])
        case "trees":
            walks, fetch = point["in_flight"], point["prefetch"]
            schedule = families.trees_in_flight(walks, point["block"], fetch)
            return _walk(schedule, "tree", point, shape)
        case _:
            return _rows(point, shape)


def _rows(point: Point, shape: ForestShape) -> Schedule:
    schedule, tree = Schedule(), ["tree"]
    shared = point["parallel"] in ("trees", "both")
    if shared:
        schedule = schedule.tile("tree", "t0", "t1", -point["tree_tiles"])
        tree = ["t0", "t1"]
    rows = "batch"
    if point["block"]:
        rows = "b1"
        schedule = schedule.tile("batch", "b0", rows, point["block"])
        order = ["b0", *tree, rows]
        if point["parallel"] == "trees":
            order = ["t0", "b0", "t1", rows]
        schedule = schedule.reorder(*order)
        if point["parallel"] != "trees":
            schedule = schedule.parallel("b0")
        if point["codes"]:
            schedule = schedule.quantize("b0")
        if point["prefetch"]:
            schedule = schedule.cache("b0")
    else:
        schedule = schedule.reorder(*tree, rows)
    if shared:
        schedule = schedule.parallel("t0")
    if point["walk"] == "vector":
        schedule = schedule.vectorize(rows)
    elif point["in_flight"] > 1:
        schedule = schedule.interleave(rows, point["in_flight"])
    return _walk(schedule, rows, point, shape)


def _walk(schedule: Schedule, index: str, point: Point, shape: ForestShape) -> Schedule:
    tiled = point["node_tile"] > 1
    if tiled:
        schedule = schedule.tile_nodes(point["node_tile"])
    schedule = with_hops(schedule, index, point["hops"], tiled, shape)
    if point["layout"] != "sparse":
        schedule = schedule.represent(point["layout"])
    return schedule
