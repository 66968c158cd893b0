"""The interpreter: every operation against NumPy or plain arithmetic, every fault."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import (
    BOOL,
    F32,
    F64,
    I32,
    I64,
    U8,
    U16,
    U32,
    Buffer,
    Function,
    Mask,
    Scalar,
    Value,
    Vec,
)
from skforge.exceptions import CompilerError
from tests.lir_loops import for_, parallel_for, while_
from tests.lir_tools import buffer_of, run
from tests.oracles.lir_interpreter import interpret_lir
from tests.oracles.lir_memory import DTYPES
from tests.strategies_lir import Program, lir_programs

N = Value("n", I64)
LIMITS = {
    U8: (0, 255),
    U16: (0, 65535),
    U32: (0, 2**32 - 1),
    I32: (-(2**31), 2**31 - 1),
    I64: (-(2**63), 2**63 - 1),
}


def evaluate(
    write: Callable[[Builder, list[Value]], Value],
    arrays: list[np.ndarray[Any, Any]],
    element: Scalar,
    lanes: int,
) -> np.ndarray[Any, Any]:
    """Apply an operation to each element, or to vectors of ``lanes`` elements."""
    out = np.zeros(len(arrays[0]), DTYPES[element.name])
    ins = [buffer_of(a, f"x{i}") for i, a in enumerate(arrays)]
    target, b = Buffer("out", element), Builder()

    def body(i: Value, _: tuple[Value, ...]) -> None:
        types = [Vec(x.element, lanes) if lanes else x.element for x in ins]
        loaded = [b.load(x, i, t) for x, t in zip(ins, types, strict=True)]
        value = write(b, loaded)
        if value.type == BOOL or isinstance(value.type, Mask):
            value = b.convert(value, element)
        b.store(target, i, value)

    for_(b, b.const(0), b.const(len(out)), b.const(max(1, lanes)), body)
    args = {f"x{i}": a for i, a in enumerate(arrays)}
    interpret_lir(Function("f", (*ins, target), b.finish()), {**args, "out": out})
    return out


# ---------------------------------------------------------------- arithmetic


def exact(op: str, a: int, b: int) -> int:
    """Return an integer operation in unbounded arithmetic."""
    sign = 1 if (a < 0) == (b < 0) else -1
    operations: dict[str, Callable[[], int]] = {
        "add": lambda: a + b,
        "sub": lambda: a - b,
        "mul": lambda: a * b,
        "div": lambda: sign * (abs(a) // abs(b)),
        "rem": lambda: a - b * sign * (abs(a) // abs(b)),
        "min": lambda: min(a, b),
        "max": lambda: max(a, b),
        "and": lambda: a & b,
        "or": lambda: a | b,
        "xor": lambda: a ^ b,
        "shl": lambda: a << b,
        "shr": lambda: a >> b,
    }
    return operations[op]()


@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("element", LIMITS, ids=lambda s: s.name)
@pytest.mark.parametrize("op", lir.BinaryOp.__args__)
def test_integers_wrap_and_truncate(op: str, element: Scalar, lanes: int) -> None:
    low, high = LIMITS[element]
    bits = 8 * element.bytes
    odd = [low, high, low + 1, high - 1, 0, 1, 2, 7, 100, low // 3, high // 3, 3]
    pairs = [(a, b) for a in odd for b in odd]
    if op in ("div", "rem"):
        pairs = [(a, b) for a, b in pairs if b and not (a == low < 0 and b == -1)]
    if op in ("shl", "shr"):
        pairs = [(a, b % bits) for a, b in pairs]
    pairs = pairs[: len(pairs) // 4 * 4]
    dtype = DTYPES[element.name]
    a, b = (np.array(side, dtype) for side in zip(*pairs, strict=True))
    got = evaluate(lambda w, v: w.binary(op, *v), [a, b], element, lanes)
    span = high - low + 1
    expected = [(exact(op, p, q) - low) % span + low for p, q in pairs]
    assert got.tolist() == expected


FLOATS = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    0.1,
    1e-45,
    1e-310,
    3e38,
    1e308,
    np.inf,
    -np.inf,
    np.nan,
]


def float_pairs(dtype: Any) -> list[np.ndarray[Any, Any]]:
    with np.errstate(over="ignore"):
        values = np.array(FLOATS).astype(dtype)
    return [np.repeat(values, len(values)), np.tile(values, len(values))]


@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("element", [F32, F64], ids=lambda s: s.name)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
def test_floats_round_in_their_own_width(op: str, element: Scalar, lanes: int) -> None:
    a, b = float_pairs(DTYPES[element.name])
    ufunc = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
    with np.errstate(all="ignore"):
        expected = ufunc[op](a, b)
    got = evaluate(lambda w, v: w.binary(op, *v), [a, b], element, lanes)
    assert_array_equal(got, expected, strict=True)
    assert_array_equal(np.signbit(got[got == 0]), np.signbit(expected[expected == 0]))


@pytest.mark.parametrize("lanes", [0, 4])
@pytest.mark.parametrize("unordered", [False, True])
@pytest.mark.parametrize("op", lir.CompareOp.__args__)
def test_comparisons_with_nan(op: str, unordered: bool, lanes: int) -> None:
    a, b = float_pairs(np.float32)
    plain = {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b, "eq": a == b}
    expected = plain.get(op, (a < b) | (a > b))
    expected = np.where(np.isnan(a) | np.isnan(b), unordered, expected)
    got = evaluate(lambda w, v: w.compare(op, *v, unordered), [a, b], U8, lanes)
    assert_array_equal(got, expected.astype(np.uint8), strict=True)


@pytest.mark.parametrize("lanes", [0, 4])
def test_comparisons_of_integers(lanes: int) -> None:
    a = np.array([0, 1, 2**32 - 1, 5], np.uint32)
    got = evaluate(lambda w, v: w.compare("gt", v[0], 4), [a], U8, lanes)
    assert got.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("lanes", [0, 4])
def test_unary_operations(lanes: int) -> None:
    ints = np.array([-(2**31), -5, 0, 7], np.int32)

    def of(op: Any) -> Callable[[Builder, list[Value]], Value]:
        return lambda w, v: w.let(lir.Unary(op, v[0]), v[0].type, op)

    assert evaluate(of("popcount"), [ints], I32, lanes).tolist() == [1, 31, 0, 3]
    assert evaluate(of("zeros"), [ints], I32, lanes).tolist() == [31, 0, 32, 0]
    assert evaluate(of("not"), [ints], I32, lanes).tolist() == [2**31 - 1, 4, -1, -8]


@pytest.mark.parametrize("lanes", [0, 4])
def test_conversions(lanes: int) -> None:
    def to(source: np.ndarray[Any, Any], element: Scalar) -> list[Any]:
        result = evaluate(
            lambda w, v: w.convert(v[0], element), [source], element, lanes
        )
        return result.tolist()  # type: ignore[no-any-return]

    wide = np.array([-1, 2**40 + 5, 300, -129], np.int64)
    assert to(wide, U8) == [255, 5, 44, 127]
    assert to(wide, I32) == [-1, 5, 300, -129]
    assert to(wide.astype(np.uint8), I64) == [255, 5, 44, 127]
    assert to(np.array([1.9, -1.9, 0.5, -0.5]), I32) == [1, -1, 0, 0]
    # One rounding: through f64 the first would become 2**54 + 2**31.
    near = np.array([2**54 + 2**30 + 1, 2**24 + 1, -3, 0], np.int64)
    assert to(near, F32) == [2.0**54 + 2.0**31, 2.0**24, -3.0, 0.0]
    assert to(np.array([0.1, 1e300, 1e-320, -0.0]), F32) == [
        float(np.float32(0.1)),
        math.inf,
        0.0,
        0.0,
    ]


@pytest.mark.parametrize("lanes", [0, 4])
def test_bits_survive_a_cast(lanes: int) -> None:
    x = np.array([1.0, -0.0, np.inf, 1e-45], np.float32)
    bits = evaluate(lambda w, v: w.bitcast(v[0], I32), [x], I32, lanes)
    assert_array_equal(bits, x.view(np.int32), strict=True)
    back = evaluate(lambda w, v: w.bitcast(v[0], F32), [bits], F32, lanes)
    assert_array_equal(back.view(np.int32), bits)


def test_masks_and_lanes() -> None:
    out, b = np.full(8, -1, np.int32), Builder()
    target = Buffer("out", I32)
    iota = b.iota(I32, 4)
    odd = b.compare("ne", b.binary("and", iota, 1), 0)
    b.store(target, b.const(0), b.select(odd, iota, b.splat(b.const(9, I32), 4)))
    b.store(target, b.const(4), b.mask_bits(odd, I32))
    b.store(target, b.const(5), b.convert(b.any_true(odd), I32))
    b.store(target, b.const(6), b.convert(b.extract(odd, 3), I32))
    b.store(target, b.const(7), b.extract(iota, 2))
    run(b, out=out)
    assert out.tolist() == [9, 1, 9, 3, 0b1010, 1, 1, 2]


# ---------------------------------------------------------------- memory


def test_a_load_reads_the_bytes_at_an_element() -> None:
    table = np.frombuffer(b"\x01\x02\x03\x04\x00\x00\x80\x3f", np.uint8).copy()
    floats, ints, b = np.zeros(1, np.float32), np.zeros(3, np.int32), Builder()
    x, f, i = Buffer("x", U8), Buffer("f", F32), Buffer("i", I32)
    b.store(f, b.const(0), b.load(x, b.const(4), F32))
    b.store(i, b.const(0), b.load(x, b.const(0), I32))
    b.store(i, b.const(1), b.convert(b.load(x, b.const(1), Vec(U16, 2)), I32))
    run(b, x=table, f=floats, i=ints)
    assert floats[0] == 1.0
    assert ints.tolist() == [0x04030201, 0x0302, 0x0004]


def test_masked_lanes_of_a_gather_never_touch_memory() -> None:
    x, out, b = np.arange(4.0), np.zeros(4), Builder()
    index = b.mul(b.iota(I64, 4), 2)
    mask = b.compare("lt", index, 4)
    other = b.splat(b.const(-1.0, F64), 4)
    got = b.let(lir.Gather(Buffer("x", F64), index, mask, other), Vec(F64, 4))
    b.store(Buffer("out", F64), b.const(0), got)
    run(b, x=x, out=out)
    assert out.tolist() == [0, 2, -1, -1]


def test_scatter_writes_every_lane() -> None:
    out, b = np.zeros(8, np.int32), Builder()
    index = b.binary("xor", b.iota(I32, 4), 3)
    b.emit(lir.Scatter(Buffer("out", I32), index, b.add(index, 1)))
    run(b, out=out)
    assert out.tolist() == [1, 2, 3, 4, 0, 0, 0, 0]


@pytest.mark.parametrize("element", [F32, F64, U8, I32], ids=lambda s: s.name)
def test_memory_that_was_never_written_shows(element: Scalar) -> None:
    out, b = np.zeros(1, DTYPES[element.name]), Builder()
    scratch = b.alloc("scratch", element, b.const(4))
    b.store(Buffer("out", element), b.const(0), b.load(scratch, b.const(2)))
    run(b, out=out)
    assert (
        np.isnan(out[0]) if element.is_float else out.tobytes() == b"\xa5" * out.nbytes
    )


def test_atomic_add_wraps() -> None:
    out, b = np.array([2**31 - 1], np.int32), Builder()
    b.emit(lir.AtomicAdd(Buffer("out", I32), b.const(0), b.const(2, I32)))
    run(b, out=out)
    assert out[0] == -(2**31) + 1


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
    with pytest.raises(CompilerError) as info:
        run(b, x=np.zeros(4, np.float32))
    assert str(info.value) == text


def test_prefetch_takes_any_address() -> None:
    b = Builder()
    b.emit(lir.Prefetch(X, b.const(-(2**60))))
    run(b, x=np.zeros(4, np.float32))


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
    with pytest.raises(CompilerError) as info:
        interpret_lir(function, args)
    assert str(info.value) == text


# ---------------------------------------------------------------- control


@given(st.integers(-5, 5), st.integers(-5, 12), st.integers(1, 4))
def test_for_is_range(low: int, high: int, step: int) -> None:
    out, b = np.zeros(2, np.int64), Builder()
    target = Buffer("out", I64)
    total, last = for_(
        b,
        *(b.const(v) for v in (low, high, step)),
        lambda i, c: [b.add(c[0], i), c[0]],  # the values carried in swap places
        [b.const(100), b.const(7)],
    )
    b.store(target, b.const(0), total)
    b.store(target, b.const(1), last)
    run(b, out=out)
    sums = [100, *(100 + s for s in np.cumsum(range(low, high, step)).tolist())]
    assert out.tolist() == [sums[-1], sums[-2] if len(sums) > 1 else 7]


def test_while_carries_and_stops() -> None:
    out, b = np.zeros(2, np.int64), Builder()
    steps, value = while_(
        b,
        [b.const(0), N],
        lambda c: b.compare("ne", c[1], 1),
        lambda c: [
            b.add(c[0], 1),
            b.select(
                b.compare("eq", b.binary("and", c[1], 1), 0),
                b.binary("shr", c[1], 1),
                b.add(b.mul(c[1], 3), 1),
            ),
        ],
    )
    b.store(Buffer("out", I64), b.const(0), steps)
    b.store(Buffer("out", I64), b.const(1), value)
    run(b, n=27, out=out)
    assert out.tolist() == [111, 1]


@pytest.mark.parametrize(
    ("selector", "expected"), [(0, 10), (1, 11), (2, 12), (3, 12), (-1, 12)]
)
def test_switch_serves_other_numbers_with_the_last_case(
    selector: int, expected: int
) -> None:
    out, b = np.zeros(1, np.int64), Builder()
    cases = [lambda k=k: [b.const(10 + k)] for k in range(3)]
    (got,) = b.switch(N, cases, [I64])
    b.store(Buffer("out", I64), b.const(0), got)
    run(b, n=selector, out=out)
    assert out[0] == expected


def test_loops_nest_as_deep_as_a_schedule_wants() -> None:
    # Python itself allows 20; every fifth is parallel, the inner ones run twice.
    out, b = np.zeros(1, np.int64), Builder()
    target = Buffer("out", I64)

    def nest(depth: int, total: Value) -> Value:
        if depth == 0:
            b.emit(lir.AtomicAdd(target, b.const(0), total))
            return b.add(total, 3)
        if depth % 5 == 0:
            parallel_for(b, b.const(1), lambda _: (nest(depth - 1, total), None)[1])
            return total
        bounds = (b.const(0), b.const(2), b.const(2 if depth > 3 else 1))
        (result,) = for_(b, *bounds, lambda _, c: [nest(depth - 1, c[0])], [total])
        return result

    def plain(depth: int, total: int) -> int:
        if depth == 0:
            added.append(total)
            return total + 3
        if depth % 5 == 0:
            plain(depth - 1, total)
            return total
        for _ in range(1 if depth > 3 else 2):
            total = plain(depth - 1, total)
        return total

    added: list[int] = []
    last = nest(44, b.const(1))
    b.emit(lir.AtomicAdd(target, b.const(0), b.mul(last, 1000)))
    run(b, out=out)
    assert out[0] == 1000 * plain(44, 1) + sum(added)


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


@given(lir_programs(), st.integers(0, 9))
def test_order_does_not_matter_to_programs_without_races(
    program: Program, seed: int
) -> None:
    first, second = program.arguments(), program.arguments()
    interpret_lir(program.function, first)
    interpret_lir(program.function, second, shuffle=seed)
    for name, value in first.items():
        assert_array_equal(value, second[name])
