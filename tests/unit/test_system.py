"""What machine code takes from the operating system, Windows simulated."""

from __future__ import annotations

import struct
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from skforge.compiler import system
from skforge.compiler.forest import arrays
from skforge.compiler.runtime.cpu.jit import emit_object
from skforge.compiler.schedule.families import bitsliced_schedule, tiled_schedule
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from tests.exactness.checks import lowered
from tests.exactness.forests import forest

V3 = Target.x86_64("v3")
WINDOWS = replace(V3, triple="x86_64-pc-windows-msvc-elf")


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
    kernel = lowered(forest("deep"), schedule, "exact", "accumulator", V3)
    binary = emit_object(kernel.function, WINDOWS)
    near = relocations(emit_object(kernel.function, V3))
    far = relocations(binary)
    assert set(far) == {1}, "R_X86_64_64 alone"
    assert sum(near.values())


def test_scratch_of_windows_comes_from_its_own_heap() -> None:
    kernel = lowered(
        forest("deep"), bitsliced_schedule(4096), "exact", "accumulator", V3
    )
    linux, windows = (emit_object(kernel.function, t) for t in (V3, WINDOWS))
    assert b"\0aligned_alloc\0" in linux
    assert b"_aligned_malloc" not in linux
    assert b"\0_aligned_malloc\0" in windows
    assert b"\0_aligned_free\0" in windows


def test_every_dtype_of_a_forest_is_known() -> None:
    # Characters would not do: uint32 is "I" on Linux and "L" on Windows.
    wanted = {np.dtype(dtype).str[1:] for dtype, _ in arrays.LAYOUT.values() if dtype}
    assert wanted < arrays._KNOWN


@pytest.mark.skipif(sys.platform == "win32", reason="reads the clock of other systems")
def test_the_clock_is_called_with_its_number_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert system.clock_call("%t") == "i32 %clock, ptr %t"
    monkeypatch.setattr(system, "WINDOWS", True)
    assert system.clock_call("%t") == "ptr %t, i32 %clock"


def test_functions_of_the_c_library_have_addresses() -> None:
    assert system.c_address("expf") != system.c_address("exp") != 0
