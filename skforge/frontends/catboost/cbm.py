"""Reads ``.cbm``, CatBoost's binary format: a FlatBuffer after a head of 8 bytes.

The fields of CatBoost's schema have fixed numbers. Nothing here needs the flatbuffers
package, and every position and count is checked.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.forest.categories import EQUAL, HASH
from skforge.frontends import checks
from skforge.frontends.arrays import Ints, offsets
from skforge.frontends.catboost import ctr, parts

_HEAD = 8
_VERSION, _FIELDS = "FlabuffersModel_v1", 19  # misspelled by CatBoost
#: Deepest symmetric tree; CatBoost trains up to 16 levels.
_MAX_DEPTH = 24
#: How often the bytes of a file may be read: a small one could repeat a part for hours.
_MOST_READS = 8


class _Buffer:
    """The bytes of a FlatBuffer, and how many of them may still be read."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.left = _MOST_READS * len(data) + 4096

    def number(self, form: str, offset: int) -> Any:
        if not 0 <= offset <= len(self.data) - struct.calcsize(form):
            parts.damaged(f"position {offset} is outside its {len(self.data)} bytes")
        return struct.unpack_from(f"<{form}", self.data, offset)[0]

    def vector(self, offset: int, dtype: Any) -> Array:
        count = self.number("I", offset)
        size = count * np.dtype(dtype).itemsize
        self.left -= size
        if self.left < 0 or offset + 4 + size > len(self.data):
            parts.damaged(f"the {count} numbers at position {offset} are not in it")
        return np.frombuffer(self.data, dtype, count, offset + 4)


class _FlatTable:
    """A FlatBuffers table: fields by number; absent ones have their default."""

    def __init__(self, buffer: _Buffer, offset: int) -> None:
        self._buffer, self._start = buffer, offset
        self._fields = offset - buffer.number("i", offset)
        self._size = buffer.number("H", self._fields)
        self.n_fields = (self._size - 4) // 2  # as many as the writer knew

    def _offset_of(self, field: int) -> int | None:
        at = 4 + 2 * field
        if at >= self._size:
            return None
        offset = self._buffer.number("H", self._fields + at)
        return self._start + offset if offset else None

    def _target(self, field: int) -> int | None:
        place = self._offset_of(field)
        return None if place is None else place + self._buffer.number("I", place)

    def number(self, field: int, form: str, default: Any = 0) -> Any:
        place = self._offset_of(field)
        return default if place is None else self._buffer.number(form, place)

    def table(self, field: int) -> _FlatTable:
        at = self._target(field)
        if at is None:
            parts.damaged(f"field {field} is missing")
        return _FlatTable(self._buffer, at)

    def vector(self, field: int, dtype: Any) -> Array:
        at = self._target(field)
        return np.zeros(0, dtype) if at is None else self._buffer.vector(at, dtype)

    def _places(self, field: int) -> list[int]:
        at = self._target(field)
        offsets = [] if at is None else self._buffer.vector(at, "<u4").tolist()
        first = 0 if at is None else at + 4  # each offset is from its own place
        return [first + 4 * i + offset for i, offset in enumerate(offsets)]

    def tables(self, field: int) -> list[_FlatTable]:
        return [_FlatTable(self._buffer, place) for place in self._places(field)]

    def text(self, field: int) -> str:
        return self._decoded(self.vector(field, "u1"), field)

    def texts(self, field: int) -> list[str]:
        vectors = (self._buffer.vector(at, "u1") for at in self._places(field))
        return [self._decoded(vector, field) for vector in vectors]

    @staticmethod
    def _decoded(vector: Array, field: int) -> str:
        try:
            return vector.tobytes().decode()
        except UnicodeDecodeError:
            parts.damaged(f"the text in field {field} is not UTF-8")


#: By kind: the field of the features, and those of a column's number and its name.
_PLACES = {"float": (5, 2, 4), "categorical": (4, 1, 2)}
_PLACES |= {"text": (12, 1, 2), "embedding": (18, 1, 2)}


