"""Targets: the CPU or GPU that code is generated for, as an immutable set of facts.

Passes query a :class:`Target` for facts (vector width, mask registers, entries of an
in-register permute), never for the name of a machine.
"""

from __future__ import annotations

import json
import os
import platform
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, Literal, TypeAlias, cast, get_args

from skforge.compiler.system import TRIPLE_SUFFIX
from skforge.exceptions import TargetError, check_choice
from skforge.runtime import object_cache
from skforge.runtime.facts import (
    cpu_count,
    cpu_facts,
    llvm_version,
    llvmlite,
    read_text,
)

TargetKind: TypeAlias = Literal["cpu", "cuda", "hip", "emulated"]
KINDS: list[str] = [*get_args(TargetKind)]  # GPU devices of plugins add theirs

# The psABI's micro-architecture levels, as LLVM feature names.
_V1 = ("cmov", "cx8", "fxsr", "mmx", "sse", "sse2")
_V2 = (*_V1, "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_X86_64_LEVELS = {"v1": _V1, "v2": _V2, "v3": _V3, "v4": _V4}

# Most bytes of shared memory per block.
_CUDA_SHARED = {
    "sm_75": 64 << 10, "sm_80": 163 << 10, "sm_86": 99 << 10, "sm_89": 99 << 10,
    "sm_90": 227 << 10, "sm_100": 227 << 10, "sm_120": 99 << 10,
}  # fmt: skip
_HIP_WARP = {"gfx908": 64, "gfx90a": 64, "gfx942": 64, "gfx1030": 32, "gfx1100": 32}
_HIP_SHARED = 64 << 10


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """A machine to compile for.

    Make one with :meth:`host`, :meth:`x86_64`, :meth:`aarch64`, :meth:`cuda`,
    :meth:`hip` or :meth:`parse`; ``dataclasses.replace`` changes single facts.

    Parameters
    ----------
    kind : {"cpu", "cuda", "hip", "emulated"}
        The code generator. "emulated" runs a GPU schedule on the CPU.
    triple : str
        LLVM target triple of the code or, for GPUs, of the host.
    cpu : str
        LLVM name of the CPU, or the GPU's architecture such as "sm_80".
    features : str
        LLVM features, "+avx2,+fma"; empty for GPUs.
    vector_bits : int
        Width of the SIMD registers that code uses; 32 times the warp size for GPUs,
        whose lanes are 32 bits.
    n_cores : int
        Cores this process may use; 0 for a GPU whose size is unknown.
    l1_bytes, l2_bytes, l3_bytes : int
        Data cache sizes: the first two per core, the last one shared. 0 if absent.
    shared_bytes : int
        Shared memory that one GPU block may use; 0 for CPUs.

    Examples
    --------
    >>> target = Target.x86_64("v3")
    >>> target.vector_bits, target.has_mask_registers, target.has("fma")
    (256, False, True)
    >>> Target.from_json(target.to_json()) == target
    True
    """

    kind: TargetKind
    triple: str
    cpu: str
    features: str
    vector_bits: int
    n_cores: int = 1
    l1_bytes: int = 32 << 10
    l2_bytes: int = 512 << 10
    l3_bytes: int = 0
    shared_bytes: int = 0

    def __post_init__(self) -> None:
        check_choice("the kind of a target", self.kind, KINDS, TargetError)
        for flag in filter(None, self.features.split(",")):
            if flag[0] not in "+-" or len(flag) == 1:
                raise TargetError(
                    f"Target features are written like '+avx2,-fma', but one is "
                    f"{flag!r}."
                )
        if self.is_gpu:
            return
        widest = _vector_bits(self.triple, self.enabled)
        if self.vector_bits not in (128, 256, 512) or self.vector_bits > widest:
            raise TargetError(
                f"vector_bits={self.vector_bits} does not fit {self.cpu!r}, whose "
                f"features allow up to {widest}; use 128, 256 or 512 within that."
            )

    # -- makers ------------------------------------------------------------------

    @classmethod
    def host(cls) -> Target:
        """Return the CPU this process runs on, with the cores it may use."""
        return _host()

    @classmethod
    def x86_64(cls, level: str = "v3") -> Target:
        """Return any x86-64 CPU of a micro-architecture level "v1" to "v4"."""
        check_choice("the level of x86-64", level, _X86_64_LEVELS, TargetError)
        enabled = _X86_64_LEVELS[level]
        triple = f"x86_64-{TRIPLE_SUFFIX}"
        return cls(
            "cpu",
            triple=triple,
            cpu="x86-64" if level == "v1" else f"x86-64-{level}",
            features=",".join(f"+{name}" for name in enabled),
            vector_bits=_vector_bits(triple, frozenset(enabled)),
        )

    @classmethod
    def aarch64(cls) -> Target:
        """Return any 64-bit Arm CPU (NEON, no SVE)."""
        triple = f"aarch64-{TRIPLE_SUFFIX}"
        return cls(
            "cpu",
            triple=triple,
            cpu="generic",
            features="+fp-armv8,+neon",
            vector_bits=128,
        )

    @classmethod
    def cuda(cls, arch: str = "sm_80", kind: TargetKind = "cuda") -> Target:
        """Return an NVIDIA GPU by architecture, for schedules to bind to."""
        check_choice("the CUDA architecture", arch, _CUDA_SHARED, TargetError)
        return cls._gpu(kind, arch, warp_size=32, shared_bytes=_CUDA_SHARED[arch])

    @classmethod
    def hip(cls, arch: str = "gfx90a") -> Target:
        """Return an AMD GPU by architecture, for schedules to bind to."""
        check_choice("the HIP architecture", arch, _HIP_WARP, TargetError)
        warp = _HIP_WARP[arch]
        return cls._gpu("hip", arch, warp_size=warp, shared_bytes=_HIP_SHARED)

    @classmethod
    def _gpu(
        cls, kind: TargetKind, arch: str, warp_size: int, shared_bytes: int
    ) -> Target:
        return cls(
            kind,
            triple=f"{_machine()}-{TRIPLE_SUFFIX}",
            cpu=arch,
            features="",
            vector_bits=32 * warp_size,
            n_cores=0,
            l1_bytes=0,
            l2_bytes=0,
            shared_bytes=shared_bytes,
        )

    @classmethod
    def parse(cls, target: str | Target) -> Target:
        """Return the target for a name, or the ``Target`` that was passed.

        Parameters
        ----------
        target : str or Target
            "auto", "cpu", "x86-64-v2" to "x86-64-v4", "aarch64", "cuda", "hip" or
            "emulated"; "cuda" and "hip" take an architecture after a colon,
            "cuda:sm_90".
        """
        if isinstance(target, Target):
            return target
        if not isinstance(target, str):
            raise TargetError(
                f"target must be a str or a Target, not {type(target).__name__}."
            )
        name, _, arch = target.partition(":")
        if name == "cuda":
            return cls.cuda(arch) if arch else cls.cuda()
        if name == "hip":
            return cls.hip(arch) if arch else cls.hip()
        match target:
            case "auto" | "cpu":
                return cls.host()
            case "x86-64-v2" | "x86-64-v3" | "x86-64-v4":
                return cls.x86_64(target.removeprefix("x86-64-"))
            case "aarch64":
                return cls.aarch64()
            case _ if target in KINDS:
                return cls.cuda(kind=cast(TargetKind, target))
            case _:
                raise TargetError(
                    f"Unknown target {target!r}; use 'auto', 'cpu', 'x86-64-v2' to "
                    f"'x86-64-v4', 'aarch64', {', '.join(map(repr, KINDS[1:]))} or a "
                    "skforge.Target."
                )

    # -- facts -------------------------------------------------------------------

    @property
    def is_gpu(self) -> bool:
        """Whether schedules for this target use grid and block dimensions."""
        return self.kind != "cpu"

    @property
    def schedule_kind(self) -> Literal["cpu", "gpu"]:
        """The kind of schedules for this target, "cpu" or "gpu"."""
        return "cpu" if self.kind == "cpu" else "gpu"

    @property
    def arch(self) -> str:
        """The instruction set: the first part of the triple, such as "x86_64"."""
        return self.triple.partition("-")[0]

    @property
    def enabled(self) -> frozenset[str]:
        """Names of the enabled LLVM features."""
        return _enabled(self.features)

    def has(self, feature: str) -> bool:
        """Return whether an LLVM feature is enabled, such as "avx512vbmi"."""
        return feature in self.enabled

    @property
    def has_mask_registers(self) -> bool:
        """Whether compares write one bit per lane to dedicated mask registers."""
        return self.vector_bits == 512 and self.has("avx512f")

    @property
    def has_fma(self) -> bool:
        """Whether a multiplication and an addition are one instruction."""
        return self.is_gpu or self.arch == "aarch64" or self.has("fma")

    @property
    def has_gather(self) -> bool:
        """Whether one instruction can load from a different address per lane."""
        return self.is_gpu or self.has("avx2")

    @property
    def vector_registers(self) -> int:
        """Number of SIMD registers; 0 for GPUs, where kernels share a register file."""
        if self.is_gpu:
            return 0
        return 32 if self.arch == "aarch64" or self.has("avx512vl") else 16

    @property
    def warp_size(self) -> int:
        """Threads that run in lockstep; 1 on CPUs."""
        return self.vector_bits // 32 if self.is_gpu else 1

    @property
    def max_threads_per_block(self) -> int:
        """Limit of the product of a block's dimensions; 1 on CPUs."""
        return 1024 if self.is_gpu else 1

    def lanes(self, element_bits: int) -> int:
        """Return how many elements one SIMD register holds."""
        return self.vector_bits // element_bits

    @property
    def permuted_bytes(self) -> int:
        """The largest table of bytes that one permute reads from registers; 0 if none.

        Permutes of several registers (``vpermi2b``, ``tbl4``) count.
        """
        if self.has_mask_registers and self.has("avx512vbmi"):
            return 2 * self.lanes(8)
        return 64 if self.has("neon") else 16 if self.has("ssse3") else 0

    # -- use ---------------------------------------------------------------------

    def check_runs_here(self) -> None:
        """Raise :class:`TargetError` unless code for this target runs on this host."""
        if self.kind in ("cuda", "hip"):
            raise TargetError(
                f"Target {self.cpu!r} is a GPU. compile_forest checks whether this "
                "machine has one; inspect shows the code for it on any machine."
            )
        if self.is_gpu:
            return
        host = Target.host()
        if self.triple.split("-")[0] != host.arch:
            raise TargetError(
                f"Code for {self.arch} does not run on this {host.arch} machine; use "
                f"target='cpu', or compile on an {self.arch} machine."
            )
        if ("apple" in self.triple) != ("apple" in host.triple):
            raise TargetError(
                f"Code for {self.triple} does not run on {host.triple}; use "
                "target='cpu', or compile on that system."
            )
        missing = sorted(self.enabled - host.enabled)
        if missing:
            raise TargetError(
                f"Target {self.cpu!r} needs CPU features that this machine lacks: "
                f"{', '.join(missing)}; use target='cpu'."
            )

    def to_json(self) -> str:
        """Return the target as JSON text; :meth:`from_json` reads it back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Target:
        """Return the target from the JSON of :meth:`to_json`."""
        try:
            facts: Any = json.loads(text)
        except json.JSONDecodeError as error:
            raise TargetError(f"Not a target: {error}.") from error
        types = {f.name: int if f.type == "int" else str for f in fields(cls)}
        if not isinstance(facts, dict) or facts.keys() != types.keys():
            raise TargetError(
                f"Not a target: expected an object with the keys {', '.join(types)}."
            )
        for name, wanted in types.items():
            if type(facts[name]) is not wanted:
                raise TargetError(
                    f"Not a target: {name!r} must be {wanted.__name__}, not "
                    f"{type(facts[name]).__name__}."
                )
        return cls(**facts)

    def __repr__(self) -> str:
        """Return the call that makes it; of this machine without its hundred flags."""
        if self == _host():
            return "Target.host()"
        facts = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))
        return f"Target({', '.join(facts)})"

    def __str__(self) -> str:
        """Return a short text, such as "cpu znver4, 512-bit vectors, 8 cores"."""
        if self.is_gpu:
            return f"{self.kind} {self.cpu}, warps of {self.warp_size}"
        cores = f"{self.n_cores} core{'s' if self.n_cores != 1 else ''}"
        return f"{self.kind} {self.cpu}, {self.vector_bits}-bit vectors, {cores}"


@lru_cache(maxsize=64)  # passes ask thousands of times
def _enabled(features: str) -> frozenset[str]:
    return frozenset(flag[1:] for flag in features.split(",") if flag.startswith("+"))


def _vector_bits(triple: str, enabled: frozenset[str]) -> int:
    if triple.startswith("x86_64"):
        if {"avx512f", "avx512bw", "avx512vl"} <= enabled:
            return 512
        return 256 if "avx2" in enabled else 128
    return 128


def _machine() -> str:
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


@lru_cache(maxsize=1)
def _host() -> Target:
    triple, cpu, features = _known_by_llvm()
    if _machine() == "aarch64" and "+neon" not in features:
        # every such CPU has it; LLVM reads files of Linux, which emulators do not have
        features = ",".join(filter(None, (features, "+fp-armv8,+neon")))
    l1, l2, l3 = _cache_bytes()
    return Target(
        "cpu",
        triple=triple,
        cpu=cpu,
        features=features,
        vector_bits=_vector_bits(triple, _enabled(features)),
        n_cores=cpu_count(),
        l1_bytes=l1,
        l2_bytes=l2,
        l3_bytes=l3,
    )


def _known_by_llvm() -> tuple[str, str, str]:
    """Return LLVM's names of this machine, its CPU and its features.

    LLVM takes 50 ms to import, so that they are kept with what Linux says of the CPU.
    """
    facts = cpu_facts()
    # an emulator shows the facts of the CPU below it
    key = object_cache.key_of(("host", llvm_version(), _machine(), facts))
    stored = object_cache.read(key, "hosts") if facts else None
    if stored is not None:
        triple, cpu, features = stored.tobytes().decode().split("\n")
        return triple, cpu, features
    binding = llvmlite()
    features, triple = "", str(binding.get_process_triple())
    with suppress(RuntimeError):
        features = str(binding.get_host_cpu_features().flatten())
    if not features and _machine() != "aarch64":  # LLVM does not know this CPU
        features = "+sse,+sse2"
    if "linux" not in TRIPLE_SUFFIX:
        triple = f"{_machine()}-{TRIPLE_SUFFIX}"
    names = triple, str(binding.get_host_cpu_name()), features
    if facts:
        object_cache.write(key, "hosts", ["\n".join(names).encode()])
    return names


def _cache_bytes(
    folder: str = "/sys/devices/system/cpu/cpu0/cache",
) -> tuple[int, int, int]:
    sizes, found = {1: 32 << 10, 2: 512 << 10, 3: 0}, list[str]()
    for level in sizes:
        name = f"SC_LEVEL{level}_{'D' if level == 1 else ''}CACHE_SIZE"
        if name in getattr(os, "sysconf_names", {}) and (size := os.sysconf(name)) > 0:
            sizes[level] = size
    with suppress(OSError):
        found = os.listdir(folder)
    for entry in found:
        try:
            files = (os.path.join(entry, name) for name in ("type", "level", "size"))
            kind, number, text = (read_text(folder, file).strip() for file in files)
            level, unit = int(number), {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)
            size = int(text.rstrip("KMG")) << unit
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and level in sizes and size > 0:
            sizes[level] = size
    return sizes[1], sizes[2], sizes[3]
