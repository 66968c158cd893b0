"""LIR, the low-level IR: typed values, buffers, structured control, target-neutral.

This file, ``foreign`` and ``types`` define the level. Names are bound once; control is
structured; loop-carried values are explicit::

    function  = name(params) body
    param     = Value | Buffer
    body      = stmt*
    stmt      = Let value = op
              | Store | Scatter | AtomicAdd | Prefetch | Touch | StorePlane
              | Alloc buffer[size] | Window buffer = buffer[index]
              | For | While | If | Switch
              | ParallelFor
              | Grid | BlockRegion | Transfer buffer[shape]
              | View buffer = address
              | results = Call symbol(args) | results = Atomic buffer[index]
              | Return values
              | Named results = name(args): body
    op        = Const | Unary | Binary | MultiplyAdd | Compare | Select | Convert
              | Bitcast
              | Splat | Iota | Threads | Extract | Pack | Permute | Shuffle | Compress
              | MaskBits | AnyTrue
              | Load | Gather
              | PlaneMux | LoadPlane | PlanesToIndex | WarpReduce
              | Symbol | Address buffer[index]
    type      = Scalar | Vec | Mask | Plane

``Mask`` and ``Plane`` values are not stored in buffers as such: masks are SSA only, and
``StorePlane`` writes planes to a plane table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from skforge.compiler.ir.lir.foreign import *
from skforge.compiler.ir.lir.types import *

# ---------------------------------------------------------------- operations


@dataclass(frozen=True, slots=True)
class Const:
    """A constant; a vector or mask has it in every lane."""

    value: int | float | bool


UnaryOp: TypeAlias = Literal["not", "popcount", "zeros"]


@dataclass(frozen=True, slots=True)
class Unary:
    """``not`` (bool, mask, ints: bitwise), ``popcount`` or ``zeros`` of an integer.

    ``popcount`` counts the set bits, ``zeros`` those below the lowest set bit (all bits
    if none is set).
    """

    op: UnaryOp
    a: Operand


BinaryOp: TypeAlias = Literal[
    "add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shl", "shr"
]


@dataclass(frozen=True, slots=True)
class Binary:
    """Arithmetic on equal types.

    Integers wrap; ``div`` and ``rem`` truncate toward zero, the divisor is never zero
    and the quotient never overflows. ``shr`` is arithmetic on signed types; a shift
    count is 0 … bits - 1. Floats round to nearest even and are never contracted or
    reassociated. ``rem``, ``min``, ``max`` and shifts take integers; ``and``, ``or``
    and ``xor`` take integers, bools and masks.
    """

    op: BinaryOp
    a: Operand
    b: Operand


@dataclass(frozen=True, slots=True)
class MultiplyAdd:
    """``a * b + c`` of floats, rounded once; slow where ``Target.has_fma`` is false."""

    a: Operand
    b: Operand
    c: Operand


CompareOp: TypeAlias = Literal["lt", "le", "gt", "ge", "eq", "ne"]


@dataclass(frozen=True, slots=True)
class Compare:
    """Compare equal types to a bool, or vectors to a mask.

    On floats a NaN operand gives ``unordered`` (False: ordered compare, True:
    unordered). ``ne`` of a value with itself and ``unordered=True`` is "is NaN".
    """

    op: CompareOp
    a: Operand
    b: Operand
    unordered: bool = False


@dataclass(frozen=True, slots=True)
class Select:
    """``a`` where ``cond`` else ``b``; a bool selects whole vectors too."""

    cond: Operand
    a: Operand
    b: Operand


@dataclass(frozen=True, slots=True)
class Convert:
    """Convert to the result's type by value.

    Integers widen by their own signedness or wrap; floats to integers truncate toward
    zero (out of range and NaN give any value, never a trap); integers to floats and
    f64 to f32 round to nearest even; bool and mask become 0 or 1. The result is a
    number or a vector of numbers; a bool comes from ``Compare``.
    """

    a: Operand


@dataclass(frozen=True, slots=True)
class Bitcast:
    """The operand's bits as the result's type (same total width).

    An integer also becomes a mask of as many lanes as it has bits: bit i is lane i.
    """

    a: Operand


@dataclass(frozen=True, slots=True)
class Splat:
    """A scalar in every lane of the result's type (bool: of a mask)."""

    a: Operand


@dataclass(frozen=True, slots=True)
class Iota:
    """0, 1, 2, … in the lanes of the result's type."""


@dataclass(frozen=True, slots=True)
class Threads:
    """How many threads a parallel loop here may use: at least 1, as i64."""


@dataclass(frozen=True, slots=True)
class Extract:
    """Lane ``lane`` of a vector or mask."""

    a: Operand
    lane: int


@dataclass(frozen=True, slots=True)
class Pack:
    """A vector of the given scalars, lane by lane."""

    parts: Operands


