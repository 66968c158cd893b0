"""Codes of texts: every container has the codes of the list of its values."""

from __future__ import annotations

import numpy as np
import pytest

from skforge.frontends.pipeline.codes import MANY, TextCodes
from skforge.rows.column_readers import TableReader

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
