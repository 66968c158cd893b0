"""Every LIR operation: LLVM on each target against the interpreter and NumPy."""

from __future__ import annotations

import re

import numpy as np
import pytest

from skforge.compiler.codegen.llvm.emitter import emit_llvm
from skforge.compiler.ir.lir import nodes as lir
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
    Mask,
    Vec,
)
from skforge.compiler.target import Target
from skforge.engine.cpu.jit import emit_assembly
from skforge.exceptions import CompilerError
from tests.lir_loops import for_, parallel_for
from tests.llvm_kernels import (
    DTYPES,
    LEVELS,
    SCALARS,
    buffers,
    check,
    compiled,
    kernel,
    targets,
)

LANES = 8
INTEGERS = (U8, U16, U32, I32, I64)
FLOATS = (F32, F64)
SPECIAL = [0.0, -0.0, 1.5, -2.25, np.inf, -np.inf, np.nan, 1e-42]


def numbers(element, seed=0, size=16):
    rng = np.random.default_rng(seed)
    dtype = DTYPES[element]
    if element.is_float:
        values = rng.normal(size=size) * 10
        values[: len(SPECIAL)] = rng.permutation(SPECIAL)
        return values.astype(dtype)
    info = np.iinfo(dtype)
    values = rng.integers(info.min, info.max, size, dtype, endpoint=True)
    values[:4] = info.min, info.max, 0, 1
    return rng.permutation(values)


def elementwise(write, operands, result):
    """Return a kernel: ``write`` of 8 scalars, then of the same as a vector."""

    def body(b, out, **sources):
        for lane in range(LANES):
            at = b.const(lane)
            b.store(out, at, write(b, *(b.load(s, at) for s in sources.values())))
        zero = b.const(0)
        vectors = (b.load(s, zero, Vec(s.element, LANES)) for s in sources.values())
        b.store(out, b.const(LANES), write(b, *vectors))

    return kernel(buffers(**operands, out=result), body)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("element", INTEGERS, ids=lambda e: e.name)
def test_integer_arithmetic_wraps(element):
    operations = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "min": np.minimum,
        "max": np.maximum,
    }
    a, b = numbers(element, 1)[:LANES], numbers(element, 2)[:LANES]
    for name, reference in operations.items():
        function = elementwise(
            lambda builder, x, y, name=name: builder.binary(name, x, y),
            {"x": element, "y": element},
            element,
        )
        expected = np.tile(reference(a, b), 2)
        args = {"x": a, "y": b, "out": np.zeros(2 * LANES, a.dtype)}
        check(function, args, {"out": expected})


@pytest.mark.parametrize("element", INTEGERS, ids=lambda e: e.name)
def test_division_and_shifts(element):
    a = numbers(element, 3)[:LANES]
    divisors = np.array([1, 2, 3, 7, 10, 100, 5, 4], a.dtype)
    shifts = np.array([0, 1, 2, 3, 4, 5, 6, 7], a.dtype)
    toward_zero = np.array(
        [
            int(x) // int(y) if x >= 0 else -(-int(x) // int(y))
            for x, y in zip(a, divisors, strict=True)
        ]
    ).astype(a.dtype)
    cases = {
        "div": (divisors, toward_zero),
        "rem": (divisors, a - toward_zero * divisors),
        "shl": (shifts, a << shifts),
        "shr": (shifts, a >> shifts),
    }
    for name, (b, expected) in cases.items():
        function = elementwise(
            lambda builder, x, y, name=name: builder.binary(name, x, y),
            {"x": element, "y": element},
            element,
        )
        args = {"x": a, "y": b, "out": np.zeros(2 * LANES, a.dtype)}
        check(function, args, {"out": np.tile(expected, 2)})


