"""Grid functions written by hand, of every kind of statement, with their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import (
    F32,
    F64,
    I32,
    I64,
    U8,
    U32,
    Buffer,
    Function,
    Value,
)
from tests.grid_tools import Place, grid, region, warp_sum
from tests.lir_loops import for_, while_
from tests.lir_tools import buffer_of

X, OUT = Buffer("x", F32), Buffer("out", F32)
N = Value("n", I64)
Made = tuple[Callable[[Builder], None], dict[str, Any]]


def floats(size: int) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(size)
    return random.normal(size=size).astype(np.float32)


def tree_sum() -> Made:
    """Sum 64 numbers in shared memory, a barrier in each step."""

    def write(b: Builder) -> None:
        def block(place: Place) -> None:
            part = b.alloc("part", F32, b.const(64), space="shared")
            first = b.mul(place[0], 64)

            def load(t: Place) -> None:
                b.store(part, t[0], b.load(X, b.add(t[0], first)))

            def step(params: Place) -> list[Value]:
                def add(t: Place) -> None:
                    def write() -> None:
                        other = b.load(part, b.add(t[0], params[0]))
                        b.store(part, t[0], b.add(b.load(part, t[0]), other))

                    b.if_(b.compare("lt", t[0], params[0]), write)

                region(b, (64,), add)
                return [b.binary("shr", params[0], 1)]

            def store(t: Place) -> None:
                def write() -> None:
                    b.store(OUT, place[0], b.load(part, b.const(0)))

                b.if_(b.compare("eq", t[0], 0), write)

            region(b, (64,), load)
            while_(b, [b.const(32)], lambda p: b.compare("gt", p[0], 0), step)
            region(b, (64,), store)

        grid(b, (N,), block)

    return write, {"n": 3, "x": floats(192), "out": np.zeros(3, np.float32)}


def neighbours() -> Made:
    """Private memory outlives regions; threads of two dimensions read each other."""

    def write(b: Builder) -> None:
        def block(place: Place) -> None:
            tile = b.alloc("tile", F32, b.const(6 * 5), space="shared")
            mine = b.alloc("mine", F32, b.const(3), space="private")

            def at(t: Place) -> Value:
                return b.add(b.mul(t[1], 6), t[0])

            def load(t: Place) -> None:
                value = b.load(X, b.add(at(t), b.mul(place[0], 30)))
                b.store(tile, at(t), value)
                for k in range(3):
                    b.store(mine, b.const(k), b.mul(value, b.const(k + 1.0, F32)))

            def add(t: Place) -> None:
                beside = b.binary("rem", b.add(at(t), 7), b.const(30))
                which = b.binary("rem", at(t), b.const(3))
                total = b.add(b.load(tile, beside), b.load(mine, which))
                b.store(OUT, b.add(at(t), b.mul(place[0], 30)), total)

            region(b, (6, 5), load)
            region(b, (6, 5), add)

        grid(b, (N,), block)

    return write, {"n": 2, "x": floats(60), "out": np.zeros(60, np.float32)}


def read_between_regions() -> Made:
    """What a region wrote is loaded by every thread before the next region writes."""

    def write(b: Builder) -> None:
        def block(_: Place) -> None:
            cell = b.alloc("cell", F32, b.const(1), space="shared")

            def put(k: Value) -> None:
                def body(t: Place) -> None:
                    def write() -> None:
                        b.store(cell, b.const(0), b.load(X, k))

                    b.if_(b.compare("eq", t[0], 0), write)

                region(b, (40,), body)

            def step(k: Value, _: Place) -> None:
                put(k)
                seen = b.load(cell, b.const(0))
                put(b.add(k, 1))

                def body(t: Place) -> None:
                    now = b.load(cell, b.const(0))
                    both = b.add(seen, b.mul(now, b.const(3.0, F32)))
                    b.store(OUT, b.add(t[0], b.mul(k, 40)), both)

                region(b, (40,), body)

            for_(b, b.const(0), N, b.const(1), step)

        grid(b, (1,), block)

    return write, {"n": 3, "x": floats(5), "out": np.zeros(120, np.float32)}


def scratch_and_host_loops() -> Made:
    """Launches in a host loop hand scratch on."""

    def write(b: Builder) -> None:
        scratch = b.alloc("scratch", F64, b.mul(N, 4))

        def launch(fill: Callable[[Value], None]) -> None:
            def block(place: Place) -> None:
                region(b, (4,), lambda t: fill(b.add(b.mul(place[0], 4), t[0])))

            grid(b, (N,), block)

        def start(at: Value) -> None:
            b.store(scratch, at, b.convert(b.load(X, at), F64))

        def step(k: Value, params: Place) -> list[Value]:
            def more(at: Value) -> None:
                total = b.add(b.load(scratch, at), b.convert(params[0], F64))
                b.store(scratch, at, b.mul(total, b.const(1.25, F64)))

            launch(more)
            return [b.add(b.mul(params[0], 3), k)]

        def finish(at: Value) -> None:
            b.store(OUT, at, b.convert(b.load(scratch, at), F32))

        launch(start)
        for_(b, b.const(0), b.const(4), b.const(1), step, [N])
        launch(finish)

    return write, {"n": 5, "x": floats(20), "out": np.zeros(20, np.float32)}


def sums_of_lanes() -> Made:
    """Groups of 8 lanes sum in a branch of their own, then warps of 32."""

    def write(b: Builder) -> None:
        def body(place: Place, t: Place) -> None:
            at = b.add(t[0], b.mul(place[0], 64))
            value = b.load(X, at)
            odd = b.binary("and", b.binary("shr", t[0], 3), 1)
            cond = b.compare("eq", odd, 1)
            with b.body() as then:
                eight = warp_sum(b, value, 8)
            part = Value("part", F32)
            b.emit(lir.If(cond, tuple(then), (), (eight,), (value,), (part,)))
            b.store(OUT, at, warp_sum(b, part, 32))

        def block(place: Place) -> None:
            region(b, (64,), lambda t: body(place, t))

        grid(b, (N,), block)

    return write, {"n": 2, "x": floats(128), "out": np.zeros(128, np.float32)}


def atomics() -> Made:
    """Blocks and threads add to the same elements."""
    elements = {"a": I32, "c": U32, "d": I64, "e": F32, "f": F64}

    def write(b: Builder) -> None:
        def block(place: Place) -> None:
            bins = b.alloc("bins", I32, b.const(4), space="shared")

            def clear(t: Place) -> None:
                few = b.compare("lt", t[0], 4)
                b.if_(few, lambda: b.store(bins, t[0], b.const(0, I32)))

            def count(t: Place) -> None:
                at = b.binary("and", t[0], 3)
                b.emit(lir.AtomicAdd(bins, at, b.const(1, I32)))
                for name, element in elements.items():
                    value = b.convert(b.add(t[0], place[0]), element)
                    b.emit(lir.AtomicAdd(Buffer(name, element), at, value))

            def total(t: Place) -> None:
                def add() -> None:
                    value = b.load(bins, t[0])
                    b.emit(lir.AtomicAdd(Buffer("bins", I32), t[0], value))

                b.if_(b.compare("lt", t[0], 4), add)

            for body in (clear, count, total):
                region(b, (48,), body)

        grid(b, (2, 3), block)

    types = (np.int32, np.uint32, np.int64, np.float32, np.float64)
    args = {k: np.zeros(4, t) for k, t in zip(elements, types, strict=True)}
    return write, {**args, "bins": np.zeros(4, np.int32)}


def wide_loads() -> Made:
    """Vectors are loaded and stored as wide as their alignment allows."""
    words = Buffer("words", U8, alignment=16)
    out = Buffer("bytes", U8)

    def write(b: Builder) -> None:
        def body(t: Place) -> None:
            at = b.mul(t[0], 16)
            lanes = b.let(lir.Load(words, at), lir.Vec(U32, 4), "lanes")
            more = b.let(lir.Load(words, b.add(at, 4)), lir.Vec(U32, 2), "more")
            b.store(out, b.add(at, 1), b.add(lanes, b.extract(more, 1)))

        grid(b, (1,), lambda _: region(b, (7,), body))

    taken = np.random.default_rng(2).integers(0, 256, 7 * 16, np.uint8)
    return write, {"words": taken, "bytes": np.zeros(7 * 16 + 1, np.uint8)}


def no_blocks() -> Made:
    """A grid of no blocks does nothing."""

    def write(b: Builder) -> None:
        def block(_: Place) -> None:
            region(b, (2,), lambda t: b.store(OUT, t[0], b.const(1.0, F32)))

        grid(b, (N, 3), block)

    return write, {"n": 0, "out": np.zeros(2, np.float32)}


BY_HAND = (
    tree_sum,
    neighbours,
    read_between_regions,
    scratch_and_host_loops,
    sums_of_lanes,
    atomics,
    wide_loads,
    no_blocks,
)


def function_of(make: Callable[[], Made]) -> tuple[Function, dict[str, Any]]:
    write, args = make()
    b = Builder()
    write(b)
    params = tuple(
        buffer_of(v, k) if isinstance(v, np.ndarray) else Value(k, I64)
        for k, v in args.items()
    )
    if make is wide_loads:
        params = (Buffer("words", U8, alignment=16), params[1])
    return Function("f", params, b.finish()), args
