"""Features of (forest, schedule, batch size, target) for the cost model.

Adapts Appendix A of *Learning to Schedule Halide Pipelines for the GPU* to forests: a
stage is the traversal of all trees, a realization is one pass of the forest over a
block of rows, a scalar is one row in one tree. Nothing is lowered. The features are
computed for all schedules at once from numbers that describe the schedules
(``schedule_facts``) and the forest (``forest_facts``). ``docs/cost_model.md`` lists
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from skforge.compiler.cost.schedule_facts import FACTS, LAYOUTS, PLACE, facts_of
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.tuning.cost import forest_facts
from skforge.tuning.cost.forest_facts import SEARCH_NS, Featured, ForestFacts, Setting
from skforge.tuning.cost.gpu_occupancy import Limit
from skforge.tuning.cost.gpu_work import Array, GpuWork

#: Bytes of a node besides its threshold, for its feature and children.
NODE_EXTRA = 8
#: Approximate bytes of a node in the tiled layout.
TILED_NODE = 6.5

#: Costs in the estimate, in ns; guesses that the model corrects.
HOP_NS, CHECK_NS, TREE_NS, INSTRUCTION_NS = 1.6, 0.5, 1.0, 0.09
CALL_NS, BLOCK_NS = 30.0, 60.0


def featurize(setting: Setting, schedules: Iterable[Schedule]) -> Featured:
    """Return the features of schedules, legal or not; this takes microseconds each."""
    return from_facts(setting, facts_of(schedules))


def from_facts(setting: Setting, facts: Array) -> Featured:
    """Return the features of schedules from their facts."""
    if setting.target.is_gpu:
        work = GpuWork(setting, facts)
        return _featured([make(work) for make in _GPU_MAKERS.values()], work)
    view = View(setting, facts)
    return _featured([make(view) for make in _MAKERS.values()], view)


def _featured(columns: Sequence[Array | float], view: View | GpuWork) -> Featured:
    matrix = np.empty((len(view.facts), len(columns)))
    for i, column in enumerate(columns):
        matrix[:, i] = column
    return Featured(matrix, np.log(view.estimate))


def names_of(target: Target) -> Sequence[str]:
    """Return the names of a target's features, in the order of the columns."""
    return GPU_NAMES if target.is_gpu else NAMES


