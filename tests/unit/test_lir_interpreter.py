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
    Function,
    Scalar,
    Value,
    Vec,
)
from skforge.exceptions import CompilerError
from tests.lir_loops import for_, parallel_for
from tests.lir_tools import run
from tests.oracles.lir_interpreter import interpret_lir
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


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (
            {"x": np.zeros(4, np.float32)},
            "f takes ['n', 'x']; missing or unknown: ['n'].",
        ),
        (
            {"n": 1, "x": np.zeros(4)},
            "buffer x is a NumPy array of float32; got float64.",
        ),
        ({"n": 1, "x": [1.0]}, "buffer x is a NumPy array of float32; got list."),
        (
            {"n": 1, "x": np.zeros((4, 4), np.float32)[:, 1]},
            "buffer x must be C-contiguous.",
        ),
        ({"n": 2**63, "x": np.zeros(4, np.float32)}, f"n={2**63} is no i64."),
        (
            {"n": 1, "x": np.broadcast_to(np.float32(0), (1,))},
            "buffer x is stored to but read-only.",
        ),
    ],
)
def test_arguments_that_do_not_fit(args: dict[str, Any], text: str) -> None:
    b = Builder()
    b.store(X, b.const(0), b.const(0.0, F32))
    function = Function("f", (N, X), b.finish())
    said = error_of(CompilerError, interpret_lir, function, args)
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
