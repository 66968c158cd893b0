"""The schedule as a value, and each directive where it is legal and where it is not."""

from __future__ import annotations

import copy
import pickle
import traceback

import numpy as np
import pytest
from hypothesis import given
from sklearn.base import clone

from skforge.exceptions import InvalidInputError, ScheduleError
from skforge.schedule.bind import bind
from skforge.schedule.directives import BY_NAME, Cache, Parallel, Tile, Unroll
from skforge.schedule.schedule import Schedule
from tests.refusals import error_of
from tests.strategies_schedule import legal_schedules


def rows():
    return Schedule().tile("batch", "b0", "b1", 64)


def blocks():
    return rows().reorder("b0", "tree", "b1")


def trees():
    return Schedule().tile("tree", "t0", "t1", 8)


def gpu():
    return rows().gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")


def predicates():
    return blocks().vectorize("b1").cache_predicates("b0")


def tree_tiles(*order):
    tiled = rows().tile("tree", "t0", "t1", 4)
    return tiled.reorder(*(order or ("b0", "t0", "t1", "b1"))).vectorize("b1")


def check_value(schedule):
    """A schedule is the same after any way of storing, copying or sending it."""
    copies = [
        eval(repr(schedule), {"Schedule": Schedule}),
        Schedule.from_json(schedule.to_json()),
        *(
            pickle.loads(pickle.dumps(schedule, protocol))
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
        ),
        copy.deepcopy(schedule),
        copy.copy(schedule),
        clone(schedule, safe=False),
        Schedule(schedule.directives),
    ]
    for other in copies:
        assert other == schedule
        assert hash(other) == hash(schedule)
        assert repr(other) == repr(schedule)
        assert other.directives == schedule.directives
    return schedule


# name -> schedule; every directive is here, and so is each form it has.
LEGAL = {
    "none": Schedule(),
    "tile": rows(),
    "tile-count": Schedule().tile("batch", "b0", "b1", -4).tile("tree", "t0", "t1", -3),
    "tile-twice": rows().tile("b0", "b00", "b01", 4).tile("b1", "b10", "b11", -16),
    "split": Schedule().split("tree", "t0", "t1", 4).split("batch", "b0", "b1", 10),
    "split-copies": blocks().split("b0", "c0", "c1", 128).interleave("b1", 8),
    "reorder": blocks(),
    "gpu_dimension": gpu(),
    "unroll": trees().unroll("t1"),
    "specialize": trees().parallel("t0").specialize("t0"),
    "cache": blocks().cache("b0").cache("tree"),
    "parallel": rows().parallel("b0"),
    "interleave": blocks().interleave("b1", 8),
    "interleave-all": Schedule().tile("batch", "b0", "b1", 8)
    .reorder("b0", "tree", "b1").interleave("b1"),
    "interleave-one": Schedule().interleave("tree", 1),
    "interleave-short": Schedule().interleave("tree", 64),
    "unroll_walk": Schedule().unroll_walk("batch", 3),
    "peel_walk": Schedule().peel_walk("tree", 1),
    "atomic_reduce": trees().parallel("t0").atomic_reduce("t0"),
    "shared_reduce": Schedule()
    .gpu_dimension("batch", "grid.x").gpu_dimension("tree", "block.x")
    .shared_reduce("tree"),
    "vector_reduce": trees().vector_reduce("t0", 8).parallel("t0"),
    "tile_nodes": Schedule().tile_nodes(4, "probability"),
    "tile_nodes-uniform": Schedule().tile_nodes(8),
    "pad_trees": Schedule().pad_trees(),
    "reorder_trees": Schedule().reorder_trees(),
    "represent": Schedule().represent("array"),
    "vectorize": blocks().vectorize("b1"),
    "vectorize-tree": Schedule().quantize("batch").vectorize("tree"),
    "quantize": blocks().quantize("b0"),
    "quantize-interleave-one": blocks().quantize("b1").interleave("b1", 1),
    "cache-interleave": blocks().cache("b1").interleave("b1", 2),
    "cache_predicates-trees": tree_tiles().cache_predicates("t0"),
}  # fmt: skip

