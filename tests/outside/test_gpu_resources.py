"""What compilers say of kernels, how many blocks fit, and instructions of loops."""

from __future__ import annotations

import sys

import pytest

from benchmarks.gpu.gpu_sass import innermost, kernels_of
from skforge.exceptions import CompilerError, TargetError
from skforge.gpu.runtime.compilers import cubin_resources, hip_resources
from tests.gpu_binary import compile_text
from tests.gpu_kernels import needs


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
