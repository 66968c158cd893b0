"""Registers and instructions of kernels, read from their machine code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from benchmarks.gpu.gpu_sass import (
    Loop,
    all_loops,
    disassemble,
    innermost,
    kernels_of,
    operations,
)
from tests.gpu_binary import compile_text


@dataclass(frozen=True, slots=True)
class Code:
    """Kernels of a text: what they use, and their instructions."""

    resources: dict[str, Any]
    lines: dict[str, list[str]]


@lru_cache(maxsize=256)
def code_of(source: str, arch: str) -> Code:
    """Return the code of a CUDA text."""
    made = compile_text(source, arch, "cuda")
    return Code(made.resources, kernels_of(disassemble(made.code)))


def walking_loop(
    lines: list[str], in_flight: int, levels: int = 0
) -> tuple[float, float] | None:
    """Return the instructions of a hop's loop, and of the loop over trees around it.

    It is the last innermost loop with as many reads as hops need: loops that fill
    shared memory stand before it, and read less. Packed trees have no loop over hops:
    all ``levels`` are in the loop over trees, with the leaf. Each reads a code from
    shared memory, and every third a node, which loops that add do not.
    """
    names = operations(lines)

    def count(loop: Loop, *wanted: str) -> int:
        return sum(name in wanted for name in names[loop.first : loop.last + 1])

    def walks(loop: Loop) -> bool:
        if levels:
            codes, nodes = in_flight * levels, in_flight * levels // 3
            return count(loop, "LDS") >= codes and count(loop, "LDG") >= nodes
        leaves = count(loop, "FADD", "DADD", "STG", "STS")
        return not leaves and count(loop, "LDS", "LDG") >= 2 * in_flight

    found = [loop for loop in innermost(lines) if walks(loop)]
    if not found:
        return None
    loop = max(reversed(found), key=lambda one: count(one, "LDS", "LDG"))
    around = [
        other.instructions - loop.instructions
        for other in all_loops(lines)
        if other.first <= loop.first
        and loop.last <= other.last
        and other.instructions > loop.instructions
    ]
    return float(loop.instructions), float(min(around, default=0))
