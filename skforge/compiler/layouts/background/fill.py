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

Of these, missed[s, a] - missed[s, a without j] miss j. A leaf of D features takes some
2**D D**2 steps, while pairs of patterns would take 3**D.

``LEAVES`` leaves of a tree with as many features are in the lanes of a vector.
"""

from __future__ import annotations

import numpy as np

from skforge._typing import Float64s
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder, b
from skforge.compiler.ir.lir.nodes import F64, I64, U16, Buffer, Value, Vec
from skforge.compiler.layouts.background.patterns import LEAVES, MOST_BITS, SLOTS

NAME = "fill_tables"

#: Numbers that the function takes, in front of its buffers.
NUMBERS = (
    "n_trees",
    "n_outputs",
    "table_size",
    "n_met",
    "n_missed",
    "n_parts",
    "n_without",
)

#: Its buffers: those of ``Patterns``, counts, values of leaves, weights and tables.
BUFFERS: dict[str, lir.Scalar] = {
    "batch_start": I64, "batches": I64, "leaf_distinct": I64, "leaf_group": I64,
    "entry_start": I64, "entry_mask": U16, "entry_value": U16, "leaf_slot": I64,
    "bits": I64, "slot_start": I64, "count_start": I64, "table_start": I64,
    "counts": I64, "values": F64, "weights": F64, "tables": F64,
}  # fmt: skip

LANES, INDICES, PLACES = Vec(F64, LEAVES), Vec(I64, LEAVES), Vec(F64, SLOTS)

#: Patterns whose conditions are found together.
TOGETHER = 16

#: Entries of the weights for a number of features.
_SIDE = MOST_BITS + 1


def weights() -> Float64s:
    """Return a! (c-1)! / (a+c)! by a and c, 0 for c = 0."""
    table = np.zeros((_SIDE, _SIDE))
    c = np.arange(1, _SIDE)
    table[0, 1:] = 1 / c
    for a in range(1, _SIDE):
        table[a, 1:] = table[a - 1, 1:] * (a / (a + c))
    return table.reshape(-1)


def scratch(bits: int, distinct: int, slots: int) -> tuple[int, ...]:
    size = 1 << distinct
    missed, without = (distinct + 1) * size * LEAVES, size * LEAVES
    return max(TOGETHER, 1 << bits), missed, size * slots, without


def fill_function() -> lir.Function:
    numbers = {name: Value(name, I64) for name in NUMBERS}
    buffers = {name: Buffer(name, element) for name, element in BUFFERS.items()}
    b = Builder()
    with b, b.parallel(numbers["n_trees"]) as tree:
        fill = _Fill(numbers, buffers)
        start = buffers["batch_start"]
        with b.loop(start[tree], start[tree + 1], hint="batch") as batch:
            fill.batch(batch)
    params: tuple[Value | Buffer, ...] = (*numbers.values(), *buffers.values())
    return lir.Function(NAME, params, b.finish())


class _Fill:
    def __init__(self, numbers: dict[str, Value], buffers: dict[str, Buffer]) -> None:
        self._number, self._of = numbers, buffers
        self._met = b.alloc("met", U16, numbers["n_met"] * LEAVES)
        self._missed = b.alloc("missed", F64, numbers["n_missed"])
        self._parts = b.alloc("parts", F64, numbers["n_parts"] * LEAVES)
        self._places = b.alloc("places", I64, (_SIDE + 1) * LEAVES)
        self._without = b.alloc("without", F64, numbers["n_without"])
        self._one = b.const(1)

    def batch(self, batch: Value) -> None:
        of = self._of
        first, count = of["batches"][batch * 2], of["batches"][batch * 2 + 1]
        distinct = of["leaf_distinct"][first]
        size = self._one << distinct
        with b.loop(0, (distinct + 1) * size * LEAVES, LEAVES, hint="clear") as i:
            self._missed[i] = b.const(0.0, LANES)
        with b.loop(count, hint="lane") as lane:
            self._meet(first + lane, lane)
            self._count(first + lane, lane, distinct, size)
        with b.loop(distinct + 1, hint="s") as s:
            self._add_subsets(s * size, distinct, size)
        with b.loop(LEAVES, hint="lane") as lane:
            self._place(first + lane.min(count - 1), lane, distinct, size)
        with b.loop(size, hint="a") as a:
            self._part(a, distinct, size)
        with b.loop(count, hint="lane") as lane:
            self._expand(first + lane, lane)

    def _meet(self, leaf: Value, lane: Value) -> None:
        of, type_ = self._of, Vec(U16, TOGETHER)
        entries = [of["entry_start"][leaf + k] for k in (0, 1)]
        size = self._slots(of["leaf_group"][leaf])[0]
        start = lane * self._number["n_met"]
        with b.loop(0, size, TOGETHER, hint="pattern") as first:
            pattern = b.iota(U16, TOGETHER) + first.to(U16)
            state = [b.const(0, type_), b.const(1, type_)]
            with b.loop(*entries, carry=state, hint="entry") as entry:
                met, bit = state
                is_met = (pattern & of["entry_mask"][entry]).eq(
                    b.splat(of["entry_value"][entry], TOGETHER)
                )
                met = met | b.select(is_met, bit, 0)
                state[:] = [met, bit + bit]
            self._met[start + first] = state[0]

    def _count(self, leaf: Value, lane: Value, distinct: Value, size: Value) -> None:
        of = self._of
        group, start = of["leaf_group"][leaf], lane * self._number["n_met"]
        counts = of["count_start"][group]
        with b.loop(self._one << of["bits"][group], hint="pattern") as pattern:
            met = self._met[start + pattern].to(I64)
            misses = met ^ (size - 1)
            s = b.popcount(misses)
            at = ((s << distinct) + misses) * LEAVES + lane
            number = of["counts"][counts + pattern].to(F64)
            self._missed[at] = self._missed[at] + number

    def _add_subsets(self, first: Value, distinct: Value, size: Value) -> None:
        missed = self._missed
        with b.loop(distinct, hint="j") as j:
            bit = self._one << j
            with b.loop(size >> self._one, hint="a") as a:
                # The bits of ``a`` below and above bit j, which is 0.
                without = (first + a + a - (a & (bit - 1))) * LEAVES
                at = without + bit * LEAVES
                missed[at] = missed[at, LANES] + missed[without, LANES]

    def _place(self, leaf: Value, lane: Value, distinct: Value, size: Value) -> None:
        of = self._of
        start = lane * self._number["n_parts"]
        slots = self._slots(of["leaf_group"][leaf])[1]
        with b.loop(0, size * slots, SLOTS, hint="clear") as i:
            self._parts[start + i] = b.const(0.0, PLACES)
        self._places[lane] = slots
        with b.loop(distinct, hint="j") as j:
            slot = of["leaf_slot"][of["entry_start"][leaf] + j]
            self._places[(j + 1) * LEAVES + lane] = start + slot

    def _slots(self, group: Value) -> tuple[Value, Value]:
        first, last = (self._of["slot_start"][group + k] for k in (0, 1))
        return self._one << self._of["bits"][group], last - first

    def _part(self, a: Value, distinct: Value, size: Value) -> None:
        """Store what each feature gets from leaves of value 1, if a row meets ``a``.

        The gains of all features are at least as large as what is subtracted.
        """
        missed, weights = self._missed, self._of["weights"]
        met = b.popcount(a)
        lacks = distinct - met
        own, larger = lacks * _SIDE, (lacks - 1).max(0) * _SIDE
        # For conditions not in ``a``, for those in it, and for sets of one more.
        state = [b.const(0.0, LANES)] * 3
        with b.loop(met + 1, carry=state, hint="s") as s:
            number = missed[(s * size + a) * LEAVES, LANES]
            at = s * _SIDE + lacks, own + s, larger + s
            state[:] = [
                total + number * weights[place]
                for total, place in zip(state, at, strict=True)
            ]
        loss, whole, self._without[a * LEAVES] = b.negate(state[0]), *state[1:]
        row = self._places[0, INDICES] * a
        with b.loop(distinct, hint="j") as j:
            bit = a & (self._one << j)
            gain = whole - self._without[(a - bit) * LEAVES, LANES]
            value = b.select(bit.ne(0), gain, loss)
            self._parts[self._places[(j + 1) * LEAVES, INDICES] + row] = value

    def _expand(self, leaf: Value, lane: Value) -> None:
        of = self._of
        group, start = of["leaf_group"][leaf], lane * self._number["n_met"]
        parts = lane * self._number["n_parts"]
        patterns, slots = self._slots(group)
        n_outputs = self._number["n_outputs"]
        with b.loop(n_outputs, hint="output") as output:
            value = b.splat(of["values"][leaf * n_outputs + output], SLOTS)
            table = output * self._number["table_size"] + of["table_start"][group]
            with b.loop(0, slots, SLOTS, hint="slot") as slot:
                first = table + slot * patterns
                with b.loop(patterns, hint="pattern") as pattern:
                    met = self._met[start + pattern].to(I64)
                    part = self._parts[parts + met * slots + slot, PLACES] * value
                    at = first + pattern * SLOTS
                    of["tables"][at] = of["tables"][at, PLACES] + part
