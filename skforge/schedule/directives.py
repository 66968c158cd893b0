"""The directives of the scheduling language, one frozen dataclass each.

A directive is plain data. Its class defines everything that does not depend on a nest:
its arguments, the loops it may mark, how it is drawn and described. ``apply`` changes
loop nests; the passes generate code. The names are those of the methods of ``Schedule``
and of ``op`` in JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, get_args

Root: TypeAlias = Literal["batch", "tree"]
ScheduleKind: TypeAlias = Literal["cpu", "gpu"]
UNITS: dict[Root, str] = {"batch": "rows", "tree": "trees"}

#: Layouts of cached rows in a GPU's shared memory.
CACHE_LAYOUTS = ("row", "padded", "feature")
GpuDim: TypeAlias = Literal[
    "grid.x", "grid.y", "grid.z", "block.x", "block.y", "block.z"
]
GPU_DIMENSIONS = get_args(GpuDim)
#: How nodes are grouped into tiles, and the description of each.
TILE_KINDS = {
    "uniform": "breadth-first",
    "probability": "by how often rows visit them",
    "complete": "by level",
}
#: One of these, or for each tree the number of each node's tile.
TileKind: TypeAlias = str | tuple[tuple[int, ...], ...]
MAX_SIZE = 2**31 - 1
MAX_WALK_DEPTH = 64
MAX_NODE_TILE = 8
COMPLETE_TILES = (3, 7, 15, 31)  # nodes of two to five whole levels
VECTOR_WIDTHS = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Directive:
    """Base class of directives; they print as the method call that makes them."""

    def __str__(self) -> str:
        return call(self)

    def problem(self) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class Tile(Directive):
    """Replace a loop by an outer loop over blocks and an inner loop over one block."""

    index: str
    outer: str
    inner: str
    size: int

    def problem(self) -> str | None:
        return (
            _name_problem(self, self.outer, self.inner)
            or _range_problem(self, "its size", self.size, -MAX_SIZE, MAX_SIZE)
            or _require(
                self.size != 0,
                f"{self} needs a size other than 0; a negative size is the number of "
                "outer iterations.",
            )
        )


@dataclass(frozen=True, slots=True)
class Split(Directive):
    """Cut a loop into two, one after the other, each with a copy of the body."""

    index: str
    first: str
    second: str
    at: int

    def problem(self) -> str | None:
        what = "the place to split"
        return (
            _name_problem(self, self.first, self.second)
            or _whole_problem(self, what, self.at)
            or _require(
                self.at > 0,
                f"{self} needs a positive value to split at; nothing comes before "
                f"{self.at}.",
            )
            or _range_problem(self, what, self.at, 1, MAX_SIZE)
        )


@dataclass(frozen=True, slots=True)
class Reorder(Directive):
    """Permute perfectly nested loops."""

    indices: tuple[str, ...]

    def problem(self) -> str | None:
        indices: tuple[object, ...] = self.indices
        for place, index in enumerate(indices):
            if not isinstance(index, str):
                return f"{self} needs names of loops, not {index!r}."
            if index in indices[:place]:
                return f"{self} names {_literal(index)} twice."
        return _require(len(indices) > 1, f"{self} needs at least two loops.")


# ---------------------------------------------------------------- marks on a loop


@dataclass(frozen=True, slots=True)
class Mark(Directive):
    """A directive that marks one loop; its class says which loops it may mark."""

    index: str

    #: The root that the loop must iterate over; None: either.
    ROOT: ClassVar[Root | None] = None
    #: Whether it says how iterations run. A loop can have only one such mark.
    RUNS: ClassVar[bool] = False
    #: Whether the loop must not contain another.
    INNERMOST: ClassVar[bool] = False
    #: The effect on the loop; ``{0}`` is the mark and ``{units}`` are rows or trees.
    EFFECT: ClassVar[str]
    #: For a kind of target that lacks the mark: what is missing, and what to do.
    NOT_ON: ClassVar[dict[ScheduleKind, str]] = {}

    def text(self, root: Root) -> str:
        """Return the words beside the loop in a drawn nest."""
        values = [getattr(self, field.name) for field in fields(self)[1:]]
        return " ".join([name_of(self), *(str(v) for v in values if v is not None)])

    def sentence(self, root: Root) -> str:
        return self.EFFECT.format(self, units=UNITS[root])


@dataclass(frozen=True, slots=True)
class Parallel(Mark):
    """Share the iterations of a loop among CPU threads."""

    EFFECT = 'the iterations of "{0.index}" are shared among threads'
    RUNS = True
    NOT_ON: ClassVar[dict[ScheduleKind, str]] = {
        "gpu": "runs on CPU threads, but this schedule is for a GPU; use gpu_dimension "
        "instead."
    }


@dataclass(frozen=True, slots=True)
class GpuDimension(Mark):
    """Run each iteration of a loop on its own GPU block or thread."""

    dimension: str

    RUNS = True
    NOT_ON: ClassVar[dict[ScheduleKind, str]] = {
        "cpu": "maps a loop to a GPU, but the target is a CPU."
    }

    def problem(self) -> str | None:
        return _require(
            self.dimension in GPU_DIMENSIONS,
            f"{self} needs one of the dimensions {_one_of(GPU_DIMENSIONS)}.",
        )

    def text(self, root: Root) -> str:
        return self.dimension

    def sentence(self, root: Root) -> str:
        unit = "a GPU block" if self.dimension.startswith("grid") else "a GPU thread"
        return f'each iteration of "{self.index}" is {unit}, along {self.dimension[-1]}'


@dataclass(frozen=True, slots=True)
class Unroll(Mark):
    """Repeat the body of a loop for each iteration."""

    EFFECT = 'the code of "{0.index}" is repeated for each iteration'
    RUNS = True


@dataclass(frozen=True, slots=True)
class Specialize(Mark):
    """Compile separate code for the iterations of a tree loop, by tree depth."""

    EFFECT = (
        'each iteration of "{0.index}" runs code specialised for the depths of its '
        "trees"
    )
    ROOT = "tree"


@dataclass(frozen=True, slots=True)
class Interleave(Mark):
    """Keep several walks of an innermost loop in flight together."""

    factor: int | None = None

    EFFECT = 'several walks of "{0.index}" are in flight at a time'
    RUNS = INNERMOST = True

    def problem(self) -> str | None:
        if self.factor is None:
            return None
        return _range_problem(self, "its factor", self.factor, 1, 64)


@dataclass(frozen=True, slots=True)
class Vectorize(Mark):
    """Run an innermost loop in SIMD lanes."""

    RUNS = INNERMOST = True
    NOT_ON: ClassVar[dict[ScheduleKind, str]] = {
        "gpu": "is for the SIMD lanes of a CPU, but this schedule is for a GPU; map "
        "the loop to threads with gpu_dimension instead."
    }

    def sentence(self, root: Root) -> str:
        if root == "tree":
            return f'all trees of "{self.index}" are evaluated at once, in SIMD lanes'
        return f'rows of "{self.index}" are walked in SIMD lanes'


@dataclass(frozen=True, slots=True)
class Cache(Mark):
    """Fetch the rows or trees of one iteration before it starts."""

    layout: str | None = None

    EFFECT = 'each iteration of "{0.index}" first fetches its {units}'

    def problem(self) -> str | None:
        if self.layout is None:
            return None
        return _choice_problem(self, "a layout", self.layout, CACHE_LAYOUTS)

    def text(self, root: Root) -> str:
        layout = "" if self.layout is None else f" by {self.layout}"
        return f"cache {UNITS[root]}{layout}"


@dataclass(frozen=True, slots=True)
class Quantize(Mark):
    """Turn the rows of one iteration into bin codes; walks compare integers."""

    EFFECT = 'each iteration of "{0.index}" first turns its rows into bin codes'
    ROOT = "batch"


@dataclass(frozen=True, slots=True)
class CachePredicates(Mark):
    """Evaluate each distinct predicate once for the rows of one iteration.

    On a loop over trees, those of the iteration's trees, for the block of rows around.
    """

    EFFECT = 'each iteration of "{0.index}" first evaluates all predicates'
    NOT_ON: ClassVar[dict[ScheduleKind, str]] = {
        "gpu": "is for CPUs, but this schedule is for a GPU; leave it out, so that "
        'threads walk the trees, with represent("sparse"), "array" or "reorg".'
    }

    def sentence(self, root: Root) -> str:
        effect = self.EFFECT if root == "batch" else f"{self.EFFECT} of its trees"
        return effect.format(self)


@dataclass(frozen=True, slots=True)
class WalkStart(Mark):
    """A mark that says how walks start: ``depth`` hops without leaf checks."""

    depth: int

    def problem(self) -> str | None:
        return _range_problem(self, "its depth", self.depth, 1, MAX_WALK_DEPTH)

    @property
    def hops(self) -> str:
        return "1 hop" if self.depth == 1 else f"{self.depth} hops"


@dataclass(frozen=True, slots=True)
class UnrollWalk(WalkStart):
    """Let walks make ``depth`` hops without leaf checks, in padded trees."""

    EFFECT = 'walks under "{0.index}" make {0.hops} before any leaf check'


@dataclass(frozen=True, slots=True)
class PeelWalk(WalkStart):
    """Leave out leaf checks on up to ``depth`` hops, where no leaf can be."""

    EFFECT = (
        'walks under "{0.index}" make up to {0.hops} before any leaf check, as far as '
        "no leaf can end them"
    )


@dataclass(frozen=True, slots=True)
class AtomicReduce(Mark):
    """Add the results of a tree loop's iterations with atomic operations."""

    EFFECT = 'iterations of "{0.index}" add to the result with atomics'
    ROOT = "tree"