@dataclass(frozen=True, slots=True)
class Permute:
    """Lane i is element ``index[i]`` of the concatenated ``tables``, modulo their size.

    The number of tables is a power of two, and their elements are the result's. The
    index has unsigned or i64 integers of the same width, and as many lanes as the
    result: at most as many as a table, or more if there is a single table. This is fast
    where registers are permuted, and correct everywhere. Where bytes are shuffled,
    indices that are known to be ``within`` the tables are faster.
    """

    tables: Operands
    index: Operand
    within: bool = False


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Lane i is lane ``lanes[i]`` of ``a`` and ``b`` concatenated; lanes are static."""

    a: Operand
    b: Operand
    lanes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Compress:
    """The lanes of ``a`` that the mask selects, in order, then unspecified values."""

    a: Operand
    mask: Operand


@dataclass(frozen=True, slots=True)
class MaskBits:
    """A mask as an integer of the result's type: bit i is lane i, the rest zero."""

    a: Operand


@dataclass(frozen=True, slots=True)
class AnyTrue:
    """Whether any lane of a mask is true (bool)."""

    a: Operand


@dataclass(frozen=True, slots=True)
class Load:
    """A value of the result's type at element ``index`` (i32 or i64) of a buffer.

    The result may be a vector (consecutive elements) or another scalar of any width:
    the index counts buffer elements, and the bytes are reinterpreted.
    """

    buffer: Read
    index: Operand


@dataclass(frozen=True, slots=True)
class Gather:
    """Lane-wise ``Load`` at a vector of indices; masked-off lanes give ``other``.

    With ``mask`` None, every lane is loaded; a masked-off lane never touches memory.
    ``other`` has the result's type and is given exactly when ``mask`` is.
    """

    buffer: Read
    index: Operand
    mask: OptionalOperand = None
    other: OptionalOperand = None


# planes: bit-sliced kernels


@dataclass(frozen=True, slots=True)
class PlaneMux:
    """Per row, the bit of ``a`` where ``select`` is set, else that of ``b``."""

    select: Operand
    a: Operand
    b: Operand


@dataclass(frozen=True, slots=True)
class LoadPlane:
    """Plane number ``index`` of a table written by ``StorePlane``.

    Of a table of i64, it is the plane that begins with this word.
    """

    table: Read
    index: Operand


@dataclass(frozen=True, slots=True)
class PlanesToIndex:
    """Per row, the number whose bits are ``planes``, most significant first."""

    planes: Operands


@dataclass(frozen=True, slots=True)
class WarpReduce:
    """Sum over the threads of a warp, returned to each; only in a BlockRegion.

    A warp is ``width`` (a power of two) threads with consecutive numbers
    x + X (y + Y z), which all reach the statement together. The sum is a butterfly:
    each thread adds the value of thread ^ offset, for offsets width / 2, …, 2, 1.
    """

    a: Operand
    width: int


Arithmetic: TypeAlias = Unary | Binary | MultiplyAdd | Compare | Select | Convert
LaneOp: TypeAlias = Splat | Iota | Extract | Pack | Permute | Shuffle | Compress
MaskOp: TypeAlias = MaskBits | AnyTrue
PlaneOp: TypeAlias = PlaneMux | LoadPlane | PlanesToIndex
OtherOp: TypeAlias = Const | Bitcast | Threads | Load | Gather | WarpReduce
Op: TypeAlias = Arithmetic | LaneOp | MaskOp | PlaneOp | OtherOp | Symbol | Address

# ---------------------------------------------------------------- statements


@dataclass(frozen=True, slots=True)
class Let:
    """Bind ``value`` to the result of ``op``."""

    value: Result
    op: Op


@dataclass(frozen=True, slots=True)
class Store:
    """Write a scalar or vector at element ``index``; a u8 buffer takes any bytes."""

    buffer: Written
    index: Operand
    value: Operand


@dataclass(frozen=True, slots=True)
class Scatter:
    """Lane-wise ``Store`` at a vector of distinct indices."""

    buffer: Written
    index: Operand
    value: Operand


