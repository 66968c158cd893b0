"""What a representation is: how trees lie in memory and how a walk reads them.

A representation is a plugin (SilvanForge §6, Treebeard): the code generator only ever
calls the methods below, so a third party can register one without touching the core.
:class:`Representation` lays a forest out once; the :class:`Layout` it returns holds the
filled buffers and writes the LIR that reads them. All its code works on one row or on
a vector of rows alike: ``node`` and ``tree`` are scalars or vectors of the same lanes.

What a plugin needs can be imported from here: the two classes, :func:`node_tests` for
what the buffers must hold, the types of LIR and the :class:`Builder` that writes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.binning.rows import AnyArray, BlockRows, Model, RowAt
from skforge.compiler.ir.hir.nodes import PredictEnsemble, TiledForest
from skforge.compiler.ir.lir.builder import Builder
from skforge.compiler.ir.lir.nodes import (
    F32,
    F64,
    I32,
    I64,
    U8,
    U16,
    U32,
    Buffer,
    Scalar,
    Value,
    Vec,
)
from skforge.compiler.ir.lir.numpy_types import scalar_of
from skforge.compiler.layouts.nodes.encoding import NodeTests, node_tests
from skforge.compiler.target import Target
from skforge.exceptions import ScheduleError


@dataclass(frozen=True, slots=True)
class Cursor:
    """A tile a walk stands on, with the words already read from it."""

    tree: Value
    node: Value
    words: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BufferData:
    """A declared buffer and its contents; the array is what the kernel reads."""

    buffer: Buffer
    data: AnyArray

    def __post_init__(self) -> None:
        """Check that what was declared is what was filled."""
        if scalar_of(self.data.dtype) != self.buffer.element:
            raise TypeError(
                f"buffer {self.buffer.name} holds {self.data.dtype}, "
                f"declared {self.buffer.element.name}"
            )


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """A GPU block's shared memory, while all its threads are filling it.

    ``allocate`` takes a name, an element type, how many, and what for; ``each`` deals
    a body for 0 … count out to the threads.
    """

    b: Builder
    allocate: Callable[[str, Scalar, int, str], Buffer]
    each: Callable[[Value, Callable[[Value], None]], None]

    def copy(self, name: str, source: Buffer, lo: Value, n: Value, most: int) -> Buffer:
        """Return shared memory that holds elements ``lo … lo + n`` of a buffer."""
        b = self.b
        what = "cache of trees"
        target = self.allocate(name, source.element, most, what)

        def one(i: Value) -> None:
            b.store(target, i, b.load(source, b.binary("add", lo, i)))

        self.each(n, one)
        return target


class TreeLayout(ABC):
    """A forest in memory, where walks of single rows find their leaves."""

    @abstractmethod
    def buffers(self) -> tuple[BufferData, ...]:
        """Return every buffer the code reads, filled."""

    @abstractmethod
    def root(self, b: Builder, tree: Value) -> Value:
        """Return the root node of the tree at a position (scalar or vector)."""

    @abstractmethod
    def leaf_item(self, b: Builder, tree: Value, node: Value) -> Value:
        """Return the index into :attr:`leaf_row` of the leaf a finished walk is on."""

    @abstractmethod
    def item_of(self) -> NDArray[np.int64]:
        """Return, for each HIR item, its ``leaf_item`` number (-1: not stored)."""

    @property
    @abstractmethod
    def n_items(self) -> int:
        """One more than the greatest ``leaf_item`` number."""

    @abstractmethod
    def cache_trees(self, b: Builder, first: Value, count: Value) -> None:
        """Prefetch the trees at positions ``first .. first + count``."""

    def share_trees(
        self, memory: SharedMemory, first: Value, count: Value, most: int
    ) -> TreeLayout:
        """Bring trees to a GPU block's shared memory; return the layout reading them.

        ``most`` is the greatest ``count``.
        """
        raise ScheduleError(
            "cache on a loop over trees needs a representation that can lie in shared "
            'memory, such as "array", "sparse" or "reorg".'
        )


class Layout(TreeLayout):
    """A forest that is walked hop by hop, and the code of a hop."""

    #: Whether a hop from a leaf stays on it, so that checked walks need no select.
    leaves_stay: bool = False
    #: Whether to read all of a node at once, which a GPU does in one transaction.
    whole_nodes: bool = False

    @abstractmethod
    def open(self, b: Builder, tree: Value, node: Value) -> Cursor:
        """Read the words of a tile that the other methods decode."""

    @abstractmethod
    def load_threshold(self, b: Builder, at: Cursor) -> Value:
        """Return the tile's thresholds (a vector for tiles of several nodes)."""

    @abstractmethod
    def load_feature_index(self, b: Builder, at: Cursor) -> Value:
        """Return the tile's feature numbers, as non-negative integers."""

    @abstractmethod
    def load_flag(self, b: Builder, at: Cursor, flag: str) -> Value:
        """Return a per-node flag of the tests, one of ``NodeTests.flags``."""

    @abstractmethod
    def load_tile_shape(self, b: Builder, at: Cursor) -> Value:
        """Return the tile's row of the exit table; tiles of several nodes only."""

    @abstractmethod
    def move_to_child(self, b: Builder, at: Cursor, exit_: Value) -> Value:
        """Return the node behind an exit, given as a number of the node's type."""

    @abstractmethod
    def is_leaf(self, b: Builder, at: Cursor) -> Value:
        """Return whether the cursor stands on a leaf."""


