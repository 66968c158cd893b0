"""The representation of deep forests: sparse tiles of codes, for blocks of rows.

It lowers whole traversals of a block of rows: rows are quantised to codes, then passed
through tiles (``tile_layout.py``) tree by tree (``tiled_trees.py``), which ask
``tile_rows.py`` how rows are compared; ``blocks/block_sums.py`` stores the leaves.

Under a vectorised loop over trees, one row passes all of them, sixteen decoded at a
time. The lists hold trees, the row's codes stay in registers, and the tiles at one
depth are read one after another, so that their cache misses overlap. A single walk
waits for a cache line at each hop; here a row waits as often as its longest walk has
tiles. Leaves are recorded by tree and then added in model order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from skforge.compiler.binning.buckets import CodePlaces
from skforge.compiler.binning.rules import BlockRows, Model, ReadingRules, RowAt
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.lir.builder import Builder, b
from skforge.compiler.ir.lir.nodes import I64, Buffer, Value
from skforge.compiler.layouts import base as layouts
from skforge.compiler.layouts.base import MakeCode
from skforge.compiler.layouts.blocks import block_sums
from skforge.compiler.layouts.tiles import tile_layout, tile_rows
from skforge.compiler.layouts.tiles.tiled_trees import (
    BlockWalks,
    TileRows,
    TileWalks,
    cache_level,
)
from skforge.compiler.target import Target
from skforge.forest.bins import CodeTable, plan_codes
from skforge.forest.forest import Forest
from skforge.schedule.bound import marked, vectorizes_trees
from skforge.schedule.directives import CachePredicates


class RowWalks(layouts.RowCode):
    def __init__(
        self,
        rules: ReadingRules,
        tiling: block_sums.Tiling[tile_layout.TiledTrees],
        rows: Callable[[TileWalks], TileRows],
    ) -> None:
        self._model, self.tiling = rules.model, tiling
        self._n = -(-len(tiling.trees.top_item) // block_sums.GROUP) * block_sums.GROUP
        self._walks = TileWalks(rules, tiling, self._n, rows)

    def add_trees(self, sums: Buffer, first: Value) -> None:
        offset = self.tiling.trees.leaf_offset
        self._walks.walk(b.const(0), b.const(self._n))
        offset = np.pad(offset, (0, self._n - len(offset)))
        leaf_offset = self._model("row_leaf_offset", offset)
        leaves = block_sums.LeafSums(self.tiling.leaves, self._model)
        size = len(self.tiling.trees.leaf_row) * leaves.read.element.bytes
        level = cache_level(size)
        reached = b.alloc("reached", I64, self._n)
        for tree, leaf in self._walks.each_done(self._n):
            place = leaf_offset[tree] + leaf
            reached[tree] = place
            b.prefetch(leaves.read, place, level)
        self._add_leaves(reached, leaves, sums, first)

    def _add_leaves(
        self, reached: Buffer, leaves: block_sums.LeafSums, sums: Buffer, first: Value
    ) -> None:
        forest = self.tiling.hir.forest
        number = self.tiling.leaves.kind == "number"
        n = forest.n_trees
        if number and forest.n_outputs == 1:
            total = [sums[first]]
            with b.loop(0, n, carry=total, hint="tree") as tree:
                total[0] = total[0] + leaves.read[reached[tree]]
            sums[first] = total[0]
            return
        outputs = self._model("tree_outputs", forest.tree_output)
        with b.loop(n, hint="tree") as tree:
            leaf, to = leaves.read[reached[tree]], first
            if number:
                to = first + outputs[tree].to(I64)
            leaves.add(sums, to, leaf)


@dataclass(frozen=True, slots=True, eq=False)
class RowTiles(layouts.RowLayout):
    tiling: block_sums.Tiling[tile_layout.TiledTrees]

    def quantize(self, b: Builder, row: RowAt, model: Model) -> layouts.RowCode:
        hir, single = self.tiling.hir, b.const(1)
        rules = ReadingRules(hir.forest, hir.comparison, model)
        if hir.codes is None:
            values = partial(tile_rows.ValuesOfRow, row=row)
            return RowWalks(rules, self.tiling, values)
        rows = BlockRows(row.rows, single, single, row.start, hir.forest.n_features)
        encoded = self.tiling.encode(rules, rows, single, 1)
        codes = partial(tile_rows.CodesOfRow, encoded=encoded)
        return RowWalks(rules, self.tiling, codes)


#: Most columns of codes: a byte numbers the columns of two copies.
MAX_COLUMNS = 4 * tile_layout.LANES

#: Most trees that one row passes at once: the bits of an entry beside the tile or leaf
#: of the largest trees number them.
MAX_TREES = 1 << tile_layout.FEWEST_ROW_BITS

#: Supported sizes of tiles, and their levels.
LEVELS = {7: 3, 15: 4}


def tiles_of(
    hir: PredictEnsemble, target: Target
) -> block_sums.Tiling[tile_layout.TiledTrees]:
    levels = LEVELS[hir.nest.tile_nodes]
    top = tile_layout.top_levels(hir.forest, levels, target)
    if hir.codes is None and vectorizes_trees(hir.nest.loops):
        top = 0
    narrow = not target.has_mask_registers

    def lay_out() -> tuple[
        CodePlaces | None, tile_layout.TiledTrees, block_sums.LeafTable
    ]:
        codes = None
        if hir.codes is None:
            tests = tile_rows.value_tests(hir.forest, top)
        else:
            codes = CodePlaces.of(hir.forest, hir.codes, tile_layout.LANES)
            if narrow and codes.copies == 1:  # a shuffle looks up among eight codes
                codes = CodePlaces.of(hir.forest, hir.codes, 8)
            tests = tile_layout.TileTests.of_codes(codes, top)
        trees = tile_layout.tile_trees(hir.tiles, tests, levels)
        return codes, trees, block_sums.leaf_table(hir.forest, trees.leaf_row)

    key = ("tiles", levels, top, narrow, hir.codes is None)
    return block_sums.Tiling(hir, target, *hir.shared.once(key, lay_out))


class Tiles(layouts.BlockRepresentation, layouts.RowRepresentation):
    name = "tiles"
    has_complete_tiles = True
    takes_values = True
    row_group = block_sums.GROUP
    byte_limit = 1 << 36

    @staticmethod
    def plan_codes(forest: Forest) -> CodeTable:
        return plan_codes(forest, np.uint16, merge=True)

    def size_in_bytes(self, hir: PredictEnsemble) -> int:
        forest = hir.forest
        levels = LEVELS[hir.nest.tile_nodes]
        top, slot = tile_layout.TOP_LEVELS, 3
        if hir.codes is None:
            top, slot = 0, 2 + forest.threshold.itemsize
        n_tiles = int(tile_layout.tile_roots(hir.tiles, levels, top).sum())
        tops = 3 * 4 * (1 << top) * forest.n_trees
        width = min(4, forest.n_outputs) * forest.leaf_value.itemsize
        leaves = forest.n_nodes // 2 * width
        wide = tile_layout.needs_wide(hir.tiles)
        return n_tiles * tile_layout.tile_bytes(levels, wide, slot) + tops + leaves

    def check(self, hir: PredictEnsemble) -> None:
        nest = hir.nest
        if nest.tile_kind != "complete" or nest.tile_nodes not in LEVELS:
            self.refuse(
                'needs tile_nodes(7, "complete") or tile_nodes(15, "complete").'
            )
        self.check_single_nodes(hir)
        if bool(((hir.tiles.leaf < 0) & (hir.tiles.predicate[:, 0] < 0)).any()):
            self.refuse("ends a walk at its leaf; leave out pad_trees and unroll_walk.")
        if hir.codes is not None:
            self._check_codes(hir.codes.n_columns)
        else:
            self._check_values(hir)
        most = tile_layout.most_leaves(hir.tiles)
        if most > tile_layout.MAX_LEAVES:
            self.refuse(
                f"takes trees of at most {tile_layout.MAX_LEAVES} leaves, but one has "
                f"{most}. Use another representation."
            )
        if vectorizes_trees(nest.loops) and hir.forest.n_trees > MAX_TREES:
            self.refuse(
                f"takes a row through at most {MAX_TREES} trees at once, but this "
                f"forest has {hir.forest.n_trees}; use blocks of rows."
            )
        super().check(hir)

    def check_block(self, hir: PredictEnsemble, block: int) -> None:
        self.check_groups(block, 1 << tile_layout.row_bits(hir.tiles))

    def block_code(self, hir: PredictEnsemble, target: Target, block: int) -> MakeCode:
        kind = tile_rows.ValuesOfBlock if hir.codes is None else tile_rows.CodesOfBlock
        tiling = tiles_of(hir, target)
        walks = partial(TileWalks, tiling=tiling, block=block, rows=kind)
        return lambda rules, rows: BlockWalks(walks(rules)).take(rows)

    def lay_out_rows(self, hir: PredictEnsemble, target: Target) -> layouts.RowLayout:
        return RowTiles(tiles_of(hir, target))

    def _check_codes(self, columns: int) -> None:
        if not columns:
            self.refuse(
                "compares codes, but this forest of single leaves has none; use "
                'represent("sparse").'
            )
        if columns > MAX_COLUMNS:
            self.refuse(
                f"holds a row of at most {MAX_COLUMNS} codes in registers, but this "
                f"forest has {columns} columns; leave quantize out, or use another "
                "representation."
            )

    def _check_values(self, hir: PredictEnsemble) -> None:
        if marked(hir.nest.loops, CachePredicates):
            self.refuse(
                "compares codes or values of rows, so it does not work with "
                "cache_predicates; mark the loop over blocks of rows with quantize or "
                "with nothing."
            )
        reason = tile_rows.refusal(hir.forest)
        if reason is not None:
            self.refuse(
                "compares values of rows unless they are quantised, which this forest "
                f"does not allow, because it has {reason}; mark the loop over blocks "
                "of rows with quantize."
            )


layouts.register(Tiles())
