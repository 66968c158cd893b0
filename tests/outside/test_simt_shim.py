"""The CPU's SIMT machine: right kernels are right, and each kind of bug is found.

Every planted bug has its right counterpart here, which must pass without a report.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skforge.exceptions import CompilerError, TargetError
from tests.simt import build as emulated_build
from tests.simt.source import SourceDevice
from tests.simt_server import Order, SanitizedDevice, order_number
from tests.simt_tools import MODES, ORDERS, close, device_of, need, scratch_of

EVERYWHERE = tuple(product(MODES, ORDERS))
X = np.random.default_rng(0).integers(-1000, 1000, 256)

DATA = Path(__file__).parents[1] / "data"
RIGHT = (DATA / "simt_right.cu").read_text(encoding="utf-8")
# All are in one text, which is compiled once for each sanitizer.
TEXT = RIGHT + (DATA / "simt_wrong.cu").read_text(encoding="utf-8")

_devices: dict[Any, SourceDevice] = {}


def device(sanitize: Any = None, order: Order = "forward") -> SourceDevice:
    """Return the device of all kernels; skips where it cannot be made."""
    need(sanitize)
    if sanitize not in _devices:
        _devices[sanitize] = device_of(TEXT, sanitize)
    _devices[sanitize].order = order_number(order)
    return _devices[sanitize]


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    yield
    for made in _devices.values():
        close(made)
    _devices.clear()


ONE = (1, 1, 1)


def places_args(grid: Any, block: Any) -> list[tuple[str, Any]]:
    out = np.zeros((np.prod(grid) * np.prod(block), 6), np.uint32)
    sizes = [("i32", n) for n in (*block, *grid[:2])]
    return [*sizes, ("pointer", out)]


def pointers(*arrays: np.ndarray[Any, Any]) -> list[tuple[str, Any]]:
    return [("pointer", array) for array in arrays]


def sums(kernel: str, sanitize: Any = None, order: Order = "forward") -> Any:
    """Run a kernel (x, out) on 4 blocks of 64 threads."""
    out = np.zeros(256, np.int64)
    run = device(sanitize, order)
    run.launch(kernel, (4, 1, 1), (64, 1, 1), 512, pointers(X, out))
    return out


def line_of(kernel: str, fragment: str, number: int = 0) -> int:
    """Return the line of the ``number``-th occurrence of a text in a kernel."""
    start = TEXT.index(f" {kernel}(")
    for _ in range(number + 1):
        start = TEXT.index(fragment, start + 1)
    return TEXT.count("\n", 0, start) + 1


# ---------------------------------------------------------------- right kernels


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("sanitize", "order"), EVERYWHERE)
def test_a_sum_in_shared_memory(sanitize: Any, order: Order) -> None:
    out = sums("tree_sum", sanitize, order)
    assert_array_equal(out[:4], X.reshape(4, 64).sum(1))


@pytest.mark.parametrize(("sanitize", "order"), EVERYWHERE)
def test_blocks_of_two_dimensions(sanitize: Any, order: Order) -> None:
    x = np.arange(21 * 37, dtype=np.float32).reshape(21, 37)
    out = np.zeros((37, 21), np.float32)
    args = [("pointer", x), ("i32", 21), ("i32", 37), ("pointer", out)]
    run = device(sanitize, order)
    run.launch("transpose", (3, 3, 1), (16, 8, 1), 17 * 8 * 4, args)
    assert_array_equal(out, x.T)


@pytest.mark.parametrize(("sanitize", "order"), EVERYWHERE)
def test_shuffles(sanitize: Any, order: Order) -> None:
    x, out, eight = X.astype("i4"), np.zeros(256, "i4"), np.zeros(256)
    run = device(sanitize, order)
    run.launch("shuffles", (4, 1, 1), (64, 1, 1), 0, pointers(x, out, eight))
    assert_array_equal(out, np.repeat(x.reshape(-1, 32).sum(1), 32))
    assert_array_equal(eight, np.repeat(x.reshape(-1, 8).sum(1), 8))


@pytest.mark.parametrize(("sanitize", "order"), EVERYWHERE)
def test_shuffles_of_some_lanes(sanitize: Any, order: Order) -> None:
    x, out = X[:64].astype("i4"), np.zeros(64, "i4")
    run = device(sanitize, order)
    run.launch("some_groups", ONE, (64, 1, 1), 0, pointers(x, out))
    groups = x.reshape(-1, 8)
    each = np.where(np.arange(8)[:, None] % 2, groups.sum(1, keepdims=True), groups)
    assert_array_equal(out, np.repeat(each.reshape(-1, 32).sum(1), 32))


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("sanitize", "order"), EVERYWHERE)
@pytest.mark.parametrize("threads", [1, 33, 96])
def test_atomics(sanitize: Any, order: Order, threads: int) -> None:
    x = (X % 10).astype("i4")
    out, weight, wide = np.zeros(10, "i4"), np.zeros(1, "f4"), np.zeros(1)
    count, total = np.zeros(1, "u4"), np.zeros(1, "i8")
    args = [("pointer", x), ("i64", len(x)), ("i32", threads)]
    args += pointers(out, weight, wide, count, total)
    run = device(sanitize, order)
    run.launch("histogram", (3, 1, 1), (threads, 1, 1), 40, args)
    assert_array_equal(out, np.bincount(x, minlength=10))
    n = 3 * threads
    assert (weight[0], wide[0], count[0], total[0]) == (n / 2, n / 4, n, n << 40)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("grid", "block"),
    [((3, 2, 2), (4, 3, 2)), ((2, 1, 1), (1024, 1, 1)), ((1, 1, 5), (1, 7, 64))],
)
def test_places_in_block_and_grid(grid: Any, block: Any, order: Order) -> None:
    args = places_args(grid, block)
    device(None, order).launch("places", grid, block, 0, args)
    everywhere = [range(n) for n in (*grid[::-1], *block[::-1])]
    expected = [p[::-1] for p in product(*everywhere)]
    assert_array_equal(args[-1][1], expected)


def test_block_sizes_change_from_launch_to_launch() -> None:
    random = np.random.default_rng(1)
    for threads in [1024, 1, *random.integers(1, 1025, 12).tolist(), 1024]:
        test_atomics(None, threads, threads)


def test_launches_of_many_threads_of_the_host() -> None:
    device()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: sums("tree_sum")[:4], range(40)))
    assert_array_equal(found, [X.reshape(4, 64).sum(1)] * 40)


def test_words_for_bits() -> None:
    out, wide = np.zeros(5, "u4"), np.zeros(4, "u8")
    f, d = np.zeros(1, "f4"), np.zeros(1)
    device().launch("bits", ONE, (32, 1, 1), 64, pointers(out, wide, f, d))
    assert out.tolist() == [8, 32, 3, 0x3F800000, 0xCDCDCDCD]
    assert wide.tolist() == [64, 64, 40, 0x3FF << 52]
    assert (f[0], d[0]) == (2.0, 2.0)


@pytest.mark.parametrize("sanitize", MODES)
def test_every_type_of_argument(sanitize: Any) -> None:
    out = np.zeros(8)
    values = (True, 255, 65535, (1 << 32) - 1, -(1 << 31), -(1 << 40), 0.1, 0.1)
    types = ("bool", "u8", "u16", "u32", "i32", "i64", "f32", "f64")
    args = [*zip(types, values, strict=True), ("pointer", out)]
    device(sanitize).launch("all_types", ONE, (1, 1, 1), 0, args)
    assert out.tolist() == [*values[:6], np.float32(0.1).item(), 0.1]


def test_scratch_is_aligned_and_of_the_size_asked_for() -> None:
    scratch = scratch_of(1001)
    assert (scratch.nbytes, scratch.ctypes.data % 256) == (1001, 0)
    assert set(scratch.tolist()) == {0xCD}


# ---------------------------------------------------------------- races


RACES = {
    "no_barrier_after_load": "reads part[t + s] unordered",
    "no_barrier_in_tree": "part[t] += part[t + s]",
    "race_between_barriers": "part[t / 2] += 1",
    "shuffle_for_barrier": "part[t ^ 1]",
    "no_atomic": "out[0] +=",
    "no_atomic_after_barriers": "out[0] +=",
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kernel", RACES)
def test_races_are_reported_in_every_order(kernel: str, order: Order) -> None:
    need("thread")
    with (
        SanitizedDevice(TEXT, "thread", order=order) as run,
        pytest.raises(CompilerError, match="ThreadSanitizer: data race") as error,
    ):
        args = pointers(X, np.zeros(256, np.int64))
        run.launch(kernel, (4, 1, 1), (64, 1, 1), 512, args)
    assert f"kernels.cu:{line_of(kernel, RACES[kernel])}" in str(error.value)


@pytest.mark.parametrize("kernel", ["no_barrier_after_load", "no_barrier_in_tree"])
def test_a_missing_barrier_gives_a_wrong_sum_in_some_order(kernel: str) -> None:
    right = X.reshape(4, 64).sum(1)
    wrong = [
        order for order in ORDERS if (sums(kernel, None, order)[:4] != right).any()
    ]
    assert wrong


# ---------------------------------------------------------------- memory


OVERRUNS = {
    "shared_one_past": "heap-buffer-overflow",
    "shared_one_before": "heap-buffer-overflow",
    "shared_read_past": "heap-buffer-overflow",
    "array_read_past": "heap-buffer-overflow",
    "array_written_past": "heap-buffer-overflow",
    "private_past": "mine|stack-buffer-overflow|out of bounds",
    "signed_overflow": "signed integer overflow",
    "misaligned": "misaligned address",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kernel", OVERRUNS)
def test_the_address_sanitizer_reports(kernel: str) -> None:
    device("address")
    x = np.arange(5, 69)
    with (
        SanitizedDevice(TEXT, "address") as run,
        pytest.raises(CompilerError, match=OVERRUNS[kernel]) as error,
    ):
        args = pointers(x, np.zeros(64, np.int64))
        run.launch(kernel, ONE, (64, 1, 1), 512, args)
    first = line_of(kernel, "{")
    assert any(
        f"kernels.cu:{line}" in str(error.value) for line in range(first, first + 8)
    )


@pytest.mark.parametrize(
    ("kernel", "where"),
    [
        ("shared_one_past", "a write to byte 512 of 512 bytes of shared memory"),
        ("shared_one_before", "a write to byte -1 of 512 bytes of shared memory"),
    ],
)
def test_a_write_beside_shared_memory_is_seen_without_a_sanitizer(
    kernel: str, where: str
) -> None:
    with pytest.raises(CompilerError, match=where):
        sums(kernel)


@pytest.mark.parametrize("sanitize", ["address", "thread"])
def test_an_array_that_is_read_only_stays_as_it_is(sanitize: Any) -> None:
    run, x, out = device(sanitize), X[:64].copy(), np.zeros(64, np.int64)
    x.flags.writeable = False
    with pytest.raises(CompilerError, match="wrote to an array that is read-only"):
        run.launch("writes_input", ONE, (64, 1, 1), 0, pointers(x, out))
    assert_array_equal(x, X[:64])


# ---------------------------------------------------------------- divergence

DIVERGENT = {
    "early_return": (
        "thread 0 waits at the barrier in line {}, but thread 40 has returned",
        [("SKF_BARRIER", 0)],
    ),
    "two_barriers": (
        "thread 0 waits at the barrier in line {}, but thread 40 waits at the barrier "
        "in line {}",
        [("SKF_BARRIER", 0), ("SKF_BARRIER", 1)],
    ),
    "one_barrier_more": (
        "thread 0 has returned, but thread 63 waits at the barrier in line {}",
        [("SKF_BARRIER", 0)],
    ),
    "half_a_warp": (
        "thread 0 has returned, but thread 16 waits at the shuffle of 32 lanes in "
        "line {}",
        [("SKF_SHFL", 0)],
    ),
    "two_shuffles": (
        "thread 0 waits at the shuffle of 32 lanes in line {}, but thread 16 waits at "
        "the shuffle of 32 lanes in line {}",
        [("SKF_SHFL", 0), ("SKF_SHFL", 1)],
    ),
    "shuffle_or_barrier": (
        "thread 0 waits at the shuffle of 32 lanes in line {}, but thread 1 waits at "
        "the barrier in line {}",
        [("SKF_SHFL", 0), ("SKF_BARRIER", 0)],
    ),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("sanitize", "order"), EVERYWHERE)
@pytest.mark.parametrize("kernel", DIVERGENT)
def test_divergence_is_an_error_and_the_machine_goes_on(
    kernel: str, sanitize: Any, order: Order
) -> None:
    text, places = DIVERGENT[kernel]
    lines = [line_of(kernel, *place) for place in places]
    run, args = device(sanitize, order), pointers(X, np.zeros(64, np.int64))
    with pytest.raises(CompilerError, match=text.format(*lines)):
        run.launch(kernel, ONE, (64, 1, 1), 0, args)
    test_a_sum_in_shared_memory(sanitize, order)


def test_a_lane_that_is_not_there() -> None:
    args = pointers(X, np.zeros(64, np.int64))
    device().launch("absent_lane", ONE, (64, 1, 1), 0, args)
    line = line_of("absent_lane", "SKF_SHFL")
    text = f"thread 32 reads, at the shuffle in line {line}, from thread 48, which"
    with pytest.raises(CompilerError, match=text):
        device().launch("absent_lane", ONE, (40, 1, 1), 0, args)


# ---------------------------------------------------------------- launches


@pytest.mark.parametrize("sanitize", [None, "address"])
@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (("nowhere", ONE, ONE, 0, []), "the text has no such kernel"),
        (
            ("tree_sum", ONE, ONE, 0, [("i64", 1)]),
            'it takes arguments of types "PP", not "q"',
        ),
        (
            ("tree_sum", ONE, (65, 1, 1), 0, pointers(X, X.copy())),
            "a block of 65 x 1 x 1 threads; the kernel allows 64",
        ),
        (
            ("tree_sum", (1, 1 << 16, 1), ONE, 0, pointers(X, X.copy())),
            "a grid of 1 x 65536 x 1 blocks",
        ),
    ],
)
def test_launches_that_no_gpu_takes(sanitize: Any, launch: Any, message: str) -> None:
    with pytest.raises(CompilerError) as error:
        device(sanitize).launch(*launch)
    assert str(error.value) == f"Kernel {launch[0]!r}, emulated: {message}."


def test_pointers_are_contiguous_arrays() -> None:
    with pytest.raises(TypeError, match="given as a C-contiguous array"):
        device().launch("tree_sum", ONE, ONE, 0, pointers(X[::2], X.copy()))


@pytest.mark.parametrize("order", ["sideways", -1])
def test_orders(order: Any) -> None:
    with pytest.raises(ValueError, match="a seed that is not negative"):
        sums("tree_sum", None, order)


# ---------------------------------------------------------------- building


def test_errors_of_the_text_name_its_lines() -> None:
    need(None)
    with pytest.raises(TargetError, match=r"kernels.cu:2:\d+: error: .*nonsense"):
        SourceDevice("SKF_KERNEL(1) k(int* x)\n{ nonsense(x); }\n")


def test_a_text_without_kernels() -> None:
    need(None)
    with pytest.raises(TargetError, match="The source has no kernel"):
        SourceDevice("int x;\n")


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TargetError, match="'emulated-source' compiles with g\\+\\+"):
        SourceDevice("SKF_KERNEL(1) k(int* x) {}\n")


def test_what_was_built_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    need(None)
    with emulated_build.opened(RIGHT) as path:
        first = path.read_bytes()
    monkeypatch.setattr(emulated_build, "_build", None)
    with emulated_build.opened(RIGHT) as path:
        assert path.read_bytes() == first
