"""GPU schedules of the bit-sliced representation, for tests."""

from __future__ import annotations

from skforge.compiler.schedule.schedule import Schedule


def bits(
    rows: int = 64,
    each: int = 4,
    trees: int | None = None,
    representation: str = "bitsliced",
) -> Schedule:
    """Return blocks of rows, some of them a thread, and trees of one table."""
    made = Schedule().tile("batch", "b0", "b1", rows).tile("b1", "b2", "b3", each)
    if trees is None:
        made = made.reorder("b0", "tree", "b2", "b3")
    else:
        made = made.tile("tree", "t0", "t1", trees)
        made = made.reorder("b0", "t0", "t1", "b2", "b3")
    made = made.gpu_dimension("b0", "grid.x").gpu_dimension("b2", "block.x")
    return made.cache_predicates("b0").vectorize("b3").represent(representation)
