"""What tests of single parts do not do: make machine code, and start processes."""

from __future__ import annotations

import multiprocessing.process
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import pytest

from skforge.compiler.runtime.cpu import jit
from skforge.runtime import loading

PROCESS, CODE = "starts a process", "makes machine code"
PLACES: tuple[tuple[Any, str, str], ...] = (
    (subprocess.Popen, "__init__", PROCESS),
    (multiprocessing.process.BaseProcess, "start", PROCESS),
    (os, "fork", PROCESS),
    (os, "posix_spawn", PROCESS),
    (jit, "_target_machine", CODE),
    (loading, "load_object", CODE),  # from the cache, too
)


@contextmanager
def parts_alone() -> Iterator[None]:
    """Let code fail that needs more than the part that is tested."""
    done: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, what in PLACES:
            if hasattr(owner, name):  # os has no fork on Windows
                patch.setattr(owner, name, partial(_fail, what, done))
        yield
    if done:  # the failure may have been caught, or have ended another thread
        _fail(done[0], done)


def _fail(
    what: str, done: list[str] | None = None, *_: object, **__: object
) -> NoReturn:
    if done is not None:
        done.append(what)
    pytest.fail(
        f"This test {what}, which tests of core do not. Move it from tests/unit/ to "
        "tests/integration/, which belongs to full, or to tests/outside/."
    )
