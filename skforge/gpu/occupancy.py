"""How many blocks of a kernel a multiprocessor holds at once: a model, no GPU needed.

Numbers are from the vendors' tables of compute capabilities and instruction-set
guides. What limits the blocks is named, because that is what a schedule can change.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from skforge.compiler.target import Target

OccupancyLimit: TypeAlias = Literal["registers", "shared memory", "warps", "blocks"]


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


_TABLE = Path(__file__).with_name("multiprocessors.json").read_text("utf-8")

MULTIPROCESSORS = {
    arch: Multiprocessor(**facts)
    for arch, facts in json.loads(_TABLE)["multiprocessors"].items()
}


def blocks_by_limit(
    sm: Multiprocessor, threads: Any, registers: Any, shared_bytes: Any
) -> dict[OccupancyLimit, Any]:
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


def multiprocessor(target: Target) -> Multiprocessor:
    near = "gfx90a" if target.kind == "hip" else "sm_90"
    return MULTIPROCESSORS.get(target.cpu, MULTIPROCESSORS[near])


def _up(number: Any, unit: int) -> Any:
    return -(-number // unit) * unit
