"""Blocks of rows: the batch loops around the sums of consecutive rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from skforge.compiler.ir.mir.nodes import Affine, Bound, Loop, Range
from skforge.compiler.ir.mir.walk import loops_in, tightest
from skforge.compiler.schedule.nest import Rows, Size, size_value


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
