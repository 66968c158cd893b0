"""Files of rows: read in parts, to the same numbers by every reader, written whole."""

from __future__ import annotations

import struct
import sys

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor

import skforge
from skforge.cli import tables
from skforge.cli.data import RowsFile, all_rows
from skforge.cli.main import app
from skforge.cli.predict import writer
from skforge.cli.tables import columns_of
from skforge.cli.values import numbers, texts
from skforge.exceptions import InvalidInputError
from skforge.prediction.answers import Answer
from skforge.sources.row_facts import RowFacts
from tests.refusals import error_of

READERS = ["pyarrow", "standard library"]


@pytest.fixture(params=READERS)
def reader(request, monkeypatch):
    if request.param == "pyarrow":
        pytest.importorskip("pyarrow", exc_type=ImportError)
    else:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    return request.param


def read(path, spec, text=None):
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return all_rows(path, spec)


# -- values -----------------------------------------------------------------------

ODD = [
    "1e999", "-1e999", "1e-400", "5e-324", "2.4703282292062328e-324", "+1.5", ".5",
    "1.", " 7 ", "1_000", "1e5", "Infinity", "-inf", "1.7976931348623159e308",
    "0.1000000000000000055511151231257827021181583404541015625", "9007199254740993",
    "8.41e21", "9007199254740992.99999999999999999", "123456789012345678901234567890",
]  # fmt: skip


def test_numbers_in_place_of_categories_are_refused(tmp_path, reader):
    """As new categories, codes would be missing values: other predictions."""
    spec = RowFacts(1, names=("size",), categories={0: ("s", "m", "l")})
    path = tmp_path / "rows.csv"
    with pytest.raises(InvalidInputError, match=r"'size' holds numbers, .* \('s', 'm'"):
        read(path, spec, "size\n0\n2\n\n1\n")
    kept = read(path, spec, "size\nm\n3\nNA\n")["size"]
    assert list(kept.cat.codes) == [1, 3, -1]


@pytest.mark.parametrize(
    ("known", "codes"), [((1.5, 2.0), [1, 2, 0, -1]), ((1, 2), [1, 2, 3, -1])]
)
def test_categories_that_are_numbers(known, codes, tmp_path, reader):
    spec = RowFacts(1, names=("size",), categories={0: known})
    kept = read(tmp_path / "rows.csv", spec, "size\n2\n3\n1.5\nNA\n")["size"]
    assert list(kept.cat.codes) == codes
    assert list(kept.cat.categories)[: len(known)] == [*known]


@pytest.mark.parametrize("cell", ["", '""'])
def test_empty_cells_are_no_categories_of_catboost(cell, tmp_path, reader):
    """As missing ones of the frame that pandas makes of the file, for CatBoost."""
    spec = RowFacts(2, names=("c", "x"), hashed={0: False})
    path = tmp_path / "rows.csv"
    with pytest.raises(InvalidInputError, match="row 2 of column 'c' has None, and"):
        read(path, spec, f"c,x\nred,1\n{cell},2\n")
    kept = read(path, spec, "c,x\nred,1\nNA,2\n")["c"]
    assert list(kept) == ["red", "NA"]


def test_texts_become_the_numbers_of_python(tmp_path, reader):
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**64, 3000, dtype=np.uint64).view(np.float64)
    texts = [repr(float(one)) for one in bits[np.isfinite(bits)]]
    texts += [f"{one:.25e}" for one in random.normal(size=500)] + ODD
    X = read(tmp_path / "x.csv", RowFacts(1), "x\n" + "\n".join(texts) + "\n")
    expected = struct.pack(f"{len(texts)}d", *map(float, texts))
    assert X.dtype == np.float64 and X.tobytes() == expected


def test_cells_are_read_alike(tmp_path, reader):
    text = '\ufeffa,"b ""c""",d\r\n NA ,"1e3",\r\n\r\nnull,-inf,None\r\n"7",nan,N/A'
    spec = RowFacts(3, ("a", 'b "c"', "d"))
    X = read(tmp_path / "x.csv", spec, text)
    nan = np.nan
    np.testing.assert_array_equal(
        X, [[nan, 1000, nan], [nan, -np.inf, nan], [7, nan, nan]]
    )


def test_texts_are_those_of_the_cells(tmp_path, reader):
    text = 'a,b\n"x, y",1\nNA,2\nNone,3\n,4\n"two\nlines",5\n'
    (tmp_path / "x.csv").write_text(text)
    with RowsFile(tmp_path / "x.csv", RowFacts(2, ("a", "b"))) as file:
        (batch,) = file.batches()
    words = ["x, y", None, "None", None, "two\nlines"]
    found = texts(columns_of(batch)[0], known={"None"}).tolist()
    assert [None if word != word else word for word in found] == words
    assert numbers(columns_of(batch)[1]).tolist() == [1, 2, 3, 4, 5]


