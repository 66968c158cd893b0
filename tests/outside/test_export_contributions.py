"""Exported libraries give the contributions that Python gives, to the bit."""

from __future__ import annotations

import importlib
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import skforge
from skforge import InvalidInputError, UnsupportedModelError
from skforge.forest.reference import draw_rows
from tests.exactness.forests import forest as odd_forest
from tests.export_tools import expected, metadata, needs_compiler, predict, small_forest
from tests.kinds import MODELS


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
    found = predict(
        folder,
        "predict_contribs_f32",
        rows,
        compiler=(cross, "-static"),
        runner=(emulator,),
    )
    assert found.tobytes() == expected(forest, "predict_contribs", rows).tobytes()


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
    with pytest.raises(InvalidInputError) as error:
        skforge.export(forest, tmp_path / "tiny", "c", contribs=True)
    assert str(error.value) == (
        "contribs=True is not available with kind='c'; use kind='object', 'shared' or "
        "'wheel'."
    )
    with pytest.raises(UnsupportedModelError) as unknown:
        bare = replace(forest, cover=np.zeros(0))
        skforge.export(bare, tmp_path / "tiny", contribs=True)
    assert str(unknown.value) == (
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
    with pytest.raises(UnsupportedModelError) as error:
        skforge.export(forest, tmp_path / "tiny", contribs=True)
    assert str(error.value) == (
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
