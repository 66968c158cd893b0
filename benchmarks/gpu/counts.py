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
    lines: list[str], reads: int, with_sums: bool = False
) -> tuple[float, float] | None:
    """Return the instructions of a hop's loop, and of the loop over trees around it.

    It is the last innermost loop with as many reads as hops need: loops that fill
    shared memory stand before it, and read less.
    """
    names = operations(lines)

    def count(loop: Loop, *wanted: str) -> int:
        return sum(name in wanted for name in names[loop.first : loop.last + 1])

    found = [
        loop
        for loop in innermost(lines)
        if count(loop, "LDS", "LDG") >= reads
        and (with_sums or not count(loop, "FADD", "DADD"))
        and not count(loop, "STG", "STS")
    ]
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
