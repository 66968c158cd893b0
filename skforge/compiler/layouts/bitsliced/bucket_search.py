"""Searches among the thresholds of a column by buckets, one of which a value reads.

The buckets of a column divide the range of its thresholds evenly, and so many that each
has at most one; that of several tests is one. A monotonic function (scale, shift,
clamp) maps a value to its bucket. It passes every threshold of a lower bucket and none
of a higher one::

    for each row:
      places[row] = bucket of x
    for each row:
      entries[row] = threshold and codes below and above it, of places[row]
    for each row:
      code = the one above if x passes the threshold, else the one below
      planes = bits of the code

If that takes too many buckets, as among thresholds that are chosen exactly, each has up
to four. A byte tells how many thresholds come before a bucket, and a value is compared
with the four that follow; those of higher buckets are not passed::

    code = before[bucket of x]
    code += ones(x passes threshold[code : code + 4])

Loads of single entries take less time than vector registers take for the half of a
search among many thresholds: their pivots do not fit one permute. (Zen 3, 8 values:
a search of 6, 7 and 8 levels takes 6.9, 11.6 and 21 ns, 512, 1024 and 2048 buckets 5.6,
6.9 and 7.8, gathers as long.)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Int64s
from skforge.compiler.binning.buckets import bucket_of, clamped, spread
from skforge.compiler.binning.transpose import low_bytes, unpacked
from skforge.compiler.ir.lir.builder import b
from skforge.compiler.ir.lir.nodes import F32, I32, I64, U8, U32, Buffer, Value, Vec

#: Most buckets of a column: the entries of more do not stay in L1.
MOST_BUCKETS = 2048

#: Most bytes of all columns' buckets, which each block reads again from caches: 800
#: columns of 255 thresholds (5 MB) took 2.4 times as long as their search by levels.
MOST_BYTES = 2 << 20

#: Most thresholds of a bucket, if one takes too many buckets, and most such buckets.
FEW, MOST_OF_FEW = 4, 1024

#: Rows of a register, and those whose codes become bits at once.
LANES, ROWS = 8, 32

#: What the code above a threshold is multiplied by.
ABOVE = 256

#: Where the entries of eight rows go, so that shuffles within the 128-bit halves of two
#: registers return their thresholds in order.
_ORDER = (0, 1, 4, 5, 2, 3, 6, 7)
_THRESHOLDS = (0, 2, 8, 10, 4, 6, 12, 14)

#: The same for entries of few thresholds, which four registers transpose.
_ORDER_OF_FEW = (0, 2, 4, 6, 1, 3, 5, 7)


def bucket_table(thresholds: Array) -> Array | None:
    """Return the numbers of a job; None if its thresholds need too many buckets.

    They are scale, shift, last bucket and a spare one, and each bucket's threshold with
    the codes of values below and above it, as one number.
    """
    distinct, dtype = np.unique(thresholds), thresholds.dtype.type
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
        scale, shift = map(dtype, spread(distinct, count))
        bucket = bucket_of(distinct, scale, shift, dtype(count - 1))
        if np.all(np.diff(bucket)):
            return _entries(thresholds, distinct, bucket, scale, shift)
        count *= 2
    return None


def _entries(
    thresholds: Array, distinct: Array, bucket: Int64s, scale: float, shift: float
) -> Array:
    # The last bucket has a threshold, which NaN passes if it passes all.
    entries = np.full((bucket[-1] + 1, 2), np.inf, thresholds.dtype)
    tests = np.zeros(len(entries))
    tests[bucket] = np.unique(thresholds, return_counts=True)[1]
    above = np.cumsum(tests)
    entries[bucket, 0] = distinct
    entries[:, 1] = above - tests + ABOVE * above
    head = np.array([scale, shift, bucket[-1], 0], thresholds.dtype)
    return np.concatenate([head, entries.ravel()])


def table_of_few(thresholds: Array) -> tuple[Array, NDArray[np.uint8]] | None:
    """Return the numbers of a job whose buckets have up to ``FEW`` thresholds.

    They are the same head and the sorted thresholds; beside them, how many come before
    each bucket. None if too many buckets would be needed.
    """
    thresholds, dtype = np.sort(thresholds), thresholds.dtype.type
    count = 1 << (len(thresholds) // FEW).bit_length()
    while count <= MOST_OF_FEW:
        for edge in (0, FEW - 1):  # the last bucket has one more than the edge
            scale, shift = map(dtype, spread(thresholds, count, edge))
            bucket = bucket_of(thresholds, scale, shift, dtype(count - 1))
            held = np.bincount(bucket)
            if held.max() <= FEW:
                head = np.array([scale, shift, bucket[-1], 0], thresholds.dtype)
                after = np.full(FEW - 1, np.inf, thresholds.dtype)
                before = (np.cumsum(held) - held).astype(np.uint8)
                return np.concatenate([head, thresholds, after]), before
        count *= 2
    return None


class BucketSearch:
    """Emits the search of a column of a block of rows, a vector at once.

    ``few`` tells whether buckets have up to ``FEW`` thresholds.
    """

    def __init__(self, part: int, few: bool) -> None:
        self._places = b.alloc("bucket_places", I32, part)
        self._entries = b.alloc("bucket_entries", F32, (FEW if few else 2) * part)

    def find(
        self,
        numbers: Buffer,
        offset: Value,
        rows: Value,
        vector: Callable[[Value], Value],
        missing_last: bool,
        before: Buffer | None = None,
    ) -> None:
        """Write the entries of rows, of which ``vector`` returns those from one on.

        ``before`` has the thresholds before each bucket, if these have few.
        """
        scale, shift, last = (b.splat(numbers[offset + k], LANES) for k in range(3))
        with b.loop(0, rows, LANES, hint="row") as r:
            y = vector(r) * scale + shift
            self._places[r] = clamped(y, last, missing_last).to(I32)
        first, size, order = offset + 4, 2, _ORDER
        if before is not None:
            size, order = FEW, _ORDER_OF_FEW
            befores = b.view("own_before", U8, before, numbers[offset + 3].to(I64))
        with b.loop(0, rows, LANES, hint="row") as r:
            places = [self._places[r + k].to(I64) for k in range(LANES)]
            if before is None:
                entries = [first + 2 * place for place in places]
            else:
                codes = [befores[place] for place in places]
                for k, code in enumerate(codes):
                    self._places[r + k] = code.to(I32)
                entries = [first + code.to(I64) for code in codes]
            for k, at in zip(order, entries, strict=True):
                self._entries[size * (r + k)] = numbers[at, Vec(F32, size)]

    def entry_of_few(self, r: Value) -> tuple[list[Value], Value]:
        """Return thresholds of a vector of rows, and how many come before them."""
        at, vec = FEW * r, Vec(F32, LANES)
        found = [self._entries[at + LANES * k, vec] for k in range(FEW)]
        for unit in (1, 2):  # transpose
            pairs = list(zip(found[::2], found[1::2], strict=True))
            halves = [unpacked(LANES, 4, unit, high) for high in (False, True)]
            found = [b.shuffle(x, y, half) for half in halves for x, y in pairs]
        return found, self._places[r, Vec(I32, LANES)].to(U32)

    def entry(self, r: Value) -> tuple[Value, Value, Value]:
        """Return thresholds of a vector of rows, and the codes above and below them."""
        vec = Vec(F32, LANES)
        low, high = self._entries[2 * r, vec], self._entries[2 * r + LANES, vec]
        threshold = b.shuffle(low, high, _THRESHOLDS)
        codes = b.shuffle(low, high, [k + 1 for k in _THRESHOLDS]).to(U32)
        return threshold, codes >> 8, codes & (ABOVE - 1)


def store_codes(
    planes: Buffer, at: Value, line: int, codes: list[Value], n: int
) -> None:
    """Store bit k of the codes of 32 rows, of n bits, ``k * line`` bytes on."""
    bits = low_bytes(codes) << (8 - n)
    top = b.const(1 << 7, bits.type)
    for k in reversed(range(n)):
        b.store(planes, at + k * line, b.mask_bits(bits >= top, U32))
        bits = bits + bits
