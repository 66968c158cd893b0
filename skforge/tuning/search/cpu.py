"""Estimates of a CPU's schedules, and which are not worth one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skforge._typing import Bools
from skforge.compiler.cost.estimate import CostEstimate, plan_of
from skforge.compiler.cost.schedule_facts import LAYOUTS, PLACE, facts_of
from skforge.compiler.cost.shape import ForestShape, Setting
from skforge.compiler.defaults.cpu import TABLE_LIMIT, candidates
from skforge.compiler.runtime.machine import machine_profile
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.tuning.machines import FOREST_BYTES
from skforge.tuning.search import odds
from skforge.tuning.search.strategies import Problem

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
    table = (of["cache_predicates"] > 0) * block * forest.n_predicates / 8
    kinds = allowed_kinds(forest, setting.target)
    allowed = [allows(schedule, kinds) for schedule in schedules]
    return {
        "its trees or tables take too much memory": (walks & (size > FOREST_BYTES))
        | (table > TABLE_LIMIT),
        "this forest does not allow such walks": ~np.array(allowed, bool),
    }


def allowed_kinds(forest: ForestShape, target: Target) -> set[odds.CandidateKind]:
    return {*map(odds.kind_of, candidates(forest, target))}


def allows(schedule: Schedule, kinds: set[odds.CandidateKind]) -> bool:
    kind = odds.kind_of(schedule)
    return kind[0] in (odds.WALK, "other") or kind in kinds


def estimate_of(problem: Problem) -> CostEstimate:
    return CostEstimate(problem.shape, problem.target, machine_profile(problem.target))


def estimated(problem: Problem) -> odds.Estimated:
    estimate, n_threads = estimate_of(problem), problem.n_threads

    def seconds(schedules: Sequence[Schedule], n: int) -> list[float]:
        # Many schedules are one to the estimate, which takes .1 ms.
        plans = [*map(plan_of, schedules)]
        alike = dict(zip(plans, schedules, strict=True))
        one = {p: estimate.seconds(s, n, n_threads) for p, s in alike.items()}
        return [float(one[plan]) for plan in plans]

    return seconds
