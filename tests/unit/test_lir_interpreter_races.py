"""The interpreter stops where threads of a launch race for an element."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I32, I64, Buffer, Value, Vec
from skforge.exceptions import CompilerError
from tests.grid_tools import Place, grid, region, warp_sum
from tests.lir_loops import for_
from tests.lir_tools import run

OUT, COUNT = Buffer("out", I64), Buffer("count", I64)
Write = Callable[[Builder, Buffer], None]


def launch(write: Write, blocks: int = 1, shuffle: int | None = None) -> None:
    """Run what ``write`` writes of a block, given its shared memory."""
    b = Builder()

    def block(_: Place) -> None:
        write(b, b.alloc("tile", I64, b.const(8), space="shared"))

    grid(b, (blocks,), block)
    run(b, shuffle, out=np.zeros(8, np.int64), count=np.zeros(8, np.int64))


def race(write: Write, blocks: int = 1) -> str:
    """Return what the interpreter says in every order of threads, without where."""
    said = set()
    for shuffle in (None, 1):
        with pytest.raises(CompilerError) as info:
            launch(write, blocks, shuffle)
        text, where = str(info.value).split(", in '")
        assert where.endswith("of f.")
        said.add(text)
    return min(said)


def next_to(b: Builder, thread: Value) -> Value:
    return b.binary("rem", b.add(thread, 1), b.const(4))


def together(b: Builder, tile: Buffer) -> None:
    """Each thread reads what its neighbour writes."""

    def body(t: Place) -> None:
        b.store(tile, t[0], t[0])
        b.store(OUT, t[0], b.load(tile, next_to(b, t[0])))

    region(b, (4,), body)


def apart(b: Builder, tile: Buffer) -> None:
    """The same with a barrier between."""
    region(b, (4,), lambda t: b.store(tile, t[0], t[0]))
    region(b, (4,), lambda t: b.store(OUT, t[0], b.load(tile, next_to(b, t[0]))))


def again(b: Builder, tile: Buffer) -> None:
    """A loop whose regions leave a barrier out between one turn and the next."""

    def turn(k: Value, _: Place) -> None:
        def body(t: Place) -> None:
            total = b.add(b.load(tile, next_to(b, t[0])), 1)
            b.store(OUT, t[0], total)
            b.store(tile, t[0], total)

        region(b, (4,), body)

    region(b, (4,), lambda t: b.store(tile, t[0], t[0]))
    for_(b, b.const(0), b.const(2), b.const(1), turn)


def one_element(b: Builder, tile: Buffer) -> None:
    region(b, (4,), lambda t: b.store(tile, b.const(0), t[0]))


def mixed(b: Builder, tile: Buffer) -> None:
    """Atomic additions and a plain read."""

    def body(t: Place) -> None:
        b.emit(lir.AtomicAdd(COUNT, b.const(0), t[0]))
        b.store(OUT, t[0], b.load(COUNT, b.const(0)))

    region(b, (4,), body)


def by_warps(b: Builder, tile: Buffer) -> None:
    """A warp operation orders no memory."""

    def body(t: Place) -> None:
        b.store(tile, t[0], t[0])
        total = warp_sum(b, t[0], 4)
        b.store(OUT, t[0], b.add(total, b.load(tile, next_to(b, t[0]))))

    region(b, (4,), body)


def lanes(b: Builder, tile: Buffer) -> None:
    """Vectors that lie over each other."""

    def body(t: Place) -> None:
        b.store(tile, t[0], b.splat(t[0], 2))

    region(b, (4,), body)


def scattered(b: Builder, tile: Buffer) -> None:
    def body(t: Place) -> None:
        at = b.add(b.splat(b.convert(t[0], I32), 4), b.iota(I32, 4))
        b.let(lir.Gather(tile, at), Vec(I64, 4), "seen")
        b.emit(lir.Scatter(tile, at, b.splat(t[0], 4)))

    region(b, (4,), body)


@pytest.mark.parametrize(
    "write", [together, again, one_element, mixed, by_warps, lanes, scattered]
)
def test_threads_that_race_are_found_in_every_order(write: Write) -> None:
    assert "since the last barrier" in race(write)


def test_who_races_is_said() -> None:
    assert race(one_element) == (
        "element 0 was written by thread 0 since the last barrier"
    )
    assert race(apart, blocks=2) == (
        "element 0 was written by another block of the launch"
    )


def test_blocks_race_for_what_another_reads() -> None:
    def write(b: Builder, tile: Buffer) -> None:
        region(b, (1,), lambda t: b.store(OUT, b.const(1), b.load(OUT, b.const(0))))

    launch(write)
    assert race(write, blocks=2) == (
        "element 1 was written by another block of the launch"
    )
