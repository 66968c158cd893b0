"""GPUs: what :mod:`skforge.tuning.machines` asks of them.

The heuristic begins with Algorithm 1 of the SilvanForge paper: the batch size and the
number of features determine rows per block and tree threads; rows are cached and trees
are not; interleaved traversals are unrolled; every layout is tried. An estimate orders
these points and all others of Table 5, and the best of both are tried first. Points
that differ from the fastest three in one parameter follow, sums in shared memory among
them, so that a budget cuts off what is least likely to be fast. Kernels that spill are
not tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from math import inf
from typing import Any

import numpy as np

from skforge._typing import Array, Bools
from skforge.compiler.cost.schedule_facts import facts_of
from skforge.compiler.cost.shape import Setting
from skforge.compiler.driver import Lowered
from skforge.compiler.target import Target
from skforge.exceptions import TargetError
from skforge.forest.forest import Forest
from skforge.gpu.codegen.emitter import emit_gpu
from skforge.gpu.cost import GpuWork
from skforge.gpu.cost_model import CostModel
from skforge.gpu.runtime.compilers import CompilerKind, resources_of
from skforge.gpu.runtime.kernel import GpuKernel, current_device, in_order
from skforge.gpu.space import PLAIN, TABLE_5
from skforge.schedule.directives import Interleave
from skforge.schedule.schedule import Schedule
from skforge.tuning.machines import FOREST_BYTES, SearchedMachine
from skforge.tuning.measure.measure import KernelRunner, Runner
from skforge.tuning.search import heuristic, learned
from skforge.tuning.search.odds import Estimated
from skforge.tuning.search.strategies import Problem, Round, Rounds
from skforge.tuning.search.trial import Trial
from skforge.tuning.space.space import Point, ScheduleSpace

#: Maximum 32-bit registers of a block and of a thread, on all supported NVIDIA
#: architectures; AMD GPUs have no fewer.
REGISTERS, MOST_OF_THREAD = 65536, 255

#: Minimum registers of a traversal, and of each interleaved one for its node and value.
#: On sm_90, 18 and 3.3 were measured (docs/schedules.md).
WALK, IN_FLIGHT = 12, 2

#: Batches that take turns on a GPU, each with scratch of its own.
DEVICE_BATCHES = 8


def runner(kernel: GpuKernel, forest: Forest) -> Runner:
    kernel.load()
    of_cupy = kernel.target.kind in ("cuda", "hip")
    return (_DeviceRunner if of_cupy else KernelRunner)(kernel, forest)


class _DeviceRunner(KernelRunner[GpuKernel]):
    """Times the kernels of rows that are on the GPU already."""

    #: The last timed batches, a stream, and their recorded launches.
    _prepared: tuple[Sequence[Array], Any, Callable[[], None]] | None = None

    def time(self, batches: Sequence[Array], rounds: int) -> float:
        device = current_device(self._kernel.target)
        some = batches[:DEVICE_BATCHES]
        with device.current():
            if self._prepared is None or self._prepared[0] is not batches:
                self._prepared = None  # frees the memory of the last
                self._prepared = (batches, *self._recorded(device, some))
            _, stream, launch = self._prepared
            with device.current(stream):
                start = time.perf_counter()
                for _ in range(rounds):
                    launch()
                device.wait(stream)
                seconds = time.perf_counter() - start
        return seconds / (rounds * len(some))

    def _recorded(
        self, device: Any, batches: Sequence[Array]
    ) -> tuple[Any, Callable[[], None]]:
        xp = device.xp
        stream = xp.cuda.Stream(non_blocking=True)
        shape = len(batches[0]), self._forest.n_outputs
        with device.current(stream):
            result = xp.empty(shape, self._forest.accumulator_dtype)
            arrays = map(xp.asarray, batches)
            whole = in_order(self._kernel.bound(device, x, result) for x in arrays)
            return stream, device.record(whole, stream)


def spills(schedule: Schedule, lowered: Lowered, target: Target) -> str:
    plan = emit_gpu(lowered.kernel.function, target)
    kind: CompilerKind = "hip" if target.kind == "hip" else "cuda"
    try:
        resources = resources_of(plan.source, target.cpu, kind)
    except TargetError:  # no compiler available
        threads = max((launch.threads for launch in plan.launches.values()), default=1)
        return _by_model(schedule, threads)
    for launch in plan.launches.values():
        used = resources[launch.kernel]
        local = max(used.stack_bytes, used.spill_bytes)
        if local:
            return (
                f"{launch.kernel} uses {local} bytes of local memory per thread, "
                f"besides {used.registers} registers ({target.cpu})"
            )
    return ""


def _by_model(schedule: Schedule, threads: int) -> str:
    """Check a lower bound on registers, computed from the interleaving factor."""
    walks = max(
        (d.factor or 1 for d in schedule.directives if isinstance(d, Interleave)),
        default=1,
    )
    least, most = WALK + IN_FLIGHT * walks, min(MOST_OF_THREAD, REGISTERS // threads)
    if least <= most:
        return ""
    return (
        f"{walks} walks in flight need at least {least} registers per thread "
        f"(estimated, because no compiler is installed), but a block of {threads} "
        f"threads leaves {most}"
    )


#: Algorithm 1: largest batch and number of features for blocks of few rows.
T_BATCH, T_FEATURES = 2048, 128

#: How many points to begin with: the best of Table 5 by the estimate, and the best of
#: Algorithm 1's. The neighbours of the ``TOP`` fastest follow, ``ROUND`` at a time, up
#: to as many points as Algorithm 1 has in all.
RANKED, PAPER, TOP, ROUND, MOST_TRIED = 24, 24, 3, 12, 111

#: Least rows of a GPU's block to demand smaller blocks, and least share of a warp's
#: lanes that walk. For four forests on three GPUs (72 tables of modelled times of Table
#: 5), these rules drop 28 % and 9 % of the points, and none that is the best.
FEWEST_ROWS, BUSY_LANES = 8, 0.5


def pruned(setting: Setting, schedules: Sequence[Schedule]) -> dict[str, Bools]:
    work = GpuWork(setting, facts_of(schedules))
    idle = (2 * work.blocks <= work.processors) & (work.rows > FEWEST_ROWS)
    walking = work.lanes * work.busy * np.minimum(1.0, work.n / work.rows)
    return {
        "its trees take too much memory": work.node_bytes > FOREST_BYTES,
        "the target has not so many threads in a block, or so much shared memory": (
            ~work.fits
        ),
        "most multiprocessors would have no block, even with half the rows": idle,
        "most lanes of its warps would have nothing to do": walking < BUSY_LANES,
    }


def gpu_points(n_rows: int, n_features: int) -> Iterator[dict[str, Any]]:
    """Yield the points of Algorithm 1's first phase, rows per thread varied too."""
    small = n_rows <= T_BATCH or n_features > T_FEATURES
    rows, threads = ((8, 32), (20, 50)) if small else ((32, 64), (2, 10))
    varied = [TABLE_5[k] for k in ("rows_per_thread", "interleave", "representation")]
    for block, trees, thread, walks, layout in product(rows, threads, *varied):
        yield {
            **PLAIN,
            "rows_per_block": block,
            "rows_per_thread": thread,
            "tree_threads": trees,
            "unroll_walks": walks != 1,
            "interleave": walks,
            "representation": layout,
        }


