"""Compiles C++ text to GPU machine code with NVRTC or hiprtc; needs no GPU or driver.

Code is kept in the object cache. Its key is the text's digest, the architecture, and
the compiler's version and options.

Both libraries have the same C functions with different prefixes, so they share one
binding. Kernels' registers, spills, stack and shared memory are read from the machine
code. The code is a cubin or a code object for one architecture, never PTX: a driver
refuses PTX that is newer than itself, but runs any code compiled for its GPU.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import sys
from dataclasses import dataclass
from functools import lru_cache
from glob import glob
from pathlib import Path
from typing import Any, Literal, TypeAlias

from skforge.exceptions import CompilerError, TargetError
from skforge.runtime import object_cache


@dataclass(frozen=True, slots=True)
class KernelResources:
    """Resources that one thread or block of a kernel uses.

    ``shared_bytes`` is static memory per block, which emitted kernels do not use; all
    else is per thread. ``stack_bytes`` includes arrays indexed by non-constants.
    """

    registers: int  # vector registers on AMD
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    scalar_registers: int = 0  # on AMD only
    warp_size: int = 32


# Of .nv.info: codes of attributes, and the format with a size.
_REGISTERS, _FRAME, _SIZED = 0x2F, 0x11, 4


def cubin_resources(code: bytes) -> dict[str, KernelResources]:
    """Return the resources of each kernel of a cubin.

    A cubin does not separate spilled registers from other local memory: all of it is
    ``stack_bytes``. Static shared memory, which the emitter's kernels do not use, is
    not read.
    """
    try:
        return _cubin_resources(code)
    except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
        raise CompilerError(
            "The cubin does not say what resources its kernels use."
        ) from error


def _cubin_resources(code: bytes) -> dict[str, KernelResources]:
    (base,) = struct.unpack_from("<Q", code, 40)
    size, count, names = struct.unpack_from("<3H", code, 58)
    headers = [struct.unpack_from("<2I4Q", code, base + size * i) for i in range(count)]

    def text(start: int) -> str:
        return code[start : code.index(0, start)].decode()

    sections = {text(headers[names][4] + h[0]): h[4:6] for h in headers}
    symbols, strings = sections[".symtab"][0], sections[".strtab"][0]
    by_symbol: dict[int, dict[int, int]] = {}
    offset, length = sections[".nv.info"]
    end = offset + length
    while offset < end:
        kind, what, value = struct.unpack_from("<BBH", code, offset)
        if kind == _SIZED and what in (_REGISTERS, _FRAME):
            symbol, number = struct.unpack_from("<2I", code, offset + 4)
            by_symbol.setdefault(symbol, {})[what] = number
        offset += 4 + (value if kind == _SIZED else 0)
    resources = {}
    for symbol, facts in by_symbol.items():
        name = text(strings + struct.unpack_from("<I", code, symbols + 24 * symbol)[0])
        resources[name] = KernelResources(facts[_REGISTERS], 0, facts.get(_FRAME, 0), 0)
    return resources


def hip_resources(code: bytes) -> dict[str, KernelResources]:
    """Return the resources that an AMD note has; raise TargetError without msgpack."""
    try:
        import msgpack
    except ImportError as error:
        raise TargetError(
            "Reading what AMD's kernels use needs msgpack: pip install msgpack."
        ) from error
    note = code.find(b"AMDGPU\0\0")
    if note < 12:
        raise CompilerError("The AMD code object has no metadata note.")
    _, size, _ = struct.unpack_from("<III", code, note - 12)
    notes = msgpack.unpackb(code[note + 8 : note + 8 + size])
    return {
        kernel[".name"]: KernelResources(
            registers=kernel[".vgpr_count"],
            spill_bytes=4
            * (kernel.get(".vgpr_spill_count", 0) + kernel.get(".sgpr_spill_count", 0)),
            stack_bytes=kernel[".private_segment_fixed_size"],
            shared_bytes=kernel[".group_segment_fixed_size"],
            scalar_registers=kernel[".sgpr_count"],
            warp_size=kernel[".wavefront_size"],
        )
        for kernel in notes["amdhsa.kernels"]
    }


CompilerKind: TypeAlias = Literal["cuda", "hip"]

_CONTEXT = 2  # source lines shown around each line that the compiler names
_SHOWN = 8  # most lines shown this way


def compile_text(source: str, arch: str, kind: CompilerKind) -> tuple[bytes, str]:
    """Return C++ text's cubin ("sm_80") or AMD code ("gfx90a"), and the log.

    Errors say what to install, or show the log and the lines concerned.
    """
    return _library(kind).compile(source, _options(arch, kind), _CODE[kind])


def compile_ptx(source: str, arch: str = "sm_80") -> str:
    options = [o for o in _options(arch, "cuda") if "ptxas" not in o]
    virtual = [o.replace("=sm_", "=compute_") for o in options]
    code, _ = _library("cuda").compile(source, virtual, "PTX")
    return code.rstrip(b"\0").decode()


def compiler_version(kind: CompilerKind) -> str:
    return _library(kind).version()


def _options(arch: str, kind: CompilerKind) -> list[str]:
    # Exact sums need multiply and add to round separately.
    if kind == "cuda":  # 177: unused helper functions in the text
        flags = "-std=c++17 --fmad=false --ptxas-options=-v --diag-suppress=177"
        return [f"--gpu-architecture={arch}", *flags.split()]
    flags = "-std=c++17 -O3 -ffp-contract=off -fno-strict-aliasing"
    return [f"--offload-arch={arch}", *flags.split()]


_PREFIX: dict[CompilerKind, str] = {"cuda": "nvrtc", "hip": "hiprtc"}
_CODE: dict[CompilerKind, str] = {"cuda": "CUBIN", "hip": "Code"}
_NAMES: dict[CompilerKind, tuple[str, ...]] = {
    "cuda": ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"),
    # Newer ROCm has hiprtc in its own library; before 5.6 the runtime contains it.
    "hip": (
        *("libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so", "libamdhip64.so.7"),
        *("libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"),
    ),
}
_MISSING: dict[CompilerKind, str] = {
    "cuda": (
        "NVRTC, the compiler for target 'cuda', was not found: "
        "pip install nvidia-cuda-nvrtc (or nvidia-cuda-nvrtc-cu12 for older drivers), "
        "or set CUDA_HOME to a toolkit."
    ),
    "hip": (
        "hiprtc, the compiler for target 'hip', was not found: install ROCm and set "
        "ROCM_PATH, or install Debian's libamdhip64-5."
    ),
}


class _Library:
    def __init__(self, handle: ctypes.CDLL, path: str, prefix: str) -> None:
        self.path = path
        self._handle = handle
        self._prefix = prefix
        self._function("GetErrorString").restype = ctypes.c_char_p

    def _function(self, name: str) -> Any:
        return getattr(self._handle, f"{self._prefix}{name}")

    def _call(self, name: str, *args: Any) -> None:
        status = self._function(name)(*args)
        if status:
            why = self._function("GetErrorString")(status).decode()
            raise CompilerError(f"{self._prefix}{name} of {self.path}: {why}.")

    def version(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("Version", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def compile(self, source: str, options: list[str], code: str) -> tuple[bytes, str]:
        program = ctypes.c_void_p()
        text = source.encode(), b"skforge.cu"
        self._call("CreateProgram", ctypes.byref(program), *text, 0, None, None)
        try:
            flags = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
            status = self._function("CompileProgram")(program, len(options), flags)
            written = self._bytes("ProgramLog", program).rstrip(b"\0")
            log = written.decode("utf-8", "replace")
            if status:
                why = self._function("GetErrorString")(status).decode()
                raise CompilerError(explain(f"{self._prefix}: {why}", log, source))
            return self._bytes(code, program), log
        finally:
            self._function("DestroyProgram")(ctypes.byref(program))

    def _bytes(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"Get{what}Size", program, ctypes.byref(size))
        memory = ctypes.create_string_buffer(max(1, size.value))
        self._call(f"Get{what}", program, memory)
        return memory.raw[: size.value]


@lru_cache(maxsize=2)
def _library(kind: CompilerKind) -> _Library:
    for path in _candidates(kind):
        try:
            handle = ctypes.CDLL(path)
        except OSError:
            continue
        if hasattr(handle, f"{_PREFIX[kind]}CompileProgram"):
            return _Library(handle, path, _PREFIX[kind])
    raise TargetError(_MISSING[kind])


def _candidates(kind: CompilerKind) -> list[str]:
    names = _NAMES[kind]
    folders = []
    if kind == "cuda":
        folders = wheel_folders("cu1[0-9]/lib", "cuda_nvrtc/lib")
    variables = ("CUDA_HOME", "CUDA_PATH") if kind == "cuda" else ("ROCM_PATH",)
    roots = [os.environ[v] for v in variables if os.environ.get(v)]
    roots += ["/usr/local/cuda"] if kind == "cuda" else ["/opt/rocm"]
    folders += [f"{root}/{lib}" for root in roots for lib in ("lib64", "lib")]
    paths = [path for f in folders for name in names for path in glob(f"{f}/{name}")]
    return [*paths, *names]


def wheel_folders(*patterns: str) -> list[str]:
    """Return ``nvidia`` packages' folders that match, newest first.

    They are not imported: ``nvidia`` is a namespace shared by many packages.
    """
    roots = dict.fromkeys(Path(entry or ".") / "nvidia" for entry in sys.path)
    return [
        str(folder)
        for root in roots
        if root.is_dir()
        for pattern in patterns
        for folder in sorted(root.glob(pattern), reverse=True)
    ]


# "skforge.cu(12): error: …" and clang's "/tmp/comgr-1/input/…:12:3: error: …".
_LINE = re.compile(r"[(:](\d+)(?::\d+|\)): (?:fatal )?error:")


def explain(what: str, log: str, source: str) -> str:
    lines = source.splitlines()
    named = [int(n) for n in _LINE.findall(log)]
    concerned = list(dict.fromkeys(n for n in named if 1 <= n <= len(lines)))[:_SHOWN]
    around = {n + k for n in concerned for k in range(-_CONTEXT, _CONTEXT + 1)}
    shown = sorted(around & {*range(1, len(lines) + 1)})
    text = [f"{k:5d}{'>' if k in concerned else ' '} {lines[k - 1]}" for k in shown]
    return "\n".join([f"{what}.", log.strip(), *text])


#: Changes whenever the compilers' options do.
_FORMAT = "1"


def code_of(source: str, arch: str, kind: CompilerKind) -> bytes:
    version = compiler_version(kind)
    key = object_cache.key_of(("gpu", _FORMAT, kind, arch, version, source))
    code = object_cache.find(key)
    if code is None:
        code, _ = compile_text(source, arch, kind)
        object_cache.store(key, code)
    return code


def resources_of(
    source: str, arch: str, kind: CompilerKind
) -> dict[str, KernelResources]:
    code = code_of(source, arch, kind)
    return cubin_resources(code) if kind == "cuda" else hip_resources(code)
