"""Rules of thumb that the cost model's features start from; the model corrects them.

The numbers are those of the machine on which the shipped model was trained.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.forest import Forest
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
