"""The GPU benchmarks without a GPU: the harness emulated, peers faked."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import train
from skforge import compile_forest, load_forest
from skforge.compiler.target import Target
from skforge.tuning import CostModel, ScheduleSpace, Tuner
from skforge.tuning.search.strategies import Random
from tests.exactness.forests import drawn
from tests.programs import ROOT, benchmark_modules
from tests.tuning_tools import FakeMachine

MODEL = "synthetic-12x6-4"
#: Seconds: a busy machine may be slow.
HOUR = 3600.0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """The modules of benchmarks/gpu, and a folder for models of their own."""
    pytest.importorskip("xgboost")
    monkeypatch.setenv("SKFORGE_BENCH_CACHE", str(tmp_path / "cache"))
    names = "bench", "designs", "tables", "random_models", "strategies"
    steps = "run", "run_items", "run_report", "run_setup", "run_stages"
    with benchmark_modules(monkeypatch) as module:
        found = SimpleNamespace(main=module("benchmarks.gpu.__main__"))
        for name in (*names, *(f"first_{step}" for step in steps)):
            setattr(found, name, module(f"benchmarks.gpu.{name}"))
        log = tmp_path / "out" / found.first_run.FILE
        found.log = lambda: found.first_run_items.Log(log)
        yield found


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
    kept = tmp_path / "kept.jsonl"
    first = gpu.random_models.sweep([MODEL], (3, 40), "emulated", kept)
    # the second run reads the file
    monkeypatch.setattr(gpu.random_models, "times", None)
    assert first == gpu.random_models.sweep([MODEL], (3, 40), "emulated", kept)
    times = first[0]["times"]
    assert set(times) == {"skforge", *gpu.strategies.PRESETS}
    assert all(len(values) == 2 for values in times.values())
    assert all(x > 0 for values in times.values() for x in values)


def test_a_system_has_the_fastest_of_its_strategies(gpu) -> None:
    times = {name: [8e-6, None] for name in gpu.strategies.PRESETS}
    times |= {"tahoe-shared-data": [4e-6, None], "skforge": [2e-6, 1e-6]}
    record = {"model": MODEL, "batches": [512, 4096], "times": times}
    (found,) = gpu.random_models.speedups([record], "Tahoe")
    assert found == {"model": MODEL, "rows": 512, "ratio": pytest.approx(2.0)}
    assert gpu.random_models.grid([found], 512) == {(12, 6): pytest.approx(2.0)}
    assert gpu.random_models.winners([record], 512) == {"tahoe-shared-data": 1}
    assert not gpu.random_models.winners([record], 4096)
    real = {"batches": list(gpu.random_models.REAL_BATCHES), "model": "real"}
    real["times"] = {name: [1e-6] * 6 for name in times}
    known = {"picture": "gpu-random.png", "real": ["real"]}
    text = gpu.random_models.page({**known, "models": [record, real]})
    assert "| RAPIDS | **4.00** (4.00–4.00) | – |" in text


def test_random_models_are_files_of_xgboost_made_without_it(
    gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    import xgboost
    from synthetic import random_model

    with monkeypatch.context() as bare:
        bare.setitem(sys.modules, "xgboost", None)
        forest, rows = gpu.random_models.load(MODEL)
    got = compile_forest(forest, None, "cpu").predict_raw(rows)
    matrix = xgboost.DMatrix(rows)
    wanted = random_model(MODEL).model.predict(matrix, output_margin=True)
    assert np.array_equal(got.reshape(wanted.shape), wanted)


# ---------------------------------------------------------------- the first run


@pytest.mark.parametrize(
    "numbers",
    [(1, 4, 6, 7, 8), pytest.param(tuple(range(1, 9)), marks=pytest.mark.slow)],
)
def test_a_rehearsal_without_a_gpu(gpu, tmp_path, capsys, numbers) -> None:
    pytest.importorskip("matplotlib")
    gpu.first_run_setup.pack([MODEL], tmp_path / "models.zip")
    packed = {"names": MODEL, "packed": tmp_path / "models.zip", "quick": True}
    given = {"target": "emulated", "output": tmp_path / "out", **packed}
    for number in numbers:
        with pytest.raises(SystemExit) as ended:
            call(gpu, stage=number, minutes=9.0, **given)
        assert ended.value.code == 0, gpu.log().lines[-1]
        assert gpu.log().results(number)
    ((_, line),) = gpu.log().results(6).items()
    assert set(line["result"]["seconds"]["4 trees in flight"]) == {"16", "256"}
    ((_, line),) = gpu.log().results(7).items()
    assert line["result"]["wrong"] == [] and set(line["result"]["gpu"]) >= {"64"}
    skipped = [one["result"]["skipped"] for one in gpu.log().results(8).values()]
    assert skipped and set(skipped) <= {"no device", "no ncu on the PATH"}
    capsys.readouterr()
    call(gpu, plan_only=True, **given)
    said = capsys.readouterr().out
    assert len(said.splitlines()) == len(gpu.first_run_stages.STAGES) + 1
    assert "5 searches" in said and "together about" in said
    call(gpu, report=True, **given)
    text = (tmp_path / "out" / "first_run.md").read_text()
    first_row = "| 1 install | 5 | 0 | 1 | 0 |"
    for words in (first_row, "| 8 counters |", "this CPU", "## Designs"):
        assert words in text
    tables = (tmp_path / "out" / "gpu_random_emulated.md").read_text()
    assert "1 random models" in tables and MODEL in tables


def call(gpu: SimpleNamespace, **given) -> None:
    """Call the command with its defaults."""
    usual = {"stage": 0, "minutes": 1.0, "again": False, "pack": None, "kernel": ""}
    gpu.first_run.main(**{**usual, "plan_only": False, "report": False, **given})


def test_searches_are_held_to_all_of_table_5(gpu) -> None:
    times = {"0": {"512": 4e-6}, "7": {"512": 2e-6}}
    lines = {
        "Table 5, m, 0": {"result": {"seconds": times}},
        "Algorithm 1, m, 512 rows": {
            "result": {"seconds": {"512": 3e-6}, "taken": 9.5}
        },
    }
    text = "\n".join(gpu.first_run_report._searches(lines))
    assert "| m | 512 rows | Algorithm 1 | 3.0 | 2.0 | 1.50 | 9.5 |" in text


def test_counters_are_read_from_csv(gpu) -> None:
    name, metric = "Kernel Name", gpu.first_run_stages.METRICS[0]
    text = (
        f'==PROF== Connected\n"ID","{name}","{metric}","other"\n'
        '"","","ns",""\n"0","predict_0","1,234","5"\n'
    )
    assert gpu.first_run_stages.counted(text) == [{name: "predict_0", metric: "1,234"}]
    assert gpu.first_run_stages.counted("==ERROR== no permission") == []


def test_packed_models_are_read_without_their_library(
    gpu, monkeypatch, tmp_path
) -> None:
    pytest.importorskip("xgboost")
    gpu.first_run_setup.pack([MODEL], tmp_path / "models.zip")
    monkeypatch.setenv("SKFORGE_BENCH_CACHE", str(tmp_path / "elsewhere"))
    monkeypatch.setitem(sys.modules, "xgboost", None)
    for _ in range(2):
        model = gpu.first_run_setup.unpacked(tmp_path / "models.zip", MODEL)
        assert tmp_path / "elsewhere" in Path(model.path).parents
        assert load_forest(model.path).n_trees == 12
        assert len(np.load(model.rows)) == gpu.first_run_setup.ROWS


@pytest.fixture
def file(tmp_path, monkeypatch):
    pytest.importorskip("lightgbm")

    class Sample:
        forest, rows = drawn(20, 4), None

    monkeypatch.setattr(train, "get", lambda name: Sample)
    monkeypatch.setattr(train, "BATCHES", (64, 128))
    return tmp_path / "times.jsonl"


def test_times_of_a_gpu_become_a_model_of_it(file, tmp_path, capsys):
    forest = train.get("one").forest
    machine = FakeMachine(forest, lambda s, n: 1e-6 * (len(repr(s)) + n))
    space = ScheduleSpace.gpu().with_values(cache_trees=[False])
    tuner = Tuner(Random(20), space, measurer=machine, records=None)
    target = replace(Target.cuda("sm_86"), n_cores=84)
    train.measured(file, ["one"], target, tuner, 100.0)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {one["arch"] for one in lines} == {"sm_86"}
    found = list(train.groups(file))
    assert {(g.model, g.n_rows) for g in found} == {("one", 64), ("one", 128)}
    timed = sum(len(g.log_row) for g in found)
    assert timed == len(lines) == 2 * (20 + 1)  # and the default
    (one,) = (g for g in found if g.n_rows == 64)
    times = [n["seconds"]["64"] for n in lines if "64" in n["seconds"]]
    assert sorted(np.exp(one.log_row) * 64e-9) == pytest.approx(sorted(times))
    assert one.slowdown(one.log_row) == 1
    train.fit(file, tmp_path / "gpu.skforge", validate=False)
    model = CostModel.load(tmp_path / "gpu.skforge")
    assert model.knows(Target.cuda("sm_86"))
    assert not model.knows(Target.cuda("sm_80"))
    assert not model.knows(Target.x86_64())
    assert np.isfinite(model.log_row(one.work)).all()