@pytest.mark.parametrize("element", FLOATS, ids=lambda e: e.name)
def test_float_arithmetic(element):
    a, b = numbers(element, 4)[:LANES], numbers(element, 5)[:LANES]
    operations = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "div": np.divide,
    }
    for name, reference in operations.items():
        function = elementwise(
            lambda builder, x, y, name=name: builder.binary(name, x, y),
            {"x": element, "y": element},
            element,
        )
        with np.errstate(all="ignore"):
            expected = np.tile(reference(a, b), 2)
        args = {"x": a, "y": b, "out": np.zeros(2 * LANES, a.dtype)}
        check(function, args, {"out": expected})


def test_multiply_and_add_stay_two_roundings():
    function = elementwise(
        lambda b, x, y, z: b.add(b.mul(x, y), z), {"x": F32, "y": F32, "z": F32}, F32
    )
    rng = np.random.default_rng(0)
    a, b, c = (rng.normal(size=LANES).astype(np.float32) for _ in range(3))
    args = {"x": a, "y": b, "z": c, "out": np.zeros(2 * LANES, np.float32)}
    check(function, args, {"out": np.tile(a * b + c, 2)})
    for target in LEVELS.values():
        assembly = emit_assembly(function, target)
        assert "mulss" in assembly and "mulps" in assembly
        assert "fmadd" not in assembly
    assert "fmadd" not in emit_assembly(function, Target.aarch64())
    assert "fmla" not in emit_assembly(function, Target.aarch64())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("element", SCALARS, ids=lambda e: e.name)
def test_compare(element):
    operations = {
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        "eq": np.equal,
        "ne": np.not_equal,
    }
    a, b = numbers(element, 6)[:LANES], numbers(element, 7)[:LANES]
    b[2:5] = a[2:5]
    for name, reference in operations.items():
        for unordered in (False, True) if element.is_float else (False,):
            function = elementwise(
                lambda builder, x, y, name=name, unordered=unordered: builder.convert(
                    builder.compare(name, x, y, unordered=unordered), I32
                ),
                {"x": element, "y": element},
                I32,
            )
            expected = reference(a, b)
            if element.is_float:
                expected = np.where(np.isnan(a) | np.isnan(b), unordered, expected)
            args = {"x": a, "y": b, "out": np.zeros(2 * LANES, np.int32)}
            check(function, args, {"out": np.tile(expected, 2).astype(np.int32)})


def counted(a, count):
    width = 8 * a.itemsize
    bits = [format(int(x) & ((1 << width) - 1), f"0{width}b") for x in a]
    return np.array([count(x) for x in bits]).astype(a.dtype)


@pytest.mark.parametrize("element", INTEGERS, ids=lambda e: e.name)
def test_unary(element):
    a = numbers(element, 8)[:LANES]
    operations = {
        "not": np.invert,
        "popcount": lambda a: counted(a, lambda bits: bits.count("1")),
        "zeros": lambda a: counted(a, lambda bits: len(bits) - len(bits.rstrip("0"))),
    }
    a[:2] = 0, np.iinfo(a.dtype).max
    for name, reference in operations.items():
        function = elementwise(
            lambda builder, x, name=name: builder.let(lir.Unary(name, x), x.type),
            {"a": element},
            element,
        )
        args = {"a": a, "out": np.zeros(2 * LANES, a.dtype)}
        check(function, args, {"out": np.tile(reference(a), 2)})


@pytest.mark.sampled(3)
@pytest.mark.parametrize("source", SCALARS, ids=lambda e: e.name)
def test_convert(source):
    a = numbers(source, 9)[:LANES]
    for target in SCALARS:
        if target == source:
            continue
        values = a
        if source.is_float and not target.is_float:
            low = np.iinfo(DTYPES[target]).min
            values = np.array([0, 1, 1.9, 100.5, 0.99, 7, 127.9, 3], a.dtype)
            values[6] = -1.9 if low else 1.9
        with np.errstate(all="ignore"):
            expected = values.astype(DTYPES[target])
        function = elementwise(
            lambda b, x, target=target: b.convert(x, target), {"a": source}, target
        )
        args = {"a": values, "out": np.zeros(2 * LANES, DTYPES[target])}
        check(function, args, {"out": np.tile(expected, 2)})


