"""Rules that exclude schedules before the cost model predicts them.

Follows *Learning to Schedule Halide Pipelines for the GPU*, §6.6: too much redundant
work, idle threads or multiprocessors, empty lanes, too long unrolled code, more
interleaved traversals than registers, or an exceeded limit of the machine or forest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.cost.schedule_facts import facts_of
from skforge.compiler.defaults.cpu import TABLE_LIMIT
from skforge.compiler.schedule.schedule import Schedule
from skforge.tuning.cost.features import Setting, View
from skforge.tuning.cost.forest_facts import SMALL_BLOCK
from skforge.tuning.cost.gpu_work import GpuWork

#: Maximum rows of a padded block, as a multiple of the batch's rows.
PADDED = 4

#: Maximum node visits that are unrolled, summed over interleaved traversals.
UNROLLED_HOPS = 512

#: Maximum interleaved traversals per vector register.
WALKS_A_REGISTER = 2

#: Maximum bytes of a forest, including padding.
FOREST_BYTES = 512 << 20

#: Minimum traversals (rows times trees) of a batch that justify a second thread.
SHARED_WALKS = 20_000

#: Least rows of a GPU's block to demand smaller blocks, and least share of a warp's
#: lanes that walk. For four forests on three GPUs (72 tables of modelled times of Table
#: 5), these rules drop 28 % and 9 % of the points, and none that is the best.
FEWEST_ROWS, BUSY_LANES = 8, 0.5

#: Reasons to exclude a schedule, in the order in which the rules are checked.
REASONS = (
    "",
    "most rows of its blocks would be padding",
    "threads would have nothing to do",
    "its unrolled walks are too long",
    "more walks are in flight than fit in registers",
    "its trees or tables take too much memory",
    "the target does not allow so many threads in a block, or so much shared memory",
    "this forest does not allow such walks",
    "most multiprocessors would have no block, even with half the rows in a block",
    "most lanes of its warps would have nothing to do",
)
_MEMORY, _LIMIT, _REFUSED, _IDLE, _LANES = range(5, 10)


def reasons(setting: Setting, schedules: Sequence[Schedule]) -> NDArray[np.int64]:
    """Return the index in ``REASONS`` for each schedule; 0 means it is kept."""
    if setting.target.is_gpu:
        return _gpu_reasons(setting, schedules)
    view = View(setting, facts_of(schedules))
    forest, target = setting.forest, setting.target
    padded = view["cache_predicates"] > 0
    most = max(SMALL_BLOCK, PADDED * setting.n_rows)
    waste = padded & (view.block > most)
    many = setting.n_rows * forest.n_trees >= SHARED_WALKS
    idle = (view.tasks < 2) & (setting.n_threads > 1) & many & (view.blocks > 1)
    walks = view.walks & (view["vector_rows"] == 0)
    length = walks & (view.in_flight * view.unchecked > UNROLLED_HOPS)
    registers = max(16, target.vector_registers) * WALKS_A_REGISTER
    flight = walks & (view.in_flight > registers)
    memory = (view.node_bytes > FOREST_BYTES) | (view.table_bytes > TABLE_LIMIT)
    values = view.tile_blocks & (view["codes"] == 0)
    refused = (
        (view.bits & (not forest.allows_bits))
        | (view.lanes & (not forest.allows_lanes))
        | (view.tile_rows & (not forest.allows_tile_rows))
        | (values & (not forest.allows_value_tiles))
        | (view.tile_blocks & ~values & (not forest.allows_tiles))
    )
    rules = [waste, idle, length, flight, memory]
    return np.select([*rules, refused], [*range(1, len(rules) + 1), _REFUSED], 0)


def _gpu_reasons(setting: Setting, schedules: Sequence[Schedule]) -> NDArray[np.int64]:
    work = GpuWork(setting, facts_of(schedules))
    idle = (2 * work.blocks <= work.processors) & (work.rows > FEWEST_ROWS)
    walking = work.lanes * work.busy * np.minimum(1.0, work.n / work.rows)
    refused = work.bits & (not setting.forest.allows_bits)
    memory = work.node_bytes > FOREST_BYTES
    rules = [memory, ~work.fits, refused, idle, walking < BUSY_LANES]
    return np.select(rules, [_MEMORY, _LIMIT, _REFUSED, _IDLE, _LANES], 0)