class View:
    """Intermediate values of the features, as columns over all schedules."""

    def __init__(self, setting: Setting, facts: Array) -> None:
        self.forest, self.target = setting.forest, setting.target
        self.n, self.threads = max(1, setting.n_rows), max(1, setting.n_threads)
        self.facts = facts
        f, n, trees = self.forest, float(self.n), float(max(1, self.forest.n_trees))
        blocks = np.maximum(self["row_blocks"], 1)
        block = np.where(self["row_block"] > 0, self["row_block"], np.ceil(n / blocks))
        self.block = block  # scheduled rows per block
        self.rows = np.minimum(block, n)  # actual rows per block
        self.blocks = np.ceil(n / block)
        tile = np.where(self["tree_block"] > 0, self["tree_block"], trees)
        tiles = np.where(self["tree_blocks"] > 0, self["tree_blocks"], 0)
        self.tree_tiles = np.where(tiles > 0, tiles, np.ceil(trees / tile))
        layout = self["layout"].astype(np.int64)
        name = {one: layout == i for i, one in enumerate(LAYOUTS)}
        self.bits = name["bitsliced"]
        self.lanes = name["lanes"]
        self.tiles = name["tiles"]
        self.tile_rows = self.tiles & (self["vector_trees"] > 0)
        self.tile_blocks = self.tiles & ~self.tile_rows
        self.walks = ~(self.bits | self.lanes | self.tiles)
        self.name = name
        self._walk_sizes(f, n, trees)
        self._bytes(f, trees)
        self._costs(f, n, trees)

    def __getitem__(self, name: str) -> Array:
        column: Array = self.facts[:, PLACE[name]]
        return column

    def _walk_sizes(self, f: ForestFacts, n: float, trees: float) -> None:
        rows, many = self["rows_in_flight"], self["trees_in_flight"]
        rows = np.where(rows < 0, self.rows, np.minimum(rows, self.rows))
        many = np.where(many < 0, trees, np.minimum(many, trees))
        lanes = self.target.vector_bits / (8.0 * f.threshold_bytes)
        vector = np.minimum(self["vector_rows"] * lanes, self.rows) * self.walks
        self.in_flight = np.maximum(1.0, np.maximum(np.maximum(rows, many), vector))
        levels = np.log2(self["node_tile"] + 1)
        unroll = np.minimum(self["unroll_walk"], f.max_depth)
        peel = np.minimum(self["peel_walk"], f.min_depth)
        padded = np.where(self["pad_trees"] > 0, float(f.max_depth), 0.0)
        self.unchecked = np.maximum(np.maximum(unroll, peel), padded)
        self.checked = np.maximum(f.tree_depth - self.unchecked, 0.0)
        deepest = self.unchecked + np.where(
            self.in_flight > 1,
            self.checked,
            np.maximum(f.walk_depth - self.unchecked, 0),
        )
        self.hops = np.where(self.walks, deepest / levels, f.walk_depth)
        self.padding = np.where(
            np.maximum(unroll, padded) > 0,
            2.0 ** np.minimum(np.maximum(unroll, padded), 30)
            / max(1.0, f.leaves_per_tree),
            1.0,
        )

    def _bytes(self, f: ForestFacts, trees: float) -> None:
        """Compute the bytes accessed by one block of rows, and by all blocks."""
        codes = np.maximum(self["codes"], self.lanes)
        self.row_bytes = self.rows * f.row_bytes
        self.code_bytes = codes * self.rows * 2 * f.n_columns
        self.table_bytes = self["cache_predicates"] * self.block * f.n_predicates / 8
        node = f.threshold_bytes + NODE_EXTRA
        complete = self.name["array"] | self.name["reorg"]
        slots = np.where(complete, trees * 2.0 ** min(f.max_depth, 40), f.inner_nodes)
        self.node_bytes = np.select(
            [self.bits, self.lanes, self.tiles],
            [4.0 * f.inner_nodes, 12.0 * f.inner_nodes, TILED_NODE * f.inner_nodes],
            node * slots * np.maximum(1.0, np.minimum(self.padding, 1e6)),
        )
        self.leaf_bytes = trees * f.leaves_per_tree * f.leaf_value_bytes
        self.tree_bytes = (self.node_bytes + self.leaf_bytes) / trees
        block = self.row_bytes + self.code_bytes + self.table_bytes
        self.near = block + self.tree_bytes  # data that is accessed repeatedly
        self.working_set = block + self.node_bytes + self.leaf_bytes
        self.passes = np.where(
            self["trees_outside"] > 0,
            1.0,
            np.where(self["rows_inside"] > 0, self.blocks, float(self.n)),
        )

    def _costs(self, f: ForestFacts, n: float, trees: float) -> None:
        """Estimate the time in ns per row by rules of thumb; a partial block counts."""
        larger = np.maximum(1.0, self.block / forest_facts.SMALL_BLOCK) ** 0.4
        bits = f.block_cost * INSTRUCTION_NS * larger * self.blocks / n
        overlap = np.minimum(self.in_flight, 12.0) ** 0.75
        wait = 12.0 / np.maximum(overlap, 1.0)
        walk = trees * (self.hops * (HOP_NS / 4 + wait / 4) + TREE_NS)
        walk += trees * self.checked * CHECK_NS
        walk += self["codes"] * SEARCH_NS * f.n_columns
        three = self["node_tile"] <= 7
        met = np.where(three, f.tile_hops_3, f.tile_hops_4)
        tiled = (
            trees * forest_facts.TILED_NS * (0.5 + 0.5 * met) + f.n_columns * SEARCH_NS
        )
        tiled *= np.maximum(1.0, 16.0 / self.rows)
        per_row = np.select(
            [self.bits, self.lanes, self.tile_rows, self.tile_blocks],
            [
                bits,
                np.broadcast_to(f.lanes_cost * INSTRUCTION_NS, len(bits)),
                np.broadcast_to(f.tile_row_cost * INSTRUCTION_NS, len(bits)),
                tiled,
            ],
            walk,
        )
        parallel = np.where(self["parallel_rows"] > 0, self.blocks, 1.0)
        self.tasks = parallel * np.where(self["parallel_trees"] > 0, self.tree_tiles, 1)
        share = np.ceil(self.tasks / self.threads) / self.tasks
        self.share = share
        self.waste = share * np.minimum(self.threads, self.tasks)
        calls = CALL_NS + BLOCK_NS * self.blocks
        self.estimate = np.maximum(per_row * share + calls / n, 1e-3)


