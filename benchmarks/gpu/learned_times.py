"""Times of GPU schedules of several forests: what the cost model of GPUs learns from.

A file has a line for each forest, GPU and schedule::

    {"model": ..., "arch": ..., "processors": ..., "schedule": ..., "seconds": {...}}

with the seconds of a call by its rows. Modelled times are those of ``cost.py``.
Registers and instructions are taken from one kernel of each kind;
shared memory, reads, blocks and launches are each schedule's own.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from cost_model_family import get
from numpy.typing import NDArray

from benchmarks.gpu.chips import CHIPS
from benchmarks.gpu.cost import TILES, Known, Modeller
from skforge.compiler.cost.shape import ForestShape
from skforge.compiler.forest.forest import Forest
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError, SkforgeError
from skforge.tuning import ScheduleSpace, Tuner
from skforge.tuning.measure.bench import SampleRows

BATCHES = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)

#: The forests: random ones of SilvanForge's generator, trained ones, public ones.
FORESTS = (
    *("synthetic-100x64-8", "synthetic-1000x8-4", "synthetic-50x1024-6"),
    *("xgboost-500x6x20", "xgboost-300x4x60", "xgboost-60x5x2400", "xgboost-20x3x10"),
    *("lightgbm-100x31x28", "lightgbm-500x15x20", "RandomForestClassifier-100x10x30"),
    *("ExtraTreesRegressor-100x8x30", "airline.json", "year_prediction_msd.json"),
    "lightgbm/NYC_taxi.txt",
)

#: Points drawn of each way to deal rows and trees out. Tiles of two and four nodes are
#: left out; the code of bit logic takes seconds to compile.
DRAWN = {"rows": 32, "parts": 60, "trees": 20, "blocks": 12, "stationary": 5, "bits": 4}
BITS_NODES = 60_000

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Machines:
    """A forest on all modelled GPUs."""

    name: str
    forest: Forest
    shape: ForestShape
    modellers: dict[tuple[str, int], Modeller]

    @classmethod
    def of(cls, name: str, codes: dict[Key, Any]) -> Machines:
        """Return the machines of a forest; ``codes`` are known of others."""
        sample, known = get(name), Known()
        rows: NDArray[Any] = SampleRows(sample.forest, sample.rows, 0).take(128)
        made = {
            (chip.arch, chip.processors): Modeller(
                sample.forest, rows, "exact", chip, known, codes
            )
            for chip in CHIPS
        }
        return cls(name, sample.forest, ForestShape.of(sample.forest), made)

    def records(self, schedule: Schedule) -> Iterator[dict[str, Any]]:
        """Yield the modelled times of a schedule on each GPU where it is legal."""
        for (arch, processors), modeller in self.modellers.items():
            try:
                cost = modeller.cost(modeller.made(schedule), BATCHES)
            except SkforgeError:
                continue
            if not cost.spill_bytes and not cost.stack_bytes:
                seconds = {str(n): one for n, one in cost.seconds.items()}
                yield record(self.name, arch, processors, schedule, seconds)


def record(
    model: str, arch: str, n: int, schedule: Schedule, seconds: dict[str, float]
) -> dict[str, Any]:
    """Return a line of a file."""
    return {
        "model": model,
        "arch": arch,
        "processors": n,
        "schedule": json.loads(schedule.to_json()),
        "seconds": {rows: float(f"{one:.5g}") for rows, one in seconds.items()},
    }


def write(file: Path, records: Iterable[dict[str, Any]]) -> int:
    """Append lines to a file; return how many."""
    n = 0
    with file.open("a", encoding="utf-8") as out:
        for one in records:
            out.write(json.dumps(one, separators=(",", ":")) + "\n")
            out.flush()
            n += 1
    return n


def draw(forest: Forest, shape: ForestShape, seed: int) -> Iterator[Schedule]:
    """Yield schedules of ``ScheduleSpace.gpu_full()`` that the model knows."""
    random, space = np.random.default_rng(seed), ScheduleSpace.gpu_full()
    for deal, n in DRAWN.items():
        if deal == "bits" and forest.n_nodes > BITS_NODES:
            continue
        part = space.with_values(deal=[deal], node_tile=TILES)
        for point in part.sample(n, random):
            try:
                yield space.schedule(point, shape)
            except ScheduleError:
                continue


def modelled(file: Path, names: Iterable[str]) -> None:
    """Append the modelled times of some forests on all chips."""
    codes: dict[Key, Any] = {}
    for name in names:
        machines = Machines.of(name, codes)
        drawn = draw(machines.forest, machines.shape, zlib.crc32(name.encode()))
        found = (one for schedule in drawn for one in machines.records(schedule))
        print(f"{name}: {write(file, found)} times", flush=True)


def measured(
    file: Path, names: Iterable[str], target: Target, tuner: Tuner, seconds: float
) -> None:
    """Append the times of the schedules that a tuner tries on this machine's GPU."""
    for name in names:
        sample = get(name)
        for rows in BATCHES:
            result = tuner.tune(
                sample.forest,
                sample.rows,
                target=target,
                ranges={(rows, rows): rows},
                budget=seconds,
                random_state=zlib.crc32(name.encode()) + rows,
                verbose=0,
            )
            timed = [t for t in result.trials if t.samples and t.schedule is not None]
            found = (
                record(
                    name, target.cpu, target.n_cores, t.schedule, {str(rows): t.seconds}
                )
                for t in timed
                if t.schedule is not None
            )
            print(f"{name}, {rows:,} rows: {write(file, found)} times", flush=True)


def gpu(arch: str, processors: int) -> Target:
    """Return the target of a GPU."""
    make = Target.hip if arch.startswith("gfx") else Target.cuda
    return replace(make(arch), n_cores=processors)
