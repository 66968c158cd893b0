"""The CuPy path without a GPU: a stand-in for CuPy whose kernels the CPU runs."""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn import ensemble
from sklearn.base import clone

import skforge
from skforge import CompiledForest, Schedule, Target, compile_forest
from skforge.engine import arrays
from skforge.exceptions import InvalidInputError, TargetError, UnsupportedModelError
from skforge.gpu import backend as gpu_backend
from skforge.gpu.runtime import compilers as gpu_compilers
from skforge.gpu.runtime import cupy as device_cupy
from skforge.gpu.runtime import device as gpu_device
from skforge.gpu.runtime import kernel as gpu_runtime
from skforge.gpu.runtime import on_device
from skforge.modules.auto import GPU_MIN_ROWS, AutoModule
from skforge.runtime import object_cache
from skforge.tuning.measure.measure import KernelMeasurer
from tests import kinds
from tests.exactness.checks import assert_same_bits, expected
from tests.exactness.forests import forest
from tests.fake_cupy import Array, DlpackArray, FakeCupy

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

DIRECT = Schedule.preset("tahoe-direct", rows=64).cache("b0")
SCRATCHY = Schedule.preset("tahoe-splitting-shared-forest", rows=8, trees=3)

#: Small ones, for every range is checked in ``fit``, and the GPU is slow here.
SIZES = [8, 60, 200]

random = np.random.default_rng(0)
X = random.normal(size=(300, 6)).astype(np.float32)
y = (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(int) + (X[:, 2] > 0)


@pytest.fixture
def cupy(monkeypatch):
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(
        gpu_compilers, "code_of", lambda source, arch, kind: source.encode()
    )
    monkeypatch.setattr(device_cupy, "code_of", gpu_compilers.code_of)
    device_cupy.forget()
    yield fake
    device_cupy.forget()


def what(cupy: FakeCupy, *names: str) -> list[str]:
    return [entry[0] for entry in cupy.log if not names or entry[0] in names]


# ---------------------------------------------------------------- rows on the host


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["scalar", "multiclass", "vector 3", "double"])
def test_rows_of_the_host_give_the_source_s_bits(cupy, name: str) -> None:
    rows, raw, leaves = expected(name)
    module = compile_forest(forest(name), DIRECT, "cuda")
    assert (module.target.cpu, module.target.shared_bytes) == ("sm_90", 227 << 10)
    for n in (1, 3, len(rows)):
        found = module.predict_raw(rows[:n])
        assert type(found) is np.ndarray
        assert_same_bits(found.reshape(n, -1), raw[:n].reshape(n, -1), n)
    assert_same_bits(module.apply(rows), leaves, "apply")
    assert module.predict_raw(rows[:0]).shape[0] == 0


def test_the_model_is_loaded_once(cupy) -> None:
    rows, _, _ = expected("scalar")
    module = compile_forest(forest("scalar"), DIRECT, "cuda")
    module.predict_raw(rows)
    assert what(cupy, "load") == ["load"]
    cupy.log.clear()
    module.predict_raw(rows)
    module.predict_raw(rows)
    assert what(cupy, "load") == []
    # rows go in and results come out; nothing else is copied, nothing waits but staging
    assert len([e for e in cupy.log if e[0] == "copy"]) == 0  # they are in the graph
    assert what(cupy, "graph") == ["graph", "graph"]


@pytest.mark.parametrize("supported", [True, False])
def test_few_rows_are_a_graph_where_there_are_graphs(
    cupy, monkeypatch, supported: bool
) -> None:
    cupy.graphs = supported
    rows, raw, _ = expected("scalar")
    module = compile_forest(forest("scalar"), SCRATCHY, "cuda")
    for n in (1, 3, 4, 3, 1):
        found = module.predict_raw(rows[:n])
        assert_same_bits(found.reshape(n, -1), raw[:n].reshape(n, -1), n)
    assert (len(what(cupy, "graph")) == 5) == supported
    monkeypatch.setenv("SKFORGE_GRAPHS", "0")
    cupy.log.clear()
    compile_forest(forest("scalar"), SCRATCHY, "cuda").predict_raw(rows[:2])
    assert what(cupy, "graph") == []


