"""Index arithmetic in 32 bits computes what it did in 64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from skforge.compiler import driver
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import (
    F32,
    F64,
    I32,
    I64,
    U8,
    U32,
    Function,
    Value,
    Vec,
)
from skforge.compiler.ir.lir.verifier import verify_lir
from skforge.compiler.ir.lir.walk import bound_in, statements
from skforge.compiler.target import Target
from skforge.gpu.passes import narrow_indices
from tests.exactness.forests import forest
from tests.exactness.gpu_families import FAMILIES
from tests.grid_tools import grid, region, warp_sum
from tests.lir_loops import for_, parallel_for
from tests.oracles.lir_interpreter import interpret_lir
from tests.strategies_indices import (
    BYTES,
    COUNTS,
    DOUBLES,
    LINKS,
    OUT,
    WIDE,
    N,
    X,
    index_programs,
)

EVERY = (N, X, OUT, WIDE, COUNTS, DOUBLES, LINKS, BYTES)


def narrowed(b: Builder) -> Function:
    """Return what ``b`` wrote, narrowed, after comparing what both compute."""
    before = Function("f", EVERY, b.finish())
    verify_lir(before)
    after = narrow_indices.run(before)
    verify_lir(after)
    results = []
    for function in (before, after):
        random = np.random.default_rng(0)
        args: dict[str, Any] = {
            "n": 5,
            "x": random.normal(size=64).astype(np.float32),
            "out": np.zeros(64, np.float32),
            "wide": random.integers(-(1 << 62), 1 << 62, 64),
            "counts": random.integers(0, 50, 64).astype(np.uint32),
            "doubles": random.normal(size=64),
            "links": random.integers(0, 64, 64).astype(np.int32),
            "b": random.integers(0, 256, 64).astype(np.uint8),
        }
        interpret_lir(function, args)
        results.append(args)
    for name, array in results[0].items():
        np.testing.assert_array_equal(array, results[1][name], err_msg=name)
    return after


def wide_values(function: Function) -> list[str]:
    """Return the statements that bind 64-bit integers, by what they are."""
    return [
        type(getattr(stmt, "op", stmt)).__name__
        for stmt in statements(function.body)
        for value in bound_in(stmt)
        if value.type.element == I64
    ]


def loaded(b: Builder) -> Value:
    """Return an index that is computed, so that it has one width."""
    return b.add(b.convert(b.load(LINKS, b.const(1)), I64), N)


def store_index(b: Builder) -> None:
    b.store(WIDE, b.const(0), loaded(b))


def add_index(b: Builder) -> None:
    b.emit(lir.AtomicAdd(WIDE, b.const(0), loaded(b)))


def scatter_indices(b: Builder) -> None:
    at = b.add(b.iota(I64, 4), N)
    b.store(WIDE, at, b.mul(at, 3))


def load_index(b: Builder) -> None:
    at = b.binary("and", b.load(WIDE, b.const(3)), b.const(63))
    b.store(OUT, at, b.load(X, at))


def gather_indices(b: Builder) -> None:
    at = b.add(b.iota(I64, 4), 2)
    mask = b.compare("gt", at, N)
    op = lir.Gather(WIDE, at, mask, b.splat(loaded(b), 4))
    at = b.binary("and", b.let(op, Vec(I64, 4)), b.const(63, Vec(I64, 4)))
    b.store(OUT, b.extract(at, 1), b.const(1.0, F32))


def to_float(b: Builder) -> None:
    b.store(DOUBLES, b.const(0), b.convert(loaded(b), F64))


def from_float(b: Builder) -> None:
    at = b.convert(b.load(DOUBLES, b.const(0)), I64)
    b.store(OUT, b.binary("and", at, b.const(63)), b.const(1.0, F32))


def bits_of_a_float(b: Builder) -> None:
    at = b.bitcast(b.load(DOUBLES, b.const(0)), I64)
    b.store(OUT, b.binary("and", at, b.const(63)), b.const(1.0, F32))


def large_constant(b: Builder) -> None:
    at = b.mul(loaded(b), 0x5DEECE66D)
    at = b.binary("shr", b.binary("and", at, b.const(0xFFFF)), b.const(10))
    b.store(OUT, at, b.const(1.0, F32))


def large_shift(b: Builder) -> None:
    at = b.binary("shl", loaded(b), b.const(40))
    b.store(OUT, b.binary("shr", at, b.const(42)), b.const(1.0, F32))


def unknown_shift(b: Builder) -> None:
    at = b.binary("shr", loaded(b), N)
    b.store(OUT, at, b.const(1.0, F32))


def bit_count(b: Builder) -> None:
    at = b.popcount(b.binary("sub", b.const(0), loaded(b)))
    b.store(OUT, at, b.const(1.0, F32))


def many_lanes(b: Builder) -> None:
    mask = b.compare("gt", b.load(BYTES, b.const(0), Vec(U8, 40)), 100)
    bits = b.mask_bits(mask, I64)
    b.store(OUT, b.binary("rem", bits, b.const(61)), b.const(1.0, F32))


def two_words(b: Builder) -> None:
    """A number of 64 bits from two halves, each as unsigned as it was."""
    low, high = (b.convert(b.load(COUNTS, b.const(k)), I64) for k in (0, 1))
    low = b.binary("sub", low, 40)
    word = b.binary("or", b.binary("shl", high, b.const(32)), low)
    b.store(OUT, b.binary("and", word, b.const(63)), b.const(1.0, F32))


def unsigned_bits(b: Builder) -> None:
    number = b.bitcast(b.load(X, b.const(0)), U32)
    at = b.binary("rem", b.convert(number, I64), b.const(64))
    b.store(OUT, at, b.const(1.0, F32))


def carried_bits(b: Builder) -> None:
    def step(_: Value, carried: tuple[Value, ...]) -> list[Value]:
        return [carried[1], b.add(carried[0], 1)]

    bounds = b.const(0), N, b.const(1)
    at, _ = for_(b, *bounds, step, [b.load(WIDE, b.const(0)), b.const(0)])
    b.store(OUT, b.binary("and", at, b.const(63)), b.const(1.0, F32))


def wide_bound(b: Builder) -> None:
    stop = b.binary("and", b.load(WIDE, b.const(0)), b.const(7))
    one = b.const(1.0, F32)
    for_(b, b.const(0), stop, b.const(1), lambda i, _: b.store(OUT, i, one))


@pytest.mark.parametrize(
    "write",
    [
        store_index, add_index, scatter_indices, load_index, gather_indices, to_float,
        from_float, bits_of_a_float, large_constant, large_shift, unknown_shift,
        bit_count, many_lanes, two_words, unsigned_bits, carried_bits, wide_bound,
    ],
)  # fmt: skip
def test_what_needs_64_bits_keeps_them(write: Callable[[Builder], None]) -> None:
    b = Builder()
    write(b)
    assert wide_values(narrowed(b))


def indices(b: Builder) -> None:
    """Every operation, all on indices."""
    at = loaded(b)
    for op in ("sub", "mul", "div", "rem", "min", "max", "and", "or", "xor"):
        at = b.binary("and", b.binary(op, at, b.const(7)), b.const(31))
    at = b.binary("shr", b.binary("shl", at, b.const(2)), b.const(2))
    at = b.select(b.compare("le", at, N), at, b.const(9))
    at = b.binary("and", b.invert(at), b.const(31))
    mask = b.compare("gt", b.load(BYTES, at, Vec(U8, 8)), 100)
    at = b.binary("and", b.add(at, b.mask_bits(mask, I64)), b.const(63))
    number = b.load(COUNTS, at)
    at = b.binary("and", b.add(at, b.convert(number, I64)), b.const(63))
    b.store(LINKS, at, b.convert(at, I32))
    b.store(COUNTS, at, b.convert(b.binary("sub", at, 60), U32))
    b.prefetch(X, at)
    vector = b.pack([at, N, b.const(2), b.const(1)])
    vector = b.shuffle(vector, b.add(b.iota(I64, 4), 4), [0, 1, 6, 3])
    packed = b.compress(vector, b.compare("gt", vector, 1))
    b.store(OUT, b.extract(packed, 0), b.const(1.0, F32))
    b.store(OUT, b.extract(vector, 1), b.extract(b.load(X, vector), 2))


def small_bits(b: Builder) -> None:
    """Unsigned numbers that are small by how they were computed."""
    bits = b.bitcast(b.load(X, b.const(0)), U32)
    few = b.const(40, U32)
    below = b.select(b.compare("lt", bits, few), bits, b.const(3, U32))
    for number in (
        b.binary("shr", bits, b.const(27, U32)),
        b.binary("and", bits, b.const(31, U32)),
        b.binary("min", bits, few),
        b.convert(b.load(BYTES, b.const(0)), U32),
        below,
    ):
        at = b.binary("and", b.convert(number, I64), b.const(63))
        b.store(OUT, at, b.const(1.0, F32))


def control(b: Builder) -> None:
    def case(k: int) -> list[Value]:
        return [b.add(N, k)]

    (at,) = b.switch(loaded(b), [lambda: case(1), lambda: case(2)], [I64])
    results = (Value("r", I64),)
    b.emit(lir.If(b.compare("gt", at, 3), (), (), (at,), (N,), results))
    one = b.const(1.0, F32)
    parallel_for(b, b.mul(results[0], 2), lambda i: b.store(OUT, i, one))


def launches(b: Builder) -> None:
    scratch = b.alloc("scratch", F32, b.mul(N, 8))

    def body(g: tuple[Value, ...], t: tuple[Value, ...]) -> None:
        total = warp_sum(b, b.binary("add", t[0], g[0]), 4)
        at = b.add(b.mul(g[0], 8), t[0])
        b.store(scratch, at, b.load(X, b.binary("add", at, total)))
        b.store(OUT, at, b.load(scratch, at))

    grid(b, (N,), lambda g: region(b, (4,), lambda t: body(g, t)))


def alias_of_an_alias(b: Builder) -> None:
    link = b.load(LINKS, b.const(2))
    at = b.convert(b.convert(b.convert(link, I64), I32), I64)
    b.store(OUT, b.binary("max", at, b.const(0)), b.const(1.0, F32))


@pytest.mark.parametrize(
    "write", [indices, small_bits, control, launches, alias_of_an_alias]
)
def test_what_is_only_indices_is_narrow(write: Callable[[Builder], None]) -> None:
    b = Builder()
    write(b)
    function = narrowed(b)
    assert wide_values(function) == []
    assert function.params[0] == Value("n", I32)


def test_counts_are_read_in_both_widths() -> None:
    """A count that is stored does not make what it bounds wide."""
    b = Builder()

    def body(i: Value, _: tuple[Value, ...]) -> None:
        b.store(WIDE, i, i)
        b.store(OUT, b.add(i, 1), b.load(X, i))

    for_(b, b.const(0), N, b.const(1), body)
    assert wide_values(narrowed(b)) == ["Convert"]


def test_unsigned_numbers_are_converted_as_they_were() -> None:
    """Only where it is an index is a loaded u32 taken to be small."""
    b = Builder()
    b.store(COUNTS, b.const(0), b.const(0xFFFFFFF0, U32))
    number = b.convert(b.load(COUNTS, b.const(0)), I64)
    b.store(WIDE, b.const(0), number)
    b.store(DOUBLES, b.const(0), b.convert(number, F64))
    b.store(WIDE, b.const(1), b.binary("shr", number, b.const(33)))
    narrowed(b)


# ---------------------------------------------------------------- kernels

TARGET = Target.cuda("sm_90", kind="emulated")


def kernel(family: str, name: str, reduction: Any) -> Function:
    hir = driver.build_hir(forest(name), FAMILIES[family], reduction, kind="gpu")
    return driver.lower(hir, TARGET).lir_stages["simplify"]


@pytest.mark.sampled(10)
@pytest.mark.parametrize("reduction", ["exact", "fast"])
@pytest.mark.parametrize("name", ["vector 3", "categories"])
@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_for_gpus_have_no_64_bit_values(family, name, reduction):
    function = narrow_indices.run(kernel(family, name, reduction))
    verify_lir(function)
    tables = [p for p in function.params if isinstance(p, lir.Buffer)]
    if not any(table.element == I64 for table in tables):
        assert wide_values(function) == []


def test_only_fixed_point_sums_of_a_kernel_have_64_bits() -> None:
    function = narrow_indices.run(kernel("two dimensions", "scalar", "reproducible"))
    verify_lir(function)
    kinds = set(wide_values(function))
    assert kinds <= {"Load", "Const", "For", "Binary", "WarpReduce"}
    for stmt in statements(function.body):
        match stmt:
            case lir.For(var=var):
                assert var.type == I32
            case lir.Store(index=index) | lir.Let(op=lir.Load(index=index)):
                assert index.type == I32


# ---------------------------------------------------------------- drawn programs


@given(index_programs())
@settings(deadline=None, max_examples=20)
def test_drawn_programs(b: Builder) -> None:
    narrowed(b)
