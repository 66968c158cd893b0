"""Interfaces of representations: how trees lie in memory and how walks read them.

A representation is a plugin (SilvanForge §6, Treebeard): the code generator calls only
the methods below, so a third party can register one without touching the core. It lays
a forest out once; the layout it returns emits the LIR that reads it. There is one
interface for each way that rows go through the trees:

* :class:`WalkRepresentation`: each row walks each tree, one hop at a time
  (:class:`HopLayout`), or by code that the layout emits whole (:class:`WalkLayout`).
  The code works on one row or on a vector of rows: ``node`` and ``tree`` are scalars or
  vectors with one lane a row.
* :class:`BlockRepresentation`: a block of rows passes tree after tree, on CPUs.
* :class:`RowRepresentation`: one row passes all trees at once, on CPUs.

A plugin can import what it needs from this module: these classes, :func:`node_tests`
for the contents of buffers, the LIR types, and the :class:`Builder` that emits LIR.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.binning.rules import (
    AnyArray,
    BlockRows,
    Model,
    ReadingRules,
    RowAt,
)
from skforge.compiler.ir.hir.nodes import PredictEnsemble, TiledForest
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import Buffer, Scalar, Value, Vec
from skforge.compiler.ir.lir.types import F32, F64, I32, I64, U8, U16, U32, scalar_of
from skforge.compiler.ir.mir.nodes import Element
from skforge.compiler.layouts.encoding import NodeTests, node_tests
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError
from skforge.forest.bins import CodeTable, code_dtype, plan_codes
from skforge.forest.forest import Forest
from skforge.schedule.bound import BoundNest, marked
from skforge.schedule.directives import CachePredicates, Quantize


@dataclass(frozen=True, slots=True)
class Cursor:
    """The tile a walk is at, with the words already read from it."""

    tree: Value
    node: Value
    words: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BufferData:
    """A declared buffer and the array that the kernel reads."""

    buffer: Buffer
    data: AnyArray

    def __post_init__(self) -> None:
        if scalar_of(self.data.dtype) != self.buffer.element:
            raise TypeError(
                f"buffer {self.buffer.name} holds {self.data.dtype}, "
                f"declared {self.buffer.element.name}"
            )


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """A GPU block's shared memory while its threads are filling it.

    ``allocate`` takes a name, an element type, a count, and a purpose for error
    messages. ``each`` opens the body that threads run for the indices 0 … count - 1,
    distributed over them.
    """

    b: Builder
    allocate: Callable[[str, Scalar, int, str], Buffer]
    each: Callable[[Value], AbstractContextManager[Value]]

    def copy(self, name: str, source: Buffer, lo: Value, n: Value, most: int) -> Buffer:
        target = self.allocate(name, source.element, most, "cache of trees")
        with self.each(n) as i:
            target[i] = source[lo + i]
        return target


class AnyLayout(ABC):  # noqa: B024 - each kind of layout has its own methods
    """A forest laid out."""


class TreeLayout(AnyLayout):
    """A forest laid out for walks of single rows."""

    @abstractmethod
    def buffers(self) -> tuple[BufferData, ...]:
        """Return every buffer the code reads, filled."""

    @abstractmethod
    def root(self, b: Builder, tree: Value) -> Value:
        """Return the root node of the tree at a position (scalar or vector)."""

    @abstractmethod
    def leaf_item(self, b: Builder, tree: Value, node: Value) -> Value:
        """Return the index into :attr:`leaf_row` of the leaf where a walk ended."""

    @abstractmethod
    def item_of(self) -> NDArray[np.integer[Any]]:
        """Return the ``leaf_item`` number of each HIR item (-1 if it is not stored)."""

    @property
    @abstractmethod
    def n_items(self) -> int:
        """One more than the largest ``leaf_item`` number."""

    @abstractmethod
    def cache_trees(self, b: Builder, first: Value, count: Value) -> None:
        """Prefetch the trees at positions ``first .. first + count``."""

    def share_trees(
        self, memory: SharedMemory, first: Value, count: Value, most: int
    ) -> TreeLayout:
        """Copy up to ``most`` trees to shared memory; return a layout of these."""
        raise ScheduleError(
            "cache on a loop over trees needs a representation that can be stored in "
            'shared memory, such as "array", "sparse" or "reorg".'
        )


class HopLayout(TreeLayout):
    #: Whether a hop from a leaf stays on it, so that checked walks need no select.
    leaves_stay: bool = False
    #: Whether a leaf is known by its number and has no words to read.
    leaves_by_number: bool = False

    @abstractmethod
    def open(self, b: Builder, tree: Value, node: Value) -> Cursor:
        """Read the words of a tile, which the other methods decode."""

    @abstractmethod
    def load_threshold(self, b: Builder, cursor: Cursor) -> Value:
        """Return the tile's thresholds (a vector for tiles of several nodes)."""

    @abstractmethod
    def load_feature_index(self, b: Builder, cursor: Cursor) -> Value:
        """Return the tile's feature indices, as non-negative integers."""

    @abstractmethod
    def load_flag(self, b: Builder, cursor: Cursor, flag: str) -> Value:
        """Return a per-node flag, one of ``NodeTests.flags``."""

    @abstractmethod
    def load_tile_shape(self, b: Builder, cursor: Cursor) -> Value:
        """Return the tile's row in the exit table (only for tiles of several nodes)."""

    @abstractmethod
    def move_to_child(self, b: Builder, cursor: Cursor, exit_: Value) -> Value:
        """Return the node behind an exit; ``exit_`` has the type of nodes."""

    @abstractmethod
    def is_leaf(self, b: Builder, cursor: Cursor) -> Value: ...

    def readable(self, b: Builder, node: Value) -> Value:
        """Return the node, or any tile in place of a leaf that has no words."""
        return node


