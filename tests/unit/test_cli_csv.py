"""CSV files: random tables and random text are read as pandas.read_csv reads them."""

from __future__ import annotations

import csv
import io
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from skforge.cli import tables
from skforge.cli.data import all_rows
from skforge.cli.values import WrongColumnError, number_in, numbers
from skforge.exceptions import InvalidInputError
from skforge.sources.row_facts import RowFacts

pd = pytest.importorskip("pandas")

READERS = ["pyarrow", "standard library"]
NUMBERS = [
    "1", "-2.5", "1e3", "", "NA", "nan", "-inf", "0.1", "1e400", "5e-324", " 7 ", "+3",
    ".5", "True", "false", "007", "123456789012345678", "-0.0", "null", "#N/A", "None",
]  # fmt: skip
TEXTS = [
    "red", "a,b", 'q"q', "two\nlines", "", "NA", " x ", "é", "'", "1", "None", "none",
    "true", "\ttab", "a\rb", '"', "-", "null", "#N/A", "<NA>", "N/A ", "nan",
]  # fmt: skip
NAMES = ["a", "b", "c d", "e,f", 'g"h', "1", "é", "two\nlines"]
#: Cells of broken files: quotes in all places.
ODD = ["a", '"a"', "1", '"a', 'a"', '"a"b', '""', '"""', '"a""b"', ' "a"', '"a" ', ""]


@pytest.fixture(params=READERS)
def rows_of(request, monkeypatch, tmp_path):
    """Return a function that reads a text as rows of some columns."""
    pytest.importorskip("pyarrow", exc_type=ImportError)

    def read(text, names, of_texts):
        (tmp_path / "x.csv").write_bytes(text.encode())
        known = {i: {"known"} for i, is_text in enumerate(of_texts) if is_text}
        with monkeypatch.context() as patch:
            if request.param != "pyarrow":
                patch.setitem(sys.modules, "pyarrow", None)
            # parts that end in a cell, a quote or a character, after the names
            patch.setattr(tables, "_BLOCK", 40 + len(text) % 20)
            return all_rows(
                tmp_path / "x.csv",
                RowFacts(len(names), tuple(names), texts=known, steps=True),
            )

    return read


def of_pandas(text):
    """Return the cells as texts, NaN for missing ones."""
    return pd.read_csv(io.StringIO(text, newline=""), dtype=str, index_col=False)


def assert_same(frame, reference, of_texts):
    assert len(frame) == len(reference)
    for name, is_text in zip(reference, of_texts, strict=True):
        cells = [None if cell != cell else cell for cell in reference[name]]
        if is_text:
            values = [None if value != value else value for value in frame[name]]
            assert values == cells
        else:
            numbers = [np.nan if cell is None else number_in(cell) for cell in cells]
            assert (
                frame[name].to_numpy().tobytes() == np.array(numbers, float).tobytes()
            )


@st.composite
def drawn_tables(draw):
    """Draw a CSV text, its names, and which columns are of texts."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=4, unique=True))
    of_texts = [draw(st.booleans()) for _ in names]
    cells = [st.sampled_from(TEXTS if is_text else NUMBERS) for is_text in of_texts]
    rows = draw(st.lists(st.tuples(*cells), min_size=1, max_size=9))
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    lines = []
    for row in (names, *rows):
        line = io.StringIO()
        csv.writer(line, quoting=quoting, lineterminator="\r\n").writerow(row)
        lines += [line.getvalue()[:-2], *draw(st.sampled_from([[], [], [""], ["  "]]))]
    text = end.join(lines) + draw(st.sampled_from(["", end]))
    return draw(st.sampled_from(["", "\ufeff"])) + text, names, of_texts


def test_tables_are_read_as_pandas_reads_them(rows_of):
    @settings(
        max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(drawn_tables())
    @example(('a,b\n1,"x"\n \n', ["a", "b"], [False, True]))
    @example(("a,b\nTrue,none\nfalse,None\n", ["a", "b"], [False, True]))
    def check(table):
        text, names, of_texts = table
        frame = rows_of(text, names, of_texts)
        assert_same(frame, of_pandas(text), of_texts)

    check()


def test_broken_text_is_refused_or_read_as_pandas_reads_it(rows_of):
    cells = st.sampled_from(ODD)
    lines = st.lists(st.lists(cells, min_size=1, max_size=3).map(",".join), max_size=4)
    soup = st.text(st.sampled_from('a1,,"\n'), max_size=14)

    @settings(
        max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(lines.map("\n".join) | soup)
    @example('a,"1\n2,3\n')  # a quote that is left open swallows the row after it
    @example("a,b,\n")  # pandas would drop the last cell
    def check(body):
        text = f"x,y\n{body}"
        try:
            frame = rows_of(text, ["x", "y"], [True, True])
        except InvalidInputError:
            return
        assert_same(frame, of_pandas(text), [True, True])

    check()


#: Parts of texts that are almost numbers, and of some that are.
PARTS = [
    *" \t\n\x0b\x1c\xa0+-_.,()0179eExXٛ٣", "nan", "inf", "INFINITY", "true", "False",
    "NA", "null", "n/a", "#", "none", "9007199254740993", "e-320", "e308", "0x1p", "1d",
]  # fmt: skip


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from(PARTS), max_size=4).map("".join), min_size=1),
    st.sampled_from(["string", "large_string", "string_view"]),
)
@example([" 7", "NA", "True", "-nan", "nan", "1e999", ""], "string")
@example(["1", "nan(0)"], "string_view")
@example(["1", "nan", "3"], "string_view")
@example(["1_000"], "large_string")
def test_arrow_reads_the_numbers_of_python(cells, kind):
    """Tables that polars writes have views."""
    pa = pytest.importorskip("pyarrow", exc_type=ImportError)
    column = pa.array([*cells, None], getattr(pa, kind)())
    expected = [number_in(cell) for cell in cells]
    if None in expected:
        row = expected.index(None)
        with pytest.raises(WrongColumnError, match="and the model takes") as error:
            numbers(column)
        assert error.value.row == row and repr(cells[row]) in str(error.value)
        return
    found, reference = numbers(column), np.array([*expected, np.nan])
    for values in (found, reference):
        values[np.isnan(values)] = np.nan  # the sign of NaN says nothing
    assert found.tobytes() == reference.tobytes()


@pytest.mark.parametrize(
    ("names", "line", "is_row"),
    [
        (["400", "402", "404"], "400,402,404", False),
        (["400", "402", "404"], "401,402,404", True),
        (["a", "b", "c"], ",0,1,2", False),  # as pandas writes frames without names
    ],
)
def test_names_that_are_numbers_are_no_row(tmp_path, names, line, is_row):
    (tmp_path / "x.csv").write_text(f"{line}\n{line}\n")
    spec = RowFacts(3, tuple(names) if line[0] == "4" else None)
    columns = None if line[0] == "4" else "1:4"
    assert len(all_rows(tmp_path / "x.csv", spec, columns)) == 1 + is_row
