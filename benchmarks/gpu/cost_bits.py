"""What shared predicates cost on a GPU, by the same model as ``cost.py``.

A group of trees is folded by a loop over groups: a thread does one tree for a word of
32 rows, then all look leaves up. Where trees of a model have several depths, that loop
holds code for each, of which a tree runs one: instructions are then an upper bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.chips import Chip
from benchmarks.gpu.cost_records import Cost, Made, batch_seconds
from benchmarks.gpu.counts import code_of
from benchmarks.gpu.deal import loops_of
from benchmarks.gpu.gpu_sass import Loop, all_loops, innermost, operations
from benchmarks.gpu.occupancy import occupancy
from benchmarks.gpu.reads import LANES
from skforge.compiler.cost.gpu import ANSWER, DEPENDENT, LEAF_CYCLES, marking
from skforge.compiler.forest.forest import Forest
from skforge.exceptions import ScheduleError


def cost_of_bits(
    forest: Forest,
    rows_given: NDArray[Any],
    chip: Chip,
    made: Made,
    batches: Sequence[int],
    name: str = "",
) -> Cost:
    """Compile shared predicates of a forest and model them."""
    if chip.is_amd:
        raise ScheduleError("instructions of bit logic are not counted here")
    code = code_of(made.plan.source, chip.counted)
    (launch,) = made.plan.launches()
    path = list(loops_of(made.hir.nest.loops))
    (block,) = (one.step for one in path if one.gpu == "grid.x")
    tiles = [one.step for one in path if one.root == "tree" and one.step != 1]
    rows, tile = int(cast(int, block)), int(cast(int, tiles[0])) if tiles else 0
    used = code.resources[launch.kernel]
    lines = code.lines[launch.kernel]
    groups, look_up, reads = group_loop(lines)
    threads, lanes = launch.threads, rows // 32
    group = threads // lanes
    n_trees = forest.n_trees
    n_groups = -(-n_trees // group)
    leaves = group * forest.n_leaves / max(1, n_trees)
    a_group = groups - look_up + group * look_up + 9 * leaves / threads
    tables = -(-n_trees // tile) if tile else 1
    tests = forest.n_predicates * (1 if tables == 1 else _repeated(forest, tile))
    columns = forest.n_features * tables
    fill = rows * marking(columns, tests) + tests * lanes * ANSWER
    instructions = (n_groups * a_group * threads + fill) / LANES
    near = (
        n_groups
        * threads
        / LANES
        * (reads + group * (1 + LEAF_CYCLES * rows / threads))
        + fill / LANES * 0.15
    )
    node_bytes = 2 * forest.n_nodes + 4 * forest.n_leaves
    far = node_bytes + rows_given.itemsize * forest.n_features * rows
    used_cycles = {
        "issue": instructions / chip.issue,
        "shared and L1": near,
        "l2": far / chip.l2_bytes_per_cycle,
    }
    held = occupancy(chip.arch, threads, used.registers, launch.shared_bytes)
    a_second = chip.processors * chip.clock
    walks = rows * n_trees
    bounds = {name: walks / cycles * a_second for name, cycles in used_cycles.items()}
    bytes_a_row = forest.n_features * rows_given.itemsize
    bounds["memory"] = chip.memory_bytes / bytes_a_row * n_trees
    depth = float(forest.tree_depths().mean())
    warps = max(1, held.warps)
    # A warp issues every other cycle at most where its instructions need each other.
    chain = instructions / (warps / max(1, held.blocks)) / DEPENDENT
    return Cost(
        name=name,
        schedule=repr(made.schedule),
        registers=used.registers,
        spill_bytes=used.spill_bytes,
        stack_bytes=used.stack_bytes,
        shared_bytes=launch.shared_bytes,
        threads=threads,
        occupancy=held.fraction,
        limit=held.limit,
        launches=1,
        instructions=instructions * LANES / walks / max(1.0, depth),
        hops=depth,
        node_cycles=reads / 32,
        row_cycles=0.0,
        bytes_a_row=far / rows,
        bounds=bounds,
        seconds={
            n: batch_seconds(
                -(-n // rows), 1, max(used_cycles.values()), chain, held.blocks, chip
            )
            for n in batches
        },
    )


def group_loop(lines: list[str]) -> tuple[float, float, float]:
    """Return instructions of the loop over groups, of its look-up, and reads."""
    names = operations(lines)

    def size(loop: Loop, *wanted: str) -> int:
        part = names[loop.first : loop.last + 1]
        return sum(name in wanted for name in part) if wanted else len(part)

    found = [one for one in all_loops(lines) if size(one, "LOP3") > 8]
    if not found:
        raise ScheduleError("no loop of its code folds trees")
    whole = max(found, key=lambda one: size(one, "LDS"))
    inside = [
        one
        for one in innermost(lines)
        if whole.first <= one.first and one.last <= whole.last
    ]
    adding = [one for one in inside if size(one, "FADD", "DADD")]
    look_up = size(adding[-1]) if adding else 0.0
    own = size(whole, "LDS") - (size(adding[-1], "LDS") if adding else 0)
    return float(size(whole)), float(look_up), float(own)


def _repeated(forest: Forest, tile: int) -> float:
    """Return in how many tables a predicate is, of tiles of trees with their own."""
    counts = [
        len(np.unique(part[part >= 0]))
        for part in (
            forest.predicate[forest.tree_offset[k] : forest.tree_offset[end]]
            for k in range(0, forest.n_trees, tile)
            for end in (min(k + tile, forest.n_trees),)
        )
    ]
    return sum(counts) / max(1, forest.n_predicates)
