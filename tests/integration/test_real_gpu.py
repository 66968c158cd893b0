"""What only a real GPU can show; ``test_gpu_cupy.py`` does the rest without one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor

from skforge import CompiledForest, Schedule, compile_forest
from skforge.gpu import backend as gpu_backend
from skforge.gpu.runtime import cupy as device_cupy
from skforge.gpu.runtime import kernel as gpu_kernel
from skforge.tuning import ScheduleSpace, Tuner
from tests.exactness.checks import assert_same_bits, expected
from tests.exactness.forests import forest

pytestmark = pytest.mark.gpu

NAMES = ("scalar", "multiclass", "vector 3", "double")
SCHEDULES = (
    None,
    Schedule.preset("tahoe-direct", rows=64).cache("b0"),
    Schedule.preset("tahoe-splitting-shared-forest", rows=8, trees=3),
    Schedule.preset("forest-stationary"),
)


@pytest.fixture
def gpu() -> Iterator[Any]:
    """CuPy's device; tests that replace CuPy leave nothing behind."""
    device_cupy.forget()
    found = device_cupy.find_device()
    if found is None:
        pytest.skip("no GPU")
    yield found
    device_cupy.forget()


@pytest.mark.parametrize("name", NAMES)
def test_a_real_device_gives_the_source_s_bits(gpu, name: str) -> None:
    rows, raw, leaves = expected(name)
    for schedule in SCHEDULES:
        module = compile_forest(forest(name), schedule, gpu.kind)
        for n in (1, 7, 7, len(rows)):  # 7 again: from a graph
            got = module.predict_raw(rows[:n]).reshape(n, -1)
            assert_same_bits(got, raw[:n].reshape(n, -1), n)
        there = module.predict_raw(gpu.xp.asarray(rows)).get()
        assert_same_bits(there.reshape(raw.shape), raw, "device rows")
        assert_same_bits(module.apply(rows), leaves, "apply")


@pytest.mark.parametrize("reduction", ["reproducible", "fast"])
def test_other_sums_are_near(gpu, reduction: str) -> None:
    rows, raw, _ = expected("scalar")
    for schedule in SCHEDULES[:3]:  # bits are added in order in any mode
        module = compile_forest(forest("scalar"), schedule, gpu.kind, reduction)
        got = module.predict_raw(rows)
        np.testing.assert_allclose(got.reshape(raw.shape), raw, rtol=1e-3, atol=1.0)


@pytest.mark.parametrize("name", ["scalar", "double"])
def test_rows_of_any_stride_and_dtype(gpu, name: str) -> None:
    rows, raw, _ = expected(name)
    module = compile_forest(forest(name), target=gpu.kind)
    wide = gpu.xp.asarray(np.pad(rows, ((0, 0), (1, 2))))
    forms = {
        "part of wider rows": wide[:, 1 : 1 + rows.shape[1]],
        "columns side by side": gpu.xp.asfortranarray(gpu.xp.asarray(rows)),
        "doubles": gpu.xp.asarray(rows.astype(np.float64)),
        "columns of doubles": gpu.xp.asfortranarray(gpu.xp.asarray(rows, np.float64)),
        "from the third on": gpu.xp.asarray(np.vstack([rows[:3], rows]))[3:],
    }
    for words, given in forms.items():
        got = module.predict_raw(given).get()
        assert_same_bits(got.reshape(raw.shape), raw, words)


@pytest.mark.parametrize("name", ["scalar", "double"])
def test_rows_whose_denormal_numbers_are_cast(gpu, name: str) -> None:
    """CuPy's own kernels would take them for zeros, which are missing here."""
    rows, _, _ = expected(name)
    made = replace(forest(name), missing_value=0.0)
    for dtype in (np.float32, np.float64):
        given = rows.astype(dtype)
        given[::3] = np.finfo(np.float32).smallest_subnormal
        wanted = compile_forest(made).predict_raw(given)
        got = compile_forest(made, target=gpu.kind).predict_raw(gpu.xp.asarray(given))
        assert_same_bits(got.get(), wanted, dtype)


def test_large_batches_in_parts(gpu, monkeypatch) -> None:
    rows, raw, _ = expected("multiclass")
    many, wanted = np.tile(rows, (40, 1)), np.tile(raw, (40, 1))
    monkeypatch.setattr(gpu_kernel, "PART_BYTES", 1 << 14)
    for schedule in SCHEDULES:
        module = compile_forest(forest("multiclass"), schedule, gpu.kind)
        assert_same_bits(module.predict_raw(many), wanted, schedule)


def test_a_stream_of_the_caller_and_threads(gpu) -> None:
    rows, raw, _ = expected("multiclass")
    module = compile_forest(forest("multiclass"), target=gpu.kind)
    with gpu.xp.cuda.Stream(non_blocking=True) as stream:
        found = module.predict_raw(gpu.xp.asarray(rows))
        stream.synchronize()
    assert_same_bits(found.get(), raw, "stream")
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(module.predict_raw, [rows, rows[:3], rows[:900]] * 20):
            assert_same_bits(found, raw[: len(found)], "threads")


def test_little_memory(gpu) -> None:
    rows, raw, _ = expected("multiclass")
    many, wanted = np.tile(rows, (200, 1)), np.tile(raw, (200, 1))
    module = compile_forest(forest("multiclass"), SCHEDULES[2], gpu.kind)
    pool = gpu.xp.get_default_memory_pool()
    before = pool.get_limit()
    gpu.trim()
    try:
        pool.set_limit(size=pool.used_bytes() + (24 << 20))
        assert_same_bits(module.predict_raw(many), wanted, "little memory")
    finally:
        pool.set_limit(size=before)


def test_tensors_of_torch(gpu) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no GPU")
    rows, raw, _ = expected("scalar")
    module = compile_forest(forest("scalar"), target=gpu.kind)
    found = torch.from_dlpack(module.predict_raw(torch.as_tensor(rows, device="cuda")))
    assert_same_bits(found.cpu().numpy().reshape(raw.shape), raw, "torch")


def test_contributions(gpu, monkeypatch) -> None:
    monkeypatch.setattr(gpu_backend, "EXPLAINED", 0)
    rows, _, _ = expected("full")
    there, here = (compile_forest(forest("full"), target=k) for k in (gpu.kind, "cpu"))
    for n in (1, 127, len(rows)):
        found, wanted = (
            there.predict_contribs(rows[:n]),
            here.predict_contribs(rows[:n]),
        )
        assert_same_bits(found, wanted, n)


def test_a_search_and_an_estimator(gpu) -> None:
    target = compile_forest(forest("full"), target=gpu.kind).target
    tuner = Tuner("random", ScheduleSpace.gpu(), budget=3.0)
    result = tuner.tune(
        forest("full"), target=target, ranges={(1, None): 512}, random_state=0
    )
    assert result.counts()["measured"] > 1
    assert not result.counts().keys() & {"wrong", "failed"}
    random = np.random.default_rng(0)
    X = random.normal(size=(3000, 5)).astype(np.float32)
    model = RandomForestRegressor(20, max_depth=6, random_state=0).fit(X, X[:, 0])
    fast = CompiledForest(model, tuning=Tuner(budget=2.0)).fit(X)
    assert_same_bits(fast.predict(X), model.predict(X), fast.gpu_min_rows_)
