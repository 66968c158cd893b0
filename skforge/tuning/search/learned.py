"""``tuning="learned"``: search guided by a cost model.

Follows *Learning to Schedule Halide Pipelines for the GPU* (Anderson et al.) with its
three modes: take the model's best schedule, measure its five best, or alternate rounds
of measuring and retraining. The model scores the whole space, or many points drawn from
it, because the paper's beam search gained nothing here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat
from operator import itemgetter
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.cost.counts import ForestCounts, shape_on
from skforge.compiler.cost.gpu import Array, GpuWork
from skforge.compiler.cost.schedule_facts import LAYOUTS, PLACE, facts_of
from skforge.compiler.cost.shape import Setting
from skforge.compiler.defaults.cpu import TABLE_LIMIT
from skforge.compiler.schedule.schedule import Schedule
from skforge.exceptions import InvalidInputError, ScheduleError, TuningError
from skforge.tuning.cost.cost_model import CostModel, Retrained
from skforge.tuning.search.strategies import MOST_DRAWN, Problem, Round, Rounds
from skforge.tuning.search.trial import Candidate, Trial
from skforge.tuning.space.space import Point, ScheduleSpace

#: Maximum rows of a padded block: this many, or a multiple of the batch's rows.
SMALL_BLOCK, PADDED = 128, 4

#: Maximum node visits that are unrolled, summed over interleaved traversals.
UNROLLED_HOPS = 512

#: Maximum interleaved traversals per vector register.
WALKS_A_REGISTER = 2

#: Maximum bytes of a forest, including padding; bytes of a node besides its threshold.
FOREST_BYTES, NODE_EXTRA = 512 << 20, 8

#: Minimum traversals (rows times trees) of a batch that justify a second thread.
SHARED_WALKS = 20_000

#: Least rows of a GPU's block to demand smaller blocks, and least share of a warp's
#: lanes that walk. For four forests on three GPUs (72 tables of modelled times of Table
#: 5), these rules drop 28 % and 9 % of the points, and none that is the best.
FEWEST_ROWS, BUSY_LANES = 8, 0.5

#: Reasons to exclude a schedule, in the order in which the rules are checked.
REASONS = (
    "",
    "most rows of its blocks would be padding",
    "threads would have nothing to do",
    "its unrolled walks are too long",
    "more walks are in flight than fit in registers",
    "its trees or tables take too much memory",
    "the target does not allow so many threads in a block, or so much shared memory",
    "this forest does not allow such walks",
    "most multiprocessors would have no block, even with half the rows in a block",
    "most lanes of its warps would have nothing to do",
)
_MEMORY, _LIMIT, _REFUSED, _IDLE, _LANES = range(5, 10)


def reasons(setting: Setting, schedules: Sequence[Schedule]) -> NDArray[np.int64]:
    """Return the index in ``REASONS`` for each schedule; 0 means it is kept."""
    if setting.target.is_gpu:
        return _gpu_reasons(setting, schedules)
    facts = facts_of(schedules)
    of = {name: facts[:, at] for name, at in PLACE.items()}
    forest, n = setting.forest, max(1, setting.n_rows)
    assert isinstance(forest, ForestCounts)
    layout = {name: of["layout"] == i for i, name in enumerate(LAYOUTS)}
    names = "bitsliced", "lanes", "tiles", "pieces"
    bits, lanes, tiles, pieces = (layout[name] for name in names)
    by_row = tiles & (of["vector_trees"] > 0)
    walks = ~(bits | lanes | tiles | pieces)
    block = np.ceil(n / np.maximum(of["row_blocks"], 1))
    block = np.where(of["row_block"] > 0, of["row_block"], block)

    padded = of["cache_predicates"] > 0
    waste = padded & (block > max(SMALL_BLOCK, PADDED * n))
    alone = (of["parallel_rows"] == 0) & (of["parallel_trees"] == 0) & (block < n)
    many = n * forest.n_trees >= SHARED_WALKS
    idle = alone & (setting.n_threads > 1) & many
    rows = _of_loop(of["rows_in_flight"], np.minimum(block, n))
    in_flight = np.maximum(rows, _of_loop(of["trees_in_flight"], forest.n_trees))
    unrolled = np.minimum(of["unroll_walk"], forest.max_depth)
    unrolled = np.where(of["pad_trees"] > 0, forest.max_depth, unrolled)
    unchecked = np.maximum(unrolled, np.minimum(of["peel_walk"], forest.min_depth))
    scalar = walks & (of["vector_rows"] == 0)
    length = scalar & (in_flight * unchecked > UNROLLED_HOPS)
    registers = max(16, setting.target.vector_registers) * WALKS_A_REGISTER
    flight = scalar & (in_flight > registers)
    complete = forest.n_trees * 2.0 ** min(forest.max_depth, 40)
    nodes = np.where(
        layout["array"] | layout["reorg"], complete, float(forest.inner_nodes)
    )
    padding = 2.0 ** np.minimum(unrolled, 30) / max(1.0, forest.leaves_per_tree)
    size = nodes * np.maximum(1.0, padding) * (forest.value_bytes + NODE_EXTRA)
    table = block * forest.n_predicates / 8
    memory = (walks & (size > FOREST_BYTES)) | (padded & (table > TABLE_LIMIT))
    values = tiles & ~by_row & (of["codes"] == 0)
    refused = (
        (bits & (not forest.allows_bits))
        | (lanes & (not forest.allows_lanes))
        | (by_row & (not forest.allows_tile_rows))
        | (values & (not forest.allows_value_tiles))
        | (tiles & ~by_row & ~values & (not forest.allows_tiles))
    )
    rules = [waste, idle, length, flight, memory]
    return np.select([*rules, refused], [*range(1, len(rules) + 1), _REFUSED], 0)


def _of_loop(in_flight: Array, extent: Array | float) -> Array:
    """Return the walks in flight; all of a loop for -1."""
    return np.where(in_flight < 0, extent, np.minimum(in_flight, extent))


def _gpu_reasons(setting: Setting, schedules: Sequence[Schedule]) -> NDArray[np.int64]:
    work = GpuWork(setting, facts_of(schedules))
    idle = (2 * work.blocks <= work.processors) & (work.rows > FEWEST_ROWS)
    walking = work.lanes * work.busy * np.minimum(1.0, work.n / work.rows)
    refused = work.bits & (not setting.forest.allows_bits)
    memory = work.node_bytes > FOREST_BYTES
    rules = [memory, ~work.fits, refused, idle, walking < BUSY_LANES]
    return np.select(rules, [_MEMORY, _LIMIT, _REFUSED, _IDLE, _LANES], 0)


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

#: Why nothing is chosen unmeasured on a GPU without a model.
UNKNOWN = (
    "the cost model was not trained for {arch}, so Learned('one-shot') would guess. "
    "Use Learned('top-5') or tuning='heuristic', which measure, or train a model with "
    "benchmarks/gpu/train.py and pass it as Learned('one-shot', model=...)."
)

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
        best. "autotune" measures rounds of a few schedules, and retrains the model
        after each, until time is up.
    iterations : int, default=20
        Maximum number of rounds of "autotune".
    outright : int, default=10000
        Largest space that is scored completely; of larger spaces, 4,096 points are
        drawn and scored.
    model : CostModel, optional
        The cost model. None uses the estimate of static defaults for a CPU, and the
        shipped model for a GPU. For a GPU that it was not trained for, "one-shot"
        raises an error, and the other modes begin with an estimate.
    """

    mode: Mode = "autotune"
    iterations: int = 20
    outright: int = 10_000
    model: CostModel | None = field(default=None, compare=False, repr=False)
    name: str = "learned"

    def __post_init__(self) -> None:
        """Check the mode and the counts."""
        if self.mode not in get_args(Mode):
            known = ", ".join(map(repr, get_args(Mode)))
            raise InvalidInputError(f"mode must be one of {known}; got {self.mode!r}.")
        if not isinstance(self.iterations, int) or self.iterations < 1:
            raise InvalidInputError("iterations must be a positive whole number.")

    @property
    def measures(self) -> bool:
        """Whether proposals are measured before one is chosen."""
        return self.mode != "one-shot"

    def rounds(self, problem: Problem) -> Rounds:
        """Yield the model's proposals and train the model with their trials."""
        proposer = _Proposer(self, problem)
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
                    proposer.learn((yield Round(candidates)))


