"""Compress, popcount and permutes by short indices, on every target."""

from __future__ import annotations

import numpy as np
import pytest

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import F32, F64, I32, I64, U8, U16, U32, Scalar, Vec
from tests.llvm_kernels import DTYPES, buffers, check, kernel


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("element", [U32, I32, F32, I64, F64], ids=lambda e: e.name)
def test_compress(element: Scalar, lanes: int) -> None:
    zero = 0.0 if element.is_float else 0

    def write(b: Builder, **p: lir.Buffer) -> None:
        for n in range(4):
            at = b.const(n * lanes)
            x = b.load(p["x"], at, Vec(element, lanes))
            keep = b.load(p["keep"], at, Vec(U32, lanes))
            mask = b.compare("ne", keep, 0)
            packed = b.compress(x, mask)
            # what follows the selected lanes is nobody's
            count = b.popcount(b.mask_bits(mask, U32))
            own = b.compare("lt", b.iota(U32, lanes), count)
            b.store(p["out"], at, b.select(own, packed, b.const(zero, x.type)))

    x = np.arange(1, 4 * lanes + 1).astype(DTYPES[element])
    keep = np.random.default_rng(lanes).integers(0, 2, (4, lanes)).astype(np.uint32)
    keep[2], keep[3] = 0, 1
    wanted = np.zeros((4, lanes), x.dtype)
    for n in range(4):
        chosen = x.reshape(4, lanes)[n][keep[n] == 1]
        wanted[n, : len(chosen)] = chosen
    function = kernel(buffers(x=element, keep=U32, out=element), write)
    args = {"x": x, "keep": keep.reshape(-1), "out": np.zeros_like(x)}
    check(function, args, {"out": wanted.reshape(-1)})


@pytest.mark.parametrize("n_tables", [1, 2])
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("element", [U8, U16, U32], ids=lambda e: e.name)
def test_permute_by_a_short_index(element: Scalar, lanes: int, n_tables: int) -> None:
    wide = 64 // element.bytes
    short = min(lanes, wide // 2)

    def write(b: Builder, **p: lir.Buffer) -> None:
        tables = [
            b.load(p["x"], b.const(k * wide), Vec(element, wide))
            for k in range(n_tables)
        ]
        index = b.load(p["index"], b.const(0), Vec(element, short))
        b.store(p["out"], b.const(0), b.permute(tables, index))

    random = np.random.default_rng(lanes)
    x = random.integers(0, 250, n_tables * wide).astype(DTYPES[element])
    index = random.integers(0, 250, short).astype(DTYPES[element])
    out = np.zeros(short, DTYPES[element])
    function = kernel(buffers(x=element, index=element, out=element), write)
    wanted = x[index.astype(int) % len(x)]
    check(function, {"x": x, "index": index, "out": out}, {"out": wanted})