def test_large_batches_alternate_two_streams(cupy, monkeypatch) -> None:
    rows, raw, _ = expected("scalar")
    monkeypatch.setattr(gpu_runtime, "FEW_ROWS", 0)
    monkeypatch.setattr(gpu_runtime, "PART_BYTES", 5 * rows.strides[0])
    module = compile_forest(forest("scalar"), DIRECT, "cuda")
    found = module.predict_raw(rows)
    assert_same_bits(found.reshape(raw.shape), raw, "parts")
    copies = [entry for entry in cupy.log if entry[:2] == ("copy", "in")]
    streams = [entry[-1] for entry in copies if entry[2] == 5 * rows.strides[0]]
    assert len(set(streams)) == 2
    assert streams[:4] == [streams[0], streams[1]] * 2


COPY = re.compile(r"^  (?:upload|copy_(in|out)) @(\w+)(?:\[%(\w+), %(\w+)\])?|^  grid")


def printed_work(module, n_rows: int) -> list[tuple]:
    """Return the copies and launches that ``inspect`` prints, as the device logs them.

    The first ones bring the model, whose arrays it prints without a size.
    """
    text = module.inspect("lir")
    kernel = module.compiler.lowered(module.schedule_for(1), "accumulator").kernel
    n_bytes = {item.buffer.name: item.data.nbytes for item in kernel.data}
    sizes = {"n_rows": n_rows, "row_stride": module.forest.n_features}
    sizes["width"] = int(re.search(r"%width: i32 = const (\d+)", text)[1])
    work = []
    for found in filter(None, map(COPY.match, text.splitlines())):
        way, name, *shape = found.groups()
        if name is None:
            work.append(("launch",))
        elif way is None:
            work.append(("copy", "in", n_bytes[name]))
        else:
            element = re.search(rf"@{name}: [uif](\d+)", text)[1]
            count = np.prod([sizes[extent] for extent in shape])
            work.append(("copy", way, count * int(element) // 8))
    return work


def work_of(cupy: FakeCupy) -> list[tuple]:
    """Return the copies and launches so far, without pointers, and forget them."""
    parts = {"copy": 3, "launch": 1}
    work = [entry[: parts[entry[0]]] for entry in cupy.log if entry[0] in parts]
    cupy.log.clear()
    return work


@pytest.mark.parametrize(
    ("name", "schedule"),
    [("scalar", SCRATCHY), ("vector 3", DIRECT), ("double", DIRECT)],
)
def test_copies_are_those_that_inspect_prints(
    cupy, monkeypatch, name: str, schedule
) -> None:
    monkeypatch.setenv("SKFORGE_GRAPHS", "0")
    rows, _, _ = expected(name)
    rows = rows[:16]
    module = compile_forest(forest(name), schedule, "cuda")
    printed = printed_work(module, 16)
    module.predict_raw(rows)
    assert work_of(cupy) == printed
    n_uploads = printed.index(("launch",)) - 1
    module.predict_raw(rows)
    assert work_of(cupy) == printed[n_uploads:]  # the model is there
    module.predict_raw(Array(rows))
    launches = [work for work in printed if work[0] == "launch"]
    divides = [("launch",)] * (forest(name).divisor != 1)
    assert work_of(cupy) == launches + divides


def test_many_threads_at_once(cupy) -> None:
    rows, raw, _ = expected("multiclass")
    module = compile_forest(forest("multiclass"), DIRECT, "cuda")
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(module.predict_raw, [rows, rows[:3]] * 6):
            assert_same_bits(found, raw[: len(found)], "threads")
    assert what(cupy, "load") == ["load"]


def test_kernels_loaded_by_another_thread(cupy) -> None:
    rows, raw, _ = expected("scalar")
    module = compile_forest(forest("scalar"), DIRECT, "cuda")
    compile_forest(forest("scalar"), SCRATCHY, "cuda").predict_raw(rows[:3])
    module.compile_all()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(module.predict_raw, rows[:3]).result()
    assert_same_bits(found, raw[:3, 0], "thread")


# ---------------------------------------------------------------- out of memory


def test_out_of_memory_makes_parts_smaller(cupy, monkeypatch) -> None:
    rows, raw, _ = expected("scalar")
    rows, raw = np.resize(rows, (2000, rows.shape[1])), np.resize(raw, (2000, 1))
    monkeypatch.setattr(gpu_runtime, "LEAST_ROWS", 100)
    monkeypatch.setattr(gpu_device.StagingPool, "LEAST_BYTES", 256)
    module = compile_forest(forest("scalar"), SCRATCHY, "cuda")
    module.predict_raw(rows[:1])
    cupy.free_bytes = 1 << 13
    found = module.predict_raw(rows)
    assert_same_bits(found, raw[:, 0], "parts")
    assert "trim" in what(cupy)
    cupy.log.clear()
    module.predict_raw(rows)
    assert "trim" not in what(cupy)  # the size that fits is known
    (kernel,) = module.compiler._kernels.values()
    assert kernel._fitting
    cupy.free_bytes = float("inf")  # but not for ever
    for _ in range(gpu_runtime.FITTING_BATCHES):
        module.predict_raw(rows[:1])
    assert not kernel._fitting


def test_out_of_memory_at_last(cupy) -> None:
    rows, _, _ = expected("scalar")
    module = compile_forest(forest("scalar"), DIRECT, "cuda")
    cupy.free_bytes = 64
    with pytest.raises(TargetError, match="GPU 0 is out of memory, even for"):
        module.predict_raw(rows)
    cupy.free_bytes = float("inf")
    module.predict_raw(rows)


# ---------------------------------------------------------------- rows on a device


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["scalar", "multiclass", "vector 3", "double"])
def test_device_rows_give_device_results_and_nothing_waits(cupy, name: str) -> None:
    rows, raw, leaves = expected(name)
    module = compile_forest(forest(name), DIRECT, "cuda")
    module.predict_raw(Array(rows))
    module.apply(Array(rows))
    cupy.log.clear()
    found = module.predict_raw(Array(rows))
    assert isinstance(found, Array)
    assert_same_bits(found.get().reshape(raw.shape), raw, name)
    assert_same_bits(module.apply(Array(rows)).get(), leaves, name)
    assert set(what(cupy)) == {"launch"}
    assert {entry[-1] for entry in cupy.log} == {0}  # the caller's stream
    assert len(module.predict_raw(Array(rows[:0]))) == 0


def test_the_caller_s_stream_and_the_rows_device(cupy) -> None:
    rows, raw, _ = expected("scalar")
    module = compile_forest(forest("scalar"), DIRECT, "cuda")
    module.predict_raw(rows)
    with cupy.cuda.Device(1):
        stream = cupy.cuda.Stream()
    cupy.log.clear()
    with cupy.cuda.Device(1), stream:
        found = module.predict_raw(DlpackArray(rows, number=1))
    assert found.device.id == 1
    assert_same_bits(found.get().reshape(raw.shape), raw, "device 1")
    assert cupy.log[0] == ("load", 1)  # the model is on each device once
    launches = [entry for entry in cupy.log if entry[0] == "launch"]
    assert {entry[-1] for entry in launches} == {stream.ptr}


@pytest.mark.parametrize(
    "make",
    {
        "float64": lambda rows: rows.astype(np.float64),
        "columns": np.asfortranarray,
        "every other row": lambda rows: np.repeat(rows, 2, axis=0)[::2],
        "backwards": lambda rows: rows[::-1].copy()[::-1],
        "wider": lambda rows: np.pad(rows, ((0, 0), (0, 3)))[:, :-3],
        "read-only": lambda rows: np.broadcast_to(rows, rows.shape),
    }.items(),
    ids=lambda pair: pair[0],
)
def test_any_layout_and_dtype(cupy, make) -> None:
    rows, raw, _ = expected("scalar")
    module = compile_forest(forest("scalar"), DIRECT, "cuda")
    found = module.predict_raw(Array(make[1](rows)))
    assert_same_bits(found.get().reshape(raw.shape), raw, make[0])


def test_device_scratch_runs_in_parts_and_halves(cupy, monkeypatch) -> None:
    monkeypatch.setattr(gpu_runtime, "LEAST_ROWS", 16)
    rows, raw, _ = expected("scalar")
    rows, raw = np.resize(rows, (1000, rows.shape[1])), np.resize(raw, (1000, 1))
    module = compile_forest(forest("scalar"), SCRATCHY, "cuda")
    module.predict_raw(Array(rows[:2]))
    cupy.free_bytes = 1 << 13
    found = module.predict_raw(Array(rows))
    assert_same_bits(found.get(), raw[:, 0], "parts")
    cupy.free_bytes = 1 << 11
    with pytest.raises(TargetError, match="no memory for a result of 1000 × 1 values"):
        module.predict_raw(Array(rows))


def test_wrong_device_rows_are_named(cupy) -> None:
    module = compile_forest(forest("scalar"), DIRECT, "cuda")
    width = forest("scalar").n_features
    for rows, words in (
        (np.zeros(width, np.float32), "two-dimensional"),
        (np.zeros((2, width + 1), np.float32), f"trained on {width} features"),
        (np.zeros((2, width), np.complex64), "dtype complex64"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            module.predict_raw(Array(rows))
    cpu = compile_forest(forest("scalar"))
    with pytest.raises(TargetError, match="rows are on a GPU, but the forest is"):
        cpu.predict_raw(Array(np.zeros((2, width), np.float32)))
    host = DlpackArray(np.zeros((2, width), np.float32), kind=1)
    assert not arrays.is_device_array(host)


@pytest.mark.parametrize("marker", [-999.0, 0.0])
@pytest.mark.parametrize("name", ["scalar", "double"])
def test_missing_value_markers_are_replaced_there(cupy, name: str, marker) -> None:
    """Denormal numbers, which CuPy's own kernels take for zeros, are no marker."""
    rows, _, _ = expected(name)
    marked = replace(forest(name), missing_value=marker)
    for dtype in (np.float32, np.float64):
        given = rows.astype(dtype)
        given[::3, 0] = marker
        given[1::3, 0] = np.finfo(dtype).smallest_subnormal
        wanted = compile_forest(marked).predict_raw(given)
        found = compile_forest(marked, DIRECT, "cuda").predict_raw(Array(given))
        assert_same_bits(found.get(), wanted, dtype)


def test_integers_are_cast_there_as_lightgbm_casts_them(cupy) -> None:
    """LightGBM casts them to float32 before it compares them as float64."""
    made = replace(forest("double"), source="lightgbm")
    threshold = np.full_like(made.threshold, 2**24 + 0.5)
    made = replace(made, threshold=threshold)
    given = np.full((3, made.n_features), 2**24 + np.arange(3)[:, np.newaxis])
    wanted = compile_forest(made).predict_raw(given)
    found = compile_forest(made, DIRECT, "cuda").predict_raw(Array(given))
    assert_same_bits(found.get(), wanted, "integers")


# ---------------------------------------------------------------- the estimator


def forest_of_trees() -> Any:
    model = ensemble.RandomForestClassifier(8, max_depth=4, random_state=0)
    return model.fit(X, y)


MODELS = (
    *("forest of three", "forest of values", "xgboost of three", "xgboost of two"),
    "xgboost of values",
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_estimators_answer_on_the_device(cupy, name: str) -> None:
    model, X = kinds.MODELS[name].fitted(), kinds.X.astype(np.float32)
    fast = CompiledForest(model, target="cuda", schedule=DIRECT).fit(X)
    assert_same_bits(fast.predict(X), model.predict(X), "host")
    there = fast.predict(Array(X))
    assert isinstance(there, Array)
    np.testing.assert_array_equal(there.get(), model.predict(X))
    leaves = np.asarray(model.apply(X))
    assert_same_bits(fast.apply(Array(X)).get(), leaves, "apply")
    if hasattr(model, "predict_proba"):
        found, wanted = fast.predict_proba(Array(X)).get(), model.predict_proba(X)
        np.testing.assert_allclose(found, wanted, rtol=8 * 2.0**-23)


def test_sample_rows_may_be_on_a_device(cupy) -> None:
    model = forest_of_trees()
    fast = CompiledForest(model, target="cuda", batch_sizes=SIZES).fit(Array(X))
    assert_same_bits(fast.predict_proba(X), model.predict_proba(X), "fit")


def test_what_is_only_computed_on_the_host_says_so(cupy) -> None:
    boosted = ensemble.GradientBoostingClassifier(n_estimators=5).fit(X, y > 0)
    fast = CompiledForest(boosted, target="cuda", batch_sizes=SIZES).fit(X)
    with pytest.raises(UnsupportedModelError, match=r"expit.*call predict_raw"):
        fast.predict_proba(Array(X))
    scores, labels = fast.decision_function(Array(X)), fast.predict(Array(X))
    assert_same_bits(scores.get(), boosted.decision_function(X), "scores")
    assert_same_bits(labels.get(), boosted.predict(X), "labels")
    named = ensemble.RandomForestClassifier(5).fit(X, np.array(["a", "b", "c"])[y])
    with pytest.raises(UnsupportedModelError, match="labels of this model are not num"):
        CompiledForest(named, target="cuda", batch_sizes=SIZES).fit(X).predict(Array(X))


def test_models_whose_members_are_compiled_take_rows_of_the_host_only(cupy) -> None:
    """Leaves of the first member were returned for those of the whole model."""
    first = ensemble.RandomForestRegressor(2, max_depth=2, random_state=0)
    boosted = ensemble.GradientBoostingRegressor(n_estimators=2, random_state=0)
    for model in (
        clone(boosted).set_params(init=first),
        ensemble.BaggingRegressor(boosted, n_estimators=2),
    ):
        model.fit(X, X[:, 0])
        fast = CompiledForest(model, target="cuda", batch_sizes=SIZES).fit(X)
        calls = (
            [fast.predict, fast.apply] if hasattr(model, "apply") else [fast.predict]
        )
        for call in calls:
            with pytest.raises(InvalidInputError, match="on the CPU; pass the rows as"):
                call(Array(X))
            with pytest.raises(InvalidInputError, match="on the CPU; pass the rows as"):
                call(DlpackArray(X))


def test_a_gpu_explains_many_rows_and_the_cpu_few(cupy, monkeypatch) -> None:
    monkeypatch.setattr(gpu_backend, "EXPLAINED", 100)
    gpu, cpu = (compile_forest(forest("full"), target=kind) for kind in ("cuda", "cpu"))
    rows, _, _ = expected("full")
    wanted = cpu.predict_contribs(rows)
    for module in (gpu, AutoModule(cpu, gpu)):
        for n, n_jobs, on_gpu in ((99, None, 0), (150, 2, 0), (100, None, 1)):
            cupy.log.clear()
            found = module.predict_contribs(rows[:n], n_jobs=n_jobs)
            assert_same_bits(found, wanted[:n], (n, n_jobs))
            assert bool(what(cupy, "launch", "graph")) == on_gpu


def test_the_cpu_explains_forests_of_many_features(cupy, monkeypatch) -> None:
    monkeypatch.setattr(gpu_backend, "EXPLAINED", 0)
    monkeypatch.setattr(gpu_backend, "MOST_SUMS", forest("full").n_features - 1)
    gpu, cpu = (compile_forest(forest("full"), target=kind) for kind in ("cuda", "cpu"))
    rows, _, _ = expected("full")
    for module in (gpu, AutoModule(cpu, gpu)):
        found = module.predict_contribs(rows)
        assert_same_bits(found, cpu.predict_contribs(rows), "contributions")
    assert not what(cupy, "launch", "graph")


def test_threads_share_the_copies_to_pinned_memory(cupy, monkeypatch) -> None:
    rows, raw, _ = expected("multiclass")
    many, wanted = np.tile(rows, (8, 1)), np.tile(raw, (8, 1))
    monkeypatch.setattr(gpu_runtime, "THREAD_BYTES", 1 << 10)
    copied = []
    copyto = np.copyto
    monkeypatch.setattr(
        np, "copyto", lambda to, rows: (copied.append(len(rows)), copyto(to, rows))
    )
    kernel = compile_forest(forest("multiclass"), DIRECT, "cuda")._kernel(
        len(many), "accumulator"
    )
    result = np.empty_like(wanted)
    kernel(many, result, 3)
    assert_same_bits(result, wanted, "three threads")
    assert len(copied) == 4 and sum(copied) == 2 * len(many)  # and the result


def test_answers_by_tree_take_rows_of_the_host_only(cupy) -> None:
    fast = CompiledForest(forest_of_trees(), target="cuda", batch_sizes=SIZES).fit(X)
    for call in (fast.predict_per_tree, fast.predict_contribs):
        with pytest.raises(InvalidInputError, match="need rows in host memory"):
            call(Array(X))


def test_auto_keeps_both_and_moves_the_crossover(cupy) -> None:
    model = forest_of_trees()
    fast = CompiledForest(model, tuning="off", batch_sizes=SIZES).fit(X)
    assert fast.gpu_min_rows_ == GPU_MIN_ROWS
    assert fast.target_.kind == "cuda"
    assert GPU_MIN_ROWS in [first for first, _ in fast.schedule_]
    cupy.log.clear()
    for n in (1, GPU_MIN_ROWS - 1):
        assert_same_bits(fast.predict_proba(X[:n]), model.predict_proba(X[:n]), n)
    assert cupy.log == []
    assert_same_bits(fast.predict_proba(X), model.predict_proba(X), "GPU")
    assert "launch" in what(cupy) or "graph" in what(cupy)

    fast.set_params(gpu_min_rows=10)
    assert (fast.gpu_min_rows_, fast.gpu_min_rows) == (10, 10)
    cupy.log.clear()
    for _ in range(3):  # a compiled entry of the CPU no longer takes them
        assert_same_bits(fast.predict_proba(X[:20]), model.predict_proba(X[:20]), 20)
    assert len(what(cupy, "graph")) == 3
    cupy.log.clear()
    assert_same_bits(fast.predict_proba(X[:9]), model.predict_proba(X[:9]), 9)
    assert cupy.log == []
    assert isinstance(fast.predict_raw(Array(X[:2])), Array)


def test_the_summary_of_two_machines(cupy) -> None:
    compiled = CompiledForest(forest_of_trees(), tuning="off", batch_sizes=SIZES).fit(X)
    summary = compiled.summary()
    rows = summary.gpu_min_rows
    assert rows == GPU_MIN_ROWS
    assert summary.target == f"{Target.host()}; from {rows} rows on {compiled.target_}"
    assert f"{summary.target}; 1 thread" in compiled._repr_html_()
    assert {time.origin for time in summary.times} == {"estimated"}
    assert all(time.n_rows < rows for time in summary.times)  # those of the CPU
    sizes = [time.n_rows for time in compiled.summary(X, batch_sizes=[1, rows]).times]
    assert sizes == [1, rows]
    assert len(repr(compiled._compiled().module).splitlines()) == 2


@pytest.mark.parametrize("graphs", [True, False])
def test_a_search_times_kernels_and_no_copies(cupy, graphs: bool) -> None:
    cupy.graphs = graphs
    made, (rows, raw, _) = forest("multiclass"), expected("multiclass")
    target = compile_forest(made, DIRECT, "cuda").target
    measurer = KernelMeasurer(made, target, "exact", None)
    batches = [rows[:100], rows[100:200]]
    for schedule in (DIRECT, SCRATCHY):
        runner = measurer.build(measurer.lower(schedule))
        assert_same_bits(runner.predict(rows), raw, schedule)
        runner.time(batches, 1)
        cupy.log.clear()
        assert runner.time(batches, 3) > 0
        assert what(cupy, "copy", "load") == []
        assert len(what(cupy, "graph")) == (3 if graphs else 0)
        launches = len(what(cupy, "launch"))
        assert (launches == 0) if graphs else (launches % 6 == 0 < launches)
        assert what(cupy, "synchronize") == ["synchronize"]


def test_a_table_of_both_kinds(cupy) -> None:
    model = forest_of_trees()
    table = {(1, 63): "xgboost", (64, None): "tahoe-direct"}
    fast = CompiledForest(model, schedule=table).fit(X)
    assert fast.gpu_min_rows_ == 64
    assert_same_bits(fast.predict_proba(X), model.predict_proba(X), "table")
    with pytest.raises(
        skforge.exceptions.ScheduleError, match="give the largest batches to"
    ):
        wrong = {(1, 63): "tahoe-direct", (64, None): "xgboost"}
        CompiledForest(model, schedule=wrong).fit(X)
    only = CompiledForest(model, schedule="tahoe-direct").fit(X)
    assert (only.target_.kind, only.gpu_min_rows_) == ("cuda", None)


def test_artifacts_of_both_load_with_and_without_a_gpu(
    cupy, monkeypatch, tmp_path
) -> None:
    model = forest_of_trees()
    fast = CompiledForest(model, gpu_min_rows=50, batch_sizes=SIZES).fit(X)
    joblib.dump(fast, tmp_path / "a.joblib")
    skforge.save(fast, tmp_path / "a.skforge")
    cuda = CompiledForest(model, target="cuda", batch_sizes=SIZES).fit(X)
    joblib.dump(cuda, tmp_path / "c.joblib")
    for name in ("a.joblib", "a.skforge"):
        load = joblib.load if name.endswith("joblib") else skforge.load
        again = load(tmp_path / name)
        assert_same_bits(again.predict_proba(X), model.predict_proba(X), name)
        assert again.gpu_min_rows_ == 50
        assert again.schedule_ == fast.schedule_
        assert again.target_.kind == "cuda"
    monkeypatch.setitem(sys.modules, "cupy", None)
    device_cupy.forget()
    for name in ("a.joblib", "a.skforge"):
        load = joblib.load if name.endswith("joblib") else skforge.load
        again = load(tmp_path / name)
        assert_same_bits(again.predict_proba(X), model.predict_proba(X), name)
        assert again.target_.kind == "cpu"
        assert max(again.schedule_)[0] > 50  # the whole table of the CPU
    with pytest.raises(TargetError, match="needs CuPy"):
        joblib.load(tmp_path / "c.joblib").predict(X)


# ---------------------------------------------------------------- what is missing


def test_no_driver(cupy) -> None:
    cupy.runtime_error = RuntimeError("cudaErrorInsufficientDriver")
    with pytest.raises(TargetError, match="finds no GPU, or no driver for it: cudaErr"):
        compile_forest(forest("scalar"), target="cuda")
    assert CompiledForest(forest_of_trees()).fit(X).target_.kind == "cpu"


def test_a_driver_older_than_the_compiler(cupy, monkeypatch) -> None:
    def load(self: object, code: bytes) -> None:
        raise RuntimeError("CUDA_ERROR_INVALID_IMAGE")

    monkeypatch.setattr(cupy.cuda.function.Module, "load", load)
    monkeypatch.setattr(device_cupy, "compiler_version", lambda kind: "13.5")
    module = compile_forest(forest("scalar"), DIRECT, "cuda")
    with pytest.raises(
        TargetError, match=r"sm_90\) cannot load code compiled by NVRTC 13\.5"
    ):
        module.predict_raw(expected("scalar")[0])


def test_the_other_vendor_and_other_architectures(cupy) -> None:
    with pytest.raises(
        TargetError, match="'hip' was asked for, but the installed CuPy"
    ):
        compile_forest(forest("scalar"), target="hip")
    with pytest.raises(TargetError, match="sm_80 does not run on GPU 0, which is sm_9"):
        compile_forest(forest("scalar"), target="cuda:sm_80")
    compile_forest(forest("scalar"), target=Target.cuda("sm_90"))


def test_an_amd_gpu(cupy) -> None:
    cupy.cuda.runtime.is_hip = True
    rows, raw, _ = expected("scalar")
    module = compile_forest(forest("scalar"), DIRECT, "hip")
    assert (module.target.kind, module.target.cpu) == ("hip", "gfx942")
    assert repr(module).endswith("for hip gfx942, exact, 1 schedule>")
    assert_same_bits(module.predict_raw(rows[:9]), raw[:9, 0], "hip")
    assert what(cupy, "graph") == []  # CuPy does not capture them there


def test_compile_all_loads(cupy) -> None:
    module = compile_forest(forest("scalar"), target="cuda")
    module.compile_all()
    loads = what(cupy, "load")
    assert len(loads) == len(set(module.schedules.values()))
    module.predict_raw(expected("scalar")[0])
    assert what(cupy, "load") == loads


def test_after_a_fork(cupy, monkeypatch) -> None:
    module = compile_forest(forest("scalar"), target="cuda")
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    with pytest.raises(TargetError, match="forked"):
        module.predict_raw(expected("scalar")[0])


def test_auto_stays_on_the_cpu_after_a_fork(cupy, monkeypatch) -> None:
    how = {"tuning": "off", "batch_sizes": SIZES}
    fast = CompiledForest(forest_of_trees(), gpu_min_rows=10, **how).fit(X)
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    cupy.log.clear()
    fast.predict_proba(X)
    assert cupy.log == []


def test_memory_goes_back_without_waiting_for_the_garbage_collector(cupy) -> None:
    rows, _, _ = expected("scalar")
    module = compile_forest(forest("scalar"), DIRECT, "cuda")
    module.predict_raw(rows[:3])
    device = device_cupy.current()
    (staging,) = device.staging._free
    gone = weakref.ref(staging)
    del staging
    gc.disable()
    try:
        device.trim()
        assert gone() is None
    finally:
        gc.enable()


def test_what_cannot_be_waited_for_is_kept(cupy, monkeypatch) -> None:
    rows, _, _ = expected("scalar")
    module = compile_forest(forest("scalar"), DIRECT, "cuda")
    module.predict_raw(rows[:3])
    monkeypatch.setattr(gpu_runtime, "_KEPT", [])

    def fails() -> None:
        raise RuntimeError("cudaErrorStreamCaptureUnsupported")

    cupy.cuda.runtime.deviceSynchronize = fails
    del module
    gc.collect()
    assert len(gpu_runtime._KEPT) == 1


def test_rows_farther_apart_than_indices_reach_are_copied(cupy, monkeypatch) -> None:
    rows, raw, _ = expected("scalar")
    wide = np.pad(rows, ((0, 0), (0, 3)))[:, :-3]
    module = compile_forest(forest("scalar"), DIRECT, "cuda")
    module.predict_raw(Array(rows))
    monkeypatch.setattr(on_device, "MOST_ELEMENTS", rows.shape[1])
    found = module.predict_raw(Array(wide))
    assert_same_bits(found.get(), raw[:, 0], "copied")
    (kernel,) = module.compiler._kernels.values()
    assert list(kernel._most) == [rows.shape[1]]


def test_a_broken_cupy(monkeypatch, tmp_path) -> None:
    (tmp_path / "cupy.py").write_text("raise ImportError('libamdhip64.so.7: no')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    device_cupy.forget()
    with pytest.raises(TargetError, match=r"cannot be imported: libamdhip64\.so\.7"):
        compile_forest(forest("scalar"), target="hip")


def test_large_shared_memory_is_asked_for(cupy) -> None:
    rows, _, _ = expected("scalar")
    wide = Schedule.preset("tahoe-direct", rows=1024).cache("b0")
    module = compile_forest(forest("scalar"), wide, "cuda")
    module.predict_raw(rows)
    (kernel,) = module.compiler._kernels.values()
    (launch,) = kernel.plan.launches.values()
    asked = [entry for entry in cupy.log if entry[0] == "attribute"]
    wanted = [("attribute", 7, 8, launch.shared_bytes)]
    assert asked == (wanted if launch.shared_bytes > 48 << 10 else [])


def test_the_cache_of_code(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("SKFORGE_CACHE_DIR", str(tmp_path))
    calls = []

    def compile_text(source, arch, kind):
        calls.append((source, arch, kind))
        return b"code of " + source.encode(), ""

    monkeypatch.setattr(gpu_compilers, "compiler_version", lambda kind: "13.0")
    monkeypatch.setattr(gpu_compilers, "compile_text", compile_text)
    for _ in range(2):
        assert gpu_compilers.code_of("text 1", "sm_90", "cuda") == b"code of text 1"
    gpu_compilers.code_of("text 1", "sm_80", "cuda")
    monkeypatch.setattr(gpu_compilers, "compiler_version", lambda kind: "13.1")
    gpu_compilers.code_of("text 1", "sm_90", "cuda")
    assert len(calls) == 3
    folder = Path(object_cache.directory()) / "objects"
    newest = max(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    assert gpu_compilers.code_of("text 1", "sm_90", "cuda") == b"code of text 1"
    assert len(calls) == 4


# ---------------------------------------------------------------- the real CuPy


def test_cupy_has_what_is_called() -> None:
    """Names alone: they are there where CuPy is, with or without a GPU."""
    real = pytest.importorskip("cupy")
    fake = FakeCupy()
    for name, value in vars(fake.cuda).items():
        found = getattr(real.cuda, name)
        for inner in vars(value) if isinstance(value, SimpleNamespace) else ():
            assert hasattr(found, inner), f"cupy.cuda.{name}.{inner}"
    for name in ("begin_capture", "end_capture", "synchronize"):
        assert hasattr(real.cuda.Stream, name)
    for name in ("load", "get_function"):
        assert hasattr(real.cuda.function.Module, name)
    for name in ("from_dlpack", "asarray", "empty", "ascontiguousarray", "where"):
        assert hasattr(real, name)
    assert hasattr(real.cuda.function.Function, "ptr")
    assert issubclass(real.cuda.memory.OutOfMemoryError, MemoryError)
