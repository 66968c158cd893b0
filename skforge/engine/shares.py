"""How many threads a batch is worth, and the kernel that suits the rows of each.

A kernel takes some rows whole: 256 rows in a block of 512 cost as much as 512. So the
threads that share a batch may take another kernel than one thread does, or leave the
batch to one. The cost estimate says how long the largest share takes, and a plan keeps
the fastest way to run each batch size.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from skforge._compat import cached_property
from skforge._typing import Float64s
from skforge.engine.cpu.threads import resolve_n_jobs, thread_limit
from skforge.forest.forest import Forest
from skforge.runtime.entries import ShareTable
from skforge.schedule.schedule import Schedule

if TYPE_CHECKING:
    from skforge.compiler.cost.estimate import CostEstimate

#: Seconds to share a batch, for each doubling of its threads. A worker that still spins
#: costs 1 us, one that sleeps 5 (Emerald Rapids, two cores).
WAKE = 5e-6

#: The share of one thread's time that several must be estimated to save, with the same
#: kernel and with another. Nine of ten estimates lie within a factor of 1.5: a block of
#: 128 rows was estimated at 43 us and takes 32, half a block of 512 at 0.7 of a whole
#: one and takes 0.8 to 0.9 (500 trees of depth 6, Emerald Rapids).
SAVED, SAVED_BY_ANOTHER = 0.25, 0.35

#: Most seconds of a row on a level of a tree: what takes less than twice ``WAKE`` at
#: this speed is not estimated. A walk of 100 trees of depth 8 takes 0.7 ns.
SLOWEST_VISIT = 5e-9

#: Seconds of a row on a level of a tree by a schedule that is not estimated: a walk's.
UNKNOWN_VISIT = 0.7e-9

#: Batch sizes of a plan to each doubling, and the largest: larger batches run like it.
PER_DOUBLING, LARGEST = 8, 1 << 20

#: Most numbers of threads that a plan compares.
MOST_COUNTS = 24


class Share(NamedTuple):
    """How a batch is run: by which range's kernel, and on how many threads."""

    number: int
    threads: int


@dataclass(frozen=True)
class _Loop:
    """What a kernel's parallel loops deal out: blocks of rows, tiles of trees."""

    block: int  # rows of an iteration; 0: the loop is not over rows
    group: int  # blocks may be as small as this; 0: all but the last are whole
    tiles: int = 1  # tiles of trees dealt out with each block of rows

    def largest(self, rows: Float64s, threads: Float64s) -> Float64s:
        """Return the rows of the largest share; part of the trees counts as such."""
        if not self.block:
            return rows / threads
        blocks = np.ceil(rows / self.block)
        each, block = np.ceil(blocks / threads), np.float64(self.block)
        if self.tiles > 1:
            most = np.ceil(blocks * self.tiles / threads) / self.tiles
            return np.maximum(1, most * np.minimum(block, rows))
        if self.group:
            even = np.ceil(rows / (each * threads) / self.group) * self.group
            block = np.minimum(even, self.block)
        return np.minimum(rows, each * block)


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """From which batch size on a batch is run how; None: on one thread."""

    firsts: list[int]
    shares: list[Share | None]

    def of(self, n_rows: int) -> Share | None:
        index = bisect_right(self.firsts, n_rows) - 1
        return self.shares[index] if index >= 0 else None

    @property
    def first_shared(self) -> int:
        steps = zip(self.firsts, self.shares, strict=True)
        return min((n for n, share in steps if share is not None), default=sys.maxsize)


