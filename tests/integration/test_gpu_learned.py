"""Training of the cost model of GPUs: times of a fake machine become a model."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gpu import train
from skforge.compiler.target import Target
from skforge.tuning import CostModel, ScheduleSpace, Tuner
from skforge.tuning.search.strategies import Random
from tests.exactness.forests import drawn
from tests.tuning_tools import FakeMachine

pytest.importorskip("lightgbm")


@pytest.fixture
def file(tmp_path, monkeypatch):
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