def read_cbm(data: bytes) -> parts.CatBoostParts:
    if len(data) < _HEAD + 4:
        parts.damaged(f"it has {len(data)} bytes")
    (size,) = struct.unpack_from("<I", data, 4)
    if size > len(data) - _HEAD:
        parts.damaged(f"it has {len(data)} bytes, not {_HEAD + size}")
    buffer = _Buffer(memoryview(data)[_HEAD : _HEAD + size])
    core = _FlatTable(buffer, buffer.number("I", 0))
    version, trees = core.text(0), core.table(1)
    if version != _VERSION or trees.n_fields > _FIELDS:
        checks.refuse_unknown(
            f"The model has the format {version!r} with {trees.n_fields} fields, not "
            f"{_VERSION!r} with {_FIELDS}"
        )
    features = {
        kind: [(t.number(number, "i", -1), t.text(name)) for t in trees.tables(field)]
        for kind, (field, number, name) in _PLACES.items()
    }
    names, kinds = parts.columns_of(features)
    floats = trees.tables(5)
    borders = [feature.vector(3, "<f4") for feature in floats]
    right = [parts.nan_goes_right(f.number(5, "b"), f.number(0, "B")) for f in floats]
    counts = [*map(len, borders)]
    columns = [feature.number(2, "i", -1) for feature in floats]
    n_outputs = trees.number(0, "i")
    if not 1 <= n_outputs <= checks.MAX_OUTPUTS:
        parts.damaged(f"it has {n_outputs} outputs")
    bias = trees.vector(16, "<f8")
    if not len(bias):
        bias = np.full(n_outputs, trees.number(15, "d", 0.0))
    if len(bias) != n_outputs:
        parts.damaged(f"it has {len(bias)} biases for {n_outputs} outputs")
    return parts.CatBoostParts(
        _nodes(trees, n_outputs),
        np.repeat(np.array(columns, np.int64), counts),
        np.concatenate([np.zeros(0, np.float32), *borders]),
        ~np.repeat(np.array(right, np.bool_), counts),
        names,
        trees.number(14, "d", 1.0),
        bias,
        {pair.text(0): _read_info(pair.text(1)) for pair in core.tables(2)},
        _categories(trees, core.texts(3), memoryview(data)[_HEAD + size :], kinds),
    )


def _read_info(text: str) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(text) if text.startswith("{") else text
    return text


#: A part of a combination with its feature: of a number, or of a category.
_NUMBER, _VALUE = np.dtype("<i4, <f4"), np.dtype("<i4, <i4")
#: A place in a table of hashes: a hash, and the number of its counts.
_PLACE = np.dtype("<u8, <u4")


def _categories(
    trees: _FlatTable, providers: list[str], data: memoryview, kinds: Sequence[str]
) -> parts.Categories:
    treated = {f.number(1, "i", -1): f for f in trees.tables(5)}
    columns = {f.number(0, "i", -1): f.number(1, "i", -1) for f in trees.tables(4)}
    one_hot = {f.number(0, "i", -1): f.vector(1, "<i4") for f in trees.tables(6)}
    if not one_hot.keys() <= columns.keys():
        parts.damaged("it compares with values of a feature that it does not have")

    def above(feature: int, border: float) -> parts.PartPosition:
        known = treated[feature]
        right = parts.nan_goes_right(known.number(5, "b"), known.number(0, "B"))
        return ctr.above(known.number(2, "i", -1), border, right)

    def combination(base: _FlatTable) -> tuple[parts.PartPosition, ...]:
        of = base.table(0)
        hashes = [(HASH, columns[i], 0) for i in of.vector(0, "<i4").tolist()]
        borders = [above(*pair) for pair in of.vector(1, _NUMBER).tolist()]
        equal = [(EQUAL, columns[i], v) for i, v in of.vector(2, _VALUE).tolist()]
        return (*hashes, *borders, *equal)

    def table_key(base: _FlatTable) -> tuple[Any, ...]:
        return combination(base), base.number(1, "b"), base.number(2, "i")

    def ctr_of(feature: _FlatTable) -> parts.Ctr:
        model = feature.table(0)
        base = model.table(0)
        return parts.Ctr(
            combination(base),
            _kind(base),
            table_key(base),
            model.number(1, "i"),
            (model.number(2, "f"), model.number(3, "f", 1.0)),
            model.number(4, "f"),
            model.number(5, "f", 1.0),
            feature.vector(1, "<f4"),
        )

    try:
        ctrs = [ctr_of(feature) for feature in trees.tables(7)]
        tables = {table_key(t.table(0)): _counts(t) for t in _tables(providers, data)}
    except KeyError as error:
        parts.damaged(f"a combination has a feature {error}, which it does not have")
    values = [one_hot.get(feature, np.zeros(0, "<i4")) for feature in columns]
    known = parts.Categories(tuple(columns.values()), values, ctrs, tables)
    ctr.check(known, kinds)
    return known


def _kind(base: _FlatTable) -> str:
    number = base.number(1, "b")
    if not 0 <= number < len(ctr.KINDS):
        checks.refuse_unknown(f"The model has statistics of the kind {number}")
    return ctr.KINDS[number]


