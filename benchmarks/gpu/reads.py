"""What the lanes of a warp read, simulated: hops, banks, cache lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.chips import Chip
from benchmarks.gpu.deal import Deal
from benchmarks.gpu.walks import Paths, bank_cycles, line_cycles, sectors
from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.layouts import base as representations

Array = NDArray[Any]

LANES = 32

#: Sizes of the simulation: rows and trees that are walked, warps of a block and turns
#: of a warp that are looked at. The first trees may be shallower than the rest, so that
#: at least some groups of trees in flight together are looked at.
MOST_ROWS, MOST_TREES, MOST_WARPS, MOST_TURNS = 128, 1024, 4, 12
LEAST_GROUPS = 4
#: Trees whose sectors are counted.
SECTOR_TREES = 32


@dataclass(frozen=True, slots=True)
class Reads:
    """What the hops of warps cost, each a mean.

    Parameters
    ----------
    hops : float
        Iterations for a tree, of trees in flight together.
    nodes, rows : float
        Cycles of a warp's read of nodes and of rows.
    sectors : float
        Sectors of global memory that a block's rows touch of a tree's nodes.
    """

    hops: float
    nodes: float
    rows: float
    sectors: float


def reads_of(
    hir: PredictEnsemble,
    deal: Deal,
    paths: Paths,
    addresses: tuple[Array, int],
    in_flight: int,
    chip: Chip,
) -> Reads:
    """Simulate a deal's reads of nodes and rows.

    ``paths`` are of the first rows through the first trees, up to the sizes above, and
    ``addresses`` what the function of that name says of them.
    """
    packed, codes = hir.nest.representation == "packed", hir.codes
    items, n_words = addresses
    known = np.maximum(paths.predicate, 0)
    column = hir.forest.feature[known] if codes is None else codes.column_of[known]
    column = np.where(paths.predicate >= 0, column, np.where(paths.item >= 0, 0, -1))
    row, tree, walks = _sampled(deal, paths, chip.warp, in_flight)
    # (warps, turns, lanes, hops) to reads of lanes
    node = _lanes(np.where(walks[..., None], items[row, tree], -1))
    at = _lanes(np.where(walks[..., None], column[row, tree], -1))
    hops = np.where(walks, paths.hops[row, tree], 0).max(axis=2)
    groups = hops.reshape(len(hops), -1, in_flight).max(axis=2)
    together = float(groups[groups > 0].mean()) if (groups > 0).any() else 0.0
    count = paths.item.shape[2]
    who = _lanes(np.repeat(row[..., None], count, axis=3)) % max(1, deal.rows)
    n_columns = hir.forest.n_features if codes is None else max(1, codes.n_columns)
    width = hir.forest.input_dtype.itemsize // 4 if codes is None else 1
    if deal.rows_in == "feature":
        word = at * deal.rows + who
    else:
        word = who * (n_columns | 1 if deal.rows_in == "padded" else n_columns) + at
    word = np.where(at >= 0, word, -1)
    if deal.rows_in == "memory":
        row_cycles = _line_cycles(np.where(word >= 0, word * 4 * width, -1), chip)
    else:
        row_cycles = width * bank_cycles(np.where(word >= 0, word * width, -1))
    in_bytes = np.where(node >= 0, node * n_words * 4, -1)
    if packed:  # a read of 16 bytes takes four cycles, and serves three levels
        node_cycles = max(4.0, _line_cycles(in_bytes, chip)) / 3
        together = float(packed_levels(hir))
    elif deal.tile:
        node_cycles = n_words * bank_cycles(np.where(node >= 0, in_bytes // 4, -1))
    else:
        node_cycles = max(1.0, n_words / 2) * _line_cycles(in_bytes, chip)
    few = items[: max(1, min(deal.rows, len(items))), :SECTOR_TREES] * n_words * 4
    touched = sectors(np.where(items[: len(few), :SECTOR_TREES] >= 0, few, -1))
    return Reads(together, node_cycles, row_cycles, touched / few.shape[1])


def addresses(hir: PredictEnsemble, paths: Paths) -> tuple[Array, int]:
    """Return the record that each hop reads, by its number, and words of a record."""
    if hir.nest.representation == "packed":
        found = packed_tiles(hir, paths)
        spare = paths.item.shape[2] - found.shape[2]
        return np.pad(found, ((0, 0), (0, 0), (0, spare)), constant_values=-1), 4
    layout: Any = representations.get(hir.nest.representation).lay_out(hir)
    items = np.where(paths.item >= 0, layout.record[np.maximum(paths.item, 0)], -1)
    return items, layout.shape.words


def _sampled(
    deal: Deal, paths: Paths, warp: int, in_flight: int
) -> tuple[Array, Array, Array]:
    """Return row, tree and whether there is a walk, of (warps, turns, lanes).

    Turns are whole groups of trees in flight; rows beyond those walked are others'.
    """
    n_warps = -(-deal.threads // warp)
    warps = np.unique(np.linspace(0, n_warps - 1, min(n_warps, MOST_WARPS)).astype(int))
    thread = warps[:, None] * warp + np.arange(warp)
    there = thread < deal.threads
    thread = np.minimum(thread, deal.threads - 1)
    n_groups = -(-deal.tree.shape[1] // in_flight)
    most = max(LEAST_GROUPS, MOST_TURNS // in_flight)
    groups = np.unique(np.linspace(0, n_groups - 1, min(n_groups, most)).astype(int))
    turn = (groups[:, None] * in_flight + np.arange(in_flight)).ravel()
    inside = turn < deal.tree.shape[1]
    tree = deal.tree[thread][:, :, np.minimum(turn, deal.tree.shape[1] - 1)]
    tree = tree.transpose(0, 2, 1)
    walks = (tree >= 0) & inside[None, :, None] & there[:, None, :]
    row = deal.row[thread][:, :, 0] % len(paths.item)
    row = np.broadcast_to(row[:, None, :], tree.shape)
    walks &= row < deal.rows
    return row, np.where(walks, tree % paths.item.shape[1], 0), walks


def _lanes(reads: Array) -> Array:
    """Return (warps, turns, lanes, hops) as (reads, lanes)."""
    found: Array = reads.transpose(0, 1, 3, 2).reshape(-1, reads.shape[2])
    return found


def _line_cycles(at: Array, chip: Chip) -> float:
    """Return cycles of a read of global memory: a line each, 16 lanes on AMD's."""
    return max(line_cycles(at), chip.warp / 16 if chip.is_amd else 1.0)


