"""What the terms of an estimate read: a schedule's sizes, a forest's, a machine's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from skforge.compiler.cost.counts import ForestCounts
from skforge.compiler.cost.profile import MachineProfile
from skforge.compiler.cost.reach import LINE, Counts, Reach
from skforge.compiler.cost.schedule_facts import LAYOUTS, PLACE, facts_of
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target

#: Ways to pass rows through trees; "values" are tiles that compare values, "rows" and
#: "trees" are walks with rows or trees in flight.
Kind: TypeAlias = Literal[
    "bitsliced", "lanes", "tiles", "values", "tile-row", "rows", "trees"
]

#: Calls, and rows at least, after which the rows of a measurement repeat
#: (``tuning/measure/rows.py``); walks whose branches a CPU has learned by then.
CALLS, DISTINCT_ROWS, LEARNED_WALKS = 256, 1024, 8192

#: Bytes of a page of memory.
PAGE = 4096


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a schedule that its time depends on."""

    kind: Kind
    block: int  # rows of a block; 0: the whole batch
    levels: int  # levels of a tile
    in_flight: int  # walks in flight
    unchecked: int  # hops without leaf checks
    padded: bool  # whether trees are padded to these
    fetched: bool  # whether rows are prefetched
    parallel: bool  # whether threads share rows
    tree_tiles: int  # tiles of trees that threads share; 0: they share none
    tree_tile: int  # or the trees of each

    def tasks(self, n: Counts, n_trees: int) -> Counts:
        """Return the tasks of calls of ``n`` rows that threads share."""
        rows = np.ceil(n / (self.block or 1)) if self.parallel else np.ones_like(n)
        if not self.tree_tile:
            return rows
        return rows * (self.tree_tiles or -(-n_trees // self.tree_tile))


@lru_cache(maxsize=4096)
def plan_of(schedule: Schedule) -> Plan | None:
    """Return the sizes of a CPU schedule; None for one that is not estimated."""
    fact = dict(zip(PLACE, facts_of([schedule])[0].tolist(), strict=True))
    if fact["block_rows"] or fact["block_trees"]:  # for GPUs
        return None
    layout = LAYOUTS[int(fact["layout"])]
    kind: Kind
    if layout == "bitsliced":
        kind = "bitsliced"
    elif layout == "lanes":
        kind = "lanes"
    elif layout == "tiles":
        by_row = fact["vector_trees"] > 0
        kind = "tile-row" if by_row else "tiles" if fact["codes"] else "values"
    elif layout == "other":
        return None
    else:
        kind = "rows" if fact["rows_inside"] else "trees"
    return Plan(
        kind,
        int(fact["row_block"]),
        round(math.log2(fact["node_tile"] + 1)),
        int(max(fact["rows_in_flight"], fact["trees_in_flight"])),
        int(max(fact["unroll_walk"], fact["peel_walk"])),
        fact["unroll_walk"] > 0,
        fact["cache_rows"] > 0,
        fact["parallel_rows"] > 0,
        int(fact["parallel_trees"] and fact["tree_blocks"]),
        int(fact["parallel_trees"] and max(1, fact["tree_block"])),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Calls of several sizes: a plan, the forest, the machine and numbers of rows."""

    plan: Plan
    forest: ForestCounts
    machine: MachineProfile
    target: Target
    n: Counts

    @property
    def block(self) -> Counts:
        """Rows of a block."""
        return self.n if not self.plan.block else np.full_like(self.n, self.plan.block)

    @property
    def blocks(self) -> Counts:
        """Blocks of rows, the last one partial."""
        return np.ceil(self.n / self.block)

    def rows(self, multiple: int) -> Counts:
        """Return the rows, those of the last block rounded up to a multiple."""
        whole, rest = np.divmod(self.n, self.block)
        last = np.minimum(self.block, np.ceil(rest / multiple) * multiple)
        return np.asarray(whole * self.block + last)

    @property
    def again(self) -> Counts:
        """Rows of the calls that follow each other before rows are met again."""
        return np.maximum(self.n, np.minimum(CALLS * self.n, DISTINCT_ROWS))

    @property
    def surprise(self) -> Counts:
        """The share of walks whose ends a CPU does not foresee: it learns a few."""
        return np.minimum(1.0, self.again * self.forest.trees / LEARNED_WALKS)

    def met(self, lines: Reach) -> Counts:
        """Return the bytes of lines that the rows of some calls reach."""
        return lines.distinct(self.again) * LINE

    def line(self, size: float | Counts) -> float | Counts:
        """Return the ns to read a cache line of data of ``size`` bytes in order."""
        m, t = self.machine, self.target
        near, far = _streamed(size, t.l1_bytes), _streamed(size, t.l2_bytes)
        return (
            m.line_l1 + (m.line_l2 - m.line_l1) * near + (m.line_l3 - m.line_l2) * far
        )

    def wait(self, size: float | Counts) -> float | Counts:
        """Return the ns of a load from a place in data of ``size`` bytes."""
        m, t = self.machine, self.target
        near, far = _missed(size, t.l1_bytes), _missed(size, t.l2_bytes)
        return (
            m.wait_l1 + (m.wait_l2 - m.wait_l1) * near + (m.wait_l3 - m.wait_l2) * far
        )


def _streamed(size: float | Counts, cache: int) -> float | Counts:
    """Return the share of data read in order that misses a cache.

    It begins with half of a cache, which holds other data, too, and ends with two.
    """
    found: float | Counts = np.clip(
        np.log2(np.maximum(size, 1.0) / (cache / 2)) / 2, 0.0, 1.0
    )
    return found


def _missed(size: float | Counts, cache: int) -> float | Counts:
    """Return the share of loads from random places that miss a cache."""
    found: float | Counts = np.maximum(0.0, 1.0 - cache / np.maximum(size, 1.0))
    return found
