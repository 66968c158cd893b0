"""Link objects to shared libraries with the system's linker."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from skforge.compiler.target import Target
from skforge.exceptions import TargetError

_SECONDS = 120


def link_shared(binary: bytes, file: str, target: Target) -> bytes:
    """Link one object to a shared library and return its bytes.

    ``file`` becomes the library's soname. Raises :class:`TargetError` if no linker for
    the target is available, or linking fails.
    """
    commands = list(_commands(target, file))
    if not commands:
        wanted = ", ".join(_drivers(target))
        raise TargetError(
            f"No linker for {target.arch} was found (looked for {wanted} and ld.lld). "
            "Install one, or use kind='object', which needs none."
        )
    problems = []
    with tempfile.TemporaryDirectory(prefix="skforge-link-") as folder:
        (Path(folder) / "library.o").write_bytes(binary)
        for command in commands:
            try:
                done = subprocess.run(
                    command,
                    cwd=folder,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=_SECONDS,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                problems.append(f"{command[0]}: {error}")
                continue
            if done.returncode == 0:
                return (Path(folder) / "library.so").read_bytes()
            problems.append(f"{command[0]}: {done.stderr.strip()[-500:]}")
    raise TargetError("The linker failed; use kind='object'. " + "; ".join(problems))


def _drivers(target: Target) -> list[str]:
    if target.arch == Target.host().arch:
        return [*filter(None, [os.environ.get("CC")]), "cc", "gcc", "clang"]
    return [f"{target.arch}-linux-gnu-gcc"]


def _commands(target: Target, file: str) -> list[list[str]]:
    """Return the commands to try, compiler drivers first: they know where libc is.

    A library linked by lld leaves the C library to the program that loads it.
    """
    apple = "darwin" in target.triple
    name = ["-install_name", f"@rpath/{file}"] if apple else ["-soname", file]
    safe = [] if apple else ["-z", "noexecstack", "-z", "relro", "-z", "now"]
    flags = [*name, *safe, *([] if apple else ["--as-needed"])]
    made = ["-o", "library.so", "library.o"]
    found = []
    for driver in _drivers(target):
        words = shlex.split(driver)
        if words and shutil.which(words[0]):
            passed = [f"-Wl,{flag}" for flag in flags]
            found.append([*words, "-shared", *passed, *made, "-lm"])
            break
    if not apple and shutil.which("ld.lld"):
        machine = {"x86_64": "elf_x86_64", "aarch64": "aarch64linux"}[target.arch]
        found.append(["ld.lld", "-m", machine, "-shared", *flags, *made])
    return found
