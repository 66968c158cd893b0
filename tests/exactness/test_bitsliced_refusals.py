"""What cannot be evaluated in blocks is refused when compiling, in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from skforge.compiler.defaults.cpu import default_schedules
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.reference import reference_raw
from skforge.modules.compiled import compile_forest
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import assert_same_bits, raw_of
from tests.exactness.forests import drawn, forest, forest_of, tree
from tests.exactness.sliced import rows_of, sliced

SHAPE = (
    'cache_predicates("b0") needs serial tree loops over all trees inside it and one '
    "vectorised loop over the block's rows inside those."
)
ORDER = (
    'cache_predicates("b0") needs sums in the order of the model, with exact or fast '
    "reduction; leave out parallel tree loops and reorder_trees."
)
OF_TILES = SHAPE.replace("b0", "t0").replace("inside it", "in the block")
BLOCKS = Schedule().tile("batch", "b0", "b1", 64)


def end(schedule: Schedule, loop: str = "b0") -> Schedule:
    return schedule.cache_predicates(loop).vectorize("b1").represent("bitsliced")


def parts(first: int, second: int) -> Schedule:
    """Two parts of the batch, each in blocks of its own size."""
    made = Schedule().split("batch", "p0", "p1", 128)
    made = made.tile("p0", "b0", "b1", first).tile("p1", "c0", "c1", second)
    made = made.reorder("b0", "tree", "b1").reorder("c0", "tree", "c1")
    return end(made).cache_predicates("c0").vectorize("c1")


def size_text(n: int) -> str:
    return (
        'represent("bitsliced") takes blocks of 64 rows times a power of two; this '
        f"schedule has blocks of {n}."
    )


def walks_rows(name: str) -> str:
    return (
        f'represent("{name}") walks single rows, so it does not work with '
        'cache_predicates; use represent("bitsliced").'
    )


WALKED = (
    'represent("bitsliced") evaluates blocks of rows; mark their loop with '
    "cache_predicates."
)
TILES = BLOCKS.tile("tree", "t0", "t1", 2)
NEST = BLOCKS.reorder("b0", "tree", "b1")

#: name -> schedule, the first line of the message
SCHEDULES: dict[str, tuple[Schedule, str]] = {
    "reproducible": (
        sliced(64),
        'represent("bitsliced") sums floats in model order; use reduction="exact" or '
        "another representation.",
    ),
    "node tiles": (
        sliced(64).tile_nodes(4),
        'vectorize("b1") walks one node at a time in each lane, but tile_nodes(4) '
        "groups nodes; leave one of the two out.",
    ),
    **{f"blocks of {n}": (sliced(n), size_text(n)) for n in (1, 32, 96, 192)},
    "sparse": (NEST.cache_predicates("b0").vectorize("b1"), walks_rows("sparse")),
    "array": (
        NEST.cache_predicates("b0").vectorize("b1").represent("array"),
        walks_rows("array"),
    ),
    "walks in blocks": (NEST.vectorize("b1").represent("bitsliced"), WALKED),
    "plain walks": (Schedule().represent("bitsliced"), WALKED),
    "tree tiles outside": (end(TILES.reorder("t0", "b0", "t1", "b1")), SHAPE),
    "tree tiles outside and in": (
        end(
            BLOCKS.tile("tree", "t0", "t1", 4)
            .tile("t1", "t2", "t3", 2)
            .reorder("t0", "b0", "t2", "t3", "b1")
        ),
        ORDER,
    ),
    "trees out of order": (end(TILES.reorder("b0", "t1", "t0", "b1")), ORDER),
    "trees in parallel": (end(NEST.parallel("tree")), SHAPE),
    "tree tiles in parallel": (
        end(TILES.reorder("b0", "t0", "t1", "b1").parallel("t0")),
        SHAPE,
    ),
    "evaluated tiles in parallel": (
        end(TILES.reorder("b0", "t0", "t1", "b1").parallel("t0"), "t0"),
        OF_TILES,
    ),
    "evaluated tiles of a part": (
        end(NEST.split("tree", "s0", "s1", 3).tile("s0", "t0", "t1", 2), "t0"),
        OF_TILES,
    ),
    "evaluated trees, reordered": (
        end(NEST, "tree").reorder_trees(),
        ORDER.replace("b0", "tree"),
    ),
    "atomic sums": (end(NEST.parallel("tree").atomic_reduce("tree")), SHAPE),
    "split trees": (end(NEST.split("tree", "s0", "s1", 3)), SHAPE),
    "reordered trees": (sliced(64).reorder_trees(), ORDER),
    "rows in two loops": (
        Schedule()
        .tile("batch", "b0", "b1", 128)
        .tile("b1", "b2", "b3", 64)
        .reorder("b0", "tree", "b2", "b3")
        .cache_predicates("b0")
        .vectorize("b3")
        .represent("bitsliced"),
        SHAPE,
    ),
    "cached trees": (
        sliced(64).cache("tree"),
        "cache prefetches the nodes of walks, but this schedule evaluates blocks of "
        "rows without walks; leave out the cache of trees.",
    ),
    "half of the batch": (
        end(
            Schedule()
            .split("batch", "p0", "p1", 128)
            .tile("p0", "b0", "b1", 64)
            .reorder("b0", "tree", "b1")
        ),
        "cache_predicates must apply to all rows or none; mark the loop over blocks "
        "in every part of the batch.",
    ),
    "two sizes": (
        parts(64, 128),
        "cache_predicates needs blocks of a single size, but this schedule has blocks "
        "of 128 and 64 rows.",
    ),
    "out of bounds": (
        sliced(1 << 28),
        "102 predicates of 268435456 rows take 3264 MiB per thread, more than the "
        "limit of 1024 MiB; use smaller blocks.",
    ),
}


#: How sums are made where not exactly.
SUMS = {
    "reproducible": "reproducible",
    "trees in parallel": "fast",
    "atomic sums": "fast",
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_refused_when_compiling(name: str) -> None:
    schedule, message = SCHEDULES[name]
    sums = SUMS.get(name, "exact")
    with pytest.raises(ScheduleError) as error:
        compile_forest(forest("multiclass"), schedule, reduction=sums)
    assert error.value.why == message
    assert error.value.nest


def leaves_of(n: int) -> Forest:
    """A chain of n leaves beside two stumps."""
    random = np.random.default_rng(0)
    shapes = [("full", 1), ("chain", n - 1), ("full", 1)]
    return forest_of([tree(*shape, random) for shape in shapes])


def some_members(made: Forest) -> Forest:
    test = made.comparison.copy()
    test[np.flatnonzero(test == Comparison.IN)[0]] = Comparison.MEMBER
    return replace(made, comparison=test)


FORESTS: dict[str, tuple[Callable[[], Forest], str]] = {
    "many leaves": (
        lambda: leaves_of(257),
        'represent("bitsliced") takes trees of at most 256 leaves, but tree 1 has '
        '257. Use represent("sparse").',
    ),
    "missing of two kinds": (
        lambda: drawn(6, 5, missing=(Missing.NAN, Missing.ZERO)),
        "the forest treats missing values in several ways, which cache_predicates "
        "does not support; leave it out.",
    ),
    "equality": (
        lambda: drawn(6, 5, comparisons=(Comparison.EQ, Comparison.LT)),
        "the forest tests for equality, which cache_predicates does not support; "
        "leave it out.",
    ),
    "sets of two kinds": (
        lambda: some_members(drawn(8, 6, category_words=4)),
        "some category sets of the forest accept numbers with a fraction and some do "
        "not, which cache_predicates does not support; leave it out.",
    ),
    **{
        f"no tests: {name}": (
            lambda name=name: forest(name),
            'represent("bitsliced") evaluates predicates, but this forest of single '
            'leaves has none; use represent("sparse").',
        )
        for name in ("leaves", "no trees")
    },
}


@pytest.mark.parametrize("name", FORESTS)
def test_forests_are_refused_when_compiling(name: str) -> None:
    make, message = FORESTS[name]
    with pytest.raises(ScheduleError) as error:
        compile_forest(make(), sliced(64))
    assert error.value.why == message


@pytest.mark.parametrize("name", FORESTS)
def test_defaults_walk_forests_that_are_refused(name: str) -> None:
    made = FORESTS[name][0]()
    for schedule in default_schedules(made, Target.host()).values():
        assert "cache_predicates" not in repr(schedule)
    compile_forest(made).predict_raw(rows_of(made, 200))


def test_defaults_walk_for_reproducible_sums() -> None:
    made = forest("scalar")
    chosen = default_schedules(made, Target.host(), "reproducible")
    assert not any("cache_predicates" in repr(s) for s in chosen.values())


EVALUATED = TILES.reorder("b0", "t0", "t1", "b1")
ALLOWED = {
    "evaluated tiles": end(EVALUATED, "t0"),
    "evaluated tiles, unrolled": end(EVALUATED, "t0").unroll("t0"),
    "evaluated tiles, specialized": end(EVALUATED, "t0").specialize("t0").cache("b0"),
    "evaluated trees": end(NEST, "tree").pad_trees(),
    "evaluated thirds": end(
        BLOCKS.tile("tree", "t0", "t1", -3)
        .tile("t1", "t2", "t3", 2)
        .reorder("b0", "t0", "t2", "t3", "b1"),
        "t0",
    ),
    "evaluated tiles of two parts": Schedule()
    .split("batch", "p0", "p1", 128)
    .tile("p0", "b0", "b1", 64)
    .tile("p1", "c0", "c1", 64)
    .tile("tree", "t0", "t1", 2)
    .reorder("b0", "t0", "t1", "b1")
    .reorder("c0", "t0", "t1", "c1")
    .cache_predicates("t0")
    .vectorize("b1")
    .vectorize("c1")
    .represent("bitsliced"),
    "tree tiles": end(TILES.reorder("b0", "t0", "t1", "b1")),
    "negative tree tiles": end(
        BLOCKS.tile("tree", "t0", "t1", -2).reorder("b0", "t0", "t1", "b1")
    ),
    "specialized": sliced(64).specialize("tree"),
    "unrolled trees": sliced(64).unroll("tree"),
    "cached rows": sliced(64).cache("b0"),
    "padded": sliced(64).pad_trees(),
    "two parts": parts(64, 64),
    "two levels of blocks": Schedule()
    .tile("batch", "b0", "b1", 192)
    .tile("b1", "b2", "b3", 128)
    .reorder("b0", "b2", "tree", "b3")
    .parallel("b0")
    .cache_predicates("b2")
    .vectorize("b3")
    .represent("bitsliced"),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ALLOWED)
@pytest.mark.parametrize("kind", ["multiclass", "mixed trees", "vector 3"])
def test_what_else_goes_with_it_is_exact(name: str, kind: str) -> None:
    made = forest(kind)
    rows = rows_of(made, 500)
    module = compile_forest(made, ALLOWED[name])
    for n in (1, 64, 130, 500):
        wanted = reference_raw(made, rows[:n])
        assert_same_bits(raw_of(module, rows[:n]), wanted, (name, kind, n))
