"""GPU targets that a CPU runs, through everything a user calls."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import skforge
from skforge import CompiledForest, Schedule, Target, compile_forest
from skforge.engine.targets import resolve_target
from skforge.exceptions import InvalidInputError, ScheduleError, TargetError
from skforge.gpu.defaults import default_gpu_schedules, walking_gpu_schedule
from skforge.gpu.lowering import lower_grids
from skforge.gpu.runtime import kernel as gpu_runtime
from tests import kinds
from tests.exactness.checks import assert_same_bits as same_bits
from tests.exactness.checks import expected
from tests.exactness.forests import forest
from tests.refusals import error_of
from tests.simt import EMULATED_SOURCE

needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
SCHEDULES = {
    "auto": "auto",
    "direct": Schedule.preset("tahoe-direct", rows=64).cache("b0"),
    "rapids": Schedule.preset("rapids", threads=32),
    "shared forest": Schedule.preset("tahoe-shared-forest", rows=32),
}


def _same(found, wanted, what="") -> None:
    same_bits(np.asarray(found), np.asarray(wanted), what)


X, CLASSES = kinds.GAPS.astype(np.float32), kinds.THREE
FOREST = kinds.MODELS["forest of three"]
SOURCES = "forest of three", "hist of names", "xgboost of three", "lightgbm of names"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("source", SOURCES)
def test_emulated_predictions_are_the_source_s_bits(source: str, name: str) -> None:
    model = kinds.MODELS[source].fitted()
    fast = CompiledForest(model, target="emulated", schedule=SCHEDULES[name]).fit(X)
    for n in (1, 7, len(X)):
        _same(fast.predict(X[:n]), model.predict(X[:n]), n)
        _same(fast.predict_proba(X[:n]), model.predict_proba(X[:n]), n)
    assert fast.target_.kind == "emulated"
    assert fast.gpu_min_rows_ is None


@pytest.mark.parametrize("target", ["emulated", EMULATED_SOURCE])
def test_two_threads_at_once(target: str) -> None:
    if target == EMULATED_SOURCE and shutil.which("g++") is None:
        pytest.skip("needs g++")
    rows, raw, leaves = expected("multiclass")
    module = compile_forest(forest("multiclass"), target=target)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(module.predict_raw, [rows] * 8))
        numbers = list(pool.map(module.apply, [rows] * 4))
    for one in found:
        _same(one, raw)
    for one in numbers:
        _same(one, leaves)


def test_blocks_are_shared_among_threads(monkeypatch) -> None:
    from skforge.engine import shares

    monkeypatch.setattr(shares, "WAKE", 0.0)
    monkeypatch.setattr(shares, "thread_limit", lambda: None)
    rows, raw, _ = expected("multiclass")
    compiled = compile_forest(forest("multiclass"), target="emulated", n_jobs=2)
    assert compiled.threads(len(rows)) == 2
    _same(compiled.predict_raw(rows), raw)


# ---------------------------------------------------------------- defaults


def test_default_schedules_by_batch() -> None:
    model = FOREST.fitted()
    model.set_params(n_estimators=100).fit(X, CLASSES)
    read = skforge.load_forest(model)
    table = default_gpu_schedules(read, resolve_target("emulated"))
    few, *_, many = table.values()
    assert 'shared_reduce("t1")' in repr(few)
    assert 'gpu_dimension("b1", "block.x")' in repr(many)
    module = compile_forest(read, table, "emulated")
    for n in (first + 5 for first, _ in table if first <= 1 << 16):
        batch = np.resize(X, (n, X.shape[1]))
        _same(module.predict_raw(batch), model.predict_proba(batch), n)


def test_rows_too_wide_for_shared_memory_are_not_cached() -> None:
    from dataclasses import replace

    wide = replace(forest("scalar"), n_features=60_000, feature_names=None)
    assert "cache" not in repr(walking_gpu_schedule(wide, Target.cuda("sm_90")))
    rows = np.zeros((3, 60_000), np.float32)
    compile_forest(wide, None, "emulated").predict_raw(rows)


# ---------------------------------------------------------------- parts


@needs_gxx
def test_scratch_bounds_a_part(monkeypatch) -> None:
    monkeypatch.setattr(gpu_runtime, "SCRATCH_BYTES", 4096)
    splitting = Schedule.preset("tahoe-splitting-shared-forest", rows=8, trees=3)
    rows, raw, _ = expected("multiclass")
    module = compile_forest(forest("multiclass"), splitting, EMULATED_SOURCE)
    _same(module.predict_raw(rows).reshape(raw.shape), raw)
    (kernel,) = module.compiler._kernels.values()
    assert 1 <= kernel.most_rows(rows.shape[1]) < len(rows)


def test_rows_over_a_short_dimension_run_in_parts() -> None:
    module = compile_forest(
        forest("scalar"),
        Schedule().gpu_dimension("batch", "grid.y"),
        Target.cuda("sm_90", kind=EMULATED_SOURCE),
    )
    kernel = module._kernel(1, "accumulator")
    assert kernel.most_rows(forest("scalar").n_features) == 1 << 15


def test_a_run_has_so_many_launches(monkeypatch) -> None:
    schedule = Schedule().gpu_dimension("tree", "grid.x")
    module = compile_forest(
        forest("scalar"), schedule, Target.cuda("sm_90", kind=EMULATED_SOURCE)
    )
    kernel = module._kernel(1, "accumulator")
    found = kernel.most_rows(forest("scalar").n_features)
    assert gpu_runtime.MOST_LAUNCHES // 4 <= found <= gpu_runtime.MOST_LAUNCHES
    # what needs more for a row has as many for all rows
    monkeypatch.setattr(gpu_runtime, "MOST_LAUNCHES", 1)
    schedule = Schedule().gpu_dimension("batch", "grid.x").reorder("tree", "batch")
    module = compile_forest(
        forest("scalar"), schedule, Target.cuda("sm_90", kind=EMULATED_SOURCE)
    )
    kernel = module._kernel(1, "accumulator")
    assert kernel.most_rows(forest("scalar").n_features) > 1 << 20


@needs_gxx
def test_launches_of_a_loop_share_their_scratch() -> None:
    schedule = (
        Schedule()
        .tile("batch", "b0", "b1", 4)
        .reorder("b0", "tree", "b1")
        .gpu_dimension("tree", "grid.x")
        .gpu_dimension("b1", "block.x")
    )
    module = compile_forest(forest("scalar"), schedule, EMULATED_SOURCE)
    rows, raw, _ = expected("scalar")
    _same(module.predict_raw(rows[:30]), raw[:30, 0])
    (kernel,) = module.compiler._kernels.values()
    (launches,) = kernel._launches.values()
    assert len(launches) >= 8 > len(launches._scratch) == 1


@pytest.mark.parametrize(("dimension", "most"), [("block.z", 64), ("grid.y", 65535)])
def test_dimensions_shorter_than_their_loops(dimension: str, most: int) -> None:
    schedule = (
        Schedule()
        .tile("batch", "b0", "b1", 2 * most)
        .reorder("b0", "b1")
        .gpu_dimension("b0", "grid.x")
        .gpu_dimension("b1", dimension)
    )
    with pytest.raises(ScheduleError, match=f"that dimension allows at most {most:,}"):
        compile_forest(forest("scalar"), schedule, "emulated")


def test_models_beyond_32_bits_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(lower_grids, "MOST_ELEMENTS", 20)
    module = compile_forest(
        forest("scalar"), Schedule.preset("tahoe-direct"), "emulated"
    )
    with pytest.raises(
        ScheduleError, match="GPU kernels can index only 20; use target="
    ):
        module.predict_raw(expected("scalar")[0])


# ---------------------------------------------------------------- artifacts


def test_files_hold_the_target_and_its_schedules(tmp_path) -> None:
    model = FOREST.fitted()
    fast = CompiledForest(model, target="emulated").fit(X)
    skforge.save(fast, tmp_path / "a.skforge")
    again = skforge.load(tmp_path / "a.skforge")
    _same(again.predict_proba(X), model.predict_proba(X))
    assert (again.target_, again.schedule_) == (fast.target_, fast.schedule_)
    module = compile_forest(fast.forest_, target="emulated")
    skforge.save(module, tmp_path / "b.skforge")
    again = skforge.load(tmp_path / "b.skforge")
    _same(again.predict_raw(X), fast.predict_raw(X))


# ---------------------------------------------------------------- text and errors


def test_inspect_shows_the_text() -> None:
    fast = CompiledForest(FOREST.fitted(), target="emulated").fit(X)
    assert "\nSKF_KERNEL(" in fast.inspect("cuda")
    assert "grid grid.x" in fast.inspect("lir")
    assert "define" in fast.inspect("llvm")
    with pytest.raises(InvalidInputError, match=r"cuda, ptx\. Got 'sass'"):
        fast.inspect("sass")


def test_inspect_shows_ptx_where_nvrtc_is() -> None:
    pytest.importorskip("nvidia.cu13")
    fast = CompiledForest(FOREST.fitted(), target="emulated").fit(X)
    assert ".target sm_80" in fast.inspect("ptx")


@pytest.mark.parametrize("target", ["emulated", "cpu"])
def test_a_schedule_for_the_other_kind_is_refused(target: str) -> None:
    schedule = "xgboost" if target == "emulated" else "tahoe-direct"
    with pytest.raises(ScheduleError, match="GPU"):
        CompiledForest(FOREST.fitted(), target=target, schedule=schedule).fit(X)


@pytest.fixture
def no_cupy(monkeypatch):
    import sys

    from skforge.gpu.runtime import cupy as device_cupy

    monkeypatch.setitem(sys.modules, "cupy", None)
    device_cupy.forget()
    yield
    device_cupy.forget()


def test_without_cupy_the_extra_is_named(no_cupy) -> None:
    assert error_of(TargetError, compile_forest, forest("scalar"), target="cuda") == (
        "target 'cuda' needs CuPy, which is not installed: pip install "
        "cupy-cuda13x nvidia-cuda-nvrtc (or cupy-cuda12x nvidia-cuda-nvrtc-cu12 for "
        "older drivers); or use target='cpu'."
    )
    with pytest.raises(TargetError, match="pip install cupy-rocm-7-0;"):
        CompiledForest(FOREST.fitted(), target="hip").fit(X)


def test_auto_is_the_cpu_where_there_is_no_gpu(no_cupy) -> None:
    fast = CompiledForest(FOREST.fitted(), gpu_min_rows=5).fit(X)
    assert (fast.target_.kind, fast.gpu_min_rows_) == ("cpu", None)
    direct = Schedule.preset("tahoe-direct")
    with pytest.raises(TargetError, match=r"needs CuPy.*use target='emulated'"):
        CompiledForest(FOREST.fitted(), schedule=direct).fit(X)
    with pytest.raises(TargetError, match="the schedule maps loops to a GPU"):
        compile_forest(forest("scalar"), direct, "auto")
