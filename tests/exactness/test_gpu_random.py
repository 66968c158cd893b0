"""Random forests under random GPU schedules, in the interpreter of LIR."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.forest.reference import reference_leaves
from tests.exactness.checks import assert_same_bits, assert_sums, interpreted
from tests.exactness.gpu_families import REFUSALS
from tests.strategies_forest import edge_rows, random_forest
from tests.strategies_schedule import changed_schedules, legal_gpu_schedules
from tests.turns import random_test

TARGET = Target.cuda("sm_90", kind="emulated")


def check_interpreted(data: st.DataObject, changed: bool) -> None:
    made = data.draw(random_forest(max_trees=7, max_depth=4))
    if changed:
        schedule = data.draw(changed_schedules(made.n_trees, on_gpu=True))
    else:
        schedule = data.draw(legal_gpu_schedules(n_trees=made.n_trees))
    n = data.draw(st.integers(0, 17))
    reduction = data.draw(st.sampled_from(["exact", "exact", "fast", "reproducible"]))
    rows = edge_rows(made, n, seed=2)
    try:
        got = interpreted(
            made, schedule, rows, reduction=reduction, target=TARGET, shuffle=7
        )
    except ScheduleError as error:
        words = str(error)
        known = error.nest if changed else any(word in words for word in REFUSALS)
        assert known, error
        return
    assert_sums(got, made, rows, reduction, schedule)
    leaves = interpreted(
        made, schedule, rows, element="leaf_number", target=TARGET, shuffle=7
    )
    found = made.source_node[reference_leaves(made, rows)]
    assert_same_bits(leaves, found.astype(np.int32), "apply")


test_random_schedules = random_test(
    check_interpreted, 5, 2000, st.data(), st.just(False)
)
test_changed_schedules = random_test(
    check_interpreted, 5, 400, st.data(), st.just(True)
)
