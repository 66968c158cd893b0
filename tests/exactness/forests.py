"""Small forests of every kind a frontend makes, by name; each is made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.predicates import deduplicate_predicates
from tests.strategies_forest import edge_rows

NUMERIC = (Comparison.LT, Comparison.LE, Comparison.GT, Comparison.GE)
XGBOOST = (Comparison.LT,)
SKLEARN = (Comparison.LE,)
#: Of 10, by number from -6 to 5: NumPy's depend on the CPU's vectors.
POWERS = np.array([float(f"1e{i}") for i in (*range(6), *range(-6, 0))])


def tree(shape: str, size: int, random: np.random.Generator) -> tuple:
    """Return the children of one tree: "full" or "random" of a depth, or a "chain"."""
    left, right = [-1], [-1]

    def split(node: int) -> tuple[int, int]:
        left[node], right[node] = len(left), len(left) + 1
        left.extend((-1, -1))
        right.extend((-1, -1))
        return left[node], right[node]

    level = [0]
    for step in range(size):
        if shape == "chain":
            level = [split(level[0])[(step // 3) % 2]]
        else:
            split_all = shape == "full" or step == 0
            grown = [n for n in level if split_all or random.random() < 0.7]
            level = [child for node in grown for child in split(node)]
    return np.array(left), np.array(right)


def forest_of(
    trees: Sequence[tuple],
    *,
    seed: int = 0,
    n_features: int = 5,
    dtype: str = "float32",
    sums: str = "float32",
    comparisons: Sequence[Comparison] = XGBOOST,
    missing: Sequence[Missing] = (Missing.NAN,),
    thresholds: Sequence[float] = (),
    category_words: int = 0,
    n_outputs: int = 1,
    vector: bool = False,
    divisor: int = 1,
    covers: bool = False,
    missing_value: float = float("nan"),
) -> Forest:
    """Return a valid forest of the given trees with drawn tests and leaf values."""
    random = np.random.default_rng(seed)
    sizes = [len(left) for left, _ in trees]
    offset = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    none = np.zeros(0, np.int64)
    children = []
    for side in (0, 1):
        parts = [
            np.where(t[side] < 0, -1, t[side] + at)
            for t, at in zip(trees, offset, strict=False)
        ]
        children.append(np.concatenate([none, *parts]))
    left, right = children
    inner = left >= 0
    n = int(inner.sum())
    feature = random.integers(n_features, size=n)
    # values a tenth apart, so that nodes share predicates
    threshold = np.round(random.standard_normal(n), 1).astype(dtype)
    if len(thresholds):
        at = random.random(n) < 0.5
        threshold[at] = random.choice(np.array(thresholds, dtype), int(at.sum()))
    comparison = random.choice(np.array(comparisons), size=n)
    categories: dict[int, np.ndarray] = {}
    if category_words:
        for test in np.flatnonzero(feature % 2):
            comparison[test] = (Comparison.IN, Comparison.NOT_IN)[test % 2]
            threshold[test] = 0
            words = random.integers(2**32, size=1 + test % category_words)
            categories[int(test)] = words.astype(np.uint32)
    fields, distinct = deduplicate_predicates(
        feature=feature,
        comparison=comparison,
        threshold=threshold,
        missing=random.choice(np.array(missing), size=n),
        missing_left=random.random(n) < 0.5,
        categories=categories,
    )
    predicate = np.full(len(left), -1, np.int32)
    predicate[inner] = distinct
    n_leaves = int((~inner).sum())
    leaf = np.full(len(left), -1, np.int32)
    leaf[~inner] = random.permutation(n_leaves)
    values = random.standard_normal((n_leaves, n_outputs if vector else 1))
    magnitude = POWERS[random.integers(-6, 6, size=values.shape)]
    outputs = np.full(len(trees), -1) if vector else np.arange(len(trees)) % n_outputs
    return Forest(
        tree_offset=offset,
        tree_output=outputs,
        predicate=predicate,
        left=left,
        right=right,
        leaf=leaf,
        source_node=np.concatenate([none, *map(random.permutation, sizes)]),
        cover=_covers(left, right, random) if covers else np.zeros(0),
        # magnitudes differ, so that any other order of summation shows
        leaf_value=(values * magnitude).astype(sums),
        n_features=n_features,
        base=random.standard_normal(n_outputs).astype(sums),
        divisor=divisor,
        missing_value=missing_value,
        **fields,
    ).validate()


def _covers(
    left: np.ndarray, right: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Draw weights of leaves, skewed; a node has those of its children together."""
    cover = random.integers(1, 1000, size=len(left)).astype(np.float64)
    for node in np.flatnonzero(left >= 0)[::-1]:  # children come after parents
        cover[node] = cover[left[node]] + cover[right[node]]
    return cover


