"""Hardware counters of this thread, on Linux, where the machine has and allows them."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Callable, Mapping

#: perf_event_open by machine; the events of type 0 ("hardware") that are counted.
_CALL_NUMBER = {"x86_64": 298, "aarch64": 241}
_EVENTS = {"cycles": 0, "instructions": 1, "cache misses": 3, "branch misses": 5}

#: Of perf_event_attr: starts off, counts this thread in user space only.
_DISABLED, _NO_KERNEL, _NO_HYPERVISOR = 1 << 0, 1 << 5, 1 << 6
_ATTRIBUTE_BYTES = 112
_ENABLE, _DISABLE, _RESET = 0x2400, 0x2401, 0x2403


def count(work: Callable[[], object]) -> tuple[Mapping[str, int], str]:
    """Run ``work`` once; return what the hardware counted, or in words why nothing.

    What counts is in user space, and on this thread.
    """
    number = _CALL_NUMBER.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return {}, f"Hardware counters are not read on {sys.platform}."
    import fcntl

    files: dict[str, int] = {}
    try:
        for name, event in _EVENTS.items():
            opened = _open(number, event)
            if opened < 0:
                error = ctypes.get_errno()
                return {}, (
                    "Instructions and cache misses were not counted: this machine "
                    f"gives no hardware counter ({os.strerror(error)})."
                )
            files[name] = opened
        for opened in files.values():
            fcntl.ioctl(opened, _RESET, 0)
            fcntl.ioctl(opened, _ENABLE, 0)
        work()
        for opened in files.values():
            fcntl.ioctl(opened, _DISABLE, 0)
        found = {
            name: int(struct.unpack("q", os.read(opened, 8))[0])
            for name, opened in files.items()
        }
        return found, ""
    finally:
        for opened in files.values():
            os.close(opened)


def _open(number: int, event: int) -> int:
    """Return the file of a counter that is off, or -1 with errno set."""
    flags = _DISABLED | _NO_KERNEL | _NO_HYPERVISOR
    # type, size, config, sample_period, sample_type, read_format, flags
    head = struct.pack("IIQQQQQ", 0, _ATTRIBUTE_BYTES, event, 0, 0, 0, flags)
    attribute = ctypes.create_string_buffer(head, _ATTRIBUTE_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    this_thread, any_cpu, no_group = 0, -1, -1
    return int(
        libc.syscall(
            ctypes.c_long(number), attribute, this_thread, any_cpu, no_group, 0
        )
    )
