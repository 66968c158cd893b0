"""Features of (forest, schedule, batch size, target) for the cost model.

Adapts Appendix A of *Learning to Schedule Halide Pipelines for the GPU* to forests;
nothing is lowered. On a CPU, they are the terms of the estimate that chooses the static
defaults, which say where the time goes, and the schedule's directives. On a GPU, a
stage is the traversal of all trees, a realization is one pass of the forest over a
block of rows, and a scalar is one row in one tree. ``docs/cost_model.md`` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from skforge.compiler.cost.counts import ForestCounts
from skforge.compiler.cost.estimate import COEFFICIENTS, CostEstimate, Plan, plan_of
from skforge.compiler.cost.gpu import Array, GpuWork
from skforge.compiler.cost.occupancy import Limit
from skforge.compiler.cost.schedule_facts import FACTS, LAYOUTS, PLACE, facts_of
from skforge.compiler.cost.shape import Setting
from skforge.compiler.schedule.schedule import Schedule

#: Facts of CPU schedules, and the terms of their estimates.
_DIRECTIVES = FACTS[: FACTS.index("layout")]
_TERMS = tuple(sorted({name for own in COEFFICIENTS.values() for name in own}))

#: Layouts that features tell apart: pieces have terms of their own, GPUs have none.
_LAYOUTS = tuple(name for name in LAYOUTS if name != "pieces")

#: Names of the features of CPU schedules, in the order of the columns.
NAMES = (
    *("estimate", "num_rows", "num_trees", "inner_parallelism", "num_tasks"),
    *(f"ns_of_{name}" for name in _TERMS),
    *_DIRECTIVES,
    *(f"layout_{name}" for name in _LAYOUTS),
)


@dataclass(frozen=True, slots=True)
class Featured:
    """Features of schedules, and estimates of their times."""

    #: A row for each schedule, in the order of ``NAMES`` or ``GPU_NAMES``.
    matrix: Array
    #: Natural logarithm of the estimated ns per row; the model learns the error.
    log_estimate: Array


def featurize(setting: Setting, schedules: Iterable[Schedule]) -> Featured:
    """Return the features of schedules, legal or not; this takes microseconds each."""
    schedules = list(schedules)
    facts = facts_of(schedules)
    if setting.target.is_gpu:
        return from_facts(setting, facts)
    assert isinstance(setting.forest, ForestCounts)
    estimate = CostEstimate(setting.forest, setting.target)
    estimated: dict[Plan, list[float]] = {}
    parts = []
    for schedule in schedules:
        # Representations of other packages are taken for walks.
        plan = plan_of(schedule) or plan_of(Schedule())
        assert plan is not None
        if plan not in estimated:
            estimated[plan] = _estimated(estimate, setting, plan)
        parts.append(estimated[plan])
    columns = np.reshape(parts, (len(parts), len(NAMES) - len(_DIRECTIVES + _LAYOUTS)))
    numbers = [LAYOUTS.index(name) for name in _LAYOUTS]
    layouts = facts[:, [PLACE["layout"]]] == numbers
    matrix = np.hstack([columns, facts[:, : len(_DIRECTIVES)], layouts])
    return Featured(matrix, np.log(2.0) * matrix[:, 0])


def _estimated(estimate: CostEstimate, setting: Setting, plan: Plan) -> list[float]:
    """Return the features of a plan: what the estimate says of it, in ns a row."""
    n = np.array(max(1.0, setting.n_rows))
    share = estimate.share(plan, n, setting.n_threads)
    parts = {k: float(v * share / n) for k, v in estimate.parts(plan, n).items()}
    total = max(sum(parts.values()), 1e-3)
    trees, tasks = setting.forest.n_trees, plan.tasks(n, setting.forest.n_trees)
    sizes = np.log2(total), float(n), trees, setting.n_threads, tasks
    return [*map(float, sizes), *(parts.get(name, 0.0) for name in _TERMS)]


def from_facts(setting: Setting, facts: Array) -> Featured:
    """Return the features of schedules for a GPU from their facts."""
    work = GpuWork(setting, facts)
    matrix = np.empty((len(facts), len(_GPU_MAKERS)))
    for column, make in zip(matrix.T, _GPU_MAKERS.values(), strict=True):
        column[:] = make(work)
    return Featured(matrix, np.log(work.estimate))


_Maker = Callable[[Any], "Array | float"]


def _work(**attributes: str) -> dict[str, _Maker]:
    """Return makers of features that are attributes of the work."""
    return {name: attrgetter(of) for name, of in attributes.items()}


def _forest(**attributes: str) -> dict[str, _Maker]:
    """Return makers of features that are sizes of the forest."""
    return _work(**{name: f"forest.{of}" for name, of in attributes.items()})


def _facts(*names: str) -> dict[str, _Maker]:
    """Return makers of features that are facts of the schedule."""
    return {name: itemgetter(name) for name in names}


def _layout(name: str) -> _Maker:
    return lambda w: w.name[name]


def _limit(name: Limit) -> _Maker:
    """Return how many times as many blocks a limit allows as are resident."""
    return lambda w: np.minimum(w.limits[name] / w.resident, 64.0)


#: Every feature of GPU schedules: a *task* is a block, a *realization* is the walk of a
#: block's rows through its trees, and a *point* is one row in one tree.
_GPU_MAKERS: dict[str, _Maker] = {
    # the whole
    "estimate": lambda w: np.log2(w.estimate),
    **_work(num_rows="n"),
    "num_scalars": lambda w: w.n * w.forest.n_trees,
    **_work(num_launches="launches"),
    # blocks on multiprocessors
    **_work(num_cores="processors", num_blocks="blocks"),
    "blocks_per_core": lambda w: w.blocks / w.processors,
    **_work(num_waves="waves"),
    "wave_tail": lambda w: w.waves * w.resident * w.processors / w.blocks,
    "idle_core_wastage": lambda w: w.on_one * w.processors / w.blocks,
    # threads and lanes
    **_work(num_threads_per_block="threads", num_warps_per_block="warps"),
    **_work(warp_lane_utilization="lanes", tree_utilization="busy"),
    **_work(row_utilization="filled", rows_per_block="rows", rows_per_thread="each"),
    **_work(trees_per_thread="own"),
    "points_computed_per_thread": lambda w: w.each * w.own,
    **_work(tree_threads="parts", tree_blocks="grid", row_lanes="row_lanes"),
    **_work(tree_lanes="tree_lanes", walks_in_flight="in_flight"),
    "walks_left_over": lambda w: w.own % w.in_flight,
    # occupancy
    **_work(max_warp_occupancy="occupancy"),
    "max_block_occupancy": lambda w: w.resident / w.processor.blocks,
    "active_warps": lambda w: np.minimum(w.resident, w.on_one) * w.warps,
    "thread_block_limit_factor": _limit("warps"),
    "register_block_limit_factor": _limit("registers"),
    "shared_mem_block_limit_factor": _limit("shared memory"),
    "shared_mem_occupancy": lambda w: w.shared / max(1, w.room),
    **_work(working_set_at_thread="registers"),
    # reads and writes
    **_work(hops="hops", hops_unchecked="unrolled"),
    **_facts("peel_walk"),
    **_work(num_instructions_per_block="issued", num_shared_mem_loads_per_block="near"),
    "num_global_mem_loads_per_block": lambda w: w.far / 32,
    **_work(cycles_waited_per_block="chain"),
    **_work(node_load_cycles="node_cycles", row_load_cycles="row_cycles"),
    "global_lines_of_nodes": lambda w: w.node_lines * ~w.near_trees,
    "global_lines_of_rows": lambda w: w.row_lines * ~w.near_rows,
    **_work(node_words="words", nodes_beyond_l1="spilled"),
    **_work(node_bytes_read_per_realization="node_bytes", shared_row_bytes="row_bytes"),
    **_work(shared_node_bytes="tree_bytes", chunks_of_leaves="chunks"),
    "leaves_added_per_row": lambda w: w.slots * w.grid,
    "instructions_share": lambda w: w.issued / w.chip.issue / w.work,
    "waiting_share": lambda w: w.chain / (w.work * w.resident),
    # directives
    **_work(codes="codes"),
    **_facts("cache_rows", "cache_trees", "row_layout", "lane_trees"),
    **_work(shared_reduce="shared_sums"),
    **_facts("node_tile"),
    **{f"layout_{name}": _layout(name) for name in _LAYOUTS if name != "tiles"},
    # the forest
    **_forest(num_trees="n_trees", num_outputs="n_outputs", num_columns="n_columns"),
    **_forest(row_bytes="row_bytes", threshold_bytes="value_bytes"),
    **_forest(leaf_value_bytes="leaf_bytes", leaves_per_tree="leaves_per_tree"),
    **_forest(tree_depth="tree_depth", leaf_depth="leaf_depth", max_depth="max_depth"),
    **_forest(num_predicates="n_predicates"),
    # the GPU
    **_work(warp_size="warp", shared_mem_limit="room"),
    "register_limit": lambda w: float(w.processor.registers * w.processor.parts),
}

#: Names of the features of GPU schedules, in the order of the columns.
GPU_NAMES = tuple(_GPU_MAKERS)

__all__ = [
    "FACTS", "GPU_NAMES", "NAMES", "Featured", "Setting", "featurize", "from_facts",
]  # fmt: skip