# Legal where they are written, but no target takes them yet.
WRITTEN_ONLY = {"cache_predicates": predicates()}


@pytest.mark.parametrize("name", LEGAL)
def test_legal(name, golden):
    schedule = check_value(LEGAL[name])
    assert str(schedule.loop_nest(10)) == schedule.explain(10).split("\n\n")[0].rstrip()
    golden(schedule.explain(10) + "\n", "explain")


@pytest.mark.parametrize("name", WRITTEN_ONLY)
def test_legal_where_written(name):
    check_value(WRITTEN_ONLY[name])


def test_every_directive_is_tested():
    everything = {**LEGAL, **WRITTEN_ONLY}.values()
    used = {type(directive) for s in everything for directive in s.directives}
    assert used == set(BY_NAME.values())


AT_THE_CALL = {
    "index-unknown": lambda: rows().parallel("row"),
    "index-tiled": lambda: rows().parallel("batch"),
    "index-split": lambda: Schedule().split("tree", "t0", "t1", 5).cache("tree"),
    "index-no-name": lambda: Schedule().parallel(["batch"]),
    "tile-zero": lambda: Schedule().tile("batch", "b0", "b1", 0),
    "tile-float": lambda: Schedule().tile("batch", "b0", "b1", 64.0),
    "tile-bool": lambda: Schedule().tile("batch", "b0", "b1", True),
    "tile-text": lambda: Schedule().tile("batch", "b0", "b1", "64"),
    "tile-huge": lambda: Schedule().tile("batch", "b0", "b1", 2**31),
    "tile-huge-block": lambda: Schedule().tile("batch", "b0", "b1", 2**30)
        .tile("b0", "b2", "b3", 2**30),
    "tile-no-name": lambda: Schedule().tile("batch", "b 0", "b1", 64),
    "tile-same-names": lambda: Schedule().tile("batch", "b0", "b0", 64),
    "tile-root-name": lambda: Schedule().tile("batch", "b0", "tree", 64),
    "tile-reused-name": lambda: rows().tile("tree", "t0", "b1", 64),
    "tile-gone-name": lambda: rows().tile("b0", "c0", "c1", 4)
        .tile("c0", "b0", "c2", 2),
    "tile-marked": lambda: Schedule().parallel("batch").tile("batch", "b0", "b1", 64),
    "tile-count-after-split": lambda: Schedule().split("batch", "b0", "b1", 64)
        .tile("b1", "b2", "b3", -4),
    "split-zero": lambda: Schedule().split("tree", "t0", "t1", 0),
    "split-past-tile": lambda: blocks().split("b1", "b2", "b3", 64),
    "split-past-part": lambda: rows().split("b1", "b2", "b3", 48)
        .split("b3", "b4", "b5", 16),
    "split-float": lambda: Schedule().split("tree", "t0", "t1", 1.5),
    "split-inside-iteration": lambda: trees().split("t0", "t2", "t3", 12),
    "split-open-step": lambda: Schedule().tile("batch", "b0", "b1", -4)
        .split("b0", "b2", "b3", 8),
    "split-marked": lambda: Schedule().interleave("tree", 4)
        .split("tree", "t0", "t1", 8),
    "split-reused-name": lambda: trees().split("batch", "t0", "b1", 8),
    "reorder-one": lambda: Schedule().reorder("tree"),
    "reorder-twice": lambda: Schedule().reorder("tree", "batch", "tree"),
    "reorder-unknown": lambda: Schedule().reorder("tree", "rows"),
    "reorder-no-name": lambda: Schedule().reorder("tree", 3),
    "reorder-list": lambda: Schedule().reorder(["tree", "batch"]),
    "reorder-between": lambda: rows().reorder("tree", "b0"),
    "reorder-beside": lambda: Schedule().split("tree", "t0", "t1", 8)
        .reorder("t0", "t1"),
    "reorder-imperfect": lambda: Schedule().split("tree", "t0", "t1", 8)
        .reorder("t0", "batch"),
    "reorder-interleaved": lambda: Schedule().interleave("tree", 4)
        .reorder("tree", "batch"),
    "reorder-vectorized": lambda: blocks().vectorize("b1").reorder("b1", "tree"),
    "reorder-cached": lambda: rows().cache("b1").reorder("b1", "b0"),
    "reorder-gpu": lambda: gpu().reorder("b1", "b0"),
    "gpu-dimension-unknown": lambda: Schedule().gpu_dimension("batch", "grid"),
    "gpu-dimension-twice": lambda: rows().gpu_dimension("b0", "grid.x")
        .gpu_dimension("b1", "grid.x"),
    "gpu-dimension-again": lambda: gpu().gpu_dimension("b0", "grid.y"),
    "gpu-dimension-order": lambda: Schedule().gpu_dimension("tree", "grid.x")
        .gpu_dimension("batch", "block.x"),
    "gpu-dimension-parallel": lambda: Schedule().parallel("batch")
        .gpu_dimension("batch", "grid.x"),
    "unroll-parallel": lambda: Schedule().parallel("tree").unroll("tree"),
    "unroll-interleave": lambda: Schedule().interleave("tree", 4).unroll("tree"),
    "specialize-batch": lambda: Schedule().specialize("batch"),
    "specialize-unroll": lambda: Schedule().unroll("tree").specialize("tree"),
    "specialize-interleave": lambda: Schedule().specialize("tree")
        .interleave("tree", 4),
    "cache-twice": lambda: Schedule().cache("tree").cache("tree"),
    "cache-scattered": lambda: trees().reorder("t1", "t0").cache("t1"),
    "parallel-twice": lambda: Schedule().parallel("tree").parallel("tree"),
    "interleave-outer": lambda: blocks().interleave("tree", 4),
    "interleave-zero": lambda: Schedule().interleave("tree", 0),
    "interleave-many": lambda: Schedule().interleave("tree", 65),
    "interleave-bool": lambda: Schedule().interleave("tree", True),
    "interleave-parallel": lambda: Schedule().parallel("tree").interleave("tree", 4),
    "unroll_walk-zero": lambda: Schedule().unroll_walk("tree", 0),
    "unroll_walk-deep": lambda: Schedule().unroll_walk("tree", 65),
    "unroll_walk-nested": lambda: Schedule().unroll_walk("batch", 3)
        .unroll_walk("tree", 4),
    "unroll_walk-peeled": lambda: Schedule().peel_walk("tree", 3)
        .unroll_walk("batch", 3),
    "peel_walk-text": lambda: Schedule().peel_walk("tree", "3"),
    "peel_walk-unrolled": lambda: Schedule().unroll_walk("tree", 3)
        .peel_walk("tree", 3),
    "atomic_reduce-batch": lambda: Schedule().parallel("batch").atomic_reduce("batch"),
    "atomic_reduce-vector": lambda: Schedule().parallel("tree")
        .vector_reduce("tree", 8).atomic_reduce("tree"),
    "shared_reduce-batch": lambda: Schedule().shared_reduce("batch"),
    "vector_reduce-batch": lambda: Schedule().vector_reduce("batch", 8),
    "vector_reduce-width": lambda: Schedule().vector_reduce("tree", 3),
    "tile_nodes-size": lambda: Schedule().tile_nodes(9),
    "tile_nodes-kind": lambda: Schedule().tile_nodes(4, "hybrid"),
    "tile_nodes-twice": lambda: Schedule().tile_nodes(4).tile_nodes(2),
    "pad_trees-twice": lambda: Schedule().pad_trees().pad_trees(),
    "reorder_trees-twice": lambda: Schedule().reorder_trees().reorder_trees(),
    "represent-name": lambda: Schedule().represent("a b"),
    "represent-twice": lambda: rows().represent("array").represent("sparse"),
    "vectorize-outer-tree": lambda: Schedule().reorder("tree", "batch")
        .vectorize("tree"),
    "vectorize-outer": lambda: blocks().vectorize("b0"),
    "vectorize-interleave": lambda: blocks().interleave("b1", 4).vectorize("b1"),
    "quantize-tree": lambda: Schedule().quantize("tree"),
    "quantize-interleave": lambda: blocks().quantize("b1").interleave("b1", 2),
    "interleave-quantize": lambda: Schedule().reorder("tree", "batch")
        .interleave("batch").quantize("batch"),
    "quantize-vectorize": lambda: Schedule().reorder("tree", "batch")
        .quantize("batch").vectorize("batch"),
    "vectorize-cache": lambda: blocks().vectorize("b1").cache("b1"),
    "no-directive": lambda: Schedule(("parallel",)),
}  # fmt: skip


