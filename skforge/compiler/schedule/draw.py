"""How loop nests look as text, in errors, in ``str(nest)`` and in ``explain``."""

from __future__ import annotations

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
from skforge.compiler.schedule.nest import (
    ROOTS,
    BoundLoop,
    BoundNest,
    Extent,
    Nest,
    Root,
    Variable,
    walk,
)


def draw(nest: Nest) -> str:
    """Return the loops of an abstract nest, one a line, remainders left out."""
    lines = []
    for loop, outside in walk(nest.loops):
        variable = nest.variable(loop.name)
        marks = [_mark_text(mark, variable.root) for mark in variable.marks]
        end = nominal_end(nest, variable).text
        lines.append(
            _line(
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


def draw_bound(nest: BoundNest) -> str:
    """Return a bound nest as text: its options, its loops and the statement."""
    lines = [_header(nest)]
    for loop in nest.loops:
        _draw_loop(lines, loop, ())
    return "\n".join(lines)


def _header(nest: BoundNest) -> str:
    trees = "1 tree" if nest.n_trees == 1 else f"{nest.n_trees} trees"
    parts = [trees, nest.representation]
    if nest.tile_nodes > 1:
        parts.append(f"tiles of {nest.tile_nodes} nodes ({nest.tile_kind})")
    if nest.pad_trees:
        parts.append("padded")
    if nest.reorder_trees:
        parts.append("reordered")
    return f"# {', '.join(parts)}"


def _draw_loop(
    lines: list[str], loop: BoundLoop, outside: tuple[BoundLoop, ...]
) -> None:
    ends = [str(bound) for bound in loop.bounds]
    end = ends[0] if len(ends) == 1 else f"min({', '.join(ends)})"
    marks = bound_marks(loop)
    lines.append(
        _line(len(outside), loop.name, str(loop.start), end, str(loop.step), marks)
    )
    inside = (*outside, loop)
    for inner in loop.body:
        _draw_loop(lines, inner, inside)
    if not loop.body:
        row, tree = (
            " + ".join(o.name for o in inside if o.root == root) for root in ROOTS
        )
        lines.append(
            "  " * len(inside) + f"result[{row}] += walk(trees[{tree}], rows[{row}])"
        )


def bound_marks(loop: BoundLoop) -> list[str]:
    """Return how a bound loop runs, as words."""
    marks = []
    if loop.parallel:
        marks.append("parallel")
    if loop.gpu is not None:
        marks.append(loop.gpu)
    if loop.unroll:
        marks.append("unroll")
    if loop.specialize:
        marks.append("specialize")
    if loop.interleave is not None:
        marks.append(f"interleave {loop.interleave}")
    if loop.vectorize:
        marks.append("vectorize")
    if loop.cache:
        marks.append(_cache_text(loop.root, loop.cache_layout))
    if loop.quantize:
        marks.append("quantize")
    if loop.cache_predicates:
        marks.append("cache_predicates")
    if loop.unroll_walk is not None:
        marks.append(f"unroll_walk {loop.unroll_walk}")
    if loop.peel_walk is not None:
        marks.append(f"peel_walk {loop.peel_walk}")
    if loop.atomic_reduce:
        marks.append("atomic_reduce")
    if loop.shared_reduce:
        marks.append("shared_reduce")
    if loop.vector_reduce is not None:
        marks.append(f"vector_reduce {loop.vector_reduce}")
    return marks


def _line(
    depth: int, name: str, start: str, end: str, step: str, marks: list[str]
) -> str:
    stride = "" if step == "1" else f" step {step}"
    text = f"{'  ' * depth}for {name} in {start} to {end}{stride}:"
    return f"{text}   {', '.join(marks)}" if marks else text


def _cache_text(root: Root, layout: str | None) -> str:
    text = "cache rows" if root == "batch" else "cache trees"
    return text if layout is None else f"{text} by {layout}"


def _mark_text(mark: Mark, root: Root) -> str:
    match mark:
        case GpuDimension(_, dimension):
            return dimension
        case Cache(_, layout):
            return _cache_text(root, layout)
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
