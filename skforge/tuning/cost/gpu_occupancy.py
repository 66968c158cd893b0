"""How many blocks of a kernel a multiprocessor holds at once: a model, no GPU needed.

Numbers are from the vendors' tables of compute capabilities and instruction-set
guides. What limits the blocks is named, because that is what a schedule can change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from skforge.compiler.codegen.cuda.emitter import emit_gpu
from skforge.compiler.pipeline import Lowered
from skforge.compiler.runtime.gpu.compilers import Kind, resources_of
from skforge.compiler.schedule.directives import Interleave
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import TargetError

#: Maximum 32-bit registers of a block and of a thread, on all supported NVIDIA
#: architectures; AMD GPUs have no fewer.
REGISTERS, MOST_OF_THREAD = 65536, 255

#: Minimum registers of a traversal, and of each interleaved one for its node and value.
#: On sm_90, 18 and 3.3 were measured (docs/schedules.md).
WALK, IN_FLIGHT = 12, 2


def problem(schedule: Schedule, lowered: Lowered, target: Target) -> str:
    """Return why a kernel should not be run; empty if it should.

    An emulated GPU is treated like the GPU it emulates.
    """
    plan = emit_gpu(lowered.kernel.function, target)
    kind: Kind = "hip" if target.kind == "hip" else "cuda"
    try:
        found = resources_of(plan.source, target.cpu, kind)
    except TargetError:  # no compiler available
        threads = max((launch.threads for launch in plan.launches()), default=1)
        return _by_model(schedule, threads)
    for launch in plan.launches():
        used = found[launch.kernel]
        local = max(used.stack_bytes, used.spill_bytes)
        if local:
            return (
                f"{launch.kernel} uses {local} bytes of local memory per thread, "
                f"besides {used.registers} registers ({target.cpu})"
            )
    return ""


def _by_model(schedule: Schedule, threads: int) -> str:
    """Check a lower bound on registers, computed from the interleaving factor."""
    walks = max(
        (d.factor or 1 for d in schedule.directives if isinstance(d, Interleave)),
        default=1,
    )
    least, most = WALK + IN_FLIGHT * walks, min(MOST_OF_THREAD, REGISTERS // threads)
    if least <= most:
        return ""
    return (
        f"{walks} walks in flight need at least {least} registers per thread "
        f"(estimated, because no compiler is installed), but a block of {threads} "
        f"threads leaves {most}"
    )


Limit: TypeAlias = Literal["registers", "shared memory", "warps", "blocks"]


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What one multiprocessor (AMD: compute unit) holds."""

    parts: int  # schedulers, each with its share of registers and warps
    registers: int  # of a lane in a part: warps of a part times registers of a thread
    register_unit: int  # registers of a thread are rounded up to this
    warps: int  # of a part
    blocks: int
    shared_bytes: int
    reserved_bytes: int  # shared memory that each block costs on top of its own
    shared_unit: int  # shared memory of a block is rounded up to this
    warp_size: int  # threads of a warp


def _nvidia(warps: int, blocks: int, kilobytes: int, reserved: int) -> Multiprocessor:
    return Multiprocessor(
        parts=4,
        registers=65536 // 4 // 32,
        register_unit=8,
        warps=warps // 4,
        blocks=blocks,
        shared_bytes=kilobytes << 10,
        reserved_bytes=reserved,
        shared_unit=256 if not reserved else 128,
        warp_size=32,
    )


def _amd(
    parts: int, registers: int, unit: int, warps: int, warp_size: int
) -> Multiprocessor:
    return Multiprocessor(
        parts=parts,
        registers=registers,
        register_unit=unit,
        warps=warps,
        blocks=32,
        shared_bytes=64 << 10,
        reserved_bytes=0,
        shared_unit=512,
        warp_size=warp_size,
    )


MULTIPROCESSORS: dict[str, Multiprocessor] = {
    "sm_75": _nvidia(32, 16, 64, 0),
    "sm_80": _nvidia(64, 32, 164, 1024),
    "sm_86": _nvidia(48, 16, 100, 1024),
    "sm_89": _nvidia(48, 24, 100, 1024),
    "sm_90": _nvidia(64, 32, 228, 1024),
    "sm_100": _nvidia(64, 32, 228, 1024),
    "sm_120": _nvidia(48, 24, 100, 1024),
    "gfx908": _amd(4, 256, 4, 10, 64),
    "gfx90a": _amd(4, 512, 8, 8, 64),
    "gfx942": _amd(4, 512, 8, 8, 64),
    "gfx1030": _amd(2, 1024, 16, 16, 32),
    "gfx1100": _amd(2, 1536, 24, 16, 32),
}


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks and warps of one kernel on one multiprocessor."""

    blocks: int  # resident at once; 0 means that the kernel cannot be launched
    warps: int  # of those blocks
    fraction: float  # of the warps that the multiprocessor could hold
    limit: Limit  # what allows no more blocks


def occupancy(arch: str, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Return how many blocks of a kernel run at once on a multiprocessor.

    Parameters
    ----------
    arch : str
        "sm_80", "gfx90a", …
    threads : int
        Of a block.
    registers : int
        Of a thread, as the compiler says.
    shared_bytes : int
        Of a block, static and dynamic.

    Examples
    --------
    >>> occupancy("sm_90", threads=256, registers=40, shared_bytes=0)
    Occupancy(blocks=6, warps=48, fraction=0.75, limit='registers')
    """
    sm = MULTIPROCESSORS.get(arch)
    if sm is None:
        raise TargetError(
            f"Occupancy of {arch!r} is not known; use one of "
            f"{', '.join(MULTIPROCESSORS)}."
        )
    limits = blocks_by_limit(sm, threads, registers, shared_bytes)
    limit: Limit = min(limits, key=lambda name: limits[name])
    blocks, warps = int(limits[limit]), -(-threads // sm.warp_size)
    return Occupancy(
        blocks, blocks * warps, blocks * warps / (sm.parts * sm.warps), limit
    )


def blocks_by_limit(
    sm: Multiprocessor, threads: Any, registers: Any, shared_bytes: Any
) -> dict[Limit, Any]:
    """Return the blocks that each limit allows; for numbers or arrays of them."""
    warps = -(-threads // sm.warp_size)
    unit = sm.register_unit
    resident = sm.registers // np.maximum(unit, _up(registers, unit))
    shared = _up(shared_bytes + sm.reserved_bytes, sm.shared_unit)
    return {
        "warps": sm.parts * sm.warps // warps,
        "registers": sm.parts * resident // warps,
        "shared memory": sm.shared_bytes // np.maximum(shared, 1),
        "blocks": sm.blocks,
    }


def _up(number: Any, unit: int) -> Any:
    return -(-number // unit) * unit
