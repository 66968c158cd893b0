"""The least time a part of a kernel could take, by what it must at least do.

Formulas, not models: each says so in words, and the clock they need is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.cli.report import interleave
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I64, Buffer, Function, Value, Vec
from skforge.compiler.ir.lir.types import scalar_of
from skforge.compiler.runtime.cpu.jit import JitModule, compile_functions
from skforge.compiler.target import Target
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
    timing = interleave(chain_call, rounds=401, seconds=0.4)
    return _CHAIN * times / min(timing.samples["chain"]) * 1e-9


def plain_sum(rows: NDArray[Any], target: Target) -> Callable[[], object]:
    """Return a call that reads every value of some rows and adds it up in vectors."""
    element = scalar_of(rows.dtype)
    vec = Vec(element, target.lanes(8 * element.bytes))
    data, result, n = Buffer("data", element), Buffer("result", element), _count()
    flight = 8
    with Builder() as b:
        sums = [b.const(0.0, vec)] * flight
        with b.loop(0, n, flight * vec.lanes, carry=sums) as i:
            sums[:] = [s + data[i + k * vec.lanes, vec] for k, s in enumerate(sums)]
        for k, value in enumerate(sums):
            result[b.const(k * vec.lanes)] = value
    function = Function("plain_sum", (data, result, n), b.finish())
    module: JitModule = compile_functions([function], target)
    step = flight * vec.lanes
    out, whole = np.zeros(step, rows.dtype), rows.size // step * step
    return lambda: call(module, "plain_sum", [rows, out, whole])


def _count() -> Value:
    return Value("n", I64)


def block_floors(
    forest: Forest, target: Target, ghz: float, sum_ns: float
) -> dict[str, Floor]:
    """Return the floors of a kernel that evaluates predicates for blocks of rows.

    ``sum_ns`` are the nanoseconds a row of a plain vector sum of the rows. The part
    ``search`` has no floor of its own: it is a way to the lines.
    """
    width = target.vector_bits  # rows a vector of bits
    vector = width // 8
    nodes = forest.n_nodes - forest.n_leaves
    ops = 1 if target.has_mask_registers else 3
    sums = forest.leaf_value.shape[1] * forest.accumulator_dtype.itemsize
    out = forest.n_outputs * forest.accumulator_dtype.itemsize
    bits = f"{width} rows"

    def cycles(a_row: float, formula: str) -> Floor:
        return Floor(a_row / ghz, formula)

    return {
        "columns": Floor(sum_ns, "a vector sum of the same rows, measured"),
        "lines": cycles(
            forest.n_predicates / width,
            f"{forest.n_predicates:,} predicates, search included: a {vector}-byte "
            f"store a cycle for {bits}",
        ),
        "fold": cycles(
            nodes * max(1 / 2, ops / 4) / width,
            f"{nodes:,} nodes, for {bits} each a line read, 2 a cycle, and {ops} "
            f"logic op{'s' if ops > 1 else ''}, 4 a cycle",
        ),
        "index": cycles(
            forest.n_trees * 4 / 2 / vector,
            f"{forest.n_trees:,} trees, 4 shuffles for {vector} leaf numbers, 2 a "
            "cycle",
        ),
        "look-up": cycles(
            forest.n_trees * sums / vector / 2,
            f"{forest.n_trees:,} trees, an addition for {vector // sums or 1} sums, "
            "2 a cycle",
        ),
        "output": cycles(out / vector, f"{out} bytes a row, {vector} stored a cycle"),
    }


def walk_floors(forest: Forest, ghz: float, hops: float) -> dict[str, Floor]:
    """Return the floors of a kernel that walks: loads and stores a cycle.

    ``hops`` is the mean number of nodes that a row passes in all its trees.
    """
    trees, width = forest.n_trees, forest.leaf_value.shape[1]
    return {
        "walk": Floor(
            hops / ghz, f"{hops:,.0f} hops a row, a node and a feature: 2 loads a cycle"
        ),
        "look-up": Floor(
            trees * width / 2 / ghz, f"{trees:,} trees, a load each, 2 a cycle"
        ),
        "sum": Floor(
            trees * width / 4 / ghz,
            f"{trees:,} trees, an addition each, 4 a cycle, sums in registers",
        ),
    }


def mean_hops(forest: Forest, leaves: NDArray[np.int32]) -> float:
    """Return the mean of all hops of a row, given its leaves as ``apply`` does."""
    depths, source = forest.node_depths(), forest.source_node
    total = 0.0
    for tree in range(forest.n_trees):
        here = slice(*forest.tree_offset[tree : tree + 2].tolist())
        nodes = np.flatnonzero(forest.leaf[here] >= 0) + here.start
        order = nodes[np.argsort(source[nodes])]
        at = order[np.searchsorted(source[order], leaves[:, tree])]
        total += float(depths[at].mean())
    return total
