"""Encodes unbalanced trees as short lists of bit operations.

Each leaf gets a code of a few bits, with don't-cares, chosen so that each bit is a
plane that is computed once. Pick a subtree ``c``; let ``s`` be the conjunction of the
tests on the path to it, ``A`` the subtree and ``B`` the tree without it (its parent
contracted). Plane 0 is ``s``. The planes of ``A`` and of ``B`` take different places
while there are enough places; this is free, since neither cares about the other's
planes. The remaining planes share places, at one operation a plane. With one plane more
than the leaves need, a tree takes 1.1 to 1.4 operations a node; numbering the leaves in
order takes 2.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

#: Depth to which subtrees are considered: each step of a path costs an operation.
SEARCH_DEPTH = 10


@dataclass(slots=True)
class Tree:
    """A node of a tree being encoded. It is not modified; a leaf has no ``line``.

    The class is not frozen because creating frozen instances takes three times as long,
    and many are created.
    """

    line: int  # the test's line; rows with a set bit go right
    left: Tree | None
    right: Tree | None
    leaf: int  # number of the leaf, -1 for inner nodes
    leaves: int
    height: int


def leaf(number: int) -> Tree:
    """Return a leaf."""
    return Tree(-1, None, None, number, 1, 0)


def node(line: int, left: Tree, right: Tree) -> Tree:
    """Return an inner node."""
    height = 1 + max(left.height, right.height)
    return Tree(line, left, right, -1, left.leaves + right.leaves, height)


@dataclass(slots=True)
class Encoding:
    """Operations ``target = select ? a : b`` on lines, and the planes of the codes."""

    zero: int  # lines of constants and the first of temporaries
    one: int
    first: int
    ops: list[tuple[int, int, int, int]] = field(default_factory=list)
    _known: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def mux(self, select: int, a: int, b: int) -> int:
        """Return the line that is ``a`` where ``select`` is set, else ``b``."""
        if a == b:
            return a
        if a == self.one and b == self.zero:
            return select
        if select == self.zero:
            return b
        if select == self.one:
            return a
        key = (select, a, b)
        found = self._known.get(key)
        if found is None:
            found = self.first + len(self.ops)
            self.ops.append((found, select, a, b))
            self._known[key] = found
        return found


Cube = tuple[int, int, int]  # leaf, mask, value: codes with code & mask == value


def encode(tree: Tree, planes: int, into: Encoding) -> tuple[list[int], list[Cube]]:
    """Encode a tree of at most ``2 ** planes`` leaves in at most ``planes`` planes.

    Returns the line of each bit of a code, highest first, and the codes of each leaf;
    every code that a row can have belongs to one leaf. The operations are added to
    ``into``.
    """
    if tree.leaf >= 0:
        return [], [(tree.leaf, 0, 0)]
    if tree.leaves - 1 <= planes:
        return _own_planes(tree)
    best = _best_subtree(tree, planes)
    if best is None:
        return _in_order(tree, planes, into)
    path, part = best
    select, inside = _condition(tree, path, into)
    one = encode(part, planes - 1, into)
    two = encode(_without(tree, path, 0), planes - 1, into)
    width = 1 + min(planes - 1, len(one[0]) + len(two[0]))
    lines = [select] + [into.zero] * (width - 1)
    # The subtree's planes fill the places from the end, the rest's from the start.
    places_one = [width - 1 - i for i in range(len(one[0]))]
    places_two = [1 + i for i in range(len(two[0]))]
    for place, line in zip(places_one, one[0], strict=True):
        lines[place] = line
    for place, line in zip(places_two, two[0], strict=True):
        if place in places_one:
            inner, outer = (lines[place], line) if inside else (line, lines[place])
            line = into.mux(select, inner, outer)
        lines[place] = line
    cubes = [_moved(cube, places_one, width, inside) for cube in one[1]]
    cubes += [_moved(cube, places_two, width, not inside) for cube in two[1]]
    return lines, cubes


def _own_planes(tree: Tree) -> tuple[list[int], list[Cube]]:
    """Encode a small tree without operations: one plane for each test."""
    lines: list[int] = []
    found: list[tuple[int, list[tuple[int, int]]]] = []  # leaf, (place, bit) on its way
    pending: list[tuple[Tree, list[tuple[int, int]]]] = [(tree, [])]
    while pending:
        at, way = pending.pop()
        if at.leaf >= 0:
            found.append((at.leaf, way))
            continue
        assert at.left is not None and at.right is not None
        place = len(lines)
        lines.append(at.line)
        pending.append((at.left, [*way, (place, 0)]))
        pending.append((at.right, [*way, (place, 1)]))
    top = len(lines) - 1
    return lines, [
        (
            number,
            sum(1 << (top - place) for place, _ in way),
            sum(bit << (top - place) for place, bit in way),
        )
        for number, way in found
    ]


def _moved(cube: Cube, places: Sequence[int], width: int, is_set: bool) -> Cube:
    """Move the bits of a part's cube to the places of its planes in the whole."""
    number, mask, value = cube
    new_mask = 1 << (width - 1)
    new_value = new_mask if is_set else 0
    for i, place in enumerate(places):
        bit = 1 << (len(places) - 1 - i)
        if mask & bit:
            new_mask |= 1 << (width - 1 - place)
            if value & bit:
                new_value |= 1 << (width - 1 - place)
    return number, new_mask, new_value


