"""Fuzzing: changed model files end in an error of ours, or in a model that works.

Workers (``fuzz_worker.py``) read the files; here their lines are counted. A worker that
dies or is silent for too long has lost the file it said last, and another goes on
behind it. ``python -m tests.reliability.fuzz KIND NUMBER`` writes one file again.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.reliability.formats import FORMATS, mutant
from tests.reliability.oracle import LIBRARIES
from tests.reliability.processes import ONE_THREAD, environment
from tests.reliability.rows import Row
from tests.reliability.seeds import make_seeds

#: Seconds for one small file; a busy machine is no reason to miss them.
SECONDS = 30.0
CHUNK = 2000
WORKER = (sys.executable, "-m", "tests.reliability.fuzz_worker")


@dataclass(slots=True)
class _Tally:
    outcomes: Counter[str] = field(default_factory=Counter)
    lost: dict[str, list[int]] = field(default_factory=dict)
    #: Numbers of the first files of each class of disagreement.
    examples: dict[str, list[int]] = field(default_factory=dict)
    slowest: tuple[float, int] = (0.0, -1)  # seconds, number of the file
    most_kb: tuple[int, int] = (0, -1)
    tried: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def add(self, number: int, kind: str, what: str, seconds: float, kb: int) -> None:
        with self.lock:
            self.tried += 1
            self.outcomes[f"{kind} {what}" if kind != "lost" else kind] += 1
            self.slowest = max(self.slowest, (seconds, number))
            self.most_kb = max(self.most_kb, (kb, number))
            if kind == "lost":
                self.lost.setdefault(what, []).append(number)
            elif kind in ("differ", "library"):
                first = self.examples.setdefault(what, [])
                if len(first) < 3:
                    first.append(number)


def run(n_files: int, seeds: Path, workers: int, first: int = 0) -> list[Row]:
    """Read ``n_files`` changed files, the same number of each kind."""
    make_seeds(seeds)
    each = n_files // len(FORMATS)
    rows = []
    for kind in FORMATS:
        tally = _Tally()
        chunks = [
            (start, min(start + CHUNK, first + each))
            for start in range(first, first + each, CHUNK)
        ]
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda c, k=kind, t=tally: _chunk(k, *c, seeds, t), chunks))
        rows.append(_row(kind, tally))
        print(
            f"fuzz: {rows[-1].what}: {rows[-1].notes}; lost: {rows[-1].lost}",
            flush=True,
        )
    return rows


def _row(kind: str, tally: _Tally) -> Row:
    counts: Counter[str] = Counter()
    for what, n in tally.outcomes.items():
        counts[what.partition(" ")[0]] += n
    compiled = tally.outcomes["read compiled"]
    lost = [
        f"{what} ({len(numbers)} files, such as {numbers[0]})"
        for what, numbers in sorted(tally.lost.items())
    ]
    survived = tally.tried - counts["lost"]
    row = Row("fuzzing", f"changed {kind} files", tally.tried, survived, lost)
    seconds, kb = tally.slowest[0], tally.most_kb[0]
    lenient = sum(n for w, n in tally.outcomes.items() if "differ skforge reads" in w)
    stricter = counts["differ"] - lenient
    if kind in LIBRARIES:
        words = (
            f"{counts['read']:,} read by both, every bit the library's, {compiled:,} "
            f"of these compiled too; {counts['refused']:,} refused by both, "
            f"{stricter:,} by skforge alone, {lenient:,} by the library alone, which "
            "crashed on "
            f"{counts['library']:,}"
        )
    else:
        words = f"{counts['refused']:,} refused by our errors, {counts['read']:,} read"
    row.notes = (
        f"{words}; one took {seconds:.2f} s of CPU at most, and {kb / 1024:.0f} MB of "
        "memory"
    )
    row.facts = {
        "outcomes": dict(tally.outcomes.most_common()),
        "examples": tally.examples,
        "slowest": {"seconds": tally.slowest[0], "file": tally.slowest[1]},
        "most_memory": {"kb": tally.most_kb[0], "file": tally.most_kb[1]},
    }
    return row


def _chunk(kind: str, first: int, last: int, seeds: Path, tally: _Tally) -> None:
    while first < last:
        first = _worker(kind, first, last, seeds, tally)


def _worker(kind: str, first: int, last: int, seeds: Path, tally: _Tally) -> int:
    """Run a worker to its end; return the number after the last file it was given."""
    command = [*WORKER, kind, str(first), str(last), str(seeds)]
    process = subprocess.Popen(
        command,
        env=environment(ONE_THREAD),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: queue.Queue[str] = queue.Queue()
    said: list[str] = []

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put("")

    readers = [
        threading.Thread(target=read, daemon=True),
        threading.Thread(
            target=lambda: said.append((process.stderr or sys.stdin).read()),
            daemon=True,
        ),
    ]
    for reader in readers:
        reader.start()
    number, pending = first - 1, False
    while True:
        try:
            line = lines.get(timeout=SECONDS if pending else 10 * SECONDS)
        except queue.Empty:
            process.kill()
            process.wait()
            tally.add(number, "lost", f"hangs for {SECONDS:.0f} s", SECONDS, 0)
            return number + 1
        if not line:
            break
        if line[0] != "[":
            number, pending = int(line), True
            continue
        tally.add(number, *json.loads(line))
        pending = False
    code = process.wait()
    if pending:
        tally.add(number, "lost", f"the process ended with {code}", 0.0, 0)
    elif code:
        for reader in readers:
            reader.join(10)
        raise RuntimeError(f"a worker failed between files:\n{''.join(said)[-2000:]}")
    return number + 1


if __name__ == "__main__":
    wanted, which, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    make_seeds(folder)
    sys.stdout.buffer.write(mutant(wanted, which, folder))
