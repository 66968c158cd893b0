"""Describes what each directive of a schedule does to the loops of a forest."""

from __future__ import annotations

from skforge.compiler.schedule import directives as d
from skforge.compiler.schedule.apply import apply
from skforge.compiler.schedule.bound import BoundLoop, BoundNest, every_loop
from skforge.compiler.schedule.nest import Nest, root_nest


def explain(directives: tuple[d.Directive, ...], bound: BoundNest) -> list[str]:
    """Return one line for each directive: the call, then its effect on these loops."""
    lines = []
    loops = {loop.name: loop for loop in every_loop(bound.loops)}
    nest = root_nest(bound.n_trees)
    for directive in directives:
        nest = apply(nest, directive)
        if isinstance(directive, d.Interleave):
            what = _interleave(directive, loops[directive.index])
        else:
            what = _what(nest, directive)
        lines.append(f"{directive}: {what}.")
    return lines


def _interleave(interleave: d.Interleave, loop: BoundLoop) -> str:
    together = loop.mark(d.Interleave)
    if together is None:
        return f'one walk of "{loop.name}" is in flight at a time, as without it'
    which = "all" if together.factor == loop.max_trips else "up to"
    return f'{which} {together.factor} walks of "{loop.name}" are in flight at a time'


def _what(nest: Nest, directive: d.Directive) -> str:
    """Describe the effect of a directive, given the nest it resulted in."""
    match directive:
        case d.Tile(index, outer, inner, _):
            step = nest.variable(outer).step
            return (
                f'"{outer}" goes over "{index}" in blocks of {step} '
                f'{_units(nest, outer)}, "{inner}" over one block'
            )
        case d.Split(index, first, second, _):
            units, start = _units(nest, first), nest.variable(second).start
            return (
                f'"{first}" takes the {units} of "{index}" before {start}, and after '
                f'it "{second}" takes the others'
            )
        case d.Reorder(indices):
            return f"from the outside in, the loops are {', '.join(indices)}"
        case d.Mark(index):
            return directive.sentence(nest.variable(index).root)
        case d.Option():
            return directive.sentence()
        case _:
            raise AssertionError(f"no words for {directive!r}")


def _units(nest: Nest, name: str) -> str:
    return d.UNITS[nest.variable(name).root]
