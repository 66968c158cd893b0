"""MIR, the mid-level IR: loops over rows and trees, walks, caches and reductions.

This file defines the whole level (SilvanForge Table 4, Treebeard draft §4)::

    function = arrays, body
    stmt     = Loop var = start to min(bounds) step: body
             | Let names = op
             | WalkLoop names while any is no leaf: TraverseTreeTile
             | Reduce target[indices] += value
             | StoreLeaf target[indices] = value
             | ReduceDimension target = sum(source over dim)
             | ReduceDimensionInplace source[.., 0, ..] = sum(source over dim)
             | Fill target = values
             | CacheTrees | CacheRows | TakeRows | EvaluatePredicates | QuantizeRows
             | DepthSwitch over the depth class of a tree
             | Finish result = base + source * scale
             | StoreRows result = source
    op       = GetTree | GetTreeClassId | WalkDecisionTree
             | GetRoot | TraverseTreeTile | GetLeafValue

Indices are sums of loop variables and constants (``Affine``), or the iteration number
where an array has one slot per iteration (``Slot``). MIR does not specify the memory
layout of trees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from skforge.schedule.directives import GpuDim, Mark, Marked
from skforge.schedule.nest import Size, size_value

# ---------------------------------------------------------------- indices


@dataclass(frozen=True, slots=True)
class Affine:
    """A sum of loop variables, a constant, and multiples of run-time sizes."""

    terms: tuple[str, ...] = ()
    constant: int = 0
    sizes: tuple[tuple[Size, int], ...] = ()  # (size, times)

    def plus(self, other: Affine) -> Affine:
        return Affine(
            self.terms + other.terms,
            self.constant + other.constant,
            self.sizes + other.sizes,
        )


def multiple(size: Size, times: int) -> Affine:
    if times == 0:
        return Affine()
    if isinstance(size, int):
        return Affine(constant=size * times)
    return Affine(sizes=((size, times),))


@dataclass(frozen=True, slots=True)
class Slot:
    """The iteration number of a loop, ``(value - start) / step``, as an index."""

    value: Affine
    start: Size
    step: Size


@dataclass(frozen=True, slots=True)
class ModelTree:
    """The tree's number in the model, from its position in the walking order."""

    position: Affine


@dataclass(frozen=True, slots=True)
class Class:
    """The output a tree's scalar leaves add to, as bound by GetTreeClassId."""

    name: str


@dataclass(frozen=True, slots=True)
class Outputs:
    """All outputs at once, for vector leaves."""


Index: TypeAlias = Affine | Slot | ModelTree | Class | Outputs


@dataclass(frozen=True, slots=True)
class Bound:
    """``limit - minus``: an upper bound of a loop or range."""

    limit: Size
    minus: Affine = Affine()


@dataclass(frozen=True, slots=True)
class Range:
    """``[start, start + length)`` with length = min over ``bounds``, at least 0."""

    start: Affine
    bounds: tuple[Bound, ...]


# ---------------------------------------------------------------- arrays

Element: TypeAlias = Literal[
    "accumulator", "leaf_number", "contribution", "interaction", "pattern"
]


@dataclass(frozen=True, slots=True)
class NamedArray:
    """A multi-dimensional array; the result is a parameter, other arrays are scratch.

    ``dims`` holds the extents; None stands for the number of outputs.
    """

    name: str
    dims: tuple[Size | None, ...]
    element: Element = "accumulator"
    shared: bool = False  # in shared memory, if the target has it
    lanes: bool = False  # each slot in the registers of the thread that fills it

    @property
    def holds_sums(self) -> bool:
        return self.element != "leaf_number"

    @property
    def by_feature(self) -> int:
        """How many of the last dimensions count features; indices leave them out."""
        return {"contribution": 1, "interaction": 2}.get(self.element, 0)


