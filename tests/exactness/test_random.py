"""Random forests under random legal schedules: reference, interpreter and LLVM."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from hypothesis import event
from hypothesis import strategies as st

from skforge.compiler.ir.hir.nodes import Reduction
from skforge.exceptions import ScheduleError
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.reference import reference_leaves
from skforge.modules.compiled import CompiledModule, compile_forest
from tests.exactness.checks import assert_same_bits, assert_sums, interpreted, raw_of
from tests.strategies_forest import edge_rows, random_forest
from tests.strategies_schedule import changed_schedules, legal_schedules
from tests.turns import random_test

#: Forests as some library makes them, which more representations take.
KINDS: tuple[dict[str, Any], ...] = (
    {"max_trees": 7},
    {"max_trees": 12, "max_depth": 5, "comparisons": (Comparison.LE,)},
    {
        "max_depth": 4,
        "categories": False,
        "uniform_comparison": True,
        "missing": (Missing.NAN,),
    },
)

# What compiling refuses: complete trees of deep chains, node tiles.
REFUSED = r"represent\("


#: Rows before, at and after the ends of blocks.
EDGES = (63, 64, 65, 127, 128, 129, 257)


def check_compiled(data: st.DataObject, changed: bool) -> None:
    """A schedule returns the right bits, or an error that draws its loops."""
    kind = data.draw(st.sampled_from(KINDS if changed else KINDS[:1]))
    made = data.draw(random_forest(**kind))
    if changed:
        schedule = data.draw(changed_schedules(made.n_trees))
    else:
        schedule = data.draw(legal_schedules(n_trees=(made.n_trees,)))
    n = data.draw(st.one_of(st.integers(0, 70), st.sampled_from(EDGES)))
    reduction = data.draw(st.sampled_from(["exact", "exact", "fast", "reproducible"]))
    try:
        module = compile_forest(made, schedule, reduction=reduction)
    except ScheduleError as error:
        event("refused")
        assert error.nest if changed else re.search(REFUSED, str(error)), error
        return
    event("compiled and compared")
    compare(module, edge_rows(made, n, seed=1), reduction)


def compare(module: CompiledModule, rows: np.ndarray, reduction: Reduction) -> None:
    made = module.forest
    for n_jobs in (1, 3):
        assert_sums(raw_of(module, rows, n_jobs), made, rows, reduction, n_jobs)
    leaves = made.source_node[reference_leaves(made, rows)]
    assert_same_bits(module.apply(rows, n_jobs=3), leaves, "apply")


def check_interpreted(data: st.DataObject) -> None:
    made = data.draw(random_forest(max_trees=4, max_depth=4))
    schedule = data.draw(legal_schedules(n_trees=(made.n_trees,)))
    n = data.draw(st.integers(0, 9))
    reduction = data.draw(st.sampled_from(["exact", "fast", "reproducible"]))
    rows = edge_rows(made, n, seed=2)
    try:
        module = compile_forest(made, schedule, reduction=reduction)
    except ScheduleError as error:
        assert re.search(REFUSED, str(error)), error
        return
    got = interpreted(made, schedule, rows, reduction=reduction, shuffle=None)
    assert_same_bits(got, raw_of(module, rows), "interpreter and LLVM")
    mixed = interpreted(made, schedule, rows, reduction=reduction, shuffle=7)
    if reduction != "fast":  # the order of atomic additions is open there
        assert_same_bits(mixed, got, "shuffled")
    leaves = interpreted(made, schedule, rows, element="leaf_number", shuffle=7)
    assert_same_bits(leaves, module.apply(rows), "apply")


test_compiled_code_is_the_reference = random_test(
    check_compiled, 5, 1500, st.data(), st.just(False)
)
test_changed_schedules_are_right_or_refused = random_test(
    check_compiled, 10, 4000, st.data(), st.just(True)
)
test_the_interpreter_is_compiled_code = random_test(check_interpreted, 5, 1500)
