"""Reads ``.cbm``, CatBoost's binary format: a FlatBuffer after a head of 8 bytes.

The fields of CatBoost's schema have fixed numbers. Nothing here needs the flatbuffers
package, and every position and count is checked.
"""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from typing import Any

import numpy as np

from skforge.compiler.forest.arrays import Array
from skforge.compiler.frontends import checks
from skforge.compiler.frontends.arrays import Ints, offsets
from skforge.compiler.frontends.catboost import parts

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

    def number(self, form: str, at: int) -> Any:
        if not 0 <= at <= len(self.data) - struct.calcsize(form):
            parts.damaged(f"position {at} is outside its {len(self.data)} bytes")
        return struct.unpack_from(f"<{form}", self.data, at)[0]

    def vector(self, at: int, dtype: Any) -> Array:
        """Return the vector at a position, which begins with its length."""
        count = self.number("I", at)
        self.left -= count * np.dtype(dtype).itemsize
        if self.left < 0 or at + 4 + count * np.dtype(dtype).itemsize > len(self.data):
            parts.damaged(f"the {count} numbers at position {at} are not in it")
        return np.frombuffer(self.data, dtype, count, at + 4)


class _Table:
    """A FlatBuffers table: fields by number; absent ones have their default."""

    def __init__(self, buffer: _Buffer, at: int) -> None:
        self._buffer, self._at = buffer, at
        self._fields = at - buffer.number("i", at)
        self._size = buffer.number("H", self._fields)
        self.n_fields = (self._size - 4) // 2  # as many as the writer knew

    def _place(self, field: int) -> int | None:
        at = 4 + 2 * field
        if at >= self._size:
            return None
        offset = self._buffer.number("H", self._fields + at)
        return self._at + offset if offset else None

    def _target(self, field: int) -> int | None:
        """Return the position that a field refers to, or None."""
        place = self._place(field)
        return None if place is None else place + self._buffer.number("I", place)

    def number(self, field: int, form: str, default: Any = 0) -> Any:
        place = self._place(field)
        return default if place is None else self._buffer.number(form, place)

    def table(self, field: int) -> _Table:
        """Return a table that CatBoost always writes."""
        at = self._target(field)
        if at is None:
            parts.damaged(f"field {field} is missing")
        return _Table(self._buffer, at)

    def vector(self, field: int, dtype: Any) -> Array:
        at = self._target(field)
        return np.zeros(0, dtype) if at is None else self._buffer.vector(at, dtype)

    def tables(self, field: int) -> list[_Table]:
        at = self._target(field)
        offsets = [] if at is None else self._buffer.vector(at, "<u4").tolist()
        first = 0 if at is None else at + 4  # each offset is from its own place
        places = (first + 4 * i + offset for i, offset in enumerate(offsets))
        return [_Table(self._buffer, place) for place in places]

    def text(self, field: int) -> str:
        try:
            return self.vector(field, "u1").tobytes().decode()
        except UnicodeDecodeError:
            parts.damaged(f"the text in field {field} is not UTF-8")


def read_cbm(data: bytes) -> parts.Parts:
    if len(data) < _HEAD + 4:
        parts.damaged(f"it has {len(data)} bytes")
    (size,) = struct.unpack_from("<I", data, 4)
    if size > len(data) - _HEAD:
        parts.damaged(f"it has {len(data)} bytes, not {_HEAD + size}")
    buffer = _Buffer(memoryview(data)[_HEAD : _HEAD + size])
    core = _Table(buffer, buffer.number("I", 0))
    version, trees = core.text(0), core.table(1)
    if version != _VERSION or trees.n_fields > _FIELDS:
        checks.refuse_unknown(
            f"The model has the format {version!r} with {trees.n_fields} fields, not "
            f"{_VERSION!r} with {_FIELDS}"
        )
    names = parts.column_names({kind: _features(trees, kind) for kind in parts.KINDS})
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
    return parts.Parts(
        _nodes(trees, n_outputs),
        np.repeat(np.array(columns, np.int64), counts),
        np.concatenate([np.zeros(0, np.float32), *borders]),
        ~np.repeat(np.array(right, np.bool_), counts),
        names,
        trees.number(14, "d", 1.0),
        bias,
        {pair.text(0): _read_info(pair.text(1)) for pair in core.tables(2)},
    )


def _read_info(text: str) -> Any:
    """Return an entry of the model's information, which may be JSON."""
    with suppress(ValueError, RecursionError):
        return json.loads(text) if text.startswith("{") else text
    return text


#: By kind: the field of the features, and those of a column's number and its name.
_PLACES = {"float": (5, 2, 4), "categorical": (4, 1, 2)}
_PLACES |= {"text": (12, 1, 2), "embedding": (18, 1, 2)}


def _features(trees: _Table, kind: str) -> list[tuple[int, str]]:
    """Return the columns of a kind with their names, which may be empty."""
    field, number, name = _PLACES[kind]
    tables = trees.tables(field)
    return [(table.number(number, "i", -1), table.text(name)) for table in tables]


def _nodes(trees: _Table, n_outputs: int) -> parts.Nodes:
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
    return parts.Nodes(
        offset,
        inner,
        children[0],
        children[1],
        splits[ends < 2],
        values[leaf],
        leaf - least[tree],
        weights[leaf] if len(weights) else weights,
    )
