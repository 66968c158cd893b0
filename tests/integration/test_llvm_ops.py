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
from tests.lir_tools import buffer_of
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


def numbers(element, seed=0, size=LANES):
    rng = np.random.default_rng(seed)
    dtype = DTYPES[element]
    if element.is_float:
        values = rng.normal(size=size) * 10
        values[: size - 2] = rng.permutation(SPECIAL)[: size - 2]
        return values.astype(dtype)
    info = np.iinfo(dtype)
    values = rng.integers(info.min, info.max, size, dtype, endpoint=True)
    values[:4] = info.min, info.max, 0, 1
    return rng.permutation(values)


def elementwise(operations, *operands):
    """Return a kernel of operations on scalars, then on a vector, and its arguments.

    ``operations`` are by name what writes each, and what it gives.
    """
    sources = [buffer_of(a, f"x{k}") for k, a in enumerate(operands)]
    outs = [buffer_of(gives, name) for name, (_, gives) in operations.items()]

    def body(b, **_):
        for out, (write, gives) in zip(outs, operations.values(), strict=True):
            for at in map(b.const, range(len(gives))):
                b.store(out, at, write(b, *(b.load(x, at) for x in sources)))
            types = [Vec(x.element, len(gives)) for x in sources]
            loads = [
                b.load(x, b.const(0), t) for x, t in zip(sources, types, strict=True)
            ]
            b.store(out, b.const(len(gives)), write(b, *loads))

    args = {f"x{k}": a for k, a in enumerate(operands)}
    args |= {k: np.zeros(2 * len(x), x.dtype) for k, (_, x) in operations.items()}
    return kernel({x.name: x for x in [*sources, *outs]}, body), args


def check_each(operations, *operands):
    function, args = elementwise(operations, *operands)
    check(
        function, args, {k: np.tile(gives, 2) for k, (_, gives) in operations.items()}
    )


def binary(name, gives):
    return name, (lambda b, x, y: b.binary(name, x, y), gives)


def unary(name, gives):
    return name, (lambda b, x, *_: b.let(lir.Unary(name, x), x.type), gives)


@pytest.mark.parametrize("element", INTEGERS, ids=lambda e: e.name)
def test_integer_arithmetic_wraps(element):
    a, b = numbers(element, 1), numbers(element, 2)
    width = 8 * element.bytes
    bits = [format(int(x) & ((1 << width) - 1), f"0{width}b") for x in a]
    zeros = [len(one) - len(one.rstrip("0")) for one in bits]
    operations = [
        *[binary("add", a + b), binary("sub", a - b), binary("mul", a * b)],
        *[binary("and", a & b), binary("or", a | b), binary("xor", a ^ b)],
        *[binary("min", np.minimum(a, b)), binary("max", np.maximum(a, b))],
        unary("not", ~a),
        unary("popcount", np.array([one.count("1") for one in bits], a.dtype)),
        unary("zeros", np.array(zeros, a.dtype)),
    ]
    check_each(dict(operations), a, b)


@pytest.mark.parametrize("element", INTEGERS, ids=lambda e: e.name)
def test_division_and_shifts(element):
    a, least = numbers(element, 3), np.iinfo(DTYPES[element]).min
    b = np.where(np.arange(8) % 2, numbers(element, 4) | 1, [1, 3, 7, 100] * 2)
    b = np.where((a == least) & (b == -1), 1, b).astype(a.dtype)
    exact = [abs(int(x)) // abs(int(y)) for x, y in zip(a, b, strict=True)]
    down = np.array(exact).astype(a.dtype) * np.sign(a) * np.sign(b)
    check_each(dict([binary("div", down), binary("rem", a - down * b)]), a, b)
    b = np.linspace(0, 8 * element.bytes - 1, 8).astype(a.dtype)
    check_each(dict([binary("shl", a << b), binary("shr", a >> b)]), a, b)


@pytest.mark.parametrize("element", FLOATS, ids=lambda e: e.name)
def test_float_arithmetic(element):
    a, b = numbers(element, 4), numbers(element, 5)
    with np.errstate(all="ignore"):
        operations = [
            *[binary("add", a + b), binary("sub", a - b)],
            *[binary("mul", a * b), binary("div", a / b)],
        ]
    check_each(dict(operations), a, b)


def test_multiply_and_add_stay_two_roundings():
    a, b, c = np.random.default_rng(0).normal(size=(3, LANES)).astype(np.float32)
    operations = {"out": (lambda w, x, y, z: w.add(w.mul(x, y), z), a * b + c)}
    check_each(operations, a, b, c)
    function, _ = elementwise(operations, a, b, c)
    for target in LEVELS.values():
        assembly = emit_assembly(function, target)
        assert "mulss" in assembly and "mulps" in assembly
        assert "fmadd" not in assembly
    assert not re.search("fmadd|fmla", emit_assembly(function, Target.aarch64()))


@pytest.mark.parametrize("element", SCALARS, ids=lambda e: e.name)
def test_compare(element):
    a, b = numbers(element, 6), numbers(element, 7)
    b[2:7] = a[2:7]
    nan = np.isnan(a) | np.isnan(b)
    plain = {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b, "eq": a == b}
    operations = {}
    for name, gives in {**plain, "ne": a != b}.items():
        for unordered in (False, True) if element.is_float else (False,):

            def write(w, x, y, name=name, unordered=unordered):
                return w.convert(w.compare(name, x, y, unordered=unordered), I32)

            wanted = np.where(nan, unordered, gives).astype(np.int32)
            operations[f"{name}_{unordered}"] = write, wanted
    check_each(operations, a, b)


@pytest.mark.parametrize("source", SCALARS, ids=lambda e: e.name)
def test_convert(source):
    a, operations = numbers(source, 9), {}
    if source == I64:  # by way of float64, this would be rounded twice to float32
        a[:4] = 2**54 + 2**30 + 1, 2**24 + 1, 2**40 + 5, -129
    if source.is_float:
        with np.errstate(over="ignore"):
            a[:2] = 1e300, 1e-320
    for target in SCALARS:
        if target == source or (source.is_float and not target.is_float):
            continue
        with np.errstate(all="ignore"):
            gives = a.astype(DTYPES[target])
        write = lambda w, x, target=target: w.convert(x, target)  # noqa: E731
        operations[f"to_{target.name}"] = write, gives
    check_each(operations, a)


@pytest.mark.parametrize("source", FLOATS, ids=lambda e: e.name)
@pytest.mark.parametrize("signed", [False, True])
def test_floats_are_cut_to_integers(source, signed):
    a = np.array([0, 1, 1.9, 100.5, 0.99, 7, 127.9, 3], DTYPES[source])
    a[6] = -1.9 if signed else 200.9
    check_each(
        {
            f"to_{target.name}": (
                lambda w, x, target=target: w.convert(x, target),
                a.astype(DTYPES[target]),
            )
            for target in ((I32, I64) if signed else INTEGERS)
        },
        a,
    )


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
