"""Heuristic search: a few likely candidates for GPUs and CPUs.

On GPUs this is Algorithm 1 of the SilvanForge paper. The batch size and the number of
features determine rows per block and tree threads; rows are cached and trees are not;
interleaved traversals are unrolled; every layout is tried. A second round tries
reductions in shared memory for the three best.

On CPUs the first round holds the cost model's five best and one schedule of each kind
of traversal. Parameters are nearly independent, so the next rounds change one parameter
at a time of the two best kinds and then combine the changes that helped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from skforge.compiler.schedule.directives import Represent
from skforge.compiler.schedule.schedule import Schedule
from skforge.exceptions import ScheduleError
from skforge.tuning.cost.cost_model import CostModel
from skforge.tuning.search.learned import Learned, proposals
from skforge.tuning.search.strategies import Problem, Round, Rounds
from skforge.tuning.search.trial import Candidate, Trial
from skforge.tuning.space.cpu import CPU, WALKS, cpu_point
from skforge.tuning.space.gpu import TABLE_5
from skforge.tuning.space.space import ScheduleSpace

#: Algorithm 1: largest batch and number of features for blocks of few rows.
T_BATCH, T_FEATURES = 2048, 128

#: Algorithm 1: number of schedules for which shared-memory reduction is tried.
TOP = 3

#: On CPUs, the number of kinds of traversal whose parameters are varied, and the
#: largest slowdown against the best kind at which another kind is still varied.
KINDS, NEAR = 2, 1.5

#: On CPUs, number of schedules taken from the cost model for the first round.
PROPOSED = 5


@dataclass(frozen=True, slots=True)
class Heuristic:
    """Searches with the heuristic for the target's kind, CPU or GPU.

    Parameters
    ----------
    model : CostModel, optional
        The cost model that proposes CPU schedules; None uses the shipped model.
    """

    model: CostModel | None = field(default=None, compare=False, repr=False)
    name: str = "heuristic"

    def rounds(self, problem: Problem) -> Rounds:
        """Yield the phases; each depends on the trials of the previous one."""
        if problem.target.is_gpu:
            return _gpu_rounds(problem, self.name)
        return _cpu_rounds(problem, self)


# -------------------------------------------------------------------- GPUs


def gpu_points(n_rows: int, n_features: int) -> Iterator[dict[str, Any]]:
    """Yield the points of Algorithm 1's first phase, with rows per thread varied too.

    The schedule language rejects blocks with more threads than the device allows.
    """
    small = n_rows <= T_BATCH or n_features > T_FEATURES
    rows, threads = ((8, 32), (20, 50)) if small else ((32, 64), (2, 10))
    for per_block in rows:
        for tree_threads in threads:
            for per_thread in TABLE_5["rows_per_thread"]:
                for interleave in TABLE_5["interleave"]:
                    for representation in TABLE_5["representation"]:
                        yield {
                            "rows_per_block": per_block,
                            "rows_per_thread": per_thread,
                            "tree_threads": tree_threads,
                            "cache_rows": True,
                            "cache_trees": False,
                            "unroll_walks": interleave != 1,
                            "interleave": interleave,
                            "shared_reduce": False,
                            "representation": representation,
                        }


def _gpu_rounds(problem: Problem, name: str) -> Rounds:
    space = ScheduleSpace.gpu()
    points = gpu_points(problem.n_rows, problem.forest.n_features)
    trials = yield Round([space.candidate(p, problem.shape, name) for p in points])
    best = sorted((t for t in trials if t.usable), key=lambda t: t.relative)[:TOP]
    shared = [{**trial.candidate.params, "shared_reduce": True} for trial in best]
    yield Round([space.candidate(point, problem.shape, name) for point in shared])


# -------------------------------------------------------------------- CPUs


def _cpu_rounds(problem: Problem, strategy: Heuristic) -> Rounds:
    space, name = ScheduleSpace.cpu(), strategy.name
    seen: set[Any] = {problem.default}

    def fresh(points: Sequence[dict[str, Any]]) -> list[Candidate]:
        made = []
        for point in points:
            try:
                schedule = space.schedule(point, problem.shape)
            except ScheduleError:
                continue  # the schedule language refuses this point
            if point in space and schedule not in seen:
                seen.add(schedule)
                made.append(Candidate(schedule, point, name))
        return made

    known = [Candidate(s, {}, name) for s in problem.known if s not in seen]
    seen.update(problem.known)
    alone = replace(problem, space=ScheduleSpace.cpu(threads=False), known=())
    asked = Learned("top-5", model=strategy.model, name=name)
    proposed = [c for c in proposals(alone, PROPOSED, asked) if c.schedule not in seen]
    seen.update(c.schedule for c in proposed)
    # Defaults of other sizes come first, because they are already compiled.
    first = yield Round([*known, *proposed, *fresh(kinds(problem))])
    trials = list(first)
    default = _point_of(problem, space)
    best = _best_by_kind(trials, default)
    for point, relative in best[:KINDS]:
        if relative > NEAR * best[0][1]:
            break
        tried = yield Round(fresh(list(neighbours(point, problem))))
        trials += tried
        helped = [
            t.candidate.params
            for t in tried
            if t.usable and t.relative < 0.98 * relative
        ]
        if len(helped) > 1:
            tried = yield Round(fresh([_together(point, helped)]))
            trials += tried


def kinds(problem: Problem) -> list[dict[str, Any]]:
    """Return one point of each kind of traversal, most likely for the batch first."""
    n = problem.n_rows
    hops = "unroll" if problem.shape.max_depth <= 10 else "peel"
    block = next((b for b in (64, 128, 256, 512) if b >= n), 512)
    made = {
        "bitsliced": cpu_point("bitsliced", block=block),
        "tiles": cpu_point("tiles", block=512, node_tile=15),
        "values": cpu_point("tiles", block=256, node_tile=7, codes=False),
        "lanes": cpu_point("lanes"),
        "tile-row": cpu_point("tile-row", node_tile=15),
        "rows": cpu_point("rows", block=0 if n < 64 else 64, hops=hops, in_flight=16),
        "trees": cpu_point("trees", hops=hops, in_flight=20),
    }
    few = ["lanes", "tile-row", "trees", "rows"]
    many = ["bitsliced", "tiles", "values", "rows"]
    if n < 16:
        order = few[:3] if n < 4 else few
    elif n <= 128:
        order = [*many, *few[:2]]
    else:
        order = many
    return [made[kind] for kind in order]


def neighbours(point: dict[str, Any], problem: Problem) -> Iterator[dict[str, Any]]:
    """Yield points that differ in one parameter, nearest values first."""
    for name, values in CPU.items():
        if name in ("walk", "parallel", "tree_tiles"):
            continue
        order = sorted(values, key=lambda v, n=name: _distance(n, v, point[n]))  # type: ignore[misc]
        for value in order:
            if value != point[name] and _worth(name, value, point, problem):
                yield {**point, name: value}
    if problem.n_threads > 1 and point["walk"] == "rows":
        for parallel in ("trees", "both"):
            for tiles in (2, 4, 8):
                yield {**point, "parallel": parallel, "tree_tiles": tiles}


def _worth(name: str, value: Any, point: dict[str, Any], problem: Problem) -> bool:
    """Return False for values that no measurement has favoured for such batches."""
    match name:
        case "block":
            return bool(value <= max(64, 2 * problem.n_rows))
        case "in_flight":
            return bool(value > 1)
        case "prefetch":
            return bool(point["walk"] == "trees") or problem.n_rows >= 1024
        case _:
            return True


def _distance(name: str, value: Any, own: Any) -> float:
    values = CPU[name]
    return abs(values.index(value) - values.index(own))


def _point_of(problem: Problem, space: ScheduleSpace) -> dict[str, Any] | None:
    """Return the point of the space that yields the default schedule, or None."""
    wanted = _layout(problem.default)
    for point in kinds(problem):
        if _layout(space.schedule(point, problem.shape)) != wanted:
            continue
        for near in (point, *neighbours(point, problem)):
            try:
                if space.schedule(near, problem.shape) == problem.default:
                    return near
            except ScheduleError:
                continue
    return None


def _layout(schedule: Schedule) -> str:
    """Return the last representation that a schedule names, or an empty string."""
    named = [d.representation for d in schedule.directives if isinstance(d, Represent)]
    return named[-1] if named else ""


def _best_by_kind(
    trials: Sequence[Trial], default: dict[str, Any] | None
) -> list[tuple[dict[str, Any], float]]:
    """Return the best point of each kind with its relative time, fastest first."""
    found: dict[str, tuple[dict[str, Any], float]] = {}
    if default is not None:
        found[default["walk"]] = default, 1.0
    for trial in trials:
        walk = trial.candidate.params.get("walk")
        if trial.usable and walk in WALKS:
            held = found.get(walk)
            if held is None or trial.relative < held[1]:
                found[walk] = dict(trial.candidate.params), trial.relative
    return sorted(found.values(), key=lambda pair: pair[1])


def _together(point: dict[str, Any], helped: Sequence[Any]) -> dict[str, Any]:
    """Return the point with every single change that helped applied."""
    return {
        **point,
        **{
            name: other[name]
            for other in reversed(helped)
            for name in point
            if other[name] != point[name]
        },
    }
