"""What tests of single parts do not do: compile, start processes, measure."""

from __future__ import annotations

import multiprocessing.process
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from skforge.compiler.cost.profile import MachineProfile
from skforge.compiler.target import Target
from skforge.engine import mlas_routine
from skforge.engine.cpu import jit
from skforge.engine.machine import Measured
from skforge.forest.reference import reference_raw
from skforge.outputs import graph, graph_members, mlas
from skforge.runtime import elf

MESSAGE = (
    "This test {}, which tests of core do not. Move it from tests/unit/ to "
    "tests/integration/, which belongs to full, or to tests/outside/."
)
PROCESS, CODE = "starts a process", "makes machine code"
#: What Matplotlib asks for a machine's fonts, once a user.
FONTS = "fc-list", "system_profiler"
#: Each is looked up when it is called: what a module imports by name while a test
#: runs would fail for ever.
PLACES: tuple[tuple[Any, str, str], ...] = (
    (subprocess.Popen, "__init__", PROCESS),
    (multiprocessing.process.BaseProcess, "start", PROCESS),
    (os, "fork", PROCESS),
    (os, "posix_spawn", PROCESS),
    (jit, "_target_machine", CODE),
    (elf, "link", CODE),  # of objects from the cache, too
)


def modelled(target: Target) -> Measured:
    """Return a profile that is not measured again while tests run."""
    return Measured(MachineProfile.of(target), time.time(), None, 1.0, ())


@contextmanager
def parts_alone() -> Iterator[None]:
    """Let code fail that needs more than the part that is tested."""
    done: list[str] = []

    def failing(what: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def fail(*args: Any, **how: Any) -> Any:
            if args[1:] and isinstance(args[1], list) and args[1][0] in FONTS:
                return real(*args, **how)
            done.append(what)
            pytest.fail(MESSAGE.format(what))

        return fail

    with pytest.MonkeyPatch.context() as patch:
        # what engines of other tests have put in their place
        patch.setattr(graph, "MACHINE_CODE", {})
        patch.setattr(graph_members, "SUMS", {"trees": reference_raw})
        patch.setattr(mlas, "FUNCTIONS", {**mlas_routine.NUMPY})
        for owner, name, what in PLACES:
            if hasattr(owner, name):  # os has no fork on Windows
                patch.setattr(owner, name, failing(what, getattr(owner, name)))
        yield
    if done:  # the failure may have been caught, or have ended another thread
        pytest.fail(MESSAGE.format(done[0]))
