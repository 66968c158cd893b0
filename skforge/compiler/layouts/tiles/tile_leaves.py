"""Leaf storage: numbers, one class out of many, or vectors.

A leaf of a classifier grown to full depth holds one class. It is stored as that class's
number and adds to one sum of the row; the other outputs would add zero, which changes
no sum. Other vectors are stored once each, and leaves store their index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.binning.rules import Model
from skforge.compiler.forest.forest import Forest
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import I64, Buffer, Value, Vec

#: If more than half of this many vectors are distinct, duplicates are not searched.
SAMPLE = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class LeafTable:
    """Leaves by their place in ``TiledTrees.leaf_row``.

    ``number``: ``values`` are the leaf values. ``class``: ``index`` is the one output
    that gets ``values[0]``. ``vector``: ``index`` is a row of ``values``.
    """

    kind: Literal["number", "class", "vector"]
    values: NDArray[Any]
    index: NDArray[np.unsignedinteger[Any]] | None

    @property
    def width(self) -> int:
        """Outputs that a leaf adds to."""
        return self.values.shape[1] if self.kind == "vector" else 1


def leaf_table(forest: Forest, leaf_row: NDArray[np.int32]) -> LeafTable:
    """Choose how leaves are stored."""
    values = forest.leaf_value
    if values.shape[1] == 1:
        return LeafTable("number", values[leaf_row, 0], None)
    classes = _one_class(forest)
    if classes is not None:
        height = values.max(initial=0, keepdims=True).reshape(1)
        return LeafTable("class", height, _narrow(classes, values.shape[1])[leaf_row])
    rows, number = _distinct(values)
    return LeafTable("vector", rows, _narrow(number, len(rows))[leaf_row])


class LeafSums:
    """Emits the addition of leaves; ``read`` has an element for each place."""

    def __init__(self, b: Builder, table: LeafTable, model: Model) -> None:
        self.b, self._table = b, table
        if table.kind != "class":
            self.read = self._values = model("leaf_values", table.values.reshape(-1))
        if table.index is not None:
            self.read = model("leaf_index", table.index)

    def add(self, sums: Buffer, at: Value, found: Value) -> None:
        """Add the leaf with an element of ``read`` to the sums from ``at`` on.

        A number is added only there.
        """
        b, table = self.b, self._table
        match table.kind:
            case "number":
                self._increase(sums, at, found)
            case "class":
                at = at + found.to(I64)
                height = b.const(float(table.values[0]), sums.element)
                self._increase(sums, at, height)
            case "vector":
                self._add_vector(sums, at, found.to(I64) * table.width)

    def _increase(self, sums: Buffer, at: Value, value: Value) -> None:
        type_ = value.type
        sums[at] = sums[at, type_] + value

    def _add_vector(self, sums: Buffer, here: Value, own: Value) -> None:
        """Add the values from ``own`` on to the sums from ``here`` on."""
        b, width = self.b, self._table.width

        def part(lanes: int, here: Value, own: Value) -> None:
            type_ = Vec(sums.element, lanes) if lanes > 1 else sums.element
            self._increase(sums, here, self._values[own, type_])

        whole = width // 8 * 8
        if whole > 32:  # loop over long vectors, to bound the code
            with b.loop(0, whole, 8, hint="k") as k:
                part(8, here + k, own + k)
        at = whole if whole > 32 else 0
        for lanes in (8, 4, 2, 1):
            while at + lanes <= width:
                part(lanes, here + at, own + at)
                at += lanes


def _narrow(numbers: NDArray[Any], count: int) -> NDArray[np.unsignedinteger[Any]]:
    """Return numbers below ``count`` in the smallest dtype that holds them."""
    for dtype in (np.uint8, np.uint16):
        if count <= np.iinfo(dtype).max + 1:
            return numbers.astype(dtype)
    return numbers.astype(np.uint32)


def _one_class(forest: Forest) -> NDArray[np.intp] | None:
    """Return the output of each leaf if all add one positive number to one output."""
    values = forest.leaf_value
    # Adding zero to a sum of -0.0 would make it 0.0.
    if not len(values) or bool((np.signbit(forest.base) & (forest.base == 0)).any()):
        return None
    height = values.max()
    if height <= 0 or bool((values[:SAMPLE].max(axis=1) != height).any()):
        return None
    if bool((np.count_nonzero(values, axis=1) != 1).any()):
        return None
    classes = values.argmax(axis=1)
    one_height = values[np.arange(len(values)), classes] == height
    return classes if bool(one_height.all()) else None


def _distinct(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Return the distinct vectors and each leaf's index; or all vectors."""
    bits = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    words = bits.view(np.uint64 if bits.shape[1] % 8 == 0 else np.uint32)
    key = np.zeros(len(values), np.uint64)
    for column in range(words.shape[1]):
        key ^= words[:, column].astype(np.uint64)
        key *= np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(29)
    everything = values, np.arange(len(values))
    sample = key[:SAMPLE]
    if len(np.unique(sample)) > len(sample) // 2 > SAMPLE // 4:
        return everything
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    if bool((words[first][number] != words).any()):  # two vectors have equal keys
        return everything
    return values[first], number
