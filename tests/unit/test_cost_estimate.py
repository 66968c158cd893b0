"""The estimate of a schedule's time, and the profile of the machine it needs."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from skforge.compiler.cost.coefficients import COEFFICIENTS, SPREAD
from skforge.compiler.cost.estimate import CostEstimate
from skforge.compiler.cost.profile import MachineProfile
from skforge.compiler.cost.terms import TERMS
from skforge.compiler.defaults.cpu import candidates
from skforge.compiler.defaults.walks import walking_schedules
from skforge.compiler.runtime import machine, object_cache
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
    assert set(COEFFICIENTS) == set(SPREAD) == set(TERMS)
    estimate = CostEstimate(drawn(20, 6), V4)
    narrow = CostEstimate(drawn(20, 6), V3)
    schedules = {estimate.kind(s): s for s in candidates(drawn(20, 6), V4)}
    schedules |= {
        estimate.kind(s): s for s in walking_schedules(drawn(20, 6), V4).values()
    }
    for kind, own in COEFFICIENTS.items():
        terms = {
            **estimate.terms(schedules[kind], 64),
            **narrow.terms(schedules[kind], 64),
        }
        assert set(own) <= set(terms)
        assert SPREAD[kind] > 1


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


# -------------------------------------------------------------------- machines


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Target:
    """Return this machine as a CPU that no profile is stored for, and a cache."""
    monkeypatch.setenv("SKFORGE_CACHE", "on")
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path / "cache"))
    made = replace(Target.host(), cpu="unheard-of")
    monkeypatch.setattr(Target, "host", classmethod(lambda cls: made))
    machine.machine_profile.cache_clear()
    return made


def test_an_unknown_machine_is_measured_once(
    unknown: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    profile = replace(MachineProfile.of(unknown), mux=0.125)

    def measured(target: Target) -> dict[str, float]:
        calls.append(target)
        return asdict(profile)

    monkeypatch.setattr(machine, "measure", measured)
    for _ in range(2):  # the second time as another process
        assert machine.machine_profile(unknown) == profile
        machine.machine_profile.cache_clear()
    assert calls == [unknown]
    file = machine.kept_in(unknown)
    assert file is not None and file.is_file()
    for damage in ("", "[]", '{"mux": 1}', '{"mux": -1}'):
        object_cache.write(file.name, "machines", [damage.encode()])
        assert machine.machine_profile(unknown) == profile
        machine.machine_profile.cache_clear()
    assert len(calls) == 5


def test_without_a_cache_a_common_cpu_stands_in(
    unknown: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKFORGE_CACHE", "off")
    monkeypatch.setattr(machine, "measure", None)
    assert machine.machine_profile(unknown) == MachineProfile.of(unknown)
    assert machine.kept_in(unknown) is None


@pytest.mark.parametrize("level", ["host", "v2", "v3"])
def test_a_profile_can_be_measured(level: str) -> None:
    target = Target.host() if level == "host" else Target.x86_64(level)
    if target.arch != Target.host().arch:
        pytest.skip("another architecture")
    found = MachineProfile(**machine.measure(target))
    assert all(0 < value < 1e5 for value in asdict(found).values())


def test_other_machines_have_stored_profiles() -> None:
    """They are not measured: code for them may be made anywhere."""
    assert machine.machine_profile(V3) == MachineProfile.of(V3)
    assert MachineProfile.is_stored(replace(V4, cpu="emeraldrapids"))
