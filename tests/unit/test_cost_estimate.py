"""The estimate of a schedule's time, and the profile of the machine it needs."""

from __future__ import annotations

import numpy as np
import pytest

from skforge.compiler.cost.coefficients import COEFFICIENTS
from skforge.compiler.cost.estimate import TERMS, CostEstimate, plan_of
from skforge.compiler.defaults.cpu import candidates
from skforge.compiler.defaults.walks import walking_schedules
from skforge.compiler.schedule.families import bitsliced_schedule
from skforge.compiler.schedule.schedule import Schedule
from skforge.compiler.target import Target
from tests.exactness.forests import drawn, forest

V3, V4 = Target.x86_64("v3"), Target.x86_64("v4")
SIZES = np.array([1, 7, 64, 512, 4096])


@pytest.mark.parametrize("target", [V3, V4, Target.aarch64()], ids=str)
@pytest.mark.parametrize("name", ["scalar", "categories", "multiclass", "deep"])
def test_every_default_has_a_time_that_grows_with_rows(
    name: str, target: Target
) -> None:
    made = forest(name)
    estimate = CostEstimate(made, target)
    walks = walking_schedules(made, target).values()
    for schedule in {*walks, *candidates(made, target)}:
        seconds = estimate.seconds(schedule, SIZES)
        assert np.isfinite(seconds).all() and (seconds > 0).all()
        assert (np.diff(seconds) >= 0).all()
        assert seconds[-1] > seconds[0]


def test_more_trees_and_more_features_cost_more() -> None:
    few, many = drawn(20, 6), drawn(200, 6)
    for schedule in candidates(few, V4):
        times = [CostEstimate(one, V4).seconds(schedule, 512) for one in (few, many)]
        assert times[0] < times[1]


def test_coefficients_belong_to_terms() -> None:
    assert set(COEFFICIENTS) == set(TERMS)
    estimate = CostEstimate(drawn(20, 6), V4)
    narrow = CostEstimate(drawn(20, 6), V3)
    schedules = {estimate.kind(s): s for s in candidates(drawn(20, 6), V4)}
    schedules |= {
        estimate.kind(s): s for s in walking_schedules(drawn(20, 6), V4).values()
    }
    for kind, own in COEFFICIENTS.items():
        terms = {
            **estimate.terms(plan_of(schedules[kind]), 64),
            **narrow.terms(plan_of(schedules[kind]), 64),
        }
        assert set(own) <= set(terms)


def test_threads_share_blocks() -> None:
    estimate = CostEstimate(drawn(20, 6), V4)
    schedule = bitsliced_schedule(512)
    one, two = (estimate.seconds(schedule, [512, 4096], n) for n in (1, 2))
    assert two[0] == one[0]  # a single block
    assert two[1] == one[1] / 2


def test_schedules_of_gpus_are_not_estimated() -> None:
    estimate = CostEstimate(drawn(20, 6), V4)
    schedule = Schedule.preset("rapids")
    assert estimate.kind(schedule) is None
    assert np.isinf(estimate.seconds(schedule, 64))
