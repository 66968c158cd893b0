"""Exports of models with categories: from texts to the bits of the Python package."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skforge
from skforge.exporters import library
from skforge.forest.categories import ABOVE, ABOVE_OR_NAN, EQUAL, HASH
from skforge.forest.encoder_tables import tables_of
from skforge.rows.hashed_rows import HashedRows
from tests.export_tools import COMPILER, metadata, needs_compiler, run
from tests.plain import plain

cb = pytest.importorskip("catboost")
pd = pytest.importorskip("pandas")

pytestmark = needs_compiler
CATEGORIES = ["long", "code", "flag"]


def make_frame() -> tuple[Any, Any]:
    """Return rows with texts of 0 to 200 bytes, whole numbers and booleans."""
    random = np.random.default_rng(0)
    size = np.repeat(np.arange(201), 4)
    frame = pd.DataFrame(
        {
            "height": np.where(random.random(804) < 0.1, np.nan, random.random(804)),
            "long": [
                ('xé,"日' * 40).encode()[:n].decode("utf-8", "ignore") for n in size
            ],
            "age": random.integers(18, 90, 804),
            "code": random.integers(-4, 40, 804),
            "flag": random.random(804) < 0.5,
        }
    )
    y = size % 7 + np.nan_to_num(frame["height"]) * (frame["code"] % 3) * frame["flag"]
    return frame, y > np.median(y)


@pytest.fixture(scope="module")
def model() -> Any:
    frame, y = make_frame()
    kinds = {"cat_features": CATEGORIES, "one_hot_max_size": 3, "thread_count": 1}
    how = {"iterations": 40, "max_ctr_complexity": 3, "verbose": 0, "random_seed": 1}
    made = cb.CatBoostClassifier(**how, **kinds, allow_writing_files=False)
    fast = plain(made.fit(frame, y)).fit(frame)
    found = {*fast.forest_.hashed.part_kind.tolist()}
    assert found >= {HASH, EQUAL}
    assert found & {ABOVE, ABOVE_OR_NAN}
    return fast


def rows_of(n: int = 804) -> Any:
    """Return rows whose categories are known or new, alone and together."""
    frame, _ = make_frame()
    random = np.random.default_rng(1)
    for name in frame:
        swapped = random.random(804) < 0.3
        frame[name] = frame[name].where(~swapped, random.permutation(frame[name]))
    long = frame["long"].to_numpy(object)
    long[::5] = ["".join(random.choice([*"abcé"], k % 201)) for k in range(161)]
    frame["long"], frame["age"] = long, frame["age"].astype(float)
    frame.loc[::17, "age"] = np.nan
    return frame[:n]


class Loaded:
    """A library as C programs call it."""

    def __init__(self, folder: Path) -> None:
        self.facts = metadata(folder)
        file = folder / self.facts["library"]
        if self.facts["kind"] in ("c", "object"):
            flags = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
            command = [
                str(COMPILER),
                *flags,
                "-O1",
                "-shared",
                "-fPIC",
                "-o",
                "made.so",
            ]
            run([*command, file.name, "-lm"], folder)
            file = folder / "made.so"
        self.functions = ctypes.CDLL(str(file))
        self.model = ctypes.c_void_p()
        assert not self.functions.cats_open(1, ctypes.byref(self.model))

    def encode(self, numbers: Any, texts: list[bytes | None], n: int, out: Any) -> int:
        given = (ctypes.c_char_p * len(texts))(*texts)
        at = [None if x is None else x.ctypes for x in (numbers, out)]
        code: int = self.functions.cats_encode(
            ctypes.c_int64(n), at[0], given if texts else None, at[1]
        )
        return code

    def rows(self, frame: Any) -> Any:
        numbers = frame.assign(**dict.fromkeys(CATEGORIES, np.nan))
        numbers = np.ascontiguousarray(numbers.to_numpy(np.float32))
        cells = frame[CATEGORIES].to_numpy(object).ravel()
        texts = [str(x if isinstance(x, str) else int(x)).encode() for x in cells]
        width = self.facts["model"]["n_features"]
        out = np.empty((len(frame), width), np.float32)
        assert self.encode(numbers, texts, len(frame), out) == 0
        return out

    def predict(self, function: str, rows: Any) -> Any:
        dtype, columns = self.facts["functions"][function].values()
        out = np.empty((len(rows), columns), dtype)
        sizes = map(ctypes.c_int64, (len(rows), rows.shape[1], 1))
        call = self.functions[f"cats_{function}_f32"]
        assert not call(self.model, rows.ctypes, *sizes, out.ctypes)
        return out[:, 0] if columns == 1 else out


@pytest.mark.parametrize("kind", ["c", "object", "shared"])
def test_rows_are_encoded_to_the_same_bits(
    model: Any, kind: str, tmp_path: Path
) -> None:
    folder = skforge.export(model, tmp_path / "cats", kind)
    loaded = Loaded(folder)
    frame = rows_of()
    for given in (frame, make_frame()[0], frame[:1]):
        rows = loaded.rows(given)
        reader = HashedRows(model.forest_)
        wanted = reader.rows(given.to_numpy(object))
        assert rows.tobytes() == wanted.tobytes()
        for function in ("predict_raw", "predict_proba"):
            found = loaded.predict(function, rows)
            expected = getattr(model, function)(given.to_numpy(object))
            np.testing.assert_array_equal(found, expected)
    out, texts = np.empty(rows.shape, np.float32), [b""] * 3
    numbers = np.zeros((1, 5), np.float32)
    assert loaded.encode(numbers, texts, 0, out) == 0
    assert loaded.encode(numbers, texts, -1, out) == 2
    assert loaded.encode(numbers, [b"", None, b""], 1, out) == 1
    for null in (
        (None, texts, 1, out),
        (numbers, [], 1, out),
        (numbers, texts, 1, None),
    ):
        assert loaded.encode(*null) == 1
    # the example reads texts with commas and quotes, and refuses what it cannot read
    strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
    linked = [loaded.facts["library"]]
    linked = ["-L.", "-lcats", "-Wl,-rpath,."] if kind == "shared" else linked
    command = [str(COMPILER), *strict, "-o", "example", "example.c", *linked, "-lm"]
    run(command, folder)
    text = (folder / "check.csv").read_text("utf-8")
    assert run(["./example", "--check"], folder, input=text) == "0 of 100 rows differ\n"
    text = frame.astype({"flag": int}).to_csv(index=False)
    found = np.array(run(["./example"], folder, input=text).split(), np.float64)
    np.testing.assert_array_equal(found, loaded.predict("predict", loaded.rows(frame)))
    for wrong in ("a\n1,x,2,3,1\n1,x,2,3\n", 'a\n1,"x,2,3,1\n', "a\none,x,2,3,1\n"):
        done = subprocess.run(
            ["./example"], cwd=folder, input=wrong.encode(), check=False
        )
        assert done.returncode == 1


def test_contributions_are_refused(model: Any, tmp_path: Path) -> None:
    with pytest.raises(skforge.UnsupportedModelError, match="categories of CatBoost"):
        skforge.export(model, tmp_path / "cats", kind="c", contribs=True)


def test_tables_that_differ_are_found(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(hashed: Any) -> Any:
        sizes, arrays = tables_of(hashed)
        arrays[-1] = arrays[-1] ^ 1  # the statistics
        return sizes, arrays

    monkeypatch.setattr(library, "tables_of", damaged)
    with pytest.raises(
        skforge.exceptions.VerificationError, match="encode of the library"
    ):
        skforge.export(model, tmp_path / "cats", batch_sizes=[1])
    assert not list(tmp_path.iterdir())


_IN_A_WHEEL = """
import sys
import numpy as np
import pandas as pd
import pytest
import cats

