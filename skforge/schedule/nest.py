"""The abstract loop nest that directives modify.

A loop variable counts in units of its root. After ``tile("batch", "b0", "b1", 64)`` the
loops are ``for b0 in 0 to n_rows step 64`` and ``for b1 in 0 to 64``, and the row is
``b0 + b1``: the index of a root is always the sum of the enclosing variables of that
root. Ranges follow from lineage: when a variable is tiled, each limit on it becomes a
limit on the sum of its two parts.

The abstract :class:`Nest` may leave sizes open: the batch length always, and the number
of trees until ``bind`` makes the ``BoundNest`` that lowering reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from skforge.exceptions import ScheduleError
from skforge.schedule import directives as d

ROOTS: tuple[d.Root, d.Root] = ("batch", "tree")

# The representation of a schedule that does not choose one.
DEFAULT_REPRESENTATION = "sparse"


# --- sizes ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchLength:
    """The batch length, known only when the kernel is called."""

    def __str__(self) -> str:
        return "n_rows"


@dataclass(frozen=True, slots=True)
class CeilDiv:
    """``value / by`` rounded up, and at least 1 so that it can be a step."""

    value: Size
    by: int

    def __str__(self) -> str:
        return str(self.value) if self.by == 1 else f"ceil({self.value} / {self.by})"


@dataclass(frozen=True, slots=True)
class Times:
    """A size known when the kernel is called, times a number."""

    value: Size
    by: int

    def __str__(self) -> str:
        return f"{self.value} * {self.by}"


Size: TypeAlias = int | BatchLength | CeilDiv | Times


def size_value(size: Size, n_rows: int) -> int:
    """Return the number that a size is for a batch of ``n_rows`` rows.

    >>> quarter = CeilDiv(BatchLength(), 4)
    >>> size_value(quarter, 10), size_value(quarter, 0)
    (3, 1)
    """
    match size:
        case int():
            return size
        case BatchLength():
            return n_rows
        case CeilDiv(value, by):
            return max(1, -(-size_value(value, n_rows) // by))
        case Times(value, by):
            return size_value(value, n_rows) * by


# --- the abstract nest: what directives modify ---------------------------------------


@dataclass(frozen=True, slots=True)
class Open:
    """A size that is not known before binding, or has no closed form: only its text."""

    text: str

    def __str__(self) -> str:
        return self.text


Extent: TypeAlias = Size | Open


def times(left: Extent, right: Extent) -> Extent:
    if isinstance(left, int):
        left, right = right, left
    if left == 1:
        return right
    if right == 1:
        return left
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    if isinstance(left, Open) or not isinstance(right, int):
        return Open(f"{left} * {right}")
    return Times(left, right)


def ceil_div(extent: Extent, by: int) -> Extent:
    if isinstance(extent, int):
        return max(1, -(-extent // by))
    if isinstance(extent, Open):
        return extent if by == 1 else Open(f"ceil({extent} / {by})")
    return CeilDiv(extent, by)


@dataclass(frozen=True, slots=True)
class LoopVariable(d.Marked):
    """A loop variable: its range and its marks.

    ``count`` is the number of iterations that follows from its lineage, including
    remainders.
    """

    name: str
    root: d.Root
    start: int
    step: Extent
    count: Extent
    marks: tuple[d.Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class ScheduledLoop:
    """A loop in the tree of loops; an empty body is the statement."""

    name: str
    body: tuple[ScheduledLoop, ...] = ()


@dataclass(frozen=True, slots=True)
class Limit:
    """The sum of the named variables stays below ``limit``."""

    names: frozenset[str]
    limit: Extent


@dataclass(frozen=True, slots=True)
class Nest:
    """The loops after applying some directives to the two root loops.

    ``variables`` are in order of significance: of two variables of one root, the one
    that counts in larger steps, or the first part of a split, comes first.
    ``modifiers`` are the directives that replaced loops, for messages.
    """

    loops: tuple[ScheduledLoop, ...]
    variables: tuple[LoopVariable, ...]
    limits: tuple[Limit, ...]
    options: tuple[d.Option, ...] = ()
    modifiers: tuple[d.Tile | d.Split, ...] = ()
    n_trees: int | None = None

    def variable(self, name: str) -> LoopVariable:
        return next(v for v in self.variables if v.name == name)

    def paths(self, through: str | None = None) -> Iterator[tuple[LoopVariable, ...]]:
        for path in paths(self.loops):
            if through is None or through in path:
                yield tuple(map(self.variable, path))

    def refuse(self, why: str, name: str | None = None) -> NoReturn:
        names = [loop.name for loop, _ in walk(self.loops)]
        at = names.index(name) if name in names else None
        raise ScheduleError(why, self.draw(), at)

    def draw(self) -> str:
        lines = []
        for loop, outside in walk(self.loops):
            variable = self.variable(loop.name)
            marks = [mark.text(variable.root) for mark in variable.marks]
            start, end, step = variable.start, self._end(variable), variable.step
            lines.append(line_text(len(outside), loop.name, start, end, step, marks))
        return "\n".join(lines)

    def _end(self, variable: LoopVariable) -> Extent:
        """Return the end of a loop if all sizes divide evenly.

        The limit with the fewest variables is the one that made this variable.
        """
        limits = [limit for limit in self.limits if variable.name in limit.names]
        fewest = min(len(limit.names) for limit in limits)
        ends = [limit.limit for limit in limits if len(limit.names) == fewest]
        return min((end for end in ends if isinstance(end, int)), default=ends[0])


def root_nest(n_trees: int | None = None) -> Nest:
    trees = Open("n_trees") if n_trees is None else n_trees
    rows = BatchLength()
    return Nest(
        loops=(ScheduledLoop("batch", (ScheduledLoop("tree"),)),),
        variables=(
            LoopVariable("batch", "batch", 0, 1, rows),
            LoopVariable("tree", "tree", 0, 1, trees),
        ),
        limits=(Limit(frozenset({"batch"}), rows), Limit(frozenset({"tree"}), trees)),
        n_trees=n_trees,
    )


def walk(
    loops: tuple[ScheduledLoop, ...], outside: tuple[ScheduledLoop, ...] = ()
) -> Iterator[tuple[ScheduledLoop, tuple[ScheduledLoop, ...]]]:
    """Yield each loop with the loops around it, outermost first."""
    for loop in loops:
        yield loop, outside
        yield from walk(loop.body, (*outside, loop))


def paths(loops: tuple[ScheduledLoop, ...]) -> Iterator[tuple[str, ...]]:
    for loop, outside in walk(loops):
        if not loop.body:
            yield (*(o.name for o in outside), loop.name)


def line_text(
    depth: int, name: str, start: object, end: object, step: object, marks: list[str]
) -> str:
    stride = "" if step == 1 else f" step {step}"
    text = f"{'  ' * depth}for {name} in {start} to {end}{stride}:"
    return f"{text}   {', '.join(marks)}" if marks else text