class WalkLayout(TreeLayout):
    """A forest whose layout emits the whole walk, root to leaf."""

    @abstractmethod
    def walk(self, b: Builder, tree: Value, read: Callable[[Value], Value]) -> Value:
        """Return the node that ``leaf_item`` takes; ``read`` returns a column's code.

        Single-leaf trees are not walked: their leaf is the ``root``.
        """


class BlockCode(ABC):
    """Emits the code for one block of rows and one forest.

    :meth:`start` is called first, :meth:`add_tree` once for each tree, :meth:`finish`
    last. If the representation takes tiles of trees, :meth:`take_trees` comes before
    the trees of a tile.
    """

    def writes_to(self, result: Buffer) -> None:  # noqa: B027 - most need not know
        """Tell where :meth:`finish` will write; called before :meth:`start`."""

    @abstractmethod
    def start(self, sums: Buffer) -> None:
        """Set the block's sums, (rows, outputs) in any order, to the base."""

    def take_trees(self, first: Value) -> None:
        """Evaluate the predicates of the tile of trees that begins at a position."""
        raise NotImplementedError

    @abstractmethod
    def add_tree(self, tree: Value, sums: Buffer) -> None:
        """Add the leaf each row reaches in the tree at a position."""

    @abstractmethod
    def finish(self, sums: Buffer, result: Buffer, first: Value, count: Value) -> None:
        """Write the sums of the block's first ``count`` rows to the result."""


class BlockLayout(AnyLayout):
    """A forest laid out for whole blocks of rows instead of single walks."""

    @abstractmethod
    def evaluate(self, b: Builder, rows: BlockRows, model: Model) -> BlockCode:
        """Evaluate the predicates of all trees on a block; return the block's code."""


class RowCode(ABC):
    """Emits the code for one row that passes all trees at once."""

    @abstractmethod
    def add_trees(self, sums: Buffer, first: Value) -> None:
        """Add every tree's leaf, in model order, to the sums from ``first`` on."""

    def evaluate(self, row: RowAt, number: Value) -> None:
        raise NotImplementedError

    def evaluated(self) -> None:
        """Emit what follows the evaluation of the last row."""
        raise NotImplementedError

    def add_together(self, *sums: tuple[Value, Buffer, Value]) -> None:
        raise NotImplementedError


