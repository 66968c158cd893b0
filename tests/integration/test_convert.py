"""``skforge convert``: files of older formats, written anew for this release."""

from __future__ import annotations

import io
import random
import shutil
import zipfile
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestRegressor
from sklearn.tree import DecisionTreeRegressor

import skforge
from skforge._version import FORMAT, __version__
from skforge.exceptions import (
    ScheduleError,
    SkforgeError,
    SourceNeededError,
    VerificationError,
)
from skforge.persistence.older_formats import STEPS
from skforge.runtime.facts import has_avx512
from tests.forging import NOTHING, changed, manifest_of, places, put
from tests.old_files import NAMES, answers, numbers, rows_of
from tests.plain import plain
from tests.programs import command
from tests.refusals import error_of

pytest.importorskip("pandas")

FORMATS = Path(__file__).parents[1] / "data" / "formats"
FIRST = FORMATS / "0.1.0.skforge"
WRITTEN = [*range(1, FORMAT + 1)]
FILES = [
    *("adaboost", "boosting", "forest", "histogram", "isolation", "lightgbm"),
    *("module", "trees", "xgboost"),
]


def file_of(written, name):
    with zipfile.ZipFile(FORMATS / f"{written}.zip") as archive:
        return archive.read(name)


def converted(content):
    new = io.BytesIO()
    skforge.convert(content, new)
    return new.getvalue()


def members(content):
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return {name: file.read(name) for name in file.namelist()}


def equal(answer, stored):
    if stored.dtype.kind == "f" and not has_avx512():  # NumPy's exp has other last bits
        return np.allclose(answer, stored, rtol=1e-6, atol=0)
    return answer.dtype == stored.dtype and answer.tobytes() == stored.tobytes()


def test_every_older_format_has_a_step_and_files():
    """If it fails, FORMAT was raised: write the step, and keep files of that format.

    ``tests/old_files.py`` writes them: the last release's for the format before, and
    those of the new format.
    """
    assert [*STEPS] == WRITTEN[:-1]
    for written in WRITTEN:
        with zipfile.ZipFile(FORMATS / f"{written}.zip") as archive:
            known = sorted([*(f"{name}.skforge" for name in FILES), "answers.npz"])
            assert sorted(archive.namelist()) == known
        for name in FILES:
            manifest = manifest_of(file_of(written, f"{name}.skforge"))
            assert manifest["format_version"] == written


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("written", WRITTEN)
def test_files_answer_as_their_release_did(written, name):
    """If format 2 fails before its release: write its files anew."""
    content = file_of(written, f"{name}.skforge")
    stored = np.load(io.BytesIO(file_of(written, "answers.npz")))
    stored = {k: stored[k] for k in stored.files if k.partition(".")[0] == name}
    new = converted(content)
    if written == FORMAT:
        assert members(new) == members(content)
    elif name == "trees":
        assert skforge.load(new).n_trees == 9
    model = skforge.load(new)
    found = {} if name == "trees" else answers(model, rows_of(name))
    assert {f"{name}.{method}" for method in found} == set(stored)
    for method, answer in found.items():
        assert equal(answer, stored[f"{name}.{method}"]), method


def test_what_format_1_did_not_tell_is_refused():
    """Of LightGBM the columns of categories, of XGBoost the trees of a round."""
    model = skforge.load(converted(file_of(1, "lightgbm.skforge")))
    frame = rows_of("lightgbm")
    assert model.predict(frame).tolist() == model.predict(frame[::-1])[::-1].tolist()
    assert error_of(
        skforge.InvalidInputError, model.predict, frame.iloc[0].to_dict()
    ) == (
        "the rows are mappings, and LightGBM's file lists the categories of 1 column "
        "without saying which these are, so that a value might be taken for a code; "
        "pass a pandas frame whose columns have the dtypes of training, or give fit of "
        "CompiledForest the model and its training frame."
    )
    assert error_of(skforge.InvalidInputError, model.predict, frame.assign(b=1.0)) == (
        "1 column held categories in training, but no column here holds them; give the "
        "same columns the dtype category, or pass an array of their codes."
    )
    model = skforge.load(converted(file_of(1, "xgboost.skforge")))
    assert error_of(
        SourceNeededError, model.predict, rows_of("xgboost"), iteration_range=(0, 1)
    ) == (
        "predict with iteration_range needs the XGBClassifier itself, which this "
        "CompiledForest was saved without; use the original model."
    )


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    shutil.copy(FIRST, "old.skforge")
    return partial(command, capsys)


