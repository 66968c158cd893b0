"""Tests of ``unit/test_default_gpu_schedule.py`` that compile or start processes."""

from __future__ import annotations

import numpy as np
import pytest

from skforge.compiler.ir.hir.nodes import Reduction
from skforge.compiler.target import Target
from skforge.gpu.defaults import default_gpu_schedules
from skforge.modules.compiled import compile_forest
from tests.exactness.checks import assert_same_bits, expected, raw_of
from tests.exactness.forests import drawn, forest
from tests.unit.test_default_gpu_schedule import REDUCTIONS


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ["scalar", "multiclass many", "vector 3", "double"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_defaults_are_right(name: str, reduction: Reduction) -> None:
    made = forest(name)
    rows, raw, _ = expected(name)
    batch = np.resize(rows, (130, rows.shape[1]))
    wanted = np.resize(raw, (130, raw.shape[1]))
    table = default_gpu_schedules(made, Target.cuda("sm_90"), reduction)
    for schedule in set(table.values()):
        module = compile_forest(made, schedule, "emulated", reduction)
        for n in (1, 33, 130):
            got = raw_of(module, batch[:n])
            if reduction == "exact":
                assert_same_bits(got, wanted[:n], (name, n, schedule))
            else:
                np.testing.assert_allclose(got, wanted[:n], rtol=1e-3, atol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["many trees", "shallow", "deep", "categories"])
def test_defaults_of_larger_forests_are_exact(kind: str) -> None:
    made = {
        "many trees": lambda: drawn(300, 3, n_outputs=3),
        "shallow": lambda: drawn(70, 4, shape="full"),
        "deep": lambda: drawn(40, 12),
        "categories": lambda: drawn(40, 5, category_words=4),
    }[kind]()
    from skforge.forest.reference import reference_raw

    rows = np.random.default_rng(0).standard_normal((70, made.n_features))
    rows = rows.astype(np.float32)
    wanted = reference_raw(made, rows)
    table = default_gpu_schedules(made, Target.cuda("sm_90"))
    for schedule in set(table.values()):
        got = raw_of(compile_forest(made, schedule, "emulated"), rows)
        assert_same_bits(got, wanted, (kind, schedule))
