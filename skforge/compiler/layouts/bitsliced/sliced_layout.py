"""Lays out trees for the bit-sliced representation: line numbers and leaf tables.

A bushy tree is *folded*: each node is at its heap place in the complete tree of depth
d. The answers on the way to a leaf, the root's first, are the bits of the leaf's number
(a set bit went right). Shallower leaves are repeated below dummy nodes, whose answer
does not matter. If all nodes of a level have the same test, as in CatBoost's symmetric
trees, the tree is *even*: the answers are the bits as they are, of up to 16 levels. Any
other tree is a *list* of bit operations (``encode_trees.py``), whose last results are
the bits of the leaf's code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Bools, Int32s, Int64s
from skforge.compiler.binning.search import Registers
from skforge.compiler.layouts.bitsliced.cut_trees import ranges
from skforge.compiler.layouts.bitsliced.encode_trees import EncodedTrees, encode_trees
from skforge.compiler.layouts.even_trees import children, even_trees, leaf_counts
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.forest.forest import Forest

_T = TypeVar("_T")

#: Added to the bits of shapes, so that these are numbers.
_FOLDS, _LISTS, _EVEN = range(0, 3 << 10, 1 << 10)

#: Bits of a code: byte look-ups reach 256 entries.
MAX_BITS = 8

#: Bits of a list's code where a table maps it back to a leaf's number: one more bit
#: than 129 to 256 leaves need halves their operations.
MAX_CODE_BITS = 9

#: Depth classes of folded trees; a kernel has one body of code for each.
MAX_CLASSES = 3

#: A folded node costs a quarter of a list operation; a leaf costs 1 to 1.25 of these.
#: (Trees of depth 6 to 8 with 12 to 31 leaves take .75 to 1.0 of what they take if the
#: limit is 5; Zen 3.)
FOLD_LIMIT = 4

#: Trees whose operations are run together, and the most operations, so that their
#: temporaries stay in L1 (LightGBM, 31 leaves: 13.7 ns a row one by one, 9.5, 8.3 and
#: 8.1 for 2, 4 and 8).
GROUP_TREES, GROUP_OPS = 8, 256

#: Operations of one turn of the loop over them; runs are padded (255 leaves, Zen 3, 64
#: rows: one a turn takes 1.06 of the time, four 1.2).
OPS_A_TURN = 2


@dataclass(frozen=True, slots=True)
class BlockOfBits:
    rows: int
    plane_rows: int  # rows whose bits one plane holds
    byte_lookup: bool  # whether leaves are looked up in registers of bytes
    table: int  # entries of the smallest table of these
    registers: Registers  # that hold the rows' values
    in_vectors: bool  # whether 64 rows of folded trees are best in vector registers

    @classmethod
    def of(
        cls, forest: Forest, target: Target, rows: int, dtype: np.dtype[Any]
    ) -> BlockOfBits:
        return cls(
            rows=rows,
            plane_rows=min(rows, max(64, target.vector_bits)),
            byte_lookup=looks_up(forest, target),
            table=64 if target.has("avx512vbmi") else 16,
            registers=Registers.of(target, dtype),
            in_vectors=rows == 64 and target.has("avx2"),
        )


def looks_up(forest: Forest, target: Target) -> bool:
    """Return whether tables of bytes take less time than loads of leaf values.

    Registers of 16 bytes hold few. With AVX2 (Zen 3, 512 rows) trees of depth 3 to 6
    and float32 take .6, .74, .7 and .76 of the time, of depth 7 1.07; float64 values
    of 15 leaves .9, of 31 1.1; those of 10 classes and depth 5 1.15.
    """
    few = leaf_counts(forest).max(initial=0) <= 1 << MAX_BITS
    if not few or target.has("avx512vbmi"):
        return bool(few)
    if not target.has("avx2") or target.has_mask_registers:
        return False
    bytes_ = forest.leaf_value.itemsize << int(code_bits(forest).max(initial=0))
    return bytes_ <= (256 if forest.leaf_value.shape[1] == 1 else 128)


def code_bits(forest: Forest) -> Int64s:
    """Return how many bits the codes of each tree will have, or nearly so."""
    fold, even, leaves = folds(forest), even_trees(forest), leaf_counts(forest)
    bits = np.ceil(np.log2(np.maximum(leaves, 2))).astype(np.int64)
    bits += ~(even & ~fold)  # a spare one
    bits[fold] = depth_classes(forest.tree_depths()[fold].astype(np.int64))
    return bits


#: A kind, and the bits of a leaf's number.
Shape = tuple[Literal["fold", "list", "even"], int]


@dataclass(frozen=True, slots=True, eq=False)
class SlicedTrees:
    """Every tree's lines, operations and leaves, by position.

    ``lines`` has a folded tree's heap nodes, an even tree's levels, or a list's bits.
    """

    shapes: tuple[Shape, ...]  # those that occur
    shape_of: NDArray[np.uint8]  # (n_trees,) into shapes
    line_offset: Int32s  # (n_trees,) into lines
    lines: Int32s
    op_offset: Int32s  # (n_trees + 1,) into ops
    ops: Int32s  # (n_ops, 3): select, a, b; they write the lines after the constants
    leaf_offset: Int32s  # (n_trees,) into leaf_row
    leaf_row: Int32s  # row of Forest.leaf_value of each code
    constants: tuple[int, int]  # the all-zeros and the all-ones line
    n_lines: int  # predicates, constants and temporaries
    tile: int | None  # trees whose predicates are lines at the same time; None: all

    @property
    def bits(self) -> Int64s:
        return np.array([bits for _, bits in self.shapes], np.int64)[self.shape_of]


def folds(forest: Forest) -> Bools:
    depth = forest.tree_depths().astype(np.int64)
    complete = 1 << np.minimum(depth, MAX_BITS + 1)
    bushy: Bools = complete <= FOLD_LIMIT * leaf_counts(forest)
    return (depth <= MAX_BITS) & bushy


def size_in_bytes(forest: Forest) -> int:
    leaves = leaf_counts(forest)
    short = int(leaves[leaves <= 1 << MAX_BITS].sum())
    codes = 4 * short + int(leaves.sum()) - short
    return codes * (4 + forest.leaf_value.itemsize * forest.n_outputs) + 32 * short


def fits_bits(forest: Forest) -> bool:
    """Whether trees can be folded, have at most 256 leaves or are even."""
    return bool(_fits(forest).all())


def _fits(forest: Forest) -> Bools:
    fits = folds(forest) | (leaf_counts(forest) <= 1 << MAX_BITS)
    return fits if fits.all() else fits | even_trees(forest)


def check_trees(forest: Forest) -> None:
    fits, leaves = _fits(forest), leaf_counts(forest)
    if not fits.all():
        tree = int(np.argmin(fits))
        raise ScheduleError(
            f'represent("bitsliced") takes trees of at most {1 << MAX_BITS} leaves, '
            f'but tree {tree} has {int(leaves[tree])}. Use represent("sparse").'
        )


def slice_trees(
    forest: Forest,
    line_of: Int32s,
    order: Int32s,
    n_lines: int,
    code_bits: int = MAX_CODE_BITS,
    tile: int | None = None,
) -> SlicedTrees:
    """Lay out every tree in bits, at the positions of ``order``.

    ``line_of`` has the line of each predicate, ``n_lines`` in all; constants and
    temporaries follow. The code of a list has at most ``code_bits`` bits. Lines are
    those of ``tile`` trees at a time, if not of all.
    """
    check_trees(forest)
    first = n_lines + 2
    even = even_trees(forest)
    coded = code_trees(forest, order, line_of, first, code_bits, even)
    listed = coded.listed
    op_count = np.zeros(len(order), np.int64)
    ops, planes, op_count[listed] = _grouped(
        coded.lists, first, listed // (tile or len(order))
    )
    n_own = np.where(coded.folded, (1 << coded.bits) - 1, coded.bits)
    line_offset = np.cumsum(n_own) - n_own
    lines = np.zeros(int(n_own.sum()) + 1, np.int32)
    leaf_row = coded.fill(forest, order, line_of, lines, line_offset)
    lines[ranges(line_offset[listed], coded.lists.bits)] = planes
    shapes, shape_of = coded.shapes()
    return SlicedTrees(
        shapes=shapes,
        shape_of=shape_of.astype(np.uint8),
        line_offset=line_offset.astype(np.int32),
        lines=lines,
        op_offset=np.concatenate([[0], np.cumsum(op_count)]).astype(np.int32),
        ops=np.concatenate([ops, np.zeros((1, 3), np.int32)]),
        leaf_offset=coded.first_code.astype(np.int32),
        leaf_row=leaf_row,
        constants=(n_lines, n_lines + 1),
        n_lines=first + int(op_count.max(initial=0)),
        tile=tile,
    )


@dataclass(frozen=True, slots=True, eq=False)
class CodedTrees:
    """The code of every tree, by position."""

    kind: Int64s  # _FOLDS, _LISTS or _EVEN
    bits: Int64s  # bits of each tree's codes
    lists: EncodedTrees  # the lists, in order of position

    @property
    def folded(self) -> Bools:
        return self.kind == _FOLDS

    @property
    def listed(self) -> Int64s:
        return np.flatnonzero(self.kind == _LISTS)

    @property
    def first_code(self) -> Int64s:
        return np.cumsum(1 << self.bits) - (1 << self.bits)

    def shapes(self) -> tuple[tuple[Shape, ...], Int64s]:
        """Return the shapes that occur and each tree's index into them."""
        # Folds before lists, each by their bits.
        numbers, of_tree = np.unique(self.bits + self.kind, return_inverse=True)
        names: dict[int, Literal["fold", "list", "even"]] = {
            _FOLDS: "fold",
            _LISTS: "list",
            _EVEN: "even",
        }
        shapes: list[Shape] = [
            (names[n & -_LISTS], n % _LISTS) for n in numbers.tolist()
        ]
        return tuple(shapes), of_tree.astype(np.int64).ravel()

    def fill(
        self,
        forest: Forest,
        order: Int32s,
        line_of: Int32s,
        lines: Int32s,
        first: Int64s,
    ) -> Int32s:
        """Return each code's leaf, and write folded and even trees' lines.

        Those at position p go to ``lines[first[p]:]``, by heap place or by level.
        """
        first_code = self.first_code
        leaf_row = np.zeros(int((1 << self.bits).sum()), np.int32)
        of_lists = ranges(first_code[self.listed], 1 << self.lists.bits)
        leaf_row[of_lists] = self.lists.leaf_of
        # Each item is (position, heap place, forest node); a leaf above the bottom
        # continues to both children of a dummy.
        position = np.flatnonzero(self.folded)
        place = np.zeros(len(position), np.int64)
        node = forest.tree_offset[:-1][order[position]].astype(np.int64)
        for level in range(int(self.bits[self.folded].max(initial=0)) + 1):
            bottom = self.bits[position] == level
            code = place[bottom] - (1 << level) + 1
            leaf_row[first_code[position[bottom]] + code] = forest.leaf[node[bottom]]
            position, place, node = position[~bottom], place[~bottom], node[~bottom]
            predicate = forest.predicate[node]
            inner = predicate >= 0
            at = first[position] + place
            lines[at[inner]] = line_of[predicate[inner]]
            left = np.where(inner, forest.left[node], node)
            right = np.where(inner, forest.right[node], node)
            position = np.concatenate([position, position])
            place = np.concatenate([2 * place + 1, 2 * place + 2])
            node = np.concatenate([left, right])
        of_even = np.where(self.kind == _EVEN, self.bits, 0)
        for bits in np.unique(of_even[of_even > 0]).tolist():
            position = np.flatnonzero(of_even == bits)
            nodes: Array = forest.tree_offset[order[position]][:, None]
            for level in range(bits):
                lines[first[position] + level] = line_of[forest.predicate[nodes[:, 0]]]
                nodes = children(forest, nodes)
            codes = first_code[position][:, None] + np.arange(1 << bits)
            leaf_row[codes] = forest.leaf[nodes]
        return leaf_row


