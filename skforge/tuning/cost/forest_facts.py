"""Facts about a forest and its setting, from which features and pruning start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.cost.estimate import CostEstimate
from skforge.compiler.defaults.cpu import allows_bits
from skforge.compiler.forest.bins import column_count
from skforge.compiler.forest.forest import Forest
from skforge.compiler.layouts.bitsliced.sliced_layout import folds
from skforge.compiler.layouts.lanes.lanes import lanes_cost
from skforge.compiler.layouts.tiles import tiled_values
from skforge.compiler.layouts.tiles.tile_layout import MAX_LEAVES
from skforge.compiler.layouts.tiles.tiles import MAX_COLUMNS, MAX_TREES
from skforge.compiler.passes.hir import normalize_predicates
from skforge.compiler.target import Target


@dataclass(frozen=True, slots=True)
class ForestFacts:
    """Sizes of a forest, and the kinds of traversal it allows on a target."""

    n_trees: int
    n_outputs: int
    row_bytes: int
    threshold_bytes: int
    leaf_value_bytes: int
    inner_nodes: int
    leaves_per_tree: float
    leaf_depth: float  # mean depth of the leaves
    tree_depth: float  # mean of the deepest leaf of each tree
    min_depth: int
    max_depth: int
    n_predicates: int
    n_columns: int  # columns of bin codes
    folded_trees: float  # share of trees folded completely in bit logic
    estimate: CostEstimate | None  # of the times on a CPU
    allows_bits: bool
    allows_lanes: bool
    allows_tiles: bool
    allows_value_tiles: bool
    allows_tile_rows: bool

    @classmethod
    def of(cls, forest: Forest, target: Target) -> ForestFacts:
        """Compute the facts of a forest."""
        low, high = forest.leaf_depths()
        at = forest.node_depths()[forest.leaf >= 0]
        n_trees = max(1, forest.n_trees)
        per_tree = np.diff(forest.tree_offset) // 2 + 1
        most = int(per_tree.max(initial=1))
        columns, values = 0, False
        if forest.n_predicates:
            normal, _ = normalize_predicates.run(forest)
            columns = column_count(normal, merge=True)
            values = tiled_values.refusal(normal) is None
        lanes = lanes_cost(forest, target) if forest.n_predicates else float("inf")
        permutes = forest.n_predicates > 0 and target.has("avx2") and most <= MAX_LEAVES
        folded = folds(forest)
        return cls(
            n_trees=forest.n_trees,
            n_outputs=forest.n_outputs,
            row_bytes=forest.n_features * forest.input_dtype.itemsize,
            threshold_bytes=forest.input_dtype.itemsize,
            leaf_value_bytes=forest.accumulator_dtype.itemsize
            * forest.leaf_value.shape[1],
            inner_nodes=forest.n_nodes - len(at),
            leaves_per_tree=len(at) / n_trees,
            leaf_depth=float(at.mean()) if len(at) else 0.0,
            tree_depth=float(high.mean()) if len(high) else 0.0,
            min_depth=int(low.min(initial=1 << 30)) if len(low) else 0,
            max_depth=int(high.max(initial=0)),
            n_predicates=forest.n_predicates,
            n_columns=columns,
            folded_trees=float(folded.mean()) if len(folded) else 0.0,
            estimate=None if target.is_gpu else CostEstimate(forest, target),
            allows_bits=allows_bits(forest),
            allows_lanes=bool(np.isfinite(lanes)),
            allows_tiles=bool(permutes and columns <= MAX_COLUMNS),
            allows_value_tiles=bool(permutes and values),
            allows_tile_rows=bool(
                permutes and columns <= MAX_COLUMNS and forest.n_trees <= MAX_TREES
            ),
        )


@dataclass(frozen=True, slots=True)
class Setting:
    """The conditions shared by all compared schedules."""

    forest: ForestFacts
    target: Target
    n_rows: int
    n_threads: int = 1


@dataclass(frozen=True, slots=True)
class Featured:
    """Features of schedules, and estimates of their times."""

    #: A row for each schedule, with the features in the order of ``names_of``.
    matrix: NDArray[np.float64]
    #: Natural logarithm of the estimated ns per row; the model learns the error.
    log_estimate: NDArray[np.float64]
