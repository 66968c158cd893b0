"""Print HIR as stable text: small forests tile by tile, others by runs of trees."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from skforge.compiler.ir.hir.nodes import PredictEnsemble, TiledForest
from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest

_DRAWN_ITEMS = 128  # items in the largest forest drawn whole
_DRAWN_RUNS = 16
_DRAWN_CATEGORIES = 6
_DRAWN_OUTPUTS = 4
_SYMBOL = {
    Comparison.LT: "<",
    Comparison.LE: "<=",
    Comparison.GT: ">",
    Comparison.GE: ">=",
    Comparison.EQ: "==",
    Comparison.NE: "!=",
}
_MISSING = {Missing.NAN: "nan", Missing.NEVER: "", Missing.ZERO: "nan or zero"}


def print_hir(hir: PredictEnsemble) -> str:
    forest, tiles = hir.forest, hir.tiles
    lines = [
        f"predict_ensemble comparison={hir.comparison} reduction={hir.reduction}",
        f"  forest: {forest.n_trees} trees, {forest.n_predicates} predicates, "
        f"{forest.n_features} features, {forest.n_outputs} outputs, "
        f"{forest.input_dtype} rows, {forest.accumulator_dtype} sums",
        "  loops:",
        *("    " + line for line in str(hir.nest).splitlines()),
        "  " + _summary(tiles),
    ]
    small = tiles.n_items <= _DRAWN_ITEMS
    drawn = _trees(tiles, forest) if small else _runs(tiles)
    return "\n".join([*lines, *("  " + line for line in drawn), ""])


def _summary(tiles: TiledForest) -> str:
    is_tile = tiles.leaf < 0
    n_tiles = int(is_tile.sum())
    dummies = (tiles.predicate[is_tile] < 0).sum(axis=1)
    padding = int((dummies == tiles.tile_size).sum())
    partly = int(dummies.sum()) - padding * tiles.tile_size
    used = len(np.unique(tiles.shape[is_tile]))
    return (
        f"tiles: size {tiles.tile_size}, {n_tiles} tiles of {used} shapes, "
        f"{partly} dummy nodes, {padding} padding tiles, "
        f"{tiles.n_items - n_tiles} leaves"
    )


def _runs(tiles: TiledForest) -> Iterator[str]:
    if not tiles.n_trees:
        return
    depths = np.stack([tiles.min_depth, tiles.max_depth], axis=1)
    change = (depths[1:] != depths[:-1]).any(axis=1)
    start = np.flatnonzero(np.concatenate(([True], change)))
    stop = np.append(start[1:], tiles.n_trees)
    runs = zip(start.tolist(), stop.tolist(), strict=True)
    for first, end in islice(runs, _DRAWN_RUNS):
        items = tiles.item_offset[end] - tiles.item_offset[first]
        at = (
            f"position {first}" if end == first + 1 else f"positions {first}..{end - 1}"
        )
        yield f"{at}: leaves at depth {_depths(*depths[first])}, {items} items"
    if len(start) > _DRAWN_RUNS:
        left = tiles.n_trees - start[_DRAWN_RUNS]
        yield f"... {left} more trees in {len(start) - _DRAWN_RUNS} runs"


def _depths(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low}..{high}"


def _trees(tiles: TiledForest, forest: Forest) -> Iterator[str]:
    depths = [*zip(tiles.min_depth, tiles.max_depth, strict=True)]
    for position, tree in enumerate(tiles.tree_order):
        output = forest.tree_output[tree]
        target = "every output" if output < 0 else f"output {output}"
        yield (
            f"position {position}: tree {tree}, {target}, "
            f"leaves at depth {_depths(*depths[position])}"
        )
        yield from _items(tiles, forest, int(tiles.item_offset[position]))


def _items(tiles: TiledForest, forest: Forest, root: int) -> Iterator[str]:
    """Yield the lines of a tree, with an explicit stack because trees may be deep."""
    stack = [(root, 1, "")]
    while stack:
        item, indent, label = stack.pop()
        if tiles.leaf[item] >= 0:
            text = _leaf(tiles, forest, item)
        else:
            text = _tile(tiles, forest, item)
            below = [(e, int(c)) for e, c in enumerate(tiles.child[item]) if c >= 0]
            stack += [(c, indent + 1, f"{e}: ") for e, c in reversed(below)]
        yield "  " * indent + label + text


def _leaf(tiles: TiledForest, forest: Forest, item: int) -> str:
    values = forest.leaf_value[tiles.leaf[item]]
    shown = [str(value) for value in values[:_DRAWN_OUTPUTS]]
    if len(values) > _DRAWN_OUTPUTS:
        shown.append("...")
    return f"leaf {tiles.leaf[item]} = {', '.join(shown)}"


def _tile(tiles: TiledForest, forest: Forest, item: int) -> str:
    predicates = tiles.predicate[item]
    if (predicates < 0).all():
        return "padding"
    tests = [predicate_text(forest, p) if p >= 0 else "-" for p in predicates.tolist()]
    shape = f"shape {tiles.shape[item]} " if tiles.tile_size > 1 else ""
    return f"tile {shape}[{', '.join(tests)}]"


def predicate_text(forest: Forest, predicate: int) -> str:
    comparison = Comparison(int(forest.comparison[predicate]))
    start, stop = forest.category_offset[predicate : predicate + 2]
    if comparison >= Comparison.IN:
        words = forest.category_words[start:stop]
        bits = words[:, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1)
        members = np.flatnonzero(bits)
        shown = [str(c) for c in members[:_DRAWN_CATEGORIES]]
        shown += ["..."] * (len(members) > _DRAWN_CATEGORIES)
        word = "not in" if comparison == Comparison.NOT_IN else "in"
        test = f"{word} {{{', '.join(shown)}}}"
    else:
        test = f"{_SYMBOL[comparison]} {forest.threshold[predicate]}"
    text = f"f{forest.feature[predicate]} {test}"
    missing = _MISSING[Missing(int(forest.missing[predicate]))]
    return (
        f"{text} or {missing}" if missing and forest.missing_left[predicate] else text
    )
