"""Faults of the cache of machine code: read-only, full, shared, damaged, removed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.reliability import processes
from tests.reliability.rows import Row

#: Compiles kernels of its own and shared ones; "right" if all bits are the source's.
PREDICT = """
import sys
import numpy as np
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
import skforge
from skforge import Schedule

X, y = make_classification(300, 6, random_state=0)
X = X.astype(np.float32)
model = RandomForestClassifier(5, max_depth=5, random_state=0).fit(X, y)
forest, expected = skforge.load_forest(model), model.predict_proba(X)
first, last = int(sys.argv[1]), int(sys.argv[2])
for size in range(first, last):
    schedule = Schedule().tile("batch", "b0", "b1", size).parallel("b0")
    module = skforge.compile_forest(forest, schedule, n_jobs=2)
    if not np.array_equal(module.predict_raw(X), expected):
        sys.exit("wrong bits")
print("right")
"""


def cache_faults(folder: Path, times: int) -> list[Row]:
    """Try each fault; predictions have to be right whatever the cache is."""
    return [
        _read_only(folder),
        *_full(folder, times),
        _filled_by_several(folder, times),
        _killed_while_filling(folder, times),
        _damaged(folder, times),
    ]


def _predict(row: Row, what: str, cache: Path, first: int, last: int) -> None:
    changes = {"SKFORGE_CACHE_DIR": str(cache), "SKFORGE_CACHE": "on"}
    code, out, err = processes.run(PREDICT, str(first), str(last), changes=changes)
    row.count(code == 0 and out == "right\n", f"{what}: {processes.said(code, err)}")


@contextlib.contextmanager
def _mounted(options: str) -> Iterator[Path | None]:
    """Give a small file system in memory, None where this user may not mount one."""
    with tempfile.TemporaryDirectory(prefix="skforge-disk-") as folder:
        command = ["mount", "-t", "tmpfs", "-o", options, "none", folder]
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except OSError:
            yield None
            return
        if done.returncode:
            yield None
            return
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=False)


def _read_only(folder: Path) -> Row:
    row = Row("faults", "the cache directory cannot be written")
    kinds = []
    closed = folder / "closed"
    closed.mkdir(exist_ok=True)
    closed.chmod(0o500)
    if os.geteuid():
        _predict(row, "a directory without the right to write", closed, 8, 11)
        kinds.append("mode 500")
    file = folder / "file"
    file.write_text("")
    _predict(row, "a file where the directory should be", file, 8, 11)
    _predict(row, "a place that cannot be", Path("/proc/skforge"), 8, 11)
    kinds += ["a file in its place", "/proc"]
    with _mounted("size=1m,ro") as disk:
        if disk is not None:
            _predict(row, "a file system mounted read-only", disk / "cache", 8, 11)
            kinds.append("a read-only file system")
    row.notes = ", ".join(kinds) + ": compiled as without a cache"
    return row


def _full(folder: Path, times: int) -> list[Row]:
    row = Row("faults", "the cache's disk is full")
    sizes = [4, 32, 64, 128][: 2 if times < 4 else 4]
    for kb in sizes:
        with _mounted(f"size={kb}k,mode=700") as disk:
            if disk is None:
                row.left_out = "file systems cannot be mounted here"
                return [row]
            _predict(row, f"{kb} kB, empty", disk / "cache", 8, 14)
            _predict(row, f"{kb} kB, full", disk / "cache", 8, 16)
    row.notes = f"disks of {sizes[0]} to {sizes[-1]} kB, first run and second"
    return [row]


def _filled_by_several(folder: Path, times: int) -> Row:
    row = Row("faults", "processes that fill one cache at once")
    changes = {"SKFORGE_CACHE": "on"}
    for round_ in range(times):
        changes["SKFORGE_CACHE_DIR"] = str(folder / f"shared{round_}")
        starts = [("8", "14"), ("8", "14"), ("11", "17")]
        running = [processes.start(PREDICT, *s, changes=changes) for s in starts]
        for process in running:
            out, err = process.communicate(timeout=600)
            well = process.returncode == 0 and out == "right\n"
            row.count(well, processes.said(process.returncode, err))
    row.notes = f"three at a time, {times} caches, with equal kernels and others"
    return row


def _killed_while_filling(folder: Path, times: int) -> Row:
    row = Row("faults", "kill -9 while the cache is filled, then another process")
    random, cache = Random(0), folder / "killed"
    changes = {"SKFORGE_CACHE_DIR": str(cache), "SKFORGE_CACHE": "on"}
    for round_ in range(times):
        first = 8 + 6 * round_
        process = processes.start(PREDICT, str(first), "4000", changes=changes)
        wanted = len(list(cache.rglob("*"))) + 3 + random.randrange(4)
        while len(list(cache.rglob("*"))) < wanted and process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(random.uniform(0.001, 0.02))
        process.kill()
        process.communicate()
        _predict(row, f"round {round_}", cache, first, first + 3)
    row.notes = "once a few objects were in it, at a random moment"
    return row


def _damaged(folder: Path, times: int) -> Row:
    row = Row("faults", "objects in the cache damaged, cut off, swapped or empty")
    random, cache = Random(0), folder / "damaged"
    setup = Row("", "")
    _predict(setup, "", cache, 8, 14)
    for round_ in range(times):
        objects = sorted((cache / "objects").iterdir())
        for path in objects:
            content = bytearray(path.read_bytes())
            kind = random.randrange(4)
            if kind == 0:
                content[random.randrange(len(content))] ^= 1 << random.randrange(8)
            elif kind == 1:
                del content[random.randrange(len(content)) :]
            elif kind == 2:
                content = bytearray(random.choice(objects).read_bytes())
            else:
                content = bytearray()
            path.write_bytes(content)
        _predict(row, f"round {round_}", cache, 8, 14)
    row.notes = f"all {len(objects)} objects before each run"
    return row
