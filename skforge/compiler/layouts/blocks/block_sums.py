"""What a block of rows needs around its trees: codes before, sums of leaves after.

Leaves are numbers, one class out of many, few classes of many, or vectors. A leaf of a
classifier grown to full depth holds one class. It is stored as that class's number and
adds to one sum of the row; the other outputs would add zero, which changes no sum. Nor
do leaves of hundreds of classes that hold a few: they are stored as pairs of an output
and a value. Other vectors are stored once each, and leaves store their index.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Float64s, Int32s, Uint64s
from skforge.compiler.binning.buckets import BucketBins, CodePlaces
from skforge.compiler.binning.rules import BlockRows, Model, ReadingRules
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.builder import b, parts
from skforge.compiler.ir.lir.nodes import I64, U16, Buffer, Value, Vec
from skforge.compiler.layouts.base import BlockCode
from skforge.compiler.target import Target
from skforge.forest.forest import Forest

#: If more than half of this many vectors are distinct, duplicates are not searched.
SAMPLE = 10_000

#: Vectors of at least this many outputs are stored as pairs, if at most one in so many
#: values is not zero, on average over training rows. On Emerald Rapids, forests of 64
#: to 200 classes took 0.65 of the time for one in 20, and 1.1 for one in 5.
PAIRS_FROM, PAIRS_SHARE = 64, 6

#: Pairs that are added between two tests whether a leaf has more; 1 takes 1.1 times as
#: long, and 8 as long as 2.
TOGETHER = 2


@dataclass(frozen=True, slots=True, eq=False)
class LeafTable:
    """Leaves by their place in a layout's ``leaf_row``.

    ``number``: ``values`` are the leaf values. ``class``: ``index`` is the one output
    that gets ``values[0]``. ``vector``: ``index`` is a row of ``values``. ``pairs``:
    ``index`` numbers the first of the leaf's groups of ``TOGETHER`` values, which are
    added to ``outputs``; the highest bit of a group's first output says that the leaf
    has another group.
    """

    kind: Literal["number", "class", "pairs", "vector"]
    values: Array
    index: NDArray[np.unsignedinteger[Any]] | None
    outputs: NDArray[np.unsignedinteger[Any]] | None = None

    @property
    def width(self) -> int:
        return self.values.shape[1] if self.kind == "vector" else 1


def leaf_table(forest: Forest, leaf_row: Int32s) -> LeafTable:
    values = forest.leaf_value
    width = values.shape[1]
    index: Array
    if width == 1:
        return LeafTable("number", values[leaf_row, 0], None)
    # Adding zero to a sum of -0.0 would make it 0.0.
    if not bool((np.signbit(forest.base) & (forest.base == 0)).any()):
        if (classes := _one_class(values)) is not None:
            height = values[0].max(keepdims=True)
            return LeafTable("class", height, classes[leaf_row])
        pairs = _pairs(forest, leaf_row) if width >= PAIRS_FROM else None
        if pairs is not None:
            return pairs
    rows, number = _distinct(values)
    index = number.astype(np.min_scalar_type(max(0, len(rows) - 1)))
    return LeafTable("vector", rows, index[leaf_row])


class LeafSums:
    """Emits the addition of leaves; ``read`` has an element for each place."""

    def __init__(self, table: LeafTable, model: Model) -> None:
        self._table = table
        if table.kind != "class":
            self.read = self._values = model("leaf_values", table.values.reshape(-1))
        if table.index is not None:
            self.read = model("leaf_index", table.index)
        if table.outputs is not None:
            self._outputs = model("leaf_outputs", table.outputs)

    def add(self, sums: Buffer, index: Value, leaf: Value) -> None:
        table = self._table
        match table.kind:
            case "number":
                self._increase(sums, index, leaf)
            case "class":
                height = b.const(float(table.values[0]), sums.element)
                self._increase(sums, index + leaf.to(I64), height)
            case "pairs":
                self._add_pairs(sums, index, leaf.to(I64) * TOGETHER)
            case "vector":
                self._add_vector(sums, index, leaf.to(I64) * table.width)

    def _increase(self, sums: Buffer, index: Value, value: Value) -> None:
        type_ = value.type
        sums[index] = sums[index, type_] + value

    def _add_pairs(self, sums: Buffer, first: Value, pair: Value) -> None:
        more = 1 << (8 * self._outputs.element.bytes - 1)

        def add(pair: Value) -> Value:
            words = [self._outputs[pair + k] for k in range(TOGETHER)]
            for k, word in enumerate(words):
                output = word & (more - 1) if k == 0 else word
                self._increase(sums, first + output.to(I64), self._values[pair + k])
            return words[0] & more

        state = [pair, add(pair)]
        with b.repeat(lambda: state[1].ne(0), state):
            following = state[0] + TOGETHER
            state[:] = [following, add(following)]

    def _add_vector(self, sums: Buffer, first: Value, vector: Value) -> None:
        width = self._table.width

        def part(lanes: int, first: Value, vector: Value) -> None:
            type_ = Vec(sums.element, lanes) if lanes > 1 else sums.element
            self._increase(sums, first, self._values[vector, type_])

        looped = width // 8 * 8 if width >= 40 else 0
        if looped:  # loop over long vectors, to bound the code
            with b.loop(0, looped, 8, hint="k") as k:
                part(8, first + k, vector + k)
        for at, lanes in parts(looped, width, 8):
            part(lanes, first + at, vector + at)


def _one_class(values: Array) -> NDArray[np.unsignedinteger[Any]] | None:
    """Return the output of each leaf if all add one positive number to one output."""
    height = values[:SAMPLE].max(axis=1, initial=0)
    if not len(values) or height[0] <= 0 or bool((height != height[0]).any()):
        return None
    classes = np.empty(len(values), np.min_scalar_type(values.shape[1] - 1))
    for first in range(0, len(values), SAMPLE):  # a few, which stay in a cache
        rows = values[first : first + SAMPLE]
        row, output = np.divmod(np.flatnonzero(rows == height[0]), rows.shape[1])
        alone = len(row) == np.count_nonzero(rows)
        if not alone or not np.array_equal(row, np.arange(len(rows))):
            return None
        classes[first : first + SAMPLE] = output
    return classes


def _pairs(forest: Forest, leaf_row: Int32s) -> LeafTable | None:
    """Store what is not zero, equal vectors once, if it is little.

    Few leaves differ if most hold one class, and then their pairs stay in L1.
    """
    values = forest.leaf_value
    width = values.shape[1]
    used = values[:SAMPLE] != 0
    if not used.any() or np.count_nonzero(used) * PAIRS_SHARE > used.size:
        return None
    used = values != 0
    used[:, 0] |= ~used.any(axis=1)  # a vector of zeros adds one of them
    at = np.flatnonzero(used)
    row, output = np.divmod(at, width)
    value = values.reshape(-1)[at]
    count = np.bincount(row, minlength=len(values))
    if np.average(count, weights=_weights(forest)) * PAIRS_SHARE > width:
        return None
    first = np.cumsum(count) - count
    bits = value.view(f"u{value.itemsize}").astype(np.uint64)
    key = np.add.reduceat(_keys(np.stack([output.astype(np.uint64), bits], 1)), first)
    _, kept, number = np.unique(key, return_index=True, return_inverse=True)
    same = kept[number]
    place = np.arange(len(at)) + (first[same] - first)[row]
    if (
        bool((count != count[same]).any())
        or bool((output != output[place]).any())
        or bool((bits != bits[place]).any())
    ):  # different leaves have equal keys
        kept = number = np.arange(len(values))
    stays = np.zeros(len(values), np.bool_)
    stays[kept] = True
    groups = np.where(stays, -(-count // TOGETHER), 0)
    start = np.cumsum(groups) - groups
    # Groups are filled with -0.0, which changes no sum, for the outputs that follow, as
    # additions to one output would wait for each other.
    of_slot = np.repeat(np.arange(len(values)), groups * TOGETHER)
    slot = np.arange(len(of_slot)) - start[of_slot] * TOGETHER
    filled = slot < count[of_slot]
    last = (first + count - 1)[of_slot]
    pair = np.where(filled, first[of_slot] + slot, last)
    spare = np.maximum(slot - count[of_slot] + 1, 0)
    word: NDArray[np.unsignedinteger[Any]] = ((output[pair] + spare) % width).astype(
        np.uint16 if width <= 1 << 15 else np.uint32
    )
    more = (slot % TOGETHER == 0) & (slot + TOGETHER < count[of_slot])
    word[more] |= word.dtype.type(1 << (8 * word.itemsize - 1))
    kind = np.min_scalar_type(int(groups.sum()) - 1)
    index = start[kept][number].astype(kind)[leaf_row]
    value = np.where(filled, value[pair], -0.0).astype(value.dtype)
    return LeafTable("pairs", value, index, word)


def _weights(forest: Forest) -> Float64s | None:
    if not len(forest.cover):
        return None
    node = np.flatnonzero(forest.leaf >= 0)
    weight = np.zeros(len(forest.leaf_value))
    weight[forest.leaf[node]] = np.maximum(forest.cover[node], 0.0)
    return weight if weight.any() else None


def _distinct(values: Array) -> tuple[Array, NDArray[np.intp]]:
    """Return the distinct vectors and each leaf's index; or all vectors."""
    bits = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    words = bits.view(np.uint64 if bits.shape[1] % 8 == 0 else np.uint32)
    everything = values, np.arange(len(values))
    sample = _keys(words[:SAMPLE])
    if len(np.unique(sample)) > len(sample) // 2 > SAMPLE // 4:
        return everything
    _, first, number = np.unique(_keys(words), return_index=True, return_inverse=True)
    if bool((words[first][number] != words).any()):  # two vectors have equal keys
        return everything
    return values[first], number