@dataclass(frozen=True, slots=True)
class SharedReduce(Mark):
    """Keep the partial sums of a tree loop in the GPU's shared memory."""

    EFFECT = 'partial results of "{0.index}" are kept in shared memory'
    ROOT = "tree"
    NOT_ON: ClassVar[dict[ScheduleKind, str]] = {
        "cpu": "uses the shared memory of a GPU, but this schedule is for a CPU; leave "
        "it out."
    }


@dataclass(frozen=True, slots=True)
class VectorReduce(Mark):
    """Add the partial sums of a parallel tree loop with SIMD instructions."""

    width: int

    EFFECT = 'partial results of "{0.index}" are added {0.width} at a time'
    ROOT = "tree"
    NOT_ON: ClassVar[dict[ScheduleKind, str]] = {
        "gpu": "sums in the SIMD registers of a CPU; a GPU sums by warps where it can, "
        "so leave it out."
    }

    def problem(self) -> str | None:
        return _whole_problem(self, "its width", self.width) or _choice_problem(
            self, "a width", self.width, VECTOR_WIDTHS
        )


MarkT = TypeVar("MarkT", bound=Mark)


class Marked:
    """A loop with marks, each of them the directive itself."""

    __slots__ = ()
    marks: tuple[Mark, ...]

    def mark(self, kind: type[MarkT]) -> MarkT | None:
        for mark in self.marks:
            if isinstance(mark, kind):
                return mark
        return None

    def has(self, *kinds: type[Mark]) -> bool:
        return any(isinstance(mark, kinds) for mark in self.marks)

    def without(self, *kinds: type[Mark]) -> tuple[Mark, ...]:
        return tuple(mark for mark in self.marks if not isinstance(mark, kinds))


