"""The interpreter's planes, launches, regions and warps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import F32, I32, I64, U8, Buffer, Plane, Value
from skforge.exceptions import CompilerError
from tests.lir_loops import for_
from tests.lir_tools import run

# ---------------------------------------------------------------- planes


def test_a_plane_outside_its_table() -> None:
    b = Builder()
    b.let(lir.LoadPlane(Buffer("bits", U8), b.const(2)), Plane(16), "p")
    with pytest.raises(CompilerError) as info:
        run(b, bits=np.zeros(4, np.uint8))
    assert str(info.value) == (
        "plane 2 is outside the table's 2 planes, "
        "in '%p.2: plane<16> = load_plane @bits[%c.1]' of f."
    )


# ---------------------------------------------------------------- launches


def launch(
    b: Builder,
    blocks: int,
    threads: int,
    *regions: Callable[[Value, Value], None],
    before: Callable[[Value], None] = lambda _: None,
) -> None:
    """Write a launch of one-dimensional blocks."""
    block, count = Value(b.name("block"), I64), b.const(threads)
    with b.body() as grid:
        before(block)
        for region in regions:
            thread = Value(b.name("thread"), I64)
            with b.body() as stmts:
                region(block, thread)
            b.emit(lir.BlockRegion((("block.x", thread, count),), tuple(stmts)))
    b.emit(lir.Grid((("grid.x", block, b.const(blocks)),), tuple(grid)))


@pytest.mark.parametrize("shuffle", [None, 1, 2])
def test_regions_meet_at_barriers(shuffle: int | None) -> None:
    x = np.arange(12, dtype=np.int64)
    out, b = np.zeros(12, np.int64), Builder()
    tile, mine = Buffer("tile", I64, "shared"), Buffer("mine", I64, "private")

    def memory(_: Value) -> None:
        b.emit(lir.Alloc(tile, b.const(4)))
        b.emit(lir.Alloc(mine, b.const(1)))

    def read(block: Value, thread: Value) -> None:
        at = b.add(b.mul(block, 4), thread)
        b.store(tile, thread, b.load(Buffer("x", I64), at))
        b.store(mine, b.const(0), b.mul(thread, 100))

    def write(block: Value, thread: Value) -> None:
        at = b.add(b.mul(block, 4), thread)
        neighbour = b.binary("xor", thread, 3)
        total = b.add(b.load(tile, neighbour), b.load(mine, b.const(0)))
        b.store(Buffer("out", I64), at, total)

    launch(b, 3, 4, read, write, before=memory)
    run(b, shuffle, x=x, out=out)
    assert out.tolist() == [
        4 * block + (thread ^ 3) + 100 * thread
        for block in range(3)
        for thread in range(4)
    ]


@pytest.mark.parametrize("loops", [1, 20])
@pytest.mark.parametrize("shuffle", [None, 5])
def test_a_warp_reduces_in_butterfly_order(shuffle: int | None, loops: int) -> None:
    random = np.random.default_rng(3)
    x = (random.normal(size=16) * 10.0 ** random.integers(-3, 8, 16)).astype(np.float32)
    out, b = np.zeros(16, np.float32), Builder()

    def region(_: Value, thread: Value) -> None:
        value = b.load(Buffer("x", F32), thread)

        def nest(depth: int, value: Value) -> Value:
            if depth == 0:
                return b.let(lir.WarpReduce(value, 8), F32, "sum")
            bounds = (b.const(0), b.const(2), b.const(1 if depth == 1 else 2))
            (total,) = for_(b, *bounds, lambda _, c: [nest(depth - 1, c[0])], [value])
            return total

        total = nest(loops, value)
        b.store(Buffer("out", F32), thread, total)

    launch(b, 1, 16, region)
    run(b, shuffle, x=x, out=out)
    expected = x.reshape(2, 8)
    for _ in range(2):
        lanes = np.arange(8)
        for offset in (4, 2, 1):
            expected = expected + expected[:, lanes ^ offset]
    assert_array_equal(out, expected.reshape(-1), strict=True)


def test_a_warp_that_diverges_is_named() -> None:
    out, b = np.zeros(4, np.int32), Builder()

    def region(_: Value, thread: Value) -> None:
        one = b.const(1, I32)
        with b.body() as then:
            total = b.let(lir.WarpReduce(one, 4), I32, "sum")
            b.store(Buffer("out", I32), thread, total)
        b.emit(lir.If(b.compare("lt", thread, 3), tuple(then)))

    launch(b, 1, 4, region)
    with pytest.raises(CompilerError) as info:
        run(b, out=out)
    assert str(info.value) == (
        "threads [0, 1, 2] wait in a warp_reduce that other threads of their warp "
        "never reach, in 'block_region block.x %thread.3: i64 < %c.2 {' of f."
    )


def test_threads_are_numbered_x_first() -> None:
    out, b = np.zeros(8, np.int64), Builder()
    x, y, block = (Value(name, I64) for name in ("tx", "ty", "b"))
    with b.body() as region:
        total = b.let(lir.WarpReduce(b.add(b.mul(y, 10), x), 2), I64, "sum")
        b.store(Buffer("out", I64), b.add(b.mul(y, 4), x), total)
    # y is given first; consecutive threads still differ in x.
    dims: Any = (("block.y", y, b.const(2)), ("block.x", x, b.const(4)))
    grid = (lir.BlockRegion(dims, tuple(region)),)
    b.emit(lir.Grid((("grid.x", block, b.const(1)),), grid))
    run(b, out=out)
    assert out.tolist() == [1, 1, 5, 5, 21, 21, 25, 25]


def test_regions_of_a_block_have_one_shape() -> None:
    b, block = Builder(), Value("b", I64)
    counts = [b.const(4), b.const(8)]
    regions = tuple(
        lir.BlockRegion((("block.x", Value(f"t{i}", I64), count),), ())
        for i, count in enumerate(counts)
    )
    b.emit(lir.Grid((("grid.x", block, b.const(1)),), regions))
    with pytest.raises(CompilerError) as info:
        run(b)
    assert str(info.value) == (
        "a region of {'block.x': 8} in a block whose regions had {'block.x': 4}, "
        "in 'block_region block.x %t1: i64 < %c.2 {' of f."
    )


@pytest.mark.parametrize("trips", [0, 2])
def test_private_memory_ends_with_the_body_that_allocates_it(trips: int) -> None:
    out, b = np.zeros(2, np.int64), Builder()
    n, block = Value("n", I64), Value("b", I64)

    def region(write: Callable[[Value], None]) -> None:
        thread = Value(b.name("t"), I64)
        with b.body() as stmts:
            write(thread)
        b.emit(lir.BlockRegion((("block.x", thread, b.const(2)),), tuple(stmts)))

    def step(i: Value, _: tuple[Value, ...]) -> None:
        mine = b.alloc("mine", I64, b.const(1), space="private")
        region(lambda t: b.store(mine, b.const(0), b.add(t, i)))
        region(lambda t: b.store(Buffer("out", I64), t, b.load(mine, b.const(0))))

    with b.body() as grid:
        for_(b, b.const(0), n, b.const(1), step)
        region(lambda t: b.emit(lir.AtomicAdd(Buffer("out", I64), t, t)))
    b.emit(lir.Grid((("grid.x", block, b.const(1)),), tuple(grid)))
    run(b, n=trips, out=out)
    assert out.tolist() == ([0, 1] if trips == 0 else [1, 3])