def _l(view: View, name: str) -> float:
    return float(max(1, getattr(view.target, f"{name}_bytes")))


_Maker = Callable[[Any], "Array | float"]


def _facts(*names: str) -> dict[str, _Maker]:
    """Return makers of features that are facts of the schedule."""
    return {name: itemgetter(name) for name in names}


def _sizes(*names: str) -> dict[str, _Maker]:
    """Return makers of features that are facts of the forest."""
    return {name: _size(name) for name in names}


def _size(name: str) -> _Maker:
    return lambda view: float(getattr(view.forest, name))


def _layout(name: str) -> _Maker:
    return lambda view: view.name[name].astype(np.float64)


def _limit(name: Limit) -> _Maker:
    """Return how many times as many blocks a limit allows as are resident."""
    return lambda w: np.minimum(w.limits[name] / w.resident, 64.0)


#: Every feature by name; ``docs/cost_model.md`` describes them.
_MAKERS: dict[str, _Maker] = {
    # the whole
    "num_scalars": lambda v: float(v.n) * v.forest.n_trees,
    "num_rows": lambda v: float(v.n),
    "num_trees": _size("n_trees"),
    "num_realizations": lambda v: v.passes,
    "estimate": lambda v: np.log2(v.estimate),
    # tasks
    "num_tasks": lambda v: v.tasks,
    "points_computed_per_task": lambda v: v.rows * v.forest.n_trees / v.tree_tiles,
    "idle_core_wastage": lambda v: v.waste,
    "inner_parallelism": lambda v: float(v.threads),
    # lanes and walks in flight
    "walks_in_flight": lambda v: v.in_flight,
    "vector_lanes": lambda v: v.target.vector_bits / (8.0 * v.forest.threshold_bytes),
    "mask_registers": lambda v: float(v.target.has_mask_registers),
    "lane_utilization": lambda v: float(v.n) / (v.block * v.blocks),
    "idle_lane_wastage": lambda v: v.block * v.blocks - float(v.n),
    **_facts("vector_rows", "vector_trees"),
    # loops
    "block_rows": lambda v: v.block,
    "rows_in_block": lambda v: v.rows,
    "num_blocks": lambda v: v.blocks,
    "tree_tiles": lambda v: v.tree_tiles,
    "rows_innermost": lambda v: v["rows_inside"],
    "trees_outermost": lambda v: v["trees_outside"],
    "gpu_row_threads": lambda v: v["block_rows"],
    "gpu_tree_threads": lambda v: v["block_trees"],
    # hops
    "hops": lambda v: v.hops,
    "hops_unchecked": lambda v: v.unchecked,
    "hops_checked": lambda v: v.checked,
    "padding_share": lambda v: np.minimum(v.padding, 1e6),
    **_facts("node_tile", "probability_tiles"),
    "tile_hops": lambda v: np.where(
        v["node_tile"] <= 7, v.forest.tile_hops_3, v.forest.tile_hops_4
    ),
    # bytes
    "row_bytes_read_per_realization": lambda v: v.row_bytes,
    "code_bytes_read_per_realization": lambda v: v.code_bytes,
    "table_bytes_read_per_realization": lambda v: v.table_bytes,
    "node_bytes_read_per_realization": lambda v: v.node_bytes,
    "leaf_bytes_read_per_realization": lambda v: v.leaf_bytes,
    "bytes_at_task": lambda v: v.rows * v.forest.n_outputs * v.forest.leaf_value_bytes,
    "unique_bytes_read_per_tree": lambda v: v.tree_bytes,
    "working_set": lambda v: v.working_set,
    "working_set_at_l1": lambda v: v.near / _l(v, "l1"),
    "working_set_at_l2": lambda v: v.working_set / _l(v, "l2"),
    "working_set_at_l3": lambda v: v.working_set / _l(v, "l3"),
    "forest_bytes_read_per_row": lambda v: v.passes * v.node_bytes / v.n,
    # searches and tables
    "searches_per_row": lambda v: np.maximum(v["codes"], v.lanes) * v.forest.n_columns,
    "predicates_per_row": lambda v: (
        v["cache_predicates"] * v.forest.n_predicates * v.block * v.blocks / v.n
    ),
    **_facts("codes", "cache_rows", "cache_trees", "cache_predicates"),
    # the forest
    "num_predicates": lambda v: float(v.forest.n_predicates),
    "predicates_per_node": lambda v: (
        v.forest.n_predicates / max(1.0, float(v.forest.inner_nodes))
    ),
    "used_features": lambda v: float(v.forest.used_features),
    "num_columns": lambda v: float(v.forest.n_columns),
    **_sizes("row_bytes", "threshold_bytes", "leaf_value_bytes"),
    "num_outputs": lambda v: float(v.forest.n_outputs),
    **_sizes("category_share"),
    "missing_share": lambda v: v.forest.missing,
    **_sizes("leaves_per_tree", "most_leaves", "walk_depth", "tree_depth"),
    **_sizes("min_depth", "max_depth", "depth_spread", "folded_trees"),
    "block_cost_per_tree": lambda v: v.forest.block_cost / max(1, v.forest.n_trees),
    "lanes_cost_per_tree": lambda v: v.forest.lanes_cost / max(1, v.forest.n_trees),
    # layouts and sums
    **{f"layout_{name}": _layout(name) for name in LAYOUTS},
    **_facts("specialize", "reorder_trees", "splits", "unrolled_loops"),
    **_facts("shared_reduce", "vector_reduce"),
}

