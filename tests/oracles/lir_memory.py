"""What the interpreted program calls: memory, launches, arithmetic that may fail.

Every access is bounds-checked and every undefined operation is a ``Fault``; the
interpreter adds the statement it happened in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from fractions import Fraction
from itertools import product
from typing import Any, NoReturn

import numpy as np

from skforge.compiler.ir.lir.nodes import Scalar

DTYPES: dict[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_), "u8": np.dtype(np.uint8), "i16": np.dtype(np.int16),
    "u16": np.dtype(np.uint16), "u32": np.dtype(np.uint32), "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64), "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}  # fmt: skip

Array = np.ndarray[Any, Any]
# One buffer: the typed array, its memoryview (faster for single integers), its
# length and its bytes.
Memory = tuple[Array, memoryview, int, Array]
POISON = 0xA5


class Fault(Exception):
    """The program did something LIR leaves undefined."""


def fault(text: str) -> NoReturn:
    """Stop the program."""
    raise Fault(text)


# ---------------------------------------------------------------- memory


def memory_of(array: Array) -> Memory:
    """Return the four views of a contiguous one-dimensional array."""
    return array, array.data, len(array), array.view(np.uint8)


def allocate(element: Scalar, size: int) -> Memory:
    """Return ``size`` elements that show when they are read before written."""
    if size < 0:
        fault(f"allocates {size} elements")
    dtype = DTYPES[element.name]
    array = np.empty(size, dtype)
    array.view(np.uint8).fill(POISON)
    if element.is_float:
        array.fill(np.nan)
    return memory_of(array)


def window(raw: Array, start: int, dtype: np.dtype[Any]) -> Memory:
    """Return the memory of another buffer from a byte on, as numbers of a type."""
    if not 0 <= start <= len(raw):
        fault(f"byte {start} is outside the buffer's {len(raw)} bytes")
    whole = (len(raw) - start) // dtype.itemsize * dtype.itemsize
    return memory_of(raw[start : start + whole].view(dtype))


def out_of_range(index: int, length: int) -> NoReturn:
    """Report an access outside a buffer."""
    fault(f"index {index} is outside the buffer's {length} elements")


def _span(raw: Array, index: int, element_bytes: int, size: int) -> slice:
    start = index * element_bytes
    if not 0 <= start <= start + size <= len(raw):
        fault(
            f"index {index} ({size} bytes from byte {start}) is outside the "
            f"buffer's {len(raw) // element_bytes} elements"
        )
    return slice(start, start + size)


def load_bytes(
    raw: Array, index: int, element_bytes: int, dtype: np.dtype[Any], count: int
) -> Array:
    """Return ``count`` numbers from the bytes at element ``index``."""
    span = _span(raw, index, element_bytes, dtype.itemsize * count)
    numbers: Array = raw[span].copy().view(dtype)
    return numbers


def store_bytes(raw: Array, index: int, element_bytes: int, values: Array) -> None:
    """Write the bytes of ``values`` at element ``index``."""
    raw[_span(raw, index, element_bytes, values.nbytes)] = values.view(np.uint8)


def _check_lanes(raw: Array, starts: Array, element_bytes: int, size: int) -> None:
    bad = (starts < 0) | (starts + size > len(raw))
    if bad.any():
        lane = int(np.argmax(bad))
        fault(
            f"index {int(starts[lane]) // element_bytes} is outside the buffer's "
            f"{len(raw) // element_bytes} elements"
        )


def gather(
    raw: Array,
    index: Array,
    element_bytes: int,
    dtype: np.dtype[Any],
    mask: Array | None = None,
    other: Array | None = None,
) -> Array:
    """Load lane by lane; lanes whose mask is false give ``other``."""
    result = np.empty(len(index), dtype) if other is None else other.copy()
    starts = index.astype(np.int64) * element_bytes
    if mask is not None:
        starts = starts[mask]
    _check_lanes(raw, starts, element_bytes, dtype.itemsize)
    picked = raw[starts[:, None] + np.arange(dtype.itemsize)].view(dtype)[:, 0]
    result[slice(None) if mask is None else mask] = picked
    return result


def scatter(raw: Array, index: Array, element_bytes: int, values: Array) -> None:
    """Store lane by lane; indices must be distinct."""
    starts = index.astype(np.int64) * element_bytes
    size = values.itemsize
    _check_lanes(raw, starts, element_bytes, size)
    if len(np.unique(starts)) < len(starts):
        fault("two lanes write the same element")
    bytes_ = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), size)
    raw[starts[:, None] + np.arange(size)] = bytes_


# ---------------------------------------------------------------- arithmetic


def divide(a: int, b: int, low: int, high: int) -> int:
    """Return a / b truncated toward zero."""
    if b == 0:
        fault("division by zero")
    quotient = abs(a) // abs(b)
    if (a < 0) != (b < 0):
        quotient = -quotient
    if not low <= quotient <= high:
        fault("the quotient overflows")
    return quotient


def remainder(a: int, b: int, low: int, high: int) -> int:
    """Return what ``divide`` leaves, with a's sign."""
    return a - divide(a, b, low, high) * b


