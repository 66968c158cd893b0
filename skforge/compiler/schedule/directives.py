"""The directives of the scheduling language, one frozen dataclass each.

A directive is plain data: what it does to a loop nest is in ``loop_nest_apply``, what
it means for the generated code is in the passes. The names are those of the methods
of :class:`~skforge.compiler.schedule.schedule.Schedule` and of the ``op`` in JSON.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, fields
from typing import TypeAlias

from skforge.exceptions import ScheduleError

#: How cached rows lie in a GPU's shared memory.
CACHE_LAYOUTS = ("row", "padded", "feature")
GPU_DIMENSIONS = ("grid.x", "grid.y", "grid.z", "block.x", "block.y", "block.z")
TILE_KINDS = ("uniform", "probability", "complete")
MAX_SIZE = 2**31 - 1
MAX_WALK_DEPTH = 64
MAX_NODE_TILE = 8
COMPLETE_TILES = (3, 7, 15, 31)  # nodes of two to five whole levels
VECTOR_WIDTHS = (2, 4, 8, 16, 32, 64)


class _Call:
    """What all directives share: they print as the method call that makes them."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{name_of(self)}({', '.join(map(_literal, arguments(self)))})"


@dataclass(frozen=True, slots=True)
class Tile(_Call):
    """Replace a loop by an outer loop over blocks and an inner loop over one block."""

    index: str
    outer: str
    inner: str
    size: int


@dataclass(frozen=True, slots=True)
class Split(_Call):
    """Replace a loop by two, one after the other, each with a copy of the body."""

    index: str
    first: str
    second: str
    at: int


@dataclass(frozen=True, slots=True)
class Reorder(_Call):
    """Permute perfectly nested loops."""

    indices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GpuDimension(_Call):
    """Run each iteration of a loop on its own GPU block or thread."""

    index: str
    dimension: str


@dataclass(frozen=True, slots=True)
class Unroll(_Call):
    """Repeat the body of a loop for each iteration."""

    index: str


@dataclass(frozen=True, slots=True)
class Specialize(_Call):
    """Separate code for each iteration of a tree loop, by its trees' depths."""

    index: str


@dataclass(frozen=True, slots=True)
class Cache(_Call):
    """Fetch the working set of one iteration beforehand."""

    index: str
    layout: str | None = None


@dataclass(frozen=True, slots=True)
class Parallel(_Call):
    """Run the iterations of a loop on several threads."""

    index: str


@dataclass(frozen=True, slots=True)
class Interleave(_Call):
    """Walk several trees or rows of an innermost loop at the same time."""

    index: str
    factor: int | None = None


@dataclass(frozen=True, slots=True)
class UnrollWalk(_Call):
    """Walk ``depth`` hops without asking whether a leaf is reached, padding trees."""

    index: str
    depth: int


@dataclass(frozen=True, slots=True)
class PeelWalk(_Call):
    """Walk the hops no leaf can end, at most ``depth``, without leaf checks."""

    index: str
    depth: int


@dataclass(frozen=True, slots=True)
class AtomicReduce(_Call):
    """Add up across the iterations of a parallel tree loop with atomics."""

    index: str


@dataclass(frozen=True, slots=True)
class SharedReduce(_Call):
    """Keep the partial sums of a tree loop in the GPU's shared memory."""

    index: str


@dataclass(frozen=True, slots=True)
class VectorReduce(_Call):
    """Add up the partial sums of a parallel tree loop with vector instructions."""

    index: str
    width: int


@dataclass(frozen=True, slots=True)
class TileNodes(_Call):
    """Group up to ``size`` nodes of a tree into one n-ary node."""

    size: int
    kind: str = "uniform"


@dataclass(frozen=True, slots=True)
class PadTrees(_Call):
    """Pad each tree until its leaves are equally deep."""


@dataclass(frozen=True, slots=True)
class ReorderTrees(_Call):
    """Sort trees by depth and shape so that neighbours walk alike."""


@dataclass(frozen=True, slots=True)
class Represent(_Call):
    """Choose how the forest lies in memory."""

    representation: str


@dataclass(frozen=True, slots=True)
class Vectorize(_Call):
    """Walk the rows of an innermost batch loop in SIMD lanes."""

    index: str


@dataclass(frozen=True, slots=True)
class CachePredicates(_Call):
    """Evaluate each distinct predicate once for the rows of one iteration."""

    index: str


@dataclass(frozen=True, slots=True)
class Quantize(_Call):
    """Keep the rows of one iteration as bin codes and compare integers."""

    index: str


Mark: TypeAlias = (
    GpuDimension
    | Unroll
    | Specialize
    | Cache
    | Parallel
    | Interleave
    | UnrollWalk
    | PeelWalk
    | AtomicReduce
    | SharedReduce
    | VectorReduce
    | Vectorize
    | CachePredicates
    | Quantize
)
Option: TypeAlias = TileNodes | PadTrees | ReorderTrees | Represent
Directive: TypeAlias = Tile | Split | Reorder | Mark | Option

BY_NAME: dict[str, type[Directive]] = {
    "tile": Tile,
    "split": Split,
    "reorder": Reorder,
    "gpu_dimension": GpuDimension,
    "unroll": Unroll,
    "specialize": Specialize,
    "cache": Cache,
    "parallel": Parallel,
    "interleave": Interleave,
    "unroll_walk": UnrollWalk,
    "peel_walk": PeelWalk,
    "atomic_reduce": AtomicReduce,
    "shared_reduce": SharedReduce,
    "vector_reduce": VectorReduce,
    "tile_nodes": TileNodes,
    "pad_trees": PadTrees,
    "reorder_trees": ReorderTrees,
    "represent": Represent,
    "vectorize": Vectorize,
    "cache_predicates": CachePredicates,
    "quantize": Quantize,
}
_NAME = {cls: name for name, cls in BY_NAME.items()}


