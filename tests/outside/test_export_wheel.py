"""Exports as Python packages, without skforge."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import skforge
from skforge.forest.reference import draw_rows
from tests.export_tools import expected, needs_compiler, run, small_forest

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="wheels are made for Linux"),
    needs_compiler,
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("wheel") / "Tiny__Model"
    forest = small_forest()
    skforge.export(forest, folder, "wheel", apply=True, contribs=True, version="2.0rc1")
    return forest, folder


def _package(folder: Path) -> Path:
    (package,) = folder.glob("*.whl")
    return package


def test_what_is_in_it(made: tuple[Any, Path]) -> None:
    _, folder = made
    package = _package(folder)
    name, version, *tags = package.stem.split("-")
    assert (name, version, tags[:2]) == ("tiny_model", "2.0rc1", ["py3", "none"])
    arch = skforge.Target.host().arch
    several = f"manylinux_2_17_{arch}", f"musllinux_1_1_{arch}"
    assert tags[2] == ".".join(several)
    with zipfile.ZipFile(package) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        facts = archive.read("tiny_model-2.0rc1.dist-info/METADATA").decode()
        wheel = archive.read("tiny_model-2.0rc1.dist-info/WHEEL").decode()
    assert wheel.endswith("".join(f"Tag: py3-none-{tag}\n" for tag in several))
    assert "Name: tiny_model\nVersion: 2.0rc1\n" in facts
    assert "License" not in facts
    inside = ("__init__.py", "py.typed", "libTiny__Model.so", "Tiny__Model.json")
    assert {f"Tiny__Model/{file}" for file in inside} < set(names)


def test_it_predicts_without_skforge(made: tuple[Any, Path], tmp_path: Path) -> None:
    forest, folder = made
    rows = draw_rows(forest, 60, 0, 0.1)
    np.save(tmp_path / "rows.npy", rows)
    functions = ("predict_raw", "predict", "predict_proba", "predict_class", "apply")
    functions += ("predict_contribs",)
    for function in functions:
        np.save(tmp_path / f"{function}.npy", expected(forest, function, rows))
    said = _used(folder, tmp_path, _USE, *functions)
    assert said.split() == [forest.content_hash(), "2.0rc1"]


_USE = """
import sys
import threading
import numpy as np
import Tiny__Model as tiny

X = np.load("rows.npy")
wide = np.zeros((60, 14))
wide[:, 1:13:2] = X
odd = np.zeros(60 * 24 + 1, np.uint8)[1:].view(np.float32).reshape(60, 6)
odd[:] = X
bad = []

def check():
    for function in sys.argv[1:]:
        wanted = np.load(f"{function}.npy")
        for given in (X, X.astype(float), np.asfortranarray(X), wide[:, 1:13:2],
                      odd, X.astype(">f4"), X.tolist(), X[::-1][::-1]):
            found = getattr(tiny, function)(given)
            if not np.array_equal(found, wanted.reshape(found.shape)):
                bad.append(function)
        found = getattr(tiny, function)(X[::-7])
        if not np.array_equal(found, wanted.reshape(60, -1)[::-7].reshape(found.shape)):
            bad.append(f"{function} backwards")
        assert len(getattr(tiny, function)(X[:0])) == 0

