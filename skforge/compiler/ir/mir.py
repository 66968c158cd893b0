"""MIR, the mid-level IR: loops over rows and trees, walks, caches and reductions.

The whole level on one page (papers/000 Table 4, papers/001 §4)::

    function = arrays, body
    stmt     = Loop var = start to min(bounds) step: body
             | Let names = op
             | WalkLoop names while any not leaf: TraverseTreeTile
             | Reduce target[indices] += value
             | StoreLeaf target[indices] = value
             | ReduceDimension target = sum(source over dim)
             | ReduceDimensionInplace source[.., 0, ..] = sum(source over dim)
             | Fill target = values
             | CacheTrees | CacheRows | EvaluatePredicates
             | DepthSwitch over the depth class of a tree
    op       = GetTree | GetTreeClassId | WalkDecisionTree
             | GetRoot | TraverseTreeTile | GetLeafValue

Indices are sums of loop variables and constants (``Affine``), scaled down where an
array has one slot per iteration (``Slot``). How trees lie in memory is not said here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from skforge.compiler.loop_nest import Bound, Size

# ---------------------------------------------------------------- indices


@dataclass(frozen=True, slots=True)
class Affine:
    """The sum of loop variables plus a constant."""

    terms: tuple[str, ...] = ()
    constant: int = 0


@dataclass(frozen=True, slots=True)
class Slot:
    """The iteration number of a loop: ``(var - start) / step``, one slot each."""

    var: str
    start: Size
    step: Size


@dataclass(frozen=True, slots=True)
class Class:
    """The output a tree's scalar leaves add to, as an index."""

    name: str  # bound by GetTreeClassId


Index: TypeAlias = Affine | Slot | Class

# ---------------------------------------------------------------- arrays


@dataclass(frozen=True, slots=True)
class All:
    """The number of outputs of the forest, as an extent."""


@dataclass(frozen=True, slots=True)
class Array:
    """A multi-dimensional array of accumulators.

    ``dims`` are extents; ``result`` is the function's output, any other is scratch
    allocated where ``AllocArray`` stands.
    """

    name: str
    dims: tuple[Size, ...]
    element: Literal["accumulator", "row_class"] = "accumulator"


@dataclass(frozen=True, slots=True)
class Range:
    """The part ``[start, start + length)`` of a dimension, ``length`` >= 0."""

    start: Affine
    bounds: tuple[Bound, ...]  # length = min over bounds, 0 at least


# ---------------------------------------------------------------- operations


@dataclass(frozen=True, slots=True)
class GetTree:
    """The tree at a position of the walking order."""

    index: Affine


@dataclass(frozen=True, slots=True)
class GetTreeClassId:
    """The output that the scalar leaves of a tree add to."""

    tree: str


@dataclass(frozen=True, slots=True)
class WalkDecisionTree:
    """An interleaved walk over the element-wise pairs of trees and rows.

    ``unroll`` hops have no leaf check (trees are padded), ``peel`` hops have none
    either (no leaf is shallower); ``exact_depth`` says that all leaves lie at
    ``unroll`` or ``peel`` hops, so that no checked loop follows.
    """

    trees: tuple[str, ...]
    rows: tuple[Affine, ...]
    unroll: int = 0
    peel: int = 0
    exact_depth: bool = False


@dataclass(frozen=True, slots=True)
class GetRoot:
    """The root of each tree."""

    trees: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TraverseTreeTile:
    """One hop of each walk: evaluate a tile on a row, move to the exit taken.

    ``checked`` walks may stand on a leaf already and then stay there.
    """

    trees: tuple[str, ...]
    nodes: tuple[str, ...]
    rows: tuple[Affine, ...]
    checked: bool


@dataclass(frozen=True, slots=True)
class GetLeafValue:
    """The value (scalar or vector) of the leaf each walk stands on."""

    trees: tuple[str, ...]
    nodes: tuple[str, ...]


Op: TypeAlias = (
    GetTree
    | GetTreeClassId
    | WalkDecisionTree
    | GetRoot
    | TraverseTreeTile
    | GetLeafValue
)

# ---------------------------------------------------------------- statements


