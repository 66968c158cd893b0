"""skforge predict --keep: columns of the rows beside the results, as they were."""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeRegressor

import skforge
from skforge.cli import tables
from tests.plain import plain
from tests.programs import command

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow", exc_type=ImportError)
NAMES = ["x", "y"]
#: Keys and notes whose texts have to come back as they were.
KEYS = ["007", "7", "1e3", "7.0", "NA", "", "nan", "None", "+5", " 5 ", "0x10", "True"]
NOTES = [
    "plain",
    "a, b",
    'he said "no"',
    "two\nlines",
    "",
    "Zoë 中文 🦊",
    "a;b\tc",
    "'",
]
DATES = ["2024-02-29", "29.02.2024", "2024-02-29T23:59:59.123456789Z", "", "0001-01-01"]


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    return partial(command, capsys, "predict")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keep")
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(200, 2)), columns=NAMES)
    tree = DecisionTreeRegressor(max_depth=4, random_state=0).fit(X, X["x"] * X["y"])
    skforge.save(plain(tree).fit(X), folder / "tree.skforge")
    words = np.array(["no, never", "yes"])[(X["x"] > 0).astype(int)]
    forest = RandomForestClassifier(3, max_depth=3, random_state=0).fit(X, words)
    skforge.save(plain(forest).fit(X), folder / "words.skforge")
    bare = DecisionTreeRegressor(max_depth=4, random_state=0).fit(X.to_numpy(), X["x"])
    skforge.save(plain(bare).fit(X.to_numpy()), folder / "bare.skforge")
    steps = make_pipeline(PCA(), forest).fit(X, words)
    joblib.dump(steps, folder / "steps.joblib")
    return folder


@pytest.fixture(params=["pyarrow", "standard library"])
def reader(request, monkeypatch):
    if request.param != "pyarrow":
        for name in ("pyarrow", "pyarrow.csv"):
            monkeypatch.setitem(sys.modules, name, None)
    return request.param


def frame(n: int = 240) -> Any:
    """Return rows among whose features are columns to keep."""
    rng, at = np.random.default_rng(1), np.arange(n)
    return pd.DataFrame(
        {
            "id": [KEYS[i % len(KEYS)] for i in at],
            "x": rng.normal(size=n),
            "note, long": [NOTES[i % len(NOTES)] for i in at],
            "y": rng.normal(size=n),
            "day": [DATES[i % len(DATES)] for i in at],
        }
    )


KEPT = ["id", "note, long", "day"]
OPTION = 'id,"note, long",day'


def lines_of(text: str) -> list[list[str]]:
    return [*csv.reader(io.StringIO(text, newline=""))]


def predicted(files: Path, rows: Any, name: str = "tree.skforge") -> Any:
    return skforge.load(files / name).predict(rows[NAMES])


@pytest.mark.parametrize("model", ["tree.skforge", "words.skforge"])
def test_texts_of_csv_come_back_as_they_were(run, files, reader, model, tmp_path):
    rows = frame()
    rows.to_csv(tmp_path / "rows.csv", index=False)
    code, out, err = run(files / model, "rows.csv", "--keep", OPTION)
    assert code == 0, err
    head, *lines = lines_of(out)
    assert head == [*KEPT, "prediction"]
    assert [line[:3] for line in lines] == rows[KEPT].to_numpy().tolist()
    expected = predicted(files, rows, model)
    found = np.array([line[3] for line in lines]).astype(expected.dtype)
    np.testing.assert_array_equal(found, expected)
    # to a file, in the order that was asked for, and through a pipe
    saved = run(files / model, "rows.csv", "--keep", "day,id", "-o", "out.csv")
    assert saved[0] == 0
    assert saved[2].startswith("saved out.csv: 240 rows, 3 columns in ")
    text = (tmp_path / "out.csv").read_bytes().decode()
    wanted = [["day", "id", "prediction"], *([a[2], a[0], a[3]] for a in lines)]
    assert lines_of(text) == wanted


def test_only_texts_that_need_them_have_quotes(run, files, reader, tmp_path):
    (tmp_path / "a.csv").write_text('id,x,y\n"007",1,2\n 8 ,3,4\n"",5,6\n')
    (tmp_path / "b.csv").write_text('id,x,y\n"0,7",1,2\n8,3,4\n"say ""no""",5,6\n')
    values = predicted(files, pd.DataFrame({"x": [1.0, 3, 5], "y": [2.0, 4, 6]}))
    for name, keys in (
        ("a", ["007", " 8 ", ""]),
        ("b", ['"0,7"', "8", '"say ""no"""']),
    ):
        code, out, _ = run(files / "tree.skforge", f"{name}.csv", "--keep", "id")
        head, *lines = out.splitlines()
        assert code == 0 and head == "id,prediction"
        cells = [line.rpartition(",") for line in lines]
        assert [cell[0] for cell in cells] == keys
        assert [float(cell[2]) for cell in cells] == values.tolist()


