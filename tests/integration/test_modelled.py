"""Modelled profiles of CPUs, and how their assembly is read."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from skforge.cli import doctor
from skforge.compiler.cost.profile import GENERIC, MODELLED, STORED, MachineProfile
from skforge.compiler.target import Target
from skforge.engine import machine
from skforge.engine.cpu.jit import emit_assembly
from skforge.engine.machine import functions

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from modelled import CPUS, inner_loops, target_of

CASES = [(cpu, bits) for cpu in CPUS for bits in cpu.widths]


@pytest.mark.parametrize("cpu,bits", CASES, ids=lambda one: getattr(one, "name", one))
def test_every_kernel_has_one_loop_whatever_the_cpu(cpu, bits):
    target = target_of(cpu, bits)
    made = functions(target)
    assert ("gather" in made) == target.has_gather
    for name, function in made.items():
        (loop,) = inner_loops(emit_assembly(function, target))
        loads = {"compare": 8, "stream": 2, "chase": 1}.get(name, 0)
        assert loads + 2 <= len(loop) < 80
        gathers = name == "gather" and bits > 128  # two numbers are two loads
        assert ("gather" in "".join(loop)) == gathers


def test_every_modelled_cpu_is_stored_and_unlike_the_common_one():
    assert not set(MODELLED) & set(STORED)
    expected = {(cpu.name, bits) for cpu, bits in CASES} - set(STORED)
    assert set(MODELLED) == expected
    for (_, bits), profile in MODELLED.items():
        assert profile != GENERIC[bits]
        found = asdict(profile)
        assert all(0 < value < 100 for value in found.values())
        for kind in ("line", "wait"):
            levels = [found[f"{kind}_l{level}"] for level in (1, 2, 3)]
            assert levels == sorted(levels)


def test_a_modelled_cpu_is_measured_where_it_can_be(monkeypatch, tmp_path):
    target = replace(Target.x86_64("v3"), cpu="znver3")
    assert machine.machine_profile(target) == MODELLED["znver3", 256]
    assert not MachineProfile.is_stored(target)
    monkeypatch.setattr(Target, "host", classmethod(lambda cls: target))
    monkeypatch.setattr(machine, "USED", {})
    monkeypatch.setenv("SKFORGE_CACHE", "off")
    assert machine.machine_profile(target) == MODELLED["znver3", 256]
    text = "stored with skforge, modelled and not measured"
    assert doctor._profile(target, None) == {"profile": text}
    monkeypatch.setenv("SKFORGE_CACHE", "on")
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "measure", lambda _: asdict(GENERIC[256]))
    assert machine.machine_profile(target) == GENERIC[256].settled(target)