# ---------------------------------------------------------------- options


@dataclass(frozen=True, slots=True)
class Option(Directive):
    """A directive for the forest as a whole; a schedule has at most one of a kind."""

    #: The effect, with ``{0}`` for the option.
    EFFECT: ClassVar[str]

    def sentence(self) -> str:
        return self.EFFECT.format(self)


@dataclass(frozen=True, slots=True)
class TileNodes(Option):
    """Group up to ``size`` nodes of a tree into a tile, a node with many children."""

    size: int
    kind: TileKind = "uniform"

    def __str__(self) -> str:
        """Return the call, without the numbers of given tiles."""
        if isinstance(self.kind, str):
            return call(self)
        return f"tile_nodes({self.size}, <tiles of {len(self.kind)} trees>)"

    def problem(self) -> str | None:
        if not isinstance(self.kind, str):
            numbers = isinstance(self.kind, tuple) and all(
                isinstance(tree, tuple)
                and all(type(n) is int and abs(n) <= MAX_SIZE for n in tree)
                for tree in self.kind
            )
            if not numbers:
                return (
                    "tile_nodes needs the name of a kind, or for each tree a list with "
                    "the tile's number of each node, as integers."
                )
            return _range_problem(self, "its size", self.size, 2, MAX_NODE_TILE)
        if self.kind == "complete":
            return _require(
                type(self.size) is int and self.size in COMPLETE_TILES,
                f"{self} needs a size of whole levels: {_one_of(COMPLETE_TILES)}.",
            )
        return _range_problem(
            self, "its size", self.size, 1, MAX_NODE_TILE
        ) or _choice_problem(self, "a kind", self.kind, TILE_KINDS)

    def sentence(self) -> str:
        how = TILE_KINDS[self.kind] if isinstance(self.kind, str) else "as given"
        return f"up to {self.size} nodes are compared at once, grouped {how}"


