"""The default schedule of interventional contributions."""

from __future__ import annotations

from skforge.compiler.layouts.background.background import BLOCK
from skforge.compiler.schedule.schedule import Schedule


def background_schedule() -> Schedule:
    """Return the schedule for batches of any size."""
    schedule = Schedule().tile("batch", "b0", "b1", BLOCK).reorder("b0", "tree", "b1")
    return schedule.parallel("b0").vectorize("b1").represent("background")
