"""Tests of ``unit/test_lower_to_lir.py`` that compile or start processes."""

from __future__ import annotations

import numpy as np
import pytest

from skforge.modules.compiled import compile_forest
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import assert_same_bits, expected, raw_of
from tests.exactness.forests import forest
from tests.unit.test_lower_to_lir import lowered


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(),
        Schedule().specialize("tree"),
        Schedule().reorder("tree", "batch").parallel("tree"),
        Schedule().unroll_walk("tree", 3).interleave("tree", 4),
        Schedule().tile_nodes(4).cache("tree"),
        Schedule().represent("array").reorder_trees(),
        Schedule().represent("reorg").pad_trees(),
    ],
)
def test_a_forest_of_no_trees_answers_its_base(schedule: Schedule) -> None:
    # it has no depths to take the least of, nor depth classes to switch on
    made = forest("no trees")
    rows = np.ones((3, made.n_features), np.float32)
    for reduction in ("exact", "fast", "reproducible"):
        module = compile_forest(made, schedule, reduction=reduction)
        assert_same_bits(raw_of(module, rows), np.tile(made.base, (3, 1)), reduction)
    assert module.apply(rows).shape == (3, 0)


def test_each_table_of_depth_classes_is_its_own_buffer(monkeypatch) -> None:
    """Two specialised loops of one function switch on different tables."""
    made = forest("mixed trees")
    schedule = Schedule().split("tree", "s0", "s1", 5).specialize("s0").specialize("s1")
    kernel = lowered("mixed trees", schedule).kernel
    tables = [d for d in kernel.data if d.buffer.name.startswith("depth_classes")]
    assert len(tables) == 2
    assert not np.array_equal(tables[0].data, tables[1].data)
    rows, raw, _ = expected("mixed trees")
    assert_same_bits(raw_of(compile_forest(made, schedule), rows), raw, "split")
