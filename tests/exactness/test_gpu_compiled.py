"""Random forests under random GPU schedules, through everything a call goes through.

``test_gpu_random`` runs the interpreter, which sees races and is slow. Here LLVM runs
the same schedules on threads of the CPU, for batches of all sizes, and g++ runs the
text of some under AddressSanitizer.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from skforge.compiler import driver
from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.ir.lir.nodes import Function
from skforge.exceptions import ScheduleError
from skforge.forest.forest import Forest
from skforge.forest.reference import reference_leaves, reference_raw
from skforge.modules.compiled import compile_forest
from skforge.schedule.schedule import Schedule
from tests.exactness.checks import assert_same_bits, assert_sums, raw_of
from tests.exactness.gpu_families import REFUSALS
from tests.simt_tools import TARGET, Batch, need
from tests.strategies_forest import edge_rows, random_forest
from tests.strategies_schedule import legal_gpu_schedules
from tests.turns import random_test

BATCHES = (0, 1, 2, 63, 64, 65, 1000)
REDUCTIONS: tuple[Reduction, ...] = ("exact", "exact", "fast", "reproducible")

Draw = tuple[Forest, Schedule, Reduction]


@st.composite
def draws(draw: st.DrawFn, max_trees: int = 9, max_depth: int = 5) -> Draw:
    """Draw a forest, a schedule for it, and a way to add."""
    made = draw(random_forest(max_trees=max_trees, max_depth=max_depth))
    schedule = draw(legal_gpu_schedules(n_trees=made.n_trees))
    return made, schedule, draw(st.sampled_from(REDUCTIONS))


def is_known(error: ScheduleError) -> bool:
    return any(words in str(error) for words in REFUSALS)


def check_compiled(data: st.DataObject) -> None:
    made, schedule, reduction = data.draw(draws())
    try:
        module = compile_forest(made, schedule, "emulated", reduction)
        rows = edge_rows(made, max(BATCHES), seed=2)
        every = raw_of(module, rows)
    except ScheduleError as error:
        assert is_known(error), error
        return
    assert_sums(every, made, rows, reduction, schedule)
    in_order = reduction != "fast"
    for n in BATCHES[:-1]:
        part = raw_of(module, rows[:n], n_jobs=data.draw(st.sampled_from([1, 3])))
        if in_order:
            assert_same_bits(part, every[:n], (schedule, n))
        else:
            assert_sums(part, made, rows[:n], reduction, (schedule, n))
    shared = raw_of(module, rows, n_jobs=4)
    if in_order:
        assert_same_bits(shared, every, (schedule, "four threads"))
    else:
        assert_sums(shared, made, rows, reduction, (schedule, "four threads"))
    leaves = made.source_node[reference_leaves(made, rows[:65])]
    for n in (1, 65):
        found = module.apply(rows[:n], n_jobs=2)
        assert_same_bits(found, leaves[:n], (schedule, "apply", n))


test_random_schedules = random_test(check_compiled, 4, 600)


# ---------------------------------------------------------------- the text


@lru_cache(maxsize=2)
def drawn(count: int) -> tuple[tuple[Draw, Function, dict[str, Any]], ...]:
    """Return draws whose schedules fit, always the same, and their kernels."""
    found: list[tuple[Draw, Function, dict[str, Any]]] = []

    @settings(
        max_examples=count, derandomize=True, database=None, phases=[Phase.generate]
    )
    @given(draws())
    def collect(drawn: Draw) -> None:
        made, schedule, reduction = drawn
        try:
            hir = driver.build_hir(made, schedule, reduction, kind="gpu")
            kernel = driver.lower(hir, TARGET).kernel
        except ScheduleError as error:
            assert is_known(error), error
            return
        data = {item.buffer.name: item.data for item in kernel.data}
        found.append((drawn, kernel.function, data))

    collect()
    return tuple(found)


def check_text(count: int, of_each: int) -> None:
    """Run drawn kernels, ``of_each`` to a text, where no access is out of bounds."""
    need("address")
    kernels = drawn(count)
    for first in range(0, len(kernels), of_each):
        some = kernels[first : first + of_each]
        with Batch([function for _, function, _ in some], "address") as batch:
            for number, ((made, schedule, reduction), _, model) in enumerate(some):
                for n in (1, 17):
                    rows = edge_rows(made, n, seed=n)
                    raw = reference_raw(made, rows)
                    args = {
                        "rows": rows.reshape(-1),
                        "n_rows": n,
                        "row_stride": rows.shape[1],
                        "result": np.full(raw.shape, 77, made.leaf_value.dtype),
                        **model,
                    }
                    got = batch.run(number, args, order=n)["result"]
                    if made.divisor != 1:
                        got /= made.divisor
                    assert_sums(got, made, rows, reduction, schedule)


@pytest.mark.parametrize(
    ("count", "of_each"), [(5, 5), pytest.param(300, 30, marks=pytest.mark.slow)]
)
def test_random_texts_read_and_write_what_is_theirs(count: int, of_each: int) -> None:
    check_text(count, of_each)