@pytest.fixture
def refused(run):
    """Return what the command ends with: one line, and nothing else."""

    def said(*arguments):
        code, out, err = run("convert", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        return err.removeprefix("error: ").rstrip("\n")

    return said


def test_the_command(run):
    for new in ("new.skforge", "old.skforge"):
        assert run("convert", "old.skforge", new) == (
            0,
            f"saved {new}: format {FORMAT} of skforge {__version__}, from format 1 of "
            "0.1.0\n"
            "its machine code agrees with a plain walk over the old file's trees, for "
            "256 random rows around the thresholds\n"
            "not compared with the model that it was made from: skforge verify "
            f"{new} --model MODEL --data ROWS does that\n",
            "",
        )
    assert Path("new.skforge").read_bytes() == Path("old.skforge").read_bytes()
    model = skforge.load("new.skforge")
    assert str(model.predict([[0.0], [1.0]])) == "[3. 4.]"


def test_the_command_beside_the_model(run, refused):
    Path("rows.csv").write_text("0\n1\n0.75\n")
    for name, values in (("same", [3.0, 4.0]), ("other", [3.0, 5.0])):
        tree = DecisionTreeRegressor().fit([[0.0], [1.0]], values)
        joblib.dump(tree, f"{name}.joblib")
    command = ["convert", "old.skforge", "new.skforge", "--data", "rows.csv"]
    code, out, err = run(*command, "--model", "other.joblib")
    assert (code, err.count("\n"), Path("new.skforge").exists()) == (1, 1, False)
    assert "new.skforge beside other.joblib, bit by bit\n" in out
    words = [line.split(maxsplit=5) for line in out.splitlines()]
    assert ["predict", "a", "frame", "3", "2", "row 2 has 4.0, not 5.0"] in words
    code, out, err = run(*command, "--model", "same.joblib")
    assert (code, err.count("\n")) == (0, 1)  # what a pickle can do
    assert "new.skforge beside same.joblib, bit by bit\n" in out
    assert out.splitlines()[-2:] == [
        f"saved new.skforge: format {FORMAT} of skforge {__version__}, from format 1 "
        "of 0.1.0",
        "its machine code agrees with a plain walk over the old file's trees, for 256 "
        "random rows around the thresholds",
    ]
    assert skforge.load("new.skforge").predict([[1.0]]).tolist() == [4.0]
    assert refused("old.skforge", "new.skforge", "--data", "rows.csv") == (
        "--model and --data belong together: the answers of both models to "
        "these rows are compared."
    )


def test_the_command_for_old_files_of_xgboost(run, refused):
    with zipfile.ZipFile(FORMATS.parent / "xgboost" / "old_binary.zip") as held:
        Path("old.bst").write_bytes(held.read("0.90-dart-softprob.model"))
        Path("linear.bst").write_bytes(held.read("0.90-gblinear.model"))
    assert run("convert", "old.bst", "new.json") == (
        0,
        "saved new.json: 9 trees, in the JSON of XGBoost 3.0\n"
        "it was read back, and has the trees and base scores of the old file; XGBoost "
        "reads it: xgboost.Booster(model_file='new.json')\n",
        "",
    )
    rows = np.array([[1.0, 2.0, np.nan], [0.5, 9.0, -1.0]], np.float32)
    old, new = (
        plain(name).fit(rows).predict_proba(rows) for name in ("old.bst", "new.json")
    )
    assert old.tobytes() == new.tobytes()
    module = skforge.compile_forest(Path("old.bst").read_bytes(), plain(None).schedule)
    assert module.predict(rows).tobytes() == old.tobytes()
    Path("rows.csv").write_text("a,b,c\n1,2,\n0.5,9,-1\n")
    code, out, _ = run("predict", "old.bst", "rows.csv")
    assert (code, out) == run("predict", "new.json", "rows.csv")[:2]
    assert code == 0
    with zipfile.ZipFile(FORMATS.parent / "xgboost" / "old_pickles.zip") as held:
        Path("old.pkl").write_bytes(held.read("0.90-wrapper.pickle"))
    assert run("convert", "old.pkl", "pickled.json")[0] == 0
    code, out, err = run("predict", "old.pkl", "rows.csv")  # XGBoost fails to open it
    assert (code, out) == run("predict", "pickled.json", "rows.csv")[:2]
    assert (code, err.count("opening a pickle can run any code")) == (0, 1)
    assert refused("old.bst", "new.skforge") == ("new.skforge does not end in .json.")
    options = "--model", "old.bst", "--data", "rows.csv"
    assert refused("old.bst", "newer.json", *options) == (
        "--model and --data are for .skforge files, and old.bst is one of "
        "XGBoost; skforge predict newer.json ROWS answers by it."
    )
    assert refused("linear.bst", "newer.json") == (
        "linear.bst: The booster 'gblinear' is not a tree ensemble that can be "
        "compiled; train with booster='gbtree' or 'dart'."
    )
    assert not Path("newer.json").exists()


def test_bad_use(refused):
    assert refused("old.skforge", "new.json") == ("new.json does not end in .skforge.")
    Path("damaged.skforge").write_bytes(FIRST.read_bytes()[:-9])
    Path("later.skforge").write_bytes(
        changed(FIRST.read_bytes(), lambda m: m.update(format_version=FORMAT + 1))
    )
    assert refused("damaged.skforge", "new.skforge") == (
        "damaged.skforge cannot be loaded: it is damaged (its end is not one of "
        "a zip file). Save the model again."
    )
    assert refused("later.skforge", "new.skforge") == (
        f"later.skforge cannot be loaded: skforge 0.1.0 wrote it in format "
        f"{FORMAT + 1}, and skforge {__version__} reads only format {FORMAT}. Update "
        "skforge."
    )
    assert not Path("new.skforge").exists()


def as_pipeline(manifest):
    manifest["estimator"]["model"]["kind"] = "pipeline"


def test_pipelines_of_format_1_are_refused(tmp_path):
    path = tmp_path / "old.skforge"
    path.write_bytes(changed(FIRST.read_bytes(), as_pipeline))
    assert error_of(
        skforge.UnsupportedModelError, skforge.convert, path, tmp_path / "new.skforge"
    ) == (
        f"{path} cannot be converted: it holds a pipeline, of which skforge 0.1.0 kept "
        "too little to tell which rows its trees are right for; fit and save the "
        "pipeline again."
    )
    assert [*tmp_path.iterdir()] == [path]


def test_a_manifest_that_no_release_wrote(tmp_path):
    path = tmp_path / "old.skforge"
    path.write_bytes(changed(FIRST.read_bytes(), lambda m: m.pop("forest")))
    assert error_of(
        skforge.InvalidModelError, skforge.convert, path, tmp_path / "new.skforge"
    ) == (
        f"{path} cannot be converted: its manifest is not one that skforge wrote in "
        "format 1."
    )


#: What a forged manifest may have in place of any value.
STRANGE = [None, True, -1, 1 << 70, 0.5, "", "x", [], [[]], {}, {"float": "x"}, [None]]


def forged(content, draw):
    place = draw.choice([*places(manifest_of(content))])
    value = NOTHING if draw.random() < 0.3 else draw.choice(STRANGE)
    return changed(content, partial(put, place=place, value=value))


@pytest.mark.parametrize("kind", [MemoryError, ScheduleError])
def test_what_cannot_be_compared_is_not_written(tmp_path, monkeypatch, kind):
    def refuse(*_):
        raise kind("there is no room.")

    monkeypatch.setattr("skforge.persistence.convert.draw_rows", refuse)
    assert (
        error_of(
            skforge.UnsupportedModelError,
            skforge.convert,
            FIRST,
            tmp_path / "new.skforge",
        )
        == f"{FIRST} cannot be converted: there is no room."
    )
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["xgboost", "module", "isolation"])
def test_forged_files_raise_errors_of_skforge_alone(name, monkeypatch):
    monkeypatch.setattr("skforge.persistence.convert._compare", lambda *_: None)
    draw = random.Random(name)
    content = file_of(1, f"{name}.skforge")
    refused = 0
    for _ in range(60):
        try:
            converted(forged(content, draw))
        except SkforgeError:
            refused += 1
    assert refused > 40


