"""Tests of ``unit/test_machine_profile.py`` that compile or start processes."""

from __future__ import annotations

import pytest

from skforge.compiler.cost.profile import MachineProfile
from skforge.compiler.target import Target
from skforge.engine import machine

# ------------------------------------------------------------------- real kernels


@pytest.mark.parametrize("level", ["host", "v2", "v3"])
def test_a_profile_can_be_measured(level: str) -> None:
    target = Target.host() if level == "host" else Target.x86_64(level)
    if target.arch != Target.host().arch:
        pytest.skip("another architecture")
    works = machine.works_of(target, machine.fine_clock())
    seconds = {name: work(4 * least) for name, (work, least, _) in works.items()}
    assert all(value > 0 for value in seconds.values())
    found = machine.without_kernels(seconds, target)
    assert set(found) == set(MachineProfile.__dataclass_fields__)
