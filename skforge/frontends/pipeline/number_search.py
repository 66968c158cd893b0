"""Searches over the numbers of a dtype in their order, for many items at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from skforge._typing import Array, Bools, Int64s

#: Tells for numbers, and the places of these among the items of a search.
Alike: TypeAlias = Callable[[Array, Array], Bools]

_MOST_AT_ONCE = 4096  # numbers tried in a step of a search, if there are few items


def last_alike(start: Array, end: Array, alike: Alike) -> Array:
    """Return the last numbers on the way from start to end that are alike.

    ``alike`` is true at ``start``, and once false it stays false up to ``end``.
    """
    near, far = ordinals(start), ordinals(end)
    near = np.where(alike(end, np.arange(len(end))), far, near)
    while len(item := np.flatnonzero((far > near + 1) | (near > far + 1))):
        n_ways = int(np.clip(_MOST_AT_ONCE // len(item), 2, 64))
        low, high = near[item, None], far[item, None]
        step = high // n_ways - low // n_ways
        step += np.where(step == 0, np.sign(high - low), 0)
        tried = low + step * np.arange(1, n_ways)
        up = high > low
        tried = np.where(up, np.minimum(tried, high - 1), np.maximum(tried, high + 1))
        numbers = numbers_at(tried.ravel(), start.dtype)
        same = alike(numbers, np.repeat(item, n_ways - 1)).reshape(tried.shape)
        n_same = np.where(same.all(axis=1), n_ways - 1, same.argmin(axis=1))
        tried = np.column_stack([low, tried, high])
        row = np.arange(len(item))
        near[item], far[item] = tried[row, n_same], tried[row, n_same + 1]
    return numbers_at(near, start.dtype)


def last_power(sign: Array, alike: Alike, largest: float) -> Array:
    """Return powers of two up to which numbers are alike: bounds need not be exact."""
    powers = np.append(2.0 ** np.arange(-8, np.log2(largest) // 1), largest)
    near, far = np.full(len(sign), -1), np.full(len(sign), len(powers))
    every = np.arange(len(sign))
    while (far > near + 1).any():
        middle = np.minimum((near + far + 1) // 2, len(powers) - 1)
        same = alike(sign * powers[middle], every)
        near, far = np.where(same, middle, near), np.where(same, far, middle)
    return np.asarray(sign * np.where(near < 0, 0.0, powers[near]))


def next_number(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(np.nextafter(x, x.dtype.type(np.inf)))


def ordinals(x: Array) -> Int64s:
    """Return the ordinals of finite numbers in their order; 0 for both zeros.

    >>> ordinals(np.array([-5e-324, -0.0, 0.0, 5e-324])).tolist()
    [-1, 0, 0, 1]
    """
    kind = np.int64 if x.dtype == np.float64 else np.int32
    bits = np.ascontiguousarray(x).view(kind).astype(np.int64)
    return np.where(bits >= 0, bits, -(bits & np.iinfo(kind).max))


def numbers_at(ordinal: Int64s, dtype: np.dtype[np.floating]) -> Array:
    bits = np.abs(ordinal).astype(np.int64 if dtype == np.float64 else np.int32)
    return np.where(ordinal >= 0, dtype.type(1), dtype.type(-1)) * bits.view(dtype)


def distance(low: Int64s, high: Int64s) -> Int64s:
    """Return the distance of ordinals, which may be more than int64 holds."""
    return np.minimum((high - low).view(np.uint64), 2**62).astype(np.int64)