def test_names_that_are_numbers(tmp_path, reader):
    assert len(read(tmp_path / "x.csv", RowFacts(3), "0,1,2\n5,6,7\n")) == 1
    assert len(read(tmp_path / "x.csv", RowFacts(3), "0,1,3\n5,6,7\n")) == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"a,b\n1,2\n1,\xff\xfe\n", "a table: it is not text in UTF-8; save it in UTF"),
        (b"\xff\xfea\x00,\x00b\x00\n",
         "a table: it is not text in UTF-8; save it in U"),
        (b'a,b\n1,"2\n',
         "a table: a quote is left open, so that the last cell begins "),
        (b"a,b\n1,2\n1,2,3\n", "a line has 3 cells, not 2: 1,2,3"),
        (b"a,b\n1,2\n1,x\n", "row 2 of column 1 has 'x', and the model takes numbers"),
        (b"a,b\n", "x.csv has no rows; give at least one."),
        (b"", "x.csv cannot be read as a table: it is empty."),
    ],
)  # fmt: skip
def test_damaged_csv(tmp_path, reader, text, why):
    with pytest.raises(InvalidInputError) as error:
        read(tmp_path / "x.csv", RowFacts(2), text)
    assert why in str(error.value)


@pytest.mark.parametrize("body", ["1" * 400, '1,"2\n' + "3,4\n" * 99])
def test_a_line_without_end_is_not_read_into_memory(
    tmp_path, reader, monkeypatch, body
):
    monkeypatch.setattr(tables, "_BLOCK", 16)
    monkeypatch.setattr(tables, "_LINE", 64)
    with pytest.raises(InvalidInputError, match="a line has no end within"):
        read(tmp_path / "x.csv", RowFacts(2), f"a,b\n{body}")


def test_parquet_needs_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    said = error_of(InvalidInputError, read, tmp_path / "x.parquet", RowFacts(2))
    assert said == ("Reading x.parquet needs pyarrow: pip install pyarrow.")


@pytest.mark.parametrize("ending", ["parquet", "arrow", "feather", "npy"])
def test_files_of_other_kinds_than_their_names(tmp_path, ending):
    pytest.importorskip("pyarrow", exc_type=ImportError)
    with pytest.raises(InvalidInputError) as error:
        read(tmp_path / f"x.{ending}", RowFacts(2), "hello, world\n" * 9)
    assert str(error.value).startswith(f"x.{ending} cannot be read as a table: ")


def test_columns_of_every_type(tmp_path):
    pa = pytest.importorskip("pyarrow", exc_type=ImportError)
    from pyarrow import parquet

    columns = {
        "i": pa.array([1, None, 2**53 + 1], pa.int64()),
        "b": pa.array([True, None, False]),
        "f": pa.array([0.5, None, 2], pa.float32()),
        "d": pa.array([None, "1.5", "0.1"]).cast(pa.decimal128(9, 3)),
        "s": pa.array(["1", None, "2.5"]),
        "k": pa.array(["3", "4", None]).dictionary_encode(),
        "n": pa.nulls(3),
        "t": pa.array([1, 2, 3], pa.timestamp("s")),
    }
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    names = [*"ibfdskn"]
    X = read(tmp_path / "x.parquet", RowFacts(7, names, dtype=np.float32))
    nan = np.nan
    expected = [
        [1, 1, 0.5, nan, 1, 3, nan],
        [nan, nan, nan, 1.5, nan, 4, nan],
        [2**53 + 1, 0, 2, 0.1, 2.5, nan, nan],
    ]
    np.testing.assert_array_equal(X, np.array(expected, np.float32))
    with pytest.raises(
        InvalidInputError, match=r"column 't' has values of type timest"
    ):
        read(tmp_path / "x.parquet", RowFacts(1, ["t"]))


@pytest.mark.parametrize("ending", ["parquet", "feather", "csv"])
def test_texts_that_spell_missing_values_do_so_in_csv_alone(tmp_path, ending):
    """A frame of the file, which skforge predicts alike, has them as texts."""
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow", exc_type=ImportError)
    frame = pd.DataFrame({"a": ["NA", "x", "", None, "nan"], "b": ["NA", *"xyxy"]})
    path = tmp_path / f"x.{ending}"
    getattr(frame, f"to_{ending}")(
        path, **({"index": False} if ending == "csv" else {})
    )
    expected = getattr(pd, f"read_{ending}")(path).astype(object)
    spec = RowFacts(2, ("a", "b"), texts={0: {"x"}}, categories={1: ["x"]})
    rows = all_rows(path, spec)
    assert [None if a != a else a for a in rows["a"]] == [
        None if pd.isna(a) else a for a in expected["a"]
    ]
    assert rows["b"].isna().tolist() == expected["b"].isna().tolist()


