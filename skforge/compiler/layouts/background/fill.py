"""Fills the tables of contributions from the counts of the background rows' patterns.

Take a leaf of value v, a row that meets the conditions a of it, and a background row
that misses the conditions y. The leaf counts in their game if y is part of a. With
s = |y| and t conditions that the row misses, each feature of y gains
v (s-1)! t! / (s+t)!, and each feature that the row misses loses v s! (t-1)! / (s+t)!
(Lundberg et al. 2020, Algorithm 3). So all that a table needs to know is how many
background rows miss s conditions that are all in a::

    missed[s, a] = background rows that miss just the conditions a, if these are s
    for each feature j:
        missed[s, a] += missed[s, a without j]  for all a with j

Of these, missed[s, a] - missed[s, a without j] miss j. All are whole numbers, and so
exact. A leaf of D features takes some 2**D D**2 steps, while pairs of patterns would
take 3**D.

``LEAVES`` leaves of a tree with as many features are in the lanes of a vector.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import F64, I64, U16, Buffer, Value, Vec
from skforge.compiler.layouts.background.patterns import LEAVES, MOST_BITS, SLOTS

NAME = "fill_tables"

#: Numbers that the function takes, in front of its buffers.
NUMBERS = ("n_trees", "n_outputs", "table_size", "n_missed", "n_parts", "n_spread")

#: Its buffers: those of ``Patterns``, counts, values of leaves, weights and tables.
BUFFERS: dict[str, lir.Scalar] = {
    "batch_start": I64, "batches": I64, "leaf_distinct": I64, "leaf_group": I64,
    "map_start": I64, "entry_start": I64, "leaf_slot": I64, "conditions": U16,
    "bits": I64, "slot_start": I64, "count_start": I64, "table_start": I64,
    "counts": I64, "values": F64, "weights": F64, "tables": F64,
}  # fmt: skip

LANES, PLACES = Vec(F64, LEAVES), Vec(F64, SLOTS)

#: Entries of the weights for a number of features.
_SIDE = MOST_BITS + 1


def weights() -> NDArray[np.float64]:
    """Return a! (c-1)! / (a+c)! by a and c, 0 for c = 0."""
    table = np.zeros((_SIDE, _SIDE))
    c = np.arange(1, _SIDE)
    table[0, 1:] = 1 / c
    for a in range(1, _SIDE):
        table[a, 1:] = table[a - 1, 1:] * (a / (a + c))
    return table.reshape(-1)


def scratch(distinct: int, slots: int) -> tuple[int, int, int]:
    """Return how many numbers leaves of so many features and slots need at most."""
    size = 1 << distinct
    return (distinct + 1) * size * LEAVES, distinct * size * LEAVES, slots * size


def fill_function() -> lir.Function:
    numbers = {name: Value(name, I64) for name in NUMBERS}
    buffers = {name: Buffer(name, element) for name, element in BUFFERS.items()}
    b = Builder()
    with b, b.parallel(numbers["n_trees"]) as tree:
        fill = _Fill(b, numbers, buffers)
        start = buffers["batch_start"]
        with b.loop(start[tree], start[tree + 1], hint="batch") as batch:
            fill.batch(batch)
    params: tuple[Value | Buffer, ...] = (*numbers.values(), *buffers.values())
    return lir.Function(NAME, params, b.finish())


class _Fill:
    def __init__(
        self, b: Builder, numbers: dict[str, Value], buffers: dict[str, Buffer]
    ) -> None:
        self.b, self._number, self._of = b, numbers, buffers
        self._missed = b.alloc("missed", F64, numbers["n_missed"])
        self._parts = b.alloc("parts", F64, numbers["n_parts"])
        self._spread = b.alloc("spread", F64, numbers["n_spread"])
        self._one = b.const(1)

    def batch(self, batch: Value) -> None:
        b, of = self.b, self._of
        first, count = of["batches"][batch * 2], of["batches"][batch * 2 + 1]
        distinct = of["leaf_distinct"][first]
        size = self._one << distinct
        with b.loop(0, (distinct + 1) * size * LEAVES, LEAVES, hint="clear") as i:
            self._missed[i] = b.const(0.0, LANES)
        with b.loop(count, hint="lane") as lane:
            self._count(first + lane, lane, distinct, size)
        with b.loop(distinct + 1, hint="s") as s:
            self._add_subsets(s * size, distinct, size)
        with b.loop(size, hint="a") as a:
            self._part(a, distinct, size)
        with b.loop(count, hint="lane") as lane:
            self._expand(first + lane, lane, distinct)

    def _count(self, leaf: Value, lane: Value, distinct: Value, size: Value) -> None:
        """Count the background rows by what they miss."""
        of = self._of
        group, conditions = of["leaf_group"][leaf], of["map_start"][leaf]
        counts = of["count_start"][group]
        with self.b.loop(self._one << of["bits"][group], hint="pattern") as pattern:
            met = of["conditions"][conditions + pattern].to(I64)
            misses = met ^ (size - 1)
            s = self.b.popcount(misses)
            at = ((s << distinct) + misses) * LEAVES + lane
            number = of["counts"][counts + pattern].to(F64)
            self._missed[at] = self._missed[at] + number

    def _add_subsets(self, first: Value, distinct: Value, size: Value) -> None:
        b, missed = self.b, self._missed
        with b.loop(distinct, hint="j") as j:
            bit = self._one << j
            with (
                b.loop(0, size, bit + bit, hint="high") as high,
                b.loop(bit, hint="low") as low,
            ):
                without = (first + high + low) * LEAVES
                at = without + bit * LEAVES
                missed[at] = missed[at, LANES] + missed[without, LANES]

    def _part(self, a: Value, distinct: Value, size: Value) -> None:
        """Store what each feature gets from leaves of value 1, if a row meets ``a``."""
        b, missed, weights = self.b, self._missed, self._of["weights"]
        met = b.popcount(a)
        lacks = distinct - met
        at, step = a * LEAVES, size * LEAVES
        loss = [b.const(0.0, LANES)]
        with b.loop(met + 1, carry=loss, hint="s") as s:
            weight = weights[s * _SIDE + lacks]
            loss[0] = loss[0] - missed[at + s * step, LANES] * weight
        lost = loss[0]
        with b.loop(distinct, hint="j") as j:
            bit = self._one << j

            def gained(bit: Value = bit) -> Value:
                gain = [b.const(0.0, LANES)]
                with b.loop(1, met + 1, carry=gain, hint="s") as s:
                    place = at + s * step
                    mine = missed[place, LANES] - missed[place - bit * LEAVES, LANES]
                    gain[0] = gain[0] + mine * weights[lacks * _SIDE + s]
                return gain[0]

            value = b.either((a & bit).ne(0), gained, lambda: lost)
            self._parts[(a * distinct + j) * LEAVES] = value

    def _expand(self, leaf: Value, lane: Value, distinct: Value) -> None:
        """Add a leaf's contributions to the table of its group."""
        b, of = self.b, self._of
        group, conditions = of["leaf_group"][leaf], of["map_start"][leaf]
        patterns = self._one << of["bits"][group]
        first_slot = of["slot_start"][group]
        slots = of["slot_start"][group + 1] - first_slot
        met_all = self._one << distinct
        with b.loop(0, met_all * slots, SLOTS, hint="clear") as i:
            self._spread[i] = b.const(0.0, PLACES)
        with b.loop(distinct, hint="j") as j:
            slot = of["leaf_slot"][of["entry_start"][leaf] + j]
            with b.loop(met_all, hint="a") as a:
                part = self._parts[(a * distinct + j) * LEAVES + lane]
                self._spread[a * slots + slot] = part
        n_outputs = self._number["n_outputs"]
        with b.loop(n_outputs, hint="output") as output:
            value = b.splat(of["values"][leaf * n_outputs + output], SLOTS)
            table = output * self._number["table_size"] + of["table_start"][group]
            with b.loop(0, slots, SLOTS, hint="slot") as slot:
                first = table + slot * patterns
                with b.loop(patterns, hint="pattern") as pattern:
                    met = of["conditions"][conditions + pattern].to(I64)
                    part = self._spread[met * slots + slot, PLACES] * value
                    at = first + pattern * SLOTS
                    of["tables"][at] = of["tables"][at, PLACES] + part
