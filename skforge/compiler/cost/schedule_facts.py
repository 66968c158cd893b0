"""Facts about a schedule as numbers, for any forest, batch and target; cached."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from skforge._typing import Float64s
from skforge.schedule import directives as d
from skforge.schedule.schedule import Schedule

#: Representations that the model distinguishes; others count as "other".
LAYOUTS = ("sparse", "array", "reorg", "bitsliced", "lanes", "tiles", "pieces", "other")

#: The facts of a schedule; 0 if the directive is absent.
FACTS = (
    "row_block",  # rows per block; 0: the whole batch
    "row_blocks",  # or the number of blocks, if fixed
    "tree_block",  # trees per tile; 0: all
    "tree_blocks",  # or the number of tiles, if fixed
    "rows_inside",  # the innermost loop is over rows
    "rows_in_flight",  # interleaved rows of one tree; -1: the whole loop
    "trees_in_flight",  # interleaved trees of one row; -1: the whole loop
    "vector_rows",
    "vector_trees",
    "parallel_rows",
    "parallel_trees",
    "codes",  # quantize
    "cache_rows",
    "cache_trees",
    "cache_predicates",  # 2: by tiles of trees
    "unroll_walk",  # levels without leaf checks, trees padded
    "peel_walk",  # levels without leaf checks, trees not padded
    "node_tile",
    "pad_trees",
    "shared_reduce",
    "layout",  # index in LAYOUTS
    "block_rows",  # rows mapped to threads of a GPU block
    "block_trees",  # tree tiles mapped to threads of a GPU block
    "lane_trees",  # adjacent threads of a GPU block take trees, not rows
    "grid_trees",  # several GPU blocks share a row's trees
    "row_layout",  # of rows cached on a GPU: 0 any, 1 padded, 2 row by row
)
PLACE = {name: i for i, name in enumerate(FACTS)}


def facts_of(schedules: Iterable[Schedule]) -> Float64s:
    facts = [_facts(schedule) for schedule in schedules]
    return np.array(facts, dtype=np.float64).reshape(len(facts), len(FACTS))


#: Directives whose number of uses is the fact.
COUNTED: dict[type[d.Directive], str] = {
    d.Quantize: "codes",
    d.PadTrees: "pad_trees",
    d.SharedReduce: "shared_reduce",
}


@lru_cache(maxsize=1 << 16)
def _facts(schedule: Schedule) -> tuple[float, ...]:
    reader = _ScheduleReader()
    for directive in schedule.directives:
        reader.read(directive)
    reader.out["rows_inside"] = float(reader.is_rows[reader.order[-1]])
    return tuple(reader.out.values())


class _ScheduleReader:
    """Tracks the loops of a schedule; after ``split``, only the first copy."""

    __slots__ = ("is_rows", "order", "out", "size")

    def __init__(self) -> None:
        self.order = ["batch", "tree"]
        self.is_rows = {"batch": True, "tree": False}
        self.size = {"batch": 0, "tree": 0}
        self.out = dict.fromkeys(FACTS, 0.0)
        self.out["node_tile"] = 1.0

    def read(self, directive: d.Directive) -> None:
        out = self.out
        match directive:
            case d.Tile():
                self._tile(directive)
            case d.Split(index, first, second):
                if index in self.order:
                    self.order[self.order.index(index)] = first
                for name in (first, second):
                    self.is_rows[name] = self.is_rows[index]
                    self.size[name] = self.size[index]
            case d.Reorder(indices):
                named = [index for index in indices if index in self.order]
                places = sorted(map(self.order.index, named))
                for place, name in zip(places, named, strict=True):
                    self.order[place] = name
            case d.Interleave(index, factor):
                name = "rows_in_flight" if self.is_rows[index] else "trees_in_flight"
                out[name] = -1 if factor is None else factor
            case d.Vectorize(index):
                out["vector_rows" if self.is_rows[index] else "vector_trees"] = 1
            case d.Parallel(index):
                out["parallel_rows" if self.is_rows[index] else "parallel_trees"] = 1
            case d.Cache(index, layout):
                out["cache_rows" if self.is_rows[index] else "cache_trees"] = 1
                out["row_layout"] += {"padded": 1, "row": 2}.get(layout or "", 0)
            case d.GpuDimension(index, dimension):
                if dimension.startswith("block"):
                    name = "block_rows" if self.is_rows[index] else "block_trees"
                    out[name] = abs(self.size[index])
                if not self.is_rows[index]:
                    out["lane_trees"] += dimension == "block.x"
                    out["grid_trees"] += dimension.startswith("grid")
            case d.CachePredicates(index):
                out["cache_predicates"] = 1 if self.is_rows[index] else 2
            case d.UnrollWalk(_, depth):
                out["unroll_walk"] = max(depth, out["unroll_walk"])
            case d.PeelWalk(_, depth):
                out["peel_walk"] = max(depth, out["peel_walk"])
            case d.TileNodes(size, _):
                out["node_tile"] = size
            case d.Represent(name):
                out["layout"] = LAYOUTS.index(name if name in LAYOUTS else "other")
            case _:
                if type(directive) in COUNTED:
                    out[COUNTED[type(directive)]] += 1

    def _tile(self, tile: d.Tile) -> None:
        rows = self.is_rows[tile.index]
        if tile.index in self.order:
            at = self.order.index(tile.index)
            self.order[at : at + 1] = [tile.outer, tile.inner]
        self.is_rows[tile.outer] = self.is_rows[tile.inner] = rows
        before, size = self.size[tile.index], tile.size
        self.size[tile.outer] = -size if size < 0 else -(-before // size)
        self.size[tile.inner] = max(0, size)
        kind = "row" if rows else "tree"
        name = f"{kind}_blocks" if size < 0 else f"{kind}_block"
        if not self.out[name]:  # of nested blocks, keep the outer
            self.out[name] = abs(size)