frame = pd.read_pickle("frame.pkl")
rows = frame.to_numpy(object)
given = [rows, frame, rows.tolist(), frame.to_dict("records")]
given += [frame[frame.columns[::-1]], {name: frame[name] for name in frame}]
given.append(frame.astype({"long": "category"}))
given += [frame.astype({"code": str}), frame.astype({"flag": int, "age": "Float64"})]
given.append(rows.astype(object)[::-1][::-1])
for library in ("polars", "pyarrow"):
    try:
        module = __import__(library)
    except ImportError:
        continue
    read = module.from_pandas if library == "polars" else module.Table.from_pandas
    given.append(read(frame))
    given.append(read(frame.astype({"long": "category"})))
for function in ("predict_raw", "predict_proba", "predict_class"):
    wanted = np.load(f"{function}.npy")
    for X in given:
        found = getattr(cats, function)(X)
        np.testing.assert_array_equal(found, wanted, strict=True)
    for row, expected in zip(frame.to_dict("records")[:9], wanted):
        np.testing.assert_array_equal(getattr(cats, function)(row), expected[None])
assert cats.predict_proba(frame[:0]).shape == (0, 2)
assert cats.N_FEATURES == 5
good = [0.5, b"x", 3, np.int8(3), np.bool_(True)]
assert cats.predict([good]) == cats.predict([[0.5, "x", 3.0, "3", 1]])
for place, value, text in (
    (1, None, "row 1 has None in column 'long', which is no category"),
    (3, 3.0, "row 1 has 3.0 in column 'code', which is no category"),
    (3, float("nan"), "row 1 has nan in column 'code', which is no category"),
    (1, "a\\0b", "'a.x00b' in column 'long', whose characters"),
    (1, "\\ud800", "cannot read: 0, or some"),
    (0, "0.5", "row 1 has '0.5' in column 'height', which is no number"),
):
    wrong = [good, good[:place] + [value] + good[place + 1 :]]
    with pytest.raises(ValueError, match=text):
        cats.predict(wrong)