def _tables(providers: list[str], data: memoryview) -> Iterator[_FlatTable]:
    rest = _Buffer(data)
    at = 0
    for name in providers:
        if not name.startswith("static_provider"):
            checks.refuse_unknown(f"The model has a part {name[:40]!r}")
        count, at = rest.number("I", at), at + 4
        for _ in range(count):
            table = _Buffer(memoryview(rest.vector(at, "u1").data))
            at += 4 + len(table.data)
            yield _FlatTable(table, table.number("I", 0))


def _counts(table: _FlatTable) -> parts.CtrTable:
    kind = _kind(table.table(0))
    raw = table.vector(1, "u1")
    if len(raw) % _PLACE.itemsize:
        parts.damaged("a table of its categories is cut")
    places = raw.view(_PLACE)
    at, size = np.flatnonzero(places["f0"] != ctr.EMPTY), len(places)
    empty = offsets(np.tile(places["f0"] == ctr.EMPTY, 2))
    first = (places["f0"][at] % max(1, size)).astype(np.int64)
    # a search goes on from a hash's own place to the next empty one
    if size & (size - 1) or (empty[first] != empty[first + (at - first) % size]).any():
        parts.damaged("a combination of its categories is where no search finds it")
    places = places[at]
    width = ctr.WIDTHS.get(kind) or table.number(4, "i")
    numbers = table.vector(2, "u1")
    if width < 1 or len(numbers) % (4 * width):
        parts.damaged(f"the counts of its categories are not {width} for each one")
    counts = numbers.view("<i4").reshape(-1, width)
    if len(places) and places["f1"].max() >= len(counts):
        parts.damaged("a combination of its categories has no counts")
    if kind in ctr.MEANS:  # a sum in float32, and a whole number
        counts = np.column_stack([numbers.view("<f4")[::2], counts[:, 1]])
    return ctr.table_of(places["f0"], counts[places["f1"]], table.number(3, "i"))


def _nodes(trees: _FlatTable, n_outputs: int) -> parts.Nodes:
    splits = trees.vector(1, "<i4").astype(np.int64)
    sizes = trees.vector(2, "<i4").astype(np.int64)
    first = trees.vector(3, "<i4")
    steps = trees.vector(10, np.dtype("<u2, <u2"))
    values, weights = trees.vector(8, "<f8"), trees.vector(9, "<f8")
    if (sizes < 0).any() or not np.array_equal(offsets(sizes), [*first, len(splits)]):
        parts.damaged(f"its trees do not follow each other in {len(splits)} splits")
    if len(values) % n_outputs:
        parts.damaged(f"its {len(values)} leaf values are not for {n_outputs} outputs")
    weights = parts.known_weights(weights, len(values) // n_outputs)
    leaves = values.reshape(-1, n_outputs), weights
    if len(steps):
        leaf_of = trees.vector(11, "<u4").astype(np.int64)
        return _step_nodes(steps, leaf_of, splits, sizes, *leaves)
    if (sizes > _MAX_DEPTH).any():
        parts.damaged(f"a tree is {sizes.max()} levels deep")
    return parts.symmetric_nodes(sizes, splits, *leaves)


def _step_nodes(
    steps: Array,
    leaf_of: Ints,
    splits: Ints,
    sizes: Ints,
    values: Array,
    weights: Array,
) -> parts.Nodes:
    """Return trees whose nodes say how far the next ones are.

    A side without a next node ends in the node's own leaf, which becomes a node here,
    right after it.
    """
    n_steps = len(splits)
    if len(steps) != n_steps or len(leaf_of) != n_steps or (sizes < 1).any():
        parts.damaged(f"{len(steps)} nodes do not fit {n_steps} splits")
    ahead = np.stack([steps["f0"], steps["f1"]]).astype(np.int64)
    ends = (ahead == 0).sum(axis=0)  # sides without a next node
    at = offsets(1 + (ends == 1))
    to = np.arange(n_steps) + ahead
    if (to >= n_steps).any():
        parts.damaged("a node points behind the last one")
    inner = np.ones(at[-1], np.bool_)
    inner[at[1:][ends > 0] - 1] = False
    children = np.full((2, at[-1]), -1, np.int64)
    children[:, at[:-1]] = np.where(ahead > 0, at[to], at[:-1] + 1)
    leaf, rest = np.divmod(leaf_of[ends > 0], values.shape[1])
    if rest.any() or (leaf >= len(values)).any():
        parts.damaged("a leaf is none of its values")
    offset = at[offsets(sizes)]
    tree = np.repeat(np.arange(len(sizes)), sizes)[ends > 0]
    least = np.full(len(sizes), len(values))
    np.minimum.at(least, tree, leaf)
    split, number = splits[ends < 2], leaf - least[tree]
    weights = weights[leaf] if len(weights) else weights
    left, right = children
    value = values[leaf]
    return parts.Nodes(offset, inner, left, right, split, value, number, weights)