def packed_tiles(hir: PredictEnsemble, paths: Paths) -> Array:
    """Return the tile of three levels that each third hop reads, by its number."""
    hops = packed_levels(hir) // 3
    size = (8**hops - 1) // 7
    tiles = hir.tiles
    trees = np.arange(paths.item.shape[1])
    place = np.zeros(paths.item.shape[:2], np.int64)
    found = []
    for hop in range(hops):
        found.append(trees[None, :] * size + (8**hop - 1) // 7 + place)
        for level in range(3 * hop, 3 * hop + 3):
            right = np.ones_like(place)  # behind a leaf dummies send rows right
            if level < paths.item.shape[2]:
                at = paths.item[:, :, level]
                after = np.full_like(at, -1)
                if level + 1 < paths.item.shape[2]:
                    after = paths.item[:, :, level + 1]
                known = np.maximum(at, 0)
                left = (at >= 0) & (after >= 0) & (tiles.child[known, 0] == after)
                right = np.where(left, 0, 1)
            place = 2 * place + right
    return np.stack(found, axis=2)


def packed_levels(hir: PredictEnsemble) -> int:
    """Return the levels of walks through tiles of three, each written out."""
    return 3 * -(-int(hir.tiles.max_depth.max(initial=0)) // 3)


def sample(rows: Array, n_trees: int) -> tuple[Array, Array]:
    """Return the rows and the trees that are walked."""
    some = np.resize(rows, (MOST_ROWS, rows.shape[1]))
    return some, np.arange(min(n_trees, MOST_TREES))
