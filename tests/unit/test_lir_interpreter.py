"""The interpreter: memory, faults and order; ``test_llvm_ops.py`` has operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    Buffer,
    Plane,
    Scalar,
    Value,
    Vec,
)
from skforge.exceptions import CompilerError
from tests.grid_tools import Place, grid, region, warp_sum
from tests.lir_loops import for_, parallel_for
from tests.lir_tools import run
from tests.oracles.lir_memory import DTYPES
from tests.refusals import error_of

N = Value("n", I64)

# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("element", [F32, F64, U8, I32], ids=lambda s: s.name)
def test_memory_that_was_never_written_shows(element: Scalar) -> None:
    out, b = np.zeros(1, DTYPES[element.name]), Builder()
    scratch = b.alloc("scratch", element, b.const(4))
    b.store(Buffer("out", element), b.const(0), b.load(scratch, b.const(2)))
    run(b, out=out)
    assert (
        np.isnan(out[0]) if element.is_float else out.tobytes() == b"\xa5" * out.nbytes
    )


# ---------------------------------------------------------------- faults

X = Buffer("x", F32)


def load(index: int, type_: Any = F32) -> Callable[[Builder], None]:
    return lambda b: b.store(X, b.const(0), b.load(X, b.const(index), type_))


def binary(op: Any, *values: int) -> Callable[[Builder], None]:
    return lambda b: b.store(
        X, b.const(0), b.convert(b.binary(op, *(b.const(v) for v in values)), F32)
    )


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (
            load(4),
            "index 4 is outside the buffer's 4 elements, "
            "in '%load.3: f32 = load @x[%c.2]' of f.",
        ),
        (
            load(-1),
            "index -1 is outside the buffer's 4 elements, "
            "in '%load.3: f32 = load @x[%c.2]' of f.",
        ),
        (
            load(1, Vec(F32, 4)),
            "index 1 (16 bytes from byte 4) is outside the buffer's 4 elements, "
            "in '%load.3: vec<f32, 4> = load @x[%c.2]' of f.",
        ),
        (
            lambda b: b.store(X, b.const(-1), b.const(0.0, F32)),
            "index -1 is outside the buffer's 4 elements, "
            "in 'store @x[%c.1] = %c.2' of f.",
        ),
        (
            lambda b: b.emit(lir.AtomicAdd(X, b.const(7), b.const(0.0, F32))),
            "index 7 is outside the buffer's 4 elements, "
            "in 'atomic_add @x[%c.1] += %c.2' of f.",
        ),
        (
            lambda b: b.load(X, b.mul(b.iota(I64, 4), 2)),
            "index 4 is outside the buffer's 4 elements, "
            "in '%gather.4: vec<f32, 4> = gather @x[%mul.3]' of f.",
        ),
        (
            lambda b: b.store(X, b.splat(b.const(1), 2), b.splat(b.const(0.0, F32), 2)),
            "two lanes write the same element, "
            "in 'scatter @x[%splat.2] = %splat.4' of f.",
        ),
        (
            binary("div", 1, 0),
            "division by zero, in '%div.3: i64 = div %c.2, %c.1' of f.",
        ),
        (
            binary("rem", -(2**63), -1),
            "the quotient overflows, in '%rem.4: i64 = rem %c.2, %c.3' of f.",
        ),
        (
            binary("shl", 1, 64),
            "shifts 64 bits by 64, in '%shl.4: i64 = shl %c.2, %c.3' of f.",
        ),
        (
            lambda b: for_(b, b.const(0), b.const(2), b.const(0), lambda *_: None),
            "the step is not positive, "
            "in 'for %i.3: i64 = %c.1 to %c.2 step %c.1 {' of f.",
        ),
        (
            lambda b: b.local("s", F32, -2),
            "allocates -2 elements, in 'alloc @s.2: f32 size %c.1' of f.",
        ),
    ],
)
def test_what_is_undefined_stops_the_program(
    write: Callable[[Builder], None], text: str
) -> None:
    b = Builder()
    write(b)
    said = error_of(CompilerError, run, b, x=np.zeros(4, np.float32))
    assert said == text


# ---------------------------------------------------------------- control


def test_iterations_are_shuffled_by_the_seed() -> None:
    def order(shuffle: int | None) -> list[int]:
        out, b = np.zeros(9, np.int64), Builder()
        target = Buffer("out", I64)

        def body(i: Value) -> None:
            at = b.load(target, b.const(8))
            b.store(target, at, i)
            b.store(target, b.const(8), b.add(at, 1))

        parallel_for(b, b.const(8), body)
        run(b, shuffle, out=out)
        return out[:8].tolist()  # type: ignore[no-any-return]

    assert order(None) == list(range(8))
    assert order(1) == order(1) != order(2)
    assert sorted(order(1)) == list(range(8))


# ---------------------------------------------------------------- planes, launches


def outside_a_table(b: Builder) -> None:
    b.let(lir.LoadPlane(Buffer("bits", U8), b.const(2)), Plane(16), "p")


def diverging(b: Builder) -> None:
    """Three of four threads add up what all of their warp have."""

    def body(t: Place) -> None:
        with b.body() as then:
            b.store(Buffer("out", I32), t[0], warp_sum(b, b.const(1, I32), 4))
        b.emit(lir.If(b.compare("lt", t[0], 3), tuple(then)))

    grid(b, (1,), lambda _: region(b, (4,), body))


def two_shapes(b: Builder) -> None:
    grid(b, (1,), lambda _: [region(b, (n,), lambda t: None) for n in (4, 8)])


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (outside_a_table, "plane 2 is outside the table's 2 planes"),
        (diverging, "threads [0, 1, 2] wait in a warp_reduce that other threads of "
         "their warp never reach"),
        (two_shapes, "a region of {'block.x': 8} in a block whose regions had "
         "{'block.x': 4}"),
    ],
)  # fmt: skip
def test_what_a_launch_may_not_do(write: Callable[[Builder], None], text: str) -> None:
    b = Builder()
    write(b)
    arrays = {"bits": np.zeros(4, np.uint8), "out": np.zeros(4, np.int32)}
    assert error_of(CompilerError, run, b, **arrays).startswith(f"{text}, in '")


# ------------------------------------------------------------ lir interpreter races


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
