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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from skforge.compiler.schedule.directives import Represent
from skforge.compiler.schedule.schedule import Schedule
from skforge.tuning.cost.cost_model import CostModel
from skforge.tuning.search.learned import Learned, proposals
from skforge.tuning.search.strategies import Problem, Round, Rounds
from skforge.tuning.search.trial import Candidate, Trial
from skforge.tuning.space.cpu import cpu_point
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

    Of a custom space, it tries the points that it would try of the default space and
    the cost model's best.

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
            return _gpu_rounds(problem, self)
        return _cpu_rounds(problem, self)


def _points_in(
    space: ScheduleSpace, points: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the points that lie in a space.

    Parameters that the space lacks are left out; others that only the space has get
    their first value.
    """
    own = space.parameters.items()
    cut = ({name: point.get(name, v[0]) for name, v in own} for point in points)
    return [point for point in cut if point in space]


def _proposed(problem: Problem, strategy: Heuristic) -> list[Candidate]:
    """Return the cost model's best candidates; threads share rows, not trees."""
    space = problem.space
    if space == ScheduleSpace.cpu():
        space = ScheduleSpace.cpu(threads=False)
    asked = Learned("top-5", model=strategy.model, name=strategy.name)
    return proposals(replace(problem, space=space, known=()), PROPOSED, asked)


# -------------------------------------------------------------------- GPUs


def gpu_points(n_rows: int, n_features: int) -> Iterator[dict[str, Any]]:
    """Yield the points of Algorithm 1's first phase, with rows per thread varied too.

    The schedule language rejects blocks with more threads than the device allows.
    """
    small = n_rows <= T_BATCH or n_features > T_FEATURES
    rows, threads = ((8, 32), (20, 50)) if small else ((32, 64), (2, 10))
    varied = [TABLE_5[k] for k in ("rows_per_thread", "interleave", "representation")]
    for block, trees, thread, walks, layout in product(rows, threads, *varied):
        yield {
            "rows_per_block": block,
            "rows_per_thread": thread,
            "tree_threads": trees,
            "cache_rows": True,
            "cache_trees": False,
            "unroll_walks": walks != 1,
            "interleave": walks,
            "shared_reduce": False,
            "representation": layout,
        }


def _gpu_rounds(problem: Problem, strategy: Heuristic) -> Rounds:
    name, space = strategy.name, problem.space
    points = _points_in(space, gpu_points(problem.n_rows, problem.forest.n_features))
    first = [problem.candidate(point, name) for point in points]
    trials = yield Round(first or _proposed(problem, strategy))
    best = sorted((t for t in trials if t.usable), key=lambda t: t.relative)[:TOP]
    shared = [{**trial.candidate.params, "shared_reduce": True} for trial in best]
    yield Round([problem.candidate(p, name) for p in shared if p in space])


# -------------------------------------------------------------------- CPUs


def _cpu_rounds(problem: Problem, strategy: Heuristic) -> Rounds:
    space, name = problem.space, strategy.name
    seen: set[Any] = {problem.default}

    def fresh(points: Iterable[dict[str, Any]]) -> list[Candidate]:
        made = []
        for point in points:
            if point not in space:
                continue
            candidate = problem.candidate(point, name)
            if candidate.schedule is not None and candidate.schedule not in seen:
                seen.add(candidate.schedule)
                made.append(candidate)
        return made

    known = [Candidate(s, {}, name) for s in problem.known if s not in seen]
    seen.update(problem.known)
    proposed = [c for c in _proposed(problem, strategy) if c.schedule not in seen]
    seen.update(c.schedule for c in proposed)
    # Defaults of other sizes come first, because they are already compiled.
    likely = fresh(_points_in(space, kinds(problem)))
    first = yield Round([*known, *proposed, *likely])
    trials = list(first)
    best = _best_by_kind(trials, _default_point(problem))
    for point, relative in best[:KINDS]:
        if relative > NEAR * best[0][1]:
            break
        tried = yield Round(fresh(neighbours(point, problem)))
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
    kind, *others = problem.space.parameters.items()
    threads = ("parallel", "tree_tiles") if kind[0] == "walk" else ()
    for name, values in others:
        if name in threads:
            continue
        place = values.index(point[name])
        for i in sorted(range(len(values)), key=lambda i, at=place: abs(i - at)):  # type: ignore[misc]
            if i != place and _worth(name, values[i], point, problem):
                yield {**point, name: values[i]}
    if threads and problem.n_threads > 1 and point["walk"] == "rows":
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


def _default_point(problem: Problem) -> dict[str, Any] | None:
    """Return the point of the space that yields the default schedule, or None."""
    wanted = _layout(problem.default)

    def schedule(point: dict[str, Any]) -> Schedule | None:
        return problem.candidate(point, "").schedule

    for point in _points_in(problem.space, kinds(problem)):
        found = schedule(point)
        if found is None or _layout(found) != wanted:
            continue
        for near in (point, *neighbours(point, problem)):
            if near.keys() == point.keys() and schedule(near) == problem.default:
                return near
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
        found[_kind(default)] = default, 1.0
    for trial in trials:
        point = dict(trial.candidate.params)
        if trial.usable and point:
            held = found.get(_kind(point))
            if held is None or trial.relative < held[1]:
                found[_kind(point)] = point, trial.relative
    return sorted(found.values(), key=lambda pair: pair[1])


def _kind(point: Mapping[str, Any]) -> str:
    """Return the first parameter's value: of CPU spaces, the kind of traversal."""
    return repr(next(iter(point.values()), None))


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
