"""Forests and schedules for the bit-sliced representation's tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, lru_cache

import numpy as np

from skforge.forest.arrays import Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.reference import reference_raw
from skforge.schedule.schedule import Schedule
from tests.exactness.forests import EXTREMES, NUMERIC, SKLEARN, drawn, forest_of, tree
from tests.strategies_forest import edge_rows

BATCHES = (1, 2, 63, 64, 65, 511, 512, 513, 1000, 1537)
#: Numbers of thresholds: compared one by one, searched in 4 to 8 levels, in parts.
COUNTS = (1, 3, 9, 10, 15, 16, 17, 31, 32, 47, 63, 64, 127, 128, 255, 256, 600)


def sliced(block: int = 512, *, parallel: bool = True) -> Schedule:
    """Return the schedule that evaluates predicates for blocks of rows."""
    made = Schedule().tile("batch", "b0", "b1", block).reorder("b0", "tree", "b1")
    if parallel:
        made = made.parallel("b0")
    return made.cache_predicates("b0").vectorize("b1").represent("bitsliced")


def _mixed() -> Forest:
    random = np.random.default_rng(3)
    made = [tree("full", 6, random), grown(100, random), tree("full", 0, random)]
    made += [tree("random", 7, random), chain(30, 1), tree("chain", 12, random)]
    return forest_of([*made, *made[::-1]], seed=3)


def counted(
    counts: Sequence[int],
    *,
    dtype: str = "float32",
    comparison: Comparison = Comparison.LT,
    missing: Missing = Missing.NAN,
    sides: str = "mixed",
    infinite: bool = False,
    twice: bool = False,
    even: bool = False,
    used: Sequence[int] | None = None,
    n_features: int | None = None,
    depth: int = 6,
    n_trees: int = 1,
    seed: int = 0,
) -> Forest:
    """Return a forest whose feature ``used[i]`` has exactly ``counts[i]`` thresholds.

    It has at least ``n_trees`` full trees of one depth.

    With ``twice``, every threshold has one test that sends missing values left and
    one that sends them right. ``even`` thresholds lie about as far apart as each other.
    """
    random = np.random.default_rng(seed)
    numbers = list(range(len(counts))) if used is None else list(used)
    features, thresholds = [], []
    for feature, count in zip(numbers, counts, strict=True):
        values = np.sort(random.standard_normal(4 * count).astype(dtype))
        values = random.choice(np.unique(values), count, replace=False)
        if even:
            steps = np.arange(count) + random.uniform(0, 0.5, count)
            values = (3 * steps / count - 1).astype(dtype)
        if infinite:
            values[: min(2, count)] = (np.inf, -np.inf)[: min(2, count)]
        features += [feature] * count
        thresholds.append(values)
    feature = np.array(features, np.int32)
    threshold = np.concatenate(thresholds)
    left = random.random(len(feature)) < 0.5
    if sides != "mixed":
        left[:] = sides == "left"
    if twice:
        feature, threshold = np.tile(feature, 2), np.tile(threshold, 2)
        left = np.concatenate([left, ~left])
    n = len(feature)
    per_tree = (1 << depth) - 1
    n_trees = max(n_trees, -(-n // per_tree))
    trees = [tree("full", depth, random) for _ in range(n_trees)]
    made = forest_of(trees, seed=seed, dtype=dtype, sums="float32")
    inner = made.left >= 0
    predicate = np.full(made.n_nodes, -1, np.int32)
    predicate[inner] = np.resize(random.permutation(n), int(inner.sum()))
    return replace(
        made,
        predicate=predicate,
        feature=feature,
        threshold=threshold,
        comparison=np.full(n, comparison, np.uint8),
        missing=np.full(n, missing, np.uint8),
        missing_left=left,
        category_offset=np.zeros(n + 1, np.int64),
        category_words=np.zeros(0, np.uint32),
        n_features=n_features or max(numbers) + 1,
    ).validate()


def _depths(*depths: int) -> Forest:
    random = np.random.default_rng(4)
    return forest_of(
        [tree("full", d, random) for d in depths], seed=4, comparisons=SKLEARN
    )


def grown(leaves: int, random: np.random.Generator, power: float = 0.3) -> tuple:
    """Return a tree grown leaf by leaf; below a power of 1 late leaves split more."""
    left, right = [-1], [-1]
    open_ = [0]
    for _ in range(leaves - 1):
        pick = int(len(open_) * random.random() ** power)
        node = open_.pop(pick)
        left[node], right[node] = len(left), len(left) + 1
        open_ += [left[node], right[node]]
        left += [-1, -1]
        right += [-1, -1]
    return np.array(left), np.array(right)


def _grown(*leaves: int, **kind: object) -> Forest:
    random = np.random.default_rng(6)
    trees = [grown(n, random) for n in leaves]
    return forest_of(trees, seed=6, **kind)  # type: ignore[arg-type]


def even(*depths: int, **kind: object) -> Forest:
    """Return complete trees with a single test on each level."""
    random = np.random.default_rng(0)
    made = [tree("full", depth, random) for depth in depths]
    return evened(forest_of(made, **kind), range(len(depths)))  # type: ignore[arg-type]


def evened(made: Forest, trees: Sequence[int]) -> Forest:
    """Return a forest, some complete trees of which have one test on each level."""
    predicate = made.predicate.copy()
    for number in trees:
        for level in range(made.tree_depths()[number]):
            nodes = np.arange((1 << level) - 1, (2 << level) - 1)
            nodes += made.tree_offset[number]
            predicate[nodes] = predicate[nodes[0]]
    return replace(made, predicate=predicate)


def chain(leaves: int, side: int) -> tuple:
    """Return a tree whose inner nodes are all left, or all right, children."""
    n = leaves - 1
    nodes = np.arange(2 * n + 1)
    inner, leaf = np.full(2 * n + 1, -1), np.full(2 * n + 1, -1)
    inner[:n], leaf[:n] = nodes[1 : n + 1], nodes[n + 1 :]
    inner[n - 1] = n
    return (inner, leaf) if side == 0 else (leaf, inner)


def _chains(*leaves: int) -> Forest:
    return forest_of([chain(n, k % 2) for k, n in enumerate(leaves)], seed=8)


def _sides(side: bool, **kind: object) -> Forest:
    made = drawn(8, 6, **kind)  # type: ignore[arg-type]
    return replace(made, missing_left=np.full(made.n_predicates, side))


def _truncating(**kind: object) -> Forest:
    return replace(drawn(8, 6, category_words=4, **kind), truncate_categories=True)


def _members(made: Forest) -> Forest:
    """Make a number with a fraction a member of no set."""
    test = made.comparison.copy()
    test[np.isin(test, (Comparison.IN, Comparison.NOT_IN))] = Comparison.MEMBER
    return replace(made, comparison=test)


DOUBLE = {"dtype": "float64", "sums": "float64"}
TINY = (*EXTREMES, 1e-35, -1e-35, 1e-36, float(np.float32(1e-35)), 1.0000001e-35)

MAKERS: dict[str, Callable[[], Forest]] = {
    "lt": lambda: drawn(20, 8),
    "le averaged": lambda: drawn(6, 8, comparisons=SKLEARN, divisor=6, sums="float64"),
    "double": lambda: drawn(7, 6, comparisons=SKLEARN, divisor=7, **DOUBLE),
    "double lt, float sums": lambda: drawn(7, 6, dtype="float64"),
    "full": lambda: drawn(5, 8, shape="full"),
    "multiclass": lambda: drawn(11, 5, n_outputs=3),
    "multiclass double": lambda: drawn(23, 4, n_outputs=10, sums="float64"),
    "vector 2": lambda: drawn(6, 5, n_outputs=2, vector=True),
    "vector 3": lambda: drawn(6, 7, n_outputs=3, vector=True, sums="float64"),
    "vector 6": lambda: drawn(5, 7, n_outputs=6, vector=True, sums="float64"),
    "vector 10": lambda: drawn(5, 8, n_outputs=10, vector=True),
    "vector 19": lambda: drawn(5, 6, n_outputs=19, vector=True),
    "extremes": lambda: drawn(8, 6, comparisons=NUMERIC, thresholds=EXTREMES),
    "double extremes": lambda: drawn(
        8, 6, comparisons=NUMERIC, thresholds=(*EXTREMES, 5e-324, 1.7e308), **DOUBLE
    ),
    "all right": lambda: _sides(False),
    "all left": lambda: _sides(True),
    "all right, le": lambda: _sides(False, comparisons=SKLEARN, **DOUBLE),
    "never": lambda: _sides(False, missing=(Missing.NEVER,), thresholds=TINY),
    "never, le": lambda: drawn(
        6, 6, missing=(Missing.NEVER,), thresholds=TINY, comparisons=SKLEARN, **DOUBLE
    ),
    "zero": lambda: drawn(
        6, 6, comparisons=SKLEARN, missing=(Missing.ZERO,), thresholds=TINY
    ),
    "zero, double": lambda: drawn(
        6, 6, comparisons=SKLEARN, missing=(Missing.ZERO,), thresholds=TINY, **DOUBLE
    ),
    "marked": lambda: drawn(6, 5, missing_value=-1.0),
    "categories": lambda: drawn(8, 6, category_words=4),
    "categories, double": lambda: drawn(8, 6, category_words=3, n_outputs=2, **DOUBLE),
    "categories, cut": _truncating,
    "categories, cut, double": lambda: _truncating(**DOUBLE),
    "categories, never": lambda: _truncating(missing=(Missing.NEVER,)),
    "categories, zero": lambda: _truncating(missing=(Missing.ZERO,)),
    "members": lambda: _members(drawn(8, 6, category_words=4)),
    "members, double": lambda: _members(drawn(8, 6, category_words=12, **DOUBLE)),
    "categories, all right": lambda: _sides(False, category_words=4),
    "categories only": lambda: drawn(5, 4, n_features=2, category_words=2, seed=9),
    "depths 0 to 8": lambda: _depths(*range(9), *range(8, -1, -1)),
    "depths 0 and 8": lambda: _depths(8, 0, 8, 0),
    "one stump": lambda: _depths(1),
    "one tree": lambda: drawn(1, 8),
    "lists of 31": lambda: _grown(*[31] * 20, n_features=20),
    "lists of 2 to 256": lambda: _grown(2, 3, 4, 5, 7, 8, 9, 17, 33, 65, 127, 128, 256),
    "lists of 255": lambda: _grown(255, 256, 200, comparisons=SKLEARN, **DOUBLE),
    "lists, multiclass": lambda: _grown(*[20] * 9, n_outputs=3),
    "lists, vector": lambda: _grown(40, 1, 31, 2, n_outputs=4, vector=True),
    "lists, categories": lambda: _grown(
        *[31] * 6, category_words=3, comparisons=SKLEARN, missing=(Missing.ZERO,)
    ),
    "lists and folds": lambda: _mixed(),
    "chains": lambda: _chains(3, 4, 9, 10, 64, 65, 200, 256, 255),
    "counts": lambda: counted(COUNTS),
    "counts, le": lambda: counted(COUNTS, comparison=Comparison.LE, sides="right"),
    "counts, lt right": lambda: counted(COUNTS, sides="right"),
    "counts, left": lambda: counted(COUNTS, sides="left"),
    "counts, infinite": lambda: counted(COUNTS, infinite=True),
    "counts, infinite le": lambda: counted(
        COUNTS, infinite=True, comparison=Comparison.LE
    ),
    "counts, twice": lambda: counted(COUNTS, twice=True),
    "counts, never": lambda: counted(COUNTS, missing=Missing.NEVER),
    "counts, zero": lambda: counted(COUNTS, missing=Missing.ZERO),
    "counts, double": lambda: counted(COUNTS, dtype="float64", infinite=True),
    "counts, double le": lambda: counted(
        COUNTS, dtype="float64", comparison=Comparison.LE, twice=True
    ),
    "1 feature": lambda: drawn(4, 5, n_features=1),
    "1 feature, double": lambda: drawn(4, 5, n_features=1, **DOUBLE),
    "13 features": lambda: drawn(9, 6, n_features=13),
    "16 features": lambda: drawn(9, 6, n_features=16),
    "17 features": lambda: drawn(9, 6, n_features=17),
    "17 features, double": lambda: drawn(9, 6, n_features=17, **DOUBLE),
    "100 features": lambda: drawn(9, 7, n_features=100),
    "501 features": lambda: drawn(9, 7, n_features=501),
    "501 features, double": lambda: drawn(9, 7, n_features=501, **DOUBLE),
    "2000 features": lambda: drawn(30, 7, n_features=2000),
    "2000 features, few used": lambda: counted(
        (20, 300, 5, 9, 16), used=(3, 18, 1001, 1998, 1999), n_features=2000
    ),
    "600 features, never": lambda: counted(
        (20, 300, 5), used=(3, 18, 599), n_features=600, missing=Missing.NEVER
    ),
}


@cache
def forest(name: str) -> Forest:
    """Return a forest by name."""
    return MAKERS[name]()


@lru_cache(maxsize=3)
def case(name: str) -> tuple[Forest, np.ndarray, np.ndarray]:
    """Return a named forest, rows on its edges, and their raw scores."""
    made = forest(name)
    rows = rows_of(made, max(BATCHES))
    return made, rows, reference_raw(made, rows)


def rows_of(made: Forest, n: int, seed: int = 11) -> np.ndarray:
    """Return rows on the edges of a forest; unused features are NaN or infinite."""
    used = np.unique(made.feature)
    random = np.random.default_rng(seed)
    odd = np.array([np.nan, np.inf, 0.0], made.input_dtype)
    rows = random.choice(odd, (n, made.n_features))
    narrow = replace(
        made,
        feature=np.searchsorted(used, made.feature).astype(np.int32),
        n_features=max(1, len(used)),
    )
    rows[:, used] = edge_rows(narrow, n, seed=seed)[:, : len(used)]
    if len(made.category_words):
        # -0.9 is category 0 where numbers are cut, and no category elsewhere
        at = random.random(rows.shape) < 0.05
        rows[at] = random.choice(np.array([-0.9, -0.1, 0.9, 31.5, 2.0**24, 3e9]))
    return rows
