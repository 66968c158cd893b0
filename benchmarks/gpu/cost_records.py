"""A schedule that is made, and what the model says of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.gpu.chips import Chip
from skforge.compiler.codegen.cuda.host_plan import HostPlan
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.pipeline import Lowered
from skforge.compiler.schedule.schedule import Schedule

#: Seconds from a call to its first launch's start, and of each further one: estimates.
FIRST_LAUNCH, NEXT_LAUNCH = 2.5e-6, 1.2e-6


@dataclass(slots=True)
class Cost:
    """A schedule of a model, compiled and modelled.

    ``bounds`` has the row-trees a second that each resource allows, the least of which
    is what the model expects of a large batch.
    """

    name: str
    schedule: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    threads: int
    occupancy: float
    limit: str
    launches: int
    instructions: float  # of a hop, per lane
    hops: float  # of a warp, mean over trees: the longest of its lanes' walks
    node_cycles: float  # of one read by a warp
    row_cycles: float
    bytes_a_row: float
    bounds: dict[str, float]
    seconds: dict[int, float]  # of a batch

    @property
    def row_trees(self) -> float:
        """Row-trees a second of a large batch."""
        return min(self.bounds.values())


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """A schedule lowered, with its text."""

    schedule: Schedule
    lowered: Lowered
    plan: HostPlan

    @property
    def hir(self) -> PredictEnsemble:
        """The forest as it is walked."""
        return self.lowered.hir

    @property
    def is_bits(self) -> bool:
        """Whether predicates are evaluated for words of 32 rows."""
        return self.hir.nest.representation == "bitsliced"

    def shared_bytes(self) -> int:
        """Return the shared memory of a block, at most."""
        return max(launch.shared_bytes for launch in self.plan.launches())

    def grid(self, n_rows: int) -> dict[str, list[int]]:
        """Return the blocks of each launch of each kernel, for a batch."""
        env = {name: 0 for name in self.plan.params}
        env |= {"n_rows": n_rows, "row_stride": self.hir.forest.n_features}
        found: dict[str, list[int]] = {}
        for call in self.plan.run(env).calls:
            found.setdefault(call.kernel, []).append(int(np.prod(call.grid)))
        return found


def batch_seconds(
    blocks: int, launches: int, work: float, chain: float, resident: int, chip: Chip
) -> float:
    """Return the time of launches of blocks that take cycles to issue and to wait."""
    on_one = np.ceil(blocks / chip.processors)
    run = max(on_one * work, np.ceil(on_one / max(1, resident)) * chain) / chip.clock
    return float(FIRST_LAUNCH + NEXT_LAUNCH * (launches - 1) + run)
