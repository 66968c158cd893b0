"""Kernel code as text: the levels of ``inspect`` below LIR."""

from __future__ import annotations

from skforge.compiler.codegen.cuda.emitter import emit_gpu
from skforge.compiler.ir.lir import nodes as lir
from skforge.compiler.runtime.gpu.compilers import compile_ptx
from skforge.compiler.runtime.gpu.kernel import GpuKernel
from skforge.compiler.runtime.kernels import Kernel
from skforge.compiler.target import Target


def code_levels(target: Target) -> tuple[str, ...]:
    """Return the code levels of kernels for a target."""
    if target.kind == "cpu":
        return ("llvm", "asm")
    if target.kind == "emulated":
        return ("llvm", "asm", "cuda", "ptx")
    return ("cuda", "ptx")


def code_text(kernel: Kernel | GpuKernel, level: str) -> str:
    """Return a compiled kernel's code; PTX needs NVRTC but no GPU."""
    assert kernel.function is not None
    if level in ("cuda", "ptx"):
        return gpu_text(kernel.function, kernel.target, level)
    assert isinstance(kernel, Kernel)
    return kernel.jit.llvm_ir() if level == "llvm" else kernel.jit.assembly()


def gpu_text(function: lir.Function, target: Target, level: str) -> str:
    """Return a function's C++ text, or the PTX that NVRTC compiles from it.

    PTX is for the target's CUDA architecture, or sm_80 for other targets.
    """
    source = emit_gpu(function, target).source
    if level == "cuda":
        return source
    return compile_ptx(source, target.cpu if target.cpu.startswith("sm_") else "sm_80")
