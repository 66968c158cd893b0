"""The items of the stages of a GPU's first run, made of the benchmarks' other parts.

``bench`` measures beside other libraries, ``Tuner`` searches, designs are timed by the
clock of ``devices``, and Nsight Compute counts.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from statistics import median
from time import monotonic, perf_counter
from timeit import repeat
from typing import Any

import numpy as np
from machine import machine
from models import ROOT
from synthetic import random_models

from benchmarks.gpu.bench import OURS, Limits, bench, participants
from benchmarks.gpu.designs import FEW, designs
from benchmarks.gpu.first_run_bits import exactness, schedules, small_forest
from benchmarks.gpu.first_run_items import Item
from benchmarks.gpu.first_run_setup import Array, Setup, Stage, differs, of_schedule
from benchmarks.gpu.random_models import RANDOM_BATCHES, REAL_BATCHES, load
from benchmarks.gpu.strategies import times
from benchmarks.gpu.tables import ON_CPU
from skforge import compile_forest
from skforge.compiler.cost.shape import ForestShape
from skforge.forest.forest import Forest
from skforge.gpu import backend
from skforge.gpu.runtime.compilers import compiler_version
from skforge.schedule.schedule import Schedule
from skforge.tuning import ScheduleSpace, Tuner
from skforge.tuning.search.learned import Learned
from skforge.tuning.search.strategies import Strategy

#: Random models of Figures 8 and 9: of each number of trees and features, depth 7.
RANDOM = [name for name in random_models(240) if name.endswith("-7")]
SIZES = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
DESIGN_SIZES = (16, 256, 512, 4096, 16384, 65536)
#: Sizes at which schedules of Table 5 are timed and searched.
BATCHES = (512, 1024, 2048, 4096, 8192, 16384)
#: Models of which all of Table 5 is timed; its points in one item.
WHOLE, POINTS = ("airline.json", "year_prediction_msd.json"), 96
#: Calls of a sample, and samples.
CALLS, ROUNDS = 8, 3
#: Seconds that a search may take, and those of a point of Table 5.
BUDGET, POINT = 10.0, 0.065
SEARCHES: dict[str, Strategy | str] = {
    "Algorithm 1": "heuristic",
    "learned": Learned(),
    "one-shot": Learned("one-shot"),
}
#: What Nsight Compute is asked for.
METRICS = (
    "gpu__time_duration.sum",
    "launch__registers_per_thread",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__inst_executed.sum",
    "smsp__thread_inst_executed_per_inst_executed.ratio",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "l1tex__data_bank_conflicts_pipe_lsu.sum",
    "l1tex__t_sector_hit_rate.pct",
    "lts__t_sector_hit_rate.pct",
    "lts__t_bytes.sum",
    "dram__bytes.sum",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
)


# ------------------------------------------------------------ 1: what is there


def install(setup: Setup) -> Iterator[Item]:
    yield Item("versions", machine, seconds=2)
    yield Item("compiler", lambda: {"version": compiler_version("cuda")}, seconds=1)
    yield Item("device", lambda: setup.clock().facts(), seconds=10)
    yield Item("target", lambda: {"target": repr(setup.machine())}, seconds=1)
    direct = {"direct": schedules()["direct"]}
    yield Item("a kernel", partial(small_forest, setup, "scalar", direct), 2, 5)


# ------------------------------------------------------------ 3 and 4: beside others


def defaults(setup: Setup) -> Iterator[Item]:
    sizes = SIZES[:1] if setup.quick else SIZES
    for name in setup.names:
        yield Item(name, partial(_bench, setup, name, sizes), 20, 40 + 3 * len(sizes))


def _bench(setup: Setup, name: str, sizes: Sequence[int]) -> dict[str, Any]:
    model, cores = setup.model(name), len(os.sched_getaffinity(0))
    modes = ("fast", "reproducible")
    who = participants(setup.target, model, (), modes, cores, None)
    end = setup.end - 5
    prepare = min(60.0, max(5.0, (end - monotonic()) / 3))
    limits = Limits(3, 0.01, 1.0, prepare=prepare, end=end)
    found = bench(model, setup.group, who, sizes, limits, say=lambda _: None)
    wrong = []
    for one in found["systems"]:
        if one["system"] in (OURS, ON_CPU) and not one.get("same_bits"):
            wrong.append(f"{one['system']}: {one['reason'] or one['agreement']}")
    return {"bench": found, "wrong": wrong, "partial": monotonic() > end}


def strategies(setup: Setup) -> Iterator[Item]:
    for name in [*setup.names, *(RANDOM[:1] if setup.quick else RANDOM)]:
        work = partial(_strategies, setup, name)
        yield Item(name, work, 10, 1 if name in RANDOM else 5)


def _strategies(setup: Setup, name: str) -> dict[str, Any]:
    drawn = name in RANDOM
    forest, rows = load(name) if drawn else setup.forest(name)
    sizes = RANDOM_BATCHES if drawn else REAL_BATCHES
    sizes, calls = (sizes[:1], 1) if setup.quick else (sizes, 20)
    found = times(forest, rows, setup.target, sizes, calls)
    return {"model": name, "batches": sizes, "times": found}


# ------------------------------------------------------------ 5 and 6: schedules


def searches(setup: Setup) -> Iterator[Item]:
    batches = BATCHES[:1] if setup.quick else BATCHES
    size = 8 if setup.quick else POINTS
    points = 2 * size if setup.quick else len(ScheduleSpace.gpu())
    # Cores share the compiler's work; a point is lowered, loaded, checked and timed.
    kernels = size // min(16, os.cpu_count() or 1)
    for name in _whole(setup):
        for words, strategy in SEARCHES.items():
            for n in batches:
                work = partial(_search, setup, name, strategy, n)
                yield Item(f"{words}, {name}, {n} rows", work, 2, BUDGET + 1)
        for first in range(0, points, size):
            work = partial(_points, setup, name, first, size, batches)
            yield Item(f"Table 5, {name}, {first}", work, kernels, POINT * size)


def _whole(setup: Setup) -> Sequence[str]:
    return [name for name in setup.names if name in WHOLE] or setup.names[:2]


def _search(setup: Setup, name: str, how: Strategy | str, n: int) -> dict[str, Any]:
    forest, rows = setup.forest(name)
    tuner = Tuner(how, ScheduleSpace.gpu(), 2.0 if setup.quick else BUDGET)
    start = perf_counter()
    result = tuner.tune(
        forest, rows, target=setup.machine(), ranges={(n, n): n}, random_state=0
    )
    taken = perf_counter() - start
    (schedule,) = result.table.values()
    found = timed(setup, forest, schedule, rows, (n,))
    tried = len(result.trials)
    return {"schedule": repr(schedule), "taken": taken, "tried": tried, **found}


def _points(
    setup: Setup, name: str, first: int, size: int, batches: Sequence[int]
) -> dict[str, Any]:
    space, shape = ScheduleSpace.gpu(), ForestShape.of(setup.forest(name)[0])
    some = enumerate(islice(space, first, first + size), first)
    given = {f"{i}": space.schedule(point, shape) for i, point in some}
    return _timed_all(setup, name, given, batches)


def designs_of_models(setup: Setup) -> Iterator[Item]:
    for name in setup.names:
        yield Item(name, partial(_designs, setup, name), 25, 5)


def _designs(setup: Setup, name: str) -> dict[str, Any]:
    sizes = DESIGN_SIZES[:2] if setup.quick else DESIGN_SIZES
    known = islice(designs(setup.forest(name)[0]), 3 if setup.quick else None)
    given = {d.name: d.schedule for d in known}
    return _timed_all(setup, name, given, sizes)


def _timed_all(
    setup: Setup, name: str, given: Mapping[str, Schedule], sizes: Sequence[int]
) -> dict[str, Any]:
    forest, rows = setup.forest(name)
    setup.compile_ahead(name, list(given.values()))
    seconds: dict[str, dict[int, float]] = {}
    wrong: list[str] = []
    refused: dict[str, str] = {}
    for label, schedule in given.items():
        with of_schedule(label, refused):
            one = timed(setup, forest, schedule, rows, sizes)
            seconds[label] = one["seconds"]
            wrong += one["wrong"]
    return {"seconds": seconds, "refused": refused, "wrong": wrong}


def timed(
    setup: Setup, forest: Forest, schedule: Schedule, rows: Array, sizes: Sequence[int]
) -> dict[str, Any]:
    """Return the seconds of a schedule's kernels by batch size, and what is wrong."""
    clock = setup.clock()
    module = compile_forest(forest, schedule, setup.target)
    seconds: dict[int, float] = {}
    wrong: list[str] = []
    for n in sizes:
        some = np.resize(rows, (n, rows.shape[1]))
        there = clock.put(some) if setup.on_device else some
        got = clock.get(module.predict_raw(there))
        wrong += differs(got, _expected(forest, some), f"{n} rows, {schedule!r}")
        call = partial(module.predict_raw, there)
        calls = 2 if setup.quick else CALLS
        seconds[n] = median(clock.kernel_seconds(call, calls) for _ in range(ROUNDS))
    return {"seconds": seconds, "wrong": wrong}