@dataclass(frozen=True, slots=True)
class PadTrees(Option):
    """Pad each tree until its leaves are equally deep."""

    EFFECT = "the leaves of each tree are made equally deep"


@dataclass(frozen=True, slots=True)
class ReorderTrees(Option):
    """Sort trees by depth and shape, so that adjacent trees have similar walks."""

    EFFECT = "trees of equal depth and shape are placed side by side"


@dataclass(frozen=True, slots=True)
class Represent(Option):
    """Choose how the forest lies in memory."""

    representation: str

    EFFECT = 'the forest is stored as "{0.representation}"'

    def problem(self) -> str | None:
        name = self.representation
        return _require(
            isinstance(name, str) and name.isidentifier(),
            f"{self} needs the name of a representation, such as "
            '"array", "sparse" or "reorg".',
        )


#: Every directive by name; filled by ``register``.
BY_NAME: dict[str, type[Directive]] = {}


def register(*kinds: type[Directive]) -> None:
    BY_NAME.update((_snake(kind), kind) for kind in kinds)


def _snake(kind: type[object]) -> str:
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


register(Tile, Split, Reorder, GpuDimension, Unroll, Specialize, Cache, Parallel)
register(Interleave, UnrollWalk, PeelWalk, AtomicReduce, SharedReduce, VectorReduce)
register(TileNodes, PadTrees, ReorderTrees, Represent)
register(Vectorize, CachePredicates, Quantize)

# The order in which the marks of a loop are drawn; marks not listed come last.
_DRAWN = (
    *(Parallel, GpuDimension, Unroll, Specialize, Interleave, Vectorize, Cache),
    *(Quantize, CachePredicates, UnrollWalk, PeelWalk),
    *(AtomicReduce, SharedReduce, VectorReduce),
)


def in_order(marks: Iterable[Mark]) -> tuple[Mark, ...]:
    order = (*_DRAWN, *BY_NAME.values())
    return tuple(sorted(marks, key=lambda mark: order.index(type(mark))))


def name_of(directive: object) -> str:
    return _snake(type(directive))


def call(directive: Directive) -> str:
    return f"{name_of(directive)}({', '.join(map(_literal, arguments(directive)))})"


def arguments(directive: object) -> list[object]:
    if isinstance(directive, Reorder):
        return list(directive.indices)
    values = []
    for field in fields(directive):  # type: ignore[arg-type]
        value = getattr(directive, field.name)
        if field.default is MISSING or value != field.default:
            values.append(value)
    return values


def _literal(value: object) -> str:
    # Text in double quotes, as people write loop names.
    return json.dumps(value) if isinstance(value, str) else repr(value)


def problem(directive: Directive) -> str | None:
    """Say what is wrong with the arguments, as far as that needs no nest, or None."""
    if type(directive) not in BY_NAME.values():
        return f"{directive!r} is not a directive; use the methods of Schedule."
    index = getattr(directive, "index", "")
    if not isinstance(index, str):
        return f"{directive} needs the name of a loop, not {index!r}."
    return directive.problem()


def _require(holds: bool, why: str) -> str | None:
    return None if holds else why


def _one_of(values: Iterable[object]) -> str:
    return ", ".join(map(_literal, values))


def _choice_problem(
    directive: Directive, what: str, value: object, choices: Collection[object]
) -> str | None:
    known = _one_of(choices)
    return _require(
        value in choices, f"{directive} needs {what} that is one of {known}."
    )


def _name_problem(directive: Directive, outer: object, inner: object) -> str | None:
    for name in (outer, inner):
        if not (isinstance(name, str) and name.isidentifier()):
            return (
                f"{directive} needs names of letters, digits and underscores for its "
                f"new loops, not {_literal(name)}."
            )
    same = f"{directive} needs two different names, but both are {_literal(outer)}."
    return same if outer == inner else None


def _whole_problem(directive: Directive, what: str, value: object) -> str | None:
    if type(value) is int:
        return None
    return f"{directive} needs a whole number for {what}, not {_literal(value)}."


def _range_problem(
    directive: Directive, what: str, value: int, low: int, high: int
) -> str | None:
    wrong = _whole_problem(directive, what, value)
    if wrong is not None or low <= value <= high:
        return wrong
    return f"{directive} needs {what} from {low} to {high}."


def tile_kind(kind: Any) -> Any:
    kind = _plain(kind)
    if isinstance(kind, str) or not isinstance(kind, Iterable):
        return kind
    return tuple(
        tuple(map(_plain, tree)) if isinstance(tree, Iterable) else tree
        for tree in map(_plain, kind)
    )


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