def divide_lanes(a: Array, b: Array) -> Array:
    """Divide integer vectors, truncating toward zero."""
    info = np.iinfo(a.dtype)
    if (b == 0).any():
        fault("division by zero")
    if info.min < 0 and ((a == info.min) & (b == -1)).any():
        fault("the quotient overflows")
    quotient: Array = (a - np.fmod(a, b)) // b
    return quotient


def remainder_lanes(a: Array, b: Array) -> Array:
    """Return what ``divide_lanes`` leaves."""
    divide_lanes(a, b)
    left: Array = np.fmod(a, b)
    return left


def count_zeros(a: Any, bits: int) -> Any:
    """Return the number of the lowest set bit, or ``bits`` where none is."""
    if isinstance(a, np.ndarray):
        return np.array([count_zeros(int(x), bits) for x in a], a.dtype)
    low = int(a) & ((1 << bits) - 1)
    return (low & -low).bit_length() - 1 if low else bits


def check_shift(count: Any, bits: int) -> None:
    """Refuse a shift by less than zero or by all bits or more."""
    if not np.all((count >= 0) & (count < bits)):
        fault(f"shifts {bits} bits by {count}")


def truncate(a: float, low: int, high: int) -> int:
    """Convert to an integer; what does not fit gives the lowest, as x86 does."""
    if math.isfinite(a) and low <= int(a) <= high:
        return int(a)
    return low


def bitcast(a: Any, source: np.dtype[Any], target: np.dtype[Any], lanes: int) -> Any:
    """Return the bits of a number or vector as others; ``lanes`` 0 is a number."""
    bits = np.atleast_1d(np.asarray(a, source)).view(target)
    return bits if lanes else bits[0]


def mask_bits(mask: Array) -> int:
    """Return lane i as bit i."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


def compress(a: Array, mask: Array) -> Array:
    """Return the selected lanes at the front, zeros after them."""
    packed = np.zeros_like(a)
    chosen = a[mask]
    packed[: len(chosen)] = chosen
    return packed


def popcount_lanes(a: Array) -> Array:
    """Return the set bits of every lane of an integer vector."""
    raw = np.ascontiguousarray(a).view(np.uint8).reshape(len(a), a.itemsize)
    counts: Array = np.unpackbits(raw, axis=1).sum(axis=1).astype(a.dtype)
    return counts


# ---------------------------------------------------------------- parallel order


class Order:
    """Decides the order of iterations that LIR leaves open."""

    def __init__(self, seed: int | None) -> None:
        self._random = None if seed is None else np.random.default_rng(seed)

    def threads(self) -> int:
        """Return how many threads there are, any number when there is a seed."""
        return 1 if self._random is None else int(self._random.integers(1, 9))

    def items(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return ``items``, shuffled when there is a seed."""
        if self._random is None:
            return items
        return [items[i] for i in self._random.permutation(len(items))]

    def blocks(self, counts: Sequence[int]) -> Sequence[tuple[int, ...]]:
        """Return the positions of a launch's blocks."""
        return self.items(list(product(*map(range, counts))))


