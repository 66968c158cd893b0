"""Numbered tries in processes of their own, so that a crash loses few of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.reliability.processes import ROOT, environment

#: Tries of one process; a library that crashes loses the rest of them.
CHUNK = 25


def outcomes(module: str, first: int, last: int, workers: int) -> Iterator[list[Any]]:
    """Yield what ``python -m module FIRST LAST`` prints: JSON lists, by lines.

    Each begins with the number of a try. A process that ends otherwise yields
    ``[number, None, text]`` of the last one that it printed.
    """

    def run(start: int) -> list[list[Any]]:
        return chunk(module, start, min(start + CHUNK, last))

    with ThreadPoolExecutor(workers) as pool:
        for found in pool.map(run, range(first, last, CHUNK)):
            yield from found


def chunk(module: str, first: int, last: int) -> list[list[Any]]:
    """Return the outcomes of one process."""
    done = subprocess.run(
        (sys.executable, "-m", module, str(first), str(last)),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}),
        check=False,
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "["]
    if done.returncode:
        number = found[-1][0] if found else first
        what = f"the process ended with {done.returncode}: {done.stderr[-300:]}"
        found.append([number, None, f"this or the next model: {what}"])
    return found
