"""Facts about the reduces in a body: what they add to, and what else touches sums."""

from __future__ import annotations

from collections.abc import Iterator

from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.schedule.directives import VectorReduce


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
