"""The default schedule of contributions."""

from __future__ import annotations

from skforge.compiler.forest.forest import Forest
from skforge.compiler.schedule.schedule import Schedule

#: Rows of a block: a tree's constants are read once for all its vectors.
BLOCK = 64


def contribution_schedules(forest: Forest, represent: str) -> Schedule:
    """Return the schedule of a forest's contributions, or interactions."""
    schedule = Schedule().tile("batch", "b0", "b1", BLOCK).reorder("b0", "tree", "b1")
    schedule = schedule.parallel("b0").vectorize("b1")
    return schedule.represent(represent)
