"""Forests of known shape, and the MIR of a schedule after every pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from skforge.compiler.driver import MIR_PASSES, Stage
from skforge.compiler.ir.hir.nodes import PredictEnsemble, Reduction
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.layouts.base import Representation
from skforge.compiler.lowering import lower_to_mir
from skforge.compiler.passes.hir import (
    normalize_predicates,
    pad_trees,
    reorder_trees,
    tile_nodes,
)
from skforge.forest.forest import Forest
from skforge.schedule.bind import bind
from skforge.schedule.bound import marked
from skforge.schedule.directives import Quantize, ScheduleKind
from skforge.schedule.schedule import Schedule

#: The sample model of SilvanForge Figure 1a: two trees of depth 1, two of depth 2.
SAMPLE = ("stump", "stump", "chain", "chain")


def forest_of(
    shapes: Sequence[str], n_outputs: int = 1, vector: bool = False
) -> Forest:
    """Return a forest of trees that are a "leaf", "stump", "chain" or "full".

    A chain has leaves at depths 1, 2 and 2; a full tree four leaves at depth 2.
    """
    children = {
        "leaf": [(-1, -1)],
        "stump": [(1, 2), (-1, -1), (-1, -1)],
        "chain": [(1, 2), (-1, -1), (3, 4), (-1, -1), (-1, -1)],
        "full": [(1, 2), (3, 4), (5, 6), *[(-1, -1)] * 4],
    }
    random = np.random.default_rng(7)
    trees = [np.array(children[shape]) for shape in shapes]
    offset = np.cumsum([0, *map(len, trees)])
    both = np.concatenate(
        [np.where(t < 0, -1, t + o) for t, o in zip(trees, offset, strict=False)]
    )
    inner = both[:, 0] >= 0
    n_tests, n_leaves = int(inner.sum()), int((~inner).sum())
    output = np.arange(len(trees)) % n_outputs
    return Forest(
        tree_offset=offset,
        tree_output=np.full(len(trees), -1) if vector else output,
        predicate=np.where(inner, np.cumsum(inner) - 1, -1),
        left=both[:, 0],
        right=both[:, 1],
        leaf=np.where(inner, -1, np.cumsum(~inner) - 1),
        source_node=np.concatenate([np.arange(len(t)) for t in trees]),
        cover=np.zeros(0),
        leaf_value=random.standard_normal(
            (n_leaves, n_outputs if vector else 1)
        ).astype(np.float32),
        feature=np.arange(n_tests) % 3,
        comparison=np.zeros(n_tests, np.int64),
        threshold=random.standard_normal(n_tests).astype(np.float32),
        missing=np.zeros(n_tests, np.int64),
        missing_left=np.zeros(n_tests, bool),
        category_offset=np.zeros(n_tests + 1, np.int64),
        category_words=np.zeros(0, np.uint32),
        n_features=3,
        base=np.full(n_outputs, 0.5, np.float32),
    ).validate()


def hir_of(
    forest: Forest,
    schedule: Schedule,
    reduction: Reduction = "exact",
    kind: ScheduleKind | None = None,
) -> PredictEnsemble:
    """Return HIR, also of a schedule for a GPU."""
    nest = bind(schedule, forest.n_trees, kind)
    normal, comparison = normalize_predicates.run(forest)
    tiles = tile_nodes.run(normal, nest.tile_nodes, nest.tile_kind)
    if nest.reorder_trees:
        tiles = reorder_trees.run(tiles)
    tiles = pad_trees.run(tiles, pad_trees.required_depths(nest, tiles), nest)
    quantized = marked(nest.loops, Quantize)
    codes = Representation.plan_codes(normal) if quantized else None
    return PredictEnsemble(normal, tiles, nest, reduction, comparison, codes)


def stages_of(
    hir: PredictEnsemble, element: mir.Element = "accumulator", lanes: int = 4
) -> dict[str, mir.Function]:
    """Return MIR by the name of the pass that made it."""
    function = lower_to_mir.run(hir, element)
    made = {"lower-to-mir": function}
    for step in MIR_PASSES:
        made[step.name] = function = step.run(function, Stage(hir, lanes))
    return made


def statements(body: mir.Body) -> Iterator[mir.Stmt]:
    """Yield every statement, those of remainders and cases included."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, mir.Loop):
            yield from statements(stmt.body)
            yield from statements(stmt.remainder)
        elif isinstance(stmt, mir.DepthSwitch):
            for case in stmt.cases:
                yield from statements(case)


def draw_values(forest: Forest, n: int, seed: int = 0) -> np.ndarray:
    """Return rows as a kernel gets them."""
    random = np.random.default_rng(seed)
    rows = random.standard_normal((n, forest.n_features))
    return rows.astype(forest.input_dtype)
