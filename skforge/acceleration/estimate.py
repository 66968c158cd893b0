"""How long compiling a model will take, told in microseconds from its size."""

from __future__ import annotations

from typing import Any

#: CPU seconds for each tree and each node: reading, one kernel, entries, comparing
#: (Zen 4); and for imports of compiled bytecode, before the first model.
_A_TREE, _A_NODE = 4e-4, 8e-6
_IMPORTS = 0.3


def seconds_to_compile(model: Any, is_ready: bool) -> float:
    """Return an estimate, without what each model needs."""
    return _of_model(model) if is_ready else _IMPORTS + _of_model(model)


def _of_model(model: Any) -> float:
    if "steps" in vars(model):
        model = model.steps[-1][1]
    trees, nodes = _size_of(model)
    return trees * _A_TREE + nodes * _A_NODE


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
