"""The GPU benchmarks without a GPU: the harness emulated, peers faked, the model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import gpu_sass
from skforge import compile_forest, load_forest
from tests.gpu_kernels import needs

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
MODEL = "synthetic-12x6-4"


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
    from benchmarks.gpu import (
        bench,
        chips,
        cost,
        cost_nvforest,
        deal,
        designs,
        tables,
        walks,
    )

    yield SimpleNamespace(
        models=models,
        main=main,
        bench=bench,
        chips=chips,
        cost=cost,
        deal=deal,
        peer=cost_nvforest,
        designs=designs,
        tables=tables,
        walks=walks,
    )
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and FOLDER in Path(file).parents:
            del sys.modules[name]


#: Answers like nvForest: sums of the forest, in float32, off by what is asked.
FAKE_NVFOREST = """
import numpy as np
from skforge.compiler.forest.reference import reference_raw

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
    limits = gpu.bench.Limits(rounds=2, slot=1e-4)
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


def test_no_cell_is_begun_after_the_end(gpu) -> None:
    limits = gpu.bench.Limits(end=0.0)
    results, status = gpu.main.run([MODEL], [1], (), [], "emulated", limits, None)
    assert (results, status) == ([], 0)


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


def test_names_of_designs_are_those_of_the_tables(gpu) -> None:
    model = gpu.models.get("synthetic-100x8-6")
    made = {d.name for d in gpu.designs.designs(load_forest(model.path))}
    assert set(gpu.designs.FEW) <= made
    for _, without, with_ in gpu.designs.ABLATION:
        assert {without, with_} <= made


def test_install_lines_name_the_packages(gpu) -> None:
    text = gpu.main.install_lines()
    for package in ("nvforest-cu13", "cuml-cu13", "hummingbird-ml", "[bench,cuda13]"):
        assert package in text


# ---------------------------------------------------------------- the model


def test_lanes_of_one_bank_take_turns(gpu) -> None:
    walks = gpu.walks
    same = np.full((1, 32), 7)
    assert walks.bank_cycles(same) == 1.0  # one word is for all
    two = np.arange(32)[None] * 2
    assert walks.bank_cycles(two) == 2.0
    idle = np.where(np.arange(32) < 4, np.arange(32) * 32, -1)[None]
    assert walks.bank_cycles(idle) == 4.0
    assert walks.line_cycles(np.arange(32)[None] * 4) == 1.0
    assert walks.line_cycles(np.arange(32)[None] * 128) == 32.0
    assert walks.sectors(np.array([[0, 31, 32, -1]])) == 2


def test_walks_end_in_the_reference_s_leaves(gpu) -> None:
    from skforge.compiler import pipeline
    from skforge.compiler.forest.reference import reference_leaves
    from skforge.compiler.schedule.families import Walk, rows_by_threads

    model = gpu.models.get(MODEL)
    forest, rows = load_forest(model.path), np.load(model.rows)[:40]
    schedule = rows_by_threads(32, Walk())
    hir = pipeline.build_hir(forest, schedule, "exact", kind="gpu")
    paths = gpu.walks.walk(hir, rows, np.arange(forest.n_trees))
    depth = forest.node_depths()[reference_leaves(forest, rows)]
    assert (paths.hops == depth).all()


def test_costs_of_a_small_forest(gpu) -> None:
    needs("cuda")
    if gpu_sass.nvdisasm() is None:
        pytest.skip("nvdisasm is not installed")
    model = gpu.models.get("synthetic-40x8-6")
    forest, rows = load_forest(model.path), np.load(model.rows)
    wanted = {
        "rows in shared memory",
        "4 trees in flight, padded",
        "32 rows by 4 parts of trees",
        "tiles of 3 levels, 4 in flight",
        "shared predicates, 256 rows",
    }
    chip = gpu.chips.H200
    modeller = gpu.cost.Modeller(forest, rows, "exact", chip)
    for design in gpu.designs.designs(forest):
        if design.name not in wanted:
            continue
        one = modeller.cost(modeller.made(design.schedule), (1, 4096), design.name)
        assert one.spill_bytes == one.stack_bytes == 0, design.name
        assert 0 < one.occupancy <= 1 and one.row_trees > 0
        assert one.seconds[1] <= one.seconds[4096]
        if design.name == "4 trees in flight, padded":
            assert one.instructions <= 13  # the nvForest-like loop has 23
            assert one.row_cycles == 1.0  # rows by feature: no conflicts
    like = gpu.peer.nvforest_like(forest, rows, chip)
    assert like.instructions == 23 and like.row_cycles > 1.5


