"""The time of GPU schedules: what threads, blocks and a whole GPU do, not compiled.

``GpuWork`` has the time of any schedule, by which defaults are chosen and a search
orders its candidates. Its terms are what a block issues, reads from shared memory and
caches, and waits for, and how many blocks a processor holds: formulas of the forest's
shape, for all schedules at once, fitted to times of an H100 (docs/defaults.md): so
some take more cycles than the instructions they are named for. The cost model learns by
how much they are wrong.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from skforge._typing import Float64s
from skforge.compiler.cost.schedule_facts import LAYOUTS, PLACE
from skforge.compiler.cost.shape import Setting
from skforge.compiler.target import Target
from skforge.forest.arrays import Comparison
from skforge.gpu.nest import row_stride
from skforge.gpu.passes.chunk_leaves import trees_a_chunk

# How many blocks of a kernel a multiprocessor holds at once: a model, no GPU needed.
# Numbers are from the vendors' tables of compute capabilities and instruction-set
# guides. What limits the blocks is named, because that is what a schedule can change.

OccupancyLimit: TypeAlias = Literal["registers", "shared memory", "warps", "blocks"]


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What one multiprocessor (AMD: compute unit) holds."""

    parts: int  # schedulers, each with its share of registers and warps
    registers: int  # of a lane in a part: warps of a part times registers of a thread
    register_unit: int  # registers of a thread are rounded up to this
    warps: int  # of a part
    blocks: int
    shared_bytes: int
    reserved_bytes: int  # shared memory that each block costs on top of its own
    shared_unit: int  # shared memory of a block is rounded up to this
    warp_size: int  # threads of a warp


_TABLE = Path(__file__).with_name("multiprocessors.json").read_text("utf-8")

MULTIPROCESSORS = {
    arch: Multiprocessor(**facts)
    for arch, facts in json.loads(_TABLE)["multiprocessors"].items()
}