class Block:
    """One block of a launch: its threads and their private memory."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._shape: dict[str, int] | None = None

    def threads(
        self, dims: Sequence[str], counts: Sequence[int]
    ) -> Sequence[tuple[int, ...]]:
        """Return (thread number, position …) of each thread of a region."""
        shape = dict(zip(dims, counts, strict=True))
        if self._shape is not None and shape != self._shape:
            fault(f"a region of {shape} in a block whose regions had {self._shape}")
        self._shape = shape
        x, y = shape.get("block.x", 1), shape.get("block.y", 1)
        place = {"block.x": 1, "block.y": x, "block.z": x * y}
        steps = [place[dim] for dim in dims]
        return self._order.items(
            [
                (sum(p * s for p, s in zip(position, steps, strict=True)), *position)
                for position in product(*map(range, counts))
            ]
        )


class Private:
    """A private buffer of a block: each thread has its own copy, made when touched."""

    def __init__(self, element: Scalar, size: int) -> None:
        self._element, self._size = element, size
        self._copies: dict[int, Memory] = {}

    def of(self, thread: int) -> Memory:
        """Return the copy of one thread."""
        if thread not in self._copies:
            self._copies[thread] = allocate(self._element, self._size)
        return self._copies[thread]


# A thread pauses at a warp_reduce with (which statement, width, its value).
Pause = tuple[int, int, Any]
Thread = Generator[Pause, Any, None]


def run_warps(body: Callable[..., Thread], threads: Sequence[tuple[int, ...]]) -> None:
    """Run a region's threads side by side, each a generator that pauses at reductions.

    A warp goes on when all its threads have paused at the same reduction. The sum is
    the butterfly that shuffles compute: offsets width/2 … 1, the same in every thread.
    """
    running = {thread[0]: body(*thread) for thread in threads}
    paused: dict[int, Pause] = {}

    def advance(number: int, value: Any) -> None:
        try:
            paused[number] = running[number].send(value)
        except StopIteration:
            del running[number]

    for number in list(running):
        advance(number, None)
    while paused:
        ready = None
        for number, (statement, width, _) in paused.items():
            first = number - number % width
            warp = range(first, first + width)
            if all(paused.get(t, (None, None))[:2] == (statement, width) for t in warp):
                ready = warp
                break
        if ready is None:
            fault(
                f"threads {sorted(paused)} wait in a warp_reduce that other threads of "
                "their warp never reach"
            )
        values = [paused.pop(t)[2] for t in ready]
        offset = len(values) // 2
        while offset:
            values = [v + values[i ^ offset] for i, v in enumerate(values)]
            offset //= 2
        for thread, value in zip(ready, values, strict=True):
            advance(thread, value)


def fused(a: Any, b: Any, c: Any, dtype: Any) -> Any:
    """Return a * b + c rounded once, of scalars or vectors of finite numbers."""
    triples = np.broadcast(a, b, c)
    exact = [
        Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        for x, y, z in triples
    ]
    made = np.array([_rounded(one, dtype) for one in exact], dtype)
    return made.reshape(triples.shape) if triples.shape else made[0]


def _rounded(exact: Fraction, dtype: Any) -> Any:
    """Return the number of a dtype nearest to a fraction, even on ties."""
    near = np.dtype(dtype).type(float(exact))
    around = (
        near,
        np.nextafter(near, near.dtype.type(np.inf)),
        np.nextafter(near, -near.dtype.type(np.inf)),
    )
    bits = f"u{near.itemsize}"
    return min(
        around, key=lambda x: (abs(Fraction(float(x)) - exact), x.view(bits) & 1)
    )
