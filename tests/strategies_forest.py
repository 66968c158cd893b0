"""Hypothesis strategies that make valid forests, and rows that sit on their edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.predicates import deduplicate_predicates

NUMERIC = (Comparison.LT, Comparison.LE, Comparison.GT, Comparison.GE)
SHAPES = ("leaf", "stump", "chain left", "chain right", "zigzag", "full", "random")
NODE_ORDERS = ("level", "depth first", "shuffled")


@dataclass(frozen=True, slots=True)
class ForestKind:
    """What forests may contain; the defaults allow all that every frontend makes."""

    max_trees: int = 6
    max_features: int = 5
    max_depth: int = 9  # of random and full trees; chains go to twice that
    dtypes: tuple[str, ...] = ("float32", "float64")
    comparisons: tuple[Comparison, ...] = (*NUMERIC, Comparison.EQ, Comparison.NE)
    uniform_comparison: bool = False  # one numeric comparison per forest
    categories: bool = True
    missing: tuple[Missing, ...] = tuple(Missing)
    infinities: bool = True  # among the thresholds
    vector_leaves: bool = True
    max_outputs: int = 3
    shapes: tuple[str, ...] = SHAPES
    covers: bool = True


@st.composite
def random_forest(
    draw: st.DrawFn, kind: ForestKind | None = None, **changes: Any
) -> Forest:
    """Draw a forest; keywords change fields of :class:`ForestKind`.

    Structure is drawn by Hypothesis, which shrinks it; numbers come from a drawn
    seed, which keeps examples cheap.
    """
    allowed = kind or ForestKind(**changes)
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_trees = draw(st.integers(1, allowed.max_trees))
    node_order = draw(st.sampled_from(NODE_ORDERS))
    trees = [
        _order_nodes(
            _tree(draw(st.sampled_from(allowed.shapes)), allowed.max_depth, random),
            node_order,
            random,
        )
        for _ in range(n_trees)
    ]
    sizes = [len(left) for left, _ in trees]
    offset = np.concatenate(([0], np.cumsum(sizes)))
    left = np.concatenate(
        [np.where(a < 0, -1, a + o) for (a, _), o in _zip(trees, offset)]
    )
    right = np.concatenate(
        [np.where(b < 0, -1, b + o) for (_, b), o in _zip(trees, offset)]
    )
    dtype = np.dtype(draw(st.sampled_from(allowed.dtypes)))
    n_features = draw(st.integers(1, allowed.max_features))
    pool = _predicates(draw, allowed, dtype, n_features, random)
    inner = left >= 0
    tests = random.integers(len(pool["feature"]), size=inner.sum())
    sets = pool.pop("categories")
    fields, distinct = deduplicate_predicates(
        **{name: values[tests] for name, values in pool.items()},
        categories={i: sets[t] for i, t in enumerate(tests) if t in sets},
    )
    predicate = np.full(len(left), -1, np.int32)
    predicate[inner] = distinct
    n_leaves = int((~inner).sum())
    leaf = np.full(len(left), -1, np.int32)
    leaf[~inner] = random.permutation(n_leaves)
    n_outputs = draw(st.integers(1, allowed.max_outputs))
    vector = n_outputs > 1 and allowed.vector_leaves and draw(st.booleans())
    accumulator = draw(st.sampled_from(["float32", "float64"]))
    return Forest(
        tree_offset=offset,
        tree_output=np.full(n_trees, -1) if vector else np.arange(n_trees) % n_outputs,
        predicate=predicate,
        left=left,
        right=right,
        leaf=leaf,
        source_node=np.concatenate([random.permutation(size) for size in sizes]),
        cover=_covers(draw, allowed, left, right, offset, random),
        leaf_value=random.standard_normal(
            (n_leaves, n_outputs if vector else 1)
        ).astype(accumulator),
        n_features=n_features,
        base=random.standard_normal(n_outputs).astype(accumulator),
        divisor=draw(st.sampled_from([1, 1, n_trees])),
        truncate_categories=draw(st.booleans()),
        **fields,
    ).validate()


def edge_rows(forest: Forest, n: int, seed: int = 0) -> np.ndarray:
    """Return rows of thresholds, their neighbours, zeros, NaN, inf and categories."""
    random = np.random.default_rng(seed)
    dtype = forest.input_dtype
    special = [
        0.0, -0.0, np.nan, np.inf, -np.inf, 1e-35, -1e-36, 1e-40, 2.5, -0.5, -1.0,
        40.0,
    ]  # fmt: skip
    rows = random.choice(np.array(special, dtype), size=(n, forest.n_features))
    for feature in range(forest.n_features):
        known = forest.threshold[forest.feature == feature]
        if not len(known):
            continue
        with np.errstate(over="ignore"):
            near = [known, np.nextafter(known, -np.inf), np.nextafter(known, np.inf)]
        if len(forest.category_words):
            near.append(np.arange(70, dtype=dtype))
        at = random.random(n) < 0.7
        rows[at, feature] = random.choice(np.concatenate(near), size=int(at.sum()))
    return rows.astype(dtype)


def _zip(trees: list[Any], offset: np.ndarray) -> Any:
    return zip(trees, offset[:-1], strict=True)


def _tree(shape: str, depth: int, random: np.random.Generator) -> Any:
    """Return left and right children, the root first, of one tree of a shape."""
    left, right = [-1], [-1]

    def split(node: int) -> tuple[int, int]:
        left[node], right[node] = len(left), len(left) + 1
        left.extend((-1, -1))
        right.extend((-1, -1))
        return left[node], right[node]

    match shape:
        case "leaf":
            pass
        case "stump":
            split(0)
        case "chain left" | "chain right" | "zigzag":
            node = 0
            for step in range(int(random.integers(1, 2 * depth + 1))):
                side = {"chain left": 0, "chain right": 1}.get(shape, step % 2)
                node = split(node)[side]
        case "full":
            level = [0]
            for _ in range(int(random.integers(1, min(depth, 5) + 1))):
                level = [child for node in level for child in split(node)]
        case _:
            level = [0]
            for _ in range(int(random.integers(1, depth + 1))):
                grown = [n for n in level if n == 0 or random.random() < 0.65]
                level = [child for node in grown for child in split(node)]
                random.shuffle(level)
    return np.array(left), np.array(right)


def _order_nodes(tree: Any, order: str, random: np.random.Generator) -> Any:
    """Renumber the nodes of a tree; the root stays 0."""
    left, right = tree
    sequence = [0]
    match order:
        case "level":
            for node in sequence:
                sequence += [c for c in (left[node], right[node]) if c >= 0]
        case "depth first":
            stack, sequence = [0], []
            while stack:
                node = stack.pop()
                sequence.append(node)
                stack += [c for c in (right[node], left[node]) if c >= 0]
        case _:
            sequence += (1 + random.permutation(len(left) - 1)).tolist()
    number = np.empty(len(left), np.int64)
    number[sequence] = np.arange(len(left))
    return tuple(
        np.where(side[sequence] < 0, -1, number[side[sequence]])
        for side in (left, right)
    )


def _predicates(
    draw: st.DrawFn,
    allowed: ForestKind,
    dtype: np.dtype[Any],
    n_features: int,
    random: np.random.Generator,
) -> dict[str, Any]:
    """Draw a small pool of predicates, so that nodes and trees share them."""
    n = draw(st.integers(1, 24))
    info = np.finfo(dtype)
    values = [0.0, 1.0, -1.5, float(info.tiny), float(info.smallest_subnormal), 1e-35]
    values += [float(info.max), -float(info.max), -float(info.smallest_subnormal)]
    if allowed.infinities and draw(st.booleans()):
        values += [np.inf, -np.inf]
    threshold = np.where(
        random.random(n) < 0.3,
        random.choice(np.array(values, dtype), size=n),
        random.standard_normal(n).astype(dtype),
    ).astype(dtype)
    comparisons = allowed.comparisons
    if allowed.uniform_comparison:
        comparisons = (draw(st.sampled_from(comparisons)),)
    comparison = random.choice(np.array(comparisons), size=n)
    feature = random.integers(n_features, size=n)
    categories: dict[int, np.ndarray] = {}
    if allowed.categories and draw(st.booleans()):
        # a feature is either numeric or a category, as in every source
        for test in np.flatnonzero(feature % 2 == 1):
            comparison[test] = random.choice([Comparison.IN, Comparison.NOT_IN])
            words = random.integers(2**32, size=random.integers(1, 4), dtype=np.uint64)
            categories[int(test)] = words.astype(np.uint32)
        threshold[feature % 2 == 1] = 0
    return {
        "feature": feature,
        "comparison": comparison,
        "threshold": threshold,
        "missing": random.choice(np.array(allowed.missing), size=n),
        "missing_left": random.random(n) < 0.5,
        "categories": categories,
    }


def _covers(
    draw: st.DrawFn,
    allowed: ForestKind,
    left: np.ndarray,
    right: np.ndarray,
    offset: np.ndarray,
    random: np.random.Generator,
) -> np.ndarray:
    """Draw training weights: a node has those of its children together."""
    if not allowed.covers or not draw(st.booleans()):
        return np.zeros(0)
    cover = random.integers(1, 50, size=len(left)).astype(np.float64)
    pending = [(int(root), False) for root in offset[:-1]]
    while pending:
        node, done = pending.pop()
        if left[node] < 0:
            continue
        if done:
            cover[node] = cover[left[node]] + cover[right[node]]
        else:
            pending += [
                (node, True),
                (int(left[node]), False),
                (int(right[node]), False),
            ]
    return cover
