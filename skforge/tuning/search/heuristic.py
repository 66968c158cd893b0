"""Heuristic search: a few likely candidates; those of GPUs are in ``gpu/search.py``.

On CPUs an estimate of time comes first. The ratio of a candidate's time to the
default's is taken to be lognormal about the ratio of the estimates, and its gain is
the mean of what it saves (``odds.py``). The candidate with the largest gain is next, if
the gain pays for compiling and timing it: ``PRICE`` says what it is worth. A range of
batch sizes ends when none is left that pays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any

from skforge.compiler.cost.counts import counted
from skforge.compiler.cost.shape import ForestShape
from skforge.compiler.defaults.cpu import candidates
from skforge.compiler.target import Target
from skforge.schedule.schedule import Schedule
from skforge.tuning.machines import machine_of
from skforge.tuning.search import learned
from skforge.tuning.search.odds import (
    BETWEEN,
    WALK,
    WITHIN,
    CandidateKind,
    Estimate,
    kind_of,
    layout_of,
)
from skforge.tuning.search.strategies import Problem, Round, Rounds
from skforge.tuning.search.trial import Candidate
from skforge.tuning.space.cpu import cpu_point
from skforge.tuning.space.space import ScheduleSpace

if TYPE_CHECKING:
    from skforge.gpu.cost_model import CostModel

#: Budgets that a search may use to save all of the time of all batch sizes. For 40
#: forests that nothing was fitted to, 2.5, 5 and 10 tried 17, 40 and 80 schedules and
#: saved .7, 1.0 and .6 % of the time of calls: what costs more trials brings no more.
PRICE = 2.0

#: A gain below which neighbours of a schedule are not looked at: three times slower.
HOPELESS = 1e-4

#: Number of schedules taken from the cost model in a space of the user's.
PROPOSED = 5


@dataclass(frozen=True, slots=True)
class Heuristic:
    """Searches with the heuristic for the target's kind, CPU or GPU.

    On a CPU, a candidate is compiled and timed if that likely takes less than twice its
    gain times the budget times the range's share of all batch sizes (as powers of two):
    with 4 seconds, a gain of 1 % at all sizes is worth 0.08 s.

    In a custom space, it tries the points that it would try in the default space, and
    the cost model's best.

    Parameters
    ----------
    model : CostModel, optional
        The cost model that proposes GPU schedules of a custom space; None uses the
        shipped model.
    estimate : object, optional
        Its method ``seconds(schedule, n_rows, n_threads)`` estimates one call; inf for
        a schedule that it does not support. None uses the estimate of static defaults.
    """

    model: CostModel | None = field(
        default=None, compare=False, repr=False, metadata={"stored": False}
    )
    estimate: Estimate | None = field(default=None, compare=False, repr=False)
    name: str = "heuristic"

    def rounds(self, problem: Problem) -> Rounds:
        """Yield the phases; each depends on the trials of the previous one."""
        return machine_of(problem.target).rounds(problem, self)


def points_in(
    space: ScheduleSpace, points: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the points that lie in a space.

    Parameters that the space lacks are left out; others that only the space has get
    their first value.
    """
    values = space.parameters.items()
    cut = ({name: point.get(name, v[0]) for name, v in values} for point in points)
    return [point for point in cut if point in space]


def proposed(problem: Problem, strategy: Heuristic) -> list[Candidate]:
    asked = learned.Learned("top-5", model=strategy.model, name=strategy.name)
    return learned.Proposer(asked, replace(problem, known=())).best(PROPOSED)


def cpu_rounds(problem: Problem, strategy: Heuristic) -> Rounds:
    odds = learned.odds_of(problem, strategy.estimate)
    default, n_rows, best = problem.default, problem.n_rows, 1.0
    pool = _Pool(problem, strategy.name)
    for point in points_in(problem.space, kinds(problem)):
        pool.add([point], inf)
        likely = _schedule(problem, point, strategy.name)
        gain = 0.0 if likely is None else odds.gain(likely, default, n_rows, inf, best)
        if gain > HOPELESS:
            pool.add(neighbours(point, problem), inf)
    start = _default_point(problem, strategy.name)
    if start is not None:
        pool.add(neighbours(start, problem), best)
    if problem.space not in (ScheduleSpace.cpu(), ScheduleSpace.cpu(threads=False)):
        pool.put(proposed(problem, strategy), WITHIN / BETWEEN)
    while pool.left:
        gains = {
            schedule: odds.gain(schedule, default, n_rows, like, best)
            for schedule, (_, like) in pool.left.items()
        }
        first = max(gains, key=lambda schedule: gains[schedule])
        candidate, _ = pool.left.pop(first)
        worth = PRICE * gains[first] * problem.share
        trials = yield Round([candidate], worth=worth)
        odds.learn(default, trials)
        for trial in trials:
            if trial.usable and trial.relative < best:
                best = trial.relative
                if candidate.params:
                    pool.add(neighbours(dict(candidate.params), problem), best)