def gpu_rounds(problem: Problem, strategy: Any) -> Rounds:
    space, n_rows = problem.space, problem.n_rows
    points = heuristic.points_in(space, ScheduleSpace.gpu())
    if not points:
        yield Round(heuristic.proposed(problem, strategy))
        return
    times = _estimates(problem, points)

    def ordered(some: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        distinct = {_key(point): point for point in some}
        fit = (key for key in distinct if times.get(key, inf) < inf)
        return [distinct[key] for key in sorted(fit, key=times.__getitem__)]

    ranked = ordered(points)
    drawn = gpu_points(n_rows, problem.forest.n_features)
    paper = ordered(heuristic.points_in(space, drawn))
    chosen = ordered([*ranked[:RANKED], *paper[:PAPER]])
    tried: set[Any] = set()
    trials: list[Trial] = []
    while chosen:
        tried.update(map(_key, chosen))
        candidates = [problem.candidate(point, strategy.name) for point in chosen]
        trials += yield Round(candidates)
        best = sorted((t for t in trials if t.usable), key=lambda t: t.relative)[:TOP]
        close = [p for t in best for p in learned.beside(t.candidate.params, space)]
        left = MOST_TRIED - len(tried)
        fresh = [p for p in (*ordered(close), *ranked) if _key(p) not in tried]
        chosen = fresh[: min(left, ROUND)]


def _key(point: Point) -> tuple[Any, ...]:
    return tuple(point.values())


def _estimates(
    problem: Problem, points: Sequence[dict[str, Any]]
) -> dict[tuple[Any, ...], float]:
    schedules = problem.shared(
        "gpu", lambda: [problem.candidate(p, "").schedule for p in points]
    )
    pairs = zip(points, schedules, strict=True)
    written = [(_key(point), schedule) for point, schedule in pairs if schedule]
    setting = Setting(problem.shape, problem.target, problem.n_rows)
    work = GpuWork(setting, facts_of(schedule for _, schedule in written))
    times = np.where(work.fits, work.estimate, inf).tolist()
    return {key: time for (key, _), time in zip(written, times, strict=True)}


def estimated(problem: Problem) -> Estimated:
    shape, target = problem.shape, problem.target
    return lambda schedules, n: (
        n * 1e-9 * GpuWork(Setting(shape, target, n), facts_of(schedules)).estimate
    ).tolist()


MACHINE = SearchedMachine(
    budget=10.0,
    # Algorithm 1 searches Table 5
    space=lambda _, plain: ScheduleSpace.gpu() if plain else ScheduleSpace.gpu_full(),
    rounds=gpu_rounds,
    pruned=pruned,
    estimated=estimated,
    shipped=CostModel.shipped,
    untrained=(
        "the cost model was not trained for {arch}, so Learned('one-shot') would "
        "guess. Use Learned('top-5') or tuning='heuristic', which measure, or train a "
        "model with benchmarks/gpu/train.py and pass it as Learned('one-shot', "
        "model=...)."
    ),
    refusal=spills,
    runner=runner,
)
