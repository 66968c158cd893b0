"""Search strategies: the protocol, and the model-free ones.

A strategy is a generator. It yields rounds of candidates and receives their trials. It
ends when it has nothing more to try; the session closes it when time is up. A strategy
never measures, compiles or reads a clock, so it can be tested without any of these.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import ceil, log
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np

from skforge.compiler.cost.shape import ForestShape
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.target import Target
from skforge.forest.forest import Forest
from skforge.schedule.ranges import BatchRange
from skforge.schedule.schedule import Schedule
from skforge.tuning.search.ranges import RangePlan
from skforge.tuning.search.trial import Candidate, Trial
from skforge.tuning.space.space import ScheduleSpace

T = TypeVar("T")

#: Default number of interleaved samples of each candidate.
SAMPLES = 7

#: Maximum number of points drawn from a space.
MOST_DRAWN = 4096

#: Candidates per round of the exhaustive and random strategies.
ROUND = 64


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A search problem: the fastest schedule of a forest at one batch size.

    Parameters
    ----------
    forest : Forest
        The forest to traverse.
    shape : ForestShape
        The forest's facts that schedule templates use.
    target : Target
        The machine to compile for.
    reduction : {"exact", "reproducible", "fast"}
        How leaf values are summed.
    batch : (int, int or None)
        The range of batch sizes, both ends included.
    n_rows : int
        The batch size to measure.
    n_threads : int
        Threads that a call may use.
    space : ScheduleSpace
        The space to take points from.
    random : numpy Generator
        The only source of randomness.
    default : Schedule
        The static default schedule, which is always measured.
    share : float
        The range's share of all batch sizes.
    known : tuple of Schedule
        Defaults of other batch sizes and schedules from other machines' records.
    memory : dict
        State that strategies keep from one range of a search to the next.
    """

    forest: Forest
    shape: ForestShape
    target: Target
    reduction: Reduction
    batch: BatchRange
    n_rows: int
    n_threads: int
    space: ScheduleSpace
    random: np.random.Generator = field(repr=False)
    default: Schedule
    share: float = 1.0
    known: tuple[Schedule, ...] = ()
    memory: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def at(self, plan: RangePlan) -> Problem:
        """Return the problem of a range of batch sizes."""
        return replace(
            self,
            batch=plan.batch,
            n_rows=plan.main,
            default=plan.default,
            share=plan.share,
        )

    def shared(self, name: Hashable, make: Callable[[], T]) -> T:
        """Return a value shared by all ranges of a search; the first one makes it."""
        if name not in self.memory:
            self.memory[name] = make()
        return self.memory[name]

    def candidate(self, point: Any, origin: str) -> Candidate:
        """Return the candidate for a point of the space."""
        return self.space.candidate(point, self.shape, origin)


@dataclass(frozen=True, slots=True)
class Round:
    """Candidates to measure next.

    Parameters
    ----------
    candidates : sequence of Candidate
        Most promising first, because time may run out within a round. A candidate that
        was tried before gets more samples.
    samples : int
        Interleaved samples of each candidate.
    worth : float
        The search goes on with this round only if that likely takes less than this
        share of its budget; otherwise the range of batch sizes is finished. 1 and more:
        it goes on until time is up.
    """

    candidates: Sequence[Candidate]
    samples: int = SAMPLES
    worth: float = 1.0


Rounds: TypeAlias = Generator[Round, Sequence[Trial], None]


@runtime_checkable
class Strategy(Protocol):
    """The protocol of search strategies.

    If a strategy has a false attribute ``measures``, it is asked for one round, and the
    first schedule that is legal for the forest and target is used without measuring.
    """

    @property
    def name(self) -> str:
        """The name in results and records."""

    def rounds(self, problem: Problem) -> Rounds:
        """Yield rounds of candidates; receive the trials of each round, in order."""


@dataclass(frozen=True, slots=True)
class Exhaustive:
    """Tries every point of the space, in order."""

    name: str = "exhaustive"

    def rounds(self, problem: Problem) -> Rounds:
        """Yield the whole space, ``ROUND`` points at a time."""
        points = iter(problem.space)
        while some := list(islice(points, ROUND)):
            yield Round([problem.candidate(point, self.name) for point in some])


@dataclass(frozen=True, slots=True)
class Random:
    """Tries points drawn uniformly at random.

    Parameters
    ----------
    n : int or None
        Legal points to try; None draws until time is up or the space is exhausted.
    """

    n: int | None = None
    name: str = "random"

    def rounds(self, problem: Problem) -> Rounds:
        """Yield points in random order."""
        points = problem.space.sample(MOST_DRAWN, problem.random)
        left = len(points) if self.n is None else self.n
        while points and left > 0:
            some, points = points[: min(left, ROUND)], points[min(left, ROUND) :]
            trials = yield Round([problem.candidate(p, self.name) for p in some])
            left -= sum(trial.status != "illegal" for trial in trials)


@dataclass(frozen=True, slots=True)
class SuccessiveHalving:
    """Measures many points with few samples, then the better ones with more.

    Jamieson and Talwalkar, Non-stochastic best arm identification and hyperparameter
    optimization (AISTATS 2016): each round keeps the best ``1 / eta`` of the candidates
    and gives them ``eta`` times the samples.

    Parameters
    ----------
    n : int
        Points drawn for the first round.
    eta : int
        The factor by which each round reduces the candidates.
    """

    n: int = 48
    eta: int = 3
    name: str = "halving"

    def rounds(self, problem: Problem) -> Rounds:
        """Yield rounds of fewer candidates with more samples."""
        points = problem.space.sample(self.n, problem.random)
        left = [problem.candidate(point, self.name) for point in points]
        samples = 1
        for _ in range(ceil(log(max(2, self.n), self.eta)) + 1):
            trials = yield Round(left, samples)
            good = sorted((t for t in trials if t.usable), key=lambda t: t.relative)
            keep = len(good) // self.eta
            if keep < 1:
                return
            left = [trial.candidate for trial in good[:keep]]
            samples *= self.eta
