"""``skforge tune``, and ``inspect`` and ``plot`` of what it writes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import xgboost as xgb

import skforge
from tests.programs import command

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(100, 4)).astype(np.float32)
MODEL = xgb.XGBRegressor(n_estimators=5, max_depth=3, n_jobs=1).fit(X, X[:, 0])


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERMINAL_WIDTH", "200")

    return partial(command, capsys)


@pytest.fixture
def files(tmp_path):
    MODEL.save_model(tmp_path / "model.json")
    np.save(tmp_path / "rows.npy", X)
    return tmp_path


def test_tune_inspect_and_plot(run, files):
    options = ("--data", files / "rows.npy", "--batch-sizes", "1,8", "--budget", 2)
    records = ("--records", files / "records.jsonl")
    tuned = files / "tuned.skforge"
    code, out, err = run("tune", files / "model.json", *options, *records, "-o", tuned)
    assert code == 0, err
    assert out.startswith("heuristic on cpu ")
    model = skforge.load(tuned)
    result = model.tuning_result_
    assert out.splitlines()[-3:] == [
        result.conclusion,
        f'saved {tuned}: skforge.load("{tuned}") returns the model',
        f"its schedules: skforge inspect {tuned} --level tuning",
    ]
    assert "Schedule()" not in out
    assert "tuning: " in err  # no terminal: lines
    assert [note for note in result.notes if note in out or note not in err] == []
    assert np.array_equal(model.predict(X), MODEL.predict(X))
    assert run("inspect", tuned, "--level", "tuning")[1] == (
        model.tuning_result_.summary() + "\n"
    )
    assert "result[" in run("inspect", tuned)[1]
    for kind in ("distribution", "slowdown", "sensitivity"):
        image = files / f"{kind}.png"
        assert run("plot", tuned, "--kind", kind, "-o", image)[0] == 0
        assert image.read_bytes().startswith(b"\x89PNG")
    code, out, _ = run("tune", files / "model.json", *options, *records)
    assert code == 0 and out.startswith("record on cpu ")
    assert out.endswith(
        "Nothing is saved; -o tuned.skforge saves the model with these schedules.\n"
    )
    code, out, _ = run("tune", files / "model.json", *options, *records, "--verbose=0")
    assert code == 0 and "\nnote: reused from " in out
    code, out, _ = run("tune", files / "model.json", *options, *records, "--verbose=2")
    assert code == 0 and "Schedule()" in out and "note: " not in out
