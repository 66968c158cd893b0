"""The exp and expf of exported libraries: glibc's bits, with its FMA and without."""

from __future__ import annotations

import ctypes
import math
import re
import struct
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import skforge
from skforge.compiler.target import Target
from skforge.engine.cpu.jit import compile_functions
from skforge.exporters import library
from skforge.exporters.contents import filled
from skforge.runtime.libm import exp

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not library._knows_exp(),
    reason="this C library has another exp, so exports call it",
)

_LOOP = """
declare {type} @{name}({type})
define void @loop.{name}(ptr %x, ptr %y, i64 %n) nounwind {{
entry:
  br label %turn
turn:
  %i = phi i64 [ 0, %entry ], [ %after, %turn ]
  %from = getelementptr {type}, ptr %x, i64 %i
  %given = load {type}, ptr %from
  %result = call {type} @{name}({type} %given)
  %to = getelementptr {type}, ptr %y, i64 %i
  store {type} %result, ptr %to
  %after = add i64 %i, 1
  %more = icmp ult i64 %after, %n
  br i1 %more, label %turn, label %done
done:
  ret void
}}
"""
#: With the CPU's instruction, without it, and what asks the CPU.
KINDS = ["t.fast.exp", "t.slow.exp", "exp"]


class _Exponentials:
    def __init__(self) -> None:
        host = Target.host()
        if host.arch == "x86_64":
            host = Target.x86_64("v1")
            self.kinds, start = KINDS, [filled("cpuid.ll", name="t")]
        else:
            self.kinds, start = ["exp"], []
        texts = [*start, *library._exponentials("t", [host])]
        types = {"f": "float", "": "double"}
        texts += [
            _LOOP.format(name=kind + letter, type=type_)
            for kind in self.kinds
            for letter, type_ in types.items()
        ]
        self._code = compile_functions(texts, host)

    def differing(self, kind: str, x: NDArray[Any]) -> NDArray[Any]:
        """Return the values for which a function is not the C library's, bit by bit."""
        found, name = np.empty_like(x), kind + ("f" if x.itemsize == 4 else "")
        address = self._code.address(f"loop.{name}")
        pointer = ctypes.c_void_p
        loop = ctypes.CFUNCTYPE(None, pointer, pointer, ctypes.c_int64)(address)
        loop(x.ctypes.data, found.ctypes.data, len(x))
        with np.errstate(all="ignore"):
            wanted = exp(x)
        bits = f"u{x.itemsize}"
        return x[found.view(bits) != wanted.view(bits)]


@pytest.fixture(scope="module")
def ours() -> _Exponentials:
    return _Exponentials()


def _doubles(random: np.random.Generator, n: int) -> NDArray[np.float64]:
    """Draw numbers of all sizes, and some near each limit of the function."""
    limits = np.array([0.0, 2.0**-54, 512, 708.4, 709.78, 745.13, 1024, np.inf])
    near = (limits.view(np.int64)[:, np.newaxis] + np.arange(-50, 50)).clip(0)
    edges = near.view(np.float64).ravel()
    parts = [
        random.uniform(-750, 720, n),
        random.standard_normal(n),
        random.integers(1 << 64, size=n // 4, dtype=np.uint64).view(np.float64),
        random.uniform(-746, -700, n // 4),
        # halfway between multiples of log(2) / 128, where r is largest
        (random.integers(-95_000, 91_000, n // 4) + 0.5) * (math.log(2) / 128),
        edges,
        -edges,
    ]
    return np.concatenate(parts)


@pytest.mark.parametrize("kind", KINDS)
def test_bits_are_the_c_library_s(ours: _Exponentials, kind: str) -> None:
    if kind not in ours.kinds:
        pytest.skip("every CPU of this kind multiplies and adds in one step")
    n = 20_000 if "slow" in kind else 200_000
    random = np.random.default_rng(0)
    assert not len(ours.differing(kind, _doubles(random, n)))
    bits = random.integers(1 << 32, size=2 * n, dtype=np.uint32)
    assert not len(ours.differing(kind, bits.view(np.float32)))
    few = random.uniform(-104, 89, n).astype(np.float32)
    # the only floats for which glibc's code for CPUs without FMA gives another bit
    few[:2] = float.fromhex("0x1.04845ep+5"), float.fromhex("-0x1.f8cbb2p+5")
    assert not len(ours.differing(kind, few))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_float_has_the_bits_of_the_c_library(
    ours: _Exponentials, kind: str
) -> None:
    """All 2^32 of them; the function that asks the CPU only where results vary."""
    if kind not in ours.kinds:
        pytest.skip("every CPU of this kind multiplies and adds in one step")
    step, varying = 1 << 22, (0x32000000, 0x42D00000)
    for sign in (0, 1 << 31):
        for first in range(0, 1 << 31, step):
            if kind == "t.fast.exp" or varying[0] <= first < varying[1]:
                bits = np.arange(sign + first, sign + first + step, dtype=np.uint32)
                assert not len(ours.differing(kind, bits.view(np.float32))), first
    for seed in range(20 if "slow" in kind else 400):
        drawn = _doubles(np.random.default_rng(seed), 1 << 18)
        assert not len(ours.differing(kind, drawn)), seed


def test_the_table_holds_powers_of_two() -> None:
    text = library._exponentials("t", [skforge.Target.parse("aarch64")])[0]
    (table,) = re.findall(r"\[256 x i64\] \[(.*?)\]", text, re.DOTALL)
    words = [int(word) for word in re.findall(r"i64 (-?\d+)", table)]
    for k in range(128):
        power = 1 << (k + 128 * 160)
        for _ in range(7):
            power = math.isqrt(power)
        exact = Fraction(power, 1 << 160)
        high = float(exact)
        tail = float((exact - Fraction(high)) / Fraction(high)) if k else 0.0
        bits, lower = struct.unpack("<qq", struct.pack("<dd", high, tail))
        assert words[2 * k : 2 * k + 2] == [lower, bits - (k << 45)]


def test_libraries_bring_them_if_they_call_them() -> None:
    v2, v3 = (Target.parse(f"x86-64-{level}") for level in ("v2", "v3"))
    assert len(library._exponentials("t", [v3])) == 1
    assert len(library._exponentials("t", [v3, v2])) == 3
    assert (
        "target-features"
        not in library._exponentials("t", [skforge.Target.parse("aarch64")])[0]
    )
