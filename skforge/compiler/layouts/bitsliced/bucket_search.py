"""Searches among the thresholds of a column by buckets, one of which a value reads.

The buckets of a column divide the range of its thresholds evenly, and so many that each
has at most one; that of several tests is one. A monotonic function (scale, shift,
clamp) maps a value to its bucket. It passes every threshold of a lower bucket and none
of a higher one::

    for each row:
      places[row] = bucket of x
    for each row:
      threshold, codes below and above it = entries[places[row]]
      code = the one above if x passes the threshold, else the one below
      planes = bits of the code

If that takes too many buckets, as among thresholds that are chosen exactly, or if rows
are wide, each has up to four. A byte tells how many thresholds come before a bucket,
and a value is compared with those that follow; those of higher buckets are not passed::

    code = before[bucket of x]
    code += ones(x passes threshold[code : code + 4])

Loads of single entries take less time than vector registers take for the half of a
search among many thresholds: their pivots do not fit one permute. (Zen 3, 8 values:
a search of 6, 7 and 8 levels takes 6.9, 11.6 and 21 ns, 512, 1024 and 2048 buckets 4.8;
.7 of that of entries stored for eight rows and read again; gathers take longer.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Int64s
from skforge.compiler.binning.buckets import bucket_of, clamped, spread
from skforge.compiler.binning.transpose import unpacked
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import (
    F32,
    F64,
    I32,
    I64,
    U8,
    U16,
    U32,
    Buffer,
    Value,
    Vec,
)

#: Tells which lanes of a vector pass thresholds.
Passes = Callable[[Value], Value]

#: Most buckets of a column: the entries of more do not stay in L1.
MOST_BUCKETS = 2048

#: Most bytes of all columns' buckets, which each block reads again from caches: 800
#: columns of 255 thresholds (5 MB) took 2.4 times as long as their search by levels.
MOST_BYTES = 2 << 20

#: Most thresholds of a bucket, if one takes too many buckets, and most such buckets.
#: (Up to two in 4096 buckets take as long.)
FEW, MOST_OF_FEW = 4, 1024

#: Rows of a register, and those whose codes become bits at once.
LANES, ROWS = 8, 32

#: Numbers before the entries; among them, where the thresholds before buckets are.
HEAD, BEFORE = 4, 3

#: What the code above a threshold is multiplied by.
ABOVE = 256

#: The order of eight pairs, so that shuffles within the 128-bit halves of two registers
#: return the first of each in order.
_PAIRS = (0, 1, 4, 5, 2, 3, 6, 7)
_FIRSTS = (0, 2, 8, 10, 4, 6, 12, 14)


def bucket_table(thresholds: Array) -> Array | None:
    """Return the numbers of a job; None if its thresholds need too many buckets.

    They are scale, shift, last bucket and a spare one, and each bucket's threshold with
    the codes of values below and above it, as the bits of one number.
    """
    distinct = np.unique(thresholds)
    finite = distinct[np.isfinite(distinct)].astype(np.float64)
    if len(finite) < 2:
        return None
    enough = (finite[-1] - finite[0]) / np.diff(
        finite
    ).min()  # fewer may do, as they lie by chance
    count = 1 << len(distinct).bit_length()
    while count < enough / 4:
        count *= 2
    while count <= MOST_BUCKETS:
        scale, shift = _spread(distinct, count)
        bucket, after = _buckets(distinct, scale, shift, count)
        if np.all(after[:-1] < bucket[1:]):
            return _entries(thresholds, distinct, bucket, after, scale, shift)
        count *= 2
    return None


def _spread(thresholds: Array, count: int, edge: int = 0) -> tuple[Any, Any]:
    """Spread thresholds from half a bucket after the first one to half before the last.

    At the edge of a bucket, the number after a threshold would be in the next one.
    """
    dtype = thresholds.dtype.type
    scale, shift = spread(thresholds, count - 1, edge)
    return dtype(scale), dtype(shift + 0.5)


def _buckets(x: Array, scale: float, shift: float, count: int) -> tuple[Int64s, Int64s]:
    """Return the buckets of thresholds and of the numbers after them.

    Those are compared with the thresholds, too: float64 values may tie (``ties.py``).
    """
    last = x.dtype.type(count - 1)
    bucket = bucket_of(x, scale, shift, last)
    with np.errstate(over="ignore"):
        after = bucket_of(np.nextafter(x, np.inf, dtype=x.dtype), scale, shift, last)
    return bucket, after


def _entries(
    thresholds: Array,
    distinct: Array,
    bucket: Int64s,
    after: Int64s,
    scale: float,
    shift: float,
) -> Array:
    # The last bucket has a threshold, which NaN passes if it passes all.
    entries = np.full((bucket[-1] + 1, 2), np.inf, thresholds.dtype)
    tests = np.zeros(len(entries))
    tests[bucket] = np.unique(thresholds, return_counts=True)[1]
    above = np.cumsum(tests)
    for first, last, threshold in zip(bucket, after, distinct, strict=True):
        entries[first : last + 1, 0] = threshold
    codes = (above - tests + ABOVE * above).astype(np.uint32)
    entries[:, 1] = codes.view(np.float32)
    head = np.array([scale, shift, bucket[-1], 0], thresholds.dtype)
    return np.concatenate([head, entries.ravel()])


def table_of_few(thresholds: Array) -> tuple[Array, NDArray[np.uint8]] | None:
    """Return the numbers of a job whose buckets have up to ``FEW`` thresholds.

    They are the same head and the sorted thresholds; beside them, how many come before
    each bucket. None if too many buckets would be needed.
    """
    thresholds = np.sort(thresholds)
    count = 1 << (len(thresholds) // FEW).bit_length()
    while count <= MOST_OF_FEW:
        for edge in (0, FEW - 1):
            scale, shift = _spread(thresholds, count, edge)
            bucket, after = _buckets(thresholds, scale, shift, count)
            every = np.arange(bucket[-1] + 1)
            before = np.searchsorted(after, every)
            held = np.searchsorted(bucket, every, side="right") - before
            if held.max() <= FEW:
                head = np.array([scale, shift, bucket[-1], 0], thresholds.dtype)
                padding = np.full(FEW - 1, np.inf, thresholds.dtype)
                numbers = np.concatenate([head, thresholds, padding])
                return numbers, before.astype(np.uint8)
        count *= 2
    return None


class BucketSearch:
    """Emits the search of a column of a block of rows, ``ROWS`` rows a turn."""

    def __init__(self, part: int) -> None:
        self._places = b.alloc("bucket_places", I32, part)

    def find(
        self,
        numbers: Buffer,
        offset: Value,
        rows: Value,
        vector: Callable[[Value], Value],
        missing_last: bool,
    ) -> None:
        """Write the buckets of rows, of which ``vector`` returns those from one on."""
        scale, shift, last = (b.splat(numbers[offset + k], LANES) for k in range(3))
        whole = (rows + (ROWS - 1)) & -ROWS  # turns read places past the last row
        with b.loop(0, whole, LANES, hint="row") as r:
            y = vector(r) * scale + shift
            self._places[r] = clamped(y, last, missing_last).to(I32)

    def code(
        self, numbers: Buffer, first: Value, rows: list[Value], passes: Passes
    ) -> Value:
        """Return the codes of eight rows, whose bucket has the entry from ``first``."""
        entries = b.view("own_entries", F64, numbers, first)
        pairs = [entries[self._places[rows[k]].to(I64)] for k in _PAIRS]
        vec, packed = Vec(F32, LANES), (b.pack(pairs[k : k + 4]) for k in (0, 4))
        low, high = (b.reinterpret(half, vec) for half in packed)
        threshold = b.shuffle(low, high, _FIRSTS)
        codes = b.shuffle(low, high, [k + 1 for k in _FIRSTS])
        both = b.reinterpret(codes, Vec(U32, LANES))
        return b.select(passes(threshold), both >> 8, both)

    def code_of_few(
        self,
        before: Buffer,
        numbers: Buffer,
        first: Value,
        rows: list[Value],
        passes: Passes,
    ) -> Value:
        """Return the codes of eight rows, whose bucket has up to ``FEW`` thresholds.

        ``before`` has the thresholds before each bucket.
        """
        codes = [before[self._places[row].to(I64)] for row in rows]
        own = b.view("own_thresholds", F32, numbers, first)
        entries = [own[code.to(I64), Vec(F32, FEW)] for code in codes]
        none, one = (b.const(k, Vec(U32, LANES)) for k in (0, 1))
        passed = [b.select(passes(x), one, none) for x in _transposed(entries)]
        return reduce(add, passed, b.pack(codes).to(U32))


def _transposed(entries: list[Value]) -> list[Value]:
    halves = zip(entries[:4], entries[4:], strict=True)
    found = [b.shuffle(low, high, range(LANES)) for low, high in halves]
    for unit in (1, 2):
        pairs = list(zip(found[::2], found[1::2], strict=True))
        orders = [unpacked(LANES, 4, unit, high) for high in (False, True)]
        found = [b.shuffle(x, y, order) for order in orders for x, y in pairs]
    return found


def rows_of_turn(r: Value) -> Iterator[tuple[Value, Value]]:
    """Yield where the halves of four vectors begin: packs return their 32 in order."""
    for k in range(0, ROWS // 2, LANES // 2):
        yield r + k, r + (k + ROWS // 2)


def store_codes(
    planes: Buffer, at: Value, line: int, codes: list[Value], n: int
) -> None:
    """Store bit k of the codes of 32 rows, of n bits, ``k * line`` bytes on."""
    w, x, y, z = (code & 255 for code in codes)  # known zeros make packs of shuffles
    two = Vec(U16, ROWS // 2)
    bits = _packed(_packed(w, x, two), _packed(y, z, two), Vec(U8, ROWS)) << (8 - n)
    top = b.const(1 << 7, bits.type)
    for k in reversed(range(n)):
        b.store(planes, at + k * line, b.mask_bits(bits >= top, U32))
        bits = bits + bits


def _packed(x: Value, y: Value, vec: Vec) -> Value:
    """Return every other number of two vectors: of 128 bits those of x, then of y."""
    n, half = vec.lanes, vec.lanes // 2
    ends = [(at, side) for at in (0, half) for side in (0, n)]
    lanes = [side + k for at, side in ends for k in range(at, at + half, 2)]
    return b.shuffle(b.reinterpret(x, vec), b.reinterpret(y, vec), lanes)
