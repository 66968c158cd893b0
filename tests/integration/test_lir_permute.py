"""Permutes, shuffles, compressed lanes: every width, element and target."""

from __future__ import annotations

import re

import numpy as np
import pytest

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import (
    F32,
    F64,
    I32,
    I64,
    U8,
    U16,
    U32,
    Plane,
    Scalar,
    Vec,
)
from skforge.compiler.target import Target
from skforge.engine.cpu.jit import emit_assembly
from tests.llvm_kernels import DTYPES, buffers, check, kernel, targets

#: The index has unsigned or i64 numbers as wide as the elements.
INDEX = {U8: U8, U16: U16, U32: U32, I32: U32, F32: U32, I64: I64, F64: I64}


def permuting(
    element: Scalar, lanes: int, n_tables: int, within: bool = False
) -> lir.Function:
    index = INDEX[element]

    def write(b: Builder, **p: lir.Buffer) -> None:
        tables = [
            b.load(p["table"], b.const(k * lanes), Vec(element, lanes))
            for k in range(n_tables)
        ]
        for n in range(2):  # the tables are used twice
            at = b.const(n * lanes)
            chosen = b.load(p["index"], at, Vec(index, lanes))
            found = b.permute(tables, chosen, within)
            b.store(p["out"], at, found)

    params = buffers(table=element, index=index, out=element)
    return kernel(params, write)


def numbers(element: Scalar, n: int, seed: int) -> np.ndarray:
    """Return numbers whose bytes all differ somewhere."""
    random = np.random.default_rng(seed)
    dtype = np.dtype(DTYPES[element])
    if dtype.kind == "f":
        return random.standard_normal(n).astype(dtype)
    return random.integers(0, 256, n * dtype.itemsize).astype(np.uint8).view(dtype)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("n_tables", [1, 2, 4, 8])
@pytest.mark.parametrize("bits", [128, 256, 512])
@pytest.mark.parametrize("element", list(INDEX), ids=lambda e: e.name)
def test_permute(element: Scalar, bits: int, n_tables: int) -> None:
    lanes = bits // (8 * element.bytes)
    size = n_tables * lanes
    if element == U8 and size > 256:
        return  # more entries than a byte counts
    function = permuting(element, lanes, n_tables)
    table = numbers(element, size, 1)
    # any number: taken modulo the length of the tables
    index = numbers(INDEX[element], 2 * lanes, 2)
    index[:2] = (size - 1) % 256, 0
    args = {"table": table, "index": index, "out": np.zeros(2 * lanes, table.dtype)}
    with np.errstate(over="ignore"):
        wanted = table[index.astype(np.int64) % size]
    check(function, args, {"out": wanted})
    args["index"] = (index.astype(np.int64) % size).astype(index.dtype)
    check(permuting(element, lanes, n_tables, within=True), args, {"out": wanted})


@pytest.mark.sampled(7)
@pytest.mark.parametrize("narrow", [1, 4, 16, 32])
@pytest.mark.parametrize("bits", [128, 256, 512])
@pytest.mark.parametrize("element", [U8, U16, F32, F64], ids=lambda e: e.name)
def test_permute_of_a_narrower_table(element: Scalar, bits: int, narrow: int) -> None:
    lanes = bits // (8 * element.bytes)
    if narrow >= lanes:
        return

    def write(b: Builder, **p: lir.Buffer) -> None:
        table = b.load(p["table"], b.const(0), Vec(element, narrow))
        at = b.load(p["index"], b.const(0), Vec(INDEX[element], lanes))
        b.store(p["out"], b.const(0), b.permute([table], at))

    table = numbers(element, narrow, 1)
    index = numbers(INDEX[element], lanes, 2)
    args = {"table": table, "index": index, "out": np.zeros(lanes, table.dtype)}
    wanted = table[index.astype(np.int64) % narrow]
    params = buffers(table=element, index=INDEX[element], out=element)
    check(kernel(params, write), args, {"out": wanted})


