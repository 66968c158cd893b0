"""Say in words what each directive of a schedule does to the loops of a forest."""

from __future__ import annotations

from skforge.compiler.schedule.apply import apply
from skforge.compiler.schedule.bound import BoundLoop, BoundNest
from skforge.compiler.schedule.directives import (
    AtomicReduce,
    Cache,
    CachePredicates,
    Directive,
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
from skforge.compiler.schedule.nest import Nest, root_nest


def explain(directives: tuple[Directive, ...], bound: BoundNest) -> list[str]:
    """Return one line for each directive: the call, then what it does here.

    Parameters
    ----------
    directives : tuple of Directive
        A schedule.
    bound : BoundNest
        The loops it is bound to.

    Returns
    -------
    list of str
        The lines.
    """
    lines = []
    loops = _by_name(bound.loops)
    nest = root_nest(bound.n_trees)
    for directive in directives:
        nest = apply(nest, directive)
        if isinstance(directive, Interleave):
            what = _interleave(directive, loops[directive.index])
        else:
            what = _what(nest, directive)
        lines.append(f"{directive}: {what}.")
    return lines


def _by_name(loops: tuple[BoundLoop, ...]) -> dict[str, BoundLoop]:
    found = {loop.name: loop for loop in loops}
    for loop in loops:
        found |= _by_name(loop.body)
    return found


def _interleave(interleave: Interleave, loop: BoundLoop) -> str:
    if loop.interleave is None:
        return f'one walk of "{loop.name}" is in flight at a time, as without it'
    which = "all" if loop.interleave == loop.max_trips else "up to"
    return f'{which} {loop.interleave} walks of "{loop.name}" are in flight at a time'


def _what(nest: Nest, directive: Directive) -> str:
    """Say what a directive has done to the nest it made."""
    match directive:
        case Tile(index, outer, inner, _):
            step = nest.variable(outer).step.text
            return (
                f'"{outer}" goes over "{index}" in blocks of {step} '
                f'{_units(nest, outer)}, "{inner}" over one block'
            )
        case Split(index, first, second, _):
            units, start = _units(nest, first), nest.variable(second).start
            return (
                f'"{first}" takes the {units} of "{index}" before {start}, and after '
                f'it "{second}" takes the others'
            )
        case Reorder(indices):
            return f"from the outside in, the loops are {', '.join(indices)}"
        case GpuDimension(index, dimension):
            unit = "a GPU block" if dimension.startswith("grid") else "a GPU thread"
            return f'each iteration of "{index}" is {unit}, along {dimension[-1]}'
        case Unroll(index):
            return f'the code of "{index}" is repeated for each iteration'
        case Specialize(index):
            return f'each iteration of "{index}" runs code for its trees\' depths'
        case Cache(index, _):
            return (
                f'each iteration of "{index}" first fetches its {_units(nest, index)}'
            )
        case Parallel(index):
            return f'the iterations of "{index}" are shared among threads'
        case Interleave(index, _):
            return f'several walks of "{index}" are in flight at a time'
        case UnrollWalk(index, depth):
            return f'walks under "{index}" make {_hops(depth)} before any leaf check'
        case PeelWalk(index, depth):
            return (
                f'walks under "{index}" make up to {_hops(depth)} before any leaf '
                "check, as far as no leaf can end them"
            )
        case AtomicReduce(index):
            return f'iterations of "{index}" add to the result with atomics'
        case SharedReduce(index):
            return f'partial results of "{index}" lie in shared memory'
        case VectorReduce(index, width):
            return f'partial results of "{index}" are added {width} at a time'
        case TileNodes(size, kind):
            how = {
                "uniform": "breadth-first",
                "probability": "by how often they are met",
                "complete": "by level",
            }.get(kind, kind)
            return f"up to {size} nodes are compared at once, grouped {how}"
        case PadTrees():
            return "the leaves of each tree are made equally deep"
        case ReorderTrees():
            return "trees of equal depth and shape become neighbours"
        case Represent(representation):
            return f'the forest is stored as "{representation}"'
        case Vectorize(index):
            if nest.variable(index).root == "tree":
                return f'all trees of "{index}" are evaluated at once, in SIMD lanes'
            return f'rows of "{index}" are walked in SIMD lanes'
        case CachePredicates(index):
            return f'each iteration of "{index}" first evaluates all predicates'
        case Quantize(index):
            return f'each iteration of "{index}" first turns its rows into bin codes'


def _units(nest: Nest, name: str) -> str:
    return "rows" if nest.variable(name).root == "batch" else "trees"


def _hops(depth: int) -> str:
    return "1 hop" if depth == 1 else f"{depth} hops"
