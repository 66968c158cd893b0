"""Enumerate, vectorised, which trees the loops of a nest reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.schedule.bound import BoundLoop
from skforge.compiler.schedule.nest import size_value


def tree_positions(
    path: Sequence[BoundLoop], upto: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Enumerate the walking positions that a path of nested loops reaches.

    Return, for every tree reached, the sum of the tree variables of ``path[:upto]`` and
    that of all tree variables. Batch loops are skipped.
    """
    values: dict[str, NDArray[np.int64]] = {}
    count = 1
    for loop in path:
        if loop.root != "tree":
            continue
        high = np.full(count, np.iinfo(np.int64).max)
        for bound in loop.bounds:
            less = sum((values[v] for v in bound.minus), np.zeros(count, np.int64))
            high = np.minimum(high, size_value(bound.limit, 0) - less)
        start, step = size_value(loop.start, 0), size_value(loop.step, 0)
        trips = np.maximum(0, -(-(high - start) // step))
        which = np.repeat(np.arange(count), trips)
        first = np.repeat(np.cumsum(trips) - trips, trips)
        values = {name: value[which] for name, value in values.items()}
        values[loop.name] = start + step * (np.arange(len(which)) - first)
        count = len(which)
    zero = np.zeros(count, np.int64)
    names = [loop.name for loop in path[:upto] if loop.root == "tree"]
    partial = sum((values[name] for name in names), zero)
    return partial, sum(values.values(), zero)


def leaf_paths(
    loop: BoundLoop, path: tuple[BoundLoop, ...]
) -> Iterator[tuple[BoundLoop, ...]]:
    if not loop.body:
        yield path
    for inner in loop.body:
        yield from leaf_paths(inner, (*path, inner))