class RowLayout(AnyLayout):
    """A forest laid out for one row at a time, one tree a vector lane."""

    #: How many rows are evaluated together, and how many have their leaves added so.
    together = added = 1

    def start(self, b: Builder, model: Model) -> RowCode:
        """Return the code of so many rows, which :meth:`RowCode.evaluate` takes."""
        raise NotImplementedError

    @abstractmethod
    def quantize(self, b: Builder, row: RowAt, model: Model) -> RowCode:
        """Compute the codes of a row, if it has any; return the row's code."""


#: Makes the code of a block of rows.
MakeCode: TypeAlias = Callable[[ReadingRules, BlockRows], BlockCode]


@dataclass(frozen=True, slots=True)
class CodeLayout(BlockLayout):
    """One forest, and what makes the code of a block of rows."""

    hir: PredictEnsemble
    make: MakeCode

    def evaluate(self, b: Builder, rows: BlockRows, model: Model) -> BlockCode:
        rules = ReadingRules(self.hir.forest, self.hir.comparison, model)
        return self.make(rules, rows)


_Interface = TypeVar("_Interface", bound="Representation")


class Representation(ABC):
    """A way to lay trees out, named in ``Schedule.represent``.

    It implements one or more of the interfaces below. A layout does not change after it
    is built, so several kernels can share it.
    """

    name: str
    #: :meth:`check` raises for a forest whose buffers take more bytes than this.
    byte_limit: int = 1 << 32
    #: Whether it builds the tiles of ``tile_nodes(size, "complete")`` itself.
    has_complete_tiles: bool = False
    #: Whether a GPU's threads take a row each through all trees, by code of its own.
    takes_rows_by_thread: bool = False
    #: What functions of this representation return for a row.
    elements: tuple[Element, ...] = ("accumulator", "leaf_number")

    @classmethod
    def of(cls: type[_Interface], hir: PredictEnsemble) -> _Interface:
        """Return a forest's representation as this class, or raise ScheduleError."""
        chosen = get(hir.nest.representation)
        if isinstance(chosen, cls):
            return chosen
        if hir.nest.on_grid:
            chosen.refuse(
                "is for CPUs, but this schedule is for a GPU; use "
                'represent("sparse"), "array" or "reorg".'
            )
        if issubclass(cls, RowRepresentation):
            chosen.refuse(
                'does not put trees in lanes; use represent("lanes") where a loop over '
                "trees is vectorised."
            )
        chosen.refuse_other()

    def refuse(self, why: str) -> NoReturn:
        raise ScheduleError(f'represent("{self.name}") {why}')

    def refuse_other(self) -> NoReturn:
        """Refuse loops that take rows through trees in another way."""
        if isinstance(self, BlockRepresentation):
            why = "evaluates blocks of rows; mark their loop with cache_predicates."
        elif isinstance(self, RowRepresentation):
            why = (
                "takes one row through all trees at once; quantize the loop over rows "
                "and vectorize the loop over trees in it."
            )
        else:
            why = (
                "walks single rows, so it does not work with cache_predicates; use "
                'represent("bitsliced").'
            )
        self.refuse(why)

    @abstractmethod
    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        """Return the size of the layout, without building it."""

    @staticmethod
    def plan_codes(forest: Forest) -> CodeTable:
        """Return the columns of codes for the rows of a normalised forest."""
        return plan_codes(forest, code_dtype(forest))

    def takes_blocks(self, nest: BoundNest) -> bool:
        """Whether the loops of a nest pass whole blocks of rows."""
        return marked(nest.loops, CachePredicates)

    def check_tiles(self, nest: BoundNest) -> None:
        if nest.tile_kind == "complete" and not self.has_complete_tiles:
            self.refuse(
                'does not support complete tiles; use represent("tiles"), or another '
                "kind of tile_nodes."
            )

    def check_single_nodes(self, hir: PredictEnsemble) -> None:
        if hir.reduction == "reproducible":
            self.refuse(
                'sums floats in model order; use reduction="exact" or another '
                "representation."
            )
        if hir.tiles.tile_size > 1:
            self.refuse("evaluates single nodes; leave out tile_nodes.")

    def check(self, hir: PredictEnsemble) -> None:
        size = self.size_in_bytes(hir)
        if size > self.byte_limit:
            self.refuse(
                f"would take {_mebibytes(size)} for this forest, more than its limit "
                f'of {_mebibytes(self.byte_limit)}; use represent("sparse").'
            )


