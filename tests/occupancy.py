"""How many blocks of a kernel, as it was compiled, a multiprocessor holds at once."""

from __future__ import annotations

from dataclasses import dataclass

from skforge.exceptions import TargetError
from skforge.gpu.cost import MULTIPROCESSORS, OccupancyLimit, blocks_by_limit


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks and warps of one kernel on one multiprocessor."""

    blocks: int  # resident at once; 0 means that the kernel cannot be launched
    warps: int  # of those blocks
    fraction: float  # of the warps that the multiprocessor could hold
    limit: OccupancyLimit  # what allows no more blocks


def occupancy(arch: str, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Return how many blocks of a kernel run at once on a multiprocessor.

    Registers are those of a thread, shared bytes those of a block, dynamic ones too.

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
    limit: OccupancyLimit = min(limits, key=lambda name: limits[name])
    blocks, warps = int(limits[limit]), -(-threads // sm.warp_size)
    return Occupancy(
        blocks, blocks * warps, blocks * warps / (sm.parts * sm.warps), limit
    )