@lru_cache(maxsize=len(BATCHES))
def _known(forest: Forest, n: int) -> list[Array]:
    """Return where the CPU's answer to an item's ``n`` rows is kept."""
    return []


def _expected(forest: Forest, rows: Array) -> Array:
    known = _known(forest, len(rows))
    if not known:
        known.append(compile_forest(forest, None, "cpu").predict_raw(rows))
    return known[0]


# ------------------------------------------------------------ 7: contributions


def contributions(setup: Setup) -> Iterator[Item]:
    for name in setup.names:
        yield Item(name, partial(_contributions, setup, name), 1, 15)


def _contributions(setup: Setup, name: str) -> dict[str, Any]:
    forest, rows = setup.forest(name)
    if not forest.cover.size:
        return {"skipped": "the model does not keep the covers of its nodes"}
    found: dict[str, Any] = {"gpu": {}, "cpu": {}, "wrong": []}
    backend.EXPLAINED = 0  # else the CPU explains few rows
    modules = {
        "gpu": compile_forest(forest, None, setup.target),
        "cpu": compile_forest(forest, None, "cpu"),
    }
    few = np.resize(rows, (64, rows.shape[1]))
    first = [one.predict_contribs(few, n_jobs=-1) for one in modules.values()]
    found["wrong"] = differs(first[0].reshape(64, -1), first[1].reshape(64, -1), name)
    for n in (64, 1024, 8192):
        some = np.resize(rows, (n, rows.shape[1]))
        for where, module in modules.items():
            left = setup.end - monotonic()
            soon = 24 * max([found[where].get(n // 8, 0.0), *found[where].values()])
            if soon > min(10.0, left):
                continue
            # The first call may compile.
            call = partial(module.predict_contribs, some, n_jobs=-1)
            found[where][n] = min(repeat(call, number=1, repeat=3))
    return found


# ------------------------------------------------------------ 8: counters


def counters(setup: Setup) -> Iterator[Item]:
    for name in _whole(setup):
        for design in FEW:  # those that a forest does not have are said to fail
            for n in (512, 16384):
                words = f"{name}:{design}:{n}"
                yield Item(words, partial(_counters, setup, words), 1, 10)


def _counters(setup: Setup, words: str) -> dict[str, Any]:
    profiler = shutil.which("ncu")
    if profiler is None or not setup.on_device:
        return {"skipped": "no ncu on the PATH" if profiler is None else "no device"}
    command = [profiler, "--csv", "--page", "raw", "--clock-control", "none"]
    # The first calls of a kernel load it; later ones are looked at.
    command += ["--kernel-name", "regex:^predict_", "--launch-skip", "4"]
    command += ["--launch-count", "2", "--metrics", ",".join(METRICS)]
    command += [sys.executable, "-m", "benchmarks.gpu", "first-run"]
    command += ["--target", setup.target, "--kernel", words]
    if setup.packed is not None:
        command += ["--packed", str(setup.packed)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    said = (done.stdout + done.stderr)[-300:]
    return {"kernels": counted(done.stdout), "said": said}


def counted(text: str) -> list[dict[str, str]]:
    """Return the metrics of each kernel in Nsight Compute's CSV, after other output."""
    lines = text.splitlines()
    start = next((i for i, one in enumerate(lines) if one.startswith('"ID"')), None)
    if start is None:
        return []
    kept = ("Kernel Name", "Grid Size", "Block Size", *METRICS)
    rows = csv.DictReader(io.StringIO("\n".join(lines[start:])))
    # The line below the names has units, and no ID.
    return [{k: row[k] for k in kept if row.get(k)} for row in rows if row["ID"]]


def run_kernel(setup: Setup, name: str, design: str, n_rows: str) -> None:
    """Call a design's kernels a few times, for a profiler."""
    forest, rows = setup.forest(name)
    (schedule,) = [d.schedule for d in designs(forest) if d.name == design]
    module = compile_forest(forest, schedule, setup.target)
    there = setup.clock().put(np.resize(rows, (int(n_rows), rows.shape[1])))
    for _ in range(8):
        module.predict_raw(there)
    setup.clock().wait()


STAGES = (
    Stage(1, "install", install),
    Stage(2, "tests and exactness", exactness),
    Stage(3, "defaults beside other libraries", defaults),
    Stage(4, "strategies of other systems", strategies),
    Stage(5, "searches", searches),
    Stage(6, "designs", designs_of_models),
    Stage(7, "contributions", contributions),
    Stage(8, "counters", counters),
)
