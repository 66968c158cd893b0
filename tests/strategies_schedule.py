"""Random legal schedules for property tests, and what any bound nest must do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from hypothesis import strategies as st

from skforge.compiler.loop_nest import BoundLoop, BoundNest, size_value
from skforge.compiler.schedule import Schedule
from skforge.exceptions import ScheduleError

SHAPING = ("tile", "split", "reorder")
CPU_DIRECTIVES = (
    *SHAPING,
    "unroll",
    "specialize",
    "cache",
    "parallel",
    "interleave",
    "unroll_walk",
    "peel_walk",
    "atomic_reduce",
    "vector_reduce",
    "tile_nodes",
    "pad_trees",
    "reorder_trees",
    "represent",
    "vectorize",
)
TREES = (1, 7, 100)


@st.composite
def legal_schedules(
    draw: st.DrawFn,
    max_directives: int = 8,
    allow: tuple[str, ...] = CPU_DIRECTIVES,
    n_trees: tuple[int, ...] = TREES,
) -> Schedule:
    """Draw a schedule that binds on a CPU to each of the numbers of trees.

    ``allow`` names the directives to draw from; a draw that is not legal where it
    would stand is left out.
    """
    schedule = Schedule()
    fresh = (f"i{n}" for n in count())
    for _ in range(draw(st.integers(0, max_directives))):
        op = draw(st.sampled_from(allow))
        loops = sorted(
            {loop.name for loop in all_loops(schedule.loop_nest(max(n_trees)))}
        )
        index = st.sampled_from(loops)
        try:
            candidate = _add(draw, schedule, op, index, fresh, max(n_trees))
            for n in n_trees:
                candidate.loop_nest(n)
        except ScheduleError:
            continue
        schedule = candidate
    return schedule


def _add(
    draw: st.DrawFn,
    schedule: Schedule,
    op: str,
    index: st.SearchStrategy[str],
    fresh: Iterator[str],
    most_trees: int,
) -> Schedule:
    if op == "tile":
        size = draw(st.sampled_from([1, 2, 3, 4, 7, 8, 16, 64, -1, -2, -3, -5]))
        return schedule.tile(draw(index), next(fresh), next(fresh), size)
    if op == "split":
        at = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 16, 50, 64, 200]))
        return schedule.split(draw(index), next(fresh), next(fresh), at)
    if op == "reorder":
        chain = draw(st.sampled_from(chains(schedule.loop_nest(most_trees))))
        start = draw(st.integers(0, max(0, len(chain) - 2)))
        stop = draw(st.integers(min(start + 2, len(chain)), len(chain)))
        return schedule.reorder(*draw(st.permutations(chain[start:stop])))
    if op == "interleave":
        factor = draw(st.sampled_from([None, 1, 2, 3, 4, 8]))
        return schedule.interleave(draw(index), factor)
    if op in ("unroll_walk", "peel_walk"):
        return getattr(schedule, op)(draw(index), draw(st.integers(1, 6)))
    if op == "vector_reduce":
        return schedule.vector_reduce(draw(index), draw(st.sampled_from([2, 4, 8])))
    if op == "tile_nodes":
        kind = draw(st.sampled_from(["uniform", "probability"]))
        return schedule.tile_nodes(draw(st.integers(1, 8)), kind)
    if op == "represent":
        names = ["array", "sparse", "reorg"]
        return schedule.represent(draw(st.sampled_from(names)))
    if op in ("pad_trees", "reorder_trees"):
        return getattr(schedule, op)()
    return getattr(schedule, op)(draw(index))


def all_loops(nest: BoundNest | BoundLoop) -> Iterator[BoundLoop]:
    """Yield every loop of a nest, outer ones first."""
    for loop in nest.loops if isinstance(nest, BoundNest) else nest.body:
        yield loop
        yield from all_loops(loop)


def chains(nest: BoundNest | BoundLoop) -> list[list[str]]:
    """Return the names along every path from the outside to a statement."""
    loops = nest.loops if isinstance(nest, BoundNest) else nest.body
    return [[loop.name, *rest] for loop in loops for rest in (chains(loop) or [[]])]


def iterate(nest: BoundNest, n_rows: int) -> Iterator[tuple[int, int]]:
    """Yield (row, tree) for every walk, in the order of the loops run serially."""
    yield from _iterate(nest.loops, n_rows, {}, {"batch": 0, "tree": 0})


def _iterate(
    loops: tuple[BoundLoop, ...],
    n_rows: int,
    values: dict[str, int],
    sums: dict[str, int],
) -> Iterator[tuple[int, int]]:
    for loop in loops:
        trips = 0
        for value in values_of(loop, n_rows, values):
            trips += 1
            new = {**sums, loop.root: sums[loop.root] + value}
            if loop.body:
                inside = {**values, loop.name: value}
                yield from _iterate(loop.body, n_rows, inside, new)
            else:
                yield new["batch"], new["tree"]
        assert loop.trip_count in (None, trips)
        assert loop.max_trips is None or trips <= loop.max_trips


def values_of(loop: BoundLoop, n_rows: int, values: dict[str, int]) -> range:
    """Return the values a loop takes inside loops at ``values``."""
    limits = [
        size_value(bound.limit, n_rows) - sum(values[name] for name in bound.minus)
        for bound in loop.bounds
    ]
    start, step = size_value(loop.start, n_rows), size_value(loop.step, n_rows)
    return range(start, min(limits), step)
