"""The least time a part of a kernel could take, by what it must at least do.

Formulas, not models: each says so in words, and the clock they need is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from kernel_cuts import LOOK_UP

from skforge.cli.report import interleave
from skforge.compiler.cost.estimate import CostEstimate, ScheduleSizes, Work, row_lines
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I64, Buffer, Function, Value
from skforge.compiler.target import Target
from skforge.engine.cpu.jit import compile_functions
from tests.run_kernel import call

#: Additions in a row of the loop that measures the clock.
_CHAIN = 64


@dataclass(frozen=True, slots=True)
class Floor:
    """Nanoseconds a row that a part takes at least, and why."""

    ns_row: float
    formula: str


def clock_ghz(target: Target) -> float:
    """Return cycles a nanosecond: of a chain of additions, one cycle each."""
    result, n = Buffer("result", I64), Value("n", I64)
    with Builder() as b:
        x = [n]
        with b.loop(n, carry=x) as i:
            for k in range(_CHAIN // 2):  # two operations that do not fold into one
                x[0] = x[0] + i ^ (n if k % 2 else i)
        result[b.const(0)] = x[0]
    module = compile_functions([Function("chain", (result, n), b.finish())], target)
    out, times = np.zeros(1, np.int64), 2000
    chain_call = {"chain": lambda: call(module, "chain", [out, times])}
    samples = interleave(chain_call, rounds=401, seconds=0.4)["chain"]
    return _CHAIN * times / float(samples.min()) * 1e-9


def floors(
    estimate: CostEstimate, plan: ScheduleSizes, n: int, ghz: float
) -> dict[str, Floor]:
    """Return the floors of parts, by the counts of which estimates are made.

    ``n`` are the rows of a call. A part that is missing here is a way to what the next
    one has to do.
    """
    f, rows = estimate.counts, np.array([float(n)])
    work = Work(plan, f, estimate.profile, f.target, rows)
    lanes, bits = f.value_lanes, min(plan.block or n, f.target.vector_bits)
    full = -(-n // 16) * 16 / n  # rows that tiles and pieces take, of those there are
    leaves = f.trees * f.leaf_vectors

    def floor(count: float, what: str, a_cycle: float) -> Floor:
        each = f"{1 / a_cycle:g} cycles each"
        rate = f"{a_cycle:.3g} a cycle" if a_cycle >= 1 else each
        return Floor(count / a_cycle / ghz, f"{count:,.3g} {what}, {rate}")

    def planes(count: float, what: str, a_cycle: float) -> Floor:
        registers = -(-n // bits) / n
        return floor(count * registers, f"{what} for {bits} rows", a_cycle)

    def codes(searched: float) -> Floor:
        return most(read, floor(2 * searched, "compares and shuffles", 2))

    def most(*of: Floor) -> Floor:
        return max(of, key=lambda floor: floor.ns_row)

    lines, line = float(row_lines(work)[0]) / n, float(work.line(n * f.row_bytes))
    read = Floor(lines * line, f"{lines:,.3g} cache lines of rows, {line:.2f} ns each")
    made = {"columns": read, LOOK_UP: floor(leaves, "loads of leaf values", 2)}
    stored = floor(leaves * full, "sums stored", 1)
    match plan.kind:
        case "rows" | "trees":
            hops = f.trees * f.walk_depth
            made["walk"] = floor(2 * hops, "loads of nodes and values", 2)
        case "bitsliced":
            of = f.bit_tests(plan.tests_of)
            tests = of.lines + of.direct + of.single_sets + 8 * of.set_tables
            logic = 1 if f.target.has_mask_registers else 3
            vectors, each = -(-n // lanes) / n, f"for {lanes} rows"
            made["lines"] = most(
                planes(tests, "predicates stored", 1),
                floor(of.direct * vectors, f"compares {each}", 2),
            )
            steps = 2 * of.levels * vectors
            made["search"] = floor(steps, f"compares and shuffles {each}", 2)
            made["fold"] = planes(
                f.folded_nodes + f.listed,
                f"nodes, a line read and {logic} operations each",
                min(2, 4 / logic),
            )
            groups = -(-n // 64) / n
            made["index"] = floor(4 * f.trees * groups, "shuffles for 64 rows", 2)
            adds = f.trees * f.leaf_bytes * 8 / f.target.vector_bits
            values = f.permutes * groups * f.looks_up
            what = "vectors of leaf values added, or shuffles for 64 rows"
            made[LOOK_UP] = floor(max(adds, values), what, 2)
        case "lanes" | "pairs":
            eights = plan.kind == "pairs" and f.pairs is not None
            own, calls = (f.pairs, -(-n // 8) / n) if eights else (f.lanes, 1.0)
            made["codes"] = most(read, floor(own.search, "instructions", 4))
            made["tests"] = floor(own.tests * calls, "vector instructions", 2)
            chains = -(-n // f.sums_together) / n
            made["sums"] = most(
                floor(leaves * chains, "additions in order", 1 / ADDITION),
                floor(2 * own.hops, "loads of nodes and codes", 2),
            )
        case "pieces":
            del made["columns"]  # it reads codes
            made["codes"] = codes(f.code_searches * full / lanes)
            made["top"], made["pieces"] = (
                floor(7 * tests * full / 32, "instructions for 32 rows", 4)
                for tests in (f.pieces.top, f.pieces.below)
            )
            made["buckets"] = floor(2 * f.trees * full, "counts and rows stored", 1)
            made["sums"] = stored
        case "tiles" | "values" | "tile-row" | "value-row":
            row = plan.kind in ("tile-row", "value-row")
            made["codes"] = codes(f.code_columns if row else f.code_searches / lanes)
            counts = f.tiles_of(plan.kind, plan.levels)
            each, tests = "compares and shuffles", 2 * f.trees * (1 if row else full)
            made["top"] = floor(tests, f"{each} of tops", 2)
            made["tiles"] = floor(counts.visits * tests, f"{each} of tiles", 2)
            added = floor(leaves, "additions in order", 1 / ADDITION)
            made["sums"] = added if row else stored
    return made


#: Cycles until a sum of floats can be added to, at least.
ADDITION = 3

#: What takes a part longer than its floor, which counts work as if nothing waited.
BEYOND = {
    "columns": "Columns of 16 rows are transposed by shuffles on two ports, stored and "
    "read again.",
    "lines": "A mask goes to a general register and is stored as 2 bytes, and each "
    "column begins with a jump to the code of its kind.",
    "search": "Each level of a column waits for the answer of the one above, and rows "
    "of columns with many thresholds look up their bucket one by one.",
    "fold": "Each node loads the number of its line before the line; trees that do not "
    "fold write each result to memory and read it back.",
    "index": "The bits of a level are spread to the bytes of 64 rows, level by level, "
    "before the shuffles.",
    "look-up": "Leaves are taken from all over a table that L1 does not hold, by "
    "numbers that have only just become known.",
    "codes": "Thresholds beyond the first levels are searched in memory, each step by "
    "the one before.",
    "top": "The codes of 16 rows are first put in the order of the tree's columns.",
    "tiles": "A row's next tile is loaded from where its last one says: from L2 or L3, "
    "16 rows at a time, with an address of its own for each.",
    "sums": "Walks that go on below the lanes wait for each hop, and a CPU foresees "
    "few of their ends; leaf values come from L2 or L3.",
    "walk": "A hop waits for the node that the one before has chosen.",
    "pieces": "Rows in a piece seldom fill its registers.",
    "buckets": "A row's place in its bucket waits for the count before it.",
}
