"""The CPU's SIMT machine finds each kind of bug.

That right kernels pass without a report is asked by ``test_emulated_source.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skforge.exceptions import CompilerError
from tests.simt.source import SourceDevice
from tests.simt_server import Order, SanitizedDevice, order_number
from tests.simt_tools import MODES, ORDERS, close, device_of, need

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


# ---------------------------------------------------------------- a right kernel


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("sanitize", "order"), EVERYWHERE)
def test_a_sum_in_shared_memory(sanitize: Any, order: Order) -> None:
    out = sums("tree_sum", sanitize, order)
    assert_array_equal(out[:4], X.reshape(4, 64).sum(1))


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


# ---------------------------------------------------------------- launches


# ---------------------------------------------------------------- building