def proposals(problem: Problem, n: int, strategy: Learned) -> list[Candidate]:
    """Return the ``n`` best candidates by the cost model, without measuring."""
    return _Proposer(strategy, problem).best(n)


class _Proposer:
    """Ranks the candidates of one batch size and learns from their trials."""

    def __init__(self, strategy: Learned, problem: Problem) -> None:
        model = strategy.model or CostModel.shipped(problem.target)
        if model is None and not strategy.measures and problem.target.is_gpu:
            raise TuningError(UNKNOWN.format(arch=problem.target.cpu))
        self._strategy, self._problem = strategy, problem
        self._margin = MARGIN if model is None else model.facts.get("margin", MARGIN)
        shape = problem.shared(
            "learned: shape", lambda: shape_on(problem.shape, problem.target)
        )
        self._setting = Setting(
            shape, problem.target, problem.n_rows, problem.n_threads
        )
        self._predictor = Retrained(model, self._setting)
        self._tried: set[Schedule] = {problem.default}
        self._measured: dict[Schedule, float] = {}
        self._random = problem.random

    # ---------------------------------------------------------------- proposing

    def better(self, n: int) -> list[Candidate]:
        """Return those of the ``n`` best that should beat the default by the margin."""
        (default,) = self._predictor.log_row([self._problem.default])
        limit = np.exp(default) / self._margin
        return [c for c, cost in islice(self._ranked(), n) if cost < limit]

    def best(self, n: int, drawn: int = 0) -> list[Candidate]:
        """Return ``n`` untried candidates: the best, and ``drawn`` random others."""
        ranked = [candidate for candidate, _ in self._ranked()]
        chosen = _diverse(ranked, n - drawn)
        rest = [c for c in ranked if c not in chosen]
        for i in self._random.permutation(len(rest))[: n - len(chosen)]:
            chosen.append(rest[int(i)])
        self._tried.update(c.schedule for c in chosen if c.schedule is not None)
        return chosen

    def learn(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            if trial.schedule is not None and trial.samples:
                self._measured[trial.schedule] = trial.seconds
                # The default was timed in the same rounds: derive its time.
                seconds = trial.seconds / trial.relative
                self._measured.setdefault(self._problem.default, seconds)
        self._predictor.learn(list(self._measured), list(self._measured.values()))

    def _ranked(self) -> Iterator[tuple[Candidate, float]]:
        """Yield untried candidates with their costs, best first."""
        # Building schedules is the slowest step, so all ranges share them.
        written = self._problem.shared("learned: written", self._written)
        known = [s for s in self._problem.known if s not in self._tried]
        choices = [*zip(repeat({}), known), *written]
        costs = self._costs([schedule for _, schedule in choices])
        if self._is_drawn:
            self._vary(choices, costs)
        seen = set(self._tried)
        for i in np.argsort(costs, kind="stable").tolist():
            (point, schedule), cost = choices[i], costs[i]
            if not np.isfinite(cost):
                return
            if schedule not in seen:
                seen.add(schedule)
                yield Candidate(schedule, point, self._strategy.name), cost

    def _vary(self, choices: list[tuple[Point, Schedule]], costs: list[float]) -> None:
        """Add points that differ from the best ones in one parameter, and their costs.

        What is drawn has every structure, but few sizes of each.
        """
        seen = {tuple(point.values()) for point, _ in choices}
        for _ in range(PASSES):
            best = np.argsort(costs, kind="stable")[:VARIED].tolist()
            points = [
                p for i in best for p in beside(choices[i][0], self._problem.space)
            ]
            fresh = {tuple(p.values()): p for p in points}
            more = self._written([p for key, p in fresh.items() if key not in seen])
            seen |= fresh.keys()
            choices += more
            costs += self._costs([schedule for _, schedule in more])

    @property
    def _is_drawn(self) -> bool:
        size = self._problem.space.size
        return size is None or size > self._strategy.outright

    def _written(
        self, points: Iterable[Point] | None = None
    ) -> list[tuple[Point, Schedule]]:
        """Return the points that have a schedule, with the schedules.

        None is the whole space, or what is drawn of it.
        """
        space = self._problem.space
        if points is None:
            points = _drawn(space, self._random) if self._is_drawn else space
        written = []
        for point in points:
            try:
                written.append((point, space.schedule(point, self._problem.shape)))
            except ScheduleError:
                continue
        return written

    def _costs(self, schedules: Sequence[Schedule]) -> list[float]:
        """Return predicted nanoseconds per row; infinity for pruned schedules."""
        if not schedules:
            return []
        costs = np.exp(self._predictor.log_row(schedules))
        dropped = reasons(self._setting, schedules) > 0
        return [float(c) for c in np.where(dropped, np.inf, costs)]


def _drawn(space: ScheduleSpace, random: np.random.Generator) -> Iterator[Point]:
    """Yield equally many points of each kind of traversal: good kinds have few.

    Of a kind, each structure has one point before any has two: sizes matter less.
    """
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
    """Yield the points of a space that differ in one parameter."""
    if point in space:
        for name, values in space.parameters.items():
            for value in values:
                other = {**point, name: value}
                if value != point[name] and other in space:
                    yield other


def _diverse(candidates: Sequence[Candidate], n: int) -> list[Candidate]:
    """Return the first ``n`` candidates, at most half of them of one kind.

    A model that is wrong about a kind of traversal is wrong about all its schedules.
    """
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
