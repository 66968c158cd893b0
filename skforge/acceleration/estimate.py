"""How long compiling a model will take, told in microseconds from its size."""

from __future__ import annotations

from typing import Any

#: CPU seconds for each tree and each node: reading, one kernel, entries, comparing
#: (Zen 4), of a simple kernel and of others; and for imports of compiled bytecode,
#: before the first model.
_SIMPLE, _OTHER = (1e-4, 1e-6), (4e-4, 8e-6)
_IMPORTS = 0.35
#: What other kernels take besides, and seconds of a simple one for a tree and a row.
_CHOICE, _A_ROW = 0.2, 1e-7


def seconds_to_compile(model: Any, is_ready: bool, is_simple: bool) -> float:
    """Return an estimate, without what each model needs."""
    trees, nodes = _size_of(model)
    a_tree, a_node = _SIMPLE if is_simple else _OTHER
    once = (0.0 if is_simple else _CHOICE) + (0.0 if is_ready else _IMPORTS)
    return once + trees * a_tree + nodes * a_node


def simple_is_faster(model: Any, rows: float, seconds: float) -> bool:
    """Tell whether a simple kernel is expected to take half as long as the library."""
    return _size_of(model)[0] * rows * _A_ROW < seconds / 2


def _size_of(model: Any) -> tuple[int, int]:
    if "steps" in vars(model):
        model = model.steps[-1][1]
    if hasattr(model, "_predictors"):
        trees = [tree for one in model._predictors for tree in one]
        return len(trees), sum(len(tree.nodes) for tree in trees)
    if hasattr(model, "estimators_"):
        parts = model.estimators_
        every = parts.ravel().tolist() if hasattr(parts, "ravel") else parts
        # boosted models of other kinds are refused when they are read, which says why
        trees = [tree.tree_ for tree in every if hasattr(tree, "tree_")]
        return len(trees), sum(tree.node_count for tree in trees)
    if hasattr(model, "get_booster") or hasattr(model, "num_boosted_rounds"):
        booster = model.get_booster() if hasattr(model, "get_booster") else model
        n = booster.num_boosted_rounds()
        return n, n * 2 ** min(getattr(model, "max_depth", None) or 6, 8)
    if hasattr(model, "tree_count_"):
        n = int(model.tree_count_ or 0)
        return n, n * 128
    booster = getattr(model, "booster_", model)
    n = booster.num_trees()
    return n, n * 62