@pytest.mark.parametrize("name", AT_THE_CALL)
def test_refused_at_the_call(name, golden):
    golden(error_of(ScheduleError, AT_THE_CALL[name]) + "\n", "error")


#: Each is bound to the kind of target that it is for, but for two.
AT_BIND = {
    "gpu-schedule-on-cpu": gpu(),
    "cpu-schedule-on-gpu": rows(),
    "parallel-on-gpu": gpu().parallel("tree"),
    "vectorize-on-gpu": Schedule().reorder("tree", "batch")
    .gpu_dimension("tree", "grid.x").vectorize("batch"),
    "part-not-on-gpu": Schedule().split("tree", "t0", "t1", 2)
    .gpu_dimension("t0", "grid.x"),
    "block-open": Schedule().gpu_dimension("batch", "block.x"),
    "block-large": Schedule().tile("batch", "b0", "b1", 256)
    .reorder("b0", "tree", "b1").gpu_dimension("b1", "block.x")
    .gpu_dimension("tree", "block.y"),
    "atomic_reduce-serial": trees().atomic_reduce("t0"),
    "vector_reduce-serial": trees().vector_reduce("t0", 4),
    "shared_reduce-serial": gpu().shared_reduce("tree"),
    "shared_reduce-on-cpu": Schedule().parallel("tree").shared_reduce("tree"),
    "vectorize-node-tiles": blocks().vectorize("b1").tile_nodes(4),
    "interleave-open": Schedule().reorder("tree", "batch").interleave("batch"),
    "unroll-open": Schedule().unroll("batch"),
    "copies": blocks().unroll("tree").interleave("b1", 32),
    "split-inside-iteration": Schedule().tile("tree", "t0", "t1", -2)
    .split("t0", "t2", "t3", 4),
    "split-past-trees": Schedule().split("tree", "t0", "t1", 9),
    "split-past-blocks": Schedule().tile("tree", "t0", "t1", 4)
    .split("t0", "t2", "t3", 12),
    "split-past-short-tile": Schedule().tile("tree", "t0", "t1", 64)
    .split("t1", "t2", "t3", 32),
    "vectorize-tree-alone": Schedule().vectorize("tree"),
    "vectorize-tree-tile": Schedule().tile("tree", "t0", "t1", 3).quantize("batch")
    .vectorize("t1"),
    "vectorize-tree-peel_walk": Schedule().quantize("batch").vectorize("tree")
    .peel_walk("tree", 2),
    "vectorize-tree-cache": Schedule().quantize("batch").cache("tree")
    .vectorize("tree"),
    "quantize-open-rows": Schedule().tile("batch", "b0", "b1", -4).quantize("b0"),
    "quantize-part": Schedule().split("batch", "b0", "b1", 8).quantize("b1"),
    "quantize-twice": blocks().quantize("b0").quantize("b1"),
    "quantize-in-threads": gpu().quantize("b1"),
    "cache-in-threads": gpu().cache("b1"),
    "cache-interleaved-on-gpu": Schedule().tile("batch", "b0", "b1", 4)
    .reorder("tree", "b0", "b1").gpu_dimension("b0", "grid.x").cache("b1")
    .interleave("b1"),
    "cache-open-rows-on-gpu": Schedule().tile("batch", "b0", "b1", -4)
    .gpu_dimension("b0", "grid.x").cache("b0"),
    "cache-layout-on-cpu": rows().cache("b0", "feature"),
    "cache-layout-of-trees": gpu().cache("tree", "row"),
    "vector_reduce-on-gpu": Schedule().gpu_dimension("tree", "grid.x")
    .vector_reduce("tree", 4),
    "serial-between-grid": Schedule().tile("tree", "t0", "t1", 4)
    .reorder("batch", "t0", "t1").gpu_dimension("batch", "grid.x")
    .gpu_dimension("t1", "grid.y"),
    "cache_predicates-on-gpu": gpu().cache_predicates("b0"),
    "cache_predicates-no-rows": Schedule().cache_predicates("batch"),
    "cache_predicates-open-rows": Schedule().tile("batch", "b0", "b1", -4)
    .reorder("b0", "tree", "b1").vectorize("b1").cache_predicates("b0"),
    "cache_predicates-no-trees": rows().reorder("tree", "b0", "b1").vectorize("b1")
    .cache_predicates("b0"),
    "cache_predicates-interleave": blocks().interleave("b1", 8).cache_predicates("b0"),
    "cache_predicates-unroll_walk": predicates().unroll_walk("tree", 4),
    "cache_predicates-quantize": predicates().quantize("b0"),
    "cache_predicates-tree": Schedule().cache_predicates("tree"),
    "cache_predicates-inner-trees": tree_tiles().cache_predicates("t1"),
    "cache_predicates-trees-outside": tree_tiles("t0", "b0", "t1", "b1")
    .cache_predicates("t0"),
    "cache_predicates-twice": tree_tiles().cache_predicates("t0")
    .cache_predicates("b0"),
}  # fmt: skip
KINDS = {"gpu-schedule-on-cpu": "cpu", "cpu-schedule-on-gpu": "gpu"}


