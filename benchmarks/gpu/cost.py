"""What a schedule costs on a GPU, by a model: nothing here is a measurement.

The instructions of a hop are counted in the machine code; how often lanes of a warp
wait for each other, share banks and touch cache lines is simulated on real rows and
trees. From that come upper bounds of the throughput: no stalls but those, all caches
warm. Waiting for barriers, and dependences that too few warps would leave open, are in
the time of small batches only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.chips import Chip
from benchmarks.gpu.cost_bits import cost_of_bits
from benchmarks.gpu.cost_records import Cost, Made, batch_seconds
from benchmarks.gpu.counts import code_of, walking_loop
from benchmarks.gpu.deal import Deal
from benchmarks.gpu.occupancy import occupancy
from benchmarks.gpu.reads import Reads, addresses, packed_levels, reads_of, sample
from benchmarks.gpu.walks import Paths, walk
from skforge.compiler import pipeline
from skforge.compiler.codegen.cuda.emitter import emit_gpu
from skforge.compiler.cost.gpu import (
    ADD,
    ARITHMETIC,
    BARRIER,
    FILL,
    FILL_NODE,
    HALVE,
    KEEP,
    SEARCH,
)
from skforge.compiler.cost.schedule_facts import PLACE, facts_of
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.hir.nodes import PredictEnsemble, Reduction
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import statements
from skforge.compiler.layouts import base as representations
from skforge.compiler.pipeline import HirCache
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError

Array = NDArray[Any]

#: Instructions that each hop takes at least, and nodes of tiles whose loops are found.
FEWEST, TILES = 5.0, (1, 7)

#: Facts that a kernel's code depends on; of the second ones, whether they are 0.
SAME = ("layout", "node_tile", "codes", "cache_rows", "cache_trees", "row_layout")
SOME = (
    *("unroll_walk", "peel_walk", "pad_trees", "block_trees", "grid_trees"),
    "lane_trees",
)


@dataclass(frozen=True, slots=True)
class Walked:
    """What the machine code says of the kernel that walks."""

    kernel: str
    registers: int
    local_bytes: tuple[int, int]  # spilled, and of the stack
    loop: float  # instructions of an iteration: a hop of all trees in flight
    around: float  # of what is done once for these trees


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A schedule's walk on a chip."""

    hir: PredictEnsemble
    deal: Deal
    code: Walked
    shared_bytes: int
    launches: int
    in_flight: int  # trees of a thread, which may have fewer than are asked for
    chunk: int = 0  # trees with leaves in shared memory at a time; 0: all or none

    @property
    def chunks(self) -> int:
        """How often a block adds up the leaves of some trees."""
        return ceil(self.hir.tiles.n_trees / self.chunk) if self.chunk else 1

    def sizes(self, made: Made, batches: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Return blocks that walk, and launches, of batches by rows."""
        grids = {n: made.grid(n) for n in batches}
        return {
            n: (sum(grid[self.code.kernel]), sum(map(len, grid.values())))
            for n, grid in grids.items()
        }

    def turns(self) -> int:
        """Return how often a thread begins to walk trees of one of its rows."""
        own, k = self.deal.tree.shape[1], self.in_flight
        whole = ceil(self.chunk / self.deal.tree_threads)  # of a chunk but the last
        last = max(0, own - (self.chunks - 1) * whole)
        # Trees that are left over are walked one after the other.
        return (self.chunks - 1) * sum(divmod(whole, k)) + sum(divmod(last, k))


@dataclass(slots=True)
class Known:
    """What of a forest and its rows is the same on all chips, as far as it is known."""

    hirs: HirCache = field(default_factory=HirCache)
    paths: dict[Any, Paths] = field(default_factory=dict)
    addresses: dict[Any, tuple[Array, int]] = field(default_factory=dict)
    reads: dict[Any, Reads] = field(default_factory=dict)


@dataclass(slots=True)
class Modeller:
    """Models schedules of one forest on one chip.

    Parameters
    ----------
    forest : Forest
        Of single nodes.
    rows : ndarray
        Real ones, in the forest's input dtype.
    reduction : {"exact", "reproducible", "fast"}
        How sums are made.
    chip : Chip
        The GPU.
    known : Known
        May be shared with the modellers of other chips.
    codes : dict or None
        Counts of kernels, each of which stands for its kind; forests may share them.
        Without them, every kernel is compiled.
    """

    forest: Forest
    rows: Array
    reduction: Reduction
    chip: Chip
    known: Known = field(default_factory=Known)
    codes: dict[Any, Walked | ScheduleError] | None = None

    def bound(self, schedule: Schedule) -> PredictEnsemble:
        """Bind a schedule; ``ScheduleError`` says why it is not legal."""
        return pipeline.build_hir(
            self.forest, schedule, self.reduction, self.known.hirs, kind="gpu"
        )

    def made(self, schedule: Schedule, target: Target | None = None) -> Made:
        """Lower a schedule; ``ScheduleError`` says why it is not legal."""
        target = target or self.chip.target
        lowered = pipeline.lower(self.bound(schedule), target)
        return Made(schedule, lowered, emit_gpu(lowered.kernel.function, target))

    def cost(self, made: Made, batches: Sequence[int], name: str = "") -> Cost:
        """Model a schedule; ``ScheduleError`` says why there is no model of it."""
        if made.is_bits:
            return cost_of_bits(self.forest, self.rows, self.chip, made, batches, name)
        built = self.build(made)
        return self.cost_of_walk(built, built.sizes(made, batches), made.schedule, name)

    def cost_of_walk(
        self,
        built: Built,
        sizes: dict[int, tuple[int, int]],
        schedule: Schedule,
        name: str = "",
    ) -> Cost:
        """Model a walk, of batches by rows: blocks that walk, and launches."""
        chip, hir, deal, code = self.chip, built.hir, built.deal, built.code
        reads = self._reads_of(built)
        held = occupancy(chip.arch, deal.threads, code.registers, built.shared_bytes)
        block = block_cycles(built, reads, chip, max(1, held.blocks), self.reduction)
        # Of a block that has all its rows and trees.
        whole = deal.rows * hir.tiles.n_trees / deal.tree_blocks
        a_second = chip.processors * chip.clock
        bounds = {name: whole / used * a_second for name, used in block.items() if used}
        bytes_a_row = self.forest.n_features * self.rows.itemsize * deal.tree_blocks
        bounds["memory"] = chip.memory_bytes / bytes_a_row * hir.tiles.n_trees
        bytes_a_row += block["l2"] * chip.l2_bytes_per_cycle / deal.rows
        chain = chain_cycles(built, reads, self.reduction, chip)
        seconds = {}
        for n, (blocks, launches) in sizes.items():
            filled = min(1.0, n / max(1, blocks * deal.rows / deal.tree_blocks))
            work = max(block.values()) * max(filled, 0.25)
            seconds[n] = batch_seconds(blocks, launches, work, chain, held.blocks, chip)
        return Cost(
            name=name,
            schedule=repr(schedule),
            registers=code.registers,
            spill_bytes=code.local_bytes[0],
            stack_bytes=code.local_bytes[1],
            shared_bytes=built.shared_bytes,
            threads=deal.threads,
            occupancy=held.fraction,
            limit=held.limit,
            launches=built.launches,
            instructions=code.loop / built.in_flight,
            hops=reads.hops,
            node_cycles=reads.nodes,
            row_cycles=reads.rows,
            bytes_a_row=bytes_a_row,
            bounds=bounds,
            seconds=seconds,
        )

    def build(self, made: Made) -> Built:
        """Compile a schedule and find its hops."""
        deal = Deal.of(made.hir)
        in_flight = max(1, min(deal.in_flight, deal.tree.shape[1]))
        code = self._shared_code(made, deal, in_flight)
        launches = list(made.plan.launches())
        (shared,) = (x.shared_bytes for x in launches if x.kernel == code.kernel)
        return Built(
            made.hir, deal, code, shared, len(launches), in_flight, _chunk(made)
        )

    def _shared_code(self, made: Made, deal: Deal, in_flight: int) -> Walked:
        """Return what is known of a kind of kernel, or compile one."""
        if self.codes is None:
            return self.walked(made, in_flight)
        kind = self.kind(made, deal, in_flight)
        if kind not in self.codes:
            try:
                self.codes[kind] = self.walked(made, in_flight)
            except ScheduleError as error:
                self.codes[kind] = error
        found = self.codes[kind]
        if isinstance(found, ScheduleError):
            raise found
        return found

    def kind(self, made: Made, deal: Deal, in_flight: int) -> tuple[Any, ...]:
        """Return what kernels have in common that share their counts."""
        facts, forest = facts_of([made.schedule])[0], self.forest
        return (
            tuple(np.unique(forest.comparison).tolist()),
            tuple(np.unique(forest.missing).tolist()),
            forest.input_dtype.name,
            forest.accumulator_dtype.name,
            forest.n_outputs > 1,
            self.reduction,
            in_flight,
            deal.padded,
            deal.shared_sums,
            len(list(made.plan.launches())),
            _chunk(made) > 0,
            *(float(facts[PLACE[name]]) for name in SAME),
            *(bool(facts[PLACE[name]]) for name in SOME),
        )

    def walked(self, made: Made, in_flight: int) -> Walked:
        """Compile a schedule and count what a hop takes."""
        if facts_of([made.schedule])[0][PLACE["node_tile"]] not in TILES:
            raise ScheduleError("tiles of two and four nodes are left out")
        packed = made.hir.nest.representation == "packed"
        levels = packed_levels(made.hir) if packed else 0
        function, chip = made.lowered.kernel.function, self.chip
        source = emit_gpu(function, Target.cuda(chip.counted)).source
        code = code_of(source, chip.counted)
        for launch in made.plan.launches():
            found = walking_loop(code.lines[launch.kernel], in_flight, levels)
            if found is not None:
                used = code.resources[launch.kernel]
                local = used.spill_bytes, used.stack_bytes
                loop, around = found[0] / max(1, levels), found[1]
                if loop < FEWEST * in_flight:
                    raise ScheduleError("the loop that was found does not walk")
                return Walked(launch.kernel, used.registers, local, loop, around)
        raise ScheduleError("no loop of its code reads nodes and rows")

    def _reads_of(self, built: Built) -> Reads:
        hir, deal = built.hir, built.deal
        # Layouts and paths of walks depend on how the trees are stored.
        stored = (
            hir.nest.representation,
            hir.nest.tile_nodes,
            deal.padded,
            len(hir.tiles.leaf),  # all trees may be padded alike, or each as it is deep
            hir.codes is not None,
        )
        known = self.known
        if stored not in known.addresses:
            if stored[1:4] not in known.paths:
                some, trees = sample(self.rows, hir.tiles.n_trees)
                known.paths[stored[1:4]] = walk(hir, some, trees)
            known.addresses[stored] = addresses(hir, known.paths[stored[1:4]])
        key = (stored, deal.key, built.in_flight, deal.tile > 0, self.chip.warp)
        if key not in known.reads:
            known.reads[key] = reads_of(
                hir,
                deal,
                known.paths[stored[1:4]],
                known.addresses[stored],
                built.in_flight,
                self.chip,
            )
        return known.reads[key]


def _chunk(made: Made) -> int:
    """Return trees with leaves in shared memory at a time; 0: all or none."""
    body = made.lowered.stages["expand-walks"].body
    totals = [s for s in statements(body) if isinstance(s, mir.ReduceDimension)]
    return next((int(str(s.extent)) for s in totals if s.trees is not None), 0)


# ------------------------------------------------------------ the bounds


def block_cycles(
    built: Built, reads: Reads, chip: Chip, resident: int, reduction: Reduction
) -> dict[str, float]:
    """Return the cycles of a processor that a block takes of each resource."""
    deal, hir, warp = built.deal, built.hir, chip.warp
    k = built.in_flight
    warps = ceil(deal.threads / warp)
    walks = warps * deal.row.shape[1] * deal.tree.shape[1]  # of a whole warp
    fill, search = _fill(built)
    nodes = _node_bytes(built)
    instructions = walks * (reads.hops * built.code.loop + built.code.around) / k
    instructions += fill * search / warp
    steps = walks * reads.hops
    near = steps * (reads.nodes + reads.rows) + 2 * fill / warp
    n_trees = hir.tiles.n_trees / deal.tree_blocks
    if deal.tile:
        far = nodes / deal.tree_blocks
        instructions += far / 4 / warp * FILL_NODE
        near += far / 4 / warp * 2
    else:
        left = float(chip.l1_bytes)
        if not chip.is_amd:
            left -= resident * (built.shared_bytes + 1024)
        far = 0.0 if nodes <= left else reads.sectors * 32 * n_trees
    far += hir.forest.n_features * hir.forest.input_dtype.itemsize * deal.rows
    slots = _slots(built, reduction)
    if slots:
        sums = ceil(deal.rows / warp) * hir.forest.n_outputs
        adding = sums * (slots + 2 * (built.chunks - 1))
        instructions += walks * KEEP + adding * ADD
        near += walks + adding
        if not deal.shared_sums or deal.tree_blocks > 1:
            kept = deal.rows * slots * hir.forest.n_outputs
            far += 2 * kept * hir.forest.accumulator_dtype.itemsize
    return {
        "issue": instructions / chip.issue,
        "shared and L1": near,
        "l2": far / chip.l2_bytes_per_cycle,
    }


def _slots(built: Built, reduction: Reduction) -> float:
    """Return the places that a row's sum is added from, where threads share it."""
    deal, hir = built.deal, built.hir
    if deal.tree_threads * deal.tree_blocks == 1:
        return 0.0
    if reduction == "exact":
        return hir.tiles.n_trees / hir.forest.n_outputs / deal.tree_blocks
    return float(deal.tree_threads)


def _fill(built: Built) -> tuple[float, float]:
    """Return values a block brings to shared memory, and instructions of each."""
    hir, deal = built.hir, built.deal
    if deal.rows_in == "memory":
        return 0.0, 0.0
    if hir.codes is None:
        return float(deal.rows * hir.forest.n_features), FILL
    most = max(2, int(hir.codes.counts.max(initial=1)))
    return (
        float(deal.rows * hir.codes.n_columns),
        SEARCH + HALVE * float(np.ceil(np.log2(most + 1))),
    )


@lru_cache(maxsize=256)
def _node_bytes(built: Built) -> float:
    hir = built.hir
    representation = representations.get(hir.nest.representation)
    return float(representation.size_in_bytes(hir))


# ------------------------------------------------------------ the time of a batch


def chain_cycles(built: Built, reads: Reads, reduction: Reduction, chip: Chip) -> float:
    """Return the cycles that one block takes at least, waiting for each read."""
    hir, deal = built.hir, built.deal
    node = chip.shared if deal.tile else chip.far
    row = chip.near if deal.rows_in == "memory" else chip.shared
    n_trees = hir.tiles.n_trees / deal.tree_blocks
    turns = deal.row.shape[1] * built.turns()
    cycles = turns * reads.hops * (node + row + ARITHMETIC + built.code.loop / 2)
    fill, search = _fill(built)
    cycles += fill / deal.threads * (search + chip.far / 4)
    if deal.tile:
        words = _node_bytes(built) / deal.tree_blocks / 4
        cycles += words / deal.threads * (chip.far / 8)
        cycles += ceil(n_trees / deal.tile) * (chip.far + 2 * BARRIER)
    slots = _slots(built, reduction)
    if slots:
        inside = deal.shared_sums and deal.tree_blocks == 1
        # Eight are read before they are added one after the other.
        read = chip.shared if inside else chip.far
        cycles += slots * deal.tree_blocks * (4 + read / 8)
        # Between chunks all threads wait, and sums go to the result and back.
        cycles += (built.chunks - 1) * (2 * BARRIER + chip.near)
    return float(cycles)