class WalkLayout(TreeLayout):
    """A forest whose walks are written whole, root to leaf."""

    @abstractmethod
    def walk(self, b: Builder, tree: Value, read: Callable[[Value], Value]) -> Value:
        """Return the node that ``leaf_item`` takes; ``read`` gives a column's code.

        Trees of a single leaf are not walked: their leaf is the ``root``.
        """


class BlockLayout(ABC):
    """A forest laid out for whole blocks of rows instead of single walks.

    The methods are called in this order for each block; :meth:`add_tree` once a tree.
    """

    #: Blocks may have fewer rows than scheduled, any multiple of this; 0: never fewer.
    row_group: int = 0
    #: Whether it compares the rows' values: it is given them, with no predicates.
    takes_rows: bool = False

    def buffers(self) -> tuple[BufferData, ...]:
        """Return nothing: buffers are declared through ``model``."""
        return ()

    @abstractmethod
    def evaluate(self, b: Builder, rows: BlockRows, model: Model) -> None:
        """Evaluate every distinct predicate on the rows of a block."""

    @abstractmethod
    def start(self, b: Builder, sums: Buffer) -> None:
        """Set the sums of the block, (rows, outputs) in any order, to the base."""

    @abstractmethod
    def add_tree(self, b: Builder, tree: Value, sums: Buffer) -> None:
        """Add the leaves the rows reach in the tree at a position."""

    @abstractmethod
    def finish(
        self, b: Builder, sums: Buffer, result: Buffer, first: Value, count: Value
    ) -> None:
        """Write the sums of the block's first ``count`` rows to the result."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What one block of a GPU's threads takes: rows, and trees for each table."""

    rows: int
    threads: int
    trees: int


@dataclass(frozen=True, slots=True)
class BlockThreads:
    """The threads of a GPU block, which write a layout's code together.

    ``region`` runs a body in every thread, which is given its number, and puts a
    barrier after it; ``share`` allocates shared memory: a name, an element type, how
    many, and what for.
    """

    b: Builder
    rows: BlockRows
    result: Buffer
    model: Model
    region: Callable[[Callable[[Value], None]], None]
    share: Callable[[str, Scalar, int, str], Buffer]


class GpuBlockLayout(ABC):
    """A forest laid out for blocks of rows that all threads of a GPU block take.

    For each block, :meth:`start` is called, then for each tile of trees that has a
    table of its own :meth:`evaluate` and :meth:`add_trees`, then :meth:`finish`.
    ``first`` is the position of a tile's first tree.
    """

    def buffers(self) -> tuple[BufferData, ...]:
        """Return nothing: buffers are declared through ``model``."""
        return ()

    @abstractmethod
    def start(self, block: BlockThreads) -> None:
        """Set the sums of the block's rows to the base."""

    @abstractmethod
    def evaluate(self, first: Value) -> None:
        """Evaluate every distinct predicate of a tile of trees on the block's rows."""

    @abstractmethod
    def add_trees(self, first: Value) -> None:
        """Add the leaves that the rows reach in the trees of a tile."""

    @abstractmethod
    def finish(self) -> None:
        """Write the sums of those rows that the batch has to the result."""


class RowLayout(ABC):
    """A forest laid out for one row at a time, its trees in the lanes of vectors.

    For each row, :meth:`quantize` and then :meth:`add_trees` are called.
    """

    def buffers(self) -> tuple[BufferData, ...]:
        """Return nothing: buffers are declared through ``model``."""
        return ()

    @abstractmethod
    def quantize(self, b: Builder, row: RowAt, model: Model) -> None:
        """Find the row's codes."""

    @abstractmethod
    def add_trees(self, b: Builder, sums: Buffer, at: Value, model: Model) -> None:
        """Add the leaf of every tree, in model order, to the sums from ``at`` on."""


