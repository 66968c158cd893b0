"""Sets of categories: every edge of a set, and sets of more than 2**24."""

from __future__ import annotations

import numpy as np
import pytest

from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.predicates import deduplicate_predicates
from skforge.forest.reference import reference_raw
from skforge.modules.compiled import compile_forest
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import assert_same_bits, levels, raw_of

WORDS = (1 << 19) + 64
LAST = WORDS * 32 - 1
VALUES = (
    *(0, 1, 2, 2.5, -0.0, -0.5, -1, 31, 32),
    *((1 << 24) - 1, 1 << 24, (1 << 24) + 1, (1 << 24) + 2),
    *(LAST - 31, LAST - 17, LAST - 1, LAST, LAST + 1, LAST + 33),
    *(1e9, 2.0**31, 3e9, 2.0**32, 5e9, 1e20, np.inf, -np.inf, np.nan),
)
SCHEDULES = {
    "walk": Schedule(),
    "lanes": Schedule().reorder("tree", "batch").vectorize("batch"),
    "node tiles": Schedule().tile_nodes(2).represent("array"),
    "bit-sliced": Schedule()
    .tile("batch", "b0", "b1", 64)
    .reorder("b0", "tree", "b1")
    .cache_predicates("b0")
    .vectorize("b1")
    .represent("bitsliced"),
}


def of_one_set(dtype: str, missing: Missing, test: Comparison) -> Forest:
    words = np.zeros(WORDS, np.uint32)
    words[[0, 1 << 19, -1]] = 5, 1, 0xFFFF0000
    fields, _ = deduplicate_predicates(
        feature=np.array([0]),
        comparison=np.array([test]),
        threshold=np.zeros(1, dtype),
        missing=np.array([missing]),
        missing_left=np.array([True]),
        categories={0: words},
    )
    return Forest(
        tree_offset=np.array([0, 3]),
        tree_output=np.array([0]),
        predicate=np.array([0, -1, -1]),
        left=np.array([1, -1, -1]),
        right=np.array([2, -1, -1]),
        leaf=np.array([-1, 0, 1]),
        source_node=np.arange(3),
        cover=np.zeros(0),
        leaf_value=np.array([[1.0], [2.0]], np.float32),
        n_features=1,
        base=np.zeros(1, np.float32),
        **fields,
    ).validate()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_values_at_the_edges_of_a_huge_set(schedule: str, dtype: str) -> None:
    rows = np.array(VALUES, dtype).reshape(-1, 1)
    for missing in (Missing.NAN, Missing.NEVER):
        for test in (Comparison.IN, Comparison.NOT_IN):
            made = of_one_set(dtype, missing, test)
            wanted = reference_raw(made, rows)
            assert len(np.unique(wanted)) == 2
            for target in ("cpu", *levels().values()):
                module = compile_forest(made, SCHEDULES[schedule], target)
                assert_same_bits(raw_of(module, rows), wanted, (missing, test, target))
