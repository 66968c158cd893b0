"""Builds the text of GPU kernels for the CPU with g++, and caches the result.

One translation unit has simt.h, the text, a table of its kernels and simt_host.h. The
cache key is a digest of these, the flags and g++'s version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from skforge.exceptions import TargetError
from skforge.runtime import object_cache

_HEADERS = Path(__file__).parent
_FLAGS = ("-std=c++20", "-O1", "-g1", "-ffp-contract=off", "-U_FORTIFY_SOURCE")
LIBRARY = ("-shared", "-fPIC")
_KERNEL = re.compile(
    r"^SKF_KERNEL\(\s*(\d+)\s*(?:,\s*\d+\s*)?\)\s*(\w+)\s*\(", re.MULTILINE
)
_MESSAGE_LINES = 30


@contextmanager
def opened(source: str, kind: tuple[str, ...] = LIBRARY) -> Iterator[Path]:
    """Yield a file with the text's machine code: a library, or as the flags ask.

    The file belongs to this process and is removed at the end; a library loaded from it
    stays.
    """
    text, compiler = translation_unit(source), _compiler()
    flags = (*_FLAGS, *kind)
    key = object_cache.key_of(
        ["emulated-source", text, *flags, _version(compiler), *_headers()]
    )
    payload = object_cache.find(key)
    with tempfile.TemporaryDirectory(prefix="skforge-kernels-") as folder:
        path = Path(folder) / "kernels.so"
        if payload is None:
            _build(compiler, flags, text, path)
            object_cache.store(key, path.read_bytes())
        else:
            path.write_bytes(payload)
            path.chmod(0o700)
        yield path


def translation_unit(source: str) -> str:
    """Return the text for g++; its messages name lines of ``kernels.cu``, the text."""
    table = ", ".join(
        f"SIMT_KERNEL({name}, {threads})" for threads, name in _KERNEL.findall(source)
    )
    if not table:
        raise TargetError(
            "The source has no kernel: no line begins with SKF_KERNEL(threads)."
        )
    return "\n".join(
        [
            '#include "simt.h"',
            '#line 1 "kernels.cu"',
            source,
            '#line 1 "table"',
            f"#define SIMT_KERNELS {table}",
            '#include "simt_host.h"',
            "",
        ]
    )


def _build(compiler: str, flags: tuple[str, ...], text: str, path: Path) -> None:
    command = [compiler, *flags, f"-I{_HEADERS}", "-x", "c++", "-", "-o", str(path)]
    done = subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    if done.returncode:
        message = "\n".join(done.stderr.splitlines()[:_MESSAGE_LINES])
        raise TargetError(f"g++ does not compile the emulated kernels:\n{message}")


def _compiler() -> str:
    found = shutil.which("g++")
    if found is None:
        raise TargetError(
            "The target 'emulated-source' compiles with g++, which is not on the PATH. "
            "The target 'emulated' runs the same schedules without it."
        )
    return found


@cache
def _version(compiler: str) -> str:
    command = [compiler, "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@cache
def _headers() -> tuple[str, ...]:
    return tuple(file.read_text("utf-8") for file in sorted(_HEADERS.glob("*.h")))
