"""What needs no library: SHA-256 and the loops of NumPy give their own bits."""

from __future__ import annotations

import ctypes
import hashlib

import numpy as np
import pytest

from skforge.runtime.digests import sha256
from skforge.runtime.numpy_loops import address_of


@pytest.mark.parametrize("n", [0, 1, 55, 1 << 12, 1 << 18, 3 << 17])
def test_digests_are_those_of_hashlib(n):
    data = np.random.default_rng(n).integers(0, 256, n, np.uint8)
    halves = data[: n // 2].tobytes(), data[n // 2 :].data
    known = hashlib.sha256(data.tobytes()).hexdigest()
    assert sha256(*halves).hexdigest() == known


def test_wide_numbers_count_by_their_bytes():
    numbers = np.arange(9.0)
    assert sha256(numbers).digest() == hashlib.sha256(numbers.tobytes()).digest()


# ------------------------------------------------------------ numpy loops


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["power", "exp", "add"])
def test_loops_give_the_bits_of_the_function(name, dtype) -> None:
    address, function = address_of(name, dtype), getattr(np, name)
    assert address is not None
    values = np.random.default_rng(0).normal(size=(function.nin, 40)).astype(dtype)
    values[0] = abs(values[0])
    found = np.zeros(40, dtype)
    arrays = [*values, found]
    pointers = (ctypes.c_void_p * len(arrays))(*(x.ctypes.data for x in arrays))
    count = ctypes.c_ssize_t(40)
    steps = (ctypes.c_ssize_t * len(arrays))(*(x.itemsize for x in arrays))
    loop = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(address)
    loop(pointers, ctypes.byref(count), steps, None)
    assert found.tobytes() == function(*values).tobytes()
