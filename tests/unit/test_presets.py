"""Known strategies: their loops are what the papers print."""

from __future__ import annotations

import pytest

from skforge.exceptions import ScheduleError
from skforge.schedule import PRESETS
from skforge.schedule.schedule import Schedule
from tests.refusals import error_of
from tests.unit.test_schedule import check_value

GPU = {
    "tahoe-direct", "tahoe-shared-data", "tahoe-shared-forest",
    "tahoe-splitting-shared-forest", "rapids", "xgboost-gpu", "hummingbird",
    "subtrees", "forest-stationary",
}  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_preset(name, golden):
    schedule = check_value(Schedule.preset(name))
    assert schedule.kind == ("gpu" if name in GPU else "cpu")
    golden(f"{schedule.explain(1000)}\n", "explain")


def test_every_size_is_used():
    for name, make in PRESETS.items():
        for size in make.__annotations__:
            if size != "return":
                assert Schedule.preset(name, **{size: 3}) != Schedule.preset(name), (
                    name,
                    size,
                )


def test_unknown_preset():
    assert error_of(ScheduleError, Schedule.preset, "xgb") == (
        '\'xgb\' is not a preset; the presets are "xgboost", "treebeard-tree", '
        '"treebeard-row", "tahoe-direct", "tahoe-shared-data", "tahoe-shared-forest", '
        '"tahoe-splitting-shared-forest", "rapids", "xgboost-gpu", "hummingbird", '
        '"subtrees", "forest-stationary", "parallel-rows", "parallel-trees", '
        '"parallel-both", "small-batch", "predicate-tiles".'
    )


def test_unknown_size():
    assert error_of(ScheduleError, Schedule.preset, "parallel-both", threads=4) == (
        'The preset "parallel-both" has no size "threads"; it takes rows=64, tiles=2.'
    )


def test_preset_without_sizes():
    assert error_of(ScheduleError, Schedule.preset, "tahoe-shared-data", rows=4) == (
        'The preset "tahoe-shared-data" has no size "rows"; it takes no sizes.'
    )


def test_bad_size():
    assert error_of(ScheduleError, Schedule.preset, "xgboost", rows=0) == (
        'tile("batch", "b0", "b1", 0) needs a size other than 0; a negative size is '
        "the number of outer iterations.\n"
        "  for batch in 0 to n_rows:        <-- here\n"
        "    for tree in 0 to n_trees:"
    )