def _keys(words: Array) -> Uint64s:
    key = np.zeros(len(words), np.uint64)
    for column in range(words.shape[1]):
        key ^= words[:, column].astype(np.uint64)
        key *= np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(29)
    return key


#: Rows decoded together, one register of entries; groups have a multiple of them.
GROUP = 16

_Trees = TypeVar("_Trees")


@dataclass(frozen=True, slots=True, eq=False)
class Tiling(Generic[_Trees]):
    """A forest as tiles or pieces, and how a target holds its rows."""

    hir: PredictEnsemble
    target: Target
    codes: CodePlaces | None  # None: tiles compare row values
    trees: _Trees
    leaves: LeafTable

    @property
    def lanes(self) -> int:
        return self.target.vector_bits // 32

    def by_copies(self, missing: Value, emit: Callable[[int], None]) -> None:
        if self.codes is None or self.codes.copies == 1:
            emit(1)
        else:
            b.if_(missing, lambda: emit(2), lambda: emit(1))

    def encode(
        self, rules: ReadingRules, rows: BlockRows, left: Value, block: int
    ) -> tuple[Buffer, Value]:
        places, item = self.codes, rules.forest.input_dtype.itemsize
        assert places is not None
        codes = b.alloc("codes", U16, block * places.width * places.copies)
        lanes = max(2, self.target.vector_bits // (8 * item))
        search = BucketBins(rules, places, lanes)
        return codes, search.encode(rows, left, codes, block)


class BlockSums(BlockCode):
    """Emits codes of a block, and sums: by row for several outputs, else by output."""

    def __init__(self, rules: ReadingRules, tiling: Tiling[Any], block: int) -> None:
        self._rules, self._model = rules, rules.model
        self.tiling, self.block = tiling, block

    @property
    def _by_row(self) -> bool:
        """Whether a row's sums are adjacent, because leaves add to several of them."""
        return self.tiling.hir.forest.vector_leaves

    def encode(self, rows: BlockRows) -> tuple[Buffer, Value]:
        left = self._left(rows)
        return self.tiling.encode(self._rules, rows, left, self.block)

    def _left(self, rows: BlockRows) -> Value:
        left = (rows.n_rows - rows.first).min(self.block)
        self.n = (left + (GROUP - 1)) // GROUP * GROUP
        return left

    def start(self, sums: Buffer) -> None:
        forest = self.tiling.hir.forest
        base = self._model("base", forest.base)
        outputs = forest.n_outputs
        per_row, per_output = (outputs, 1) if self._by_row else (1, self.block)
        with b.loop(outputs, hint="output") as k:
            value = base[k]
            own = k * per_output
            with b.loop(self.n, hint="row") as r:
                sums[own + r * per_row] = value

    def adder(
        self, tree: Value, sums: Buffer
    ) -> tuple[Callable[[Value, Value], None], LeafSums]:
        forest, output = self.tiling.hir.forest, None
        leaves = LeafSums(self.tiling.leaves, self._model)
        if not self._by_row and forest.n_outputs > 1:
            of_tree = forest.tree_output[self.tiling.hir.tiles.tree_order]
            output = self._model("tree_outputs", of_tree)[tree].to(I64) * self.block

        def add(row: Value, place: Value) -> None:
            at = row * forest.n_outputs if self._by_row else row
            at = at if output is None else output + at
            leaves.add(sums, at, leaves.read[place])

        return add, leaves

    def finish(self, sums: Buffer, result: Buffer, first: Value, count: Value) -> None:
        outputs = self.tiling.hir.forest.n_outputs
        to = first * outputs
        if self._by_row or outputs == 1:
            n, lanes = count * outputs, 8
            whole = n // lanes * lanes
            with b.loop(0, whole, lanes, hint="sum") as i:
                result[to + i] = sums[i, Vec(sums.element, lanes)]
            with b.loop(whole, n, hint="sum") as i:
                b.store(result, to + i, sums[i])
            return
        # a few rows at a time, whose results stay in L1
        with b.loop(0, count, GROUP, hint="group") as g:
            last = (g + GROUP).min(count)
            with b.loop(outputs, hint="output") as k:
                own, target = k * self.block, to + k
                with b.loop(g, last, hint="row") as r:
                    result[target + r * outputs] = sums[own + r]
