"""Who walks what: rows and trees of a bound schedule, by blocks, threads and turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.schedule.bound import BoundLoop
from skforge.compiler.schedule.directives import (
    Cache,
    Interleave,
    Quantize,
    SharedReduce,
    Specialize,
    UnrollWalk,
)
from skforge.exceptions import ScheduleError

Array = NDArray[Any]

BANKS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Deal:
    """The rows and trees of a block's threads.

    Parameters
    ----------
    rows : int
        Of a block.
    row : ndarray of int, shape (threads, turns)
        Which of these a thread takes, one after the other.
    tree : ndarray of int, shape (threads, turns)
        Which trees, of the first of ``tree_blocks``; -1 where it has no more.
    tree_threads : int
        Threads of a block that share a row's trees.
    tree_blocks : int
        Blocks that do.
    tile : int
        Trees that a block has in shared memory at a time; 0 where they stay in memory.
    in_flight : int
        Trees that a thread walks together.
    padded : bool
        Whether walks look for no leaf.
    rows_in : str
        "memory"; else the layout of shared memory: "feature", "padded" or "row".
    shared_sums : bool
        Whether what threads found meets in shared memory.
    """

    rows: int
    row: Array
    tree: Array
    tree_threads: int
    tree_blocks: int
    tile: int
    in_flight: int
    padded: bool
    rows_in: str
    shared_sums: bool

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return len(self.row)

    @property
    def key(self) -> tuple[Any, ...]:
        """What decides which lanes read what."""
        return (self.rows, self.row.tobytes(), self.tree.tobytes(), self.rows_in)

    @classmethod
    def of(cls, hir: PredictEnsemble) -> Deal:
        """Read the loops of a schedule; ``ScheduleError`` if the model knows none."""
        path = list(loops_of(hir.nest.loops))
        batch = [loop for loop in path if loop.root == "batch"]
        trees = [loop for loop in path if loop.root == "tree"]
        if path[0].gpu is None or any(loop.has(Specialize) for loop in path):
            raise ScheduleError("the model knows no launches in turn")
        n_trees = hir.tiles.n_trees
        rows, row_loops = 1, []
        for loop in batch:
            if _on(loop, "grid"):
                rows = loop.step if isinstance(loop.step, int) else 1
            else:
                row_loops.append(loop)
        row = _values(row_loops, rows)
        tree = _values([one for one in trees if not _on(one, "grid")], n_trees)
        tiles = [
            one.step for one in trees if one.has(Cache) and isinstance(one.step, int)
        ]
        blocks = [_trips(one, n_trees) for one in trees if _on(one, "grid")]
        dims = [loop for loop in path if _on(loop, "block")]
        order = {f"block.{name}": place for place, name in enumerate("xyz")}
        dims.sort(key=lambda loop: order[loop.gpu or ""], reverse=True)
        sizes = [
            _trips(loop, rows if loop.root == "batch" else n_trees) for loop in dims
        ]
        thread = np.unravel_index(np.arange(prod(sizes)), sizes) if sizes else ()
        at = dict(zip((loop.name for loop in dims), thread, strict=True))
        inner = path[-1]
        share = max(1, prod(_trips(x, n_trees) for x in trees if _on(x, "block")))
        own = _of_threads(tree, at, prod(sizes))
        return cls(
            rows,
            _of_threads(row, at, prod(sizes)),
            np.where(own < n_trees, own, -1),
            share,
            prod(blocks),
            min(n_trees, tiles[0]) if tiles else 0,
            _in_flight(inner) if inner.root == "tree" else 1,
            any(loop.has(UnrollWalk) for loop in path) or hir.nest.pad_trees,
            _rows_in(hir, batch, dims, rows),
            any(loop.has(SharedReduce) for loop in trees),
        )


def loops_of(loops: Sequence[BoundLoop]) -> Iterator[BoundLoop]:
    """Yield the loops down to the walk; ``ScheduleError`` where there are several."""
    while loops:
        if len(loops) > 1:
            raise ScheduleError("the model knows no loops beside each other")
        yield loops[0]
        loops = loops[0].body


def _on(loop: BoundLoop, what: str) -> bool:
    return (loop.gpu or "").startswith(what)


def _trips(loop: BoundLoop, most: int) -> int:
    """Return iterations, of the first entry where they differ."""
    if loop.max_trips is not None:
        return loop.max_trips
    step = loop.step if isinstance(loop.step, int) else 1
    limits = [b.limit for b in loop.bounds if isinstance(b.limit, int)]
    return -(-min([most, *limits]) // step)


@dataclass(frozen=True, slots=True)
class _Values:
    """Sums of loops over one root: axes, in order, and which are out of bounds."""

    names: tuple[str, ...]
    threads: tuple[bool, ...]
    total: Array


def _values(loops: Sequence[BoundLoop], most: int) -> _Values:
    axes = []
    for loop in loops:
        assert isinstance(loop.start, int) and isinstance(loop.step, int)
        axes.append(loop.start + loop.step * np.arange(_trips(loop, most)))
    grid = np.meshgrid(*axes, indexing="ij") if axes else [np.zeros((), np.int64)]
    named = dict(zip((loop.name for loop in loops), grid, strict=False))
    total = sum(grid[1:], grid[0])
    valid = np.ones(total.shape, bool)
    for loop in loops:
        for bound in loop.bounds:
            if isinstance(bound.limit, int):
                before = sum((named[n] for n in bound.minus if n in named), 0)
                valid &= before + named[loop.name] < bound.limit
    return _Values(
        tuple(loop.name for loop in loops),
        tuple(_on(loop, "block") for loop in loops),
        np.where(valid, total, np.int64(1) << 40),
    )


def _of_threads(values: _Values, at: dict[str, Array], threads: int) -> Array:
    """Return values of shape (threads, turns)."""
    serial = [i for i, thread in enumerate(values.threads) if not thread]
    spread = [i for i, thread in enumerate(values.threads) if thread]
    moved = values.total.transpose([*spread, *serial])
    shape = moved.shape[: len(spread)]
    moved = moved.reshape(*shape, -1)
    place = tuple(at[values.names[i]] for i in spread)
    found: Array = moved[place] if place else np.repeat(moved[None], threads, axis=0)
    return found


def _rows_in(
    hir: PredictEnsemble,
    batch: Sequence[BoundLoop],
    dims: Sequence[BoundLoop],
    rows: int,
) -> str:
    loop = next((one for one in batch if one.has(Cache, Quantize)), None)
    if loop is None:
        return "memory"
    cache = loop.mark(Cache)
    if cache is not None and cache.layout is not None:
        return cache.layout
    by_row = bool(dims) and dims[-1].root == "batch"
    return "feature" if by_row and rows % BANKS == 0 else "padded"


def _in_flight(loop: BoundLoop) -> int:
    """Return how many walks of a loop are in flight."""
    mark = loop.mark(Interleave)
    return 1 if mark is None else mark.factor or 1