@pytest.mark.parametrize("out", ["csv", "parquet", "arrow", "feather"])
@pytest.mark.parametrize("given", ["csv", "parquet", "arrow", "feather"])
def test_every_format_of_rows_and_results(run, files, given, out, tmp_path):
    rows = frame()
    if given == "csv":
        rows.to_csv(tmp_path / "rows.csv", index=False)
    elif given == "parquet":
        rows.to_parquet(tmp_path / "rows.parquet", row_group_size=50)
    elif given == "arrow":
        with pa.ipc.new_file(
            tmp_path / "rows.arrow", (table := pa.Table.from_pandas(rows)).schema
        ) as file:
            file.write_table(table, max_chunksize=50)
    else:
        rows.to_feather(tmp_path / "rows.feather")
    path = tmp_path / f"out.{out}"
    code, _, err = run(
        files / "tree.skforge", f"rows.{given}", "--keep", OPTION, "-o", path
    )
    assert code == 0, err
    if out == "csv":
        found = pd.read_csv(path, dtype=dict.fromkeys(KEPT, str), keep_default_na=False)
    elif out == "parquet":
        found = pd.read_parquet(path)
    else:
        found = pd.read_feather(path)
    assert list(found) == [*KEPT, "prediction"]
    # an empty cell of CSV has no text
    texts = found[KEPT].fillna("") if given == "csv" else found[KEPT]
    assert texts.to_numpy().tolist() == rows[KEPT].to_numpy().tolist()
    np.testing.assert_array_equal(found["prediction"], predicted(files, rows))


def typed(n: int = 90) -> Any:
    """Return a table whose columns have types, gaps, and categories by batch."""
    at = range(n)
    return pa.table(
        {
            "x": np.linspace(-1, 1, n),
            "whole": pa.array([None if i % 7 == 3 else 2**62 + i for i in at]),
            "flag": pa.array([None if i % 5 == 1 else i % 2 == 0 for i in at]),
            "day": pa.array([datetime.date(2024, 2, 1 + i % 29) for i in at]),
            "when": pa.array(
                [1_700_000_000_000_000_000 + i for i in at], pa.timestamp("ns", "UTC")
            ),
            "price": pa.array(
                [decimal.Decimal(i) / 4 for i in at], pa.decimal128(9, 2)
            ),
            "city": pa.array([f"c{i // 30}" for i in at]).dictionary_encode(),
            "x2": pa.array([i / 3 for i in at], pa.float32()),
            "y": np.linspace(2, -2, n),
            "tags": pa.array([[i, None] for i in at]),
        }
    )


TYPED = ["whole", "flag", "day", "when", "price", "city", "x2"]


@pytest.mark.parametrize("given", ["parquet", "arrow"])
def test_values_keep_their_types(run, files, given, tmp_path):
    table = typed()
    path = tmp_path / f"rows.{given}"
    if given == "parquet":
        pa.parquet.write_table(table, path, row_group_size=40)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, max_chunksize=40)
    options = files / "tree.skforge", path, "--keep", ",".join([*TYPED, "tags"])
    wanted = table.select([*TYPED, "tags"]).set_column(
        5, "city", table["city"].cast(pa.string())
    )
    for out in ("parquet", "arrow"):
        code, _, err = run(*options, "-o", f"out.{out}")
        assert code == 0, err
        if out == "parquet":
            found = pa.parquet.read_table(tmp_path / "out.parquet")
        else:
            with pa.OSFile(str(tmp_path / "out.arrow")) as file:
                found = pa.ipc.open_file(file).read_all()
        assert found.drop_columns("prediction").equals(wanted)
        expected = predicted(files, table.to_pandas())
        np.testing.assert_array_equal(found["prediction"].to_numpy(), expected)
    kind = "element" if given == "parquet" else "item"
    why = (
        f"error: --keep tags: the column has values of type list<{kind}: int64>, which "
        "CSV does not hold; write .parquet, .arrow or .feather.\n"
    )
    assert run(*options) == (2, "", why)
    code, out, _ = run(*options[:-1], ",".join(TYPED))
    assert code == 0
    assert lines_of(out)[1][:7] == [
        *("4611686018427387904", "true", "2024-02-01"),
        *("2023-11-14 22:13:20.000000000Z", "0.00", "c0", "0"),
    ]
    assert lines_of(out)[4][0] == "" and lines_of(out)[2][1] == ""