def test_a_deal_has_every_row_and_tree_of_a_block_once(gpu) -> None:
    from skforge import Schedule
    from skforge.compiler import pipeline
    from skforge.compiler.schedule.families import Walk, trees_by_blocks
    from skforge.exceptions import ScheduleError
    from skforge.tuning import ScheduleSpace

    forest = load_forest(gpu.models.get("synthetic-40x8-6").path)
    space = ScheduleSpace.gpu()
    schedules = [space.schedule(point, forest) for point in space.sample(25, 0)]
    names = ("tahoe-direct", "rapids", "forest-stationary", "subtrees", "packed-tiles")
    schedules += [Schedule.preset(name) for name in names]
    schedules.append(trees_by_blocks(2, 32, 8, Walk()))
    for schedule in schedules:
        try:
            hir = pipeline.build_hir(forest, schedule, "exact", kind="gpu")
        except ScheduleError:
            continue  # too many threads
        deal = gpu.deal.Deal.of(hir)
        tree = np.broadcast_to(
            deal.tree[:, None, :],
            (deal.threads, deal.row.shape[1], deal.tree.shape[1]),
        )
        row = np.broadcast_to(deal.row[:, :, None], tree.shape)
        there = tree >= 0
        pairs = set(zip(row[there].tolist(), tree[there].tolist(), strict=True))
        trees = -(-forest.n_trees // deal.tree_blocks) if deal.tree_blocks > 1 else 40
        trees = deal.tile if deal.tree_blocks > 1 and deal.tile else trees
        assert len(pairs) == there.sum() == deal.rows * trees, schedule


def test_kernels_of_a_kind_share_their_counts(gpu) -> None:
    needs("cuda")
    if gpu_sass.nvdisasm() is None:
        pytest.skip("nvdisasm is not installed")
    from skforge.exceptions import ScheduleError
    from skforge.tuning import ScheduleSpace

    model = gpu.models.get("synthetic-40x8-6")
    forest, rows = load_forest(model.path), np.load(model.rows)
    chip, known = gpu.chips.A100, gpu.cost.Known()
    alone = gpu.cost.Modeller(forest, rows, "exact", chip, known)
    shared = gpu.cost.Modeller(forest, rows, "exact", chip, known, {})
    space, same = ScheduleSpace.gpu(), 0
    few = space.with_values(
        representation=["sparse"], interleave=[2], cache_rows=[True]
    )
    for point in few.sample(5, 0):
        try:
            made = alone.made(space.schedule(point, forest))
        except ScheduleError:
            continue
        whole = alone.cost(made, (4096,)).seconds
        assert shared.cost(made, (4096,)).seconds == pytest.approx(whole, rel=0.1)
        same += 1
    assert same >= 3 and len(shared.codes) < same


@pytest.mark.parametrize("sums", [None, "shared_reduce", "atomic_reduce"])
def test_the_walk_of_packed_trees_is_told_from_sums(gpu, sums) -> None:
    needs("cuda")
    if gpu_sass.nvdisasm() is None:
        pytest.skip("nvdisasm is not installed")
    from skforge import Schedule

    model, chip = gpu.models.get("synthetic-40x8-6"), gpu.chips.A100
    forest, rows = load_forest(model.path), np.load(model.rows)
    schedule = Schedule().tile("batch", "b0", "b1", 16).tile("tree", "t0", "t1", 10)
    schedule = schedule.reorder("b0", "b1", "t1", "t0").interleave("t0", 2)
    for index, dimension in (("b0", "grid.x"), ("b1", "block.x"), ("t1", "block.y")):
        schedule = schedule.gpu_dimension(index, dimension)
    if sums:
        schedule = getattr(schedule, sums)("t1")
    schedule = schedule.quantize("b0").tile_nodes(7, "complete").represent("packed")
    modeller = gpu.cost.Modeller(forest, rows, "exact", chip)
    found = modeller.walked(modeller.made(schedule), 2)
    # A level of two trees, with what finds the leaf. A loop that adds takes 3.
    assert 20 <= found.loop <= 35


def test_searches_take_modelled_times(gpu) -> None:
    from benchmarks.gpu.modelled import ModelledGpu
    from skforge.compiler.defaults.gpu import default_gpu_schedules
    from skforge.tuning import Heuristic, ScheduleSpace, Tuner

    model, chip = gpu.models.get("synthetic-40x8-6"), gpu.chips.A100
    forest, rows = load_forest(model.path), np.load(model.rows)
    modeller = gpu.cost.Modeller(forest, rows, "exact", chip)
    machine, space = ModelledGpu(modeller), ScheduleSpace.gpu()
    schedules = list(default_gpu_schedules(forest, chip.target).values())
    schedules += [space.schedule(point, forest) for point in space]
    random = np.random.default_rng(0)
    for schedule, seconds in zip(schedules, random.uniform(1, 2, 9999), strict=False):
        machine.keep(schedule, dict.fromkeys((1, 4096), 1e-5 * seconds))
    result = Tuner(Heuristic(), measurer=machine).tune(
        forest, target=chip.target, ranges={(1, None): 4096}, budget=1e9
    )
    own = [t for t in result.trials if t.candidate.origin == "heuristic"]
    # As many as Algorithm 1 has: 108 points, and three with sums in shared memory.
    assert len(own) == 111 and result.n_points == 5184
    timed = [t for t in own if t.samples]
    best = min(timed, key=lambda t: t.seconds)
    assert result.best[1, None].schedule == best.schedule
    assert best.seconds == machine.seconds(best.schedule, 4096)
    assert 1 / 50 < result.seconds / result.exhaustive_seconds < 1 / 40


def test_a_point_that_another_gpu_lacks_gives_way_to_the_next(gpu) -> None:
    from tuning_plots import carried, slowdowns

    nan = np.nan
    first, other = np.array([1.0, 2.0, nan, 3.0]), np.array([nan, 6.0, 3.0, 4.0])
    assert carried(first, other) == 2.0
    assert carried(first, first) == 1.0
    found = slowdowns([first, other])
    np.testing.assert_array_equal(found, [[1.0, nan], [nan, 1.0]])


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


def test_strategies_are_timed_on_a_device_and_kept(gpu, tmp_path) -> None:
    from benchmarks.gpu import random_models, strategies

    made = []

    def make(forest, rows):
        made.append(strategies.Measured(forest, rows, "emulated"))
        return made[-1]

    kept = tmp_path / "kept.jsonl"
    first = random_models.sweep([MODEL], (3, 40), make, kept)
    second = random_models.sweep([MODEL], (3, 40), make, kept)
    assert first == second and len(made) == 1  # the second run reads the file
    times = first[0]["times"]
    assert set(times) == {"skforge", *strategies.PRESETS}
    assert all(len(values) == 2 for values in times.values())
    assert all(x > 0 for values in times.values() for x in values)


def test_strategies_are_modelled(gpu) -> None:
    needs("cuda")
    if gpu_sass.nvdisasm() is None:
        pytest.skip("nvdisasm is not installed")
    from benchmarks.gpu import random_models, strategies
    from skforge import Schedule

    codes: dict[Any, Any] = {}
    found = []
    for name in ("synthetic-40x2048-6", "synthetic-40x2048-6-1"):
        timer = strategies.Modelled(*random_models.load(name), gpu.chips.H200, codes)
        for preset in ("rapids", "xgboost-gpu"):
            schedule = Schedule.preset(preset)
            found.append(strategies.seconds_of(timer, schedule, "fast", (512, 4096)))
    rapids, xgboost, *_ = found
    assert rapids[0] < rapids[1]
    # 128 rows of 2,048 features are more than shared memory.
    assert xgboost == [None, None]
    assert len(codes) == 1  # the kernels of both forests are of one kind


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
    how = "modelled, not measured"
    known = {"times": how, "picture": "gpu-random.png", "real": ["real"]}
    text = random_models.page({**known, "models": [record, real]})
    assert "| RAPIDS | **4.00** (4.00–4.00) | – |" in text
    assert "modelled, not measured" in text


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


def test_all_of_a_forest_is_looked_at_however_many_trees_are_in_flight(gpu) -> None:
    from benchmarks.gpu import reads
    from skforge import Schedule
    from skforge.compiler import pipeline

    forest = load_forest(gpu.models.get("synthetic-40x8-6").path)
    schedule = Schedule().tile("batch", "b0", "b1", 32).reorder("b0", "b1", "tree")
    schedule = schedule.gpu_dimension("b0", "grid.x").gpu_dimension("b1", "block.x")
    schedule = schedule.interleave("tree", 8)
    hir = pipeline.build_hir(forest, schedule, "exact", kind="gpu")
    deal = gpu.deal.Deal.of(hir)
    some, trees = reads.sample(np.zeros((1, 8), np.float32), forest.n_trees)
    paths = gpu.walks.walk(hir, some, trees)
    _, tree, walks = reads._sampled(deal, paths, 32, 8)
    assert {0, 39} <= set(tree[walks].tolist())
