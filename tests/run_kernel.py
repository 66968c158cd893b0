"""Runs one kernel of a compiled module, without what a module adds."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from skforge.engine.cpu.code import MachineCode
from skforge.engine.cpu.threads import parallel_for_pointer


def call(
    module: MachineCode, name: str, slots: Sequence[Any], n_threads: int = 1
) -> None:
    """Run a kernel, with the GIL released.

    Parameters
    ----------
    module : MachineCode
        Holds the code.
    name : str
        The kernel.
    slots : sequence of int, float, bool or ndarray
        One argument for each LIR parameter; an array stands for its address. Nothing
        checks that an array is what the kernel expects.
    n_threads : int, default=1
        Threads for parallel loops; fewer are used where limits in force say so.
    """
    function = module.function(name)
    packed = pack_slots(slots)
    if n_threads <= 1:
        function(packed, None, 1)
        return
    address, threads = parallel_for_pointer(n_threads)
    function(packed, address, threads)


def pack_slots(slots: Sequence[Any]) -> bytes:
    """Return a kernel's arguments as bytes: ints as int64, floats as doubles."""
    values = [_slot(slot) for slot in slots]
    codes = "".join("d" if isinstance(value, float) else "q" for value in values)
    return struct.pack(codes, *values)


def _slot(slot: Any) -> int | float:
    if getattr(slot, "ndim", 0):
        return int(slot.ctypes.data)
    value: int | float = slot.item() if hasattr(slot, "item") else slot
    return value