class _Pool:
    """Schedules that are not tried yet, each once.

    ``left`` has for each its candidate, and how long it takes by the default's time if
    the estimate does not say: as long as the one whose neighbour it is.
    """

    def __init__(self, problem: Problem, name: str) -> None:
        self._problem, self._name = problem, name
        self.left: dict[Schedule, tuple[Candidate, float]] = {}
        self._seen = {problem.default}
        self._kinds = problem.shared(
            "kinds", lambda: allowed_kinds(problem.shape, problem.target)
        )
        self.put((Candidate(s, {}, name) for s in problem.known), inf)

    def add(self, points: Iterable[dict[str, Any]], like: float) -> None:
        inside = (_candidate(self._problem, point, self._name) for point in points)
        self.put(filter(None, inside), like)

    def put(self, proposed: Iterable[Candidate], like: float) -> None:
        for candidate in proposed:
            schedule = candidate.schedule
            if schedule in self.left:
                self.left[schedule] = candidate, min(like, self.left[schedule][1])
            elif schedule is not None and schedule not in self._seen:
                self._seen.add(schedule)
                if allows(schedule, self._kinds):
                    self.left[schedule] = candidate, like


def allowed_kinds(forest: ForestShape, target: Target) -> set[CandidateKind]:
    return {*map(kind_of, candidates(forest, target))}


def allows(schedule: Schedule, kinds: set[CandidateKind]) -> bool:
    kind = kind_of(schedule)
    return kind[0] in (WALK, "other") or kind in kinds


def _candidate(problem: Problem, point: dict[str, Any], name: str) -> Candidate | None:
    """Return a point's candidate, made once, since ranges share most points."""

    def make() -> Candidate | None:
        return problem.candidate(point, name) if point in problem.space else None

    return problem.shared((name, *point.items()), make)


def kinds(problem: Problem) -> list[dict[str, Any]]:
    """Return one point of each kind of traversal, most likely for the batch first."""
    n = problem.n_rows
    hops = "unroll" if problem.shape.max_depth <= 10 else "peel"
    block = next((b for b in (64, 128, 256, 512) if b >= n), 512)
    counts = counted(problem.shape, problem.target)
    codes = counts.allows_tile_rows
    points = {
        "bitsliced": cpu_point("bitsliced", block=block),
        "tiles": cpu_point("tiles", block=512, node_tile=15),
        "pieces": cpu_point("pieces", block=512 if n < 2048 else 4096),
        "values": cpu_point("tiles", block=256, node_tile=7, codes=False),
        "lanes": cpu_point("lanes"),
        "pairs": cpu_point("pairs"),
        "tile-row": cpu_point("tile-row", node_tile=15 if codes else 7, codes=codes),
        "rows": cpu_point("rows", block=0 if n < 64 else 64, hops=hops, in_flight=16),
        "trees": cpu_point("trees", hops=hops, in_flight=20),
    }
    few = ["lanes", "tile-row", "trees", "rows"]
    if n >= 4 and counts.pairs is not None:
        few.insert(0, "pairs")
    many = ["bitsliced", "tiles", "values", "rows"]
    if n < 16:
        order = few[:3] if n < 4 else few
    elif n <= 128:
        order = [*many, *few[:2]]
    else:
        order = ["pieces", *many] if counts.allows_pieces else many
    return [points[kind] for kind in order]


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
        case "predicates_of":
            lines = problem.shape.n_predicates * point["block"] // 8
            return value == 0 or bool(lines > problem.target.l2_bytes)
        case _:
            return True


def _default_point(problem: Problem, name: str) -> dict[str, Any] | None:
    default = problem.default
    for point in points_in(problem.space, kinds(problem)):
        likely = _schedule(problem, point, name)
        if likely is not None and layout_of(likely) == layout_of(default):
            for near in (point, *neighbours(point, problem)):
                if _schedule(problem, near, name) == default:
                    return near
    return None


def _schedule(problem: Problem, point: dict[str, Any], name: str) -> Schedule | None:
    candidate = _candidate(problem, point, name)
    return None if candidate is None else candidate.schedule