def test_a_parquet_file_with_two_columns_of_one_name(tmp_path):
    pa = pytest.importorskip("pyarrow", exc_type=ImportError)
    from pyarrow import parquet

    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    parquet.write_table(table, tmp_path / "x.parquet")
    assert error_of(InvalidInputError, read, tmp_path / "x.parquet", RowFacts(2)) == (
        "x.parquet cannot be read as a table: 'Field \"a\" exists 2 times in schema'"
    )


# -- parts ------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_read_in_parts(tmp_path, order):
    X = np.arange(3000).reshape(1000, 3).astype(np.int32, order=order)
    np.save(tmp_path / "x.npy", X)
    with RowsFile(tmp_path / "x.npy", RowFacts(2), "1:3") as file:
        parts = [file.rows(batch).copy() for batch in file.batches()]
        assert file.table.done == file.table.total == 1000
    assert np.array_equal(np.concatenate(parts), X[:, 1:])
    assert parts[0].dtype == np.int32  # what libraries do with it is theirs


@pytest.mark.parametrize("ending", ["csv", "parquet", "feather", "npy"])
def test_parts_stay_small(tmp_path, monkeypatch, ending):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow", exc_type=ImportError)
    monkeypatch.setattr(tables, "_VALUES", 600)
    path, X = tmp_path / f"x.{ending}", np.random.default_rng(0).normal(size=(5000, 3))
    frame = pd.DataFrame(X, columns=[*"abc"])
    if ending == "npy":
        np.save(path, X)
    elif ending == "csv":
        frame.to_csv(path, index=False)
    else:
        getattr(frame, f"to_{ending}")(path)
    with RowsFile(path, RowFacts(3, [*"abc"])) as file:
        parts = [file.rows(batch).copy() for batch in file.batches()]
    assert max(map(len, parts)) == 200
    assert np.concatenate(parts).tobytes() == X.tobytes()


# -- results ----------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "npy", "parquet", "arrow", "feather"])
@pytest.mark.parametrize(
    "values",
    [
        np.array([0.1, -0.0, np.nan, np.inf, 5e-324, 1e22, 1 / 3]),
        np.array([0.1, 1e-45, 3e38, -np.inf, 1 / 3], np.float32),
        np.array([2**62, -1]),
        np.array([True, False]),
        np.array(["no, never", 'a "b"', "é"]),
    ],
    ids=lambda values: values.dtype.str,
)
def test_values_come_back(tmp_path, ending, values):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow", exc_type=ImportError)
    path = tmp_path / f"out.{ending}"
    with writer(path, Answer(values.dtype, None, ("it",))) as write:
        assert not path.exists()  # until it is whole
        for part in np.array_split(values, 2):
            write(part.reshape(-1, 1))
    match ending:
        case "npy":
            found = np.load(path)
            assert found.shape == values.shape
        case "csv":
            texts = pd.read_csv(path, dtype=str, keep_default_na=False)["it"]
            found = np.array(texts.tolist())
            if values.dtype.kind == "b":
                found = found == "True"
            found = found.astype(values.dtype)
        case _:
            read = pd.read_parquet if ending == "parquet" else pd.read_feather
            found = read(path)["it"].to_numpy(values.dtype)
    assert found.tobytes() == values.tobytes()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_an_error_leaves_the_file_that_was_there(tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("before")
    with (
        pytest.raises(KeyError),
        writer(path, Answer(np.dtype("f8"), None, ("it",))) as write,
    ):
        write(np.ones((3, 1)))
        raise KeyError
    assert path.read_text() == "before"
    assert len([*tmp_path.iterdir()]) == 1


# -- processes --------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.skforge"
    X = np.random.default_rng(0).normal(size=(50, 2))
    skforge.save(
        skforge.load_forest(DecisionTreeRegressor(max_depth=2).fit(X, X)), path
    )
    return path


def test_the_rows_are_not_overwritten(tmp_path, model, capsys):
    rows = tmp_path / "rows.csv"
    rows.write_text("1,2\n")
    with pytest.raises(SystemExit) as stopped:
        app(["predict", str(model), str(rows), "-o", str(rows)], prog_name="skforge")
    assert stopped.value.code == 2
    assert (
        capsys.readouterr().err == f"error: {rows} has the rows; name another output.\n"
    )
    assert rows.read_text() == "1,2\n"
