"""Facts about a forest for the cost model's features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.defaults.cpu import allows_bits
from skforge.compiler.forest.arrays import Comparison, Missing
from skforge.compiler.forest.bins import column_count
from skforge.compiler.forest.forest import Forest
from skforge.compiler.layouts.bitsliced.sliced_layout import folds
from skforge.compiler.layouts.lanes.lanes import lanes_cost
from skforge.compiler.layouts.tiles import tiled_values
from skforge.compiler.layouts.tiles.tile_layout import MAX_LEAVES, TOP_LEVELS
from skforge.compiler.layouts.tiles.tiles import MAX_COLUMNS, MAX_TREES
from skforge.compiler.passes.hir import normalize_predicates
from skforge.compiler.target import Target
from skforge.tuning.cost.rules import ROW, ROW_COLUMN, ROW_TILE, ROW_TREE, block_cost


@dataclass(frozen=True, slots=True)
class ForestFacts:
    """Sizes of a forest, and the kinds of traversal it allows on a target.

    ``walk_depth`` weights leaves by their covers if these are known.
    """

    n_trees: int
    used_features: int
    n_outputs: int
    row_bytes: int
    threshold_bytes: int
    leaf_value_bytes: int
    inner_nodes: int
    leaves_per_tree: float
    most_leaves: int
    walk_depth: float  # mean depth of a row's traversal of a tree
    leaf_depth: float  # mean depth of the leaves
    tree_depth: float  # mean of the deepest leaf of each tree
    min_depth: int
    max_depth: int
    depth_spread: float  # standard deviation of the trees' depths
    n_predicates: int
    n_columns: int  # columns of bin codes
    category_share: float  # share of predicates on categories
    missing: float  # share of predicates that handle missing values
    folded_trees: float  # share of trees folded completely in bit logic
    tile_hops_3: float  # three-level tiles that a row visits in a tree
    tile_hops_4: float
    lanes_cost: float  # instructions per row, as the default's rule estimates
    block_cost: float  # instructions of a small block of bit logic, likewise
    tile_row_cost: float
    allows_bits: bool
    allows_lanes: bool
    allows_tiles: bool
    allows_value_tiles: bool
    allows_tile_rows: bool

    @classmethod
    def of(cls, forest: Forest, target: Target) -> ForestFacts:
        """Compute the facts of a forest."""
        low, high = forest.leaf_depths()
        at, weight = leaf_weights(forest)
        total = max(float(weight.sum()), 1e-300)
        three, four = mean_tiles(at, weight)
        n_trees = max(1, forest.n_trees)
        per_tree = np.diff(forest.tree_offset) // 2 + 1
        most = int(per_tree.max(initial=1))
        columns, values = 0, False
        if forest.n_predicates:
            normal, _ = normalize_predicates.run(forest)
            columns = column_count(normal, merge_missing=True)
            values = tiled_values.refusal(normal) is None
        lanes = lanes_cost(forest, target) if forest.n_predicates else float("inf")
        permutes = forest.n_predicates > 0 and target.has("avx2") and most <= MAX_LEAVES
        folded = folds(forest)
        tile_row = ROW + ROW_COLUMN * columns
        tile_row += (ROW_TREE + ROW_TILE * four) * n_trees
        return cls(
            n_trees=forest.n_trees,
            used_features=len(np.unique(forest.feature)),
            n_outputs=forest.n_outputs,
            row_bytes=forest.n_features * forest.input_dtype.itemsize,
            threshold_bytes=forest.input_dtype.itemsize,
            leaf_value_bytes=forest.accumulator_dtype.itemsize
            * forest.leaf_value.shape[1],
            inner_nodes=forest.n_nodes - len(at),
            leaves_per_tree=len(at) / n_trees,
            most_leaves=most,
            walk_depth=float((at * weight).sum()) / total,
            leaf_depth=float(at.mean()) if len(at) else 0.0,
            tree_depth=float(high.mean()) if len(high) else 0.0,
            min_depth=int(low.min(initial=1 << 30)) if len(low) else 0,
            max_depth=int(high.max(initial=0)),
            depth_spread=float(high.std()) if len(high) else 0.0,
            n_predicates=forest.n_predicates,
            n_columns=columns,
            category_share=_share(forest.comparison >= Comparison.IN),
            missing=_share(forest.missing != Missing.NEVER),
            folded_trees=_share(folded),
            tile_hops_3=three,
            tile_hops_4=four,
            lanes_cost=min(lanes, 1e9),
            block_cost=block_cost(forest, target, folded),
            tile_row_cost=tile_row,
            allows_bits=allows_bits(forest),
            allows_lanes=bool(np.isfinite(lanes)),
            allows_tiles=bool(permutes and columns <= MAX_COLUMNS),
            allows_value_tiles=bool(permutes and values),
            allows_tile_rows=bool(
                permutes and columns <= MAX_COLUMNS and forest.n_trees <= MAX_TREES
            ),
        )


def _share(flags: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> float:
    return float(flags.mean()) if len(flags) else 0.0


def mean_tiles(
    depths: NDArray[np.int32], weight: NDArray[np.float64]
) -> tuple[float, float]:
    """Return how many tiles of three and of four levels a row visits in a tree."""
    below = np.maximum(depths - TOP_LEVELS, 0)
    total = max(float(weight.sum()), 1e-300)
    three, four = (float((np.ceil(below / k) * weight).sum()) / total for k in (3, 4))
    return three, four


def leaf_weights(forest: Forest) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return the depth of each leaf, and how many training rows ended there.

    If the counts are not known, all leaves weigh the same.
    """
    leaves = forest.leaf >= 0
    depths = forest.node_depths()[leaves]
    if len(forest.cover) and float(forest.cover[leaves].sum()) > 0:
        return depths, forest.cover[leaves]
    return depths, np.ones(len(depths))
