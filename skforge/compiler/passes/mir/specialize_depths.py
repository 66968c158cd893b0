"""Carry out ``specialize``: generate separate code by the depth of the trees.

Treebeard draft §3.1.1. Before: ``for t0 ...   specialize`` around a walk of trees of
any depth. After: the body is a switch on the iteration's depth class, and every case
walks trees whose leaves lie between known depths. Code grows with the number of
classes, not with the number of trees: rare classes share the widest case.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np

from skforge.compiler.ir.hir.nodes import PredictEnsemble
from skforge.compiler.ir.mir import nodes as mir
from skforge.compiler.ir.mir.walk import copy_body, map_walks
from skforge.schedule.bound import BoundLoop, leaf_paths, tree_positions
from skforge.schedule.directives import Specialize

#: Most cases of one switch; depths 0 to 9, for example, fit, plus a shared case.
MAX_CLASSES = 12

#: The least and greatest depth of each class, and the class of each position.
_Classes: TypeAlias = tuple[tuple[tuple[int, int], ...], tuple[int, ...]]


def run(function: mir.Function, hir: PredictEnsemble) -> mir.Function:
    return replace(function, body=_body(function.body, hir.nest.loops, (), hir))


def _body(
    body: mir.Body,
    bound: tuple[BoundLoop, ...],
    path: tuple[BoundLoop, ...],
    hir: PredictEnsemble,
) -> mir.Body:
    """Walk MIR and the bound nest side by side; MIR still has the nest's loops."""
    stmts: list[mir.Stmt] = []
    known = {loop.name: loop for loop in bound}
    for stmt in body:
        if not isinstance(stmt, mir.Loop):
            stmts.append(stmt)
            continue
        here = known.get(stmt.var)
        if here is None:  # a loop that legalisation added
            stmts.append(replace(stmt, body=_body(stmt.body, bound, path, hir)))
            continue
        new_path = (*path, here)
        inner = _body(stmt.body, here.body, new_path, hir)
        if stmt.has(Specialize) and stmt.root == "tree":
            inner = _switched(inner, here, new_path, hir)
        stmts.append(replace(stmt, body=inner, marks=stmt.without(Specialize)))
    return tuple(stmts)


def _switched(
    body: mir.Body, loop: BoundLoop, path: tuple[BoundLoop, ...], hir: PredictEnsemble
) -> mir.Body:
    depths, class_of = _classify(loop, path, hir)
    if not depths:  # no tree is reached
        return body
    position = mir.Affine(tuple(p.name for p in path if p.root == "tree"))
    cases = tuple(
        map_walks(copy_body(body, f".d{k}"), partial(_narrow, low, high))
        for k, (low, high) in enumerate(depths)
    )
    return (mir.DepthSwitch(position, depths, class_of, cases),)


def _classify(
    loop: BoundLoop, path: tuple[BoundLoop, ...], hir: PredictEnsemble
) -> _Classes:
    tiles = hir.tiles
    low = np.full(tiles.n_trees, np.iinfo(np.int64).max)
    high = np.full(tiles.n_trees, -1)
    for leaf_path in leaf_paths(loop, path):
        iteration, tree = tree_positions(leaf_path, len(path))
        np.minimum.at(low, iteration, tiles.min_depth[tree])
        np.maximum.at(high, iteration, tiles.max_depth[tree])
    used = high >= 0
    pairs, inverse, counts = np.unique(
        np.stack([low[used], high[used]], 1),
        axis=0,
        return_inverse=True,
        return_counts=True,
    )
    inverse = inverse.reshape(-1)
    largest = np.sort(np.argsort(-counts, kind="stable")[:MAX_CLASSES])
    depths = [(int(a), int(z)) for a, z in pairs[largest]]
    number = np.full(len(pairs), len(largest))
    number[largest] = np.arange(len(largest))
    if len(largest) < len(pairs):
        rest = np.setdiff1d(np.arange(len(pairs)), largest)
        depths.append((int(pairs[rest, 0].min()), int(pairs[rest, 1].max())))
    class_of = np.zeros(len(low), np.int64)
    class_of[used] = number[inverse]
    return tuple(depths), tuple(class_of.tolist())


def _narrow(low: int, high: int, walk: mir.WalkDecisionTree) -> mir.WalkDecisionTree:
    """Set a walk's depth range: hops down to the least depth need no leaf check."""
    most = min(high, walk.max_depth)
    # A case nested in a case of other depths never runs: keep it sound.
    least = min(max(low, walk.min_depth), most)
    return replace(walk, min_depth=least, max_depth=most, peel=least)
