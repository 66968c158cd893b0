"""Spaces: their sizes, samples and schedules; what the heuristic takes from them."""

from __future__ import annotations

import pickle
from collections import Counter
from contextlib import suppress
from dataclasses import fields, replace
from math import inf

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor

from skforge import load_forest
from skforge.compiler import driver
from skforge.compiler.backend import backend_of
from skforge.compiler.cost.schedule_facts import facts_of
from skforge.compiler.cost.shape import ForestShape, Setting
from skforge.compiler.defaults.cpu import default_schedules
from skforge.compiler.target import Target
from skforge.exceptions import InvalidInputError, ScheduleError
from skforge.gpu.cost import GpuWork
from skforge.gpu.search import gpu_points
from skforge.gpu.space import gpu_point
from skforge.schedule.bind import bind
from skforge.schedule.schedule import Schedule
from skforge.tuning import ScheduleSpace
from skforge.tuning.search.heuristic import Heuristic, kinds, neighbours
from skforge.tuning.search.strategies import Problem
from skforge.tuning.search.trial import Trial
from skforge.tuning.space.cpu import cpu_point
from tests.exactness.forests import drawn
from tests.tuning_tools import Stated

FOREST = drawn(100, 6)
SHAPE = ForestShape.of(FOREST)


def problem(n_rows, target, n_threads=1, forest=FOREST):
    default = Schedule()
    if not target.is_gpu:
        table = default_schedules(forest, target)
        default = [s for (first, _), s in sorted(table.items()) if first <= n_rows][-1]
    return Problem(
        forest,
        ForestShape.of(forest),
        target,
        "exact",
        (n_rows, n_rows),
        n_rows,
        n_threads,
        ScheduleSpace.gpu()
        if target.is_gpu
        else ScheduleSpace.cpu(threads=n_threads > 1),
        np.random.default_rng(0),
        default,
    )


# ------------------------------------------------------------------ sizes


def test_table_5_has_5184_points():
    space = ScheduleSpace.gpu()
    assert len(space) == space.n_combinations == 5184
    assert list(space.parameters) == [
        "rows_per_block", "rows_per_thread", "tree_threads", "cache_rows",
        "cache_trees", "unroll_walks", "interleave", "shared_reduce", "representation",
    ]  # fmt: skip


