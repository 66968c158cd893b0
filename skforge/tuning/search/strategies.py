"""What proposes candidates: the protocol of strategies, and those that need no model.

A strategy is a generator. It yields rounds of candidates and is sent what became of
them; it ends when it has nothing more to try, or is ended when time is up. It never
measures, compiles or looks at a clock, so that it can be tested without any of these.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import ceil, log
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from skforge.compiler.defaults.cpu import BatchRange, ForestShape
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from skforge.tuning.search.trial import Candidate, Trial
from skforge.tuning.space.space import ScheduleSpace

#: Names of strategies; ``by_name`` makes them.
STRATEGIES = ("heuristic", "learned", "exhaustive", "random", "halving")

#: Samples of each candidate: the interleaved repetitions of a first look.
SAMPLES = 7

#: Points that are drawn from a space at most.
MOST_DRAWN = 4096

#: Candidates of a round, where a strategy could yield all at once.
ROUND = 64


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What is searched for: the fastest schedule at one batch size.

    Parameters
    ----------
    forest : Forest
        What is walked.
    shape : ForestShape
        Its facts, as templates want them.
    target : Target
        The machine.
    reduction : {"exact", "reproducible", "fast"}
        How leaf values are summed.
    batch : (int, int or None)
        The range of batch sizes.
    n_rows : int
        The size that is measured.
    n_threads : int
        Threads that a call may use.
    space : ScheduleSpace
        Where points come from.
    random : numpy Generator
        All chance comes from here.
    default : Schedule
        The static default, which is tried in any case.
    known : tuple of Schedule
        Defaults of other batch sizes and other machines' records: worth a try.
    memory : dict
        For strategies: what is kept from one range of a search to the next.
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
    known: tuple[Schedule, ...] = ()
    memory: dict[str, Any] = field(default_factory=dict, repr=False)

    def candidate(self, point: Any, origin: str) -> Candidate:
        """Return a point of the space to try."""
        return self.space.candidate(point, self.shape, origin)


@dataclass(frozen=True, slots=True)
class Round:
    """Candidates to measure next.

    Parameters
    ----------
    candidates : sequence of Candidate
        In the order of their promise: time may end within a round. One that was tried
        before gets more samples.
    samples : int
        Interleaved repetitions of each.
    """

    candidates: Sequence[Candidate]
    samples: int = SAMPLES


Rounds: TypeAlias = Generator[Round, Sequence[Trial], None]


@runtime_checkable
class Strategy(Protocol):
    """A way through a space.

    One with an attribute ``measures`` that is false is asked for one round, of which
    the first schedule that the forest and the target allow is taken unmeasured.
    """

    @property
    def name(self) -> str:
        """What it is called in results and records."""

    def rounds(self, problem: Problem) -> Rounds:
        """Yield rounds of candidates; each is answered with its trials, in order."""


@dataclass(frozen=True, slots=True)
class Exhaustive:
    """Every point of the space, in order."""

    name: str = "exhaustive"

    def rounds(self, problem: Problem) -> Rounds:
        """Yield the whole space, some at a time."""
        points = iter(problem.space)
        while some := list(islice(points, ROUND)):
            yield Round([problem.candidate(point, self.name) for point in some])


@dataclass(frozen=True, slots=True)
class Random:
    """Points drawn with equal chances.

    Parameters
    ----------
    n : int or None
        How many legal ones; None draws until time is up or the space is empty.
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
    """Many points with few samples, the better ones with more.

    Jamieson and Talwalkar, Non-stochastic best arm identification and hyperparameter
    optimization (AISTATS 2016): of ``n`` candidates the best ``1 / eta`` stay in each
    round, and get ``eta`` times the samples.

    Parameters
    ----------
    n : int
        Points drawn at first.
    eta : int
        How many times fewer candidates each round has.
    """

    n: int = 48
    eta: int = 3
    name: str = "halving"

    def rounds(self, problem: Problem) -> Rounds:
        """Yield ever fewer candidates."""
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