#: Every feature of GPU schedules: a *task* is a block, a *realization* is the walk of a
#: block's rows through its trees, and a *point* is one row in one tree.
_GPU_MAKERS: dict[str, _Maker] = {
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
    **_facts("peel_walk"),
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
    **_facts("cache_rows", "cache_trees", "row_layout", "lane_trees"),
    "shared_reduce": lambda w: w.shared_sums.astype(np.float64),
    **_facts("node_tile"),
    **{f"layout_{name}": _layout(name) for name in LAYOUTS if name != "tiles"},
    # the forest
    "num_trees": _size("n_trees"),
    "num_outputs": _size("n_outputs"),
    "num_columns": _size("n_columns"),
    **_sizes("row_bytes", "threshold_bytes", "leaf_value_bytes", "leaves_per_tree"),
    **_sizes("tree_depth", "leaf_depth", "max_depth"),
    "num_predicates": _size("n_predicates"),
    # the GPU
    "warp_size": lambda w: w.warp,
    "shared_mem_limit": lambda w: float(w.room),
    "register_limit": lambda w: float(w.processor.registers * w.processor.parts),
}

#: Names of the features, in the order of the columns.
NAMES: Sequence[str] = tuple(_MAKERS)
GPU_NAMES = tuple(_GPU_MAKERS)

__all__ = [
    "FACTS", "GPU_NAMES", "NAMES", "Featured", "Setting", "featurize", "from_facts",
    "names_of",
]  # fmt: skip