def test_float_to_integer_out_of_range_is_one_number():
    """A frozen value: comparing it with itself is never false, and nothing traps."""

    def write(b, a, out):
        for lane in range(LANES):
            number = b.convert(b.load(a, b.const(lane)), I32)
            b.store(out, b.const(lane), number)
            same = b.convert(b.compare("eq", number, b.load(out, b.const(lane))), I32)
            b.store(out, b.const(lane), same)

    function = kernel(buffers(a=F32, out=I32), write)
    a = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2**31, 3e9, 0], np.float32)
    for target in targets().values():
        got = compiled(function, {"a": a, "out": np.zeros(LANES, np.int32)}, target)
        assert got["out"].tolist() == [1] * LANES


def test_select_bitcast_splat_iota_extract():
    def write(b, a, scale, out, lanes):
        zero = b.const(0)
        v = b.load(a, zero, Vec(F32, LANES))
        index = b.iota(I32, LANES)
        odd = b.compare("eq", b.binary("and", index, 1), 1)
        scaled = b.mul(v, scale)
        b.store(out, zero, b.select(odd, scaled, v))
        all_or_nothing = b.compare("gt", b.extract(v, 3), 0.0)
        b.store(out, b.const(LANES), b.select(all_or_nothing, v, scaled))
        b.store(lanes, zero, b.bitcast(v, I32))
        b.store(lanes, b.const(LANES), b.convert(b.extract(odd, 5), I32))
        b.store(lanes, b.const(LANES + 1), b.bitcast(b.extract(v, 1), I32))
        floats = b.bitcast(b.load(lanes, zero, Vec(I32, LANES)), F32)
        b.store(out, b.const(2 * LANES), floats)

    function = kernel(
        {**buffers(a=F32), "scale": F32, **buffers(out=F32, lanes=I32)}, write
    )
    a = np.arange(1, 9, dtype=np.float32)
    odd = np.arange(8) % 2 == 1
    args = {
        "a": a,
        "scale": 0.1,
        "out": np.zeros(24, np.float32),
        "lanes": np.zeros(10, np.int32),
    }
    scaled = a * np.float32(0.1)
    expected = {
        "out": np.concatenate([np.where(odd, scaled, a), a, a]),
        "lanes": np.concatenate([a.view(np.int32), [1], a[1:2].view(np.int32)]).astype(
            np.int32
        ),
    }
    check(function, args, expected)


@pytest.mark.parametrize("lanes", [2, 4, 8, 16, 32])
def test_masks(lanes):
    def write(b, a, out, any_out):
        zero = b.const(0)
        v = b.load(a, zero, Vec(F32, lanes))
        positive = b.compare("gt", v, 0.0)
        huge = b.compare("gt", v, 1e30)
        b.store(out, zero, b.mask_bits(positive, I64))
        b.store(out, b.const(1), b.convert(b.mask_bits(b.invert(positive), U32), I64))
        b.store(out, b.const(2), b.mask_bits(b.binary("and", positive, huge), I64))
        true = b.const(True, Mask(lanes))
        b.store(out, b.const(3), b.mask_bits(true, I64))
        b.store(any_out, zero, b.any_true(positive))
        b.store(any_out, b.const(1), b.any_true(huge))

    function = kernel(buffers(a=F32, out=I64, any_out=BOOL), write)
    a = np.random.default_rng(lanes).normal(size=lanes).astype(np.float32)
    a[0] = 1
    bits = sum(1 << i for i in range(lanes) if a[i] > 0)
    full = (1 << lanes) - 1
    out = np.array([bits, full ^ bits, 0, full])
    args = {"a": a, "out": np.zeros(4, np.int64), "any_out": np.zeros(2, bool)}
    check(function, args, {"out": out, "any_out": np.array([True, False])})


