"""Collects bit operations of many trees, each distinct one of a tree once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Odd factors of the halves of a key; products modulo 2**64 spread over the high bits.
_FACTORS = np.array([[0x9E3779B97F4A7C15], [0xC2B2AE3D27D4EB4F]], np.uint64)


class Muxes:
    """Operations ``target = select ? a : b`` on lines; number i writes ``first + i``.

    There is room for ``expected`` of them at first. Each has the time of its first use.
    """

    def __init__(self, zero: int, one: int, first: int, expected: int) -> None:
        self.zero, self.one, self.first = zero, one, first
        self._count = 0
        self._keys = np.zeros((2, 0), np.int64)  # tree and select; a and b
        self._level = np.zeros(0, np.int16)
        self._time = np.zeros(0, np.int64)
        self._table = np.zeros(0, np.int64)  # open addressing: numbers by hash, or -1
        self._reserve(expected)

    @property
    def trees(self) -> NDArray[np.int64]:
        """The tree of each operation."""
        return self._keys[0, : self._count] >> 32

    @property
    def operands(self) -> tuple[NDArray[np.int64], ...]:
        """The lines ``select``, ``a`` and ``b`` of each operation."""
        one, two = self._keys[:, : self._count]
        return one & 0xFFFFFFFF, two >> 32, two & 0xFFFFFFFF

    @property
    def levels(self) -> NDArray[np.int16]:
        """One more than the level of the deepest operation that each reads."""
        return self._level[: self._count]

    @property
    def order(self) -> NDArray[np.int64]:
        """The operations by tree, then by time; none reads a later one."""
        return np.lexsort((self._time[: self._count], self.trees))

    def add(
        self,
        time: NDArray[np.int64],
        tree: NDArray[np.int64],
        select: NDArray[np.int64],
        a: NDArray[np.int64],
        b: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return lines that are ``a`` where ``select`` is set, else ``b``.

        Arguments have shape (n,); the result has, too.
        """
        line = np.where(a == b, a, select)
        new = np.flatnonzero((a != b) & ((a != self.one) | (b != self.zero)))
        select, a, b = select[new], a[new], b[new]
        keys = np.stack([tree[new] << 32 | select, a << 32 | b])
        before = self._count
        number = self._numbers(keys)
        self._set_levels(before)
        np.minimum.at(self._time, number, time[new])
        line[new] = self.first + number
        return line

    def _numbers(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of each operation; those not known yet are added."""
        n = keys.shape[1]
        self._reserve(self._count + n)
        table, known = self._table, self._keys
        found = np.empty(n, np.int64)
        left, at = np.arange(n), self._slots(keys)
        while len(left):
            free = np.flatnonzero(table[at] < 0)
            table[at[free]] = free  # one of those with the same slot wins
            wins = free[table[at[free]] == free]
            last = self._count + len(wins)
            table[at[wins]] = np.arange(self._count, last)
            known[:, self._count : last] = keys[:, wins]
            self._count = last
            number = table[at]
            one, two = known[0, number], known[1, number]
            same = (one == keys[0]) & (two == keys[1])
            found[left[same]] = number[same]
            other = np.flatnonzero(~same)
            left, keys = left[other], keys[:, other]
            at = (at[other] + 1) & (len(table) - 1)
        return found

    def _slots(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place in the table where the search for each key starts."""
        one, two = keys.view(np.uint64) * _FACTORS
        bits = len(self._table).bit_length() - 1
        mixed = one ^ (two >> np.uint64(1))
        slot: NDArray[np.int64] = (mixed >> np.uint64(64 - bits)).view(np.int64)
        return slot

    def _set_levels(self, before: int) -> None:
        """Set the levels of operations added since there were ``before``."""
        one, two = self._keys[:, before : self._count]
        level = self._level[before : self._count]
        for line in (one & 0xFFFFFFFF, two >> 32, two & 0xFFFFFFFF):
            has = np.flatnonzero(line >= self.first)
            number = line[has] - self.first
            level[has] = np.maximum(level[has], self._level[number])
        level += 1

    def _reserve(self, count: int) -> None:
        """Make room for ``count`` operations and keep half of the table free."""
        if count <= len(self._level):
            return
        more = max(count, 2 * len(self._level)) - len(self._level)
        self._keys = np.pad(self._keys, ((0, 0), (0, more)))
        self._level = np.pad(self._level, (0, more))
        latest = np.iinfo(np.int64).max
        self._time = np.pad(self._time, (0, more), constant_values=latest)
        self._table = np.full(1 << (2 * len(self._level)).bit_length(), -1)
        left = np.arange(self._count)
        at = self._slots(self._keys[:, : self._count])
        while len(left):
            free = self._table[at] < 0
            self._table[at[free]] = left[free]
            other = np.flatnonzero(self._table[at] != left)
            left, at = left[other], (at[other] + 1) & (len(self._table) - 1)
