"""Grids as loops do what grids do, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import (
    F32,
    F64,
    I32,
    I64,
    U8,
    Buffer,
    Function,
    Scalar,
    Value,
    Vec,
)
from skforge.exceptions import CompilerError
from skforge.gpu.passes import emulate_grids
from tests.grid_tools import Place, check_emulated, grid, region, warp_sum
from tests.grids_by_hand import BY_HAND, Made, function_of
from tests.lir_tools import buffer_of
from tests.llvm_kernels import DTYPES
from tests.strategies_grid import GridProgram, grid_programs

X, OUT = Buffer("x", F32), Buffer("out", F32)


def emulated(b: Builder, threads: tuple[int, ...] = (1,), **args: Any) -> dict:
    """Check what ``b`` wrote; return the arguments afterwards."""
    params = tuple(
        buffer_of(v, k) if isinstance(v, np.ndarray) else Value(k, I64)
        for k, v in args.items()
    )
    return check_emulated(Function("f", params, b.finish()), args, threads)


def numbers(size: int) -> np.ndarray:
    random = np.random.default_rng(size)
    spread = 10.0 ** random.integers(-3, 8, size)
    return (random.normal(size=size) * spread).astype(np.float32)


def test_a_function_without_grids_stays_as_it_is() -> None:
    b = Builder()
    b.store(OUT, b.const(0), b.const(1.0, F32))
    function = Function("f", (OUT,), b.finish())
    assert emulate_grids.run(function) is function


@pytest.mark.parametrize("dims", ["xyz", "zyx", "yxz"])
@pytest.mark.parametrize("counts", [(2, 3, 2), (1, 4, 3), (3, 0, 2)])
def test_blocks_and_threads_in_three_dimensions(
    dims: str, counts: tuple[int, int, int]
) -> None:
    b, shape = Builder(), (2, 3, 4)
    tags = np.zeros(24 * int(np.prod(counts)), np.int64)
    out = Buffer("out", I64)

    def block(blocks: Place) -> None:
        mine = b.alloc("mine", I64, b.const(2), space="private")

        def tag(threads: Place) -> Value:
            found = b.const(0)
            for place, size in zip((*blocks, *threads), (*counts, *shape), strict=True):
                found = b.add(b.mul(found, size), place)
            return found

        region(b, shape, lambda t: b.store(mine, b.const(1), tag(t)), dims)
        region(b, shape, lambda t: b.store(out, tag(t), b.load(mine, b.const(1))), dims)

    grid(b, counts, block, dims)
    found = emulated(b, out=tags)
    assert found["out"].tolist() == list(range(len(tags)))


@pytest.mark.parametrize("make", BY_HAND)
def test_functions_by_hand(make: Callable[[], Made]) -> None:
    check_emulated(*function_of(make), threads=(1, 2))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("element", [F32, F64, I32, U8, I64])
def test_warps_sum_in_butterfly_order(width: int, element: Scalar) -> None:
    b, threads = Builder(), 64
    x, out = Buffer("x", element), Buffer("out", element)

    def body(t: Place) -> None:
        value = b.load(x, t[0])
        total = warp_sum(b, value, width)
        b.store(out, t[0], b.binary("sub", total, value))

    grid(b, (1,), lambda _: region(b, (threads,), body))
    rows = numbers(threads)
    rows = (rows if element.is_float else rows.astype("i8")).astype(DTYPES[element])
    emulated(b, x=rows, out=np.zeros_like(rows))


def test_every_kind_of_value_outlives_a_warp_operation() -> None:
    b, out = Builder(), Buffer("out", I32)

    def body(t: Place) -> None:
        value = b.load(X, t[0])
        vector = b.load(X, t[0], Vec(F32, 4))
        flag = b.compare("gt", value, b.const(0.0, F32))
        mask = b.compare("gt", vector, b.const(0.0, F32))
        constant = b.const(7, I32)
        scratch = b.alloc("scratch", I32, b.const(2), space="private")
        b.store(scratch, b.const(1), b.convert(t[0], I32))
        total = warp_sum(b, value, 8)
        bits = b.mask_bits(b.binary("xor", mask, b.splat(flag, 4)), I32)
        bits = b.mul(b.add(bits, b.load(scratch, b.const(1))), constant)
        large = b.compare("gt", b.extract(vector, 2), total)
        b.store(out, t[0], b.select(large, bits, b.convert(flag, I32)))

    grid(b, (1,), lambda _: region(b, (16,), body))
    emulated(b, x=numbers(20), out=np.zeros(16, np.int32))


@pytest.mark.parametrize("counts", [(0,), (0, 3), (-2,), (-2, -3), (2, 0)])
def test_grids_of_no_blocks_do_nothing(counts: tuple[int, ...]) -> None:
    b = Builder()
    sizes = tuple(Value(f"n{k}", I64) for k in range(len(counts)))
    store = lambda t: b.store(OUT, t[0], b.const(1.0, F32))  # noqa: E731
    grid(b, sizes, lambda _: region(b, (2,), store))
    args = {f"n{k}": count for k, count in enumerate(counts)}
    found = emulated(b, out=np.zeros(2, np.float32), **args)
    assert not found["out"].any()


# ---------------------------------------------------------------- refusals


def refusal(b: Builder, *params: Value | Buffer) -> str:
    with pytest.raises(CompilerError) as info:
        emulate_grids.run(Function("f", params, b.finish()))
    return str(info.value)


def test_what_cannot_be_emulated_is_said() -> None:
    n = Value("n", I64)
    b = Builder()
    thread = Value("t", I64)
    dims: Any = (("block.x", thread, n),)
    grid(b, (n,), lambda _: b.emit(lir.BlockRegion(dims, ())))
    assert refusal(b, n) == (
        "Cannot emulate the grids of 'f': the number of threads along block.x is %n, "
        "which is not a constant."
    )
    b = Builder()
    grid(b, (n,), lambda _: region(b, (12,), lambda t: warp_sum(b, t[0], 8)))
    assert refusal(b, n) == (
        "Cannot emulate the grids of 'f': blocks of 12 threads are not a whole number "
        "of warps of 8."
    )
    b = Builder()

    def two(_: Place) -> None:
        region(b, (4,), lambda t: None)
        region(b, (8,), lambda t: None)

    grid(b, (n,), two)
    assert refusal(b, n) == (
        "Cannot emulate the grids of 'f': regions of {'block.x': 4} and {'block.x': 8}."
    )
    b = Builder()

    def planes(_: Place) -> None:
        mine = b.alloc("mine", U8, b.const(64), space="private")
        load = lir.LoadPlane(mine, b.const(0))
        region(b, (4,), lambda t: b.let(load, lir.Plane(64)))

    grid(b, (n,), planes)
    assert refusal(b, n) == (
        "Cannot emulate the grids of 'f': LoadPlane on @mine.3, which each thread has "
        "its own of; allocate it in the region."
    )
    b = Builder()

    def outlives(t: Place) -> None:
        plane = b.let(lir.LoadPlane(Buffer("bits", U8), b.const(0)), lir.Plane(64), "p")
        warp_sum(b, t[0], 2)
        b.emit(lir.StorePlane(Buffer("bits", U8), b.const(0), plane))

    grid(b, (n,), lambda _: region(b, (4,), outlives))
    assert refusal(b, n, Buffer("bits", U8)).endswith("outlives a warp operation.")


# ---------------------------------------------------------------- drawn programs


@pytest.mark.parametrize("count", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_drawn_launches(count: int) -> None:
    @settings(max_examples=count)
    @given(grid_programs())
    def check(program: GridProgram) -> None:
        check_emulated(program.function, program.arguments())

    check()
