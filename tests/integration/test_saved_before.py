"""Files that skforge saved before its modules moved still load."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import skforge
from skforge import Schedule
from skforge._moved import MOVED

FOLDER = Path(__file__).parents[1] / "data" / "saved"


def load(name):
    return pickle.loads((FOLDER / f"{name}.pickle").read_bytes())


@pytest.mark.parametrize("name", ["dropped", "module", "forest.skforge"])
def test_predictions_are_those_of_before(name):
    with np.load(FOLDER / "expected.npz") as file:
        X, expected = file["X"], file["predictions"]
    saved = name.endswith(".skforge")
    model = skforge.load(FOLDER / name) if saved else load(name)
    np.testing.assert_array_equal(model.predict_raw(X), expected)


def test_schedules_strategies_and_spaces_are_those_of_before():
    tiles = Schedule().tile("batch", "b0", "b1", 8).parallel("b0").represent("array")
    dropped, tuner = load("dropped"), load("tuner").tuning
    assert dropped.schedule_[8, None] == tiles
    assert tuner.strategy.name == "learned"
    assert [tuner.space.schedule(p, dropped.forest_) for p in tuner.space] == [tiles]
    assert type(load("search")) is skforge.tuning.ScheduleSearch


@pytest.mark.parametrize("name", MOVED)
def test_a_module_is_found_under_the_name_it_had(name):
    module = importlib.import_module(name)
    assert module is importlib.import_module(MOVED[name])
    assert module.__spec__.name == module.__name__ == MOVED[name]


def test_what_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("skforge.tuning.nowhere")


def test_a_fresh_process_loads_them():
    code = f"import pickle; pickle.load(open({str(FOLDER / 'dropped.pickle')!r}, 'rb'))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