RESULT = "result"


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

    The leaves of these trees lie ``min_depth .. max_depth`` hops below the roots. The
    first ``unroll`` hops (trees are padded for them) or ``peel`` hops (no leaf is
    shallower) have no leaf check. ``element`` selects the walk's result: the leaf's
    value, for ``apply`` its node number in the source model, or what each feature
    contributes.
    """

    trees: tuple[str, ...]
    rows: tuple[Affine, ...]
    min_depth: int
    max_depth: int
    unroll: int = 0
    peel: int = 0
    element: Element = "accumulator"
    using: str | None = None  # the predicates or codes of a block of rows
    block: bool = False  # the representation walks all rows of the block together

    @property
    def is_whole(self) -> bool:
        """Whether the representation emits the whole walk: no hops, no leaf."""
        return self.block or self.element == "contribution"


@dataclass(frozen=True, slots=True)
class GetRoot:
    trees: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TraverseTreeTile:
    """One hop of each walk: evaluate a tile on a row and move to the exit taken.

    ``checked`` walks may already stand on a leaf; they then stay there.
    """

    trees: tuple[str, ...]
    nodes: tuple[str, ...]
    rows: tuple[Affine, ...]
    checked: bool
    using: str | None = None  # the codes to compare instead of the rows' values


@dataclass(frozen=True, slots=True)
class GetLeafValue:
    """The value (scalar or vector) of each walk's leaf, or its number."""

    trees: tuple[str, ...]
    nodes: tuple[str, ...]
    element: Element = "accumulator"


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
    """Bind names to the results of an operation: one per walk, or a single one."""

    names: tuple[str, ...]
    op: Op


@dataclass(frozen=True, slots=True)
class WalkLoop:
    """``while any node is not a leaf: nodes = traverse(...)``, carrying the nodes.

    ``inits`` are the first nodes, and ``results`` the last ones.
    """

    results: tuple[str, ...]
    inits: tuple[str, ...]
    step: TraverseTreeTile


LoopKind: TypeAlias = Literal["serial", "parallel", "vector", "block"] | GpuDim


