"""How many cache lines of a forest's data some rows reach.

A node is reached by a share of the rows, which the training rows tell. Lines are
counted by their shares, rounded to powers of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.forest import Forest

Counts = NDArray[np.float64]

#: Bytes of a cache line.
LINE = 64

#: Shares are counted down to 2 ** -RAREST.
RAREST = 40

_SHARES = 2.0 ** -np.arange(RAREST)


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """Numbers of lines by the share of rows that reach them: 1, 1/2, 1/4 and so on."""

    lines: Counts

    @classmethod
    def of(cls, rarity: NDArray[np.integer[Any]], size: float) -> Reach:
        """Count the lines of items of ``size`` bytes that lie in order.

        One of about ``2 ** rarity`` rows reaches an item; a line that holds several is
        reached by as many more rows.
        """
        common = round(log2(max(1.0, LINE / size)))
        found = np.bincount(rarity, minlength=RAREST)
        found = np.append(found[: common + 1].sum(), found[common + 1 :])
        return cls(np.asarray(np.pad(found, (0, common)) * (size / LINE), np.float64))

    @property
    def size(self) -> float:
        """Bytes of all lines."""
        return float(self.lines.sum()) * LINE

    def distinct(self, rows: Counts) -> Counts:
        """Return how many different lines some rows reach."""
        few, place = np.unique(rows, return_inverse=True)
        missed = np.power(1.0 - _SHARES, few[:, None])
        found = (1.0 - missed) @ self.lines
        return np.asarray(found[place.reshape(rows.shape)])


def shares(forest: Forest) -> Counts:
    """Return the share of rows that reach each node.

    The leaves weigh as much as training rows ended there, or else all the same.
    """
    leaves = forest.leaf >= 0
    weight = leaves.astype(np.float64)
    if len(forest.cover) and float(forest.cover[leaves].sum()) > 0:
        weight[leaves] = np.maximum(forest.cover[leaves], 0.0)
    inner = np.flatnonzero(~leaves)
    depth = forest.node_depths()[inner].astype(np.int16)
    order = inner[np.argsort(depth, kind="stable")]
    for level in np.split(order, np.cumsum(np.bincount(depth))[:-1])[::-1]:
        weight[level] = weight[forest.left[level]] + weight[forest.right[level]]
    whole = np.repeat(weight[forest.tree_offset[:-1]], np.diff(forest.tree_offset))
    return np.asarray(weight / np.maximum(whole, 1e-300))


def rarity(share: Counts) -> NDArray[np.integer[Any]]:
    """Return k for shares of about ``2 ** -k``."""
    exponent = np.frexp(share * 2**0.5)[1]
    return np.asarray(np.clip(1 - exponent, 0, RAREST - 1))
