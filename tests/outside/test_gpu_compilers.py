"""Compilers of GPU code, with no GPU: every architecture, no spills, clear errors."""

from __future__ import annotations

import sys

import pytest

from benchmarks.gpu.gpu_sass import innermost, kernels_of
from skforge.compiler import driver
from skforge.compiler.ir.lir.nodes import F32, F64, I32, I64, U8, U16, U32, Buffer, Vec
from skforge.compiler.target import Target
from skforge.exceptions import CompilerError, TargetError
from skforge.gpu.runtime import compilers as gpu_compilers
from skforge.gpu.runtime.compilers import (
    KernelResources,
    compile_ptx,
    cubin_resources,
    explain,
    hip_resources,
)
from skforge.gpu.search import spills
from skforge.schedule.schedule import Schedule
from skforge.tuning import Tuner
from skforge.tuning.space.space import ScheduleSpace
from tests.exactness.forests import drawn
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


def test_spills_are_seen():
    needs("cuda")
    many = "\n".join(f"  float v{k} = p[{k} * n];" for k in range(120))
    last = " + ".join(f"v{k} * p[{k}]" for k in range(120))
    source = (
        'extern "C" __global__ void __launch_bounds__(1024) k(float* p, int n)\n'
        f"{{\n{many}\n  __syncthreads();\n  p[0] = {last};\n}}\n"
    )
    for arch in ("sm_80", "sm_100"):
        binary = compile_text(source, arch, "cuda")
        used = binary.resources["k"]
        assert used.spill_bytes > 0 and used.registers <= 64
        read = cubin_resources(binary.code)["k"]
        assert (read.registers, read.stack_bytes) == (used.registers, used.stack_bytes)
    with pytest.raises(
        CompilerError, match="does not say what resources its kernels use"
    ):
        cubin_resources(binary.code[:400])


def test_an_array_with_an_index_is_seen():
    needs("hip")
    source = (
        'extern "C" __global__ void k(int* p) { int a[64]; '
        "for (int i = 0; i < 64; ++i) a[p[i] & 63] = i; "
        "p[0] = a[p[1] & 63] + a[p[2] & 63]; }"
    )
    binary = compile_text(source, "gfx90a", "hip")
    used = binary.resources["k"]
    assert used.stack_bytes >= 256 and used.warp_size == 64
    assert used.scalar_registers > 0
    with pytest.raises(CompilerError, match="no metadata note"):
        hip_resources(binary.code.replace(b"AMDGPU", b"NOTHER"))


def test_what_amd_uses_is_not_known_without_msgpack(monkeypatch):
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(TargetError, match="pip install msgpack"):
        hip_resources(b"")


SASS = """\
//--------------------- .text.walk           --------------------------
.text.walk:
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_1:
        /*0010*/                   IADD3 R1, R1, 0x1, RZ ;
.L_x_2:
        /*0020*/                   LDS R2, [R1] ;
        /*0030*/               @P2 BRA `(.L_x_2) ;
        /*0040*/               @P1 BRA `(.L_x_2) ;
        /*0050*/               @P0 BRA `(.L_x_1) ;
        /*0060*/                   EXIT ;
.L_x_3:
        /*0070*/                   BRA `(.L_x_3);
        /*0080*/                   NOP;
//--------------------- .debug           --------------------------
        /*0000*/                   NOP;
"""


def test_innermost_loops():
    (lines,) = kernels_of(SASS).values()
    (loop,) = innermost(lines)
    assert (loop.first, loop.last, loop.instructions) == (2, 4, 3)


FOREST = drawn(100, 6)
TARGET = Target.cuda("sm_90")
FEW = Schedule.preset("tahoe-direct", rows=1024).interleave("tree", 4)
MANY = Schedule.preset("tahoe-direct", rows=1024).interleave("tree", 64)


def judged(schedule, target=TARGET):
    hir = driver.build_hir(FOREST, schedule, "exact", kind="gpu")
    return spills(schedule, driver.lower(hir, target), target)


def says(monkeypatch, **used):
    """Let the compiler report what a kernel takes."""

    def resources_of(source, arch, kind):
        assert (arch, kind) == ("sm_90", "cuda") and "SKF_KERNEL(1024)" in source
        return {"predict_0": KernelResources(**{**PLAIN, **used})}

    monkeypatch.setattr("skforge.gpu.search.resources_of", resources_of)


PLAIN = {"registers": 32, "spill_bytes": 0, "stack_bytes": 0, "shared_bytes": 0}


def test_the_compiler_s_report_decides(monkeypatch):
    says(monkeypatch)
    assert judged(MANY) == ""
    for kind in ("spill_bytes", "stack_bytes"):
        says(monkeypatch, registers=64, **{kind: 24})
        assert judged(FEW) == (
            "predict_0 uses 24 bytes of local memory per thread, besides 64 registers "
            "(sm_90)"
        )


def test_without_a_compiler_a_model_decides(monkeypatch):
    def missing(*_):
        raise TargetError("NVRTC was not found")

    monkeypatch.setattr("skforge.gpu.search.resources_of", missing)
    assert judged(FEW) == ""
    assert judged(MANY) == (
        "64 walks in flight need at least 140 registers per thread (estimated, "
        "because no compiler is installed), but a block of 1024 threads leaves 64"
    )


def test_nvrtc_says_what_spills(tmp_path, monkeypatch):
    pytest.importorskip("nvidia")
    try:
        gpu_compilers.compiler_version("cuda")
    except TargetError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path))
    assert judged(FEW) == ""
    assert "bytes of local memory per thread" in judged(MANY)
    # The code is kept: it is what a device would load.
    monkeypatch.setattr(gpu_compilers, "compile_text", None)
    assert judged(FEW) == ""


def test_searches_leave_out_what_spills(monkeypatch):
    def resources_of(source, arch, kind):
        stack = 16 if "SKF_KERNEL(64)" in source else 0
        names = [f"predict_{i}" for i in range(3)]
        return {n: KernelResources(**{**PLAIN, "stack_bytes": stack}) for n in names}

    monkeypatch.setattr("skforge.gpu.search.resources_of", resources_of)
    both = [Schedule.preset("tahoe-direct", rows=n) for n in (64, 96)]
    result = Tuner("exhaustive", ScheduleSpace.of(both)).tune(
        FOREST, target="emulated", ranges={(1, None): 200}, budget=60
    )
    rows = {t.schedule: t for t in result.trials if t.candidate.origin == "exhaustive"}
    assert rows[both[0]].status == "spills" and not rows[both[0]].samples
    assert rows[both[1]].status in ("measured", "stopped")
