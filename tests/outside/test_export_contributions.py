"""Exported libraries give the contributions that Python gives, to the bit."""

from __future__ import annotations

import importlib
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

import skforge
from skforge import InvalidInputError, UnsupportedModelError
from skforge.compiler.forest.reference import draw_rows
from skforge.exceptions import VerificationError
from skforge.exporters import check
from tests.exactness.forests import forest as odd_forest
from tests.export_tools import (
    expected,
    metadata,
    needs_compiler,
    predict,
    small_forest,
)


def _numbers(n: int) -> tuple[Any, Any]:
    random = np.random.default_rng(1)
    X = np.round(random.standard_normal((n, 5)), 1)
    return X, X.sum(axis=1)


def _lightgbm_categories() -> Any:
    lightgbm = pytest.importorskip("lightgbm")
    X, y = _numbers(700)
    X[:, 0] = np.arange(700) % 40
    data = lightgbm.Dataset(X, y > 0, categorical_feature=[0])
    options = {"objective": "binary", "verbosity": -1, "num_threads": 1, "seed": 0}
    return lightgbm.train(options | {"min_data_in_leaf": 3}, data, 9)


def _xgboost_classes() -> Any:
    xgboost = pytest.importorskip("xgboost")
    X, y = _numbers(600)
    labels = np.digitize(y, [-1, 1])
    model = xgboost.XGBClassifier(n_estimators=5, max_depth=4, n_jobs=1)
    return model.fit(X, labels)


def _random_forest() -> Any:
    from sklearn.ensemble import RandomForestClassifier

    X, y = _numbers(600)
    model = RandomForestClassifier(5, max_depth=8, random_state=0)
    return model.fit(X, np.digitize(y, [-1, 1]))


def _two_classes() -> Any:
    from sklearn.ensemble import ExtraTreesClassifier

    X, y = _numbers(600)
    return ExtraTreesClassifier(5, max_depth=6, random_state=0).fit(X, y > 0)


def _boosting() -> Any:
    from sklearn.ensemble import GradientBoostingRegressor

    X, y = _numbers(600)
    return GradientBoostingRegressor(n_estimators=6, random_state=0).fit(X, y)


MODELS = (
    _lightgbm_categories,
    _xgboost_classes,
    _random_forest,
    _two_classes,
    _boosting,
)


@pytest.mark.sampled(2)
@needs_compiler
@pytest.mark.parametrize("make", MODELS)
def test_models_of_all_kinds(make: Any, tmp_path: Path) -> None:
    forest = skforge.load_forest(make())
    folder = skforge.export(
        forest, tmp_path / "tiny", batch_sizes=[1, 600], contribs=True
    )
    facts = metadata(folder)
    assert facts["verified_here"]
    columns = forest.n_outputs * (forest.n_features + 1)
    dtype = forest.accumulator_dtype.name
    assert facts["functions"]["predict_contribs"] == {
        "dtype": dtype,
        "columns": columns,
    }
    rows = draw_rows(forest, 700, 6, 0.05)
    name = f"predict_contribs_f{8 * rows.itemsize}"
    for n in (0, 1, 7, 700):
        wanted = expected(forest, "predict_contribs", rows[:n])
        for given in (rows[:n], np.asfortranarray(rows[:n])):
            found = predict(folder, name, given)
            assert (found.dtype, found.size) == (wanted.dtype, wanted.size)
            assert found.tobytes() == wanted.tobytes()
    raw = predict(folder, f"predict_raw_f{8 * rows.itemsize}", rows)
    sums = found.reshape(len(rows), forest.n_outputs, -1).sum(axis=2, dtype=float)
    np.testing.assert_allclose(sums, raw.reshape(sums.shape), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, 64])  # points are lanes, and rows
def test_aarch64(tmp_path: Path, size: int) -> None:
    forest = small_forest()
    folder = skforge.export(
        forest,
        tmp_path / "tiny",
        target="aarch64",
        batch_sizes=[size],
        contribs=True,
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
    forest = skforge.load_forest(_xgboost_classes())
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
    assert found.shape == wanted.shape == (90, 3, 6)
    assert found.tobytes() == wanted.tobytes()
    assert made.predict_contribs(rows[:0]).shape == (0, 3, 6)
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
    forest = skforge.load_forest(_random_forest())
    monkeypatch.setattr(
        "skforge.compiler.runtime.explanations.contributions.SUM_BYTES", 8 * 64 * 5
    )
    with pytest.raises(UnsupportedModelError) as error:
        skforge.export(forest, tmp_path / "tiny", contribs=True)
    assert str(error.value) == (
        "contribs=True needs scratch for 3 outputs of 5 features at once, which is too "
        "much; compute contributions in Python."
    )


def test_what_differs_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = check._LoadedLibrary.predict

    def wrong(self: Any, name: str, rows: Any) -> Any:
        found = whole(self, name, rows)
        if name == "predict_contribs":
            found[-1, 2] = np.nextafter(found[-1, 2], np.float32(9))
        return found

    monkeypatch.setattr(check._LoadedLibrary, "predict", wrong)
    with pytest.raises(
        VerificationError, match=r"^predict_contribs of the library for"
    ):
        skforge.export(
            small_forest(), tmp_path / "tiny", batch_sizes=[1], contribs=True
        )
    assert not list(tmp_path.iterdir())


def test_a_marker_of_missing_values(tmp_path: Path) -> None:
    forest = replace(small_forest(), missing_value=-1.0)
    folder = skforge.export(forest, tmp_path / "tiny", batch_sizes=[1], contribs=True)
    assert metadata(folder)["verified_here"]


def test_fast_sums_leave_contributions_as_they_are(tmp_path: Path) -> None:
    module = skforge.compile_forest(small_forest(), reduction="fast")
    folder = skforge.export(module, tmp_path / "tiny", batch_sizes=[1], contribs=True)
    assert metadata(folder)["verified_here"]


def test_command_line(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from skforge.cli.main import app

    tree = DecisionTreeRegressor(max_depth=2).fit(*_numbers(50))
    skforge.save(skforge.load_forest(tree), tmp_path / "model.skforge")
    command = ["export", str(tmp_path / "model.skforge"), "-o", str(tmp_path / "tiny")]
    done = CliRunner().invoke(app, [*command, "--batch-sizes", "1", "--contribs"])
    assert done.exit_code == 0, done.output
    header = (tmp_path / "tiny" / "tiny.h").read_text()
    assert "int tiny_predict_contribs_f64(" in header
    assert "#define TINY_PREDICT_CONTRIBS_COLUMNS 6" in header
