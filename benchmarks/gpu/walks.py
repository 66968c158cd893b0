"""Real rows walked through real trees: which addresses the lanes of a warp read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.reference import evaluate_predicates
from skforge.compiler.ir.hir.nodes import PredictEnsemble

Array = NDArray[Any]

BANKS, LINE, SECTOR = 32, 128, 32


@dataclass(frozen=True, slots=True)
class Paths:
    """The hops of some rows through some trees.

    Parameters
    ----------
    item : ndarray of int, shape (rows, trees, hops)
        Where each hop reads its node; -1 after the leaf, unless walks are padded.
    predicate : ndarray of int, shape (rows, trees, hops)
        What it tests; -1 at leaves.
    """

    item: Array
    predicate: Array

    @property
    def hops(self) -> Array:
        """Hops of each row through each tree."""
        found: Array = (self.item >= 0).sum(axis=2)
        return found


def walk(hir: PredictEnsemble, rows: Array, trees: Array) -> Paths:
    """Walk rows through trees, by their places in walking order.

    Of a tile of several nodes, the last is given: those before it may be dummies.
    """
    tiles, forest = hir.tiles, hir.forest
    at = np.tile(tiles.item_offset[trees], (len(rows), 1))
    items, tests = [], []
    every = np.arange(len(rows))[:, None]
    while True:
        inner = tiles.leaf[at] < 0
        if not inner.any():
            break
        items.append(np.where(inner, at, -1))
        outcome = np.zeros_like(at)  # a bit for each test, the first one's on top
        for slot in range(tiles.tile_size):
            test = np.where(inner, tiles.predicate[at, slot], -1)
            known = np.maximum(test, 0)
            value = rows[np.broadcast_to(every, at.shape), forest.feature[known]]
            left = evaluate_predicates(forest, known.ravel(), value.ravel())
            outcome = 2 * outcome + (left.reshape(at.shape) & (test >= 0))
        tests.append(test)
        taken = tiles.exit_table[tiles.shape[at], outcome]
        at = np.where(inner, tiles.child[at, taken], at)
    if not items:
        none = np.zeros((len(rows), len(trees), 0), np.int64)
        return Paths(none, none)
    return Paths(np.stack(items, axis=2), np.stack(tests, axis=2))


def bank_cycles(words: Array) -> float:
    """Return the mean cycles of reads of shared memory.

    Parameters
    ----------
    words : ndarray of int, shape (reads, lanes)
        Addresses in words; -1 for lanes that do not read. Lanes that read one word
        share it; others of one bank take turns.

    Examples
    --------
    >>> bank_cycles(np.arange(32)[None] * 32), bank_cycles(np.arange(32)[None])
    (32.0, 1.0)
    """
    count = _distinct(words, BANKS)
    return float(count.mean()) if len(count) else 0.0


def line_cycles(addresses: Array) -> float:
    """Return the mean number of cache lines that a read of a warp touches."""
    reads = (addresses >= 0).any(axis=1)
    lines = np.where(addresses >= 0, addresses // LINE, -1)[reads]
    lines = np.sort(lines, axis=1)
    new = np.ones_like(lines, dtype=bool)
    new[:, 1:] = lines[:, 1:] != lines[:, :-1]
    new &= lines >= 0
    return float(new.sum(axis=1).mean()) if len(lines) else 0.0


def sectors(addresses: Array) -> int:
    """Return how many sectors of memory all reads together touch."""
    return len(np.unique(addresses[addresses >= 0] // SECTOR))


def _distinct(words: Array, n_banks: int) -> Array:
    """Return, of each read, the most distinct words that one bank has to give."""
    words = words[(words >= 0).any(axis=1)]
    read = np.broadcast_to(np.arange(len(words))[:, None], words.shape)
    present = words >= 0
    key = np.unique(read[present].astype(np.int64) << 40 | words[present])
    bank = (key >> 40) * n_banks + (key & ((1 << 40) - 1)) % n_banks
    number = np.bincount(bank, minlength=len(words) * n_banks)
    found: Array = number.reshape(len(words), n_banks).max(axis=1)
    return found