def code_trees(
    forest: Forest,
    order: Int32s,
    line_of: Int32s,
    first: int,
    code_bits: int,
    even: Bools,
) -> CodedTrees:
    """Fold trees, or encode them as lists whose temporaries are lines from ``first``.

    The two lines before it hold constants; ``even`` trees of a deeper class are folded.
    """
    folded, bits = folds(forest)[order], forest.tree_depths()[order].astype(np.int64)
    depth = bits.copy()
    bits[folded] = depth_classes(bits[folded])
    kind = np.where(folded, _FOLDS, _LISTS)
    kind[even[order] & (bits == depth)] = _EVEN
    listed = kind == _LISTS
    lists = encode_trees(forest, order[listed], line_of, first, code_bits)
    bits[listed] = lists.bits
    return CodedTrees(kind, bits, lists)


def _grouped(
    lists: EncodedTrees, first: int, tile: Int64s
) -> tuple[Int32s, Int32s, Int64s]:
    """Merge the operations of several trees into the first of them, by dependence.

    An operation waits for the earlier ones that it reads; operations of other trees
    fill that time. Each tree of a group gets its own temporaries, from line ``first``
    on. Returns the operations (select, a and b; operation i of a group writes temporary
    i), the planes and how many operations each tree runs, padded. A group is
    of one tile.
    """
    counts = np.diff(lists.op_offset)
    groups: list[int] = []  # the first tree of each tree's group
    used: list[int] = []  # operations of the group before the tree
    at = total = 0
    for k, count in enumerate(counts.tolist()):
        full = k - at == GROUP_TREES or total + count > GROUP_OPS
        if full or tile[k] != tile[at]:
            at, total = k, 0
        groups.append(at)
        used.append(total)
        total += count
    group = np.array(groups, np.int64)
    ran = np.zeros(len(counts), np.int64)
    np.add.at(ran, group, counts)
    start = (np.cumsum(ran) - ran)[group].astype(np.int32)  # of each tree's group
    offset = start + np.array(used, np.int32) - first  # of its temporaries
    by_level = np.lexsort((lists.level, np.repeat(group, counts)))
    tree = np.repeat(np.arange(len(counts), dtype=np.int32), counts)[by_level]
    place = np.arange(len(tree), dtype=np.int32) - start[tree]  # in the group
    place_of = np.empty_like(place)  # the same, by number
    place_of[offset[tree] + lists.ops[by_level, 0]] = place

    def moved(lines: Int32s, tree: Int32s) -> Int32s:
        own = np.flatnonzero(lines >= first)
        lines[own] = first + place_of[offset[tree[own]] + lines[own]]
        return lines

    ran += -ran % OPS_A_TURN
    padded = np.full((int(ran.sum()), 3), first - 2, np.int32)  # zero ? zero : zero
    to = (np.cumsum(ran) - ran)[group][tree] + place
    for k in range(3):
        padded[to, k] = moved(lists.ops[by_level, k + 1], tree)
    of_plane = np.repeat(np.arange(len(counts), dtype=np.int32), lists.bits)
    return padded, moved(lists.planes.copy(), of_plane), ran