@dataclass(frozen=True, slots=True)
class Loop(Marked):
    """``for var = start to min(bounds) step step``.

    ``body`` runs ``group`` consecutive iterations together; ``var`` is the first of
    them. ``remainder`` runs the iterations that do not fill a group, one by one. A
    ``vector`` loop runs its group in SIMD lanes. A ``block`` loop runs all its
    iterations together, including iterations past a bound where they are harmless; a
    block of trees still adds their leaves in order. ``trip_count`` is given if it never
    varies. ``marks`` are the directives that no pass has carried out yet.
    """

    var: str
    root: Literal["batch", "tree"]
    start: Size
    step: Size
    bounds: tuple[Bound, ...]
    kind: LoopKind
    body: Body
    trip_count: int | None = None
    group: int = 1
    remainder: Body = ()
    marks: tuple[Mark, ...] = ()

    @property
    def in_order(self) -> bool:
        """Whether this is a block of trees: evaluated together, added in order."""
        return self.kind == "block" and self.root == "tree"

    @property
    def most_trips(self) -> int:
        """The most iterations, given a constant bound; 1 or more if they vary."""
        if self.trip_count is not None:
            return self.trip_count
        limit = min(b.limit for b in self.bounds if isinstance(b.limit, int))
        length = limit - size_value(self.start, 0)
        return max(1, -(-length // size_value(self.step, 0)))

    @property
    def on_grid(self) -> bool:
        return self.kind.startswith("grid.")

    @property
    def on_threads(self) -> bool:
        return self.kind.startswith("block.")


@dataclass(frozen=True, slots=True)
class DepthSwitch:
    """One body per class of tree depths: ``cases[class_of[position]]``.

    ``classes[k]`` is the (least, greatest) leaf depth that case k supports.
    """

    position: Affine
    classes: tuple[tuple[int, int], ...]
    class_of: tuple[int, ...]
    cases: tuple[Body, ...]


ReductionOrder: TypeAlias = Literal["ordered", "any"]


@dataclass(frozen=True, slots=True)
class Reduce:
    """Add ``value`` to ``target[indices]``, semantically atomic (Treebeard draft §4).

    ``ordered`` keeps the model's tree order bit for bit; ``any`` may add in any order.
    Legalisation sets ``atomic`` where iterations of a parallel loop share an element on
    purpose. The operator of all reductions is "+".
    """

    target: str
    indices: tuple[Index, ...]
    value: str
    order: ReductionOrder
    atomic: bool = False


@dataclass(frozen=True, slots=True)
class StoreLeaf:
    """``target[indices] = value``: one leaf per tree and row, for later use."""

    target: str
    indices: tuple[Index, ...]
    value: str


@dataclass(frozen=True, slots=True)
class ReduceDimension:
    """``target[prefix, k] += sum over i of source[i, k]``, for k in ``rows``.

    Treebeard draft, definition 4.2. The sum runs over i = 0, 1, … for every row and
    output, in that order if ``ordered``. With ``by_output`` the dimension is the
    model's trees, and each tree adds to its own output. ``source_rows`` is where the
    same rows start in ``source``. ``prefix`` selects slots of a target that is itself
    privatised; ``atomic`` adds are shared on purpose. ``by_warp`` sums slots that are
    lanes of a warp, without leaving registers. ``trees`` are the model's trees in the
    slots, if these hold a chunk of them.
    """

    target: str
    source: str
    extent: Size
    rows: Range
    source_rows: Affine
    vector_width: int | None = None
    by_output: bool = False
    ordered: bool = True
    prefix: tuple[Index, ...] = ()
    atomic: bool = False
    by_warp: bool = False
    trees: Range | None = None


@dataclass(frozen=True, slots=True)
class ReduceDimensionInplace:
    """``array[prefix, 0, k] = sum over i of array[prefix, i, k]``.

    Treebeard draft, definition 4.3. The other slots are cleared to 0, so that an
    enclosing serial loop can reuse them.
    """

    array: str
    prefix: tuple[Index, ...]
    extent: Size
    rows: Range
    vector_width: int | None = None


@dataclass(frozen=True, slots=True)
class AllocArray:
    """Scratch for the statements that follow in the same body, optionally zeroed."""

    array: NamedArray
    zero: bool


@dataclass(frozen=True, slots=True)
class Fill:
    """``target[rows, k] = base[k]``: the initial sums of these rows.

    With ``by_warp``, the threads that sum these rows by warp do it.
    """

    target: str
    rows: Range
    by_warp: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """``result[rows] = base + sums * scale``: converts fixed-point sums to floats."""

    source: str
    rows: Range
    source_rows: Affine


@dataclass(frozen=True, slots=True)
class StoreRows:
    """``result[rows] = source``: stores the finished sums of a block."""

    source: str
    rows: Range


@dataclass(frozen=True, slots=True)
class CacheTrees:
    """Cache the trees of one iteration: prefetch (CPU) or shared memory (GPU)."""

    trees: Range


@dataclass(frozen=True, slots=True)
class CacheRows:
    """Cache the rows of one iteration, or a share of the next iteration's rows.

    With ``share`` = (variable, step, trips), each of that many iterations of the inner
    loop prefetches its part, so that memory streams while trees are walked. ``layout``
    is the rows' layout in a GPU's shared memory, if the schedule specifies it.
    """

    rows: Range
    share: tuple[str, int, int] | None = None
    layout: str | None = None


@dataclass(frozen=True, slots=True)
class TakeRows:
    """Begin a block of rows whose predicates are evaluated tile by tile of trees.

    Or one row, which passes all trees at once without codes.
    """

    rows: Range


@dataclass(frozen=True, slots=True)
class EvaluatePredicates:
    """``name`` = every distinct predicate of the trees on a block of rows, as bits."""

    name: str
    trees: Range
    rows: Range


@dataclass(frozen=True, slots=True)
class QuantizeRows:
    """``name`` = the codes of a block of at most ``size`` rows, compared as integers.

    A walk that uses them reads the code in a predicate's column instead of the row's
    value.
    """

    name: str
    rows: Range
    size: int


#: Statements on sums.
Sums: TypeAlias = Reduce | ReduceDimension | ReduceDimensionInplace | Fill | Finish
#: Statements on the rows and trees of one iteration.
Prepare: TypeAlias = (
    CacheTrees | CacheRows | TakeRows | EvaluatePredicates | QuantizeRows
)
#: Statements without nested statements.
Simple: TypeAlias = Let | Sums | StoreLeaf | AllocArray | StoreRows | Prepare
Stmt: TypeAlias = Simple | WalkLoop | Loop | DepthSwitch
Body: TypeAlias = tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A prediction function over ``rows`` and ``result``.

    ``result`` is (rows, outputs) of accumulators, (rows, trees) of leaf numbers, or
    (rows, outputs, features + 1) of contributions, once more for interactions.
    """

    result: NamedArray
    n_trees: int
    body: Body