def test_only_blocks_of_too_many_threads_are_illegal_on_gpus():
    refused = Counter()
    for point in ScheduleSpace.gpu().sample(400, 0):
        rows = point["rows_per_block"] // point["rows_per_thread"]
        tree_threads = point["tree_threads"]
        if point["cache_trees"]:  # 100 trees go round, so many to each
            tree_threads = min(tree_threads, -(-100 // point["interleave"]))
        threads = rows * tree_threads
        try:
            nest = bind(ScheduleSpace.gpu().schedule(point, SHAPE), 100)
        except ScheduleError as error:
            refused[str(error).splitlines()[0].partition(" make ")[2]] += 1
            assert threads > 1024
            continue
        assert threads <= 1024
        dims = {loop.dimension for loop in _loops(nest.loops)} - {None}
        assert dims == {"grid.x", "block.x", "block.y"}
    assert all("threads, more than 1024" in text for text in refused)


def test_the_full_gpu_space_has_all_of_table_5():
    table, full = ScheduleSpace.gpu(), ScheduleSpace.gpu_full()
    assert full.size == len(full) == 74754
    for point in table.sample(150, 0):
        in_flight = point["interleave"]
        twin = gpu_point(
            "parts",
            rows_per_block=point["rows_per_block"],
            rows_per_thread=point["rows_per_thread"],
            tree_threads=point["tree_threads"],
            rows_in="shared" if point["cache_rows"] else "memory",
            cached_trees=in_flight if point["cache_trees"] else 0,
            representation=point["representation"],
            hops="unroll" if point["unroll_walks"] else "checked",
            interleave=in_flight,
            sums="shared" if point["shared_reduce"] else "memory",
        )
        assert twin in full
        own, theirs = full.schedule(twin, SHAPE), table.schedule(point, SHAPE)
        assert set(own.directives) == set(theirs.directives)
        try:
            nest = bind(theirs, 100)
        except ScheduleError:
            continue  # too many threads
        assert bind(own, 100) == nest


def _loops(loops):
    for loop in loops:
        yield loop
        yield from _loops(loop.body)


def test_every_point_of_the_cpu_space_is_a_schedule_of_its_own():
    space = ScheduleSpace.cpu(threads=False)
    schedules = [space.schedule(point, SHAPE) for point in space]
    assert len(schedules) == len(space)
    # "peel" and "checked" are one where a tree is a leaf; here no depth is 0
    assert len(set(schedules)) == len(schedules)
    for schedule in schedules[::97]:
        bind(schedule, 100)


def test_the_cpu_space_has_the_default_schedules():
    for level in ("v3", "v4"):
        target = Target.x86_64(level)
        space = ScheduleSpace.cpu(threads=False)
        schedules = {space.schedule(point, SHAPE) for point in space}
        missing = set(default_schedules(FOREST, target).values()) - schedules
        assert missing == set()


def test_the_paper_space_is_its_three_strategies():
    space = ScheduleSpace.cpu_paper()
    # rows: 4 sizes of blocks; trees: 2 numbers of tiles; both: 4 x 2; times 5 factors,
    # less 16 in flight of 8 rows
    assert len(space) == (4 * 5 - 1) + 2 * 5 + (4 * 5 - 1) * 2
    small = {"parallel": "both", "rows_per_block": 8, "tree_tiles": 8, "interleave": 8}
    assert space.schedule(small, SHAPE) == Schedule.preset(
        "parallel-both", rows=8, tiles=8
    ).interleave("b1", 8)
    rows = space.schedule(
        {"parallel": "rows", "interleave": 8, "rows_per_block": 64, "tree_tiles": 8},
        SHAPE,
    )
    assert rows == Schedule.preset("parallel-rows", rows=64, interleave=8)
    for point in space:
        driver.build_hir(FOREST, space.schedule(point, SHAPE), "exact")


# --------------------------------------------------------------- changing


def test_users_add_parameters_and_constraints():
    space = ScheduleSpace.cpu_paper()
    more = space.with_parameter(
        "shuffle", [False, True], lambda s, on: s.reorder_trees() if on else s
    )
    assert len(more) == 2 * len(space)
    point = {**next(iter(space)), "shuffle": True}
    assert "reorder_trees" in repr(more.schedule(point, SHAPE))
    fewer = more.where(lambda shuffle, parallel: not shuffle or parallel == "rows")
    assert len(fewer) == 67 + 19
    assert {p["parallel"] for p in fewer if p["shuffle"]} == {"rows"}
    assert point in fewer and {**point, "parallel": "trees"} not in fewer


def test_samples_are_different_points_and_repeat_with_a_seed():
    space = ScheduleSpace.cpu()
    some = space.sample(50, 1)
    assert some == space.sample(50, 1) != space.sample(50, 2)
    assert len({repr(point) for point in some}) == 50
    assert all(point in space for point in some)
    assert len(ScheduleSpace.cpu_paper().sample(99, 0)) == 67


def test_large_spaces_are_sampled_without_a_list():
    large = ScheduleSpace(
        {f"p{i}": range(20) for i in range(8)}, lambda point, shape: Schedule()
    ).where(lambda p0, p1: p0 == p1)
    points = large.sample(5, 0)
    assert len(points) == 5 and all(p["p0"] == p["p1"] for p in points)


def test_spaces_are_pickled():
    for space in (ScheduleSpace.gpu(), ScheduleSpace.cpu()):
        again = pickle.loads(pickle.dumps(space))
        assert again.parameters == space.parameters
        assert again.sample(3, 0) == space.sample(3, 0)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda s: s.with_values(size=[1]), "has no parameter 'size'; its parameters"),
        (lambda s: s.with_values(parallel=[]), "'parallel' of the space has no values"),
        (lambda s: s.with_values(parallel=["a", "a"]), "has the same value twice"),
        (lambda s: s.where(lambda size: True), "has no parameter 'size'"),
        (
            lambda s: s.with_parameter("parallel", [1], None),
            "already has a parameter 'parallel'",
        ),
        (lambda s: s.schedule({"parallel": "rows"}, SHAPE), "lacks a value for 'inter"),
        (lambda s: ScheduleSpace.of([1]), "Schedules or names of presets. Got int"),
    ],
)
def test_misuse_is_named(make, text):
    with pytest.raises(InvalidInputError, match=text):
        make(ScheduleSpace.cpu_paper())


# -------------------------------------------------------------- heuristic


