"""Tests of ``unit/test_driver.py`` that compile or start processes."""

from __future__ import annotations

from collections import Counter

import pytest

from skforge.compiler import driver
from skforge.compiler.ir.mir import nodes as mir
from skforge.modules.compiled import compile_forest
from tests.exactness.forests import forest
from tests.unit.test_driver import SCHEDULES


@pytest.mark.parametrize("name", SCHEDULES)
def test_checking_and_compiling_run_each_pass_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: Counter[str] = Counter()

    def counted(step: driver.NamedPass) -> driver.NamedPass:
        def run(function: mir.Function, stage: driver.Stage) -> mir.Function:
            runs[step.name] += 1
            return step.run(function, stage)

        return driver.NamedPass(step.name, run)

    monkeypatch.setattr(driver, "MIR_PASSES", tuple(map(counted, driver.MIR_PASSES)))
    module = compile_forest(forest("scalar"), SCHEDULES[name])
    before = dict(runs)
    module.compile_all()
    assert runs == dict.fromkeys((step.name for step in driver.MIR_PASSES), 1)
    assert ("take-blocks" in before) == (name != "walks")
