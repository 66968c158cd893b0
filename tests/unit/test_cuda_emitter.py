"""GPU text: what is written for each statement, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

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
    Function,
    Plane,
    Value,
    Vec,
)
from skforge.compiler.target import Target
from skforge.exceptions import CompilerError
from skforge.gpu.codegen.emitter import emit_gpu
from skforge.gpu.codegen.writer import Names, literal
from tests.gpu_kernels import (
    Launches,
    N,
    kernels_text,
    one_region,
    plan_of,
    sums_function,
    walk_function,
)
from tests.lir_loops import for_, parallel_for

OUT = Buffer("out", F32)
BYTES = Buffer("bytes", U8)
ALIGNED = Buffer("aligned", U8, alignment=16)


def text_of(write, *params, arch="sm_80"):
    return kernels_text(plan_of(one_region(write, *params), arch))


def test_the_text_of_a_walk(golden):
    golden(kernels_text(plan_of(walk_function())), "cu")


def _is_const(stmt):
    return isinstance(stmt, lir.Let) and isinstance(stmt.op, lir.Const)


def test_the_host_of_a_walk():
    plan = plan_of(walk_function())
    _, div, _, scratch, first_grid, _ = (
        s for s in plan.function.body if not _is_const(s)
    )
    first, second = plan.launches.values()
    assert first.kernel == "predict_0" and second.kernel == "predict_1"
    ((_, block, count),) = first_grid.dims
    assert count == div.value and plan.launches[block.name] == first
    assert first.block == (128, 1, 1)
    assert first.shared_bytes == 128 * 8 * 4 and second.shared_bytes == 0
    taken = [arg.name for arg in first.args]
    assert taken == ["rows", "nodes", scratch.buffer.name, "n_rows", "n_trees"]
    assert [arg.name for arg in second.args] == [
        "result",
        scratch.buffer.name,
        "n_rows",
    ]
    assert plan.params == ("rows", "n_rows", "n_trees", "nodes", "result")


def test_the_text_does_not_depend_on_the_target():
    function = walk_function()
    texts = {
        emit_gpu(function, target).source
        for target in (Target.cuda("sm_90"), Target.hip("gfx90a"))
    }
    assert len(texts) == 1


# ---------------------------------------------------------------- loads


@pytest.mark.parametrize(
    ("buffer", "factor", "type_", "words"),
    [
        (BYTES, 16, Vec(U32, 4), ["u8"] * 16),
        (ALIGNED, 2, Vec(U32, 2), ["u16_a"] * 4),
        (ALIGNED, 4, Vec(U32, 2), ["u32_a"] * 2),
        (ALIGNED, 8, Vec(U32, 2), ["u32x2"]),
        (ALIGNED, 16, Vec(F32, 4), ["u32x4"]),
        (ALIGNED, 32, Vec(U8, 16), ["u32x4"]),
        (ALIGNED, 16, Vec(F64, 4), ["u64x2"] * 2),
        (ALIGNED, 8, Vec(I64, 2), ["u64_a"] * 2),
        (ALIGNED, 16, Vec(U16, 6), ["u32x2", "u32_a"]),
        (ALIGNED, 16, F64, ["u64_a"]),
        (ALIGNED, 4, F64, ["u32_a"] * 2),
        (BYTES, 1, F32, ["u8"] * 4),
        (BYTES, 1, I32, ["u8"] * 4),
    ],
)
def test_words_are_as_wide_as_alignment_allows(buffer, factor, type_, words):
    def write(b, thread):
        value = b.load(buffer, b.mul(thread, factor), type_)
        first = b.extract(value, 0) if isinstance(type_, Vec) else value
        b.store(OUT, thread, b.convert(first, F32))

    text = text_of(write, buffer, OUT)
    assert re.findall(r"\*\(const (\w+)\*\)", text) == words


def test_a_vector_of_the_buffers_elements_is_lanes():
    rows = Buffer("rows", F32)

    def write(b, thread):
        value = b.load(rows, b.mul(thread, 2), Vec(F32, 2))
        b.store(OUT, b.mul(thread, 2), value)

    text = text_of(write, rows, OUT)
    read, again = re.findall(r"= rows\[(.*)\];", text)
    assert again == f"{read} + 1"
    written, more = re.findall(r"out\[(.*)\] =", text)
    assert more == f"{written} + 1"


def test_alignment_follows_shifts_sums_and_masks():
    def write(b, thread):
        at = b.binary("shl", thread, 3)
        at = b.add(at, 8)
        at = b.binary("and", at, -8)
        b.store(OUT, thread, b.extract(b.load(ALIGNED, at, Vec(F32, 2)), 1))

    assert "u32x2 word = *(const u32x2*)" in text_of(write, ALIGNED, OUT)


def test_shared_memory_is_aligned_for_words():
    b = Launches()
    with b.grid(b.const(1)):
        odd = b.alloc("odd", U8, b.const(3), space="shared")
        wide = b.alloc("wide", F32, b.const(256), space="shared")
        with b.region(64) as thread:
            zeros = b.const(0.0, Vec(F32, 4))
            b.store(wide, b.mul(thread, 4), zeros)
            b.store(odd, b.const(0), b.const(1, U8))
    plan = plan_of(Function("f", (), b.finish()))
    text = kernels_text(plan)
    assert re.search(r"u8\* const odd_\d+ = \(u8\*\)\(skf_shared \+ 0\);", text)
    assert re.search(r"f32\* const wide_\d+ = \(f32\*\)\(skf_shared \+ 16\);", text)
    assert "*(u32x4*)" in text
    (launch,) = plan.launches.values()
    assert launch.shared_bytes == 16 + 1024


def test_scratch_of_the_plan_is_aligned_for_words():
    b = Launches()
    scratch = b.alloc("scratch", U8, b.mul(N, 16))
    with b.grid(N) as block, b.region(1):
        b.store(scratch, b.mul(block, 16), b.const(0, Vec(U8, 16)))
    assert "*(u32x4*)" in kernels_text(plan_of(Function("f", (N,), b.finish())))


def test_masked_lanes_touch_no_memory():
    def write(b, thread):
        at = b.mul(b.iota(I64, 2), 4)
        mask = b.compare("lt", at, b.splat(thread, 2))
        other = b.const(1.5, Vec(F32, 2))
        value = b.let(lir.Gather(BYTES, at, mask, other), Vec(F32, 2))
        b.emit(lir.Scatter(OUT, b.iota(I64, 2), value))

    text = text_of(write, BYTES, OUT)
    assert text.count(" ? SKF_BITS_F32(") == 2
    assert len(re.findall(r"\n\s+out\[\dLL\] = v_", text)) == 2


# ---------------------------------------------------------------- barriers


def barriers(body):
    """Return what is written in turn: regions, barriers, loads of shared memory."""
    b = Launches()
    with b.grid(b.const(2)) as block:
        shared = b.alloc("shared", I64, b.const(64), space="shared")

        def region(value=None):
            with b.region(64) as thread:
                b.store(shared, thread, thread if value is None else value)

        body(b, region, lambda buffer=shared: b.load(buffer, block))
    text = kernels_text(plan_of(Function("f", (GIVEN,), b.finish())))
    return "".join(
        {"SKF_BARRIER();": "B", "{": "R"}.get(line.strip(), "L")
        for line in text.splitlines()[4:]
        if line.strip() in ("SKF_BARRIER();", "{") or re.search(r"= shared_\d+\[", line)
    )


def in_turns(b, body, inits=()):
    for_(b, b.const(0), b.const(3), b.const(1), body, inits)


GIVEN = Buffer("given", I64)
BARRIERS = {
    "none after the last region": ("RBRBR",
        lambda b, region, load: [region(), region(), region()]),
    "after a region in a loop": ("RBRB",
        lambda b, region, load: [region(), in_turns(b, lambda i, _: region(i))]),
    "a load is over before the next region writes": ("RBLBR",
        lambda b, region, load: [region(), region(load())]),
    "a load at the end of a loop is over before its start": ("RBLB",
        lambda b, region, load: in_turns(
            b, lambda i, c: [region(c[0]), load()][1:], [b.const(0)])),
    "none after a load of what nobody writes": ("RBR",
        lambda b, region, load: [region(load(GIVEN)), region()]),
}  # fmt: skip


@pytest.mark.parametrize("case", BARRIERS)
def test_barriers(case):
    wanted, body = BARRIERS[case]
    assert barriers(body) == wanted


# ---------------------------------------------------------------- control, names


def test_carried_values_change_at_once():
    def write(b, thread):
        x, y = for_(
            b, b.const(0), thread, b.const(1), lambda _, c: [c[1], c[0]], [thread, N]
        )
        b.store(Buffer("swapped", I64), thread, b.binary("sub", x, y))

    text = text_of(write, N, Buffer("swapped", I64))
    kept = re.search(r"const i64 (next\w*) = (carry_\w+);", text)
    assert kept and text.index(kept[0]) < text.index(f"  {kept[2]} = ")


def test_loops_over_private_arrays_are_unrolled_and_no_others():
    def write(b, thread):
        mine = b.alloc("mine", F32, b.const(4), space="private")
        zero = b.const(0.0, F32)
        for_(b, b.const(0), b.const(4), b.const(1), lambda i, _: b.store(mine, i, zero))
        for_(b, b.const(0), b.const(4), b.const(1), lambda i, _: b.store(OUT, i, zero))

    text = text_of(write, OUT)
    assert re.search(r"f32 mine_\d+\[4\];", text)
    assert text.count("SKF_UNROLL") == text.count("SKF_LOOP") == 1


def test_names_are_c_names_and_never_twice():
    names = Names()
    hints = ["a.1", "a_1", "_x", "1a", "a..b", "skf_x", "for", "é", "u32", "out.12"]
    made = [names.new(hint) for hint in hints]
    assert len(set(made)) == len(made)
    assert made[:2] == ["a_1", "a_1_2"] and made[-1] == "out_12"
    assert all(re.fullmatch(r"(?!skf_|_)[A-Za-z]\w*", name) for name in made)
    assert not {"for", "u32"} & set(made) and not any("__" in name for name in made)


@pytest.mark.parametrize(
    ("value", "element", "text"),
    [
        (1, U8, "1u"),
        (-1, I32, "(-1)"),
        (-(1 << 31), I32, "(-2147483647 - 1)"),
        (-(1 << 63), I64, "(-9223372036854775807LL - 1)"),
        (0.1, F64, "0x1.999999999999ap-4"),
        (0.1, F32, "0x1.99999ap-4f"),
        (-0.0, F32, "(-0x0p+0f)"),
        (np.inf, F32, "SKF_BITS_F32(2139095040u)"),
        (1e300, F32, "SKF_BITS_F32(2139095040u)"),
        (True, BOOL, "true"),
    ],
)
def test_constants(value, element, text):
    assert literal(value, element) == text


@pytest.mark.parametrize(
    ("op", "unordered", "text"),
    [
        ("lt", False, "a < b"),
        ("lt", True, "!(a >= b)"),
        ("eq", True, "!(a < b || a > b)"),
        ("ne", False, "a < b || a > b"),
        ("ne", True, "a != b"),
    ],
)
def test_comparisons_of_floats_with_nan(op, unordered, text):
    a, b_ = Value("a", F32), Value("b", F32)

    def write(b, thread):
        b.store(Buffer("flag", BOOL), thread, b.compare(op, a, b_, unordered))

    assert f" = {text};" in text_of(write, a, b_, Buffer("flag", BOOL))


def test_every_pure_operation_is_scalars():
    """No array is made for vectors of up to 16 lanes."""
    source = Buffer("source", U32, alignment=16)
    target = Buffer("target", U32)

    def write(b, thread):
        v = b.load(source, b.mul(thread, 8), Vec(U32, 8))
        mask = b.compare("gt", v, 5)
        v = b.permute([v], b.binary("and", v, 7))
        v = b.compress(b.shuffle(v, v, [7, 6, 5, 4, 3, 2, 1, 8]), mask)
        v = b.add(v, b.splat(b.mask_bits(mask, U32), 8))
        v = b.select(b.any_true(mask), v, b.popcount(b.invert(v)))
        v = b.add(v, b.count_zeros(v))
        bytes_ = b.reinterpret(v, Vec(U8, 32))
        b.store(target, b.mul(thread, 8), b.reinterpret(bytes_, Vec(U32, 8)))

    text = text_of(write, source, target)
    assert not re.search(r"\w+ \w+\[\d+\]", text.split("{", 1)[1])


def test_sums_of_narrow_integers_travel_as_words():
    text = kernels_text(plan_of(sums_function()))
    assert "(u16)((u32)" in text and "SKF_SHFL_XOR((u32)" in text
    assert "SKF_ATOMIC_ADD((u64*)(out_i64 + " in text
    assert text.count("SKF_SHFL_XOR") == 5 + 3 + 5 + 4 + 2 + 5


# ---------------------------------------------------------------- refusals


def store_zero(b, thread):
    b.store(OUT, thread, b.const(0.0, F32))


def host(write, *params):
    b = Launches()
    write(b)
    return Function("f", params, b.finish())


def in_grid(write, *params):
    b = Launches()
    with b.grid(b.const(1)):
        write(b)
    return Function("f", params, b.finish())


def of_threads(write, *counts):
    """Return a launch of regions of so many threads."""

    def regions(b):
        for threads in counts:
            with b.region(threads) as thread:
                write(b, thread)

    return in_grid(regions, OUT)


def warp_sum(width):
    def write(b, thread):
        total = b.let(lir.WarpReduce(b.const(1.0, F32), width), F32)
        b.store(OUT, thread, total)

    return write


def shared(size, *params):
    return in_grid(lambda b: b.alloc("x", F32, size(b), space="shared"), *params)


SMALL = Buffer("small", U8)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (of_threads(store_zero, 32, 64),
         r"regions of \(32, 1, 1\) and \(64, 1, 1\) threads"),
        (of_threads(store_zero, 2048), "a block of 2048 × 1 × 1 threads"),
        (shared(lambda b: N, N), "in shared memory has no constant size"),
        (shared(lambda b: b.const(1 << 20)),
         "needs 4194304 bytes of shared memory; a block on"),
        (one_region(warp_sum(64), OUT), "WarpReduce over 64 threads; a warp has 32"),
        (of_threads(warp_sum(32), 40), "WarpReduce over 32 threads in blocks of 40"),
        (one_region(lambda b, t: b.let(lir.LoadPlane(BYTES, t), Plane(8)), BYTES),
         r"LoadPlane \(%v.\d+\): GPU kernels have no"),
        (one_region(
            lambda b, t: b.emit(lir.AtomicAdd(SMALL, t, b.const(1, U8))), SMALL),
         "AtomicAdd to u8 @small"),
        (host(lambda b: b.binary("add", b.const(1.0, F32), b.const(2.0, F32))),
         "is computed of floats"),
        (host(lambda b: store_zero(b, b.const(0)), OUT), "Store outside a launch"),
        (host(lambda b: parallel_for(b, b.const(3), lambda p: None)),
         "ParallelFor outside a launch"),
    ],
)  # fmt: skip
def test_refusals_name_what_has_no_place(function, why):
    with pytest.raises(CompilerError, match=why):
        plan_of(function)