threads = [threading.Thread(target=check) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not bad, bad
for wrong in (X[0], X[:, :5]):
    try:
        tiny.predict(wrong)
    except ValueError as error:
        assert "X must be (n, 6)" in str(error)
    else:
        raise AssertionError("taken")
assert "skforge" not in sys.modules
print(tiny.checksum(), tiny.__version__)
"""


def test_users_types_are_right(made: tuple[Any, Path], tmp_path: Path) -> None:
    mypy = pytest.importorskip("mypy.api")
    with zipfile.ZipFile(_package(made[1])) as archive:
        archive.extractall(tmp_path)
    (tmp_path / "use.py").write_text(
        "import numpy as np\nimport Tiny__Model as tiny\n"
        "reveal_type(tiny.predict_class([[0.0] * 6]))\ntiny.predict(None)\n"
    )
    options = ["--strict", "--python-executable", sys.executable]
    options += ["--cache-dir", os.devnull, str(tmp_path / "use.py")]
    said, _, _ = mypy.run(options)
    assert re.search(r"type is \"numpy.ndarray\[.*64Bit\]\]\]\"", said), said
    assert 'Argument 1 to "predict" has incompatible type "None"' in said
    assert "Found 1 error" in said


_DOCUMENTED = """
import inspect
import pydoc
import Tiny__Model as tiny

names = ["predict_raw", "predict", "predict_proba", "predict_class", "apply"]
assert tiny.__all__ == ["N_FEATURES", "checksum", *names, "predict_contribs"]
for name in tiny.__all__[1:]:
    text = inspect.getdoc(getattr(tiny, name))
    assert text.startswith("Return ") and "\\n" not in text, text
shown = pydoc.plain(pydoc.render_doc(tiny))
assert "METH_O" not in shown and "of shape (n, 6)" in shown
assert "the probability of each class, of shape (n, 2), for X of" in shown
"""


def test_it_is_documented(made: tuple[Any, Path], tmp_path: Path) -> None:
    _used(made[1], tmp_path, _DOCUMENTED)


def test_no_linker_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(skforge.exceptions.TargetError, match="No linker for"):
        skforge.export(small_forest(), tmp_path / "tiny", "wheel", batch_sizes=[1])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_it_installs_in_an_empty_environment(
    made: tuple[Any, Path], tmp_path: Path
) -> None:
    forest, folder = made
    run([sys.executable, "-m", "venv", "clean"], tmp_path)
    python = str(tmp_path / "clean" / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", str(_package(folder))]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if "No matching distribution found for numpy" in done.stderr:
        pytest.skip("there is no index of packages")
    assert done.returncode == 0, done.stderr
    rows = draw_rows(forest, 60, 0, 0.1)
    np.save(tmp_path / "rows.npy", rows)
    code = (
        "import numpy as np, Tiny__Model as t\n"
        "np.save('out.npy', t.predict_raw(np.load('rows.npy')))"
    )
    run([python, "-c", code], tmp_path)
    np.testing.assert_array_equal(
        np.load(tmp_path / "out.npy"), expected(forest, "predict_raw", rows).reshape(-1)
    )


# ------------------------------------------------------------ rows by name

_BY_NAME = """
import sys
import warnings
import numpy as np
import pandas as pd
import pytest
import named

frame, wanted = pd.read_pickle("frame.pkl"), np.load("wanted.npy")
rows = frame.to_dict("records")
given = [frame, frame[frame.columns[::-1]], frame.assign(more=1), rows, tuple(rows)]
given += [{name: frame[name] for name in frame}]
for library in ("polars", "pyarrow"):
    try:
        module = __import__(library)
    except ImportError:
        continue
    of_pandas = module.from_pandas if library == "polars" else module.Table.from_pandas
    given.append(of_pandas(frame))
for X in given:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a mapping's further keys
        np.testing.assert_array_equal(named.predict_proba(X), wanted, strict=True)
for row, expected in zip(rows[:20], wanted):
    np.testing.assert_array_equal(named.predict_proba(row), expected[None], strict=True)
assert named.predict_proba(frame[:0]).shape == (0, 2)
for wrong, text in (
    ({"age": 3.0}, "the row has no 'kind'"),
    ({**rows[0], "age": "old"}, "'age' of the row is 'old', which is not a number"),
    ([rows[0], {**rows[0], "kind": []}], "'kind' of row 1 is of type list"),
):
    with pytest.raises(ValueError, match=text):
        named.predict_proba(wrong)
if UNKNOWN:  # categories are refused that the model has no rule for
    row = {**rows[0], "kind": "d"}
    two = frame[:2].assign(kind=pd.Categorical([frame["kind"][0], "d"]))
    for X, where in ((row, "the row"), (rows[:2] + [row], "row 2"), (two, "row 1")):
        text = f"^'kind' of {where} is 'd', a value that training did not have and for"
        with pytest.raises(ValueError, match=text):
            named.predict_proba(X)
assert "skforge" not in sys.modules and "sklearn" not in sys.modules
"""


def _used(folder: Path, tmp_path: Path, program: str, *arguments: str) -> str:
    with zipfile.ZipFile(_package(folder)) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "use.py").write_text(program)
    env = {**os.environ, "PYTHONPATH": "site"}
    command = [sys.executable, "-W", "error", "use.py", *arguments]
    return run(command, tmp_path, env=env)


@pytest.mark.parametrize("kind", ["pipeline", "xgboost", "lightgbm"])
def test_frames_and_mappings_are_read_by_name(kind: str, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": random.integers(18, 80, 200).astype(float),
            "kind": pd.Categorical(random.choice(["a", "b", "c"], 200)),
        }
    )
    frame.loc[::9, "age"] = np.nan
    y = (frame["kind"] == "a") | (frame["age"] > 50)
    if kind == "pipeline":
        encoder = make_column_transformer(
            (OneHotEncoder(handle_unknown="ignore"), ["kind"]), remainder="passthrough"
        )
        model = make_pipeline(encoder, RandomForestClassifier(5, random_state=0))
    elif kind == "xgboost":
        model = pytest.importorskip("xgboost").XGBClassifier(n_estimators=5)
        model.set_params(enable_categorical=True)
    else:
        lightgbm = pytest.importorskip("lightgbm")
        model = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1)
    model.fit(frame, y)
    fast = skforge.CompiledForest(model, tuning="off").fit(frame)
    skforge.export(fast, tmp_path / "named", "wheel")
    frame.to_pickle(tmp_path / "frame.pkl")
    np.save(tmp_path / "wanted.npy", model.predict_proba(frame))
    unknown = f"UNKNOWN = {kind == 'xgboost'}"
    _used(tmp_path / "named", tmp_path, f"{unknown}\n{_BY_NAME}")


_COMPILED = """
import sys
import numpy as np
import Tiny__Model as tiny

X = np.load("rows.npy")
assert sorted(tiny._functions) == [
    "predict", "predict_class", "predict_proba", "predict_raw"
]
for name, compiled in tiny._functions.items():
    wanted = tiny._call(name, *RESULTS[name], X)
    for rows in (X, X.astype(float), X[::-1], np.asfortranarray(X)):
        found = compiled(rows)
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        expected = wanted[::-1] if rows.strides[0] < 0 else wanted
        assert np.array_equal(found, expected), name
    wide = np.zeros((60, 12), np.float32)
    wide[:, ::2] = X
    assert np.array_equal(compiled(wide[:, ::2]), wanted)
    odd = np.zeros(60 * 24 + 1, np.uint8)[1:].view(np.float32).reshape(60, 6)
    refused = [X[0], X[:0], X[:, :5], X.astype(">f4"), np.zeros((60, 6), int), odd]
    refused += [X.tolist(), None, X.astype(np.float16), np.tile(X, (10**4, 1))]
    for declined in refused:
        assert compiled(declined) is None
counts = []
for _ in range(2):
    counts.append([sys.getrefcount(x) for x in (X, X.dtype, np.ndarray)])
    for compiled in 100 * [*tiny._functions.values()]:
        compiled(X)
        compiled(X[0])
compiled = None
assert counts[0] == counts[1], counts
"""


def test_small_arrays_go_through_compiled_functions(
    made: tuple[Any, Path], tmp_path: Path
) -> None:
    forest, folder = made
    np.save(tmp_path / "rows.npy", draw_rows(forest, 60, 0, 0.1))
    facts = json.loads((folder / "Tiny__Model.json").read_text("utf-8"))
    results = {n: (f["dtype"], f["columns"]) for n, f in facts["functions"].items()}
    _used(folder, tmp_path, f"RESULTS = {results!r}\n{_COMPILED}")


def test_other_interpreters_call_by_ctypes(
    made: tuple[Any, Path], tmp_path: Path
) -> None:
    forest, folder = made
    rows = draw_rows(forest, 5, 0, 0.1)
    np.save(tmp_path / "rows.npy", rows)
    np.save(tmp_path / "wanted.npy", expected(forest, "predict", rows))
    program = """
import numpy as np
from Tiny__Model._runtime import python_objects
python_objects.ARRAY_DATA += 8  # another NumPy
import importlib, Tiny__Model as tiny
python_objects.numpy_api.cache_clear()
tiny = importlib.reload(tiny)
assert not tiny._functions
assert np.array_equal(tiny.predict(np.load("rows.npy")), np.load("wanted.npy"))
"""
    _used(folder, tmp_path, program)
