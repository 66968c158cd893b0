"""Columns of pandas frames: the numbers are those of pandas' own selection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skforge.rows.column_readers import FrameReader, ReadColumns
from skforge.rows.forms import Form
from skforge.sources.pipeline import readable

pd = pytest.importorskip("pandas")

NAMES = [f"c{i}" for i in range(9)]


def read(reader: FrameReader, frame: Any, forms: list[Any]) -> ReadColumns | None:
    """Return the columns of a frame of one of these forms."""
    layout = reader.layout(frame)
    if layout is None or layout[0] not in forms:
        return None
    return reader.read_columns(layout[1], len(frame))


DTYPES = ["f8", "f8", "f8", "i8", "i4", "u2", "u8", "i1"]


def random_frame(random: Any, n_rows: int) -> Any:
    """Return a frame of shuffled columns, in blocks of many shapes."""
    columns = {
        name: random.integers(0, 100, n_rows).astype(random.choice(DTYPES))
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