@dataclass(frozen=True, slots=True)
class Let:
    """Bind names to the results of an operation (one a walk, or one)."""

    names: tuple[str, ...]
    op: Op


@dataclass(frozen=True, slots=True)
class WalkLoop:
    """``while any node is not a leaf: nodes = traverse(...)`` carrying the nodes."""

    results: tuple[str, ...]
    params: tuple[str, ...]
    inits: tuple[str, ...]
    step: TraverseTreeTile


@dataclass(frozen=True, slots=True)
class Loop:
    """``for var in start to min(bounds) step step``.

    ``kind``: serial, parallel, vector (``lanes`` rows at once) or a GPU dimension.
    ``trip_count`` is the number of iterations where it never varies.
    """

    var: str
    root: Literal["batch", "tree"]
    start: Size
    step: Size
    bounds: tuple[Bound, ...]
    kind: str
    body: tuple[Stmt, ...]
    trip_count: int | None = None
    atomic_reduce: bool = False
    shared_reduce: bool = False
    vector_reduce: int | None = None


@dataclass(frozen=True, slots=True)
class DepthSwitch:
    """One body per class of tree depths; ``cases[k]`` serves trees of class k."""

    tree: Affine
    table: str  # name of the per-position class table in `MirFunction.depth_classes`
    cases: tuple[tuple[Stmt, ...], ...]


@dataclass(frozen=True, slots=True)
class Reduce:
    """Accumulate ``value`` into ``target[indices]``; atomic in meaning (001 §4).

    ``order``: ``ordered`` keeps the model's tree order bit for bit, the others allow
    any. ``atomic`` is set by legalisation where iterations of a parallel loop share an
    element on purpose.
    """

    target: str
    indices: tuple[Index, ...]
    value: str
    order: Literal["ordered", "any"] = "ordered"
    atomic: bool = False


@dataclass(frozen=True, slots=True)
class StoreLeaf:
    """``target[indices] = value``: one leaf value per tree and row, summed later."""

    target: str
    indices: tuple[Index, ...]
    value: str


@dataclass(frozen=True, slots=True)
class ReduceDimension:
    """``target[..k..] += sum over dim of source[prefix, i, ..k..]`` (001 Def. 4.2).

    The sum runs i = 0, 1, … in order, for every k in ``ranges``; ``tree_output`` sums
    element i into the output of tree i (scalar leaves of multi-class forests).
    """

    target: str
    source: str
    dim: int
    prefix: tuple[Index, ...]
    ranges: tuple[Range, ...]
    vector_width: int | None = None
    by_tree_output: bool = False


@dataclass(frozen=True, slots=True)
class ReduceDimensionInplace:
    """``array[prefix, 0, ..k..] = sum over dim`` in place (001 Def. 4.3)."""

    array: str
    dim: int
    prefix: tuple[Index, ...]
    ranges: tuple[Range, ...]
    vector_width: int | None = None


@dataclass(frozen=True, slots=True)
class AllocArray:
    """Scratch for the statements that follow in the same body."""

    array: Array
    zero: bool  # filled with the reduction's initial value 0


@dataclass(frozen=True, slots=True)
class Fill:
    """``target[range, k] = base[k]``: where the sums of these rows start."""

    target: str
    rows: Range


@dataclass(frozen=True, slots=True)
class CacheTrees:
    """Bring the trees of one iteration close: prefetch (CPU), shared memory (GPU)."""

    trees: Range


@dataclass(frozen=True, slots=True)
class CacheRows:
    """Bring the rows of one iteration close."""

    rows: Range


@dataclass(frozen=True, slots=True)
class EvaluatePredicates:
    """``name`` = every distinct predicate of the trees on a block of rows, as bits."""

    name: str
    trees: Range
    rows: Range


Stmt: TypeAlias = (
    Let
    | WalkLoop
    | Loop
    | DepthSwitch
    | Reduce
    | StoreLeaf
    | ReduceDimension
    | ReduceDimensionInplace
    | AllocArray
    | Fill
    | CacheTrees
    | CacheRows
    | EvaluatePredicates
)
Body: TypeAlias = tuple[Stmt, ...]
