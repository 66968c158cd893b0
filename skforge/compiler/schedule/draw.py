"""How loop nests look as text, in errors, in ``str(nest)`` and in ``explain``."""

from __future__ import annotations

from skforge.compiler.schedule.bound import cache_text, line_text
from skforge.compiler.schedule.directives import (
    AtomicReduce,
    Cache,
    CachePredicates,
    GpuDimension,
    Interleave,
    Mark,
    Parallel,
    PeelWalk,
    Quantize,
    SharedReduce,
    Specialize,
    Unroll,
    UnrollWalk,
    Vectorize,
    VectorReduce,
)
from skforge.compiler.schedule.nest import Extent, Nest, Root, Variable, walk


def draw(nest: Nest) -> str:
    """Return the loops of an abstract nest, one a line, remainders left out."""
    lines = []
    for loop, outside in walk(nest.loops):
        variable = nest.variable(loop.name)
        marks = [_mark_text(mark, variable.root) for mark in variable.marks]
        end = nominal_end(nest, variable).text
        lines.append(
            line_text(
                len(outside),
                loop.name,
                str(variable.start),
                end,
                variable.step.text,
                marks,
            )
        )
    return "\n".join(lines)


def line_of(nest: Nest, name: str | None) -> int | None:
    """Return the line of the first loop of a name in ``draw(nest)``."""
    for line, (loop, _) in enumerate(walk(nest.loops)):
        if loop.name == name:
            return line
    return None


def nominal_end(nest: Nest, variable: Variable) -> Extent:
    """Return where a loop ends when everything divides.

    The limit on the fewest variables is the one that made this variable.
    """
    limits = [limit for limit in nest.limits if variable.name in limit.names]
    fewest = min(len(limit.names) for limit in limits)
    ends = [limit.limit for limit in limits if len(limit.names) == fewest]
    numbers = [end.size for end in ends if isinstance(end.size, int)]
    return next((e for e in ends if numbers and e.size == min(numbers)), ends[0])


def _mark_text(mark: Mark, root: Root) -> str:
    match mark:
        case GpuDimension(_, dimension):
            return dimension
        case Cache(_, layout):
            return cache_text(root, layout)
        case Interleave(_, factor):
            return "interleave" if factor is None else f"interleave {factor}"
        case UnrollWalk(_, depth):
            return f"unroll_walk {depth}"
        case PeelWalk(_, depth):
            return f"peel_walk {depth}"
        case VectorReduce(_, width):
            return f"vector_reduce {width}"
        case Parallel():
            return "parallel"
        case Unroll():
            return "unroll"
        case Specialize():
            return "specialize"
        case AtomicReduce():
            return "atomic_reduce"
        case SharedReduce():
            return "shared_reduce"
        case Vectorize():
            return "vectorize"
        case CachePredicates():
            return "cache_predicates"
        case Quantize():
            return "quantize"
