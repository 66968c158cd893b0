"""Sizes of a forest: estimates, default schedules and searches read them here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skforge._compat import cached_property
from skforge._typing import Int32s
from skforge.compiler.layouts.base import BlockRepresentation
from skforge.compiler.layouts.bitsliced.predicate_table import refusal
from skforge.compiler.layouts.bitsliced.sliced_layout import fits_bits, size_in_bytes
from skforge.compiler.passes.hir import normalize_predicates
from skforge.compiler.target import Target
from skforge.forest.bins import column_count
from skforge.forest.forest import Forest

#: Deeper trees are walked with leaf checks, because each unrolled hop costs code.
UNROLL_LIMIT = 10


class ForestShape:
    """The sizes of a forest that decide its schedules and the times of these.

    What takes a pass over the forest is computed when it is first read.

    Parameters
    ----------
    forest : Forest
        The forest.

    Attributes
    ----------
    n_trees, n_features, n_outputs, n_predicates, n_leaves : int
        Numbers of trees, columns of a row, scores, distinct predicates and leaves.
    row_bytes, value_bytes : int
        Bytes of a row in the forest's input dtype, and of one of its values.
    leaf_bytes, sum_bytes : int
        Bytes of a leaf, and of one of its values.
    node_bytes : int
        Approximate bytes of all nodes in the sparse representation.
    min_depth, max_depth : int
        Depths of the shallowest and the deepest leaf.
    padded_nodes : float
        Nodes after padding to ``max_depth``, divided by nodes now.
    heap_nodes : float
        Nodes of complete trees of ``max_depth``, divided by nodes now.
    """

    def __init__(self, forest: Forest) -> None:
        self.forest = forest
        self.n_trees, self.n_features = forest.n_trees, forest.n_features
        self.n_outputs, self.n_leaves = forest.n_outputs, forest.n_leaves
        self.n_predicates = forest.n_predicates
        self.value_bytes = forest.input_dtype.itemsize
        self.sum_bytes: int = forest.accumulator_dtype.itemsize
        self.leaf_bytes: int = self.sum_bytes * forest.leaf_value.shape[1]
        self.row_bytes = forest.n_features * self.value_bytes
        self.node_bytes = forest.n_nodes * 2 * self.value_bytes
        low, high = forest.leaf_depths()
        self.min_depth = int(low.min()) if len(low) else 0
        self.max_depth = int(high.max(initial=0))
        #: Mean depth of each tree's deepest leaf.
        self.tree_depth = float(high.mean()) if len(high) else 0.0

    @classmethod
    def of(cls, forest: Forest | ForestShape) -> ForestShape:
        return forest if isinstance(forest, ForestShape) else cls(forest)

    @cached_property
    def _leaf_depths(self) -> Int32s:
        return self.forest.node_depths()[self.forest.leaf >= 0]

    @cached_property
    def padded_nodes(self) -> float:
        """How much the forest grows if every leaf is padded to ``max_depth``."""
        if self.max_depth > UNROLL_LIMIT:
            return float("inf")
        missing = float(np.sum(self.max_depth - self._leaf_depths))
        return 1.0 + 2.0 * missing / max(1, self.forest.n_nodes)

    @property
    def heap_nodes(self) -> float:
        """How much the forest grows if its trees are complete."""
        whole = self.n_trees * 2.0 ** (self.max_depth + 1)
        return whole / max(1, self.forest.n_nodes)

    @property
    def inner_nodes(self) -> int:
        """Number of nodes that are no leaves."""
        return self.forest.n_nodes - len(self._leaf_depths)

    @property
    def leaves_per_tree(self) -> float:
        """Mean number of leaves of a tree."""
        return len(self._leaf_depths) / max(1, self.n_trees)

    @cached_property
    def leaf_depth(self) -> float:
        """Mean depth of the leaves."""
        return float(self._leaf_depths.mean()) if len(self._leaf_depths) else 0.0

    @cached_property
    def normal(self) -> Forest:
        """The forest with one kind of comparison, as it is lowered."""
        return normalize_predicates.run(self.forest)[0]

    @cached_property
    def n_columns(self) -> int:
        """Columns of bin codes, of the lowered forest."""
        return column_count(self.normal, merge=True) if self.n_predicates else 0

    @cached_property
    def allows_bits(self) -> bool:
        """Whether trees are small enough to be evaluated whole, as bits."""
        forest, limit = self.forest, BlockRepresentation.byte_limit
        fits = self.n_predicates > 0 and fits_bits(forest)
        return fits and size_in_bytes(forest) <= limit and refusal(forest) is None


@dataclass(frozen=True, slots=True)
class Setting:
    """The conditions shared by all compared schedules."""

    forest: ForestShape  # of a CPU, ForestCounts
    target: Target
    n_rows: int