@pytest.mark.parametrize("name", AT_BIND)
def test_refused_at_bind(name, golden):
    schedule = check_value(AT_BIND[name])
    golden(error_of(ScheduleError, bind, schedule, 9, KINDS.get(name)) + "\n", "error")


NOT_JSON = {
    "text": "tile",
    "list": "[]",
    "no-version": '{"directives": []}',
    "true-version": '{"version": true, "directives": []}',
    "later-version": '{"version": 2, "directives": []}',
    "no-directives": '{"version": 1}',
    "unknown": '{"version": 1, "directives": [{"op": "fuse", "index": "tree"}]}',
    "no-op": '{"version": 1, "directives": [{"index": "tree"}]}',
    "no-object": '{"version": 1, "directives": ["tile"]}',
    "missing-field": '{"version": 1, "directives": [{"op": "unroll"}]}',
    "extra-field": '{"version": 1, "directives": [{"op": "pad_trees", "by": 2}]}',
    "reorder-text": '{"version": 1, "directives": [{"op": "reorder", "indices": "x"}]}',
    "index-list": '{"version": 1, "directives": [{"op": "unroll", "index": ["x"]}]}',
    "index-null": '{"version": 1, "directives": [{"op": "unroll", "index": null}]}',
    "illegal": '{"version": 1, "directives": [{"op": "unroll", "index": "x"}]}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("name", NOT_JSON)
def test_json_refused(name, golden):
    golden(error_of(ScheduleError, Schedule.from_json, NOT_JSON[name]) + "\n", "error")


def test_json_is_stable():
    schedule = blocks().interleave("b1", 4).tile_nodes(8)
    assert schedule.to_json() == (
        '{"version": 1, "directives": ['
        '{"op": "tile", "index": "batch", "outer": "b0", "inner": "b1", "size": 64}, '
        '{"op": "reorder", "indices": ["b0", "tree", "b1"]}, '
        '{"op": "interleave", "index": "b1", "factor": 4}, '
        '{"op": "tile_nodes", "size": 8, "kind": "uniform"}]}'
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpuDimension", "gpu_dimension"),
        ("unrollWalk", "unroll_walk"),
        ("peelWalk", "peel_walk"),
        ("atomicReduce", "atomic_reduce"),
        ("sharedReduce", "shared_reduce"),
        ("vectorReduce", "vector_reduce"),
        ("cachePredicates", "cache_predicates"),
        ("Tile", "tile"),
        ("quantise", "quantize"),
    ],
)
def test_other_spellings_are_told_the_method(name, meant):
    schedule = rows()
    with pytest.raises(AttributeError) as error:
        getattr(schedule, name)
    told = f"A Schedule has no '{name}'; did you mean {meant}?"
    assert str(error.value) == told
    lines = traceback.format_exception_only(error.type, error.value)
    assert lines == [f"AttributeError: {told}\n"]
    assert callable(getattr(schedule, meant))
    assert not hasattr(schedule, name)
    check_value(schedule)