def test_other_trees_are_not_written(tmp_path, monkeypatch):
    def other(forest, rows):
        return np.full((len(rows), 1), 7.0)

    monkeypatch.setattr("skforge.persistence.convert.reference_raw", other)
    assert error_of(
        VerificationError, skforge.convert, FIRST, tmp_path / "new.skforge"
    ).startswith("random row 0 around the trees' thresholds: the compiled code gives ")
    assert not any(tmp_path.iterdir())


def test_trees_that_saving_would_change(tmp_path, monkeypatch):
    written = skforge.persistence.convert.compared_contents

    def other(model):
        manifest, arrays = written(model)
        return manifest, {
            **arrays,
            "forest.leaf_value": arrays["forest.leaf_value"] + 1,
        }

    monkeypatch.setattr("skforge.persistence.convert.compared_contents", other)
    assert error_of(
        VerificationError, skforge.convert, FIRST, tmp_path / "new.skforge"
    ) == (
        f"{FIRST} cannot be converted: the new file would hold other trees. Please "
        "report this model, and use the source model's own predict until it is fixed."
    )
    assert not any(tmp_path.iterdir())


def test_what_save_writes_stays_as_it_is(tmp_path):
    """Also the forms of rows that were compared."""
    fast = plain(RandomForestRegressor(3, max_depth=3, random_state=0)).fit(
        numbers(), numbers()[:, 0]
    )
    skforge.save(fast, tmp_path / "a.skforge")
    skforge.convert(tmp_path / "a.skforge", tmp_path / "b.skforge")
    assert (tmp_path / "a.skforge").read_bytes() == (
        tmp_path / "b.skforge"
    ).read_bytes()


