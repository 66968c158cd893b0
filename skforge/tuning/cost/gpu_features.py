"""Features of GPU schedules: Appendix A of *Learning to Schedule Halide Pipelines*.

A *task* is a block, a *realization* is the walk of a block's rows through its trees,
and a *point* is one row in one tree. ``docs/cost_model.md`` lists the features.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.cost.schedule_facts import LAYOUTS
from skforge.tuning.cost.gpu_occupancy import Limit
from skforge.tuning.cost.gpu_work import GpuWork

Array = NDArray[np.float64]

_Maker = Callable[[GpuWork], "Array | float"]


def _fact(name: str) -> _Maker:
    return lambda w: w[name]


def _limit(name: Limit) -> _Maker:
    """Return how many times as many blocks a limit allows as are resident."""
    return lambda w: np.minimum(w.limits[name] / w.resident, 64.0)


def _size(name: str) -> _Maker:
    return lambda w: float(getattr(w.forest, name))


def _layout(name: str) -> _Maker:
    return lambda w: w.name[name].astype(np.float64)


#: Every feature by name; ``docs/cost_model.md`` describes them.
MAKERS: dict[str, _Maker] = {
    # the whole
    "estimate": lambda w: np.log2(w.estimate),
    "num_rows": lambda w: w.n,
    "num_scalars": lambda w: w.n * w.forest.n_trees,
    "num_launches": lambda w: w.launches,
    # blocks on multiprocessors
    "num_cores": lambda w: w.processors,
    "num_blocks": lambda w: w.blocks,
    "blocks_per_core": lambda w: w.blocks / w.processors,
    "num_waves": lambda w: w.waves,
    "wave_tail": lambda w: w.waves * w.resident * w.processors / w.blocks,
    "idle_core_wastage": lambda w: w.on_one * w.processors / w.blocks,
    # threads and lanes
    "num_threads_per_block": lambda w: w.threads,
    "num_warps_per_block": lambda w: w.warps,
    "warp_lane_utilization": lambda w: w.lanes,
    "tree_utilization": lambda w: w.busy,
    "row_utilization": lambda w: w.filled,
    "rows_per_block": lambda w: w.rows,
    "rows_per_thread": lambda w: w.each,
    "trees_per_thread": lambda w: w.own,
    "points_computed_per_thread": lambda w: w.each * w.own,
    "tree_threads": lambda w: w.parts,
    "tree_blocks": lambda w: w.grid,
    "row_lanes": lambda w: w.row_lanes,
    "tree_lanes": lambda w: w.tree_lanes,
    "walks_in_flight": lambda w: w.in_flight,
    "walks_left_over": lambda w: w.own % w.in_flight,
    # occupancy
    "max_warp_occupancy": lambda w: w.occupancy,
    "max_block_occupancy": lambda w: w.resident / w.processor.blocks,
    "active_warps": lambda w: np.minimum(w.resident, w.on_one) * w.warps,
    "thread_block_limit_factor": _limit("warps"),
    "register_block_limit_factor": _limit("registers"),
    "shared_mem_block_limit_factor": _limit("shared memory"),
    "shared_mem_occupancy": lambda w: w.shared / max(1, w.room),
    "working_set_at_thread": lambda w: w.registers,
    # reads and writes
    "hops": lambda w: w.hops,
    "hops_unchecked": lambda w: w.unrolled.astype(np.float64),
    "peel_walk": _fact("peel_walk"),
    "num_instructions_per_block": lambda w: w.issued,
    "num_shared_mem_loads_per_block": lambda w: w.near,
    "num_global_mem_loads_per_block": lambda w: w.far / 32,
    "cycles_waited_per_block": lambda w: w.chain,
    "node_load_cycles": lambda w: w.node_cycles,
    "row_load_cycles": lambda w: w.row_cycles,
    "global_lines_of_nodes": lambda w: w.node_lines * ~w.near_trees,
    "global_lines_of_rows": lambda w: w.row_lines * ~w.near_rows,
    "node_words": lambda w: w.words,
    "nodes_beyond_l1": lambda w: w.spilled.astype(np.float64),
    "node_bytes_read_per_realization": lambda w: w.node_bytes,
    "shared_row_bytes": lambda w: w.row_bytes,
    "shared_node_bytes": lambda w: w.tree_bytes,
    "chunks_of_leaves": lambda w: w.chunks,
    "leaves_added_per_row": lambda w: w.slots * w.grid,
    "instructions_share": lambda w: w.issued / w.chip.issue / w.work,
    "waiting_share": lambda w: w.chain / (w.work * w.resident),
    # directives
    "codes": lambda w: w.codes.astype(np.float64),
    "cache_rows": _fact("cache_rows"),
    "cache_trees": _fact("cache_trees"),
    "row_layout": _fact("row_layout"),
    "lane_trees": _fact("lane_trees"),
    "shared_reduce": lambda w: w.shared_sums.astype(np.float64),
    "node_tile": _fact("node_tile"),
    **{f"layout_{name}": _layout(name) for name in LAYOUTS if name != "tiles"},
    # the forest
    "num_trees": _size("n_trees"),
    "num_outputs": _size("n_outputs"),
    "num_columns": _size("n_columns"),
    "row_bytes": _size("row_bytes"),
    "threshold_bytes": _size("threshold_bytes"),
    "leaf_value_bytes": _size("leaf_value_bytes"),
    "leaves_per_tree": _size("leaves_per_tree"),
    "tree_depth": _size("tree_depth"),
    "leaf_depth": _size("leaf_depth"),
    "max_depth": _size("max_depth"),
    "num_predicates": _size("n_predicates"),
    # the GPU
    "warp_size": lambda w: w.warp,
    "shared_mem_limit": lambda w: float(w.room),
    "register_limit": lambda w: float(w.processor.registers * w.processor.parts),
}

#: Names of the features, in the order of the columns.
NAMES = tuple(MAKERS)
