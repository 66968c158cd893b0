"""The cost model of GPUs: a boosted forest that predicts the time of a schedule.

It predicts the logarithm of the ratio of a row's time to an estimate, so that its
predictions scale to forests larger than those it was trained on. The forest is stored
and run by skforge. CPUs have none: a trained one gained .3 % over the choices
of the estimate alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from os import PathLike
from pathlib import Path

import numpy as np

from skforge._container import read_container, write_container
from skforge._typing import Arrays, Float64s
from skforge._version import __version__
from skforge.compiler.cost.schedule_facts import facts_of
from skforge.compiler.cost.shape import Setting
from skforge.compiler.defaults.walks import walking_schedules
from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError, InvalidModelError
from skforge.forest.forest import Forest
from skforge.forest.record import forest_in, forest_out
from skforge.gpu.cost import GpuWork
from skforge.modules.compiled import CompiledModule, compile_forest
from skforge.runtime.records import entry
from skforge.schedule.schedule import Schedule


def features(w: GpuWork) -> dict[str, Float64s]:
    """Return features of (forest, schedule, batch size, GPU) for the cost model.

    Adapts Appendix A of *Learning to Schedule Halide Pipelines for the GPU* to forests;
    nothing is lowered. A stage is the traversal of all trees, a realization is one pass
    of the forest over a block of rows, and a scalar is one row in one tree.
    ``benchmarks/gpu/cost_model.md`` lists the features.
    """
    f, sm = w.forest, w.processor
    # How many times as many blocks a limit allows as are resident.
    slack = {k: np.minimum(v / w.resident, 64.0) for k, v in w.limits.items()}
    values = {
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
        "trees_per_thread": w.trees_per_thread,
        "points_computed_per_thread": w.each * w.trees_per_thread,
        "tree_threads": w.parts,
        "tree_blocks": w.grid,
        "row_lanes": w.row_lanes,
        "tree_lanes": w.tree_lanes,
        "walks_in_flight": w.in_flight,
        "walks_left_over": w.trees_per_thread % w.in_flight,
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
        # the other layouts are of CPUs
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
    return {k: np.broadcast_to(np.float64(v), shape) for k, v in values.items()}


_LAYOUTS = ("sparse", "array", "reorg", "other")


#: The shipped model, trained on times of an H100.
SHIPPED_GPU = Path(__file__).with_name("cost_model.skforge")


class CostModel:
    """Predicts the times of GPU schedules without running them.

    Parameters
    ----------
    forest : Forest
        Maps the features to the error of the estimate, in natural logarithms.
    facts : mapping of str to float
        Facts about its training: ``margin`` is the predicted speedup at which a
        schedule is preferred to the default; each architecture with a fact of its name
        ("sm_90") is one that the model was trained for.
    names : iterable of str, optional
        The names of the features it was trained on; by default those of the forest.

    Raises
    ------
    InvalidModelError
        If it was trained on other features than this version of skforge uses: here or
        at the first prediction.
    """

    def __init__(
        self,
        forest: Forest,
        facts: Mapping[str, float] | None = None,
        names: Iterable[str] = (),
    ) -> None:
        self.names = tuple(names) or forest.feature_names or ()
        if forest.n_features != len(self.names):
            raise InvalidModelError(OTHER_FEATURES)
        self.forest = replace(forest, feature_names=self.names)
        self.facts = dict(facts or {})
        self._module: CompiledModule | None = None

    # ------------------------------------------------------------------ files

    @classmethod
    def shipped(cls, target: Target | None = None) -> CostModel | None:
        """Return the shipped model for a target; None if it was not trained for it."""
        if target is None or not target.is_gpu:
            return None
        model = _shipped(SHIPPED_GPU)
        return model if model.knows(target) else None

    def knows(self, target: Target) -> bool:
        """Return whether the model was trained for such targets."""
        return target.is_gpu and target.cpu in self.facts

    @classmethod
    def load(cls, path: str | PathLike[str]) -> CostModel:
        """Read a model from a file: arrays and numbers, all of them checked."""
        if os.path.exists(path) and not os.path.isfile(path):
            raise InvalidModelError(f"{os.fspath(path)} is not a regular file.")
        manifest, arrays = read_container(path)
        forest = forest_in(entry(manifest, "forest", dict), arrays)
        facts = entry(manifest, "facts", dict)
        return cls(forest, {name: float(entry(facts, name, float)) for name in facts})

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model to a file."""
        arrays: Arrays = {}
        manifest = {"skforge_version": __version__, "kind": "cost model"}
        record = forest_out(self.forest, arrays)
        write_container(
            path, {**manifest, "facts": self.facts, "forest": record}, arrays
        )

    # ------------------------------------------------------------- prediction

    def seconds(self, setting: Setting, schedules: Iterable[Schedule]) -> Float64s:
        """Return the predicted seconds per call for each schedule.

        Parameters
        ----------
        setting : Setting
            Forest, GPU and rows.
        schedules : iterable of Schedule
            Legal schedules; predictions for others are meaningless.

        Raises
        ------
        InvalidInputError
            If the target is no GPU.
        """
        if not setting.target.is_gpu:
            raise InvalidInputError(
                "cost models are for GPUs; on a CPU, leave out the model: the search "
                "begins with the estimate of the default schedules."
            )
        log_row = self.log_row(GpuWork(setting, facts_of(schedules)))
        return np.asarray(np.exp(log_row) * 1e-9 * setting.n_rows)

    def log_row(self, work: GpuWork) -> Float64s:
        """Return the predicted natural logarithm of the nanoseconds per row."""
        if not len(work.estimate):
            return np.zeros(0)
        if self._module is None:
            # One kernel for all: a second takes longer to compile than it would save.
            target = Target.host()
            schedule = walking_schedules(self.forest, target)[128, 2048]
            self._module = compile_forest(self.forest, schedule, target)
        columns = features(work)
        if not columns.keys() >= set(self.names):
            raise InvalidModelError(OTHER_FEATURES)
        matrix = np.column_stack([columns[name] for name in self.names])
        error = self._module.predict_raw(matrix).reshape(-1)
        return np.asarray(np.log(work.estimate) + error)


OTHER_FEATURES = (
    "the cost model was trained on other features than this version of skforge uses; "
    "train it again with benchmarks/gpu/train.py."
)


_shipped = lru_cache(maxsize=1)(CostModel.load)


__all__ = ["SHIPPED_GPU", "CostModel"]