def test_files_that_do_not_tell_which_booleans_an_encoder_takes(tmp_path):
    """Those of format 2 that were written before it was found out."""
    rows = numbers().astype(int) % 2
    model = HistGradientBoostingClassifier(max_iter=3, categorical_features=[0])
    fast = plain(model.fit(rows, rows[:, 0] ^ rows[:, 1])).fit(rows)
    skforge.save(fast, tmp_path / "a.skforge")
    content = (tmp_path / "a.skforge").read_bytes()
    assert skforge.load(content).predict(rows > 0).tolist() == [*fast.predict(rows)]
    older = changed(content, lambda m: m["estimator"]["model"]["rules"].pop("flags"))
    for file in (older, converted(older)):
        loaded = skforge.load(file)
        assert loaded.predict(rows).tolist() == [*fast.predict(rows)]
        with pytest.raises(SourceNeededError):
            loaded.predict(rows > 0)


def test_explainers():
    model = skforge.load_forest(
        RandomForestRegressor(3, max_depth=3, random_state=0).fit(
            rows_of("forest"), numbers()[:, 0]
        )
    )
    file = io.BytesIO()
    explainer = skforge.TreeExplainer(model, feature_names=NAMES)
    explainer.save(file)
    again = skforge.TreeExplainer.load(io.BytesIO(converted(file.getvalue())))
    values = explainer.shap_values(numbers())
    assert np.array_equal(again.shap_values(numbers()), values)


def test_bytes_files_and_other_things(tmp_path):
    with FIRST.open("rb") as file:
        assert converted(file) == converted(FIRST.read_bytes())
    with pytest.raises(skforge.InvalidInputError):
        skforge.convert(3, tmp_path / "new.skforge")
    assert error_of(
        skforge.InvalidModelError,
        skforge.convert,
        b"tree\nversion=v3\n",
        tmp_path / "new.skforge",
    ).startswith("This bytes object is a model of LightGBM, not ")