def drawn(
    n: int, depth: int, *, shape: str = "random", seed: int = 1, **kind: object
) -> Forest:
    """Return a forest of ``n`` trees of one shape."""
    random = np.random.default_rng(seed)
    trees = [tree(shape, depth, random) for _ in range(n)]
    return forest_of(trees, seed=seed, **kind)  # type: ignore[arg-type]


def _mixed_trees() -> list[tuple]:
    """Leaves, stumps, a chain, full and random trees side by side."""
    random = np.random.default_rng(5)
    shapes = [("full", 0), ("full", 1), ("chain", 12), ("full", 4), ("random", 7)]
    return [tree(*shape, random) for shape in (*shapes, *shapes[::-1], ("full", 0))]


EXTREMES = (
    0.0,
    -0.0,
    1e-40,
    -1e-45,
    float(np.finfo(np.float32).max),
    float(np.finfo(np.float32).tiny),
    float("inf"),
    float("-inf"),
)
ALL_MISSING = tuple(Missing)

MAKERS: dict[str, Callable[[], Forest]] = {
    "scalar": lambda: drawn(7, 6),
    "full": lambda: drawn(9, 4, shape="full", covers=True),
    "deep": lambda: drawn(5, 12, covers=True),
    "averaged": lambda: drawn(6, 5, comparisons=SKLEARN, divisor=6, sums="float64"),
    "multiclass": lambda: drawn(11, 5, n_outputs=3),
    "multiclass many": lambda: drawn(23, 3, n_outputs=10, sums="float64"),
    "vector 2": lambda: drawn(6, 5, n_outputs=2, vector=True),
    "vector 3": lambda: drawn(6, 5, n_outputs=3, vector=True, sums="float64"),
    "vector 10": lambda: drawn(5, 4, n_outputs=10, vector=True),
    "vector 100": lambda: drawn(
        4, 4, n_outputs=100, vector=True, sums="float64", divisor=4
    ),
    "double": lambda: drawn(
        7, 6, dtype="float64", sums="float64", comparisons=SKLEARN, divisor=7
    ),
    "extremes": lambda: drawn(8, 5, comparisons=NUMERIC, thresholds=EXTREMES),
    "double extremes": lambda: drawn(
        8,
        5,
        dtype="float64",
        comparisons=NUMERIC,
        thresholds=(*EXTREMES, 5e-324, 1e-35, 1.7e308),
        missing=ALL_MISSING,
    ),
    "never missing": lambda: drawn(6, 5, missing=(Missing.NEVER,)),
    "zero missing": lambda: drawn(
        6, 6, comparisons=SKLEARN, missing=(Missing.ZERO,), thresholds=EXTREMES
    ),
    "any missing": lambda: drawn(8, 6, comparisons=NUMERIC, missing=ALL_MISSING),
    "marked missing": lambda: drawn(6, 5, missing_value=-1.0),
    "categories": lambda: drawn(8, 6, category_words=4, missing=ALL_MISSING),
    "double categories": lambda: drawn(
        8, 6, dtype="float64", category_words=3, n_outputs=2, missing=(Missing.NAN,)
    ),
    "mixed trees": lambda: forest_of(_mixed_trees(), seed=3, covers=True),
    "leaves": lambda: drawn(5, 0, shape="full"),
    "one leaf": lambda: drawn(1, 0, shape="full", n_features=1),
    "no trees": lambda: forest_of([], n_outputs=2),
    "chains": lambda: drawn(4, 40, shape="chain"),
    "wide rows": lambda: drawn(9, 6, n_features=1000),
    # a feature number and a record number do not fit one word together
    "wide records": lambda: drawn(90, 6, n_features=1 << 20, thresholds=EXTREMES),
}


@cache
def forest(name: str) -> Forest:
    """Return a forest by name."""
    return MAKERS[name]()


@cache
def rows_for(name: str, n: int) -> np.ndarray:
    """Return rows of a named forest's own thresholds, their neighbours and oddities."""
    made = forest(name)
    used = np.unique(made.feature)
    if len(used) == made.n_features:
        return edge_rows(made, n, seed=11)
    # only features that are tested need values of their own
    rows = np.full((n, made.n_features), np.nan, made.input_dtype)
    narrow = replace(
        made,
        feature=np.searchsorted(used, made.feature).astype(np.int32),
        n_features=max(1, len(used)),
    )
    drawn = edge_rows(narrow, n, seed=11)
    rows[:, used] = drawn[:, : len(used)]
    return rows
