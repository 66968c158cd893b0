"""How many threads a batch is worth, and the kernel that suits the rows of each.

A block of 512 rows costs nearly the same however many of them are real, so two threads
that share one batch of 512 rows take the kernel that one thread takes for 256.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from skforge.compiler.forest.forest import Forest
from skforge.compiler.layouts import base as representations
from skforge.compiler.runtime.cpu.threads import resolve_n_jobs
from skforge.compiler.schedule.bound import marked
from skforge.compiler.schedule.directives import Parallel
from skforge.compiler.schedule.schedule import Schedule

#: Nanoseconds of a call that are worth a thread. A worker that still spins costs 1 us
#: or less, one that sleeps 5 us (Emerald Rapids, two cores).
WORK_PER_THREAD = 10_000


class Share(NamedTuple):
    """How a batch is run: by which range's kernel, and on how many threads."""

    number: int
    threads: int


class _Facts(NamedTuple):
    """What the sharing of a range's kernel depends on."""

    step: int  # rows of a block that one thread takes whole
    parallel: bool
    row_ns: float  # approximate time of a row


class Shares:
    """The threads of a module's calls; ``schedules`` are those of its ranges."""

    def __init__(
        self, forest: Forest, schedules: Sequence[Schedule], first_rows: Sequence[int]
    ) -> None:
        self._forest, self._schedules = forest, schedules
        self._first_rows = first_rows
        depth = float(forest.tree_depths().mean()) if forest.n_trees else 1.0
        self._visits = forest.n_trees * max(1.0, depth)
        self._facts = lru_cache(maxsize=None)(self._find)

    def range_of(self, n_rows: int) -> int:
        """Return the range of a number of rows; between ranges, the lower one."""
        return max(0, bisect_right(self._first_rows, n_rows) - 1)

    def of(self, n_rows: int, n_jobs: int | None) -> Share:
        """Return how to run a batch on at most ``n_jobs`` threads."""
        number = self.range_of(n_rows)
        if n_jobs is None or n_jobs == 1:
            return Share(number, 1)
        most = int(n_rows * self._facts(number).row_ns / WORK_PER_THREAD)
        # Asking for the number of threads takes longer than a small batch.
        if most < 2 or number < self.first_shared:
            return Share(number, 1)
        threads = min(resolve_n_jobs(n_jobs), most)
        if self._schedules[number].kind == "cpu":
            number = max(self.range_of(-(-n_rows // threads)), self.first_shared)
        trips = -(-n_rows // self._facts(number).step)
        return Share(number, max(1, min(threads, trips)))

    def most_threads(self, n_jobs: int) -> int:
        """Return the most threads of any call."""
        shared = n_jobs != 1 and self.first_shared < len(self._schedules)
        return resolve_n_jobs(n_jobs) if shared else 1

    def entry_rows(self) -> int:
        """Return how many rows are worth a thread in every range that is shared."""
        least = min(self._facts(k).row_ns for k in range(len(self._schedules)))
        return max(1, int(WORK_PER_THREAD / least))

    @cached_property
    def first_shared(self) -> int:
        """The first of the ranges from which on all kernels have parallel loops."""
        alone = [k for k in range(len(self._schedules)) if not self._facts(k).parallel]
        return alone[-1] + 1 if alone else 0

    def _find(self, number: int) -> _Facts:
        nest = self._schedules[number].loop_nest(self._forest.n_trees)
        blocks = nest.loops[0] if len(nest.loops) == 1 else None
        step = 1
        if blocks is not None and blocks.root == "batch" and blocks.has(Parallel):
            step = blocks.step if isinstance(blocks.step, int) else 1
        chosen = representations.get(nest.representation)
        if isinstance(chosen, representations.BlockRepresentation):
            # These blocks may have fewer rows, so threads share them evenly.
            step = min(step, chosen.row_group or step)
        parallel = marked(nest.loops, Parallel)
        parallel = parallel or self._schedules[number].kind == "gpu"
        return _Facts(step, parallel, self._visits * chosen.visit_ns)
