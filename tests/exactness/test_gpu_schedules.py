"""GPU schedules in the interpreter of LIR, which stops at races and bad accesses."""

from __future__ import annotations

import numpy as np
import pytest

from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.schedule.directives import Split
from tests.exactness.checks import (
    assert_same_bits,
    assert_sums,
    expected,
    interpreted,
)
from tests.exactness.forests import forest
from tests.exactness.gpu_families import FAMILIES

TARGET = Target.cuda("sm_90", kind="emulated")
FORESTS = ("scalar", "multiclass", "vector 3", "double", "categories", "one leaf")


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", FORESTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_same_bits_as_the_source(family: str, name: str) -> None:
    rows, raw, _ = expected(name)
    made, schedule = forest(name), FAMILIES[family]
    splits = [d.at for d in schedule.directives if isinstance(d, Split)]
    if splits and made.n_trees <= max(splits):
        with pytest.raises(ScheduleError, match=f"goes over {made.n_trees} tree"):
            interpreted(made, schedule, rows[:1], target=TARGET)
        return
    for n in (1, 9):
        got = interpreted(made, schedule, rows[:n], target=TARGET, shuffle=n)
        assert_same_bits(got, raw[:n], (family, name, n))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("representation", ["array", "sparse", "reorg"])
@pytest.mark.parametrize(
    "family", ["shared forest by tiles", "splitting", "two dimensions"]
)
def test_representations(family: str, representation: str) -> None:
    schedule = FAMILIES[family].represent(representation)
    rows, raw, _ = expected("multiclass")
    got = interpreted(forest("multiclass"), schedule, rows[:9], target=TARGET)
    assert_same_bits(got, raw[:9], (family, representation))


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", ["scalar", "multiclass", "vector 3"])
@pytest.mark.parametrize("family", FAMILIES)
def test_fast_is_within_its_bound(family: str, name: str) -> None:
    made, rows = forest(name), expected(name)[0][:9]
    got = interpreted(
        made, FAMILIES[family], rows, reduction="fast", target=TARGET, shuffle=3
    )
    assert_sums(got, made, rows, "fast", (family, name))


@pytest.mark.parametrize("name", ["scalar", "vector 3"])
def test_reproducible_is_the_same_in_every_schedule(name: str) -> None:
    rows, _, _ = expected(name)
    seen = {
        interpreted(
            forest(name),
            schedule,
            rows[:9],
            reduction="reproducible",
            target=TARGET,
            shuffle=5,
        ).tobytes()
        for schedule in FAMILIES.values()
    }
    assert len(seen) == 1


@pytest.mark.parametrize("family", ["direct", "shared data", "two dimensions"])
def test_apply(family: str) -> None:
    rows, _, leaves = expected("scalar")
    got = interpreted(
        forest("scalar"),
        FAMILIES[family],
        rows[:9],
        element="leaf_number",
        target=TARGET,
    )
    assert_same_bits(got, leaves[:9].astype(np.int32), family)