@pytest.mark.parametrize("name", ["something", "_repr_html_", "__array__", "_quantise"])
def test_other_attributes_are_just_missing(name):
    said = error_of(AttributeError, getattr, rows(), name)
    assert said == f"A Schedule has no '{name}'"
    assert not hasattr(object.__new__(Schedule), "directives")  # as pickle makes it


def test_methods_leave_the_schedule_alone():
    before = rows()
    before.parallel("b0")
    assert before == rows()
    with pytest.raises(AttributeError):
        before.directives = ()


def test_schedules_are_keys():
    assert {rows(): 1}[rows()] == 1
    assert len({rows(), rows(), blocks(), Schedule()}) == 3


def test_scikit_learn_takes_a_schedule_for_a_plain_value():
    assert not hasattr(Schedule(), "get_params")


def test_numpy_integers_are_integers():
    schedule = check_value(Schedule().tile("batch", "b0", "b1", np.int64(64)))
    assert schedule == rows()
    assert type(schedule.directives[0].size) is int


def test_an_array_is_not_an_integer():
    with pytest.raises(ScheduleError, match="needs a whole number for its depth, not"):
        Schedule().unroll_walk("tree", np.array([1, 2]))


def test_a_list_of_directives_becomes_a_tuple():
    schedule = Schedule([Tile("batch", "b0", "b1", 64), Parallel("b0")])
    assert check_value(schedule) == rows().parallel("b0")


