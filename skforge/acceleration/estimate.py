"""How long compiling a model will take, told in microseconds from its size."""

from __future__ import annotations

from typing import Any

#: Seconds for each tree and each node: reading, laying out, comparing (2 cores, Zen 4).
_A_TREE, _A_NODE = 5e-3, 3e-6


def seconds_to_compile(model: Any, least: float) -> float:
    """Return an estimate; ``least`` is for what each model needs."""
    if "steps" in vars(model):
        model = model.steps[-1][1]
    trees, nodes = _size_of(model)
    return least + trees * _A_TREE + nodes * _A_NODE


def _size_of(model: Any) -> tuple[int, int]:
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
