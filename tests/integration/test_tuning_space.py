"""Tests of ``unit/test_tuning_space.py`` that compile or start processes."""

from __future__ import annotations

import numpy as np
import pytest

from skforge.compiler import driver
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.forest.reference import reference_raw
from skforge.gpu.space import DEALS
from skforge.modules.compiled import compile_forest
from skforge.tuning import ScheduleSpace
from skforge.tuning.measure.measure import digest_of
from tests.programs import run_python
from tests.unit.test_tuning_space import FOREST, SHAPE


@pytest.mark.sampled(2)
@pytest.mark.parametrize("reduction", ["exact", "fast"])
@pytest.mark.parametrize("deal", DEALS)
def test_points_of_the_full_gpu_space_are_schedules_that_predict(deal, reduction):
    """What the language refuses is for want of threads or shared memory only."""
    space = ScheduleSpace.gpu_full().with_values(deal=[deal])
    target = Target.parse("emulated")
    rows = np.random.default_rng(0).normal(size=(40, FOREST.n_features))
    rows = rows.astype(FOREST.input_dtype)
    expected = reference_raw(FOREST, rows).ravel()
    refused, digests = [], set()
    points = space.sample(12, 3)
    for number, point in enumerate(points):
        schedule = space.schedule(point, SHAPE)
        try:
            hir = driver.build_hir(FOREST, schedule, reduction, kind="gpu")
            digests.add(digest_of(driver.lower(hir, target))[0])
        except ScheduleError as error:
            refused.append(str(error).splitlines()[0])
            continue
        if number % 6 == 0 or len(digests) == 1:
            raw = compile_forest(FOREST, schedule, target, reduction).predict_raw(rows)
            most = 1e-5 * np.abs(expected).max() if reduction == "fast" else 0
            assert np.abs(raw - expected).max() <= most
    assert len(digests) > 5
    assert all("threads, more than" in r or "shared memory to" in r for r in refused)


def test_spaces_are_known_in_a_process_that_imports_nothing_else():
    code = (
        "from skforge.tuning import ScheduleSpace as S; "
        "print([s.name for s in (S.cpu(), S.cpu_paper(), S.gpu(), S.gpu_full())])"
    )
    names = [
        make().name
        for make in (
            ScheduleSpace.cpu,
            ScheduleSpace.cpu_paper,
            ScheduleSpace.gpu,
            ScheduleSpace.gpu_full,
        )
    ]
    assert run_python(code) == f"{names}\n"