def test_arguments_are_checked_before_equal_schedules_are_looked_up():
    assert rows().directives  # 64 == 64.0 with an equal hash
    with pytest.raises(ScheduleError, match="needs a whole number for its size"):
        Schedule((Tile("batch", "b0", "b1", 64.0),))


def test_many_directives():
    schedule = Schedule()
    for n in range(60):
        schedule = schedule.split(
            "tree" if n == 0 else f"t{n}", f"s{n}", f"t{n + 1}", 1
        )
    assert len(check_value(schedule).loop_nest(500).loops[0].body) == 61


def test_directives_of_a_file_are_not_applied_by_recursion():
    directives = [Cache("batch"), *(Unroll(f"b{n}") for n in range(2000))]
    with pytest.raises(ScheduleError, match=r'^unroll\("b0"\) names "b0", which'):
        Schedule(directives)


def test_an_error_survives_a_worker_process():
    with pytest.raises(ScheduleError) as caught:
        blocks().interleave("tree", 4)
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == str(caught.value)
    assert (error.why, error.at) == (caught.value.why, 1)


@pytest.mark.parametrize("forest", ["model.json", -2, True, None])
def test_loops_are_drawn_for_a_forest_or_a_number_of_trees(forest):
    assert error_of(InvalidInputError, Schedule().loop_nest, forest) == (
        f"forest must be a Forest or a number of trees, 0 or more. Got {forest!r} "
        "instead."
    )


@given(legal_schedules())
def test_any_schedule_is_a_value(schedule):
    check_value(schedule)
    for n_trees in (1, 100):
        assert schedule.explain(n_trees).startswith(str(schedule.loop_nest(n_trees)))
