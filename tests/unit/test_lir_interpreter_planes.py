"""The interpreter's planes, launches, regions and warps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I32, I64, U8, Buffer, Plane, Value
from skforge.exceptions import CompilerError
from tests.lir_tools import run
from tests.refusals import error_of

# ---------------------------------------------------------------- planes


def test_a_plane_outside_its_table() -> None:
    b = Builder()
    b.let(lir.LoadPlane(Buffer("bits", U8), b.const(2)), Plane(16), "p")
    said = error_of(CompilerError, run, b, bits=np.zeros(4, np.uint8))
    assert said == (
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


def test_a_warp_that_diverges_is_named() -> None:
    out, b = np.zeros(4, np.int32), Builder()

    def region(_: Value, thread: Value) -> None:
        one = b.const(1, I32)
        with b.body() as then:
            total = b.let(lir.WarpReduce(one, 4), I32, "sum")
            b.store(Buffer("out", I32), thread, total)
        b.emit(lir.If(b.compare("lt", thread, 3), tuple(then)))

    launch(b, 1, 4, region)
    said = error_of(CompilerError, run, b, out=out)
    assert said == (
        "threads [0, 1, 2] wait in a warp_reduce that other threads of their warp "
        "never reach, in 'block_region block.x %thread.3: i64 < %c.2 {' of f."
    )


def test_regions_of_a_block_have_one_shape() -> None:
    b, block = Builder(), Value("b", I64)
    counts = [b.const(4), b.const(8)]
    regions = tuple(
        lir.BlockRegion((("block.x", Value(f"t{i}", I64), count),), ())
        for i, count in enumerate(counts)
    )
    b.emit(lir.Grid((("grid.x", block, b.const(1)),), regions))
    said = error_of(CompilerError, run, b)
    assert said == (
        "a region of {'block.x': 8} in a block whose regions had {'block.x': 4}, "
        "in 'block_region block.x %t1: i64 < %c.2 {' of f."
    )
