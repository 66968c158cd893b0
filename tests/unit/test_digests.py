"""SHA-256 with and without hashlib."""

import hashlib

import numpy as np
import pytest

from skforge.runtime.digests import sha256


@pytest.mark.parametrize("n", [0, 1, 55, 1 << 12, 1 << 18, 3 << 17])
def test_digests_are_those_of_hashlib(n):
    data = np.random.default_rng(n).integers(0, 256, n, np.uint8)
    halves = data[: n // 2].tobytes(), data[n // 2 :].data
    known = hashlib.sha256(data.tobytes()).hexdigest()
    assert sha256(*halves).hexdigest() == known


def test_wide_numbers_count_by_their_bytes():
    numbers = np.arange(9.0)
    assert sha256(numbers).digest() == hashlib.sha256(numbers.tobytes()).digest()
