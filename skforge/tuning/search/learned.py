"""``tuning="learned"``: search guided by a cost model.

Follows *Learning to Schedule Halide Pipelines for the GPU* (Anderson et al.) with its
three modes: take the model's best schedule, measure its five best, or alternate rounds
of measuring and learning. The model scores the whole space, or many points drawn from
it, because the paper's beam search gained nothing here. It is a trained one on GPUs and
the estimate of the defaults on CPUs, and ``odds.py`` learns its error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from skforge.compiler.cost.shape import Setting
from skforge.exceptions import InvalidInputError, TuningError, check_choice
from skforge.schedule.schedule import Schedule
from skforge.tuning.machines import machine_of
from skforge.tuning.search import odds
from skforge.tuning.search.strategies import MOST_DRAWN, Problem, Round, Rounds
from skforge.tuning.search.trial import Candidate
from skforge.tuning.space.space import Point, ScheduleSpace

if TYPE_CHECKING:
    from skforge.gpu.cost_model import CostModel

Mode: TypeAlias = Literal["one-shot", "top-5", "autotune"]

#: Number of schedules that "top-5" measures.
TOP = 5

#: Schedules per round of "autotune", and how many of them are drawn at random from the
#: rest: without those, a model never learns that it is wrong about what it avoids.
BATCH, DRAWN = 8, 1

#: How many points are looked at for each that is drawn of a large space.
WIDE = 32

#: Number of schedules from which "one-shot" takes the first legal one.
SHOTS = 3

#: How often the best of a drawn space are varied, and how many of them.
PASSES, VARIED = 3, 12

#: Predicted speedup at which "one-shot" leaves the default, if the model stores none.
MARGIN = 1.1


@dataclass(frozen=True, slots=True)
class Learned:
    """Proposes schedules with a cost model.

    Parameters
    ----------
    mode : {"autotune", "one-shot", "top-5"}, default="autotune"
        "one-shot" measures nothing and takes the model's best schedule if the model
        predicts that it is clearly faster than the default. "top-5" measures the five
        best. "autotune" measures rounds of a few schedules, and corrects the model
        after each, until time is up.
    iterations : int, default=20
        Maximum number of rounds of "autotune".
    outright : int, default=10000
        Largest space that is scored completely; of larger spaces, 4,096 points are
        drawn and scored.
    model : CostModel, optional
        The cost model of a GPU; None uses the shipped one. On a GPU that it was not
        trained for, "one-shot" raises an error, and the other modes begin with an
        estimate. CPUs have no model: the search begins with the estimate of static
        defaults.
    """

    mode: Mode = "autotune"
    iterations: int = 20
    outright: int = 10_000
    model: CostModel | None = field(
        default=None, compare=False, repr=False, metadata={"stored": False}
    )
    name: str = "learned"

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, get_args(Mode))
        if not isinstance(self.iterations, int) or self.iterations < 1:
            raise InvalidInputError("iterations must be a positive whole number.")

    @property
    def measures(self) -> bool:
        """Whether proposals are measured before one is chosen."""
        return self.mode != "one-shot"

    def rounds(self, problem: Problem) -> Rounds:
        """Yield the model's proposals and train the model with their trials."""
        proposer = Proposer(self, problem)
        match self.mode:
            case "one-shot":
                yield Round(proposer.better(SHOTS))
            case "top-5":
                yield Round(proposer.best(TOP))
            case "autotune":
                for _ in range(self.iterations):
                    candidates = proposer.best(BATCH, drawn=DRAWN)
                    if not candidates:
                        return
                    proposer.odds.learn(problem.default, (yield Round(candidates)))


def odds_of(
    problem: Problem,
    estimate: odds.Estimate | None = None,
    model: CostModel | None = None,
) -> odds.Odds:
    """Return what a search knows of times; its first range says by which estimate."""
    return problem.shared(
        "odds", lambda: odds.Odds(_estimated(problem, estimate, model))
    )


def _estimated(
    problem: Problem, estimate: odds.Estimate | None, model: CostModel | None
) -> odds.Estimated:
    shape, target = problem.shape, problem.target
    if model is not None:
        return lambda schedules, n: model.seconds(
            Setting(shape, target, n), schedules
        ).tolist()
    if estimate is not None:
        return lambda schedules, n: [
            estimate.seconds(s, n, problem.n_threads) for s in schedules
        ]
    return machine_of(target).estimated(problem)