class WalkRepresentation(Representation):
    """Walks single rows, tree by tree, on CPUs and GPUs."""

    @abstractmethod
    def lay_out(self, hir: PredictEnsemble) -> TreeLayout:
        """Build the layout for walks of single rows."""


class BlockRepresentation(Representation):
    """Passes blocks of rows through one tree after another, on CPUs."""

    #: A block may have fewer rows than scheduled, in any multiple of this; 0: never.
    row_group: int = 0
    #: Whether it compares row values that are not quantised.
    takes_values: bool = False
    #: Whether it evaluates the predicates of some trees at a time.
    takes_tree_tiles: bool = False

    def takes_blocks(self, nest: BoundNest) -> bool:
        """Whether rows are quantised, compared, or have their predicates evaluated."""
        if nest.on_grid:
            return False
        quantized = marked(nest.loops, Quantize)
        return self.takes_values or quantized or super().takes_blocks(nest)

    @abstractmethod
    def check_block(self, hir: PredictEnsemble, block: int) -> None:
        """Raise for block sizes that cannot be laid out, before building anything."""

    def refuse_block(self, block: int, sizes: str) -> NoReturn:
        self.refuse(f"takes blocks {sizes}; this schedule has blocks of {block}.")

    def check_groups(self, block: int, most: int) -> None:
        if block % self.row_group or block > most:
            sizes = f"is a multiple of {self.row_group} rows, at most {most}"
            self.refuse_block(block, f"whose size {sizes}")

    def lay_out_blocks(
        self, hir: PredictEnsemble, target: Target, block: int
    ) -> BlockLayout:
        """Build the layout for blocks of ``block`` rows."""
        return CodeLayout(hir, self.block_code(hir, target, block))

    def block_code(self, hir: PredictEnsemble, target: Target, block: int) -> MakeCode:
        """Return what makes the code of a block, if that is all of the layout."""
        raise NotImplementedError


class RowRepresentation(Representation):
    """Passes one row through all trees at once, on CPUs."""

    @abstractmethod
    def lay_out_rows(self, hir: PredictEnsemble, target: Target) -> RowLayout:
        """Build the layout for one row at a time."""


def _mebibytes(size: int) -> str:
    # A complete tree of 1100 levels has more bytes than a float can hold.
    return "over 2**60 bytes" if size > 1 << 60 else f"{size / 2**20:,.0f} MiB"


_REGISTRY: dict[str, Representation] = {}


def register(representation: Representation) -> None:
    _REGISTRY[representation.name] = representation


def names() -> tuple[str, ...]:
    """Return the names that a schedule for predictions may choose."""
    known = _REGISTRY.items()
    return tuple(sorted(n for n, chosen in known if "accumulator" in chosen.elements))


def get(name: str) -> Representation:
    if name not in _REGISTRY:
        known = ", ".join(names())
        raise ScheduleError(
            f'there is no representation "{name}"; the representations are {known}. If '
            "a package registers it, import that package first."
        )
    return _REGISTRY[name]


def node_scalar(tree: Value) -> Scalar:
    """Return the type of nodes: i64 in scalar walks (free on x86), i32 in vectors."""
    return I32 if tree.type.lanes else I64


__all__ = [
    "F32", "F64", "I32", "I64", "U8", "U16", "U32", "AnyArray", "AnyLayout",
    "BlockCode", "BlockLayout", "BlockRepresentation", "BlockRows", "Buffer",
    "BufferData", "Builder", "CodeTable", "Cursor", "Forest", "HopLayout", "Model",
    "NodeTests",
    "PredictEnsemble", "Representation", "RowAt", "RowCode", "RowLayout",
    "RowRepresentation", "Scalar", "Target", "TiledForest", "TreeLayout", "Value",
    "Vec", "WalkLayout", "WalkRepresentation", "get", "names", "node_scalar",
    "node_tests", "register", "scalar_of",
]  # fmt: skip
