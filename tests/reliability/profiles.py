"""Profiles of this machine that are measured beside other work.

    python -m tests.reliability.profiles          # 200 profiles, ten minutes
    python -m tests.reliability.profiles 30       # 30 profiles

A third each is measured beside 0, 2 and 4 busy processes, and every profile by a
process of its own. Run it on a quiet machine: the profiles beside 0 processes are what
the others are compared with.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np

import skforge
from skforge.compiler.cost.estimate import CostEstimate
from skforge.compiler.cost.profile import MachineProfile
from skforge.compiler.defaults import cpu
from skforge.compiler.target import Target
from skforge.forest.forest import Forest
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import drawn
from tests.reliability import processes
from tests.reliability.rows import Row

#: Busy processes, and how far a number may be off the quiet median.
BUSY = (0, 2, 4)
NEAR, CACHES = 1.5, 2.5

#: Numbers of the caches behind L1; all others are of registers and L1.
FAR = ("line_l2", "line_l3", "wait_l2", "wait_l3")

#: Forests, and the ratio of estimated times within which schedules count as equal.
FORESTS, EQUAL = 40, 1.05

_PROFILE = """
import json
from dataclasses import asdict
from skforge.engine import machine
from skforge.compiler.target import Target
print(json.dumps(asdict(machine.renewed(Target.host(), anew=True))))
"""

#: Every second process works in L1, the others in memory.
_WORKS = (
    "import numpy as np\nx = np.linspace(0, 1, 2000)\nwhile True: np.sin(x).sort()",
    "import numpy as np\na, b = np.zeros((2, 1 << 23))\nwhile True: a += b",
)


@contextmanager
def busy(n: int) -> Iterator[None]:
    """Keep so many processes busy."""
    with ExitStack() as stack:
        for number in range(n):
            program = [sys.executable, "-c", _WORKS[number % len(_WORKS)]]
            process = stack.enter_context(subprocess.Popen(program))
            stack.callback(process.kill)
        yield


def measured(folder: Path, n: int) -> dict[int, list[dict[str, Any]]]:
    """Return profiles, with how they were measured, by the number of busy processes."""
    changes = {"SKFORGE_CACHE": "on", "SKFORGE_CACHE_DIR": str(folder / "profiles")}
    found: dict[int, list[dict[str, Any]]] = {}
    for number, others in enumerate(BUSY):
        found[others] = []
        with busy(others):
            for _ in range(len(range(number, n, len(BUSY)))):
                code, out, err = processes.run(_PROFILE, changes=changes)
                if code != 0:
                    raise RuntimeError(processes.said(code, err))
                found[others].append(json.loads(out))
    return found


def forests(n: int = FORESTS) -> dict[str, Forest]:
    """Return the public models, where they are, and forests of sizes that are drawn."""
    from benchmarks.models import shared_folder

    kinds, found = (".json", ".onnx", ".txt"), sorted(shared_folder().rglob("*"))
    files = [path for path in found if path.suffix in kinds]
    made = {file.name: skforge.load_forest(file) for file in files}
    random = np.random.default_rng(0)
    while len(made) < n:
        trees, features = np.exp(random.uniform(0, np.log([600, 300]))).astype(int)
        depth = int(random.integers(1, 13))
        name = f"{trees + 1} trees of depth {depth}, {features + 3} features"
        how = {"n_features": int(features) + 3, "covers": True, "seed": len(made)}
        made[name] = drawn(int(trees) + 1, depth, **how)
    return dict(list(made.items())[:n])


def run(folder: Path, n: int, n_forests: int = FORESTS) -> list[Row]:
    """Measure, and compare numbers and default schedules with the quiet median."""
    found = measured(folder, n)
    names = list(MachineProfile.__dataclass_fields__)
    quiet = {m: median(one["profile"][m] for one in found[0]) for m in names}
    near = Row("profiles", f"registers and L1: within {NEAR} of the quiet median")
    far = Row("profiles", f"L2, L3 and memory: within {CACHES} of the quiet median")
    worst: dict[str, float] = dict.fromkeys(names, 1.0)
    for others, profiles in found.items():
        for one in profiles:
            ratios = {m: one["profile"][m] / quiet[m] for m in names}
            off = {m: max(ratio, 1 / ratio) for m, ratio in ratios.items()}
            worst = {m: max(worst[m], off[m]) for m in names}
            for row, limit, some in (
                (near, NEAR, [m for m in names if m not in FAR]),
                (far, CACHES, FAR),
            ):
                name = max(some, key=lambda m, off=off: off[m])  # type: ignore[misc]
                said = f"{name} is {ratios[name]:.2f} times the quiet median"
                row.count(off[name] <= limit, f"beside {others} processes, {said}")
    for row, some in ((near, [m for m in names if m not in FAR]), (far, FAR)):
        row.notes = "furthest off: " + ", ".join(f"{m} {worst[m]:.2f}" for m in some)
    parts = [f"{len(found[b])} beside {b}" for b in BUSY]
    loads = [one["load"] for b in BUSY for one in found[b]]
    doubtful = [sum(bool(one["doubts"]) for one in found[b]) for b in BUSY]
    near.notes += (
        f"; {', '.join(parts)} busy processes ({', '.join(map(str, doubtful))} of them "
        f"doubtful), load average {min(loads):.1f} to {max(loads):.1f}; {Target.host()}"
    )
    near.facts = {"quiet": quiet, "profiles": {str(b): found[b] for b in BUSY}}
    profiles = [MachineProfile(**one["profile"]) for b in BUSY for one in found[b]]
    return [near, far, _schedules(MachineProfile(**quiet), profiles, n_forests)]


def _schedules(quiet: MachineProfile, profiles: Sequence[Any], n_forests: int) -> Row:
    """Count the profiles that give all forests as good schedules as the quiet one."""
    row = Row("profiles", f"the same default schedules, or within {EQUAL - 1:.0%}")
    target, equal, worst = Target.host(), 0, 1.0
    made = forests(n_forests)
    slowest = [("", 1.0)] * len(profiles)
    for name, forest in made.items():
        with mock.patch.object(cpu, "cheapest", wraps=cpu.cheapest) as chosen:
            wanted = cpu.default_schedules(forest, target, "exact", quiet)
        (counted, offered), _ = chosen.call_args  # the same for all profiles
        estimate = CostEstimate(forest, target, quiet)
        for number, profile in enumerate(profiles):
            counted.profile = profile
            table = cpu.cheapest(counted, offered)
            equal += table == wanted
            ratio = max(
                float(estimate.seconds(_at(table, n), n))
                / float(estimate.seconds(_at(wanted, n), n))
                for n in cpu.SIZES
            )
            slowest[number] = max(slowest[number], (name, ratio), key=lambda s: s[1])
    for name, ratio in slowest:
        row.count(ratio <= EQUAL, f"{name}: estimated {ratio:.2f} times as slow")
        worst = max(worst, ratio)
    row.notes = (
        f"{len(made)} forests, {len(cpu.SIZES)} batch sizes; {equal:,} of "
        f"{len(made) * len(profiles):,} tables are the same, the slowest kernel is "
        f"estimated to take {worst:.2f} times as long under the quiet median"
    )
    return row


def _at(table: cpu.SchedulesByRange, n_rows: int) -> Schedule:
    return next(s for (a, b), s in table.items() if a <= n_rows <= (b or n_rows))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        rows = run(Path(place), int(sys.argv[1]) if len(sys.argv) > 1 else 200)
    for row in rows:
        print(f"{row.what}: {row.survived} of {row.tried}; {row.notes}")
        print(*(f"  {line}" for line in row.lost[:20]), sep="\n")
    sys.exit(any(row.lost for row in rows))
