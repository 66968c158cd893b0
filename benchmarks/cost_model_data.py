"""Times of schedules of the family, as JSON lines: what the cost model learns from."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import numpy as np
from cost_model_family import Sample
from harness import of_size, take_turns
from threadpoolctl import threadpool_limits

from skforge.compiler.cost.shape import ForestShape
from skforge.compiler.defaults.cpu import default_schedules
from skforge.compiler.schedule.families import tiled_schedule
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.tuning.measure.bench import SampleRows
from skforge.tuning.measure.measure import KernelMeasurer, Runner
from skforge.tuning.space.space import ScheduleSpace

#: One size of each stratum is drawn: schedules change between them.
STRATA = ((1, 1), (2, 7), (8, 30), (31, 80), (81, 250), (251, 1200), (1500, 5000))

#: Schedules drawn of each kind of walk for a forest, and of these for a batch size.
DRAWN = {"rows": (9, 5), "trees": (4, 3), "vector": (2, 2), "tiles": (8, 6),
         "bitsliced": (5, 5), "lanes": (1, 1), "tile-row": (2, 2)}  # fmt: skip
VALUE_TILES = tuple((rows, nodes) for rows in (128, 256, 512) for nodes in (7, 15))

#: Padding of trees that are walked without leaf checks at most.
MOST_PADDING = 4.0

#: Bytes of trees that are stored complete at most.
MOST_COMPLETE = 32 << 20

#: Rounds of samples, seconds of a sample, and the factor above the best at which a
#: schedule is timed no more.
ROUNDS, SLOT, HOPELESS = 7, 1e-3, 4.0


class ThreadTimed:
    """A runner whose clock stops while other processes have its core."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def predict(self, rows: Any) -> Any:
        return self._runner.predict(rows)

    def time(self, batches: Any, rounds: int) -> float:
        start = thread_time()
        self._runner.time(batches, rounds)
        return (thread_time() - start) / (rounds * len(batches))


class Timed:
    """Times of a forest's schedules, beside each other, as processor time."""

    def __init__(self, sample: Sample, target: Target) -> None:
        self._machine = KernelMeasurer(sample.forest, target, "exact", 1)
        self._rows = SampleRows(sample.forest, sample.rows, 0)
        self._runners: dict[Schedule, ThreadTimed | None] = {}

    def times(self, schedules: Iterable[Schedule], n_rows: int) -> dict[str, float]:
        """Return the median seconds of the legal ones that are not hopeless."""
        batches = self._rows.batches(n_rows)
        runners = {s.to_json(): r for s in schedules if (r := self._runner(s))}
        with threadpool_limits(limits=1):
            once = {
                s: min(r.time(batches, 1) for _ in range(2)) for s, r in runners.items()
            }
            least = min(once.values())
            samples = {
                s: partial(self._sample, runners[s], batches, seconds)
                for s, seconds in once.items()
                if seconds < HOPELESS * least
            }
            taken = take_turns(samples, ROUNDS)
        return {s: median(values) for s, values in taken.items()}

    @staticmethod
    def _sample(runner: ThreadTimed, batches: Any, seconds: float) -> float:
        runner.time(batches, 1)  # the others' data left the cache
        return runner.time(batches, max(1, int(SLOT / (seconds * len(batches)))))

    def _runner(self, schedule: Schedule) -> ThreadTimed | None:
        if schedule not in self._runners:
            self._runners[schedule] = None
            with suppress(ScheduleError):
                plan = self._machine.lower(schedule)
                self._runners[schedule] = ThreadTimed(self._machine.build(plan))
        return self._runners[schedule]


def write(file: Path, key: tuple[str, str, int], times: dict[str, float]) -> None:
    """Append the times of a model, target and batch size, a line for each schedule."""
    known = dict(zip(("model", "target", "rows"), key, strict=True))
    with file.open("a", encoding="utf-8") as out:
        for schedule, seconds in times.items():
            record = {**known, "schedule": schedule, "seconds": seconds}
            out.write(json.dumps(record) + "\n")


def records(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file; none if there is no file."""
    if file.exists():
        with file.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def targets() -> dict[str, Target]:
    """Return this machine's CPU, and itself without AVX-512."""
    host = Target.host()
    caches = {k: getattr(host, k) for k in ("l1_bytes", "l2_bytes", "l3_bytes")}
    level = replace(Target.x86_64("v3"), n_cores=host.n_cores, **caches)
    return {"host": host, "v3": level}


def measure(sample: Sample, name: str, target: Target, file: Path) -> None:
    """Append the times of one forest's schedules to a file."""
    random = np.random.default_rng([zlib.crc32(sample.name.encode()), len(name)])
    defaults = default_schedules(sample.forest, target)
    pool = _pool(sample, defaults.values(), random)
    timed, start = Timed(sample, target), perf_counter()
    for low, high in STRATA:
        n_rows = int(random.integers(low, high + 1))
        chosen = [s for _, s in _for_batch(pool, n_rows, random)]
        some = dict.fromkeys([of_size(defaults, n_rows), *chosen])
        write(file, (sample.name, name, n_rows), timed.times(some, n_rows))
    print(f"{sample.name}, {name}: {perf_counter() - start:.0f} s", flush=True)


def _pool(
    sample: Sample, known: Any, random: np.random.Generator
) -> list[tuple[str, Schedule]]:
    shape = ForestShape.of(sample.forest)
    space = ScheduleSpace.cpu(threads=False)
    by_walk: dict[str, list[Any]] = {}
    for point in space:
        by_walk.setdefault(point["walk"], []).append(point)
    made: dict[Schedule, str] = dict.fromkeys(known, "known")
    for walk, (most, _) in DRAWN.items():
        points = by_walk[walk]
        for i in random.permutation(len(points))[:most]:
            if is_large(points[i], shape):
                continue  # takes minutes, and is never any good
            try:
                made.setdefault(space.schedule(points[i], shape), walk)
            except ScheduleError:
                continue
    for i in random.permutation(len(VALUE_TILES))[:3]:
        made.setdefault(tiled_schedule(*VALUE_TILES[i], codes=False), "values")
    return [(walk, schedule) for schedule, walk in made.items()]


def is_large(point: Any, shape: ForestShape) -> bool:
    """Whether trees are padded, or stored as complete ones, far beyond their size."""
    if point["hops"] == "unroll" and shape.padded_nodes > MOST_PADDING:
        return True
    complete = shape.n_trees * 2.0**shape.max_depth * 16
    return point["layout"] != "sparse" and complete > MOST_COMPLETE


def _for_batch(
    pool: list[tuple[str, Schedule]], n_rows: int, random: np.random.Generator
) -> Iterator[tuple[str, Schedule]]:
    """Yield schedules for a batch: not what is for far more rows, or far fewer."""
    taken: dict[str, int] = {}
    for i in random.permutation(len(pool)):
        walk, schedule = pool[i]
        most = DRAWN.get(walk, (9, 9))[1]
        if walk in ("lanes", "tile-row", "trees") and n_rows > 300:
            continue
        if taken.get(walk, 0) < most:
            taken[walk] = taken.get(walk, 0) + 1
            yield walk, schedule