def test_constants_are_exact():
    values = {
        F32: [0.1, np.inf, -np.inf, np.nan, -0.0, 1e-45, 1e300],
        F64: [0.1, np.inf, -np.inf, np.nan, -0.0, 5e-324],
        I64: [-(2**63), 2**63 - 1, -1],
        U8: [255, 0],
        U32: [2**32 - 1],
    }
    for element, constants in values.items():
        with np.errstate(over="ignore"):
            expected = np.array(constants).astype(DTYPES[element])

        def write(b, out, constants=constants, element=element):
            for at, constant in enumerate(constants):
                b.store(out, b.const(at), b.const(constant, element))

        function = kernel(buffers(out=element), write)
        args = {"out": np.zeros(len(constants), DTYPES[element])}
        if element != F32:  # the interpreter takes only numbers of the type itself
            check(function, args, {"out": expected})
        for target in targets().values():
            got = compiled(function, args, target)["out"]
            np.testing.assert_array_equal(got, expected)
            np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


# ------------------------------------------------------------ memory


def test_loads_reinterpret_and_are_not_aligned():
    def write(b, raw, out, wide):
        three = b.const(3)
        b.store(wide, b.const(0), b.load(raw, three, I64))
        b.store(out, b.const(0), b.load(raw, three, Vec(F32, 4)))
        b.store(out, b.const(4), b.load(raw, b.const(5, I32), F32))

    function = kernel(buffers(raw=U8, out=F32, wide=I64), write)
    raw = np.arange(40, dtype=np.uint8)
    args = {"raw": raw, "out": np.zeros(5, np.float32), "wide": np.zeros(1, np.int64)}
    floats = np.frombuffer(raw[3:19].tobytes() + raw[5:9].tobytes(), np.float32)
    check(
        function,
        args,
        {"out": floats, "wide": np.frombuffer(raw[3:11].tobytes(), np.int64)},
    )


def test_alignment_is_used_only_where_it_is_certain():
    def write(b, a, n, out):
        i = b.mul(n, 16)
        b.store(out, b.const(0), b.load(a, i, Vec(F32, 16)))
        b.store(out, b.const(16), b.load(a, b.add(i, 8), Vec(F32, 8)))
        b.store(out, b.const(24), b.load(a, n, Vec(F32, 4)))

        def body(at, _):
            b.store(out, b.const(28), b.load(a, at, Vec(F32, 4)))

        for_(b, b.const(0), b.const(16), b.const(4), body)

    params = {"a": Buffer("a", F32, alignment=64), "n": I64, **buffers(out=F32)}
    text = emit_llvm(kernel(params, write), Target.host())
    loads = [line.split(" load ")[1] for line in text.splitlines() if " load <" in line]
    assert [load.split(", ")[-1] for load in loads] == [
        "align 64",
        "align 32",
        "align 4",
        "align 16",
    ]
    assert ", ptr %.out, align 4" in text


def gather_kernel(index_type):
    def write(b, table, index, out):
        at = b.load(index, b.const(0), Vec(index_type, LANES))
        b.store(out, b.const(0), b.load(table, at))
        inside = b.compare("lt", at, 20)
        # Lanes that are masked off point far outside.
        far = b.select(inside, at, b.const(100, at.type))
        other = b.const(-1.0, Vec(F32, LANES))
        got = b.let(lir.Gather(table, far, inside, other), Vec(F32, LANES))
        b.store(out, b.const(LANES), got)
        b.emit(lir.Scatter(table, at, b.const(7.0, got.type)))

    return kernel(buffers(table=F32, index=index_type, out=F32), write)


@pytest.mark.parametrize("index_type", [I32, I64], ids=lambda e: e.name)
def test_gather_and_scatter(index_type):
    table = np.arange(40, dtype=np.float32)
    index = np.array([3, 1, 39, 0, 25, 19, 20, 7], DTYPES[index_type])
    expected = np.concatenate([table[index], np.where(index < 20, table[index], -1)])
    changed = table.copy()
    changed[index] = 7
    args = {"table": table, "index": index, "out": np.zeros(16, np.float32)}
    check(
        gather_kernel(index_type),
        args,
        {"out": expected.astype("f4"), "table": changed},
    )


