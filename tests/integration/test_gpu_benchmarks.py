"""The GPU benchmarks without a GPU: the harness emulated, peers faked."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from skforge import compile_forest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
MODEL = "synthetic-12x6-4"
#: Seconds: a busy machine may be slow.
HOUR = 3600.0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """The modules of benchmarks/gpu, and a folder for models of their own."""
    pytest.importorskip("xgboost")
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("SKFORGE_BENCH_CACHE", str(tmp_path / "cache"))
    before = set(sys.modules)
    import models

    import benchmarks.gpu.__main__ as main
    from benchmarks.gpu import bench, designs, tables

    yield SimpleNamespace(
        models=models, main=main, bench=bench, designs=designs, tables=tables
    )
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and FOLDER in Path(file).parents:
            del sys.modules[name]


#: Answers like nvForest: sums of the forest, in float32, off by what is asked.
FAKE_NVFOREST = """
import numpy as np
from skforge.forest.reference import reference_raw

class Loaded:
    def __init__(self, forest):
        self.forest, self.chunk = forest, 0
    def optimize(self, batch_size):
        found = Loaded(self.forest)
        found.chunk = batch_size
        return found
    def predict(self, X):
        return reference_raw(self.forest, X).astype(np.float32) + 1e-7

def load_from_treelite_model(trees, device, precision):
    assert device == "gpu"
    return Loaded(trees.forest)
"""
FAKE_TREELITE = """
from skforge import load_forest

class Trees:
    def __init__(self, path):
        self.forest, self.fields = load_forest(path), {}
    def get_header_accessor(self):
        return self
    def set_field(self, name, value):
        self.fields[name] = value

class frontend:
    load_xgboost_model = Trees
