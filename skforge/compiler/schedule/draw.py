"""Draws loop nests as text, for errors, ``str(nest)`` and ``explain``."""

from __future__ import annotations

from skforge.compiler.schedule.bound import line_text
from skforge.compiler.schedule.nest import Extent, Nest, Variable, walk


def draw(nest: Nest) -> str:
    """Return the loops of an abstract nest, one a line, ignoring remainders."""
    lines = []
    for loop, outside in walk(nest.loops):
        variable = nest.variable(loop.name)
        marks = [mark.text(variable.root) for mark in variable.marks]
        end = nominal_end(nest, variable)
        lines.append(
            line_text(
                len(outside),
                loop.name,
                str(variable.start),
                str(end),
                str(variable.step),
                marks,
            )
        )
    return "\n".join(lines)


def line_of(nest: Nest, name: str | None) -> int | None:
    """Return the line of the first loop with a name in ``draw(nest)``."""
    for line, (loop, _) in enumerate(walk(nest.loops)):
        if loop.name == name:
            return line
    return None


def nominal_end(nest: Nest, variable: Variable) -> Extent:
    """Return the end of a loop if all sizes divide evenly.

    The limit with the fewest variables is the one that made this variable.
    """
    limits = [limit for limit in nest.limits if variable.name in limit.names]
    fewest = min(len(limit.names) for limit in limits)
    ends = [limit.limit for limit in limits if len(limit.names) == fewest]
    return min((end for end in ends if isinstance(end, int)), default=ends[0])