def test_gather_is_one_instruction_where_there_is_one():
    def count(index_type, level):
        assembly = emit_assembly(gather_kernel(index_type), Target.x86_64(level))
        names = ("vgatherdps", "vgatherqps", "vscatterdps", "vscatterqps")
        return [assembly.count(name) for name in names]

    assert count(I32, "v4") == [2, 0, 1, 0]  # 32-bit indices stay 32 bits wide
    assert count(I64, "v4") == [0, 2, 0, 1]
    assert count(I32, "v3") == [2, 0, 0, 0]
    assert count(I32, "v2") == [0, 0, 0, 0]


def test_bools_take_a_byte():
    def write(b, flags, out):
        b.store(flags, b.const(1), b.load(flags, b.const(4)))
        flipped = b.invert(b.load(flags, b.const(1)))
        b.store(flags, b.const(2), flipped)
        b.store(out, b.const(0), b.convert(flipped, F32))

    function = kernel(buffers(flags=BOOL, out=F32), write)
    flags = np.array([1, 0, 1, 1, 1, 0, 1, 0], bool)
    after = np.array([1, 1, 0, 1, 1, 0, 1, 0], bool)
    args = {"flags": flags, "out": np.ones(1, np.float32)}
    check(function, args, {"out": np.zeros(1, np.float32), "flags": after})


def test_prefetch_hints_and_never_faults():
    def write(b, a, out):
        for far in (0, 2**40, -(2**40)):
            b.emit(lir.Prefetch(a, b.const(far)))
        b.store(out, b.const(0), b.load(a, b.const(0)))

    function = kernel(buffers(a=F32, out=F32), write)
    args = {"a": np.ones(1, np.float32), "out": np.zeros(1, np.float32)}
    check(function, args, {"out": np.ones(1, np.float32)})
    for target in LEVELS.values():
        assert emit_assembly(function, target).count("prefetcht0") == 3
    assert emit_assembly(function, Target.aarch64()).count("prfm") == 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("element", [I32, I64, U8, F32, F64], ids=lambda e: e.name)
def test_atomic_add(element):
    def write(b, total, n):
        def body(i):
            b.emit(lir.AtomicAdd(total, b.binary("and", i, 1), b.const(1, element)))

        parallel_for(b, n, body)

    function = kernel({**buffers(total=element), "n": I64}, write)
    n = 200 if element == U8 else 20_000
    expected = np.full(2, n // 2, DTYPES[element])
    args = {"total": np.zeros(2, DTYPES[element]), "n": n}
    check(function, args, {"total": expected}, n_threads=2)
    assert emit_assembly(function, Target.x86_64("v2")).count("lock") == 1


def test_errors_name_the_kernel_and_the_value():
    def write(b, out):
        wide = b.compare("gt", b.iota(I32, 16), 3)
        b.store(out, b.const(0), b.mask_bits(wide, U8))

    function = kernel(buffers(out=U8), write, name="narrow")
    with pytest.raises(CompilerError) as error:
        emit_llvm(function, Target.host())
    assert str(error.value) == (
        "LLVM emitter, function 'narrow': 16 lanes of 'cmp.3' do not fit i8 'bits.5'."
    )


def test_the_start_of_a_row_is_added_to_the_buffer_before_its_columns():
    """So that it leaves the loop over hops: a hop adds the column alone."""
    names = buffers(rows=F32, column=U32, out=F32)

    def write(b, rows, column, out, start):
        with b.loop(0, 4) as i:
            at = b.add(start, b.convert(b.load(column, i), I64))
            b.store(out, i, b.load(rows, at))

    function = kernel({**names, "start": I64}, write)
    text = emit_llvm(function, Target.x86_64("v3"))
    assert re.search(r"getelementptr float, ptr %\S*rows\S*, i64 %\S*start", text), text
    args = {
        "rows": np.arange(16, dtype=np.float32),
        "column": np.array([3, 0, 7, 2], np.uint32),
        "out": np.zeros(4, np.float32),
        "start": 5,
    }
    check(function, args, {"out": args["rows"][5 + args["column"]]})