"""


def test_a_run_without_a_gpu(gpu, monkeypatch, tmp_path, capsys) -> None:
    fakes = tmp_path / "fakes"
    fakes.mkdir()
    (fakes / "nvforest.py").write_text(FAKE_NVFOREST)
    (fakes / "treelite.py").write_text(FAKE_TREELITE)
    monkeypatch.setenv("PYTHONPATH", f"{fakes}:{ROOT}")
    monkeypatch.setattr(gpu.bench.GpuRemote, "patience", HOUR)
    limits = gpu.bench.Limits(rounds=2, slot=1e-4, call=HOUR, prepare=HOUR)
    results, status = gpu.main.run(
        [MODEL],
        [1, 512],
        ["rows in shared memory", "a row a thread, nothing cached"],
        ["nvforest", "xgboost", "cuml"],
        "emulated",
        limits,
        tmp_path / "out",
    )
    assert status == 0
    (result,) = results
    known = {s["system"]: s for s in result["systems"]}
    assert known["skforge"]["same_bits"] and known["rows in shared memory"]["same_bits"]
    assert not known["nvforest"]["same_bits"] and not known["nvforest"]["differs"]
    assert known["xgboost"]["reason"] == "needs a GPU"
    assert "No module named 'cuml'" in known["cuml"]["reason"]
    cells = {(c["system"], c["rows"], c["where"]): c for c in result["cells"]}
    assert cells["skforge", 512, "device"]["ratio"] == 1.0
    assert cells["nvforest", 512, "device"]["kernel_ratio"] > 0
    assert cells["nvforest", 512, "host"]["kernel"] is None
    assert ("skforge on the CPU", 1, "host") in cells
    assert ("skforge on the CPU", 1, "device") not in cells
    text = (tmp_path / "out" / "gpu.md").read_text()
    for words in ("Figure 6", "Figure 8", "Crossover", "cache of rows", "Not measured"):
        assert words in text
    assert json.loads((tmp_path / "out" / "gpu.json").read_text())["models"]
    assert (tmp_path / "out" / "gpu-figure-6.png").exists()


def test_a_bit_that_differs_is_an_error(gpu, capsys) -> None:
    exact = {"system": "skforge", "reason": None, "same_bits": False}
    peer = {"system": "nvforest", "reason": None, "same_bits": False}
    fast = {"system": "skforge fast", "reason": None, "same_bits": False}
    assert not gpu.main.differs({"model": "m", "systems": [peer, fast]})
    assert gpu.main.differs({"model": "m", "systems": [exact]})
    assert "m: skforge differs" in capsys.readouterr().out


def cell(system: str, rows: int, where: str, seconds: float, **more: Any) -> dict:
    known = {"kernel": None, "ratio": None, "kernel_ratio": None, "reason": None}
    return {**known, "system": system, "rows": rows, "where": where} | {
        "seconds": seconds,
        **more,
    }


def test_the_crossover_holds_for_all_that_follow(gpu) -> None:
    on_cpu = gpu.tables.ON_CPU
    times = {1: (9, 1), 8: (1, 2), 64: (4, 3), 512: (4, 30), 4096: (5, 200)}
    cells = []
    for rows, (ours, theirs) in times.items():
        cells.append(cell("skforge", rows, "host", ours))
        cells.append(cell(on_cpu, rows, "host", theirs))
    assert gpu.tables.crossover({"cells": cells}) == 512
    assert gpu.tables.crossover({"cells": cells[:2]}) is None


def test_random_models_are_averaged_over_depths(gpu) -> None:
    results = [
        {
            "model": f"synthetic-100x8-{depth}",
            "cells": [cell("nvforest", 512, "device", 1.0, kernel_ratio=ratio)],
        }
        for depth, ratio in ((6, 2.0), (8, 8.0))
    ]
    grid = gpu.tables.random_grid(results, ("nvforest",), "kernel_ratio", 512)
    assert grid == {(100, 8): pytest.approx(4.0)}


def test_kernels_are_timed_by_events_behind_one_that_spins(gpu, monkeypatch) -> None:
    done: list[Any] = []

    class Event:
        def record(self) -> None:
            done.append("event")

        def synchronize(self) -> None:
            done.append("wait")

    class RawKernel:
        def __init__(self, text: str, name: str) -> None:
            assert f"void {name}(" in text

        def __call__(self, grid, block, args) -> None:
            done.append("spin")

    facts = {"name": b"GPU", "multiProcessorCount": 132, "totalGlobalMem": 1 << 37}
    runtime = SimpleNamespace(
        free=lambda pointer: None,
        getDeviceProperties=lambda number: facts,
        driverGetVersion=lambda: 13000,
        runtimeGetVersion=lambda: 13000,
    )
    device = SimpleNamespace(
        id=0, compute_capability="90", synchronize=lambda: done.append("idle")
    )
    cuda = SimpleNamespace(
        Device=lambda: device,
        runtime=runtime,
        Event=Event,
        get_elapsed_time=lambda first, last: 3.0,
    )
    fake = SimpleNamespace(
        cuda=cuda,
        RawKernel=RawKernel,
        asarray=np.asarray,
        asnumpy=np.asarray,
        __version__="0",
    )
    monkeypatch.setitem(sys.modules, "cupy", fake)
    from benchmarks.gpu.devices import clock_of

    clock = clock_of("cuda")
    assert clock.facts()["arch"] == "sm_90" and clock.facts()["kernels_queued"]
    done.clear()
    taken = clock.kernel_seconds(lambda: done.append("call"), 3)
    assert taken == pytest.approx(1e-3)
    after = done[done.index("spin") :]
    assert after == ["spin", "event", "call", "call", "call", "event", "wait"]
    assert clock.get(clock.put(np.ones(2))).sum() == 2


# ---------------------------------------------------------------- other systems


def test_strategies_are_timed_on_a_device_and_kept(gpu, monkeypatch, tmp_path) -> None:
    from benchmarks.gpu import random_models, strategies

    kept = tmp_path / "kept.jsonl"
    first = random_models.sweep([MODEL], (3, 40), "emulated", kept)
    monkeypatch.setattr(random_models, "times", None)  # the second run reads the file
    assert first == random_models.sweep([MODEL], (3, 40), "emulated", kept)
    times = first[0]["times"]
    assert set(times) == {"skforge", *strategies.PRESETS}
    assert all(len(values) == 2 for values in times.values())
    assert all(x > 0 for values in times.values() for x in values)


def test_a_system_has_the_fastest_of_its_strategies(gpu) -> None:
    from benchmarks.gpu import random_models, strategies

    times = {name: [8e-6, None] for name in strategies.PRESETS}
    times |= {"tahoe-shared-data": [4e-6, None], "skforge": [2e-6, 1e-6]}
    record = {"model": MODEL, "batches": [512, 4096], "times": times}
    (found,) = random_models.speedups([record], "Tahoe")
    assert found == {"model": MODEL, "rows": 512, "ratio": pytest.approx(2.0)}
    assert random_models.grid([found], 512) == {(12, 6): pytest.approx(2.0)}
    assert random_models.winners([record], 512) == {"tahoe-shared-data": 1}
    assert not random_models.winners([record], 4096)
    real = {"batches": list(random_models.REAL_BATCHES), "model": "real"}
    real["times"] = {name: [1e-6] * 6 for name in times}
    known = {"picture": "gpu-random.png", "real": ["real"]}
    text = random_models.page({**known, "models": [record, real]})
    assert "| RAPIDS | **4.00** (4.00–4.00) | – |" in text


def test_random_models_are_files_of_xgboost_made_without_it(
    gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    import xgboost
    from synthetic import random_model

    from benchmarks.gpu import random_models

    with monkeypatch.context() as bare:
        bare.setitem(sys.modules, "xgboost", None)
        forest, rows = random_models.load(MODEL)
    got = compile_forest(forest, None, "cpu").predict_raw(rows)
    matrix = xgboost.DMatrix(rows)
    wanted = random_model(MODEL).model.predict(matrix, output_margin=True)
    assert np.array_equal(got.reshape(wanted.shape), wanted)
