"""GPU schedules that are refused by what the compiler says, before anything is run."""

from __future__ import annotations

import pytest

from skforge.compiler import driver
from skforge.compiler.target import Target
from skforge.exceptions import TargetError
from skforge.gpu.runtime import compilers as gpu_compilers
from skforge.gpu.runtime.compilers import KernelResources
from skforge.gpu.search import spills
from skforge.schedule.schedule import Schedule
from skforge.tuning import Tuner
from skforge.tuning.space.space import ScheduleSpace
from tests.exactness.forests import drawn

FOREST = drawn(100, 6)
TARGET = Target.cuda("sm_90")
FEW = Schedule.preset("tahoe-direct", rows=1024).interleave("tree", 4)
MANY = Schedule.preset("tahoe-direct", rows=1024).interleave("tree", 64)


def judged(schedule, target=TARGET):
    hir = driver.build_hir(FOREST, schedule, "exact", kind="gpu")
    return spills(schedule, driver.lower(hir, target), target)


def says(monkeypatch, **used):
    """Let the compiler report what a kernel takes."""

    def resources_of(source, arch, kind):
        assert (arch, kind) == ("sm_90", "cuda") and "SKF_KERNEL(1024)" in source
        return {"predict_0": KernelResources(**{**PLAIN, **used})}

    monkeypatch.setattr("skforge.gpu.search.resources_of", resources_of)


PLAIN = {"registers": 32, "spill_bytes": 0, "stack_bytes": 0, "shared_bytes": 0}


def test_the_compiler_s_report_decides(monkeypatch):
    says(monkeypatch)
    assert judged(MANY) == ""
    for kind in ("spill_bytes", "stack_bytes"):
        says(monkeypatch, registers=64, **{kind: 24})
        assert judged(FEW) == (
            "predict_0 uses 24 bytes of local memory per thread, besides 64 registers "
            "(sm_90)"
        )


def test_without_a_compiler_a_model_decides(monkeypatch):
    def missing(*_):
        raise TargetError("NVRTC was not found")

    monkeypatch.setattr("skforge.gpu.search.resources_of", missing)
    assert judged(FEW) == ""
    assert judged(MANY) == (
        "64 walks in flight need at least 140 registers per thread (estimated, "
        "because no compiler is installed), but a block of 1024 threads leaves 64"
    )


def test_nvrtc_says_what_spills(tmp_path, monkeypatch):
    pytest.importorskip("nvidia")
    try:
        gpu_compilers.compiler_version("cuda")
    except TargetError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path))
    assert judged(FEW) == ""
    assert "bytes of local memory per thread" in judged(MANY)
    # The code is kept: it is what a device would load.
    monkeypatch.setattr(gpu_compilers, "compile_text", None)
    assert judged(FEW) == ""


def test_searches_leave_out_what_spills(monkeypatch):
    def resources_of(source, arch, kind):
        stack = 16 if "SKF_KERNEL(64)" in source else 0
        names = [f"predict_{i}" for i in range(3)]
        return {n: KernelResources(**{**PLAIN, "stack_bytes": stack}) for n in names}

    monkeypatch.setattr("skforge.gpu.search.resources_of", resources_of)
    both = [Schedule.preset("tahoe-direct", rows=n) for n in (64, 96)]
    result = Tuner("exhaustive", ScheduleSpace.of(both)).tune(
        FOREST, target="emulated", ranges={(1, None): 200}, budget=60
    )
    rows = {t.schedule: t for t in result.trials if t.candidate.origin == "exhaustive"}
    assert rows[both[0]].status == "spills" and not rows[both[0]].samples
    assert rows[both[1]].status in ("measured", "stopped")
