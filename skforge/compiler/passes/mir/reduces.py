"""Queries on the reduces in a body: what they add to, and what else touches sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir import walk
from skforge.schedule.directives import Quantize, VectorReduce
from skforge.schedule.nest import BatchLength, Size


def element_of(reduce: mir.Reduce) -> tuple[str, tuple[mir.Index, ...]]:
    return reduce.target, reduce.indices


def vector_width(loop: mir.Loop) -> int | None:
    mark = loop.mark(VectorReduce)
    return None if mark is None else mark.width


def variables(reduce: mir.Reduce) -> set[str]:
    return {name for index in reduce.indices for name in walk.variables(index)}


def reduces_in(body: mir.Body) -> Iterator[mir.Reduce]:
    return (stmt for stmt in walk.statements(body) if isinstance(stmt, mir.Reduce))


def retarget(
    body: mir.Body, array: str, row_of: Callable[[mir.Affine], mir.Affine]
) -> mir.Body:
    def change(stmt: mir.Stmt) -> mir.Stmt:
        if not isinstance(stmt, mir.Reduce):
            return stmt
        row, *rest = stmt.indices
        assert isinstance(row, mir.Affine)
        return replace(stmt, target=array, indices=(row_of(row), *rest))

    return walk.map_statements(body, change)


_WHOLE_ARRAY = (
    mir.ReduceDimension
    | mir.ReduceDimensionInplace
    | mir.Fill
    | mir.Finish
    | mir.StoreLeaf
    | mir.AllocArray
)


def holds_whole_array_ops(body: mir.Body) -> bool:
    return any(isinstance(stmt, _WHOLE_ARRAY) for stmt in walk.statements(body))


@dataclass(frozen=True, slots=True)
class RowScope:
    """The batch loops outside a block of rows."""

    outside: tuple[mir.Loop, ...] = ()

    def enter(self, loop: mir.Loop) -> RowScope:
        return RowScope((*self.outside, loop))

    @property
    def extent(self) -> Size:
        steps = [loop.step for loop in self.outside]
        if not steps:
            return BatchLength()
        numbers = [step for step in steps if isinstance(step, int)]
        return min(numbers) if numbers else steps[-1]

    @property
    def start(self) -> mir.Affine:
        return mir.Affine(tuple(loop.var for loop in self.outside))

    @property
    def rows(self) -> mir.Range:
        bounds = [mir.Bound(self.extent)]
        if self.extent == 1:  # the loops outside have already checked this row
            return mir.Range(self.start, tuple(bounds))
        for loop in self.outside:
            here = mir.Affine((loop.var,))
            bounds += [mir.Bound(b.limit, b.minus.plus(here)) for b in loop.bounds]
        return mir.Range(self.start, walk.tightest(bounds))

    @property
    def local_rows(self) -> mir.Range:
        return replace(self.rows, start=mir.Affine())

    def local(self, row: mir.Affine) -> mir.Affine:
        names = {loop.var for loop in self.outside}
        terms = tuple(term for term in row.terms if term not in names)
        return replace(row, terms=terms)


def owns_rows(loop: mir.Loop, scope: RowScope) -> bool:
    """Whether an iteration of a batch loop owns consecutive rows.

    It does if every batch loop inside counts only within the smallest step outside.
    """
    extent = scope.enter(loop).extent
    inside = walk.loops_in(loop.body)
    return all(walk.stays_within(i, extent) for i in inside if i.root == "batch")


def is_conflicting(loop: mir.Loop) -> bool:
    return loop.root == "tree" and loop.kind not in ("serial", "vector", "block")


def shared_with(loop: mir.Loop) -> mir.Loop | None:
    """Return the parallel loop that is dealt out together with a parallel loop.

    It is all that the loop contains but for prefetches, and as long for every
    iteration, as are those dealt out with it. Codes of a block's rows are made once,
    before the loop inside.
    """
    if loop.kind != "parallel" or loop.group != 1 or loop.has(Quantize):
        return None
    rest = [s for s in loop.body if not isinstance(s, mir.CacheRows | mir.CacheTrees)]
    if len(rest) != 1 or not isinstance(rest[0], mir.Loop):
        return None
    inner = rest[0]
    if inner.kind != "parallel" or inner.group != 1:
        return None
    below: mir.Loop | None = inner
    while below is not None:
        if any(loop.var in bound.minus.terms for bound in below.bounds):
            return None
        below = shared_with(below)
    return inner
