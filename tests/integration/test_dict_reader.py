"""Compiled code reads dicts whose keys have one order, and declines all others."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skforge.engine.entry import mappings
from skforge.engine.entry.mappings import CompiledDictReader
from skforge.runtime import dict_reader

NAN = float("nan")


def reader() -> CompiledDictReader:
    tables = {"city": {"Oslo": 5.0, "Rome": -1.0, "": 2.0}}
    return CompiledDictReader({"age": 2, "city": 0, "fare": 3}, tables, 4)


def row(**changed: Any) -> dict[str, Any]:
    return {"city": "Oslo", "age": 41, "fare": 7.5} | changed


def test_numbers_and_codes_of_texts_stand_in_their_columns() -> None:
    rows = [row(), row(city="Rome", age=-1), row(city="", age=None, fare=True)]
    np.testing.assert_array_equal(
        reader().read(rows),
        [[5.0, 0.0, 41.0, 7.5], [-1.0, 0.0, -1.0, 7.5], [2.0, 0.0, NAN, 1.0]],
    )


def test_a_missing_text_has_a_number_if_the_table_has_one() -> None:
    table = {"Oslo": 5.0, None: NAN}
    read = CompiledDictReader({"city": 0}, {"city": table}, 1).read
    found = read([{"city": "Oslo"}, {"city": None}])
    np.testing.assert_array_equal(found, [[5.0], [NAN]])
    assert read([{"city": NAN}]) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"city": "Paris"},
        {"city": None},
        {"city": 1.0},
        {"city": ["Oslo"]},
        {"age": "41"},
        {"age": np.float64(41)},
        {"age": np.int64(41)},
        {"age": [41]},
        {"age": 1 << 1024},
    ],
    ids=repr,
)
def test_other_values_are_declined(changed: dict[str, Any]) -> None:
    for rows in ([row(), row(**changed), row()], [row(**changed)]):
        assert reader().read(rows) is None
    assert reader().read([row()]) is not None  # no error is left behind


class Odd(str):
    """A text of another type."""


@pytest.mark.parametrize(
    "other",
    [
        {"age": 41, "city": "Oslo", "fare": 7.5},
        {"city": "Oslo", "age": 41},
        OrderedDict(row()),
        {Odd("city"): "Oslo", "age": 41, "fare": 7.5},
        {"city": Odd("Oslo"), "age": 41, "fare": 7.5},
        {1: "Oslo", "age": 41, "fare": 7.5},
        [("city", "Oslo")],
        None,
    ],
    ids=range(8),
)
def test_other_rows_than_the_first_are_declined(other: Any) -> None:
    assert reader().read([row(), other]) is None


def test_any_first_order_is_read_and_remembered() -> None:
    one = reader()
    turned = {"fare": 1.0, "city": "Rome", "age": 2}
    for rows in ([row()] * 2, [turned] * 2, [row()]):
        read = one.read(rows)
        assert read is not None
        assert read[0, 2] == rows[0]["age"]


def test_keys_of_other_documents_are_equal_though_not_the_same() -> None:
    rows = [json.loads(json.dumps(row(age=k))) for k in range(3)]
    assert {*map(id, rows[0])}.isdisjoint(map(id, rows[1]))
    read = reader().read(rows)
    assert read is not None
    assert read[:, 2].tolist() == [0, 1, 2]


def test_other_keys_are_ignored() -> None:
    read = reader().read([row(note=object()), row(note="x")])
    assert read is not None
    assert read[:, 0].tolist() == [5, 5]
    assert reader().read([row(), row(note=1)]) is None
    assert reader().read([{"note": 1, "age": 1, "fare": 2}]) is None


def test_parts_of_many_rows_are_read_like_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [row(age=k) for k in range(23)]
    whole = reader().read(rows)
    monkeypatch.setattr(dict_reader, "VALUES_AT_ONCE", 7)
    parts = reader().read(rows)
    assert whole is not None
    np.testing.assert_array_equal(parts, whole)
    assert reader().read([*rows, row(age="x")]) is None


def test_other_interpreters_use_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mappings, "_reader", lambda: None)
    assert reader().read([row()]) is None


@given(st.lists(st.floats() | st.integers(-(2**70), 2**70) | st.booleans(), min_size=1))
def test_numbers_are_those_of_python(values: list[Any]) -> None:
    read = CompiledDictReader({"x": 0}, {}, 1).read([{"x": v} for v in values])
    assert read is not None
    expected = np.array([[float(v)] for v in values])
    assert read.tobytes() == expected.tobytes()
