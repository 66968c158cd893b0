"""Tests of ``unit/test_cli_tables.py`` that compile or start processes."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import skforge
from skforge.cli.main import app
from tests.unit import test_cli_tables

model, reader = test_cli_tables.model, test_cli_tables.reader

ROOT = Path(__file__).parents[2]


class _Input(io.BytesIO):
    @property
    def buffer(self):
        return self


def test_standard_input(tmp_path, model, reader, monkeypatch, capsys):
    X = np.random.default_rng(1).normal(size=(40, 2))
    text = "a,b\n" + "".join(f"{a!r},{b!r}\n" for a, b in X.tolist())
    monkeypatch.setattr(sys, "stdin", _Input(text.encode()))
    with pytest.raises(SystemExit) as stopped:
        app(["predict", str(model), "-"], prog_name="skforge")
    out, err = capsys.readouterr()
    assert not stopped.value.code and err.startswith("40 rows in ")
    found = np.array([line.split(",") for line in out.splitlines()[1:]], np.float64)
    expected = skforge.compile_forest(skforge.load(model)).predict(X)
    assert out.startswith("prediction_0,prediction_1\n")
    assert found.tobytes() == expected.tobytes()


def test_ctrl_c_leaves_no_output(tmp_path, model):
    (tmp_path / "out.csv").write_text("before")
    command = [sys.executable, "-m", "skforge", "predict", str(model), "-"]
    process = subprocess.Popen(
        [*command, "-o", str(tmp_path / "out.csv")],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
    )
    rows = b"0.5,1.5\n" * (1 << 20)
    try:
        while len([*tmp_path.iterdir()]) == 1:  # the file beside it comes later
            assert process.poll() is None, process.stderr.read()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(rows)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        code = process.wait(30)
    finally:
        process.kill()
    assert code == 130
    assert b"Traceback" not in process.stderr.read()
    assert [p.name for p in tmp_path.iterdir()] == ["out.csv"]
    assert (tmp_path / "out.csv").read_text() == "before"
