"""Binary searches in vector registers: many values at once, pivots by permutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import Buffer, Value, Vec
from skforge.compiler.target import Target


@dataclass(frozen=True, slots=True)
class Registers:
    """How a target's vector registers hold row values and search among pivots."""

    lanes: int  # values of a register
    levels: int  # most levels of a search; 0: comparing every threshold is better
    lockstep: int  # registers of rows that are searched together
    permuted: int  # registers of pivots that one permute looks up in
    #: Levels from which buckets take less time (``bucket_search.py``); 9: none do.
    buckets: int = 9
    packs: bool = False  # whether masks of values are packed to bytes

    @classmethod
    def of(cls, target: Target, dtype: np.dtype[Any]) -> Registers:
        """Return how a target holds values of a dtype.

        512-bit registers hold the 255 pivots of eight levels of float32. With AVX2,
        most of them are operands in memory: one search of up to eight levels takes .95
        of the time of several searches of five (Zen 3, 14 forests). On 90
        columns a lockstep of 1, 2, 4 and 8 took 75, 75, 70 and 84 ns a row with 32
        registers, and 163, 157, 175 and 192 with 16: a single search waits for its
        look-ups, many spill.
        """
        item = dtype.itemsize
        lanes = max(2, target.vector_bits // (8 * item))
        levels = 0
        if target.has_mask_registers:
            levels = 8 if item == 4 else 6
        elif target.has("avx2") and item == 4 and lanes == 8:
            levels = 8
        return cls(
            lanes=lanes,
            levels=levels,
            lockstep=4 if target.vector_registers >= 32 else 2,
            permuted=2 if target.has_mask_registers else 1,
            buckets=6 if levels and not target.has_mask_registers else 9,
            packs=bool(levels) and not target.has_mask_registers,
        )

    def pivots(
        self, thresholds: Array, levels: int, fill: float, low_first: bool
    ) -> list[Array]:
        """Return the pivots of each level of a search, indexed by the answers so far.

        With ``low_first`` the first answer is the lowest bit of the index, else the
        highest. Levels fill registers; missing thresholds become ``fill``.
        """
        padded = np.full(1 << levels, fill)
        padded[: len(thresholds)] = thresholds
        parts = []
        for j in range(levels):
            entry = np.arange(max(self.lanes, 1 << j)) & ((1 << j) - 1)
            prefix = entry
            if low_first:
                bits = entry[:, None] >> np.arange(j) & 1
                prefix = (bits << np.arange(j)[::-1]).sum(axis=1)
            parts.append(padded[(prefix << (levels - j)) + (1 << (levels - j - 1)) - 1])
        return parts

    def load_pivots(
        self, numbers: Buffer, offset: Value, levels: int
    ) -> list[list[Value]]:
        n, vec = self.lanes, Vec(numbers.element, self.lanes)
        tables: list[list[Value]] = []
        at = 0
        for j in range(levels):
            places = range(at, at + max(n, 1 << j), n)
            tables.append([numbers[offset + k, vec] for k in places])
            at += n * len(places)
        return tables

    def pivot_of(
        self, table: Sequence[Value], index: Value, answers: Sequence[Value]
    ) -> Value:
        """Look up the pivots of a level, one in each lane.

        Answer k of the search is bit k of ``index``. If one permute cannot take the
        whole table, the answers select among its parts: testing the index again would
        cost a fifth of the search.
        """
        if not answers:
            return table[0]
        if len(table) <= self.permuted:
            return b.permute(table, index)
        half = len(table) // 2
        bit = (half * index.type.lanes).bit_length() - 1
        low = self.pivot_of(table[:half], index, answers)
        high = self.pivot_of(table[half:], index, answers)
        return b.select(answers[bit], high, low)
