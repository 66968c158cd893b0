"""What a schedule says, as numbers: read off its directives, without lowering.

The numbers do not depend on a forest, a batch or a target, and are remembered for every
schedule seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.schedule.directives import (
    AtomicReduce,
    Cache,
    CachePredicates,
    GpuDimension,
    Interleave,
    PadTrees,
    Parallel,
    PeelWalk,
    Quantize,
    Reorder,
    ReorderTrees,
    Represent,
    SharedReduce,
    Specialize,
    Split,
    Tile,
    TileNodes,
    Unroll,
    UnrollWalk,
    Vectorize,
    VectorReduce,
)
from skforge.compiler.schedule.schedule import Schedule

#: Representations that a model can tell apart; all others are the last.
LAYOUTS = ("sparse", "array", "reorg", "bitsliced", "lanes", "tiles", "packed", "other")

#: What is read off a schedule; sizes are 0 where a directive is absent.
FACTS = (
    "row_block",  # rows of a block of rows; 0: the whole batch
    "row_blocks",  # or how many blocks, where that is fixed
    "tree_block",  # trees of a tile of trees; 0: all
    "tree_blocks",  # or how many tiles
    "rows_inside",  # the innermost loop is over rows
    "trees_outside",  # the outermost loop is over trees
    "rows_in_flight",  # walks of one tree at the same time; -1: the whole loop
    "trees_in_flight",  # walks of one row at the same time; -1: the whole loop
    "vector_rows",
    "vector_trees",
    "parallel_rows",
    "parallel_trees",
    "codes",  # quantize
    "cache_rows",
    "cache_trees",
    "cache_predicates",
    "unroll_walk",  # hops without leaf checks, trees padded
    "peel_walk",  # hops without leaf checks, trees as they are
    "node_tile",
    "complete_tiles",
    "probability_tiles",
    "pad_trees",
    "reorder_trees",
    "specialize",
    "splits",
    "unrolled_loops",
    "atomic_reduce",
    "shared_reduce",
    "vector_reduce",
    "layout",  # place in LAYOUTS
    "block_rows",  # rows of a GPU's block that are threads
    "block_trees",  # tree tiles of a GPU's block that are threads
)
PLACE = {name: i for i, name in enumerate(FACTS)}


def facts_of(schedules: Iterable[Schedule]) -> NDArray[np.float64]:
    """Return the facts of schedules, of shape (n_schedules, n_facts)."""
    found = [_facts(schedule) for schedule in schedules]
    return np.array(found, dtype=np.float64).reshape(len(found), len(FACTS))


@lru_cache(maxsize=1 << 16)
def _facts(schedule: Schedule) -> tuple[float, ...]:
    reader = _Reader()
    for directive in schedule.directives:
        _READ[type(directive)](reader, directive)
    return reader.result()


class _Reader:
    """Follows the loops of a schedule, of copies by ``split`` the first one."""

    __slots__ = ("is_rows", "order", "out", "size")

    def __init__(self) -> None:
        self.order = ["batch", "tree"]
        self.is_rows = {"batch": True, "tree": False}
        self.size = {"batch": 0, "tree": 0}
        self.out = dict.fromkeys(FACTS, 0.0)
        self.out["node_tile"] = 1.0

    def result(self) -> tuple[float, ...]:
        self.out["rows_inside"] = float(self.is_rows[self.order[-1]])
        self.out["trees_outside"] = float(not self.is_rows[self.order[0]])
        return tuple(self.out.values())

    def of(self, index: str, rows: str, trees: str) -> str:
        """Return one of two names, by what a loop is over."""
        return rows if self.is_rows[index] else trees


def _tile(reader: _Reader, d: Tile) -> None:
    rows = reader.is_rows[d.index]
    if d.index in reader.order:
        at = reader.order.index(d.index)
        reader.order[at : at + 1] = [d.outer, d.inner]
    reader.is_rows[d.outer] = reader.is_rows[d.inner] = rows
    before = reader.size[d.index]
    reader.size[d.outer] = -d.size if d.size < 0 else -(-before // d.size)
    reader.size[d.inner] = max(0, d.size)
    kind = "row" if rows else "tree"
    name = f"{kind}_blocks" if d.size < 0 else f"{kind}_block"
    if not reader.out[name]:  # of a block in a block, the outer
        reader.out[name] = abs(d.size)


def _split(reader: _Reader, d: Split) -> None:
    if d.index in reader.order:
        reader.order[reader.order.index(d.index)] = d.first
    for name in (d.first, d.second):
        reader.is_rows[name] = reader.is_rows[d.index]
        reader.size[name] = reader.size[d.index]
    reader.out["splits"] += 1


def _reorder(reader: _Reader, d: Reorder) -> None:
    named = [index for index in d.indices if index in reader.order]
    for place, name in zip(sorted(map(reader.order.index, named)), named, strict=True):
        reader.order[place] = name


def _interleave(reader: _Reader, d: Interleave) -> None:
    name = reader.of(d.index, "rows_in_flight", "trees_in_flight")
    reader.out[name] = -1 if d.factor is None else d.factor


def _vectorize(reader: _Reader, d: Vectorize) -> None:
    reader.out[reader.of(d.index, "vector_rows", "vector_trees")] = 1


def _parallel(reader: _Reader, d: Parallel) -> None:
    reader.out[reader.of(d.index, "parallel_rows", "parallel_trees")] = 1


def _cache(reader: _Reader, d: Cache) -> None:
    reader.out[reader.of(d.index, "cache_rows", "cache_trees")] = 1


def _unroll_walk(reader: _Reader, d: UnrollWalk) -> None:
    reader.out["unroll_walk"] = max(d.depth, reader.out["unroll_walk"])


def _peel_walk(reader: _Reader, d: PeelWalk) -> None:
    reader.out["peel_walk"] = max(d.depth, reader.out["peel_walk"])


def _tile_nodes(reader: _Reader, d: TileNodes) -> None:
    reader.out["node_tile"] = d.size
    reader.out["complete_tiles"] = d.kind == "complete"
    reader.out["probability_tiles"] = d.kind == "probability"


def _represent(reader: _Reader, d: Represent) -> None:
    name = d.representation
    reader.out["layout"] = LAYOUTS.index(name if name in LAYOUTS else "other")


def _vector_reduce(reader: _Reader, d: VectorReduce) -> None:
    reader.out["vector_reduce"] = d.width


def _gpu_dimension(reader: _Reader, d: GpuDimension) -> None:
    if d.dimension.startswith("block"):
        name = reader.of(d.index, "block_rows", "block_trees")
        reader.out[name] = abs(reader.size[d.index])


def _flag(name: str) -> Callable[[_Reader, Any], None]:
    def read(reader: _Reader, _directive: object) -> None:
        reader.out[name] += 1

    return read


_READ: dict[type, Callable[[_Reader, Any], None]] = {
    Tile: _tile,
    Split: _split,
    Reorder: _reorder,
    Interleave: _interleave,
    Vectorize: _vectorize,
    Parallel: _parallel,
    Cache: _cache,
    UnrollWalk: _unroll_walk,
    PeelWalk: _peel_walk,
    TileNodes: _tile_nodes,
    Represent: _represent,
    VectorReduce: _vector_reduce,
    GpuDimension: _gpu_dimension,
    Quantize: _flag("codes"),
    CachePredicates: _flag("cache_predicates"),
    PadTrees: _flag("pad_trees"),
    ReorderTrees: _flag("reorder_trees"),
    Specialize: _flag("specialize"),
    Unroll: _flag("unrolled_loops"),
    AtomicReduce: _flag("atomic_reduce"),
    SharedReduce: _flag("shared_reduce"),
}
