"""Codes of texts: every container has the codes of the list of its values."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from skforge.frontends.pipeline.codes import MANY, TextCodes
from skforge.rows.column_readers import TableReader
from skforge.rows.frames import kind_of, numbers_in
from skforge.runtime import python_objects
from skforge.runtime.python_objects import TEXT_LENGTH, TEXT_STATE, ascii_layout

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

NAN = float("nan")
CODES = {
    "one code for all others": TextCodes(("a", "b", "dd"), NAN, NAN, NAN),
    "unknown is refused": TextCodes(("a", "b", "dd"), None, 3.0, NAN),
    "a text is refused": TextCodes(("a", "b", "dd"), NAN, 1.0, None, ("x",)),
    "missing is refused": TextCodes(("a", "b"), 2.0, None, None, ("x", "dd")),
    "no text is known": TextCodes((), 1.0, 0.0, NAN, na=1.0),
    "more texts than rows": TextCodes((*map(str, range(9999)), "a"), 0.0, 1.0, NAN),
}
POOLS = [
    ["a", "b", "dd"],
    ["a", "b", "dd", "zz"],
    ["a", None],
    ["a", "b", "x"],
    ["zz", None],
]


@pytest.mark.parametrize("n", [7, MANY, 3 * MANY])
@pytest.mark.parametrize("pool", POOLS, ids=str)
@pytest.mark.parametrize("name", CODES)
def test_every_container_has_the_codes_of_its_values(name, pool, n):
    codes = CODES[name]
    at = np.random.default_rng(0).integers(0, len(pool), n)
    given = [pool[i] for i in at]
    none = codes.codes(given)
    nan = codes.codes([NAN if text is None else text for text in given])
    texts = pa.array(given, pa.large_string())
    enum = pl.Enum(["q", *(text for text in pool if text)])
    arrow = {
        "string": pa.chunked_array([given[:3], given[3:]], pa.string()),
        "string_view": pa.chunked_array([texts.cast(pa.string_view())]),
        "dictionary": pa.chunked_array(
            [texts[:3].dictionary_encode(), texts[3:].dictionary_encode()]
        ),
    }
    found = {
        "object": (codes.of_column(np.array(given, object)), none),
        "str": (codes.of_column(pd.Series(given, dtype="str").array), nan),
        "category": (codes.of_column(pd.Categorical(given)), nan),
    }
    na = codes.codes([pd.NA if text is None else text for text in given])
    for kind, column in arrow.items():
        if kind != "string_view":
            array = pd.arrays.ArrowExtensionArray(column)
            found[f"pandas, {kind}"] = codes.of_column(array), na
    for kind in (pl.String, pl.Categorical, enum):
        column = pl.Series(given, dtype=kind)
        found[str(kind)] = TableReader.codes(column, codes), none
    for kind, column in arrow.items():
        refused = kind == "dictionary" and None in given
        expected = None if refused else none
        found[kind] = TableReader.codes(column, codes), expected
    for kind, (own, expected) in found.items():
        if expected is None:
            assert own is None, kind
        else:
            np.testing.assert_array_equal(own, expected, kind)


@pytest.mark.parametrize(
    ("none", "nan", "unknown", "missing", "gap"),
    [
        (None, 1.0, 2.0, 1.0, "NaN"),
        (1.0, None, 2.0, 1.0, "None"),
        (1.0, 3.0, 2.0, 3.0, "NaN"),
        (2.0, 3.0, 2.0, 3.0, "NaN"),
        (1.0, 2.0, 2.0, 1.0, "None"),
        (2.0, 2.0, 2.0, 2.0, "NaN"),
        (None, None, 2.0, None, "NaN"),
    ],
)
def test_missing_values_of_mappings_are_nan_unless_only_none_was_seen(
    none, nan, unknown, missing, gap
):
    rule = TextCodes(("a", "b"), unknown, none, nan, ("x",)).rule()
    known = {"a": 0.0, "b": 1.0, "x": None}
    assert rule["table"] == known | ({} if missing is None else {None: missing})
    assert (rule["missing"], rule["unknown"]) == (missing, unknown)
    assert (rule["gap"] is None) == (gap == "None")


# ------------------------------------------------------------ column numbers


DTYPES = ("int8", "uint16", "int32", "int64", "float32", "float64", "bool")


def column(library: str, values: list[Any], dtype: str) -> Any:
    if dtype == "bool":
        values = [None if value is None else bool(value) for value in values]
    if library == "polars":
        name = dtype.title().replace("Uint", "UInt").replace("Bool", "Boolean")
        return pl.Series(values, dtype=getattr(pl, name))
    kind = pa.bool_() if dtype == "bool" else getattr(pa, dtype)()
    if library == "chunks":
        return pa.chunked_array([values[:1], values[1:]], kind)
    return pa.array(values, kind)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", ["polars", "array", "chunks"])
def test_numbers_without_gaps_are_of_the_columns_dtype(library, dtype):
    values, gaps = numbers_in(column(library, [1, 0, 1], dtype))
    assert (values.dtype, gaps) == (np.dtype(dtype), None)
    assert values.tolist() == [1, 0, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", ["polars", "array", "chunks"])
def test_gaps_are_told_and_are_nan_among_floats(library: str, dtype: str) -> None:
    values, gaps = numbers_in(column(library, [1, None, 0], dtype))
    assert gaps.tolist() == [False, True, False]
    assert values.dtype == dtype
    assert values[[0, 2]].tolist() == [1, 0]
    assert np.isnan(values[1]) == dtype.startswith("float")


def test_texts_are_no_numbers() -> None:
    texts = ["a", None]
    for given in (pl.Series(texts), pa.array(texts), pa.chunked_array([texts])):
        assert numbers_in(given) is None


def test_the_kinds_of_classes() -> None:
    frame = pytest.importorskip("pandas").DataFrame({"a": [1.0]})
    table = pa.table({"a": [1.0]})
    kinds = {
        "pandas": frame,
        "polars": pl.DataFrame({"a": [1.0]}),
        "pyarrow": table,
        "batch": table.to_batches()[0],
        "csr": scipy.sparse.csr_matrix([[1.0]]),
    }
    assert {kind: kind_of(X) for kind, X in kinds.items()} == {k: k for k in kinds}
    for X in (frame["a"], scipy.sparse.csc_matrix([[1.0]]), np.ones((1, 1)), [[1.0]]):
        assert kind_of(X) == ""


# ------------------------------------------------------------ python objects


@pytest.fixture
def anew():
    ascii_layout.cache_clear()
    yield
    ascii_layout.cache_clear()


@pytest.mark.parametrize("text", ["", "x", "a few words", "0" * 1000, "\x7f", "a\0b"])
def test_texts_of_ascii_are_read_where_they_are(text: str) -> None:
    bits, head = ascii_layout().values()
    state = ctypes.c_uint32.from_address(id(text) + TEXT_STATE).value
    assert state & bits == bits
    length = ctypes.c_int64.from_address(id(text) + TEXT_LENGTH).value
    assert ctypes.string_at(id(text) + head, length) == text.encode()


@pytest.mark.parametrize(
    "text", ["é", "ÿ" * 40, "日本", "a😀", type("T", (str,), {})("a")]
)
def test_other_texts_are_none_of_these(text: str) -> None:
    bits = ascii_layout()["skf_ascii"]
    state = ctypes.c_uint32.from_address(id(text) + TEXT_STATE).value
    assert state & bits != bits


def test_texts_of_an_unknown_python_have_other_bits(anew, monkeypatch) -> None:
    monkeypatch.setattr(python_objects, "_state", lambda _: 0)
    assert ascii_layout()["skf_ascii"] > 0xFFFFFFFF
