"""Codes of texts: every container has the codes of the list of its values."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from skforge.frontends.pipeline.codes import MANY, TextCodes
from skforge.rows.column_readers import FrameReader, ReadColumns, TableReader
from skforge.rows.forms import Form
from skforge.rows.frames import kind_of, numbers_in
from skforge.runtime import python_objects
from skforge.runtime.python_objects import TEXT_LENGTH, TEXT_STATE, ascii_layout
from skforge.sources.pipeline import readable

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


# ------------------------------------------------------------ frame reader


NAMES = [f"c{i}" for i in range(9)]


def read(reader: FrameReader, frame: Any, forms: list[Any]) -> ReadColumns | None:
    """Return the columns of a frame of one of these forms."""
    layout = reader.layout(frame)
    if layout is None or layout[0] not in forms:
        return None
    return reader.read_columns(layout[1], len(frame))


FRAME_DTYPES = ["f8", "f8", "f8", "i8", "i4", "u2", "u8", "i1"]


def random_frame(random: Any, n_rows: int) -> Any:
    """Return a frame of shuffled columns, in blocks of many shapes."""
    columns = {
        name: random.integers(0, 100, n_rows).astype(random.choice(FRAME_DTYPES))
        for name in random.permutation([*NAMES, "more", "other"]).tolist()
    }
    frame = pd.DataFrame(columns)
    match random.integers(4):
        case 0:
            return frame.copy()  # one block per dtype
        case 1:
            return frame.iloc[::-1]
        case 2:
            return frame.assign(text="a", day=pd.Timestamp("2020-01-01"))
    return frame


@pytest.mark.parametrize("seed", range(60))
def test_random_layouts(seed: int) -> None:
    random = np.random.default_rng(seed)
    wanted = random.permutation(NAMES)[: random.integers(1, 10)].tolist()
    places = random.permutation(12)[: len(wanted)].tolist()
    reader = FrameReader(wanted, places, 12)
    for n_rows in (1, 1, 4, 100, 1):
        frame = random_frame(random, n_rows)
        expected = np.zeros((n_rows, 12))
        expected[:, places] = frame[wanted].to_numpy(np.float64)
        for given in (frame, frame.copy(), pd.DataFrame(frame.to_dict("series"))):
            found = read(reader, given, [None])
            assert found is not None
            np.testing.assert_array_equal(found.rows, expected, strict=True)
            assert found.others == []
            whole = [name for name in wanted if frame[name].dtype.kind != "f"]
            assert sum(len(part) for _, part in found.whole) == len(whole)


def test_dtypes_of_columns_are_told() -> None:
    frame = pd.DataFrame(
        {
            "flag": [True, False],
            "a": [1.0, 2.0],
            "narrow": np.float32([3, 4]),
            "kind": pd.Categorical(["x", "y"]),
            "text": pd.Series(["t", "u"], dtype=object),
            "more": pd.Series(["v", "w"], dtype=object),
            "null": pd.array([5, None], "Int64"),
            "left": ["s", "s"],
        }
    )
    names = ["more", "text", "null", "kind", "narrow", "flag", "a"]
    reader = FrameReader(names, range(7), 7, texts=(0, 1, 3))
    assert read(reader, frame, [None]) is None
    layout = reader.layout(frame)
    assert layout is not None
    types = None, None, pd.Int64Dtype(), None, *map(np.dtype, ("f4", "?", "f8"))
    form = Form("pandas", types)
    assert layout[0] == form
    found = read(reader, frame, [form])
    assert found is not None
    assert found.gaps == [2]
    assert [(at, whole.tolist()) for at, whole in found.whole] == [([2], [5])]
    expected = np.array([[5, 0, 3, 1, 1], [np.nan, 0, 4, 0, 2]])
    np.testing.assert_array_equal(found.rows[:, 2:], expected)
    others = {place: list(values) for place, values in found.others}
    assert others.keys() == {0, 1, 3}
    for place, values in others.items():
        assert list(frame[names[place]].array) == values


def test_names() -> None:
    frame = pd.DataFrame([[1.0, 2.0, 3.0]], columns=["a", "b", "c"])
    ordered = FrameReader(["a", "b", "c"], range(3), 3, ordered=True)
    free = FrameReader(["a", "c"], [1, 0], 2)

    def rows(reader: FrameReader, given: Any) -> Any:
        found = read(reader, given, [None])
        return None if found is None else found.rows.tolist()

    for _ in range(2):  # each frame forgets the one before
        assert rows(ordered, frame) == [[1.0, 2.0, 3.0]]
        assert rows(free, frame) == [[3.0, 1.0]]
        assert rows(ordered, frame[["b", "a", "c"]]) is None
        assert rows(free, frame[["c", "b", "a"]]) == [[3.0, 1.0]]
        assert rows(ordered, frame.assign(d=1.0)) is None
        assert rows(ordered, frame[["a", "b"]]) is None
        assert rows(free, frame[["a", "b"]]) is None
        assert rows(free, frame[["a", "c", "a"]]) is None
        assert rows(free, frame.iloc[:0]) is None
        assert rows(free, frame.rename(columns={"b": 3})) is None
        assert rows(free, frame.set_axis([["a", "b", "c"]] * 2, axis=1)) is None


def test_a_frame_that_changes_in_place() -> None:
    frame = pd.DataFrame({"a": [1.0], "b": [2], "c": [3.0]})
    reader = FrameReader(["c", "a"], [0, 1], 2)
    found = read(reader, frame, [None])
    assert found is not None and found.rows.tolist() == [[3.0, 1.0]]
    frame["b"] = 0.5
    frame["a"] = 7
    frame.insert(0, "d", 9.0)
    found = read(reader, frame, [None])
    assert found is not None and found.rows.tolist() == [[3.0, 7.0]]
    frame.columns = ["a", "x", "y", "c"]
    found = read(reader, frame, [None])
    assert found is not None and found.rows.tolist() == [[3.0, 9.0]]
    found.rows[:] = 0
    assert frame["a"].tolist() == [9.0]


def test_integers_stay_as_they_are() -> None:
    frame = pd.DataFrame({"a": [2**53 + 1], "b": [1.5]})
    found = read(FrameReader(["a", "b"], [0, 1], 2), frame, [None])
    assert found is not None
    ((_, whole),) = found.whole
    assert whole.tolist() == [[2**53 + 1]]


def test_texts_and_numbers_in_each_other_s_place_are_not_read() -> None:
    reader = FrameReader(["a", "b"], [0, 1], 2, texts=[1])
    fine = pd.DataFrame({"a": [1.0], "b": ["x"]})
    assert read(reader, fine, [None]) is not None
    assert reader.only_row(fine, None, [""]) == (None, [0, 1], [1.0, "x"])
    spelled = fine.assign(a=["1.5"])
    changed = [spelled, fine.assign(a=pd.Categorical([1.5]))]
    changed += [fine.assign(b=np.nan), fine.assign(b=pd.Timestamp("2020-01-01"))]
    for frame in changed:
        assert reader.layout(frame) is None
        assert reader.only_row(frame, None, [""]) is None
    assert reader.layout(changed[-1].assign(b="x", c=pd.NaT)) is not None
    objects = spelled.astype(object)  # objects may be numbers: each is looked at
    form, _ = reader.layout(objects)
    assert read(reader, objects, [form]) is None
    numbers = read(reader, fine.astype(object), [form])
    assert numbers is not None
    assert numbers.rows[:, 0].tolist() == [1.0]


def test_other_internals_are_left_alone() -> None:
    reader = FrameReader(["a"], [0], 1)
    assert read(reader, np.zeros((1, 1)), [None]) is None


@pytest.mark.parametrize("odd", [[], [3], [0, 1, 7, 11], [*range(12)]])
def test_rows_that_no_reader_takes_are_left_out_one_by_one(odd: list[int]) -> None:
    rows = [*range(12)]

    def reads(part: list[int]) -> list[int] | None:
        return part if set(part).isdisjoint(odd) else None

    fine = [row for row in rows if row not in odd]
    assert readable(reads, rows, range(len(rows))) == fine
