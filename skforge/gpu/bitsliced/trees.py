"""Lays out trees for GPU blocks: groups of trees, lines by element, leaf tables.

As on a CPU, a tree is folded or is a list of bit operations (``sliced_layout.py``).
Here lines are numbered by their element in shared memory. The rows of threads fold a
group of trees at once, one tree each, and the leaves are added in order. All trees of a
group add to the same output, so that sums stay in registers while a group is added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Int32s
from skforge.compiler.forest.forest import Forest
from skforge.compiler.layouts.bitsliced.sliced_layout import MAX_BITS, Shape, code_trees
from skforge.gpu.bitsliced.predicates import Geometry, TestPlan

#: Each tree's lines start at a multiple of this, so that four are loaded at once.
QUAD = 4


@dataclass(frozen=True, slots=True, eq=False)
class BitTrees:
    """Every tree, in the order in which threads fold them."""

    #: Shapes that occur; lists have ``MAX_BITS`` planes, missing ones being zero.
    shapes: tuple[Shape, ...]
    #: (n_trees, 4): shape, first line over four, first operation, end of the
    #: operations. Line ``i + 1`` of a folded tree is that of heap node i.
    trees: Int32s
    groups: Int32s  # (n_groups, 4): first tree, trees, first leaf value, leaf values
    outputs: Int32s  # (n_groups,) which one each adds to; -1: vector leaves
    group_start: Int32s  # (n_tiles + 1,)
    lines: Int32s
    ops: Int32s  # (n_ops, 4): target, select, a, b
    leaf_start: Int32s  # (n_trees,) first leaf value, within the tree's group
    leaf_row: Int32s  # row of ``Forest.leaf_value`` of each code, tree by tree
    zero: int  # element of the all-zeros line, which the all-ones line follows
    n_words: int  # of the table: predicates; for lists also constants and temporaries
    has_lists: bool

    @property
    def most_leaves(self) -> int:
        return int(self.groups[:, 3].max(initial=0))


def lay_out_trees(
    forest: Forest, order: Int32s, tile_size: int, plan: TestPlan, geometry: Geometry
) -> BitTrees:
    """Lay the trees of ``order`` out for the threads of a block.

    ``tile_size`` trees share a table of predicates, whose lines ``plan`` has for each
    tile. The all-zeros and the all-ones line follow, then the temporaries of each tree
    that is folded at once.
    """
    line_of, stride = plan.line_of, geometry.stride
    zero = plan.n_lines * stride
    tile = np.arange(len(order)) // tile_size
    outputs = forest.tree_output[order]
    # Trees of one output stay in order; its sums depend on nothing else.
    by_output = np.lexsort((outputs, tile))
    order, outputs, tile = order[by_output], outputs[by_output], tile[by_output]
    first = _groups(tile, outputs, geometry.group)
    count = np.diff([*first, len(order)])
    row_of = np.arange(len(order)) - np.repeat(first, count)

    n = forest.n_predicates
    number_of = np.arange(n, dtype=np.int32)
    none = np.zeros(forest.n_trees, np.bool_)
    coded = code_trees(forest, order, number_of, n + 2, MAX_BITS, none)
    reused = {
        p: _reused(ops, planes, n + 2)
        for p, ops, planes in zip(
            coded.listed.tolist(), *coded.lists.by_tree(), strict=True
        )
    }
    each = max((used for _, _, used in reused.values()), default=0)

    folded, codes = coded.folded, 1 << coded.bits
    n_lines = np.where(folded, np.maximum(codes, QUAD), 2 * QUAD)
    first_line = np.cumsum(n_lines) - n_lines
    lines = np.zeros(int(n_lines.sum()) + QUAD, np.int32)
    # 0 is a dummy until predicates are replaced by elements.
    leaf_row = coded.fill(forest, order, number_of + 1, lines, first_line + 1)
    element = [np.concatenate([[0], s * stride // geometry.wide]) for s in line_of]
    for k, of in enumerate(element):
        of_tile = np.flatnonzero(tile == k)
        if len(of_tile):
            part = slice(
                first_line[of_tile[0]], first_line[of_tile[-1]] + n_lines[of_tile[-1]]
            )
            lines[part] = of[lines[part]]

    ops = [np.zeros((0, 4), np.int64)]
    n_ops = np.zeros(len(order), np.int64)
    for position, (own_ops, planes, _) in reused.items():
        row = int(row_of[position])
        constants = [zero, zero + stride]
        start = zero + (2 + row * each) * stride
        temporaries = [start + i * stride for i in range(each)]
        predicates = element[tile[position]][1:]
        of = np.concatenate([predicates, constants, temporaries]).astype(np.int64)
        ops.append(of[own_ops])
        n_ops[position] = len(own_ops)
        planes = [n] * (MAX_BITS - len(planes)) + planes
        lines[first_line[position] :][:MAX_BITS] = of[planes]

    shapes, shape = coded.shapes(MAX_BITS)
    last_op = np.cumsum(n_ops)
    first_code = coded.first_code
    width = forest.leaf_value.shape[1]
    starts = first_code[first] * width if len(first) else np.zeros(0, np.int64)
    ends = np.append(starts[1:], codes.sum() * width)
    group_of = np.repeat(np.arange(len(first)), count)
    tiles = np.searchsorted(tile[first], np.arange(len(line_of) + 1))
    return BitTrees(
        shapes=shapes,
        trees=_table(shape, first_line // QUAD, last_op - n_ops, last_op),
        groups=_table(first, count, starts, ends - starts),
        outputs=outputs[first].astype(np.int32),
        group_start=tiles.astype(np.int32),
        lines=lines,
        ops=np.concatenate([*ops, np.zeros((1, 4))]).astype(np.int32),
        leaf_start=(first_code * width - starts[group_of]).astype(np.int32),
        leaf_row=leaf_row,
        zero=zero,
        n_words=zero + (2 + geometry.group * each) * stride * bool(reused),
        has_lists=bool(reused),
    )


def _table(*columns: Any) -> Int32s:
    return np.stack([np.asarray(c) for c in columns], axis=1).astype(np.int32)


def _groups(tile: NDArray[np.int64], outputs: Int32s, group: int) -> NDArray[np.int64]:
    """Return where groups start: at most ``group`` trees of one tile and output."""
    n = len(tile)
    changes = (np.diff(tile) != 0) | (np.diff(outputs) != 0)
    runs = np.concatenate([[0], np.flatnonzero(changes) + 1]) if n else np.zeros(0, int)
    ends = np.append(runs[1:], n) if n else runs
    parts = [np.arange(a, z, group) for a, z in zip(runs, ends, strict=True)]
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)


def _reused(
    own_ops: Int32s, own_planes: Int32s, first: int
) -> tuple[NDArray[np.int64], list[int], int]:
    """Assign temporaries to places that are free; return operations, planes, count."""
    ops, planes = own_ops.tolist(), own_planes.tolist()
    last: dict[int, int] = {}
    for at, (_, *read) in enumerate(ops):
        last.update((line, at) for line in read if line >= first)
    last.update((line, len(ops)) for line in planes if line >= first)
    place: dict[int, int] = {}
    free: list[int] = []
    used = 0
    placed = []
    for at, (target, *read) in enumerate(ops):
        moved = [place.get(line, line) for line in read]
        free += [place[line] for line in set(read) if last.get(line) == at]
        if not free:
            free.append(first + used)
            used += 1
        place[target] = free.pop()
        placed.append([place[target], *moved])
        if target not in last:
            free.append(place[target])
    numbers = np.array(placed, np.int64).reshape(-1, 4)
    return numbers, [place.get(line, line) for line in planes], used