def name_of(directive: object) -> str:
    """Return the method name of a directive, such as ``"tile"``."""
    return _NAME[type(directive)]  # type: ignore[index]


def arguments(directive: object) -> list[object]:
    """Return the arguments of the call, without those left at their default."""
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
    """Say in one sentence what is wrong with the arguments, or return None.

    Only what can be judged without a loop nest is judged here.
    """
    if type(directive) not in _NAME:
        return f"{directive!r} is not a directive; use the methods of Schedule."
    index = getattr(directive, "index", "")
    if not isinstance(index, str):
        return f"{directive} needs the name of a loop, not {index!r}."
    match directive:
        case Tile(_, outer, inner, size):
            return (
                _name_problem(directive, outer, inner)
                or _whole_problem(directive, "its size", size)
                or _require(
                    size != 0,
                    f"{directive} needs a size other than 0; a negative size is the "
                    "number of outer iterations.",
                )
                or _range_problem(directive, "its size", size, -MAX_SIZE, MAX_SIZE)
            )
        case Split(_, first, second, at):
            return (
                _name_problem(directive, first, second)
                or _whole_problem(directive, "the place to split", at)
                or _require(
                    at > 0,
                    f"{directive} needs a positive value to split at; nothing "
                    f"comes before {at}.",
                )
                or _range_problem(directive, "the place to split", at, 1, MAX_SIZE)
            )
        case Reorder(indices):
            return _reorder_problem(directive, indices)
        case GpuDimension(_, dimension):
            return _require(
                dimension in GPU_DIMENSIONS,
                f"{directive} needs one of the dimensions {_one_of(GPU_DIMENSIONS)}.",
            )
        case Interleave(_, factor):
            if factor is None:
                return None
            return _range_problem(directive, "its factor", factor, 1, 64)
        case UnrollWalk(_, depth) | PeelWalk(_, depth):
            return _range_problem(directive, "its depth", depth, 1, MAX_WALK_DEPTH)
        case VectorReduce(_, width):
            return _whole_problem(directive, "its width", width) or _require(
                width in VECTOR_WIDTHS,
                f"{directive} needs a width that is one of {_one_of(VECTOR_WIDTHS)}.",
            )
        case TileNodes(size, "complete"):
            return _require(
                type(size) is int and size in COMPLETE_TILES,
                f"{directive} needs a size of whole levels: {_one_of(COMPLETE_TILES)}.",
            )
        case TileNodes(size, kind):
            return _range_problem(directive, "its size", size, 1, MAX_NODE_TILE) or (
                _require(
                    kind in TILE_KINDS,
                    f"{directive} needs a kind that is one of {_one_of(TILE_KINDS)}.",
                )
            )
        case Cache(_, layout):
            return _require(
                layout is None or layout in CACHE_LAYOUTS,
                f"{directive} needs a layout that is one of {_one_of(CACHE_LAYOUTS)}.",
            )
        case Represent(representation):
            return _require(
                isinstance(representation, str) and representation.isidentifier(),
                f"{directive} needs the name of a representation, such as "
                '"array", "sparse" or "reorg".',
            )
        case (
            Unroll()
            | Specialize()
            | Parallel()
            | AtomicReduce()
            | SharedReduce()
            | PadTrees()
            | ReorderTrees()
            | Vectorize()
            | CachePredicates()
            | Quantize()
        ):
            return None


def _require(holds: bool, why: str) -> str | None:
    return None if holds else why


def _one_of(values: tuple[object, ...]) -> str:
    return ", ".join(map(_literal, values))


def _name_problem(directive: Directive, one: object, other: object) -> str | None:
    for name in (one, other):
        if not (isinstance(name, str) and name.isidentifier()):
            return (
                f"{directive} needs names of letters, digits and underscores for its "
                f"new loops, not {_literal(name)}."
            )
    if one == other:
        return f"{directive} needs two different names, but both are {_literal(one)}."
    return None


def _reorder_problem(directive: Reorder, indices: tuple[object, ...]) -> str | None:
    for place, index in enumerate(indices):
        if not isinstance(index, str):
            return f"{directive} needs names of loops, not {index!r}."
        if index in indices[:place]:
            return f"{directive} names {_literal(index)} twice."
    if len(indices) < 2:
        return f"{directive} needs at least two loops."
    return None


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


def to_step(directive: Directive) -> dict[str, object]:
    """Return a directive as a JSON object."""
    return {"op": name_of(directive), **asdict(directive)}


def from_step(step: object) -> Directive:
    """Return the directive of a JSON object; its values are checked when applied."""
    op = step.get("op") if isinstance(step, dict) else step
    directive = BY_NAME.get(op) if isinstance(op, str) else None
    if directive is None or not isinstance(step, dict):
        raise ScheduleError(
            f"{op!r} is not a directive; the directives are {', '.join(BY_NAME)}."
        )
    given = {key: value for key, value in step.items() if key != "op"}
    wanted = [field.name for field in fields(directive)]
    if sorted(given) != sorted(wanted):
        raise ScheduleError(
            f'In JSON the directive "{op}" has the fields {_fields(wanted)}, not '
            f"{_fields(list(given))}."
        )
    if directive is Reorder:
        indices = given["indices"]
        if not isinstance(indices, list):
            raise ScheduleError('In JSON the directive "reorder" has a list "indices".')
        return Reorder(tuple(indices))
    return directive(**given)


def _fields(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in ["op", *names])
