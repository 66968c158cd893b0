"""Tests of ``unit/test_tuning_learned.py`` that compile or start processes."""

from __future__ import annotations

import numpy as np
import pytest

from skforge.compiler.backend import backend_of
from skforge.compiler.cost.shape import Setting
from skforge.compiler.target import Target
from skforge.exceptions import TuningError
from skforge.gpu.cost_model import SHIPPED_GPU
from skforge.tuning import CostModel, Learned
from tests.tuning_tools import FakeMachine
from tests.unit.test_tuning_learned import (
    FOREST,
    GPU,
    SHAPE,
    little_model,
    proposed,
    search,
)


def test_one_shot_on_a_gpu_needs_a_model_of_it():
    machine = FakeMachine(FOREST, lambda s, n: 1e-5)
    assert CostModel.shipped(Target.cuda("sm_90")) is not None
    found = search(Learned("one-shot"), machine, target=Target.cuda("sm_90"), space=GPU)
    assert all(schedule.kind == "gpu" for schedule in found.table.values())
    assert found.notes and not machine.built
    other = Target.cuda("sm_89")
    assert CostModel.shipped(other) is None
    with pytest.raises(TuningError) as error:
        search(Learned("one-shot"), machine, target=other, space=GPU)
    assert str(error.value) == (
        "the cost model was not trained for sm_89, so Learned('one-shot') would "
        "guess. Use Learned('top-5') or tuning='heuristic', which measure, or train a "
        "model with benchmarks/gpu/train.py and pass it as Learned('one-shot', "
        "model=...)."
    )
    given = Learned("one-shot", model=CostModel.shipped(Target.cuda("sm_90")))
    assert search(given, machine, target=other, space=GPU).table
    assert proposed(search(Learned("top-5"), machine, target=other, space=GPU))


def test_a_model_is_arrays_and_comes_back_the_same(tmp_path):
    target = Target.cuda("sm_90")
    setting = Setting(backend_of(target).shape(FOREST, target), target, 64)
    model = little_model({"margin": 1.25})
    schedules = [GPU.schedule(p, SHAPE) for p in GPU.sample(2, random_state=0)]
    few, many = model.seconds(setting, schedules)
    model.save(tmp_path / "one.skforge")
    again = CostModel.load(tmp_path / "one.skforge")
    assert again.facts == {"margin": 1.25}
    assert np.array_equal(again.seconds(setting, schedules), [few, many])
    assert len(again.seconds(setting, [])) == 0


def test_the_shipped_model_is_small_and_predicts():
    assert SHIPPED_GPU.stat().st_size < 150_000
    target = Target.cuda("sm_90")
    model = CostModel.shipped(target)
    assert model is not None
    assert model.facts["margin"] >= 1
    setting = Setting(backend_of(target).shape(FOREST, target), target, 512)
    schedules = [GPU.schedule(p, SHAPE) for p in GPU.sample(100, random_state=0)]
    seconds = model.seconds(setting, schedules)
    assert (seconds > 1e-8).all()
    assert (seconds < 1e-1).all()
    assert seconds.std() > 0