class Proposer:
    def __init__(self, strategy: Learned, problem: Problem) -> None:
        self._machine = machine = machine_of(problem.target)
        model = strategy.model or machine.shipped(problem.target)
        if model is None and not strategy.measures and machine.untrained:
            raise TuningError(machine.untrained.format(arch=problem.target.cpu))
        self._strategy, self._problem = strategy, problem
        self._margin = MARGIN if model is None else model.facts.get("margin", MARGIN)
        self.odds = odds_of(problem, model=model)
        self._tried = {problem.default}
        #: What may be proposed, by schedule, and the estimated seconds.
        self._proposable: dict[Schedule, tuple[Candidate, float]] = {}

    # ---------------------------------------------------------------- proposing

    def better(self, n: int) -> list[Candidate]:
        problem = self._problem
        default = self.odds.seconds(problem.default, problem.n_rows)
        ranked = islice(self._ranked(), n)
        return [c for c, seconds in ranked if seconds < default / self._margin]

    def best(self, n: int, drawn: int = 0) -> list[Candidate]:
        ranked = [candidate for candidate, _ in self._ranked()]
        chosen = _diverse(ranked, n - drawn)
        rest = [c for c in ranked if c not in chosen]
        for i in self._problem.random.permutation(len(rest))[: n - len(chosen)]:
            chosen.append(rest[int(i)])
        self._tried.update(c.schedule for c in chosen if c.schedule is not None)
        return chosen

    def _ranked(self) -> Iterator[tuple[Candidate, float]]:
        problem = self._problem
        if not self._proposable:
            # Building schedules is the slowest step, so all ranges share them.
            written = problem.shared("learned: written", self._written)
            known = (Candidate(s, {}, self._strategy.name) for s in problem.known)
            self._add([*known, *written])
        for _ in range(PASSES if self._is_drawn else 0):
            # What is drawn has every structure, but few sizes of each.
            best = [c.params for c, _ in islice(self._order(), VARIED)]
            near = (p for point in best for p in beside(point, problem.space))
            seen = {tuple(c.params.values()) for c, _ in self._proposable.values()}
            fresh = {tuple(p.values()): p for p in near}
            self._add(self._written(p for k, p in fresh.items() if k not in seen))
        for candidate, seconds in self._order():
            if candidate.schedule not in self._tried:
                yield candidate, seconds

    def _add(self, candidates: Iterable[Candidate]) -> None:
        """Add what is not pruned; without an estimate, it counts as the default."""
        problem = self._problem
        made = {c.schedule: c for c in candidates if c.schedule is not None}
        fresh = {s: c for s, c in made.items() if s not in self._proposable}
        if not fresh:
            return
        setting = Setting(problem.shape, problem.target, problem.n_rows)
        dropped = np.any([*self._machine.pruned(setting, [*fresh]).values()], axis=0)
        kept = [s for s, drop in zip(fresh, dropped, strict=True) if not drop]
        default = self.odds.seconds(problem.default, problem.n_rows)
        times = self.odds.estimated(kept, problem.n_rows) if kept else []
        for schedule, seconds in zip(kept, times, strict=True):
            usable = seconds if isfinite(seconds) else default
            self._proposable[schedule] = fresh[schedule], usable

    def _order(self) -> Iterator[tuple[Candidate, float]]:
        kinds = {*map(odds.kind_of, self._proposable)}
        usual = {kind: self.odds.usual(kind) for kind in kinds}
        found = self._proposable.items()
        likely = [(c, seconds * usual[odds.kind_of(s)]) for s, (c, seconds) in found]
        yield from sorted(likely, key=itemgetter(1))

    @property
    def _is_drawn(self) -> bool:
        size = self._problem.space.size
        return size is None or size > self._strategy.outright

    def _written(self, points: Iterable[Point] | None = None) -> list[Candidate]:
        problem, name = self._problem, self._strategy.name
        if points is None:
            space = problem.space
            points = _spread(space, problem.random) if self._is_drawn else space
        return [problem.candidate(point, name) for point in points]


def _spread(space: ScheduleSpace, random: np.random.Generator) -> Iterator[Point]:
    """Yield equally many of each kind, spread over structures: good kinds have few."""
    kind, values = next(iter(space.parameters.items()))
    for value in values:
        part = space.with_values(**{kind: [value]})
        wanted = max(1, MOST_DRAWN // len(values))
        turns: Counter[tuple[object, ...]] = Counter()
        drawn = []
        for point in part.sample(WIDE * wanted, random):
            structure = part.structure(point)
            drawn.append((turns[structure], point))
            turns[structure] += 1
        yield from (point for _, point in sorted(drawn, key=itemgetter(0))[:wanted])


def beside(point: Point, space: ScheduleSpace) -> Iterator[dict[str, Any]]:
    if point in space:
        for name, values in space.parameters.items():
            for value in values:
                other = {**point, name: value}
                if value != point[name] and other in space:
                    yield other


def _diverse(candidates: Sequence[Candidate], n: int) -> list[Candidate]:
    """Return the first, at most half of one kind, about which a model may be wrong."""
    chosen: list[Candidate] = []
    spare: list[Candidate] = []
    held: Counter[str] = Counter()
    for candidate in candidates:
        kind = repr(next(iter(candidate.params.values()), None))
        if len(chosen) == n:
            break
        full = held[kind] >= max(1, -(-n // 2))
        held[kind] += not full
        (spare if full else chosen).append(candidate)
    return [*chosen, *spare][:n]