@pytest.mark.parametrize(
    ("n_rows", "n_features", "rows", "threads"),
    [
        (512, 28, {8, 32}, {20, 50}),
        (2048, 128, {8, 32}, {20, 50}),
        (2049, 128, {32, 64}, {2, 10}),
        (16384, 129, {8, 32}, {20, 50}),
    ],
)
def test_algorithm_1_chooses_blocks(n_rows, n_features, rows, threads):
    points = list(gpu_points(n_rows, n_features))
    assert len(points) == 108
    assert all(point in ScheduleSpace.gpu() for point in points)
    assert {p["rows_per_block"] for p in points} == rows
    assert {p["tree_threads"] for p in points} == threads
    assert all(p["cache_rows"] and not p["cache_trees"] for p in points)
    assert all(p["unroll_walks"] == (p["interleave"] != 1) for p in points)


def tried(given, seconds):
    """Return the points that the heuristic tries, by rounds."""
    rounds, answers, found = Heuristic().rounds(given), None, []
    with suppress(StopIteration):
        while True:
            asked = rounds.send(answers).candidates
            found.append([c.params for c in asked])
            answers = [
                Trial((1, None), 4096, c, "measured", "", (1.0,), seconds(c.params))
                for c in asked
            ]
    return found


def estimates(points, n_rows, target=None):
    """Return the estimated times of points of Table 5; inf for what does not fit."""
    target, made = target or Target.cuda(), problem(1, Target.cuda()).forest
    setting = Setting(backend_of(target).shape(made, target), target, n_rows)
    space = ScheduleSpace.gpu()
    work = GpuWork(setting, facts_of(space.schedule(p, made) for p in points))
    return np.where(work.fits, work.estimate * n_rows, inf).tolist()


def test_a_gpu_search_begins_with_algorithm_1_and_what_the_estimate_likes():
    first, *later = tried(problem(4096, Target.cuda()), lambda point: 1.0)
    paper = list(gpu_points(4096, problem(1, Target.cuda()).forest.n_features))
    times = estimates(first, 4096)
    assert times == sorted(times)  # what the budget cuts is the tail
    assert sum(point in paper for point in first) >= 24
    assert times[0] == min(estimates(ScheduleSpace.gpu(), 4096))
    every = [tuple(point.values()) for part in (first, *later) for point in part]
    assert len(every) == len({*every}) == 111


def test_a_gpu_search_goes_where_it_measures_less():
    """The estimate knows nothing of this: two rows a thread, and reorg."""

    def seconds(point):
        far = (point["rows_per_thread"] != 2) + (point["representation"] != "reorg")
        return 1.0 + far + (point["interleave"] != 1) + point["shared_reduce"]

    found = tried(problem(4096, Target.cuda()), seconds)
    best = min((point for part in found for point in part), key=seconds)
    assert seconds(best) == 1.0
    assert all(seconds(point) > 1.0 for point in found[0])


def test_the_estimate_of_gpus_leaves_out_what_does_not_fit():
    made = problem(1, Target.cuda()).forest
    target = replace(Target.cuda("sm_90"), shared_bytes=4096)
    space, refused = ScheduleSpace.gpu(), 0
    uncached = space.with_values(cache_trees=[False], representation=["sparse"])
    points = uncached.sample(40, 0)
    for point, time in zip(points, estimates(points, 512, target), strict=True):
        try:
            schedule = space.schedule(point, made)
            hir = driver.build_hir(made, schedule, "exact", kind="gpu")
            driver.lower(hir, target)
            fits = True
        except ScheduleError:
            fits = False
            refused += 1
        assert (time < inf) == fits, point
    assert 5 < refused < 35


def test_more_processors_and_fewer_rows_take_no_longer():
    points = ScheduleSpace.gpu().sample(40, 1)
    few, many = (replace(Target.cuda(), n_cores=n) for n in (40, 400))
    whole = np.array(estimates(points, 9000, few))
    assert (estimates(points, 9000, many) <= whole).all()
    assert (estimates(points, 64, few) <= whole).all()


# -------------------------------------------------------------- structure


def structure_of(schedule):
    """Return directives with all numbers that are no 0 alike."""
    return [
        (
            type(one).__name__,
            *(
                (v > 0) - (v < 0) if type(v) is int else v
                for v in (getattr(one, field.name) for field in fields(one))
            ),
        )
        for one in schedule.directives
    ]


SPACES = ("cpu", "cpu_paper", "gpu", "gpu_full")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SPACES)
def test_points_of_one_structural_hash_have_one_structure(name):
    space, seen, shared = getattr(ScheduleSpace, name)(), {}, 0
    for point in space.sample(2000, 0):
        try:
            found = structure_of(space.schedule(point, SHAPE))
        except ScheduleError:
            continue
        hashed = space.structure(point)
        shared += hashed in seen
        assert seen.setdefault(hashed, found) == found, point
    assert shared > len(seen) / 2


