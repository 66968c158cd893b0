"""Facts about a forest and its setting, from which the cost model's features start.

The rules of thumb have numbers of the machine on which the shipped model was trained;
the model corrects them.
"""

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

#: Cost of a small block, however many of its rows are real, with mask registers and
#: without, in instructions of about 0.09 ns: a node of a folded tree, a node of
#: another, a predicate, a tree, a column of the rows. Fitted to 28 forests, 0.3 to 50
#: us, off by 1.1 times.
BLOCK_COST = (2.7, 14.0, 7.5, 28.0, 180.0)
BLOCK_COST_NARROW = (3.9, 21.0, 17.5, 230.0, 95.0)

#: Approximate cost of a row in tiles by row, in instructions: a
#: constant, searching a column, and trees decoded together; then reading the top of a
#: tree and visiting a tile, with mask registers and without. 28 columns: 100 trees of
#: 31, 255 and 1000 leaves take 0.31, 0.44 and 0.60 us a row, lanes 0.15, 0.60 and 1.1;
#: AVX2 1.1, 1.2 and 1.6, lanes 0.33, 0.74 and 1.3. 10 trees cost 0.9 to 1.2 of their
#: walk.
ROW, ROW_COLUMN, ROW_TREES = 700.0, 30.0, 16
ROW_TREE, ROW_TILE = 22.0, 14.0
ROW_TREE_NARROW, ROW_TILE_NARROW = 140.0, 30.0

#: Approximate ns to search a column of up to 256 thresholds; to walk a tree of tiles.
SEARCH_NS, TILED_NS = 4.0, 5.0

#: Rows of a small block of predicates.
SMALL_BLOCK = 128


def block_cost(forest: Forest, target: Target, folded: NDArray[np.bool_]) -> float:
    """Return the approximate instructions of a small block of bit logic.

    ``folded`` has, for each tree, whether it is folded.
    """
    masks = target.has_mask_registers
    node, other, predicate, tree, column = BLOCK_COST if masks else BLOCK_COST_NARROW
    nodes = np.diff(forest.tree_offset) // 2
    cost = float(np.where(folded, node, other) @ nodes)
    cost += predicate * forest.n_predicates + tree * forest.n_trees
    return cost + column * forest.n_features


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
            columns = column_count(normal, merge=True)
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


@dataclass(frozen=True, slots=True)
class Setting:
    """The conditions shared by all compared schedules."""

    forest: ForestFacts
    target: Target
    n_rows: int
    n_threads: int = 1


@dataclass(frozen=True, slots=True)
class Featured:
    """Features of schedules, and estimates of their times by rules of thumb."""

    #: A row for each schedule, with the features in the order of ``names_of``.
    matrix: NDArray[np.float64]
    #: Natural logarithm of the estimated ns per row; the model learns the error.
    log_estimate: NDArray[np.float64]
