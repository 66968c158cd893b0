"""Compiled GPU texts with the resources that the compiler's log names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from skforge.gpu.runtime import compilers
from skforge.gpu.runtime.compilers import CompilerKind, KernelResources, hip_resources


@dataclass(frozen=True, slots=True)
class GpuBinary:
    """Code for one architecture, the compiler's output, and each kernel's resources."""

    arch: str
    code: bytes
    log: str
    resources: dict[str, KernelResources]


def compile_text(source: str, arch: str, kind: CompilerKind) -> GpuBinary:
    """Compile a text for one architecture."""
    code, log = compilers.compile_text(source, arch, kind)
    read = nvrtc_resources(log) if kind == "cuda" else hip_resources(code)
    return GpuBinary(arch, code, log, read)


def compiler_path(kind: CompilerKind) -> str:
    """Return the path of the vendor's compiler."""
    return compilers._library(kind).path


_KERNEL = re.compile(r"Compiling entry function '(\w+)'")
_STACK = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
_USED = re.compile(r"Used (\d+) registers(.*)")
_SHARED = re.compile(r"(\d+) bytes smem")


def nvrtc_resources(log: str) -> dict[str, KernelResources]:
    """Return the resources of each kernel, from a log of ``--ptxas-options=-v``."""
    found: dict[str, KernelResources] = {}
    name, stack, spills = "", 0, 0
    for line in log.splitlines():
        if match := _KERNEL.search(line):
            name, stack, spills = match[1], 0, 0
        elif match := _STACK.search(line):
            stack, spills = int(match[1]), max(int(match[2]), int(match[3]))
        elif (match := _USED.search(line)) and name:
            shared = _SHARED.search(match[2])
            found[name] = KernelResources(
                int(match[1]), spills, stack, int(shared[1]) if shared else 0
            )
    return found
