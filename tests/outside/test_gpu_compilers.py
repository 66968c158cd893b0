"""Compilers of GPU code, with no GPU: every architecture, no spills, clear errors."""

from __future__ import annotations

import pytest

from skforge.compiler.ir.lir.nodes import F32, F64, I32, I64, U8, U16, U32, Buffer, Vec
from skforge.exceptions import CompilerError, TargetError
from skforge.gpu.runtime import compilers as gpu_compilers
from skforge.gpu.runtime.compilers import compile_ptx, explain
from tests.gpu_binary import compile_text
from tests.gpu_kernels import (
    CUDA,
    HIP,
    needs,
    one_region,
    plan_of,
    sums_function,
    walk_function,
)

ARCHS = [("cuda", arch) for arch in CUDA] + [("hip", arch) for arch in HIP]

INDEX = {1: U8, 2: U16, 4: U32, 8: I64}  # of Permute, by the element's bytes


def every_operation():
    """Return a function with all that a kernel may do to numbers of each type."""
    buffers = [
        Buffer(f"{name}_{s.name}", s, alignment=16)
        for s in (U8, U16, U32, I32, I64, F32, F64)
        for name in ("in", "out")
    ]
    data = Buffer("data", U8, alignment=16)

    def write(b, thread):
        at = b.mul(thread, 4)
        for source, target in zip(buffers[::2], buffers[1::2], strict=True):
            element = source.element
            x = b.load(source, at, Vec(element, 4))
            y = b.load(data, b.mul(thread, 4 * element.bytes), Vec(element, 4))
            z = b.mul(b.add(x, y), b.binary("sub", x, y))
            if element.is_float:
                z = b.binary("div", z, y)
                z = b.select(b.is_nan(z), x, z)
            else:
                few = b.binary("and", y, 7)
                z = b.binary("xor", b.binary("shl", z, few), b.binary("shr", x, few))
                z = b.binary("rem", b.binary("min", z, b.popcount(x)), b.add(few, 1))
                z = b.binary("max", b.invert(z), b.count_zeros(y))
            bits = b.mask_bits(b.compare("lt", x, z), U8)
            index = b.iota(INDEX[element.bytes], 4)
            moved = b.permute([x], b.binary("xor", index, 1))
            z = b.select(b.compare("gt", bits, 3), z, moved)
            z = b.compress(b.shuffle(z, x, [3, 4, 1, 6]), b.compare("ne", z, x))
            b.store(target, at, z)
            lane = b.extract(z, 2)
            for other in buffers[1::2]:
                if other.element != element:
                    b.store(other, b.add(at, 256), b.convert(lane, other.element))
            b.prefetch(source, b.add(at, 512))

    return one_region(write, *buffers, data)


FUNCTIONS = {
    "walk": walk_function,
    "sums": sums_function,
    "operations": every_operation,
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("kind", "arch"), ARCHS)
def test_kernels_compile_without_spills(kind, arch, name):
    needs(kind)
    plan = plan_of(FUNCTIONS[name]())
    binary = compile_text(plan.source, arch, kind)
    assert binary.code[:4] == b"\x7fELF" and binary.arch == arch
    kernels = {launch.kernel for launch in plan.launches.values()}
    assert set(binary.resources) == kernels
    for used in binary.resources.values():
        assert used.spill_bytes == used.stack_bytes == 0
        assert used.shared_bytes == 0  # all of it is dynamic
        assert 1 <= used.registers <= (64 if name != "operations" else 255)


def test_multiply_and_add_stay_apart():
    needs("cuda")

    def write(b, thread):
        x, y = Buffer("x", F32), Buffer("y", F64)
        for buffer in (x, y):
            v = b.load(buffer, thread)
            b.store(buffer, thread, b.add(b.mul(v, v), v))

    text = plan_of(one_region(write, Buffer("x", F32), Buffer("y", F64))).source
    ptx = compile_ptx(text, "sm_90")
    assert "mul" in ptx and "fma" not in ptx.replace(".rn", "")


def test_ptx_counts_what_the_text_asks_for():
    needs("cuda")
    ptx = compile_ptx(plan_of(walk_function()).source, "sm_80")
    assert ptx.count("bar.sync") == 1 and ".version" in ptx
    assert "ld.global.nc.v4" in ptx and "st.shared.v4" in ptx
    sums = compile_ptx(plan_of(sums_function()).source, "sm_80")
    assert sums.count("atom.global.add.f64") == 1
    assert sums.count("shfl.sync.bfly") == 5 + 2 * 3 + 5 + 4 + 2 * 2 + 5


@pytest.mark.parametrize(("kind", "arch"), [("cuda", "sm_80"), ("hip", "gfx90a")])
def test_errors_show_the_lines_concerned(kind, arch):
    needs(kind)
    source = plan_of(walk_function()).source
    wrong = source.replace("cache_11[", "cash_11[", 1)
    line = 1 + wrong[: wrong.index("cash_11[")].count("\n")
    with pytest.raises(CompilerError) as error:
        compile_text(wrong, arch, kind)
    shown = [text for text in str(error.value).splitlines() if text[5:6] == ">"]
    assert shown == [f"{line:5d}> {wrong.splitlines()[line - 1]}"]
    assert "cash_11" in str(error.value).split(str(line))[1]


def test_lines_are_shown_once():
    source = "\n".join(f"line {n}" for n in range(1, 21))
    log = "skforge.cu(5): error: a\n/tmp/x.hip:6:3: error: b\nskforge.cu(9): warning: c"
    text = explain("nvrtc: no", log, source).splitlines()
    assert [line for line in text if line[5:6] == ">"] == [
        "    5> line 5",
        "    6> line 6",
    ]
    assert text[4:] and len(text) == 4 + 6


@pytest.mark.parametrize(
    ("kind", "what"),
    [("cuda", "pip install nvidia-cuda-nvrtc "), ("hip", "libamdhip64-5")],
)
def test_a_missing_compiler_says_what_to_install(monkeypatch, kind, what):
    monkeypatch.setattr(gpu_compilers, "_candidates", lambda kind: ["/nowhere.so"])
    gpu_compilers._library.cache_clear()
    try:
        with pytest.raises(TargetError, match=what):
            compile_text("", "any", kind)
    finally:
        gpu_compilers._library.cache_clear()