class Shares:
    """The threads of a module's calls, whose ranges have schedules and first rows.

    ``estimate`` returns the estimate of the forest, which takes milliseconds to make,
    and keeps it. It is asked for when a batch may first be worth several threads.
    """

    def __init__(
        self,
        forest: Forest,
        schedules: Sequence[Schedule],
        first_rows: Sequence[int],
        estimate: Callable[[], CostEstimate] | None,
    ) -> None:
        self._forest, self._schedules = forest, schedules
        self._first_rows, self._estimate = first_rows, estimate
        self._visits = forest.n_trees * max(1.0, forest.mean_depth())
        self._first_shared: dict[int, int] = {}  # by n_jobs
        # joblib takes 10 us for the number of threads, and 90 for -1.
        self._wanted = lru_cache(maxsize=None)(resolve_n_jobs)
        self._plans: dict[int, ThreadPlan] = {}  # by threads
        self._tables: dict[int, ShareTable] = {}

    def range_of(self, n_rows: int) -> int:
        return max(0, bisect_right(self._first_rows, n_rows) - 1)

    def of(self, n_rows: int, n_jobs: int | None) -> Share:
        if n_jobs is None or n_jobs == 1:
            return Share(self.range_of(n_rows), 1)
        shared = n_rows >= self._first_shared.get(n_jobs, self.least_rows)
        share = self._planned(n_rows, n_jobs) if shared else None
        return share or Share(self.range_of(n_rows), 1)

    def _planned(self, n_rows: int, n_jobs: int) -> Share | None:
        wanted, limit = self._wanted(n_jobs), thread_limit()
        self._first_shared[n_jobs] = self.plan(wanted).first_shared
        threads = wanted if limit is None else min(wanted, limit())
        plan, table = self.plan(threads), self._tables.get(wanted)
        if table is not None and table.threads != threads > 1:
            table.fill(plan.firsts, plan.shares, threads)
        return plan.of(n_rows)

    def most_threads(self, n_jobs: int) -> int:
        wanted = self._wanted(n_jobs)
        return 1 if wanted == 1 or self.least_rows == sys.maxsize else wanted

    def table(self, n_jobs: int) -> ShareTable:
        table = self._tables.get(n_jobs)
        if table is None:
            table = self._tables.setdefault(n_jobs, ShareTable(self.least_rows))
            self._first_shared.clear()  # so that the next call fills it
        return table

    @cached_property
    def least_rows(self) -> int:
        if not self._visits or not self.loops:
            return sys.maxsize
        return max(2, int(2 * WAKE / (self._visits * SLOWEST_VISIT)))

    @cached_property
    def loops(self) -> dict[int, _Loop]:
        loops = {k: self._loop(schedule) for k, schedule in enumerate(self._schedules)}
        return {k: loop for k, loop in loops.items() if loop is not None}

    def _loop(self, schedule: Schedule) -> _Loop | None:
        from skforge.compiler.layouts import base as representations
        from skforge.schedule.bound import marked
        from skforge.schedule.directives import Parallel, Quantize

        nest = schedule.loop_nest(self._forest.n_trees)
        if schedule.kind == "cpu" and not marked(nest.loops, Parallel):
            return None
        blocks = nest.loops[0] if len(nest.loops) == 1 else None
        if blocks is None or blocks.root != "batch" or not blocks.has(Parallel):
            return _Loop(0, 0)
        step = blocks.step if isinstance(blocks.step, int) else 0
        chosen = representations.get(nest.representation)
        if isinstance(chosen, representations.BlockRepresentation):
            return _Loop(step, chosen.row_group)
        inner = blocks.body[0] if len(blocks.body) == 1 else blocks
        # Codes of a block are made before its trees, which threads then do not share.
        both = inner.root == "tree" and inner.has(Parallel) and not blocks.has(Quantize)
        return _Loop(step, 0, (inner.max_trips or 1) if both else 1)

    def plan(self, threads: int) -> ThreadPlan:
        plan = self._plans.get(threads)
        if plan is None:
            plan = self._made(threads) if threads > 1 else ThreadPlan([0], [None])
            self._plans[threads] = plan
        return plan

    def _made(self, threads: int) -> ThreadPlan:
        steps = int(PER_DOUBLING * max(0.0, np.log2(LARGEST / self.least_rows))) + 1
        exact = self.least_rows * 2.0 ** (np.arange(steps) / PER_DOUBLING)
        sizes = np.unique(np.floor(exact))
        counts = np.unique(np.round(np.geomspace(2, threads, MOST_COUNTS)))[:, None]
        rows = {k: loop.largest(sizes, counts) for k, loop in self.loops.items()}
        every = np.unique(np.concatenate([sizes, *(r.ravel() for r in rows.values())]))
        numbers = np.searchsorted(self._first_rows[1:], every, "right")
        estimated = np.array([self._seconds(s, every) for s in self._schedules])
        known = np.isfinite(estimated).all(1)
        unknown = every * self._visits * UNKNOWN_VISIT
        seconds = np.where(known[:, None], estimated, unknown)
        alone = seconds[numbers, np.arange(len(every))]
        now = np.searchsorted(every, sizes)
        best = alone[now]
        chosen: list[Share | None] = [None] * len(sizes)
        for number, of_share in rows.items():
            indices = np.searchsorted(every, of_share)
            # No kernel is faster than the one that the ranges have for these rows.
            times = np.maximum(seconds[number], alone)[indices]
            times = times + WAKE * np.ceil(np.log2(counts))
            another = 1 / (1 - SAVED_BY_ANOTHER) if known[number] else np.inf
            times *= np.where(numbers[now] == number, 1 / (1 - SAVED), another)
            for i in np.flatnonzero(times.min(0) < best):
                chosen[i] = Share(number, int(counts[times[:, i].argmin(), 0]))
                best[i] = times[:, i].min()
        firsts: list[int] = []
        shares: list[Share | None] = []
        for size, share in zip(sizes, chosen, strict=True):
            if not shares or share != shares[-1]:
                firsts.append(int(size))
                shares.append(share)
        return ThreadPlan(firsts, shares)

    def _seconds(self, schedule: Schedule, rows: Float64s) -> Float64s:
        if self._estimate is None:
            return np.full_like(rows, np.inf)
        return self._estimate().seconds(schedule, rows)