with pytest.raises(ValueError, match="which is no category"):
    cats.predict(np.zeros((1, 5)))
with pytest.raises(ValueError, match=r"X must be \\(n, 5\\)"):
    cats.predict(np.zeros((1, 30), np.float32))
assert "skforge" not in sys.modules and "catboost" not in sys.modules
"""


@pytest.mark.skipif(sys.platform != "linux", reason="wheels are made for Linux")
def test_wheels_take_rows_of_all_kinds(model: Any, tmp_path: Path) -> None:
    folder = skforge.export(model, tmp_path / "cats", "wheel")
    (package,) = folder.glob("*.whl")
    with zipfile.ZipFile(package) as archive:
        archive.extractall(tmp_path / "site")
    frame = rows_of()
    frame.to_pickle(tmp_path / "frame.pkl")
    for function in ("predict_raw", "predict_proba"):
        wanted = getattr(model, function)(frame.to_numpy(object))
        np.save(tmp_path / f"{function}.npy", wanted)
    np.save(tmp_path / "predict_class.npy", wanted.argmax(axis=1))
    (tmp_path / "use.py").write_text(_IN_A_WHEEL)
    env = {**os.environ, "PYTHONPATH": "site"}
    run([sys.executable, "-W", "error", "use.py"], tmp_path, env=env)


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text("utf-8")
    page = page[page.index("### Rows with categories") :]
    random = np.random.default_rng(0)
    cities = random.choice(["Oslo", "Rome", "Bern"], 200)
    frame = pd.DataFrame({"age": random.integers(18, 80, 200), "city": cities})
    model = cb.CatBoostRegressor(iterations=9, verbose=0, allow_writing_files=False)
    model.fit(frame, frame["age"] * (cities == "Rome"), cat_features=["city"])
    fast = plain(model).fit(frame)
    folder = skforge.export(fast, tmp_path / "shop", batch_sizes=[2])
    (folder / "main.c").write_text(page.split("```c\n")[1].split("```")[0])
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-o", "main"]
    run([str(COMPILER), *flags, "main.c", "shop.o", "-lm"], folder)
    found = np.array(run(["./main"], folder).split(), np.float64)
    wanted = fast.predict_raw(np.array([[41, "Rome"], [23, "Oslo"]], object))
    np.testing.assert_array_equal(found, wanted)