class Representation(ABC):
    """A way to lay trees out, named in ``Schedule.represent``."""

    name: str
    #: Whether it lowers whole blocks (``lay_out_blocks``) or walks (``lay_out``).
    by_blocks: bool = False
    #: Whether its codes' columns hold tests of either rule for missing values.
    merges_missing: bool = False
    #: Whether it groups single nodes into ``tile_nodes(size, "complete")`` itself.
    by_complete_tiles: bool = False
    #: Whether it takes one row through all trees at once (``lay_out_rows``).
    by_rows: bool = False
    #: Whether blocks of rows are taken by their values where they are not quantised.
    by_values: bool = False
    #: Its blocks' ``BlockLayout.row_group``.
    row_group: int = 0
    #: Bytes of buffers above which :meth:`check` refuses a forest.
    byte_limit: int = 1 << 32

    @abstractmethod
    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        """Return what the layout would take, without building it."""

    #: Whether a code takes one byte, however many columns that makes.
    narrow_codes: bool = False

    def lay_out(self, hir: PredictEnsemble) -> TreeLayout:
        """Build the layout for single walks."""
        raise ScheduleError(
            f'represent("{self.name}") evaluates blocks of rows; mark their loop with '
            "cache_predicates."
        )

    def lay_out_blocks(
        self, hir: PredictEnsemble, target: Target, block: int
    ) -> BlockLayout:
        """Build the layout for blocks of ``block`` rows."""
        raise self._walks_rows()

    def lay_out_gpu_blocks(
        self, hir: PredictEnsemble, target: Target, shape: BlockShape
    ) -> GpuBlockLayout:
        """Build the layout for blocks of rows on a GPU."""
        raise self._walks_rows()

    def lay_out_rows(self, hir: PredictEnsemble, target: Target) -> RowLayout:
        """Build the layout for one row at a time."""
        raise self._walks_trees()

    def check_lanes(self, in_lanes: bool) -> None:
        """Refuse trees in lanes that are not laid out so, and the other way round."""
        if in_lanes and not self.by_rows:
            raise self._walks_trees()
        if self.by_rows and not in_lanes:
            raise ScheduleError(
                f'represent("{self.name}") takes one row through all trees at once; '
                "quantize the loop over rows and vectorize the loop over trees in it."
            )

    def _walks_trees(self) -> ScheduleError:
        return ScheduleError(
            f'represent("{self.name}") does not put trees in lanes; use '
            'represent("lanes") where a loop over trees is vectorised.'
        )

    def check_block(self, hir: PredictEnsemble, block: int) -> None:
        """Refuse blocks of rows that cannot be laid out, before building anything."""
        if not self.by_blocks:
            raise self._walks_rows()

    def check_gpu_block(self, hir: PredictEnsemble, shape: BlockShape) -> None:
        """Refuse blocks of a GPU that cannot be laid out, before building anything."""
        if not self.by_blocks:
            raise self._walks_rows()

    def _walks_rows(self) -> ScheduleError:
        return ScheduleError(
            f'represent("{self.name}") walks single rows, which cache_predicates does '
            'not; use represent("bitsliced").'
        )

    def check(self, hir: PredictEnsemble) -> None:
        """Refuse a forest this representation cannot hold, before building it."""
        size = self.size_in_bytes(hir)
        if size > self.byte_limit:
            raise ScheduleError(
                f'represent("{self.name}") would take {_mebibytes(size)} for this '
                f"forest, over its limit of {_mebibytes(self.byte_limit)}; "
                'use represent("sparse").'
            )


def _mebibytes(size: int) -> str:
    # Complete trees 1100 levels deep are more bytes than a float can count.
    return "over 2**60 bytes" if size > 1 << 60 else f"{size / 2**20:,.0f} MiB"


_REGISTRY: dict[str, Representation] = {}


def register(representation: Representation) -> None:
    """Make a representation known to ``Schedule.represent`` under its name."""
    _REGISTRY[representation.name] = representation


def names() -> tuple[str, ...]:
    """Return the names of all registered representations, sorted."""
    return tuple(sorted(_REGISTRY))


def get(name: str) -> Representation:
    """Return a registered representation.

    Raises
    ------
    ScheduleError
        If no representation has that name.
    """
    if name not in _REGISTRY:
        known = ", ".join(names())
        raise ScheduleError(f'there is no representation "{name}"; known are {known}.')
    return _REGISTRY[name]


def node_type(walk_lanes: int) -> Scalar:
    """Nodes are i64 in scalar walks (free on x86) and i32 in vector lanes."""
    return I32 if walk_lanes else I64


def node_scalar(tree: Value) -> Scalar:
    """Return the node type for walks over ``tree`` (scalar or vector)."""
    return node_type(tree.type.lanes)


__all__ = [
    "F32",
    "F64",
    "I32",
    "I64",
    "U8",
    "U16",
    "U32",
    "AnyArray",
    "Buffer",
    "BufferData",
    "Builder",
    "Cursor",
    "Layout",
    "NodeTests",
    "PredictEnsemble",
    "Representation",
    "Scalar",
    "TiledForest",
    "Value",
    "Vec",
    "get",
    "names",
    "node_scalar",
    "node_tests",
    "node_type",
    "register",
    "scalar_of",
]
