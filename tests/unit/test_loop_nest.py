"""Bound nests: ranges, what is implied, and that each walk is visited once."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skforge.exceptions import ScheduleError
from skforge.schedule.apply import apply_all
from skforge.schedule.bind import bind
from skforge.schedule.bound import LoopBound
from skforge.schedule.directives import (
    Interleave,
)
from skforge.schedule.nest import (
    BatchLength,
    CeilDiv,
    Times,
    size_value,
)
from skforge.schedule.schedule import Schedule
from tests.strategies_schedule import (
    SHAPING,
    all_loops,
    chains,
    iterate,
    legal_schedules,
)
from tests.unit.test_schedule import LEGAL

ROWS = (0, 1, 2, 3, 63, 64, 65, 1000)
TREES = (1, 7, 100)
# A split needs more trees than it puts into its first part.
LEAST_TREES = {"split": 5}


def visited(nest, n_rows):
    """Return the pairs in loop order, and check that each comes once."""
    pairs = list(iterate(nest, n_rows))
    assert sorted(pairs) == list(product(range(n_rows), range(nest.n_trees)))
    if nest.trees_in_order:
        order = {}
        for row, tree in pairs:
            assert order.setdefault(row, -1) < tree
            order[row] = tree
    return pairs


@pytest.mark.sampled(40)
@pytest.mark.parametrize("n_trees", TREES)
@pytest.mark.parametrize("name", LEGAL)
def test_legal_schedules_visit_every_pair_once(name, n_trees):
    if n_trees < LEAST_TREES.get(name, 0):
        with pytest.raises(ScheduleError, match=f"goes over {n_trees} tree"):
            LEGAL[name].loop_nest(n_trees)
        return
    nest = LEGAL[name].loop_nest(n_trees)
    for n_rows in ROWS if n_trees < 100 else ROWS[:-1]:
        visited(nest, n_rows)


# Few trees leave few places to split at.
SIZES = st.sampled_from([TREES, TREES[1:], TREES[2:]])


@given(data=st.data(), n_rows=st.sampled_from(ROWS[:-1]), sizes=SIZES)
@settings(max_examples=50)
def test_any_loops_visit_every_pair_once(data, n_rows, sizes):
    schedule = data.draw(legal_schedules(8, SHAPING, sizes))
    visited(schedule.loop_nest(data.draw(st.sampled_from(sizes))), n_rows)


@given(data=st.data(), n_rows=st.sampled_from([0, 1, 65]), sizes=SIZES)
@settings(max_examples=25)
def test_marks_do_not_change_what_is_visited(data, n_rows, sizes):
    schedule = data.draw(legal_schedules(10, n_trees=sizes))
    visited(schedule.loop_nest(sizes[0]), n_rows)


def test_parts_of_one_tree_are_still_out_of_order():
    """Each part has a single iteration, but together they pass 0, 2, ..., 1, 3, ...."""
    tiled = Schedule().tile("tree", "i0", "i1", 2)
    split = tiled.reorder("i1", "i0").split("i1", "i2", "i3", 1)
    assert not split.loop_nest(100).trees_in_order
    assert tiled.split("i1", "i2", "i3", 1).loop_nest(100).trees_in_order


def test_no_trees():
    for name in LEGAL.keys() - LEAST_TREES.keys():
        assert list(iterate(LEGAL[name].loop_nest(0), 3)) == [], name


def test_index_is_a_sum_in_units_of_the_root():
    schedule = Schedule().tile("batch", "b0", "b1", 64).tile("b0", "b00", "b01", 4)
    nest = schedule.loop_nest(1)
    b00, b01, b1, _ = all_loops(nest)
    assert (b00.step, b01.step, b1.step) == (256, 64, 1)
    assert b00.bounds == (LoopBound(BatchLength()),)
    assert b01.bounds == (LoopBound(256), LoopBound(BatchLength(), ("b00",)))
    assert b1.bounds == (LoopBound(64), LoopBound(BatchLength(), ("b00", "b01")))
    assert [b.trip_count for b in (b00, b01, b1)] == [None, None, None]
    assert [b.max_trips for b in (b00, b01, b1)] == [None, 4, 64]


def test_a_count_of_blocks_follows_the_batch():
    schedule = Schedule().tile("batch", "b0", "b1", -4).tile("b0", "b00", "b01", 2)
    nest = schedule.tile("b1", "b10", "b11", -3).loop_nest(1)
    size = CeilDiv(BatchLength(), 4)
    b00, b01, b10, b11, _ = all_loops(nest)
    assert (b00.step, b01.step) == (Times(size, 2), size)
    assert (b10.step, b11.step) == (CeilDiv(size, 3), 1)
    assert b11.bounds == (
        LoopBound(CeilDiv(size, 3)),
        LoopBound(size, ("b10",)),
        LoopBound(BatchLength(), ("b00", "b01", "b10")),
    )
    assert str(b11.bounds[0]) == "ceil(ceil(n_rows / 4) / 3)"
    assert str(b00.step) == "ceil(n_rows / 4) * 2"
    assert [size_value(b00.step, n) for n in (0, 1, 9)] == [2, 2, 6]


@pytest.mark.parametrize(
    ("schedule", "n_trees", "ranges"),
    [
        # A limit that always holds is dropped, so that trip counts are static.
        (Schedule().tile("tree", "a", "b", 64), 128, ["0 128 64", "0 64 1"]),
        (Schedule().tile("tree", "a", "b", 64), 127, ["0 127 64", "0 64,127-a 1"]),
        (Schedule().tile("tree", "a", "b", 64), 10, ["0 10 64", "0 10 1"]),
        (Schedule().tile("tree", "a", "b", -3), 9, ["0 9 3", "0 3 1"]),
        (Schedule().tile("tree", "a", "b", -3), 10, ["0 10 4", "0 4,10-a 1"]),
        (Schedule().tile("tree", "a", "b", -3), 2, ["0 2 1", "0 1 1"]),
        # The number of tiles is that of the trees there are.
        (Schedule().tile("tree", "a", "t", 64).tile("t", "b", "c", -2), 10,
         ["0 10 64", "0 10 5", "0 5 1"]),
        # Three blocks of 24 do not divide 64, but their tiles of 8 do.
        (Schedule().tile("tree", "t", "b", 8).tile("t", "a", "c", 3), 64,
         ["0 64 24", "0 24,64-a 8", "0 8 1"]),
        # Inside out, a limit may move without changing the number of iterations.
        (Schedule().tile("tree", "a", "b", 8).reorder("b", "a"), 16,
         ["0 8 1", "0 16 8"]),
        (Schedule().tile("tree", "a", "b", 8).reorder("b", "a"), 17,
         ["0 8 1", "0 17-b 8"]),
        (Schedule().split("tree", "a", "b", 4), 10, ["0 4 1", "4 10 1"]),
        (Schedule().split("tree", "a", "b", 4), 5, ["0 4 1", "4 5 1"]),
        # The copy of a part that the last block does not reach is left out.
        (
            Schedule()
            .tile("tree", "a", "b", 8)
            .split("b", "c", "d", 4)
            .split("a", "e", "f", 8),
            10,
            ["0 8 8", "0 4 1", "4 8 1", "8 10 8", "0 2 1"],
        ),
        # The place of a second split counts from the start of its loop.
        (Schedule().split("tree", "a", "b", 4).split("b", "c", "d", 4), 10,
         ["0 4 1", "4 8 1", "8 10 1"]),
        (Schedule().split("tree", "a", "b", 4).tile("b", "c", "d", 3), 12,
         ["0 4 1", "4 12 3", "0 3,12-c 1"]),
    ],
)  # fmt: skip
def test_ranges(schedule, n_trees, ranges):
    loops = [lo for lo in all_loops(schedule.loop_nest(n_trees)) if lo.root == "tree"]
    ends = [",".join(str(b).replace(" ", "") for b in loop.bounds) for loop in loops]
    found = [f"{lo.start} {end} {lo.step}" for lo, end in zip(loops, ends, strict=True)]
    assert found == ranges
    for loop, end in zip(loops, ends, strict=True):
        assert (loop.trip_count is None) == ("-" in end)


def test_split_copies_keep_names_and_marks():
    schedule = Schedule().tile("batch", "b0", "b1", 8).split("b0", "c0", "c1", 16)
    schedule = schedule.reorder("tree", "b1").reorder("tree", "c1")
    nest = schedule.interleave("b1", 4).loop_nest(5)
    assert chains(nest) == [["c0", "tree", "b1"], ["tree", "c1", "b1"]]
    marks = [lo.marks for lo in all_loops(nest) if lo.name == "b1"]
    assert marks == [(Interleave("b1", 4),)] * 2
    visited(nest, 33)


def test_interleave_factor():
    def factor(schedule, n_trees=10):
        *_, innermost = all_loops(schedule.loop_nest(n_trees))
        mark = innermost.mark(Interleave)
        return mark and mark.factor

    rows = Schedule().reorder("tree", "batch").tile("batch", "b0", "b1", 16)
    assert factor(Schedule().interleave("tree")) == 10
    assert factor(Schedule().interleave("tree", 4)) == 4
    assert factor(Schedule().interleave("tree", 16)) == 10
    assert factor(Schedule().interleave("tree", 1)) is None
    assert factor(Schedule().interleave("tree"), 1) is None
    assert factor(rows.interleave("b1")) == 16  # the last block may be shorter
    assert factor(rows.interleave("b1", 64)) == 16


@pytest.mark.parametrize(
    ("schedule", "in_order"),
    [
        (Schedule(), True),
        (Schedule().reorder("tree", "batch"), True),
        (Schedule().interleave("tree", 4), True),
        (Schedule().parallel("batch"), True),
        (Schedule().tile("tree", "a", "b", 3), True),
        (Schedule().tile("tree", "a", "b", 3).reorder("a", "batch"), True),
        (Schedule().split("tree", "a", "b", 3), True),
        (Schedule().tile("tree", "a", "b", 3).reorder("b", "a"), False),
        (Schedule().tile("tree", "a", "b", 64).reorder("b", "a"), True),
        (Schedule().parallel("tree"), False),
        (Schedule().gpu_dimension("tree", "grid.x"), False),
        (Schedule().gpu_dimension("batch", "grid.x"), True),
        (Schedule().reorder_trees(), False),
        (Schedule().pad_trees().tile_nodes(4), True),
    ],
)
def test_trees_in_order(schedule, in_order):
    assert schedule.loop_nest(10).trees_in_order is in_order


def test_names_of_an_unknown_number_of_trees():
    directives = Schedule().tile("tree", "a", "b", -3).split("b", "c", "d", 4)
    assert apply_all(directives.directives).draw() == (
        "for batch in 0 to n_rows:\n"
        "  for a in 0 to n_trees step ceil(n_trees / 3):\n"
        "    for c in 0 to 4:\n"
        "    for d in 4 to ceil(n_trees / 3):"
    )


def test_kind_is_that_of_the_schedule():
    schedule = Schedule().gpu_dimension("batch", "grid.x")
    assert bind(schedule, 3) == bind(schedule, 3, "gpu") == schedule.loop_nest(3)