def fold(
    depth: int, line: Callable[[int], _T], mux: Callable[[_T, _T, _T], _T]
) -> list[_T]:
    """Return planes of a folded tree's leaf numbers, highest bit first.

    ``line`` has a heap node's answers; ``mux(a, b, c)`` is b where a is set, else c.
    """
    planes: list[_T] = []

    def reached(level: int, known: int, place: int) -> _T:
        """Choose by the first planes; the last, which comes latest, chooses once."""
        if known == 0:
            return line((1 << level) - 1 + place)
        left = reached(level, known - 1, place)
        right = reached(level, known - 1, place + (1 << level - known))
        return mux(planes[known - 1], right, left)

    for level in range(depth):
        planes.append(reached(level, level, 0))
    return planes


def depth_classes(depth: Int64s) -> Int64s:
    """Merge depths into the next larger, the cheapest first: few keep code short."""
    depths, counts = np.unique(depth, return_counts=True)
    classes = dict(zip(depths.tolist(), counts.tolist(), strict=True))
    merged: Int64s = depth.copy()
    while len(classes) > MAX_CLASSES:
        order = sorted(classes)
        added = [classes[d] * ((1 << e) - (1 << d)) for d, e in pairwise(order)]
        k = int(np.argmin(added))
        low, high = order[k], order[k + 1]
        merged[merged == low] = high
        classes[high] += classes.pop(low)
    return merged


def byte_planes(values: Array, entries: int) -> NDArray[np.uint8]:
    """Return tables as byte planes, (n, itemsize, entries), lowest byte first."""
    n, size = values.shape
    item = values.dtype.itemsize
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(n, size, item)
    planes = np.zeros((n, item, entries), np.uint8)
    planes[:, :, :size] = raw.transpose(0, 2, 1)
    return planes
