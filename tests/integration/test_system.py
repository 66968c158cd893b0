"""Tests of ``unit/test_system.py`` that compile or start processes."""

from __future__ import annotations

import struct
from collections import Counter

import pytest

from skforge.engine.cpu.jit import emit_object
from skforge.schedule.families import bitsliced_schedule, tiled_schedule
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import lowered
from tests.exactness.forests import forest
from tests.unit.test_system import V3, WINDOWS


def sections(binary: bytes) -> list[tuple[int, bytes]]:
    """Return the type and the bytes of each section of an ELF object."""
    assert binary[:4] == b"\x7fELF"
    (at,) = struct.unpack_from("<Q", binary, 0x28)
    size, count = struct.unpack_from("<HH", binary, 0x3A)
    heads = (struct.unpack_from("<IIQQQQ", binary, at + i * size) for i in range(count))
    return [(kind, binary[off : off + n]) for _, kind, _, _, off, n in heads]


def relocations(binary: bytes) -> Counter[int]:
    """Return how often each kind of relocation occurs."""
    kinds = Counter[int]()
    for kind, data in sections(binary):
        if kind == 4:  # SHT_RELA
            kinds.update(
                struct.unpack_from("<I", data, i)[0] for i in range(8, len(data), 24)
            )
    return kinds


@pytest.mark.parametrize(
    "schedule", [Schedule(), bitsliced_schedule(), tiled_schedule(64)], ids=repr
)
def test_kernels_for_windows_reach_any_address(schedule: Schedule) -> None:
    kernel = lowered(forest("deep"), schedule, V3)
    binary = emit_object(kernel.function, WINDOWS)
    near = relocations(emit_object(kernel.function, V3))
    far = relocations(binary)
    assert set(far) == {1}, "R_X86_64_64 alone"
    assert sum(near.values())


def test_scratch_of_windows_comes_from_its_own_heap() -> None:
    kernel = lowered(forest("deep"), bitsliced_schedule(4096), V3)
    linux, windows = (emit_object(kernel.function, t) for t in (V3, WINDOWS))
    assert b"\0aligned_alloc\0" in linux
    assert b"_aligned_malloc" not in linux
    assert b"\0_aligned_malloc\0" in windows
    assert b"\0_aligned_free\0" in windows
