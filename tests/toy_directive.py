"""A directive and its pass as CONTRIBUTING.md has them, in a file of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from skforge.compiler.driver import NamedPass, Stage
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import map_loops
from skforge.schedule.directives import UNITS, Mark, Root


@dataclass(frozen=True, slots=True)
class Ribbon(Mark):
    """Tie a ribbon to a loop over trees: a toy that changes no code."""

    width: int = 1

    ROOT = "tree"

    def problem(self) -> str | None:
        return None if self.width > 0 else f"{self} needs a positive width."

    def sentence(self, root: Root) -> str:
        return f'the {UNITS[root]} of "{self.index}" wear a ribbon'


def run(function: mir.Function) -> mir.Function:
    """Carry it out: nothing is left to do but to take the mark off."""

    def change(loop: mir.Loop) -> mir.Loop:
        return replace(loop, marks=loop.without(Ribbon))

    return replace(function, body=map_loops(function.body, change))


def step(function: mir.Function, stage: Stage) -> mir.Function:
    """Run the pass as the pipeline does."""
    return run(function)


PASS = NamedPass("untie-ribbons", step)
