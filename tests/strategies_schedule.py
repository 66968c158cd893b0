"""Random legal schedules for property tests, and what any bound nest must do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import count

from hypothesis import strategies as st

from skforge.compiler.layouts.base import names as representations
from skforge.exceptions import ScheduleError
from skforge.schedule.apply import apply_all
from skforge.schedule.bound import BoundLoop, BoundNest
from skforge.schedule.directives import BY_NAME, COMPLETE_TILES, VECTOR_WIDTHS
from skforge.schedule.families import (
    WalkKind,
    bitsliced_schedule,
    lanes_schedule,
    mapped,
    rows_and_trees,
    rows_by_threads,
    rows_on_threads,
    stationary_trees,
    tiled_row_schedule,
    tiled_schedule,
    trees_by_blocks,
    trees_by_threads,
)
from skforge.schedule.nest import paths, size_value
from skforge.schedule.schedule import Schedule

SHAPING = ("tile", "split", "reorder")
CPU_DIRECTIVES = (
    *SHAPING, "unroll", "specialize", "cache", "parallel", "interleave", "unroll_walk",
    "peel_walk", "atomic_reduce", "vector_reduce", "tile_nodes", "pad_trees",
    "reorder_trees", "represent", "vectorize", "quantize",
)  # fmt: skip
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
    size = draw(st.integers(0, max_directives))
    return _extended(draw, Schedule(), size, allow, n_trees)


def _blocks(rows: int, *trees: str) -> Schedule:
    return Schedule().tile("batch", "b0", "b1", rows).reorder("b0", *trees, "b1")


def _nested(inside: str) -> Schedule:
    """Blocks in larger blocks, so that the number of the inner ones is known."""
    outer = Schedule().tile("batch", "a0", "a1", 64).tile("a1", "b0", "b1", 16)
    return outer.reorder(*inside.split())


_PARTS = Schedule().tile("batch", "b0", "b1", 64).tile("tree", "t0", "t1", 3)
_PARTS = _PARTS.reorder("b0", "t0", "t1", "b1")
_HALVES = Schedule().split("batch", "s0", "s1", 16).tile("s0", "p0", "p1", 16)
_HALVES = _HALVES.tile("s1", "q0", "q1", 16).reorder("p0", "tree", "p1")
_HALVES = _HALVES.reorder("q0", "tree", "q1")
#: Every way in which rows go through trees on a CPU.
STARTS = (
    *(Schedule(), _blocks(16, "tree"), _HALVES, _HALVES.quantize("p0").quantize("q0")),
    *(tiled_schedule(n, k, c) for n, k, c in [(16, 7, True), (64, 15, False)]),
    *(tiled_row_schedule(7, codes) for codes in (False, True)),
    *(lanes_schedule(), bitsliced_schedule(64)),
    _blocks(64, "tree").quantize("b0").tile_nodes(7, "complete").represent("tiles"),
    _blocks(64, "tree").quantize("b0").represent("bitsliced"),
    *(Schedule.preset(name) for name in ("treebeard-row", "small-batch")),
    *(Schedule.preset("treebeard-tree", rows=16), Schedule.preset("parallel-both")),
    *(_nested(loops).quantize("b0") for loops in ("a0 b0 tree b1", "a0 tree b0 b1")),
    _nested("a0 b0 tree b1").vectorize("b1").tile_nodes(7, "complete"),
    _PARTS.quantize("b0").vectorize("b1").tile_nodes(7, "complete").represent("tiles"),
    *(
        _PARTS.cache_predicates(loop).vectorize("b1").represent("bitsliced")
        for loop in ("b0", "t0")
    ),
)
_PARTED = Schedule().split("tree", "front", "back", 1)
#: The same for GPUs, in blocks that an interpreter can run.
GPU_STARTS = (
    *(
        rows_by_threads(8, walk, tile)
        for walk in (WalkKind(), WalkKind("codes"))
        for tile in (0, 3)
    ),
    rows_by_threads(8, WalkKind("memory", "array", 1, padded=2)),
    *(
        rows_and_trees(4, 3, WalkKind("codes", in_flight=2), sums)
        for sums in (True, False)
    ),
    *(trees_by_threads(2, 4, WalkKind(peeled=2)), trees_by_blocks(2, 2, 2, WalkKind())),
    *(stationary_trees(4, 8, 2), rows_on_threads(8, each=2, parts=2).schedule),
    mapped(_PARTED, batch="grid.x", front="grid.y", back="block.x"),
)


@st.composite
def changed_schedules(draw: st.DrawFn, n_trees: int, on_gpu: bool = False) -> Schedule:
    """Draw a schedule that works, without some of its directives and with others.

    It binds to a number of trees, and a forest may still refuse it. It has all
    directives, all their values, and all representations.
    """
    start = draw(st.sampled_from(GPU_STARTS if on_gpu else STARTS))
    dropped = draw(st.sets(st.integers(0, len(start.directives)), max_size=2))
    schedule = Schedule()
    for number, directive in enumerate(start.directives):
        if number not in dropped:
            with suppress(ScheduleError):
                schedule = Schedule((*schedule.directives, directive))
    kind = "gpu" if on_gpu else "cpu"
    allow = tuple(name for name in BY_NAME if name not in _FOREIGN[kind])
    try:
        schedule.loop_nest(n_trees)
    except ScheduleError:
        schedule = Schedule()
    if schedule.kind != kind:
        schedule = Schedule.preset("tahoe-direct", rows=8)
    size = draw(st.integers(0, 5))
    return _extended(draw, schedule, size, allow, (n_trees,), wide=True)


_FOREIGN = {
    "cpu": ("gpu_dimension", "shared_reduce"),
    "gpu": ("parallel", "vector_reduce"),
}


def _extended(
    draw: st.DrawFn,
    schedule: Schedule,
    size: int,
    allow: tuple[str, ...],
    n_trees: tuple[int, ...],
    wide: bool = False,
) -> Schedule:
    """Add up to ``size`` directives, often to the loop of the one before.

    ``wide`` draws from all values of their arguments.
    """
    fresh = (f"i{n}" for n in count())
    for _ in range(size):
        op = draw(st.sampled_from(allow))
        loops = sorted(
            {loop.name for loop in all_loops(schedule.loop_nest(max(n_trees)))}
        )
        last = (
            getattr(schedule.directives[-1], "index", "") if schedule.directives else ""
        )
        again = [last] * len(loops) if last in loops else []
        index = st.sampled_from([*loops, *again])
        try:
            candidate = _add(draw, schedule, op, index, fresh, max(n_trees), wide)
            for n in n_trees:
                candidate.loop_nest(n)
        except ScheduleError:
            continue
        schedule = candidate
    return schedule


GPU_DIRECTIVES = (
    *("unroll", "specialize", "cache", "interleave", "unroll_walk", "peel_walk"),
    *("atomic_reduce", "shared_reduce", "tile_nodes", "pad_trees", "reorder_trees"),
    *("represent", "quantize"),
)
DIMENSIONS = ("grid.x", "grid.y", "grid.z", "block.x", "block.y", "block.z")


@st.composite
def legal_gpu_schedules(
    draw: st.DrawFn, max_directives: int = 5, n_trees: int = 7
) -> Schedule:
    """Draw a schedule that binds on a GPU to a number of trees.

    Loops are shaped first, then some are mapped to dimensions, then the rest follows.
    """
    shaped = legal_schedules(max_directives=5, allow=SHAPING, n_trees=(n_trees,))
    schedule = draw(st.one_of(shaped, _two_level_nests(n_trees)))
    loops = sorted({loop.name for loop in all_loops(schedule.loop_nest(n_trees))})
    for dimension in draw(st.permutations(DIMENSIONS)):
        index = draw(st.sampled_from([None, *loops]))
        if index is not None:
            with suppress(ScheduleError):
                schedule = schedule.gpu_dimension(index, dimension)
    try:
        schedule.loop_nest(n_trees)
        mapped = schedule.kind == "gpu"
    except ScheduleError:
        mapped = False
    if not mapped:
        sizes = [draw(st.sampled_from([1, 2, 4, 8, 32])) for _ in range(2)]
        schedule = draw(st.sampled_from(_skeletons(*sizes)))
    size = draw(st.integers(0, max_directives))
    return _extended(draw, schedule, size, GPU_DIRECTIVES, (n_trees,))


@st.composite
def _two_level_nests(draw: st.DrawFn, n_trees: int) -> Schedule:
    """Draw tiles of rows and of one or two ranges of trees, in any order."""
    size = st.sampled_from([2, 3, 4])
    schedule = Schedule().tile("batch", "b0", "b1", draw(size))
    names, trees = ["b0", "b1"], ["tree"]
    with suppress(ScheduleError):
        cuts = [cut for cut in (2, 3, 5) if cut < n_trees]
        if cuts and draw(st.booleans()):
            cut = draw(st.sampled_from(cuts))
            schedule = schedule.split("tree", "front", "back", cut)
            trees = ["front", "back"]
        for name in trees:
            if draw(st.booleans()):
                inner, outer = f"{name}1", f"{name}0"
                schedule = schedule.tile(name, outer, inner, draw(size))
                names += [outer, inner]
            else:
                names.append(name)
        if len(trees) == 1:
            schedule = schedule.reorder(*draw(st.permutations(names)))
        schedule.loop_nest(n_trees)
    return schedule


def _skeletons(rows: int, trees: int) -> list[Schedule]:
    """Return mapped nests to go on from where a random mapping does not bind."""
    tiled = Schedule().tile("batch", "b0", "b1", rows).tile("tree", "t0", "t1", trees)
    over_trees = tiled.reorder("b0", "t0", "b1", "t1")
    by_row = tiled.reorder("b0", "b1", "t1", "t0")
    return [
        mapped(tiled, b0="grid.x", b1="block.x"),
        mapped(over_trees, b0="grid.x", t0="grid.y", b1="block.x"),
        mapped(by_row, b0="grid.x", b1="block.y", t1="block.x"),
        mapped(over_trees, b0="grid.x", t1="block.x"),
    ]


def _add(
    draw: st.DrawFn,
    schedule: Schedule,
    op: str,
    index: st.SearchStrategy[str],
    fresh: Iterator[str],
    most_trees: int,
    wide: bool,
) -> Schedule:
    if op == "gpu_dimension":
        return schedule.gpu_dimension(draw(index), draw(st.sampled_from(DIMENSIONS)))
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
        more = [5, 16, 64] if wide else []
        factor = draw(st.sampled_from([None, 1, 2, 3, 4, 8, *more]))
        return schedule.interleave(draw(index), factor)
    if op in ("unroll_walk", "peel_walk"):
        depth = draw(st.sampled_from([*range(1, 7), *([9, 64] if wide else [])]))
        return getattr(schedule, op)(draw(index), depth)
    if op == "vector_reduce":
        widths = VECTOR_WIDTHS if wide else (2, 4, 8)
        return schedule.vector_reduce(draw(index), draw(st.sampled_from(widths)))
    if op == "tile_nodes":
        if wide and draw(st.booleans()):
            return schedule.tile_nodes(
                draw(st.sampled_from(COMPLETE_TILES)), "complete"
            )
        kind = draw(st.sampled_from(["uniform", "probability"]))
        return schedule.tile_nodes(draw(st.integers(1, 8)), kind)
    if op == "represent":
        names = representations() if wide else ("array", "sparse", "reorg")
        return schedule.represent(draw(st.sampled_from(names)))
    if op == "cache":
        layouts = [None, None, "row", "padded", "feature"]
        return schedule.cache(draw(index), draw(st.sampled_from(layouts)))
    if op in ("pad_trees", "reorder_trees"):
        return getattr(schedule, op)()
    if op == "quantize" and not wide:
        return _quantized(schedule, draw(index), most_trees)
    return getattr(schedule, op)(draw(index))


def _quantized(schedule: Schedule, index: str, most_trees: int) -> Schedule:
    """Quantise a loop and, of other parts of the batch, the outermost loop."""
    schedule = schedule.quantize(index)
    marked = {index}
    nest = apply_all(schedule.directives, most_trees)
    for path in paths(nest.loops):
        rows = [name for name in path if nest.variable(name).root == "batch"]
        if not marked.intersection(rows):
            schedule = schedule.quantize(rows[0])
            marked.add(rows[0])
    return schedule


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
