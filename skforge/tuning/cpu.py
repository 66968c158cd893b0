"""CPUs: what :mod:`skforge.tuning.machines` asks of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

import numpy as np

from skforge._typing import Bools
from skforge.compiler.cost.estimate import CostEstimate, plan_of
from skforge.compiler.cost.schedule_facts import LAYOUTS, PLACE, facts_of
from skforge.compiler.cost.shape import Setting
from skforge.compiler.defaults.cpu import TABLE_LIMIT
from skforge.engine import machine
from skforge.schedule.schedule import Schedule
from skforge.tuning.machines import FOREST_BYTES, SearchedMachine
from skforge.tuning.search import heuristic, odds
from skforge.tuning.search.strategies import Problem
from skforge.tuning.space.space import ScheduleSpace

#: Bytes of a node besides its threshold.
NODE_EXTRA = 8


def pruned(setting: Setting, schedules: Sequence[Schedule]) -> dict[str, Bools]:
    """Return which schedules are left out before they are scored, by the reason.

    Padding, long walks and threads without work need no rules on a CPU: the estimate
    counts them, or the search learns that its kind is slow.
    """
    facts = facts_of(schedules)
    forest, n = setting.forest, max(1, setting.n_rows)
    of = {name: facts[:, at] for name, at in PLACE.items()}
    walks = np.array(
        [odds.kind_of(s)[0] in (odds.WALK, "other") for s in schedules], bool
    )
    unrolled = np.where(of["pad_trees"] > 0, forest.max_depth, of["unroll_walk"])
    unrolled = np.minimum(unrolled, forest.max_depth)
    whole = np.isin(of["layout"], [LAYOUTS.index("array"), LAYOUTS.index("reorg")])
    complete = forest.n_trees * 2.0 ** min(forest.max_depth, 40)
    nodes = np.where(whole, complete, float(forest.inner_nodes))
    padding = 2.0 ** np.minimum(unrolled, 30) / max(1.0, forest.leaves_per_tree)
    size = nodes * np.maximum(1.0, padding) * (forest.value_bytes + NODE_EXTRA)
    block = np.where(of["row_block"] > 0, of["row_block"], n)
    in_tiles = of["cache_predicates"] == 2
    tile = np.where(in_tiles, of["tree_block"], forest.n_trees)
    part = np.minimum(1, tile / max(1, forest.n_trees))
    table = (of["cache_predicates"] > 0) * block * part * forest.n_predicates / 8
    kinds = heuristic.allowed_kinds(forest, setting.target)
    allowed = [heuristic.allows(schedule, kinds) for schedule in schedules]
    return {
        "its trees or tables take too much memory": (walks & (size > FOREST_BYTES))
        | (table > TABLE_LIMIT),
        "its tiles of trees have all trees": in_tiles & (tile >= forest.n_trees),
        "this forest does not allow such walks": ~np.array(allowed, bool),
    }


def estimate_of(problem: Problem) -> CostEstimate:
    profile = machine.machine_profile(problem.target)
    return CostEstimate(problem.shape, problem.target, profile)


def estimated(problem: Problem) -> odds.Estimated:
    estimate, n_threads = estimate_of(problem), problem.n_threads

    def seconds(schedules: Sequence[Schedule], n: int) -> list[float]:
        # Many schedules are one to the estimate, which takes .1 ms.
        plans = [*map(plan_of, schedules)]
        alike = dict(zip(plans, schedules, strict=True))
        one = {p: estimate.seconds(s, n, n_threads) for p, s in alike.items()}
        return [float(one[plan]) for plan in plans]

    return seconds


MACHINE = SearchedMachine(
    budget=4.0,
    space=lambda n_threads, _: ScheduleSpace.cpu(threads=n_threads > 1),
    rounds=heuristic.cpu_rounds,
    pruned=pruned,
    estimated=estimated,
    speed=lambda target: astuple(machine.machine_profile(target)),
)