@pytest.mark.parametrize("given", ["csv", "parquet", "pipe"])
def test_many_rows_stay_beside_their_results(
    run, files, given, tmp_path, monkeypatch, reader
):
    n = 100_000 if reader == "pyarrow" else 40_000
    rng = np.random.default_rng(2)
    rows = pd.DataFrame({"key": [f"{i:09d}" for i in rng.permutation(n)]})
    rows["x"], rows["y"] = rng.normal(size=n), rng.normal(size=n)
    path = tmp_path / f"rows.{'parquet' if given == 'parquet' else 'csv'}"
    if given == "parquet":
        if reader != "pyarrow":
            pytest.skip("Parquet needs pyarrow")
        rows.to_parquet(path)
    else:
        rows.to_csv(path, index=False)
    sizes, honest = [], tables._rows_at_a_time
    monkeypatch.setattr(
        tables, "_rows_at_a_time", lambda width: min(honest(width), 9999)
    )
    monkeypatch.setattr(tables, "_BLOCK", 1 << 18)
    batches = tables.Table.batches

    def watched(self, places):
        for batch in batches(self, places):
            sizes.append(len(batch))
            yield batch

    monkeypatch.setattr(tables.Table, "batches", watched)
    if given == "pipe":
        buffer = io.BytesIO(path.read_bytes())
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=buffer))
    source = "-" if given == "pipe" else path
    code, _, err = run(files / "tree.skforge", source, "--keep", "key", "-o", "out.csv")
    assert code == 0, err
    assert len(sizes) > 4 and sum(sizes) == n and max(sizes) <= 9999
    lines = lines_of((tmp_path / "out.csv").read_text())[1:]
    assert [line[0] for line in lines] == rows["key"].tolist()
    if reader == "pyarrow":
        found = np.array([float(line[1]) for line in lines])
        np.testing.assert_array_equal(found, predicted(files, rows))


def test_features_and_the_index_of_pandas_can_be_kept(run, files, tmp_path):
    rows = frame(20).assign(number=np.arange(20) ** 2).set_index("number")
    rows.to_parquet(tmp_path / "rows.parquet")
    code, out, err = run(files / "tree.skforge", "rows.parquet", "--keep", "number,y,x")
    assert code == 0, err
    found = pd.read_csv(io.StringIO(out))
    assert found["number"].tolist() == rows.index.tolist()
    pd.testing.assert_frame_equal(found[NAMES], rows[NAMES].reset_index(drop=True))
    np.testing.assert_array_equal(found["prediction"], predicted(files, rows))


def test_files_without_names(run, files, reader, tmp_path):
    X = np.random.default_rng(3).normal(size=(30, 2))
    wanted = skforge.load(files / "bare.skforge").predict(X).tolist()
    lines = [f"{i:03d},{x!r},{y!r}" for i, (x, y) in enumerate(X.tolist())]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    how = "--columns", "1:3", "--keep", "0:1"
    code, out, err = run(files / "bare.skforge", "rows.csv", *how)
    assert code == 0, err
    head, *found = lines_of(out)
    assert head == ["column_0", "prediction"]
    assert [line[0] for line in found] == [f"{i:03d}" for i in range(30)]
    assert [float(line[1]) for line in found] == wanted
    np.save(tmp_path / "rows.npy", np.column_stack([X[:, ::-1], X]))
    how = "--columns", "2:4", "--keep", "0:2"
    code, out, err = run(files / "bare.skforge", "rows.npy", *how)
    assert code == 0, err
    found = pd.read_csv(io.StringIO(out))
    assert list(found) == ["column_0", "column_1", "prediction"]
    np.testing.assert_array_equal(found[["column_1", "column_0"]], X)
    assert found["prediction"].tolist() == wanted
    why = (
        "error: The columns of rows.npy have no names; --keep takes a range of them, "
        "such as 0:1. Got 'id' instead.\n"
    )
    how = "--columns", "2:4", "--keep", "id"
    assert run(files / "bare.skforge", "rows.npy", *how) == (2, "", why)


def test_models_that_need_all_rows_at_once(run, files, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_rows_at_a_time", lambda width: 50)
    rows = frame()
    rows.to_csv(tmp_path / "rows.csv", index=False)
    code, out, err = run(files / "steps.joblib", "rows.csv", "--keep", "id")
    assert code == 0, err
    head, *lines = lines_of(out)
    assert head == ["id", "prediction"]
    assert [line[0] for line in lines] == rows["id"].tolist()
    expected = joblib.load(files / "steps.joblib").predict(rows[NAMES])
    assert [line[1] for line in lines] == expected.tolist()


def test_a_kept_column_may_be_called_as_other_results(run, files, tmp_path):
    (tmp_path / "rows.csv").write_text("id,x,y,prediction\n1,2,3,4\n")
    how = files / "tree.skforge", "rows.csv", "--keep", "prediction"
    assert run(*how, "--contribs")[0] == 0
