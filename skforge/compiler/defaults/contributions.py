"""Default schedules of contributions, by batch size."""

from __future__ import annotations

from typing import Literal

from skforge.compiler.forest.forest import Forest
from skforge.compiler.schedule import families
from skforge.compiler.schedule.ranges import BatchRange
from skforge.compiler.schedule.schedule import Schedule

#: Rows of a block: a tree's constants are read once for all its vectors. Large batches
#: take large blocks, unless rows are wide (50 trees of 2,200 nodes: 296 us a row in
#: blocks of 64, 230 in blocks of 256; 100 of 510 nodes: 18.1, 16.8).
BLOCK, LARGE_BLOCK, WIDE = 64, 256, 512

#: Rows that are walked one by one, with points as the lanes: a vector of rows costs as
#: much as two (100 trees of depth 8: 190 us a row, 330 for 1 to 16 rows).
SINGLE_ROWS = 2


def contribution_schedules(
    forest: Forest,
    represent: Literal["contributions", "interactions"],
) -> dict[BatchRange, Schedule]:
    vector = 64 // forest.leaf_value.itemsize
    large = LARGE_BLOCK if forest.n_features <= WIDE else BLOCK
    table: dict[BatchRange, Schedule] = {}
    first = 1
    if represent == "contributions":
        first = SINGLE_ROWS + 1
        table[1, SINGLE_ROWS] = _blocks(1, represent)
    # Walks take up to four vectors; five or six are cheaper two by two.
    two = 2 * vector
    ends = (vector, two, 4 * vector, 6 * vector, LARGE_BLOCK, None)
    sizes = (vector, two, BLOCK, two, BLOCK, large)
    for last, size in zip(ends, sizes, strict=True):
        table[first, last] = _blocks(size, represent)
        first = (last or 0) + 1
    return table


def _blocks(size: int, represent: str) -> Schedule:
    return families.row_blocks(size).vectorize("b1").represent(represent)
