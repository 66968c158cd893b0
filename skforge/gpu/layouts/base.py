"""The interface of representations on GPUs: blocks of rows that threads share.

Walks of single rows are the same on every machine (``compiler/layouts/base.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

from skforge.compiler.binning.rules import BlockRows, Model
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.nodes import Buffer, Scalar, Value
from skforge.compiler.layouts.base import AnyLayout, get


@dataclass(frozen=True, slots=True)
class BlockShape:
    """The work of one GPU block: its rows, its threads, and the trees of one table."""

    rows: int
    threads: int
    trees: int


@dataclass(frozen=True, slots=True)
class BlockThreads:
    """The threads of a GPU block, which run a layout's code together.

    ``region`` opens a body that runs in every thread, yields the thread's number, and
    ends with a barrier. ``share`` allocates shared memory: a name, an element type, a
    count, and a purpose for error messages.
    """

    rows: BlockRows
    result: Buffer
    model: Model
    region: Callable[[], AbstractContextManager[Value]]
    share: Callable[[str, Scalar, int, str], Buffer]


class GpuBlockCode(ABC):
    """Emits the code for one block of rows that a GPU block evaluates together.

    For each tile of trees with its own table, :meth:`evaluate` is called and then
    :meth:`add_trees`; :meth:`finish` comes last. ``first`` is the position of a tile's
    first tree.
    """

    @abstractmethod
    def evaluate(self, first: Value) -> None:
        """Evaluate every distinct predicate of a tile of trees on the block's rows."""

    @abstractmethod
    def add_trees(self, first: Value) -> None:
        """Add the leaves that the rows reach in a tile's trees."""

    @abstractmethod
    def finish(self) -> None:
        """Write the sums of the rows that exist in the batch to the result."""


class GpuBlockLayout(AnyLayout):
    """A forest laid out for blocks of rows that a GPU block evaluates together."""

    @abstractmethod
    def start(self, block: BlockThreads) -> GpuBlockCode:
        """Set the sums of the block's rows to the base; return the block's code."""


class GpuBlockRepresentation(NamedTuple):
    """Passes blocks of rows through trees; all threads of a GPU block work together."""

    #: Returns why blocks of a shape cannot be laid out; empty if they can.
    refusal: Callable[[BlockShape], str]
    #: Builds the layout for blocks of a shape, which have some bytes of shared memory.
    lay_out: Callable[[PredictEnsemble, BlockShape, int], GpuBlockLayout]


#: By the name of the representation that walks rows, or does the same on CPUs.
GPU_BLOCKS: dict[str, GpuBlockRepresentation] = {}


def blocks_of(hir: PredictEnsemble) -> GpuBlockRepresentation:
    chosen = get(hir.nest.representation)
    if chosen.name not in GPU_BLOCKS:
        chosen.refuse_other()
    return GPU_BLOCKS[chosen.name]