@pytest.mark.parametrize("name", SPACES)
def test_every_parameter_is_a_size_or_decides_structure(name):
    space = getattr(ScheduleSpace, name)()
    points, decides = space.sample(2000, 0), set()
    for point in points:
        for key in space.parameters:
            if key in space.sizes or key in decides:
                continue
            for value in space.parameters[key]:
                other = {**point, key: value}
                if value == point[key] or other not in space:
                    continue
                with suppress(ScheduleError):
                    one, two = (
                        structure_of(space.schedule(p, SHAPE)) for p in (point, other)
                    )
                    if one != two:
                        decides.add(key)
    # What divides the work allows other values of most parameters, never the same.
    kinds_of_work = {"deal", "walk"}
    assert decides | {*space.sizes} | kinds_of_work >= {*space.parameters}
    assert not decides & {*space.sizes}


def test_sizes_of_the_gpu_space():
    assert ScheduleSpace.gpu_full().sizes == (
        *("rows_per_block", "rows_per_thread", "tree_threads", "tree_blocks"),
        *("cached_trees", "node_tile", "interleave"),
    )


@pytest.mark.parametrize("n_rows", [1, 6, 64, 512, 4096])
def test_cpu_candidates_are_points_of_the_space(n_rows):
    given = problem(n_rows, Target.x86_64("v4"))
    space = ScheduleSpace.cpu()
    for point in kinds(given):
        assert point in space
        near = [p for p in neighbours(point, given) if p in space]
        assert near or point["walk"] == "lanes"
        assert all(sum(p[k] != point[k] for k in p) == 1 for p in near)


def test_pieces_are_tried_where_they_may_win():
    model = ExtraTreesRegressor(3, random_state=0)
    rows = np.random.default_rng(0).standard_normal((1000, 4))
    deep = load_forest(model.fit(rows, rows[:, 0]))

    def walks(level, forest):
        given = problem(4096, Target.x86_64(level), forest=forest)
        return [point["walk"] for point in kinds(given)]

    assert walks("v3", deep)[0] == "pieces"
    for level, forest in (("v4", deep), ("v2", deep), ("v3", FOREST)):
        assert "pieces" not in walks(level, forest)


def test_threads_share_trees_only_where_there_are_some():
    point = cpu_point("rows", block=64, in_flight=16)
    one = list(neighbours(point, problem(64, Target.x86_64("v4"))))
    two = list(neighbours(point, problem(64, Target.x86_64("v4"), n_threads=2)))
    assert {p["parallel"] for p in one} == {"rows"}
    assert {p["parallel"] for p in two} == {"rows", "trees", "both"}


def _tried(space, target, n_rows=512):
    """Return the points that the heuristic tries of a space, each a bit faster."""
    given = replace(problem(n_rows, target), space=space)
    heuristic = Heuristic(estimate=Stated())
    rounds, points, answers = heuristic.rounds(given), [], None
    with pytest.raises(StopIteration):
        while True:
            asked = rounds.send(answers)
            points += [dict(c.params) for c in asked.candidates]
            answers = [
                Trial((1, 1), 1, c, "measured", "", (1.0,), 1 - 1e-3 * len(points))
                for c in asked.candidates
            ]
    return points


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "space",
    [
        ScheduleSpace.cpu(threads=False).with_values(layout=["array"]),
        ScheduleSpace.cpu(threads=False).where(lambda walk: walk == "vector"),
        ScheduleSpace.cpu().with_parameter(
            "order", [True, False], lambda s, on: s.reorder_trees() if on else s
        ),
        ScheduleSpace.cpu_paper(),
        ScheduleSpace.of([Schedule().interleave("tree", n) for n in (2, 4, 5)]),
    ],
)
def test_the_heuristic_stays_in_a_space_of_ones_own(space):
    points = _tried(space, Target.x86_64("v4"))
    assert points and all(point in space for point in points)


def test_algorithm_1_stays_in_a_space_of_ones_own():
    sparse = ScheduleSpace.gpu().with_values(
        representation=["sparse"], shared_reduce=[False]
    )
    points = _tried(sparse, Target.cuda(), 4096)
    assert len(points) == 111 and all(point in sparse for point in points)
    none = sparse.where(lambda cache_trees: cache_trees)
    points = _tried(none, Target.cuda(), 4096)
    assert points and all(point in none for point in points)
