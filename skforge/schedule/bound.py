"""The bound loop nest that lowering reads: every size but the batch's is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from skforge._typing import Int64s
from skforge.schedule import directives as d
from skforge.schedule.nest import ROOTS, Size, line_text, size_value


@dataclass(frozen=True, slots=True)
class LoopBound:
    """``limit`` minus the sum of the enclosing loop variables ``minus``."""

    limit: Size
    minus: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " - ".join([str(self.limit), *self.minus])


@dataclass(frozen=True, slots=True)
class BoundLoop(d.Marked):
    """``for name in start to min(bounds) step step``, and how to run it.

    An empty ``body`` is the statement: walk the tree for the row and reduce.
    ``trip_count`` is the number of iterations if every entry has the same. ``marks``
    are the directives on the loop, in drawing order; the factor of an ``Interleave`` is
    the number of walks in flight.
    """

    name: str
    root: d.Root
    start: Size
    step: Size
    bounds: tuple[LoopBound, ...]
    trip_count: int | None
    marks: tuple[d.Mark, ...]
    body: tuple[BoundLoop, ...]

    @property
    def dimension(self) -> str | None:
        mark = self.mark(d.GpuDimension)
        return None if mark is None else mark.dimension

    @property
    def max_trips(self) -> int | None:
        """The most iterations of any entry, or None if not known statically.

        A loop over a block of rows has ``max_trips`` but no ``trip_count``, because the
        last block of a batch may be shorter.
        """
        return max_trips(self.start, self.step, self.bounds)


@dataclass(frozen=True, slots=True)
class BoundNest:
    """The bound loops of a schedule for a number of trees; ``str`` draws them.

    ``tile_nodes`` of 1 means no node tiling. ``trees_in_order`` means that every row
    visits its trees serially in model order, so that sums need no extra storage.
    """

    loops: tuple[BoundLoop, ...]
    n_trees: int
    tile_nodes: int
    tile_kind: d.TileKind
    pad_trees: bool
    reorder_trees: bool
    representation: str
    trees_in_order: bool

    @property
    def on_grid(self) -> bool:
        return marked(self.loops, d.GpuDimension)

    @property
    def kind(self) -> d.ScheduleKind:
        return "gpu" if self.on_grid else "cpu"

    def __str__(self) -> str:
        lines = [_header(self)]
        for loop in self.loops:
            _draw_loop(lines, loop, ())
        return "\n".join(lines)

    __repr__ = __str__  # shells show the loops


def max_trips(start: Size, step: Size, bounds: tuple[LoopBound, ...]) -> int | None:
    limits = [b.limit for b in bounds if not b.minus and isinstance(b.limit, int)]
    if not limits or not isinstance(start, int) or not isinstance(step, int):
        return None
    return max(0, -(-(min(limits) - start) // step))


def every_loop(loops: tuple[BoundLoop, ...]) -> Iterator[BoundLoop]:
    for loop in loops:
        yield loop
        yield from every_loop(loop.body)


def marked(loops: tuple[BoundLoop, ...], kind: type[d.Mark]) -> bool:
    return any(loop.has(kind) for loop in every_loop(loops))


def predicate_trees(loops: tuple[BoundLoop, ...]) -> int | None:
    """Return how many trees' predicates are evaluated at a time, if not all."""
    marked = (i for i in every_loop(loops) if i.has(d.CachePredicates))
    steps = (size_value(loop.step, 0) for loop in marked if loop.root == "tree")
    return next(steps, None)


def vectorizes_trees(loops: tuple[BoundLoop, ...]) -> bool:
    """Whether a loop over trees is vectorised: a row passes all trees at once."""
    trees = (loop for loop in every_loop(loops) if loop.root == "tree")
    return any(loop.has(d.Vectorize) for loop in trees)


def _header(nest: BoundNest) -> str:
    trees = "1 tree" if nest.n_trees == 1 else f"{nest.n_trees} trees"
    parts = [trees, nest.representation]
    if nest.tile_nodes > 1:
        kind = nest.tile_kind if isinstance(nest.tile_kind, str) else "given"
        parts.append(f"tiles of {nest.tile_nodes} nodes ({kind})")
    if nest.pad_trees:
        parts.append("padded")
    if nest.reorder_trees:
        parts.append("reordered")
    return f"# {', '.join(parts)}"


def _draw_loop(
    lines: list[str], loop: BoundLoop, outside: tuple[BoundLoop, ...]
) -> None:
    ends = ", ".join(map(str, loop.bounds))
    end = ends if len(loop.bounds) == 1 else f"min({ends})"
    marks = [mark.text(loop.root) for mark in loop.marks]
    lines.append(line_text(len(outside), loop.name, loop.start, end, loop.step, marks))
    inside = (*outside, loop)
    for inner in loop.body:
        _draw_loop(lines, inner, inside)
    if not loop.body:
        row, tree = (
            " + ".join(o.name for o in inside if o.root == root) for root in ROOTS
        )
        walk = f"result[{row}] += walk(trees[{tree}], rows[{row}])"
        lines.append("  " * len(inside) + walk)


# ------------------------------------------------------------ which trees are reached


def tree_positions(
    path: Sequence[BoundLoop], upto: int | None = None
) -> tuple[Int64s, Int64s]:
    """Enumerate the walking positions that a path of nested loops reaches.

    Return, for every tree reached, the sum of the tree variables of ``path[:upto]`` and
    that of all tree variables. Batch loops are skipped.
    """
    values: dict[str, Int64s] = {}
    count = 1
    for loop in path:
        if loop.root != "tree":
            continue
        high = np.full(count, np.iinfo(np.int64).max)
        for bound in loop.bounds:
            less = sum((values[v] for v in bound.minus), np.zeros(count, np.int64))
            high = np.minimum(high, size_value(bound.limit, 0) - less)
        start, step = size_value(loop.start, 0), size_value(loop.step, 0)
        trips = np.maximum(0, -(-(high - start) // step))
        which = np.repeat(np.arange(count), trips)
        first = np.repeat(np.cumsum(trips) - trips, trips)
        values = {name: value[which] for name, value in values.items()}
        values[loop.name] = start + step * (np.arange(len(which)) - first)
        count = len(which)
    zero = np.zeros(count, np.int64)
    names = [loop.name for loop in path[:upto] if loop.root == "tree"]
    partial = sum((values[name] for name in names), zero)
    return partial, sum(values.values(), zero)


def leaf_paths(
    loop: BoundLoop, path: tuple[BoundLoop, ...]
) -> Iterator[tuple[BoundLoop, ...]]:
    if not loop.body:
        yield path
    for inner in loop.body:
        yield from leaf_paths(inner, (*path, inner))
