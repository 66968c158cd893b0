"""Normalise predicates to one comparison for thresholds and one for category sets.

Before: a forest whose predicates mix comparisons. After: all ordering predicates are LT
or all are LE; equality tests are EQ, and category tests IN (or MEMBER, which has no
opposite). The same rows reach the same leaves. A test becomes its opposite by swapping
its children::

    x >  t ? a : b   ->   x <= t ? b : a        missing values go the other way
    x >= t ? a : b   ->   x <  t ? b : a
    x != t ? a : b   ->   x == t ? b : a
    x not in s ? a : b -> x in s ? b : a

Where both LT and LE remain, the rarer one becomes the commoner by moving its threshold
to the neighbouring number, since no value of that dtype lies between the two. An
infinite threshold has no such neighbour, but its test is constant::

    x <= +inf ? a : b    always a   ->   x <  -inf ? b : a
    x <  -inf ? a : b    always b   ->   x <= +inf ? b : a
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Bools
from skforge.forest.arrays import Comparison
from skforge.forest.forest import Forest
from skforge.forest.predicates import deduplicate_predicates


def run(forest: Forest) -> tuple[Forest, Literal["lt", "le"]]:
    """Return an equivalent forest and its comparison, the commoner; "lt" on a tie."""
    test = forest.comparison
    swapped = (Comparison.GT, Comparison.GE, Comparison.NE, Comparison.NOT_IN)
    swap = np.isin(test, swapped)
    test = _OPPOSITE[test]
    less = int((test == Comparison.LT).sum())
    at_most = int((test == Comparison.LE).sum())
    wanted = Comparison.LT if less >= at_most else Comparison.LE
    name: Literal["lt", "le"] = "lt" if wanted == Comparison.LT else "le"
    moved = (test != wanted) & np.isin(test, (Comparison.LT, Comparison.LE))
    if not swap.any() and not moved.any():
        return forest, name

    infinity = forest.input_dtype.type(np.inf)
    # direction in which thresholds move: x < t is x <= (t's lower neighbour)
    way = infinity if wanted == Comparison.LT else -infinity
    constant = moved & (forest.threshold == way)
    with np.errstate(over="ignore", under="ignore"):
        neighbour = np.nextafter(forest.threshold, way)
    threshold = np.where(moved, neighbour, forest.threshold)
    threshold = np.where(constant, -way, threshold)
    swap ^= constant
    test = np.where(moved, np.uint8(wanted), test)
    return _rebuilt(forest, test, threshold, swap), name


def _rebuilt(
    forest: Forest,
    test: NDArray[np.uint8],
    threshold: NDArray[np.floating[Any]],
    swap: Bools,
) -> Forest:
    offset = forest.category_offset
    sets = {
        int(p): forest.category_words[offset[p] : offset[p + 1]]
        for p in np.flatnonzero(test >= Comparison.IN)
    }
    distinct, index = deduplicate_predicates(
        forest.feature,
        test,
        threshold,
        forest.missing,
        forest.missing_left ^ swap,
        sets,
    )
    fields: dict[str, Any] = {**distinct}
    # leaves have the predicate -1, which is the last
    swapped = np.append(swap, False)[forest.predicate]
    return replace(
        forest,
        predicate=np.append(index, np.int32(-1))[forest.predicate],
        left=np.where(swapped, forest.right, forest.left),
        right=np.where(swapped, forest.left, forest.right),
        **fields,
    )


# LT for GE, LE for GT, EQ for NE, IN for NOT_IN; the others stay
_OPPOSITE = np.arange(len(Comparison), dtype=np.uint8)
_OPPOSITE[[Comparison.GE, Comparison.GT]] = Comparison.LT, Comparison.LE
_OPPOSITE[[Comparison.NE, Comparison.NOT_IN]] = Comparison.EQ, Comparison.IN
_OPPOSITE.flags.writeable = False
