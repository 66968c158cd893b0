"""Features of (forest, schedule, batch size, GPU) for the cost model.

Adapts Appendix A of *Learning to Schedule Halide Pipelines for the GPU* to forests;
nothing is lowered. A stage is the traversal of all trees, a realization is one pass of
the forest over a block of rows, and a scalar is one row in one tree.
``docs/cost_model.md`` lists the features.
"""

from __future__ import annotations

import numpy as np

from skforge._typing import Float64s
from skforge.gpu.cost import GpuWork


def features(w: GpuWork) -> dict[str, Float64s]:
    f, sm = w.forest, w.processor
    # How many times as many blocks a limit allows as are resident.
    slack = {k: np.minimum(v / w.resident, 64.0) for k, v in w.limits.items()}
    found = {
        # the whole
        "estimate": np.log2(w.estimate),
        "num_rows": w.n,
        "num_scalars": w.n * f.n_trees,
        "num_launches": w.launches,
        # blocks on multiprocessors
        "num_cores": w.processors,
        "num_blocks": w.blocks,
        "blocks_per_core": w.blocks / w.processors,
        "num_waves": w.waves,
        "wave_tail": w.waves * w.resident * w.processors / w.blocks,
        "idle_core_wastage": w.on_one * w.processors / w.blocks,
        # threads and lanes
        "num_threads_per_block": w.threads,
        "num_warps_per_block": w.warps,
        "warp_lane_utilization": w.lanes,
        "tree_utilization": w.busy,
        "row_utilization": w.filled,
        "rows_per_block": w.rows,
        "rows_per_thread": w.each,
        "trees_per_thread": w.own,
        "points_computed_per_thread": w.each * w.own,
        "tree_threads": w.parts,
        "tree_blocks": w.grid,
        "row_lanes": w.row_lanes,
        "tree_lanes": w.tree_lanes,
        "walks_in_flight": w.in_flight,
        "walks_left_over": w.own % w.in_flight,
        # occupancy
        "max_warp_occupancy": w.occupancy,
        "max_block_occupancy": w.resident / sm.blocks,
        "active_warps": np.minimum(w.resident, w.on_one) * w.warps,
        "thread_block_limit_factor": slack["warps"],
        "register_block_limit_factor": slack["registers"],
        "shared_mem_block_limit_factor": slack["shared memory"],
        "shared_mem_occupancy": w.shared / max(1, w.room),
        "working_set_at_thread": w.registers,
        # reads and writes
        "hops": w.hops,
        "hops_unchecked": w.unrolled,
        "peel_walk": w["peel_walk"],
        "num_instructions_per_block": w.issued,
        "num_shared_mem_loads_per_block": w.near,
        "num_global_mem_loads_per_block": w.far / 32,
        "cycles_waited_per_block": w.chain,
        "node_load_cycles": w.node_cycles,
        "row_load_cycles": w.row_cycles,
        "global_lines_of_nodes": w.node_lines * ~w.near_trees,
        "global_lines_of_rows": w.row_lines * ~w.near_rows,
        "node_words": w.words,
        "nodes_beyond_l1": w.spilled,
        "node_bytes_read_per_realization": w.node_bytes,
        "shared_row_bytes": w.row_bytes,
        "shared_node_bytes": w.tree_bytes,
        "chunks_of_leaves": w.chunks,
        "leaves_added_per_row": w.slots * w.grid,
        "instructions_share": w.issued / w.chip.issue / w.work,
        "waiting_share": w.chain / (w.work * w.resident),
        # directives
        "codes": w.codes,
        **{name: w[name] for name in ("cache_rows", "cache_trees", "row_layout")},
        "lane_trees": w["lane_trees"],
        "shared_reduce": w.shared_sums,
        "node_tile": w["node_tile"],
        # tiles are no layout of GPUs; pieces neither
        **{f"layout_{name}": w.name[name] for name in _LAYOUTS},
        # the forest
        "num_trees": f.n_trees,
        "num_outputs": f.n_outputs,
        "num_columns": f.n_columns,
        "row_bytes": f.row_bytes,
        "threshold_bytes": f.value_bytes,
        "leaf_value_bytes": f.leaf_bytes,
        "leaves_per_tree": f.leaves_per_tree,
        "tree_depth": f.tree_depth,
        "leaf_depth": f.leaf_depth,
        "max_depth": f.max_depth,
        "num_predicates": f.n_predicates,
        # the GPU
        "warp_size": w.warp,
        "shared_mem_limit": w.room,
        "register_limit": sm.registers * sm.parts,
    }
    shape = w.estimate.shape
    return {k: np.broadcast_to(np.float64(v), shape) for k, v in found.items()}


_LAYOUTS = ("sparse", "array", "reorg", "bitsliced", "lanes", "packed", "other")
