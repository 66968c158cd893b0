"""What machine code takes from the operating system, Windows simulated."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from skforge.compiler import system
from skforge.compiler.target import Target
from skforge.forest import arrays

V3 = Target.x86_64("v3")
WINDOWS = replace(V3, triple="x86_64-pc-windows-msvc-elf")


def test_every_dtype_of_a_forest_is_known() -> None:
    # Characters would not do: uint32 is "I" on Linux and "L" on Windows.
    wanted = {np.dtype(dtype).str[1:] for dtype, _ in arrays.LAYOUT.values() if dtype}
    assert wanted < arrays._KNOWN


@pytest.mark.skipif(sys.platform == "win32", reason="reads the clock of other systems")
def test_the_clock_is_called_with_its_number_first(monkeypatch):
    assert system.clock_call("%t") == "i32 %clock, ptr %t"
    monkeypatch.setattr(system, "WINDOWS", True)
    assert system.clock_call("%t") == "ptr %t, i32 %clock"


def test_functions_of_the_c_library_have_addresses() -> None:
    assert system.c_address("expf") != system.c_address("exp") != 0