@pytest.mark.parametrize("a_lanes", [2, 4, 8, 16, 64])
@pytest.mark.parametrize("element", [U8, F32, I64], ids=lambda e: e.name)
def test_shuffle(element: Scalar, a_lanes: int) -> None:
    random = np.random.default_rng(a_lanes)
    for lanes in (a_lanes, a_lanes // 2, 2 * a_lanes):
        chosen = random.integers(0, 2 * a_lanes, lanes).tolist()

        def write(b: Builder, chosen: list[int] = chosen, **p: lir.Buffer) -> None:
            type_ = Vec(element, a_lanes)
            one = b.load(p["x"], b.const(0), type_)
            two = b.load(p["x"], b.const(a_lanes), type_)
            if len(chosen) > 1:
                b.store(p["out"], b.const(0), b.shuffle(one, two, chosen))

        x = numbers(element, 2 * a_lanes, 3)
        out = np.zeros(lanes, x.dtype)
        wanted = x[chosen] if lanes > 1 else out
        params = buffers(x=element, out=element)
        check(kernel(params, write), {"x": x, "out": out}, {"out": wanted})


def assembly(element: Scalar, bits: int, n_tables: int, level: str) -> str:
    lanes = bits // (8 * element.bytes)
    return emit_assembly(permuting(element, lanes, n_tables), Target.x86_64(level))


@pytest.mark.parametrize(
    ("element", "n_tables", "one", "two"),
    [(F32, 1, 2, 0), (F32, 2, 0, 2), (F32, 8, 0, 8), (F64, 4, 0, 4), (U16, 2, 0, 2)],
    ids=str,
)
def test_avx512_permutes_in_registers(
    element: Scalar, n_tables: int, one: int, two: int
) -> None:
    text = assembly(element, 512, n_tables, "v4")
    assert len(re.findall(r"\tvperm(?:ps|d|pd|q|w)\s", text)) == one
    assert len(re.findall(r"\tvperm[it]2(?:ps|d|pd|q|w)\s", text)) == two
    assert "rsp" not in text


def test_avx2_permutes_floats_in_registers() -> None:
    text = assembly(F32, 256, 4, "v3")
    assert len(re.findall(r"\tvperm(?:ps|d)\s", text)) == 2 * 4
    assert "rsp" not in text


@pytest.mark.parametrize(
    ("level", "bits", "n_tables", "shuffles"),
    [("v2", 128, 1, 1), ("v3", 256, 1, 2), ("v3", 256, 2, 4), ("v4", 512, 1, 4)],
)
def test_bytes_permute_sixteen_at_a_time(
    level: str, bits: int, n_tables: int, shuffles: int
) -> None:
    text = assembly(U8, bits, n_tables, level)
    assert len(re.findall(r"\tv?pshufb\s", text)) == 2 * shuffles
    assert "rsp" not in text


@pytest.mark.parametrize("n_tables", [1, 2, 8])
def test_avx2_blends_parts_of_sixteen_bytes(n_tables: int) -> None:
    parts = 2 * n_tables
    text = assembly(U8, 256, n_tables, "v3")
    assert len(re.findall(r"\tvpshufb\s", text)) == 2 * parts
    assert len(re.findall(r"\tvpblendvb\s", text)) == 2 * (parts - 1)


def test_neon_looks_bytes_up_in_four_registers() -> None:
    function = permuting(U8, 16, 4)
    text = emit_assembly(function, Target.aarch64())
    assert len(re.findall(r"\ttbl\s", text)) == 2


def test_bytes_permute_where_the_target_has_it() -> None:
    host = targets()["host"]
    if not host.has("avx512vbmi"):
        pytest.skip("this machine has no AVX-512 VBMI")
    text = emit_assembly(permuting(U8, 64, 4), host)
    assert len(re.findall(r"\tvperm[it]2b\s", text)) == 2 * 2
    assert "vpermi2b" not in assembly(U8, 512, 4, "v4")


# ------------------------------------------------------------ planes


@pytest.mark.parametrize("bits", range(1, 9))
def test_planes_to_index_has_the_first_plane_highest(bits: int) -> None:
    def write(b: Builder, x: lir.Buffer, out: lir.Buffer) -> None:
        planes = tuple(
            b.let(lir.LoadPlane(x, b.const(k)), Plane(64), "p") for k in range(bits)
        )
        index = b.let(lir.PlanesToIndex(planes), Vec(U8, 64), "index")
        b.store(out, b.const(0), index)

    x = numbers(U8, 8 * bits, 5)
    rows = np.unpackbits(x.reshape(bits, 8), axis=1, bitorder="little")
    weights = 1 << np.arange(bits)[::-1]
    wanted = (rows * weights[:, None]).sum(axis=0).astype(np.uint8)
    args = {"x": x, "out": np.zeros(64, np.uint8)}
    check(kernel(buffers(x=U8, out=U8), write), args, {"out": wanted})


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
