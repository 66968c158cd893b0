"""Times of schedules of the family, as JSON lines: what the cost model learns from."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import numpy as np
from cost_model_family import Sample
from harness import of_size
from threadpoolctl import threadpool_limits

from skforge.compiler.cost.shape import ForestShape
from skforge.compiler.defaults.cpu import default_schedules
from skforge.compiler.schedule.families import tiled_schedule
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.tuning.measure.bench import Bench, SampleRows
from skforge.tuning.measure.builds import Builder
from skforge.tuning.measure.measure import KernelMeasurer, Runner
from skforge.tuning.search.trial import Candidate
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

#: Seconds of a sample; samples.
SLOT, SAMPLES = 1e-3, 6


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


def targets() -> dict[str, Target]:
    """Return this machine's CPU, and itself without AVX-512."""
    host = Target.host()
    caches = {k: getattr(host, k) for k in ("l1_bytes", "l2_bytes", "l3_bytes")}
    level = replace(Target.x86_64("v3"), n_cores=host.n_cores, **caches)
    return {"host": host, "v3": level}


def measure(sample: Sample, name: str, target: Target, file: Path) -> int:
    """Append the times of one forest's schedules to a file; return how many."""
    forest = sample.forest
    random = np.random.default_rng([zlib.crc32(sample.name.encode()), len(name)])
    defaults = default_schedules(forest, target)
    pool = _pool(sample, defaults.values(), random)
    builder = Builder(forest, KernelMeasurer(forest, target, "exact", 1))
    rows = SampleRows(forest, sample.rows, 0)
    start, written = perf_counter(), 0
    try:
        with threadpool_limits(limits=1), file.open("a", encoding="utf-8") as out:
            for low, high in STRATA:
                n_rows = int(random.integers(low, high + 1))
                default = of_size(defaults, n_rows)
                chosen = [s for _, s in _for_batch(pool, n_rows, random)]
                for line in _times(builder, rows, default, chosen, n_rows):
                    record = {"model": sample.name, "target": name, "rows": n_rows}
                    out.write(json.dumps({**record, **line}) + "\n")
                    written += 1
    finally:
        builder.close()
    print(
        f"{sample.name}, {name}: {written} in {perf_counter() - start:.0f} s",
        flush=True,
    )
    return written


def _times(
    builder: Builder, rows: SampleRows, default: Schedule, chosen: Any, n_rows: int
) -> Iterator[dict[str, Any]]:
    base = builder.build(Candidate(default))
    assert base.runner is not None, base.reason
    bench = Bench(rows.batches(n_rows), ThreadTimed(base.runner), SLOT)
    found = []
    best = 1.0
    for schedule in dict.fromkeys(s for s in chosen if s != default):
        build = builder.build(Candidate(schedule))
        if build.runner is None:
            continue
        sampled = bench.compare(ThreadTimed(build.runner), SAMPLES, best)
        best = min(best, sampled.relative)
        found.append((schedule, sampled))
    # The least of many: what disturbs a sample only makes it longer.
    seconds = min(bench.baseline)
    yield {
        "schedule": default.to_json(),
        "seconds": seconds,
        "ratio": 1.0,
        "default": 1,
    }
    for schedule, sampled in found:
        yield {
            "schedule": schedule.to_json(),
            "seconds": min(sampled.samples),
            "ratio": sampled.relative,
            "default": 0,
            "looks": len(sampled.ratios),
        }


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