def blocks_by_limit(
    sm: Multiprocessor, threads: Any, registers: Any, shared_bytes: Any
) -> dict[OccupancyLimit, Any]:
    warps = -(-threads // sm.warp_size)
    unit = sm.register_unit
    resident = sm.registers // np.maximum(unit, _up(registers, unit))
    shared = _up(shared_bytes + sm.reserved_bytes, sm.shared_unit)
    return {
        "warps": sm.parts * sm.warps // warps,
        "registers": sm.parts * resident // warps,
        "shared memory": sm.shared_bytes // np.maximum(shared, 1),
        "blocks": sm.blocks,
    }


def multiprocessor(target: Target) -> Multiprocessor:
    near = "gfx90a" if target.kind == "hip" else "sm_90"
    return MULTIPROCESSORS.get(target.cpu, MULTIPROCESSORS[near])


def _up(number: Any, unit: int) -> Any:
    return -(-number // unit) * unit


#: Assumed processors of a GPU if the number is not known.
PROCESSORS = 128
#: Instructions of a hop by values of 32 and 64 bits, with categories, and by codes; and
#: of a leaf check.
HOP, HOP_WIDE, HOP_CATEGORY = 6.4, 15.75, 41.0
HOP_CODES, LOOK = 3.44, 16.4
#: Cache lines of a warp's read of nodes, for each level.
LINES_OF_LEVEL = 0.28
#: Instructions to search a code, and for each halving of its thresholds.
SEARCH, HALVE = 9.0, 6.5
#: Instructions that a processor issues in a cycle.
ISSUE = 3.3
#: Instructions to copy a word of a tree to shared memory.
FILL_NODE = 142.0


@dataclass(frozen=True, slots=True)
class _Chip:
    """Cycles that reads take, and bytes that caches hold and deliver."""

    issue: float
    far: float  # second cache
    near: float  # first cache
    shared: float
    l2_bytes: float  # in a cycle
    l1_bytes: int  # beside what blocks share
    line_cycles: float  # the least of a read of memory
    clock: float = 1.7e9


_NVIDIA = _Chip(ISSUE, 423.0, 35.0, 30.0, 18.0, 28 << 10, 1.0)
_AMD = _Chip(1.0, 500.0, 120.0, 64.0, 32.0, 16 << 10, 4.0)

#: Dependent arithmetic of a hop, and a barrier, in cycles.
ARITHMETIC, BARRIER = 187.0, 40.0
#: Instructions to copy a value of a row, to keep and add a leaf, and to begin a walk.
FILL, KEEP, ADD, BEGIN = 36.6, 3.0, 11.9, 12.0
#: Bytes of a cache line; the share of a level's bits that tell a warp's places apart.
LINE, SPREAD = 128, 0.553
#: By which power of the walks that go together the longest nears the deepest leaf.
TOGETHER = 0.297
#: Cycles that each halving of the search for a code waits.
SEARCH_WAIT = 482.0
#: Registers of a walk, and of each tree in flight.
REGISTERS, IN_FLIGHT = 24.0, 4.0
#: Cycles of a warp whose lanes read random banks.
RANDOM_BANKS = 3.4
#: Cycles of the first launch and of each further one.
LAUNCH, NEXT_LAUNCH = 3910.0, 2100.0
#: Bytes of a code in shared memory; what each further node of a tile adds to a hop.
CODE, TILE_MORE = 4, 12.5


class GpuWork:
    def __init__(self, setting: Setting, facts: Float64s) -> None:
        self.forest, self.target = setting.forest, setting.target
        self.n, self.facts = float(max(1, setting.n_rows)), facts
        target = setting.target
        self.chip = _AMD if target.kind == "hip" else _NVIDIA
        self.processor = multiprocessor(target)
        self.warp = float(self.processor.warp_size)
        self.processors = float(target.n_cores or PROCESSORS)
        self.room = target.shared_bytes
        layout = self["layout"]
        self.name = {name: layout == i for i, name in enumerate(LAYOUTS)}
        self._threads()
        self._walks()
        self._shared_memory()
        self._occupancy()
        self._reads()
        self._block()
        self._chain()
        self._time()

    def __getitem__(self, name: str) -> Float64s:
        return self.facts[:, PLACE[name]]

    # ------------------------------------------------------------ loops

    def _threads(self) -> None:
        trees = float(max(1, self.forest.n_trees))
        blocks = np.maximum(1.0, self["row_blocks"])
        block = np.where(self["row_block"] > 0, self["row_block"], self.n / blocks)
        self.rows = np.ceil(block)  # of a block
        self.row_threads = np.maximum(1.0, self["block_rows"])
        self.each = np.ceil(self.rows / self.row_threads)  # rows of a thread
        self.parts = np.maximum(1.0, self["block_trees"])
        step = np.where(self["tree_block"] > 0, self["tree_block"], trees)
        many = np.where(
            self["tree_blocks"] > 0, self["tree_blocks"], np.ceil(trees / step)
        )
        shared = np.where(self["grid_trees"] > 0, many, 1.0)
        of_block = np.ceil(trees / np.minimum(shared, trees))
        self.grid = np.ceil(trees / of_block)  # blocks that share a row's trees
        self.parts = np.minimum(self.parts, of_block)
        self.step = np.minimum(step, trees)  # trees of a block at a time, if cached
        self.trees_per_thread = np.ceil(of_block / self.parts)
        self.threads = self.row_threads * self.parts
        self.warps = np.ceil(self.threads / self.warp)
        self.row_blocks = np.ceil(self.n / self.rows)
        self.blocks = self.row_blocks * self.grid
        self.launches = np.where(self.grid > 1, 3.0, 1.0)
        by_tree = self["lane_trees"] > 0
        lanes = np.minimum(self.warp, self.row_threads)
        few = np.maximum(1.0, self.warp // np.minimum(self.parts, self.warp))
        self.row_lanes = np.where(by_tree, np.minimum(few, self.row_threads), lanes)
        self.tree_lanes = np.minimum(
            self.parts, np.maximum(1.0, self.warp // self.row_lanes)
        )
        self.lanes = self.threads / (self.warps * self.warp)
        self.busy = trees / (self.trees_per_thread * self.parts * self.grid)
        self.filled = np.minimum(1.0, self.n / (self.row_blocks * self.rows))

    def _walks(self) -> None:
        f = self.forest
        flight = self["trees_in_flight"]
        flight = np.where(flight < 0, self.trees_per_thread, flight)
        self.in_flight = np.clip(flight, 1.0, self.trees_per_thread)
        self.unrolled = (self["unroll_walk"] > 0) | (self["pad_trees"] > 0)
        self.codes = self["codes"] > 0
        # Walks that go together end with the longest: the more, the nearer the deepest.
        together = self.row_lanes * self.tree_lanes * self.in_flight
        longest = f.tree_depth - (f.tree_depth - f.leaf_depth) * together**-TOGETHER
        hops = np.where(self.unrolled, float(f.max_depth), longest)
        tile = np.maximum(1.0, self["node_tile"])
        hops = np.where(tile > 1, np.ceil(hops / np.log2(tile + 1)), hops)
        self.hops = np.maximum(1.0, hops)
        wide = f.value_bytes > 4
        by_value = HOP_WIDE if wide else HOP
        if (f.forest.comparison >= Comparison.IN).any():
            by_value = HOP_CATEGORY
        loop = np.where(self.codes, HOP_CODES, by_value)
        self.loop = 1.08 * loop + np.where(self.unrolled, 0.0, LOOK)
        self.loop *= 1 + TILE_MORE * (tile - 1)
        self.tile = tile
        self.columns = np.where(self.codes, f.n_columns, f.row_bytes / f.value_bytes)
        self.words = np.where(self.codes, 1.0, 4.0 if wide else 2.0)  # of a node
        trees, leaves = max(1, f.n_trees), f.leaves_per_tree * max(1, f.n_trees)
        nodes = f.inner_nodes + leaves
        padding = 2 * leaves * max(0.0, f.max_depth - f.leaf_depth)
        whole = trees * 2.0 ** min(f.max_depth + 1, 40)
        complete = self.name["array"] | self.name["reorg"]
        sparse = nodes + np.where(self.unrolled, padding, 0.0)
        self.node_bytes = 4 * self.words * np.where(complete, whole, sparse)

    # ------------------------------------------------------------ memory

    def _shared_memory(self) -> None:
        f, rows = self.forest, self.rows
        self.near_rows = self.codes | (self["cache_rows"] > 0)
        self.near_trees = self["cache_trees"] > 0
        plain = (self["row_layout"] == 0) & (self["lane_trees"] == 0)
        self.by_feature = plain & (rows % 32 == 0)
        padded = ~self.by_feature & (self["row_layout"] < 2)
        value = np.where(self.codes, CODE, f.value_bytes)
        stride = row_stride(self.columns, padded)
        self.row_bytes = rows * stride * value * self.near_rows
        share = self.step / max(1, f.n_trees)
        self.tree_bytes = share * self.node_bytes * self.near_trees
        leaves = rows * f.leaf_bytes
        several = self.parts * self.grid > 1
        self.shared_sums = (self["shared_reduce"] > 0) & (self.parts > 1)
        step = np.where(self.near_trees, self.step, self.parts)
        factor = np.where(self.near_trees, 1.0, self.in_flight)
        self.chunk = self._chunk(step, factor, leaves) * self.shared_sums
        self.chunks = np.where(
            self.chunk > 0, np.ceil(f.n_trees / np.maximum(1, self.chunk)), 1.0
        )
        slots = f.n_trees / max(1, f.n_outputs) / self.grid
        self.slots = np.where(several, slots, 0.0)
        self.shared = self.row_bytes + self.tree_bytes + self.chunk * leaves

    def _chunk(self, step: Float64s, factor: Float64s, leaves: Float64s) -> Float64s:
        left = np.maximum(0, self.room - self.row_bytes)
        keys = np.stack([step, factor, leaves, left], axis=1).astype(np.int64)
        distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
        n, room = max(1, self.forest.n_trees), self.room
        chunks = [
            trees_a_chunk(n, max(1, a), max(1, b), max(1, c), room, d)
            for a, b, c, d in distinct.tolist()
        ]
        return np.array(chunks, np.float64)[inverse.reshape(-1)]

    def _occupancy(self) -> None:
        registers = REGISTERS + IN_FLIGHT * self.in_flight + 6 * self.codes
        self.registers = np.minimum(registers, 255.0)
        limits = blocks_by_limit(
            self.processor, self.threads, self.registers, self.shared
        )
        self.limits = {
            k: np.broadcast_to(v, len(self.facts)) for k, v in limits.items()
        }
        most = np.min(np.stack(list(self.limits.values())), axis=0)
        self.fits = (self.shared <= self.room) & (most >= 1) & (self.threads <= 1024)
        self.resident = np.maximum(1.0, most)
        self.occupancy = np.minimum(
            1.0,
            self.resident * self.warps / (self.processor.parts * self.processor.warps),
        )

    def _reads(self) -> None:
        chip, f = self.chip, self.forest
        self.lanes_met = self.row_lanes * self.tree_lanes
        deep = LINES_OF_LEVEL * self.hops / 2 * self.row_lanes / 32
        # "reorg" has the nodes of a level side by side, tree after tree.
        root = np.maximum(1.0, self.tree_lanes * self.words * 4 / LINE)
        met = np.zeros(len(self.facts))
        for level in range(int(np.ceil(self.hops.max(initial=1.0)))):
            places = root * 2.0 ** (SPREAD * level)
            touched = places * (1 - np.exp(-self.lanes_met / places))
            met += np.where(level < self.hops, touched / self.hops, 0.0)
        self.node_lines = np.where(
            self.name["reorg"], met, self.tree_lanes * (1 + deep)
        )
        lines = np.maximum(chip.line_cycles, self.node_lines)
        banks = 1.1 + (1 - 1 / self.tree_lanes)
        banks = banks * np.where(self.name["reorg"], 1.4, 1.0)
        banks = np.where(self["lane_trees"] > 0, RANDOM_BANKS, banks)
        self.node_cycles = np.where(
            self.near_trees,
            self.words * banks,
            np.maximum(1.0, self.words / 2) * lines * (1 + TILE_MORE * (self.tile - 1)),
        )
        wide = np.where(self.codes, 1.0, f.value_bytes / 4)
        others = np.minimum(self.tree_lanes, 1 + f.row_bytes / LINE) - 1
        self.row_lines = self.row_lanes * (1 + 0.55 * others)
        same = np.gcd((self.columns * wide).astype(np.int64), 32)
        apart = np.where(self["row_layout"] == 2, np.maximum(2.0, same / 1.5), 2.0)
        apart = np.where(self["lane_trees"] > 0, 1.6 - 0.6 * self.codes, apart)
        together = np.maximum(self.tree_lanes, self.each)
        together = together * np.maximum(1.0, self.row_lanes / 32)
        self.row_cycles = wide * np.where(self.by_feature, together, apart)
        self.row_cycles = np.where(
            self.near_rows,
            self.row_cycles,
            np.maximum(chip.line_cycles, self.row_lines),
        )

    # ------------------------------------------------------------ cycles

    def _block(self) -> None:
        f, chip, warp = self.forest, self.chip, self.warp
        walks = self.warps * self.each * self.trees_per_thread
        self.fill = self.rows * self.columns * self.near_rows
        each = np.log2(f.n_predicates / max(1, f.n_columns) + 2)
        self.search = np.where(self.codes, SEARCH + HALVE * np.ceil(each), FILL)
        self.halvings = np.where(self.codes, np.ceil(each), 0.25)
        sums = np.ceil(self.rows / warp) * f.n_outputs * (self.slots > 0)
        adding = sums * (self.slots + 2 * (self.chunks - 1))
        leaves_kept = walks * (self.slots > 0)
        self.issued = walks * (self.hops * self.loop + BEGIN) + KEEP * leaves_kept
        self.issued += self.fill * self.search / warp + adding * ADD
        self.near = walks * self.hops * (self.node_cycles + self.row_cycles)
        self.near += 2 * self.fill / warp + leaves_kept + adding
        self.far = self.rows * f.row_bytes
        nodes = self.node_bytes / self.grid * self.near_trees
        self.issued += nodes / 4 / warp * FILL_NODE
        self.near += nodes / 4 / warp * 2
        self.far = self.far + nodes
        left = float(chip.l1_bytes)
        if chip is _NVIDIA:
            used = self.resident * (self.shared + self.processor.reserved_bytes)
            left = left + self.processor.shared_bytes - used
        self.spilled = ~self.near_trees & (self.node_bytes > left)  # beyond first cache
        rows, nodes_met = np.minimum(self.rows, self.n), np.zeros(len(self.facts))
        for level in range(int(self.hops.max(initial=1.0)) + 1):
            met = np.minimum(2.0 ** (SPREAD * level), rows)
            nodes_met += np.where(level <= self.hops, met, 0.0)
        sectors = nodes_met * self.words * 4 / 32 + np.log2(self.rows + 1)
        self.far += self.spilled * f.n_trees / self.grid * sectors * 32
        searched = self.codes & (4.0 * f.n_predicates > left)
        self.far += searched * self.fill * self.halvings * 32
        outside = (self.slots > 0) & ~self.shared_sums
        leaves = 2.0 * self.rows * self.slots * f.n_outputs * f.leaf_bytes
        self.far += outside * leaves

    def _chain(self) -> None:
        f, chip = self.forest, self.chip
        node = np.where(self.near_trees, chip.shared, chip.far)
        row = np.where(self.near_rows, chip.shared, chip.near)
        of_chunk = np.ceil(self.trees_per_thread / self.chunks)
        turns = self.each * self.chunks
        turns = turns * (of_chunk // self.in_flight + of_chunk % self.in_flight)
        hop = node + row + ARITHMETIC + self.in_flight * self.loop / 2
        self.chain = turns * self.hops * hop
        wait = self.search + np.where(self.codes, SEARCH_WAIT, chip.far) * self.halvings
        self.chain += self.fill / self.threads * wait
        self.chain += self.rows * f.row_bytes * self.near_rows / chip.l2_bytes
        rounds = np.ceil(f.n_trees / self.grid / np.maximum(1.0, self.step))
        words = self.node_bytes / self.grid / 4 / self.threads
        loading = words * (chip.far / 8) + rounds * (chip.far + 2 * BARRIER)
        self.chain += np.where(self.near_trees, loading, 0.0)
        read = np.where(self.shared_sums, chip.shared, chip.far)
        self.chain += self.slots * self.grid * (4 + read / 8)
        self.chain += (self.chunks - 1) * (2 * BARRIER + chip.near)

    def _time(self) -> None:
        chip = self.chip
        busiest = np.maximum(self.issued / chip.issue, self.near)
        self.work = np.maximum(busiest, self.far / chip.l2_bytes)
        work = self.work * np.maximum(0.25, self.filled)
        self.on_one = np.ceil(self.blocks / self.processors)
        self.waves = np.ceil(self.on_one / self.resident)
        run = np.maximum(self.on_one * work, self.waves * self.chain)
        cycles = LAUNCH + NEXT_LAUNCH * (self.launches - 1) + run
        self.estimate = cycles / chip.clock * 1e9 / self.n  # ns of a row
