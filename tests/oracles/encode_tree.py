"""The encoding of one tree as bit operations, by the recursion that defines it.

It follows the docstring of ``encode_trees.py`` literally, one subtree at a time; the
compiler does the same for all trees at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from skforge.compiler.layouts.bitsliced.cut_trees import SEARCH_DEPTH
from skforge.forest.forest import Forest


@dataclass(eq=False)
class Tree:
    """A leaf has no children; rows with a set line go right."""

    line: int = -1
    left: Tree | None = None
    right: Tree | None = None
    leaf: int = -1
    leaves: int = field(init=False)
    height: int = field(init=False)

    def __post_init__(self) -> None:
        children = self.children
        self.leaves = sum(child.leaves for child in children) or 1
        self.height = max((1 + child.height for child in children), default=0)

    @property
    def children(self) -> tuple[Tree, ...]:
        return (
            () if self.left is None or self.right is None else (self.left, self.right)
        )


def tree_of(forest: Forest, root: int, line_of: list[int]) -> Tree:
    if forest.leaf[root] >= 0:
        return Tree(leaf=int(forest.leaf[root]))
    one, two = (
        tree_of(forest, int(child[root]), line_of)
        for child in (forest.left, forest.right)
    )
    return Tree(line_of[forest.predicate[root]], one, two)


#: Codes of a leaf: leaf, mask, value; those with ``code & mask == value``.
Cube = tuple[int, int, int]
Path = tuple[int, ...]


class Encoder:
    """Operations ``target = select ? a : b``; temporaries follow two constants."""

    def __init__(self, first: int) -> None:
        self.zero, self.one, self.first = first - 2, first - 1, first
        self.ops: list[tuple[int, int, int, int]] = []
        self.known: dict[tuple[int, int, int], int] = {}

    def mux(self, select: int, a: int, b: int) -> int:
        if a == b:
            return a
        if (a, b) == (self.one, self.zero):
            return select
        found = self.known.setdefault((select, a, b), self.first + len(self.ops))
        if found == self.first + len(self.ops):
            self.ops.append((found, select, a, b))
        return found

    def encode(self, tree: Tree, planes: int) -> tuple[list[int], list[Cube]]:
        """Return the lines of the planes, highest bit first, and the leaves' codes."""
        if tree.leaves - 1 <= planes:
            return own_planes(tree)
        path = best_subtree(tree, planes)
        if path is None:
            return self.in_order(tree)
        select, inside = self.condition(tree, path)
        part, rest = cut(tree, path)
        one, one_codes = self.encode(part, planes - 1)
        two, two_codes = self.encode(rest, planes - 1)
        width = 1 + min(planes - 1, len(one) + len(two))
        one_places = [width - 1 - i for i in range(len(one))]
        two_places = [1 + i for i in range(len(two))]
        lines = dict(zip([0, *one_places], [select, *one], strict=True))
        for place, line in zip(two_places, two, strict=True):
            if place in one_places:
                inner, outer = (lines[place], line) if inside else (line, lines[place])
                line = self.mux(select, inner, outer)
            lines[place] = line
        codes = [moved(code, one_places, width, inside) for code in one_codes]
        codes += [moved(code, two_places, width, not inside) for code in two_codes]
        return [lines[place] for place in range(width)], codes

    def condition(self, tree: Tree, path: Path) -> tuple[int, bool]:
        """Return a line, and whether it is set or clear for rows on the path."""
        total, inside = tree.line, bool(path[0])
        other = self.zero if inside else self.one
        for above, step in pairwise(path):
            tree = tree.children[above]
            total = self.mux(tree.line, *((total, other) if step else (other, total)))
        return total, inside

    def in_order(self, tree: Tree) -> tuple[list[int], list[Cube]]:
        """Number the leaves in order."""
        planes = (tree.leaves - 1).bit_length()
        codes: list[Cube] = []

        def number(at: Tree) -> list[int]:
            if not at.children:
                code = len(codes)
                codes.append((at.leaf, (1 << planes) - 1, code))
                bits = [code >> (planes - 1 - k) & 1 for k in range(planes)]
                return [self.one if bit else self.zero for bit in bits]
            left, right = map(number, at.children)
            return [self.mux(at.line, a, b) for a, b in zip(right, left, strict=True)]

        return number(tree), codes


def own_planes(tree: Tree) -> tuple[list[int], list[Cube]]:
    """Give each test a plane, in preorder, right before left."""
    lines: list[int] = []
    codes: list[Cube] = []
    top = tree.leaves - 2

    def visit(at: Tree, mask: int, value: int) -> None:
        if not at.children:
            codes.append((at.leaf, mask, value))
            return
        bit = 1 << (top - len(lines))
        lines.append(at.line)
        left, right = at.children
        visit(right, mask | bit, value | bit)
        visit(left, mask | bit, value)

    visit(tree, 0, 0)
    return lines, codes


def moved(code: Cube, places: list[int], width: int, is_set: bool) -> Cube:
    """Move the bits of a part's code to the places of its planes in the whole."""
    leaf, *old = code
    top = 1 << (width - 1)
    new = [top, top * is_set]
    for i, place in enumerate(places):
        for k in (0, 1):
            bit = old[k] >> (len(places) - 1 - i) & 1
            new[k] |= bit << (width - 1 - place)
    return leaf, new[0], new[1]


def estimate(leaves: int, height: int, planes: int) -> float:
    if leaves <= 1:
        return 0.0
    guess: float = leaves * (0.3 + 2 * (leaves / (1 << planes)) ** 3)
    return min(guess, max(0.0, leaves - 1.0 - planes)) if height <= planes else guess


def best_subtree(tree: Tree, planes: int) -> Path | None:
    """Return the path to the subtree that is cheapest to cut; the first of equals."""
    room = planes - 1
    found: list[tuple[float, Path]] = []

    def visit(at: Tree, path: Path) -> None:
        a, b = at.leaves, tree.leaves - at.leaves
        if path and max(a, b) <= 1 << room:
            rest = tree.children[1 - path[0]] if len(path) == 1 else tree
            parts = estimate(a, at.height, room) + estimate(b, rest.height, room)
            found.append((parts + 2 * (len(path) - 1), path))
        if len(path) < SEARCH_DEPTH:
            for step in range(len(at.children))[::-1]:
                visit(at.children[step], (*path, step))

    visit(tree, ())
    return min(found, key=lambda one: one[0])[1] if found else None


def cut(tree: Tree, path: Path) -> tuple[Tree, Tree]:
    """Return the subtree at the end of a path, and the tree without it."""
    step, further = path[0], path[1:]
    near, far = tree.children[step], tree.children[1 - step]
    if not further:
        return near, far
    part, rest = cut(near, further)
    pair = (far, rest) if step else (rest, far)
    return part, Tree(tree.line, *pair)
