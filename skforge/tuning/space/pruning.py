"""Rules that exclude schedules before the cost model predicts them.

Follows *Learning to Schedule Halide Pipelines for the GPU*, §6.6: too much redundant
work, idle threads, empty lanes, too long unrolled code, more interleaved traversals
than registers, or an exceeded limit of the machine or the forest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.cost.schedule_facts import facts_of
from skforge.compiler.defaults.cpu import TABLE_LIMIT
from skforge.compiler.schedule.schedule import Schedule
from skforge.tuning.cost.features import Setting, View
from skforge.tuning.cost.rules import SMALL_BLOCK

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

#: Reasons to exclude a schedule, in the order in which the rules are checked.
REASONS = (
    "",
    "most rows of its blocks would be padding",
    "threads would have nothing to do",
    "its unrolled walks are too long",
    "more walks are in flight than fit in registers",
    "its trees or tables take too much memory",
    "the target does not allow so many threads in a block",
    "this forest does not allow such walks",
)


def reasons(setting: Setting, schedules: Sequence[Schedule]) -> NDArray[np.int64]:
    """Return the index in ``REASONS`` for each schedule; 0 means it is kept."""
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
    threads = np.maximum(1, view["block_rows"]) * np.maximum(1, view["block_trees"])
    limit = target.max_threads_per_block if target.is_gpu else np.inf
    values = view.tile_blocks & (view["codes"] == 0)
    refused = (
        (view.bits & (not forest.allows_bits))
        | (view.lanes & (not forest.allows_lanes))
        | (view.tile_rows & (not forest.allows_tile_rows))
        | (values & (not forest.allows_value_tiles))
        | (view.tile_blocks & ~values & (not forest.allows_tiles))
    )
    rules = [waste, idle, length, flight, memory, threads > limit, refused]
    return np.select(rules, list(range(1, len(rules) + 1)), 0)