@dataclass(frozen=True, slots=True)
class AtomicAdd:
    """Add to an element, atomically among parallel iterations (relaxed)."""

    buffer: Written
    index: Operand
    value: Operand


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Hint that element ``index`` will be read soon; any address is allowed.

    It comes to the caches of a CPU from ``level`` on.
    """

    buffer: Read
    index: Operand
    level: Literal[1, 2] = 1


@dataclass(frozen=True, slots=True)
class Touch:
    """Read element ``index`` for its cache line alone; no value results."""

    buffer: Read
    index: Operand


@dataclass(frozen=True, slots=True)
class StorePlane:
    """Write plane number ``index`` of a table, or the one of a word: ``LoadPlane``."""

    table: Written
    index: Operand
    value: Operand


@dataclass(frozen=True, slots=True)
class Alloc:
    """Uninitialised scratch of ``size`` elements, freed at the end of the body."""

    buffer: Allocated
    size: Operand


@dataclass(frozen=True, slots=True)
class Window:
    """Bind a buffer to the memory of another one, from element ``index`` on.

    A view of an address that was made of the other buffer's would do the same, but LLVM
    may lose what such an address points to.
    """

    buffer: Allocated
    base: Read
    index: Operand


@dataclass(frozen=True, slots=True)
class For:
    """``for var in lo to hi step step`` (step > 0), carrying ``inits`` through.

    ``params`` name the carried values inside, ``yields`` are their next values and
    ``results`` their final values.
    """

    var: Variable
    lo: Steering
    hi: Steering
    step: Steering
    body: Body
    inits: Operands = ()
    params: Variables = ()
    yields: Operands = ()
    results: Results = ()


@dataclass(frozen=True, slots=True)
class While:
    """``while (before; cond) body``; ``results`` are ``params`` when cond is false.

    The body sees the values that ``before`` binds.
    """

    inits: Operands
    params: Variables
    before: Body
    cond: Steering
    body: Body
    yields: Operands
    results: Results


@dataclass(frozen=True, slots=True)
class If:
    """Structured branch; both sides yield one value for each result."""

    cond: Steering
    then: Body
    orelse: Body = ()
    then_yields: Operands = ()
    else_yields: Operands = ()
    results: Results = ()


@dataclass(frozen=True, slots=True)
class Switch:
    """Run case number ``selector``; the last case handles every other number."""

    selector: Steering
    cases: Bodies
    yields: OperandRows = ()
    results: Results = ()


@dataclass(frozen=True, slots=True)
class ParallelFor:
    """Iterations 0 … count in any order, possibly concurrent; no carried values."""

    var: Variable
    count: Steering
    body: Body


GridDim: TypeAlias = Literal[
    "grid.x", "grid.y", "grid.z", "block.x", "block.y", "block.z"
]

#: Dimensions, each with its variable and its count.
Dims: TypeAlias = Annotated[tuple[tuple[GridDim, Value, Value], ...], "dims"]


@dataclass(frozen=True, slots=True)
class Grid:
    """A kernel launch: runs ``body`` once per block; blocks are independent.

    Outside its regions a grid computes, loads and allocates but never writes, because
    every thread would.
    """

    dims: Dims
    body: Body


@dataclass(frozen=True, slots=True)
class BlockRegion:
    """Runs ``body`` once per thread of the block, followed by a barrier.

    Control flow around a region is uniform over the block, which rules out divergent
    barriers. Values pass between regions through shared or private buffers. A private
    buffer allocated in the grid outside its regions exists once per thread and is used
    only in regions. All regions of a grid have the same dimensions.
    """

    dims: Dims
    body: Body


TransferKind: TypeAlias = Literal["upload", "copy_in", "copy_out"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Copy a parameter between host and device, outside launches (SilvanForge §4).

    ``upload`` brings an array of the model to a device, whole and only once.
    ``copy_in`` brings the rows and ``copy_out`` returns the results; these two are left
    out if the caller's arrays are on the device.
    """

    kind: TransferKind
    buffer: Read
    shape: Operands = ()  # of what is copied; () for all


@dataclass(frozen=True, slots=True)
class Named:
    """``results = name(args)``: an operation on trees, with the code that does it.

    Lowering makes them, such as ``load_threshold`` and ``is_leaf``, so that LIR reads
    like SilvanForge's (Table 4). A representation has emitted ``body``. Later
    statements may use what it binds; ``results`` are other names of ``values``.
    ``simplify`` replaces the operation by its body.
    """

    name: str
    args: Operands
    body: Body
    values: Operands
    results: Results


#: Statements on memory: all except Prefetch and Touch write their first buffer.
Access: TypeAlias = Store | Scatter | AtomicAdd | Prefetch | Touch | StorePlane
Control: TypeAlias = For | While | If | Switch | ParallelFor | Grid | BlockRegion
#: Only routines have them.
Foreign: TypeAlias = View | Call | Atomic | Return
Stmt: TypeAlias = Let | Access | Alloc | Window | Control | Transfer | Foreign | Named

Body: TypeAlias = Annotated[tuple[Stmt, ...], "body"]
Bodies: TypeAlias = Annotated[tuple[Body, ...], "bodies"]


@dataclass(frozen=True, slots=True)
class Function:
    """One kernel: takes scalars and buffers, and writes its results to buffers."""

    name: str
    params: tuple[Value | Buffer, ...]
    body: Body


@dataclass(frozen=True, slots=True)
class Routine(Function):
    """A C function: its parameters are arguments, buffers as their addresses.

    It ends with a ``Return`` if it has a result; ``local`` hides its name.
    """

    result: Scalar | None = None
    local: bool = False
