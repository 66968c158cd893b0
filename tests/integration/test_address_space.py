"""Kernels load where the address space is in small pieces."""

from __future__ import annotations

import sys

import pytest

from tests.programs import run_python

_IN_PIECES = """
import ctypes, mmap
import numpy as np
from skforge import compile_forest
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import assert_same_bits, expected
from tests.exactness.forests import forest

rows, raw, _ = expected("scalar")
compile_forest(forest("scalar")).predict_raw(rows[:9])  # libraries are loaded

# 8 GB that nothing fits in but holes of one page: constants find room there, the code
# that is longer only beyond
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [
    ctypes.c_long
]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # reserves nothing


def take(size):
    return libc.mmap(None, size, 0, flags, -1, 0)


size = 8 << 30
start = take(size)
for piece in (1 << 24, 1 << 20, 1 << 18, 1 << 16, 1 << 14, 1 << 12):
    while (at := take(piece)) > start:  # gaps above are closed
        pass
    libc.munmap(at, piece)
for k in range(1, 400):
    libc.munmap(start + size - k * 64 * 4096, 4096)

module = compile_forest(forest("scalar"))
module.compile_all()
for n in (1, 9, 65, 1000):
    assert_same_bits(module.predict_raw(rows[:n]).reshape(n, 1), raw[:n], n)
for hops in range(1, 5):
    schedule = Schedule().unroll_walk("tree", hops).interleave("tree", 4)
    module = compile_forest(forest("scalar"), schedule)
    assert_same_bits(module.predict_raw(rows[:9]).reshape(9, 1), raw[:9], hops)
print("loaded")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="maps memory as Linux does")
def test_kernels_load_between_pieces_of_memory(tmp_path) -> None:
    said = run_python(_IN_PIECES, SKFORGE_CACHE_DIR=str(tmp_path))
    assert said.strip() == "loaded"
