"""Exported libraries give the contributions that Python gives, to the bit."""

from __future__ import annotations

import importlib
import shutil
import sys
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import skforge
from skforge import InvalidInputError, UnsupportedModelError
from skforge.forest.reference import draw_rows
from tests.exactness.forests import forest as odd_forest
from tests.export_tools import compare, expected, metadata, needs_compiler, small_forest
from tests.kinds import MODELS
from tests.refusals import error_of


@pytest.mark.parametrize("size", [1, 64])  # points are lanes, and rows
def test_aarch64(tmp_path: Path, size: int) -> None:
    forest = small_forest()
    folder = skforge.export(
        forest, tmp_path / "tiny", target="aarch64", batch_sizes=[size], contribs=True
    )
    assert "predict_contribs" in metadata(folder)["functions"]
    cross, emulator = "aarch64-linux-gnu-gcc", shutil.which("qemu-aarch64")
    if shutil.which(cross) is None or emulator is None:
        pytest.skip("there is no qemu-aarch64, or no compiler for aarch64")
    rows = draw_rows(forest, 130, 3, 0.1)
    how = {"compiler": (cross, "-static"), "runner": (emulator,)}
    compare(folder, forest, "predict_contribs", rows, **how)


@needs_compiler
def test_a_wheel_of_several_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forest = skforge.load_forest(MODELS["xgboost of three"].fitted())
    name = "contributing_wheel"
    folder = skforge.export(
        forest, tmp_path / name, "wheel", batch_sizes=[1], contribs=True
    )
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    made = importlib.import_module(name)
    rows = draw_rows(forest, 90, 3, 0.1)
    wanted = expected(forest, "predict_contribs", rows)
    found = made.predict_contribs(rows)
    assert found.shape == wanted.shape == (90, 3, 7)
    assert found.tobytes() == wanted.tobytes()
    assert made.predict_contribs(rows[:0]).shape == (0, 3, 7)
    del sys.modules[name]


@pytest.mark.parametrize("name", ["no trees", "one leaf"])
def test_models_that_test_nothing(name: str, tmp_path: Path) -> None:
    folder = skforge.export(odd_forest(name), tmp_path / "odd", contribs=True)
    facts = metadata(folder)
    assert (
        facts["left_out"]["predict_contribs"] == "no tree of the model tests a feature"
    )
    assert "predict_contribs" not in facts["functions"]


def test_refusals(tmp_path: Path) -> None:
    forest = small_forest()
    bare, path = replace(forest, cover=np.zeros(0)), tmp_path / "tiny"
    export = partial(skforge.export, contribs=True)
    assert error_of(InvalidInputError, export, forest, path, "c") == (
        "contribs=True is not available with kind='c'; use kind='object', 'shared' or "
        "'wheel'."
    )
    assert error_of(
        UnsupportedModelError, skforge.export, bare, path, contribs=True
    ) == (
        "contribs=True needs the number of training rows that reached each node, but "
        "this xgboost model does not store it."
    )
    assert not list(tmp_path.iterdir())


def test_scratch_for_very_many_outputs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forest = skforge.load_forest(MODELS["forest of three"].fitted())
    monkeypatch.setattr(
        "skforge.engine.explanations.contributions.SUM_BYTES", 8 * 64 * 6
    )
    path = tmp_path / "tiny"
    assert error_of(
        UnsupportedModelError, skforge.export, forest, path, contribs=True
    ) == (
        "contribs=True needs scratch for 3 outputs of 6 features at once, which is too "
        "much; compute contributions in Python."
    )


def test_a_marker_of_missing_values(tmp_path: Path) -> None:
    forest = replace(small_forest(), missing_value=-1.0)
    folder = skforge.export(forest, tmp_path / "tiny", batch_sizes=[1], contribs=True)
    assert metadata(folder)["verified_here"]


def test_fast_sums_leave_contributions_as_they_are(tmp_path: Path) -> None:
    module = skforge.compile_forest(small_forest(), reduction="fast")
    folder = skforge.export(module, tmp_path / "tiny", batch_sizes=[1], contribs=True)
    assert metadata(folder)["verified_here"]
