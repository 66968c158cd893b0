"""Exported libraries give the bits that Python gives."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

import skforge
from skforge import InvalidInputError
from skforge.exceptions import TargetError, VerificationError
from skforge.exporters import check
from skforge.forest.outputs import OutputSpec
from skforge.forest.reference import draw_rows
from skforge.modules.auto import AutoModule
from tests import kinds
from tests.exactness.forests import forest as odd_forest
from tests.export_tools import (
    COMPILER,
    compare,
    exported,
    metadata,
    needs_compiler,
    small_forest,
)

#: With which programs around the kinds of exports are compiled.
FLAGS = {"c": ("-std=c99", "-pedantic", "-O2"), "object": ()}


@pytest.fixture(scope="module")
def forest() -> Any:
    return small_forest()


@needs_compiler
def test_every_function_gives_the_same_bits(forest: Any, tmp_path: Path) -> None:
    folder = exported(tmp_path)
    facts = metadata(folder)
    assert facts["verified_here"]
    names = {"predict_raw", "predict", "predict_proba", "predict_class", "apply"}
    names.add("predict_contribs")
    assert facts["functions"].keys() == names
    for function in names:
        for n in (0, 1, 7, 100, 700):
            rows = draw_rows(forest, n, n, 0.1)
            compare(folder, forest, function, rows)
        compare(folder, forest, function, rows.astype(np.float64))


def test_several_targets_of_classes_lie_side_by_side(tmp_path: Path) -> None:
    from sklearn.ensemble import RandomForestClassifier

    random = np.random.default_rng(0)
    X, few = random.standard_normal((200, 4)), random.integers(2, size=(200, 1))
    for most in (2, 3):  # classes of the second target
        y = np.hstack([few, random.integers(most, size=(200, 1))])
        model = RandomForestClassifier(3, max_depth=3, random_state=0).fit(X, y)
        forest = skforge.load_forest(model)
        folder = skforge.export(forest, tmp_path / f"of_{most}")  # which runs it
        facts = metadata(folder)
        assert facts["verified_here"]
        columns = facts["functions"]["predict_proba"]["columns"]
        assert columns == 2 + most


@pytest.mark.sampled(1)
@needs_compiler
@pytest.mark.parametrize("kind", ["object", "c"])
def test_rows_and_columns_have_strides(forest: Any, tmp_path: Path, kind: str) -> None:
    folder = exported(tmp_path, kind)
    functions = ["predict_raw", "predict_class", "apply"]
    functions += ["predict_contribs"] * (kind == "object")
    dense = draw_rows(forest, 1300, 1, 0.1)
    gaps = np.zeros((1300, 20), np.float32)
    for rows in (gaps[:, 1:7], gaps[:, 1:19:3], np.asfortranarray(dense)):
        rows[:] = dense
        for given in (rows, rows[:3], rows[::5], rows[:1]):
            for function in functions:
                compare(folder, forest, function, given)
    columns = np.asfortranarray(dense.astype(np.float64))
    compare(folder, forest, "predict_proba", columns)


@needs_compiler
def test_three_levels_in_one_library(forest: Any, tmp_path: Path) -> None:
    folder = exported(tmp_path, "shared", "x86-64")
    facts = metadata(folder)
    names = [variant["target"]["cpu"] for variant in facts["variants"]]
    assert names == ["x86-64-v4", "x86-64-v3", "x86-64-v2"]
    rows = draw_rows(forest, 300, 2, 0.1)
    ran = 0
    for variant, name in enumerate(names):
        try:
            skforge.Target.parse(name).check_runs_here()
        except TargetError:
            continue
        ran += 1
        for function in ("predict_raw", "apply", "predict_contribs"):
            compare(folder, forest, function, rows, name, variant=variant)
    assert ran, "no level runs here"


def test_what_is_there_stays(forest: Any, tmp_path: Path) -> None:
    folder = skforge.export(forest, tmp_path / "tiny", batch_sizes=[1])
    with pytest.raises(InvalidInputError, match="already exists"):
        skforge.export(forest, folder, batch_sizes=[1])
    (folder / "mine.txt").write_text("mine")
    (folder / "sub").mkdir()
    (folder / "sub" / "main.c").write_text("mine")
    skforge.export(forest, folder, "c", overwrite=True)
    names = [
        "check.csv",
        "example.c",
        "mine.txt",
        "sub",
        "tiny.c",
        "tiny.h",
        "tiny.json",
    ]
    assert sorted(p.name for p in folder.iterdir()) == names
    assert (folder / "sub" / "main.c").read_text() == "mine"
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    with pytest.raises(InvalidInputError, match="not an export of skforge"):
        skforge.export(forest, other, overwrite=True)
    assert (other / "mine.txt").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "tiny"]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"kind": "dll"}, InvalidInputError, "kind must be one of"),
        ({"target": "cuda"}, TargetError, "libraries run on CPUs"),
        ({"target": ["x86-64-v3", "aarch64"]}, TargetError, "one instruction set"),
        ({"name": "1st"}, InvalidInputError, "name is the prefix"),
        ({"batch_sizes": [0]}, InvalidInputError, "positive whole numbers of rows"),
        ({"batch_sizes": [True]}, InvalidInputError, r"of rows. Got \[True\] instead"),
        ({"batch_sizes": [1.0]}, InvalidInputError, r"of rows. Got \[1.0\] instead"),
        ({"version": "1.0"}, InvalidInputError, "applies only to kind"),
        ({"kind": "wheel", "version": "1.x"}, InvalidInputError, "version must be the"),
        ({"kind": "wheel", "name": "json"}, InvalidInputError, "is a Python keyword"),
        ({"kind": "wheel", "name": "class"}, InvalidInputError, "is a Python keyword"),
    ],
)
def test_refusals(
    forest: Any, tmp_path: Path, options: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        skforge.export(forest, tmp_path / "tiny", **options)
    assert not list(tmp_path.iterdir())


def test_reductions(forest: Any, tmp_path: Path) -> None:
    for reduction in ("reproducible", "fast"):
        module = skforge.compile_forest(forest, reduction=reduction)
        folder = skforge.export(module, tmp_path / reduction, batch_sizes=[1])
        facts = metadata(folder)
        assert facts["model"]["reduction"] == reduction
        assert facts["verified_here"]
    with pytest.raises(InvalidInputError, match="in the source's order"):
        skforge.export(module, tmp_path / "c", "c")


@pytest.mark.parametrize(
    ("reduction", "function", "off"),
    [
        ("exact", "predict_raw", 1e-7),
        ("fast", "predict_raw", 1e-3),
        ("exact", "predict_contribs", 1e-7),
    ],
)
def test_what_differs_is_not_written(
    forest: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reduction: Any,
    function: str,
    off: float,
) -> None:
    whole = check._LoadedLibrary.predict

    def wrong(self: Any, name: str, rows: Any) -> Any:
        found = whole(self, name, rows)
        if name == function:
            found[-1] *= np.float32(1 + off)
        return found

    monkeypatch.setattr(check._LoadedLibrary, "predict", wrong)
    module = skforge.compile_forest(forest, reduction=reduction)
    with pytest.raises(VerificationError, match=f"{function} of the library for"):
        skforge.export(module, tmp_path / "tiny", batch_sizes=[1], contribs=True)
    assert not list(tmp_path.iterdir())


def test_what_was_compiled_for_a_gpu_is_refused(forest: Any, tmp_path: Path) -> None:
    said = (
        "was compiled for emulated .*, but exported libraries run on CPUs; export its"
    )
    module = skforge.compile_forest(forest, target="emulated")
    with pytest.raises(TargetError, match=said):
        skforge.export(module, tmp_path / "tiny")
    fast = skforge.CompiledForest(_stump(), target="emulated").fit([[0.0]])
    with pytest.raises(TargetError, match=said):
        skforge.export(fast, tmp_path / "tiny")
    assert not list(tmp_path.iterdir())
    skforge.export(fast.forest_, tmp_path / "tiny")


def test_of_a_cpu_and_a_gpu_the_cpu_is_exported(tmp_path: Path) -> None:
    model = kinds.MODELS["forest of three"].fitted()
    fast = skforge.CompiledForest(model, tuning="off").fit(kinds.X[:9])
    schedule = skforge.Schedule().tile("batch", "b0", "b1", 32).parallel("b0")
    cpu = skforge.compile_forest(fast.forest_, schedule=schedule)
    gpu = skforge.compile_forest(fast.forest_, target="emulated")
    fast._predictor.module = AutoModule(cpu, gpu, 100)
    fast.target_, fast.gpu_min_rows_ = gpu.target, 100
    folder = skforge.export(fast, tmp_path / "both")
    (found,) = metadata(folder)["variants"][0]["schedules"]
    assert skforge.Schedule.from_json(json.dumps(found["schedule"])) == schedule


def test_the_json_is_as_documented(tmp_path: Path) -> None:
    facts = metadata(exported(tmp_path))
    page = (
        Path(__file__).parents[2] / "docs" / "appendix" / "export_json.md"
    ).read_text("utf-8")
    table = page[page.index("# What the JSON") :].split("\n\n")[1]
    documented = re.findall(r"`(\w+)`", table)
    wanted = {*facts, *facts["model"], *facts["sizes"], *facts["variants"][0]}
    wanted |= {key for one in facts["functions"].values() for key in one}
    wanted |= set(facts["variants"][0]["schedules"][0])
    assert set(documented) - {"NAME_checksum"} == wanted
    assert set(facts["sha256"]) == {"check.csv", "example.c", "tiny.h", "tiny.o"}


def test_an_estimator_has_to_be_fitted(tmp_path: Path) -> None:
    from sklearn.exceptions import NotFittedError

    model = _stump()
    with pytest.raises(NotFittedError):
        skforge.export(skforge.CompiledForest(model), tmp_path / "tiny")
    fitted = skforge.CompiledForest(model).fit([[0.0]])
    folder = skforge.export(fitted, tmp_path / "tiny")
    first = metadata(folder)["variants"][0]["schedules"][0]["schedule"]
    schedule = next(iter(fitted.schedule_.values()))
    assert skforge.Schedule.from_json(json.dumps(first)) == schedule


@needs_compiler
@pytest.mark.parametrize("make", ["categories", "numbers"])
def test_portable_c_under_sanitizers(make: str, forest: Any, tmp_path: Path) -> None:
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
    (tmp_path / "try.c").write_text("int main(void) { return 0; }")
    command = shlex.join([COMPILER or "cc", *flags, "-o", "try", "try.c"]) + " && ./try"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True)
    if done.returncode:  # LeakSanitizer does not run under an emulator, for one
        pytest.skip("the compiler has no sanitizers that run here")
    if make == "categories":
        forest = skforge.load_forest(_lightgbm_categories())
    folder = skforge.export(forest, tmp_path / "tiny", "c", apply=True)
    rows = draw_rows(forest, 200, 9, 0.05)
    for function in metadata(folder)["functions"]:
        compare(folder, forest, function, rows, flags=flags)


def test_command_line(forest: Any, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from skforge.cli.main import app

    skforge.save(forest, tmp_path / "model.skforge")
    command = ["export", str(tmp_path / "model.skforge"), "-o", str(tmp_path / "out")]
    command += ["--batch-sizes", "1", "--name", "tiny", "--apply", "--contribs"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "tiny.o" in done.stdout
    assert "bytes a tree" in done.stdout
    header = (tmp_path / "out" / "tiny.h").read_text()
    assert "int tiny_apply_f32(" in header
    assert "int tiny_predict_contribs_f64(" in header
    assert "#define TINY_PREDICT_CONTRIBS_COLUMNS 7" in header
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "already exists" in done.output


# ------------------------------------------------------------ other models


def _lightgbm_categories() -> Any:
    lightgbm = pytest.importorskip("lightgbm")
    X, y = _numbers(700)
    X[:, 0] = np.arange(700) % 40
    data = lightgbm.Dataset(X, y > 0, categorical_feature=[0])
    options = {"objective": "binary", "verbosity": -1, "num_threads": 1, "seed": 0}
    return lightgbm.train(options | {"min_data_in_leaf": 3}, data, 9)


def _expectiles() -> Any:
    return Path(__file__).parents[1] / "data" / "xgboost" / "3.4.1-expectile.json"


def _stump() -> Any:
    return DecisionTreeRegressor(max_depth=1).fit([[0.0], [1.0]], [3.0, 4.0])


def _numbers(n: int) -> tuple[Any, Any]:
    random = np.random.default_rng(1)
    X = np.round(random.standard_normal((n, 5)), 1)
    return X, X.sum(axis=1)


MODELS = {
    "sets": _lightgbm_categories,
    "expectiles": _expectiles,
    "a stump": _stump,
    **{
        name: kinds.MODELS[name].fitted
        for name in (
            *("xgboost of three", "xgboost, missing", "forest of three"),
            *("isolation", "gb of names"),
        )
    },
}


@pytest.mark.sampled(4)
@needs_compiler
@pytest.mark.parametrize("kind", ["object", "c"])
@pytest.mark.parametrize("name", MODELS)
def test_models_of_all_kinds(name: str, kind: str, tmp_path: Path) -> None:
    forest = skforge.load_forest(MODELS[name]())
    folder = skforge.export(
        forest,
        tmp_path / "tiny",
        kind,
        batch_sizes=np.array([1, 600]),
        apply=True,
        contribs=kind == "object",
    )
    facts = metadata(folder)
    rows = draw_rows(forest, 600, 5, 0.05)
    other = np.float64 if rows.dtype == np.float32 else np.float32
    assert facts["functions"].keys() >= {"predict_raw", "apply"}
    for function in facts["functions"]:
        for given in (rows, rows[:3], rows.astype(other)):
            compare(folder, forest, function, given, flags=FLAGS[kind])


@pytest.mark.sampled(4)
@needs_compiler
@pytest.mark.parametrize("kind", ["object", "c"])
@pytest.mark.parametrize("post", ["none", "logistic", "softmax", "softmax_zero"])
@pytest.mark.parametrize(
    ("layout", "offsets", "labels"),
    [
        ("one", (0.125,), "above_bound"),
        ("mirrored", (-0.125,), "above_bound"),
        ("columns", (0.5, np.nan, 0.0), "first_greatest"),
    ],
)
def test_outputs_of_onnx(
    layout: Any, offsets: Any, labels: Any, post: Any, kind: str, tmp_path: Path
) -> None:
    X, y = _numbers(400)
    targets = np.stack([np.round(y), y, -y], axis=1)[:, : len(offsets)]
    model = DecisionTreeRegressor(max_depth=4).fit(X, targets)
    outputs = OutputSpec(
        "onnx",
        0.5,
        offsets=offsets,
        probabilities="values",
        labels=labels,
        layout=layout,
        post=post,
        dtype="float32" if post == "softmax" else "float64",
    )
    forest = replace(
        skforge.load_forest(model),
        source="onnx",
        task="binary" if len(offsets) == 1 else "multiclass",
        output_sizes=(len(offsets),),
        outputs=outputs,
    )
    folder = skforge.export(forest, tmp_path / "tiny", kind)
    rows = draw_rows(forest, 50, 5, 0.05).astype(np.float32)
    assert not metadata(folder)["left_out"]
    for function in ("predict", "predict_proba", "predict_class"):
        compare(folder, forest, function, rows, flags=FLAGS[kind])


@needs_compiler
@pytest.mark.parametrize("name", ["sets", "xgboost of three"])
def test_aarch64_runs_emulated(name: str, tmp_path: Path) -> None:
    cross, emulator = "aarch64-linux-gnu-gcc", shutil.which("qemu-aarch64")
    if shutil.which(cross) is None or emulator is None:
        pytest.skip("there is no qemu-aarch64, or no compiler for aarch64")
    forest = skforge.load_forest(MODELS[name]())
    folder = skforge.export(
        forest, tmp_path / "tiny", target="aarch64", apply=True, name="tiny"
    )
    assert not metadata(folder)["verified_here"]
    rows = draw_rows(forest, 200, 6, 0.05)
    how = {"compiler": (cross, "-static"), "runner": (emulator,)}
    for function in ("predict_raw", "apply"):
        for n in (1, 9, 200):
            for given in (rows[:n], np.asfortranarray(rows[:n])):
                compare(folder, forest, function, given, **how)


@pytest.mark.sampled(3)
@needs_compiler
@pytest.mark.parametrize(
    "name",
    [
        "no trees",
        "one leaf",
        "mixed trees",
        "vector 10",
        "zero missing",
        "never missing",
        "any missing",
        "double categories",
        "double extremes",
    ],
)
def test_odd_forests(name: str, tmp_path: Path) -> None:
    forest = odd_forest(name)
    folder = skforge.export(forest, tmp_path / "odd", apply=True)
    facts = metadata(folder)
    assert facts["verified_here"]
    assert ("apply" in facts["functions"]) is (name != "no trees")
    skforge.export(forest, folder, "c", apply=True, overwrite=True)
    rows = draw_rows(forest, 90, 5, 0.1)
    for function in metadata(folder)["functions"]:
        compare(folder, forest, function, rows, flags=FLAGS["c"])
