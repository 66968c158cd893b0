"""Machine instructions in the loops of CUDA kernels: a cost that needs no GPU.

nvdisasm comes with a CUDA toolkit or the ``nvidia-cuda-nvdisasm`` package. The count of
a visit's instructions is the same in every run, so that tests can hold it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from skforge.exceptions import TargetError
from skforge.gpu.runtime.compilers import wheel_folders

_SECTION = re.compile(r"^\.text\.(\w+):")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(.*?);")
_BRANCH = re.compile(r"\bBRA\b.*`\((\.L_x_\d+)\)")


@dataclass(frozen=True, slots=True)
class Loop:
    """A backward branch: instructions ``first`` to ``last`` of a kernel."""

    first: int
    last: int

    @property
    def instructions(self) -> int:
        """Instructions of one iteration, if all of it runs."""
        return self.last - self.first + 1


def loop_instructions(cubin: bytes) -> dict[str, list[int]]:
    """Return the instructions of each innermost loop, in order, by kernel.

    Blocks that ptxas moved out of a loop are not counted.
    """
    return {
        name: [loop.instructions for loop in innermost(lines)]
        for name, lines in kernels_of(disassemble(cubin)).items()
    }


def innermost(lines: list[str]) -> list[Loop]:
    """Return the loops of a kernel's disassembly that contain no other loop."""
    found = all_loops(lines)
    return [
        loop
        for loop in found
        if not any(
            other is not loop and loop.first <= other.first and other.last <= loop.last
            for other in found
        )
    ]


def all_loops(lines: list[str]) -> list[Loop]:
    """Return the loops of a kernel's disassembly, by where they begin."""
    labels: dict[str, int] = {}
    loops: dict[int, int] = {}  # first to last: several branches may go back to one
    at = 0
    for line in lines:
        if match := _LABEL.match(line):
            labels[match[1]] = at
        elif match := _INSTRUCTION.match(line):
            target = _BRANCH.search(match[2])
            first = labels.get(target[1]) if target else None
            # The branch to itself after the end only stops a runaway program.
            if first is not None and first < at:
                loops[first] = at
            at += 1
    return [Loop(first, last) for first, last in sorted(loops.items())]


def operations(lines: list[str]) -> list[str]:
    """Return the names of a kernel's instructions in order, such as "LDS"."""
    found = (match[2] for line in lines if (match := _INSTRUCTION.match(line)))
    named = (text.split(maxsplit=1)[-1] if text[0] == "@" else text for text in found)
    return [text.split(maxsplit=1)[0].split(".")[0] for text in named]


def kernels_of(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if match := _SECTION.match(line):
            lines = found[match[1]] = []
        elif line.startswith("//---"):
            lines = []
        else:
            lines.append(line)
    return found


def disassemble(cubin: bytes) -> str:
    """Return the SASS of a cubin as nvdisasm writes it."""
    tool = nvdisasm()
    if tool is None:
        raise TargetError(
            "nvdisasm was not found: pip install nvidia-cuda-nvdisasm, or set "
            "CUDA_HOME to a toolkit."
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.cubin"
        file.write_bytes(cubin)
        done = subprocess.run(
            [tool, "-c", str(file)], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise TargetError(f"nvdisasm failed: {done.stderr.strip()}")
    return done.stdout


@lru_cache(maxsize=1)
def nvdisasm() -> str | None:
    folders = wheel_folders("cu1[0-9]/bin", "cuda_nvdisasm/bin")
    home = os.environ.get("CUDA_HOME")
    folders += [f"{home}/bin"] if home else []
    for folder in folders:
        found = shutil.which("nvdisasm", path=folder)
        if found:
            return found
    return shutil.which("nvdisasm")