@lru_cache(maxsize=1 << 16)
def _estimate(leaves: int, height: int, planes: int) -> float:
    """Estimate the operations that encode a tree; fitted to boosted trees."""
    if leaves <= 1:
        return 0.0
    full = leaves / (1 << planes)
    guess: float = leaves * (0.35 + 1.9 * full**1.3)
    if height <= planes:
        guess = min(guess, max(0.0, leaves - 1.0 - planes))
    return guess


def _best_subtree(tree: Tree, planes: int) -> tuple[tuple[int, ...], Tree] | None:
    """Return the subtree that is estimated to be cheapest to cut out."""
    most, room = 1 << (planes - 1), planes - 1
    total = tree.leaves
    least = max(1, total - most)
    best: tuple[float, tuple[int, ...], Tree] | None = None
    pending: list[tuple[Tree, tuple[int, ...]]] = [(tree, ())]
    # The hottest loop of compiling a forest: attributes are read once.
    while pending:
        at, path = pending.pop()
        a, steps = at.leaves, len(path)
        if steps and a <= most:
            b = total - a
            height = tree.height
            if steps == 1:
                assert tree.left is not None and tree.right is not None
                height = (tree.left if path[0] else tree.right).height
            shared = (a - 1 if a <= room else room) + (b - 1 if b <= room else room)
            score = steps - 1.0 + (shared - room if shared > room else 0)
            if best is None or score < best[0]:
                score += _estimate(a, at.height, room) + _estimate(b, height, room)
                if best is None or score < best[0]:
                    best = (score, path, at)
        if at.leaf < 0 and steps < SEARCH_DEPTH:
            left, right = at.left, at.right
            assert left is not None and right is not None
            # The subtree must be large enough that the rest is not too large.
            if left.leaves >= least:
                pending.append((left, (*path, 0)))
            if right.leaves >= least:
                pending.append((right, (*path, 1)))
    return None if best is None else best[1:]


def _without(tree: Tree, path: tuple[int, ...], at: int) -> Tree:
    """Return the tree with the subtree at the end of a path cut out."""
    assert tree.left is not None and tree.right is not None
    near, far = (tree.right, tree.left) if path[at] else (tree.left, tree.right)
    if at + 1 == len(path):
        return far
    cut = _without(near, path, at + 1)
    return node(tree.line, far, cut) if path[at] else node(tree.line, cut, far)


def _condition(tree: Tree, path: tuple[int, ...], into: Encoding) -> tuple[int, bool]:
    """Return a line, and whether it is set or clear for rows on the path."""
    if len(path) == 1:
        return tree.line, bool(path[0])
    total = into.one
    at = tree
    lines: list[tuple[int, int]] = []
    for step in path:
        lines.append((at.line, step))
        following = at.right if step else at.left
        assert following is not None
        at = following
    for line, step in reversed(lines):
        total = (
            into.mux(line, total, into.zero)
            if step
            else into.mux(line, into.zero, total)
        )
    return total, True


def _in_order(tree: Tree, planes: int, into: Encoding) -> tuple[list[int], list[Cube]]:
    """Encode by numbering the leaves in order; constant planes cost nothing."""
    cubes: list[Cube] = []
    planes = (tree.leaves - 1).bit_length()
    whole = (1 << planes) - 1

    def number(at: Tree, first: int) -> list[int]:
        if at.leaf >= 0:
            cubes.append((at.leaf, whole, first))
            return [
                into.one if (first >> (planes - 1 - k)) & 1 else into.zero
                for k in range(planes)
            ]
        assert at.left is not None and at.right is not None
        left = number(at.left, first)
        right = number(at.right, first + at.left.leaves)
        return [into.mux(at.line, a, b) for a, b in zip(right, left, strict=True)]

    return number(tree, 0), cubes


def code_table(cubes: Sequence[Cube], planes: int) -> NDArray[np.int32]:
    """Return the leaf of each code of ``planes`` bits; unused codes get any leaf."""
    table = np.full(1 << planes, cubes[0][0], np.int32)
    codes = np.arange(1 << planes)
    for number, mask, value in cubes:
        table[(codes & mask) == value] = number
    return table
