"""Runs emulated kernels in a program of their own, under a sanitizer.

A sanitizer has to be in a process from its start, and what it reports ends the process.
So the program, built from simt_host.h, reads launches with the bytes of their arrays
and answers with the arrays' new bytes; when it dies, its report is the error.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from ctypes import Structure
from typing import Any, Literal, TypeAlias

import numpy as np

from skforge.exceptions import TargetError
from tests.simt.build import opened
from tests.simt.source import LaunchHeader, SourceDevice

#: "address" finds accesses outside of arrays and undefined arithmetic, "thread" races.
Sanitizer: TypeAlias = Literal["address", "thread"]

_FLAGS: dict[Sanitizer, tuple[str, ...]] = {
    "address": (
        "-DSIMT_SERVER",
        "-fsanitize=address,undefined,float-cast-overflow",
        "-fno-sanitize-recover=all",
    ),
    "thread": ("-DSIMT_SERVER", "-fsanitize=thread"),
}

_ERROR_BYTES = 512
_REPORT_CHARACTERS = 6000
_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0",
    "TSAN_OPTIONS": "halt_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


#: Order of blocks, warps and lanes; a number is a seed to shuffle at every barrier.
Order: TypeAlias = Literal["forward", "reverse"] | int


def order_number(order: Order | str) -> int:
    """Return an order's number for the shim."""
    if order == "forward":
        return 0
    if order == "reverse":
        return 1
    if isinstance(order, str) or order < 0:
        raise ValueError(
            f"order is 'forward', 'reverse' or a seed that is not negative; got "
            f"{order!r}."
        )
    return 2 + order


class SanitizedDevice(SourceDevice):
    """A device that runs in a process of its own under a sanitizer.

    AddressSanitizer comes with UndefinedBehaviorSanitizer. Arrays lie in memory of
    exactly their size during a launch. Close the device, or use ``with``.
    """

    def __init__(
        self, source: str, sanitize: Sanitizer, *, order: Order = "forward"
    ) -> None:
        self.order = order_number(order)
        self._server = Server(source, sanitize)

    def run(
        self, header: LaunchHeader, values: Sequence[np.ndarray[Any, Any] | bytes]
    ) -> str:
        return self._server.launch(header, values)

    def close(self) -> None:
        self._server.close()

    def __enter__(self) -> SanitizedDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Server:
    """A running program with the kernels of a text."""

    def __init__(self, source: str, sanitize: Sanitizer) -> None:
        self._lock = threading.Lock()
        self._closing = ExitStack()
        with ExitStack() as stack:
            path = stack.enter_context(opened(source, _FLAGS[sanitize]))
            self._report = stack.enter_context(tempfile.TemporaryFile())
            env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
            self._process = subprocess.Popen(
                [*_fixed_addresses(), str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._report,
                env={**env, **_OPTIONS},
            )
            stack.callback(self._stop)
            self._closing = stack.pop_all()

    def launch(
        self, header: Structure, values: Sequence[np.ndarray[Any, Any] | bytes]
    ) -> str:
        """Run a kernel on copies of the arrays and copy back what it wrote."""
        with self._lock:
            try:
                error = self._exchange(header, values)
            except (BrokenPipeError, EOFError):
                self._process.wait()
                self._report.seek(0)
                report = self._report.read().decode(errors="replace").strip()
                return f"it ended its process\n{report[:_REPORT_CHARACTERS]}"
            return error

    def _exchange(
        self, header: Structure, values: Sequence[np.ndarray[Any, Any] | bytes]
    ) -> str:
        to, back = self._process.stdin, self._process.stdout
        assert to is not None and back is not None

        def receive(size: int) -> bytes:
            got = back.read(size)
            if len(got) < size:
                raise EOFError
            return got

        to.write(bytes(header))
        for value in values:
            if isinstance(value, bytes):
                to.write(value)
                continue
            facts = (value.nbytes, value.ctypes.data % 256)
            to.write(np.array(facts, np.uint64).tobytes() + value.tobytes())
        to.flush()
        error = receive(_ERROR_BYTES).rstrip(b"\0").decode()
        for value in values:
            if isinstance(value, bytes):
                continue
            got = receive(value.nbytes)
            if value.flags.writeable:
                value.reshape(-1).view(np.uint8)[:] = np.frombuffer(got, np.uint8)
            elif got != value.tobytes():
                error = error or "it wrote to an array that is read-only"
        return error

    def close(self) -> None:
        """End the program."""
        self._closing.close()

    def _stop(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdout.close()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def _fixed_addresses() -> list[str]:
    """Return a command before a command: ThreadSanitizer needs its addresses free."""
    found = shutil.which("setarch")
    if found is None:
        raise TargetError("The sanitizers run with setarch, which is not on the PATH.")
    return [found, platform.machine(), "-R"]
