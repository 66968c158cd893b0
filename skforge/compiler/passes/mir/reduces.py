"""Facts about the reduces in a body: what they add to, and what else touches sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.nodes import Affine, Bound, Loop, Range
from skforge.compiler.ir.mir.walk import loops_in, tightest
from skforge.compiler.schedule.directives import VectorReduce
from skforge.compiler.schedule.nest import Rows, Size, size_value


def element_of(reduce: mir.Reduce) -> tuple[str, tuple[mir.Index, ...]]:
    """Return what tells the element that a reduce adds to from others."""
    return reduce.target, reduce.indices


def vector_width(loop: mir.Loop) -> int | None:
    """Return how many partial sums of a loop are added at a time, if it says so."""
    mark = loop.mark(VectorReduce)
    return None if mark is None else mark.width


def variables(reduce: mir.Reduce) -> set[str]:
    """Return the loop variables in a reduce's indices."""
    names: set[str] = set()
    for index in reduce.indices:
        match index:
            case mir.Affine(terms=terms):
                names |= set(terms)
            case mir.Slot(value=value):
                names |= set(value.terms)
            case mir.ModelTree(position=position):
                names |= set(position.terms)
            case mir.Class() | mir.Outputs():
                pass
    return names


def reduces_in(body: mir.Body) -> Iterator[mir.Reduce]:
    """Yield every reduce of a body, nested ones too."""
    for stmt in body:
        match stmt:
            case mir.Reduce():
                yield stmt
            case mir.Loop():
                yield from reduces_in(stmt.body)
                yield from reduces_in(stmt.remainder)
            case mir.DepthSwitch(cases=cases):
                for case in cases:
                    yield from reduces_in(case)
            case _:
                pass


def holds_whole_array_ops(body: mir.Body) -> bool:
    """Whether anything below reads or writes sums other than by ``reduce``."""
    for stmt in body:
        match stmt:
            case mir.Loop():
                if holds_whole_array_ops(stmt.body):
                    return True
            case mir.DepthSwitch(cases=cases):
                if any(holds_whole_array_ops(case) for case in cases):
                    return True
            case (
                mir.ReduceDimension()
                | mir.ReduceDimensionInplace()
                | mir.Fill()
                | mir.Finish()
                | mir.StoreLeaf()
                | mir.AllocArray()
            ):
                return True
            case _:
                pass
    return False


@dataclass(frozen=True, slots=True)
class RowScope:
    """The batch loops outside a block of rows."""

    outside: tuple[Loop, ...] = ()

    def enter(self, loop: Loop) -> RowScope:
        """Return the scope of one iteration of a loop."""
        return RowScope((*self.outside, loop))

    @property
    def extent(self) -> Size:
        """Most rows of a block: the smallest step outside."""
        steps = [loop.step for loop in self.outside]
        if not steps:
            return Rows()
        numbers = [step for step in steps if isinstance(step, int)]
        return min(numbers) if numbers else steps[-1]

    @property
    def start(self) -> Affine:
        """The first row."""
        return Affine(tuple(loop.var for loop in self.outside))

    @property
    def rows(self) -> Range:
        """The rows of a block, those past any bound left out."""
        bounds = [Bound(self.extent)]
        if self.extent == 1:  # the loops outside have checked this very row
            return Range(self.start, tuple(bounds))
        for loop in self.outside:
            here = Affine((loop.var,))
            bounds += [Bound(b.limit, b.minus.plus(here)) for b in loop.bounds]
        return Range(self.start, tightest(bounds))

    @property
    def local_rows(self) -> Range:
        """The same rows numbered from the block's first."""
        return replace(self.rows, start=Affine())

    def local(self, row: Affine) -> Affine:
        """Return a row's number within the block."""
        names = {loop.var for loop in self.outside}
        terms = tuple(term for term in row.terms if term not in names)
        return replace(row, terms=terms)


def owns_rows(loop: Loop, scope: RowScope) -> bool:
    """Whether an iteration of a batch loop owns consecutive rows.

    It does when every batch loop inside only counts within the smallest step outside.
    """
    extent = scope.enter(loop).extent

    def within(inner: Loop) -> bool:
        for bound in inner.bounds:
            if bound.limit == extent:
                return True
            known = isinstance(bound.limit, int) and isinstance(extent, int)
            if known and size_value(bound.limit, 0) <= size_value(extent, 0):
                return True
        return False

    return all(within(i) for i in loops_in(loop.body) if i.root == "batch")


def is_conflicting(loop: Loop) -> bool:
    """Whether iterations run at once and add to the same sums."""
    return loop.root == "tree" and loop.kind not in ("serial", "vector", "block")
