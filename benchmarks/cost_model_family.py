"""Forests of many shapes: what the cost model learns from, and what judges defaults.

``MAKERS`` has trees × depth × features × shape, small to train and different in what
schedules depend on: a name says kind and sizes. Nothing was fitted to ``UNSEEN``: large
sets of categories, thousands of columns, one tree, stumps, many classes, deep trees,
random forests of boosters; nor to ``DRAWN``, whose sizes nobody chose. Forests are
trained once and kept with their rows in the cache of the other models.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import training
from models import cache_folder, rows_beside, shared_folder
from numpy.typing import NDArray
from synthetic import random_model
from training import HELD_OUT, Rows, Trained, with_missing

from skforge import load_forest
from skforge.forest.forest import Forest

REVISION = 1  # of what is trained: another number makes all anew


@dataclass(frozen=True, slots=True)
class Sample:
    """A forest, and rows for it; None where rows are drawn around its thresholds."""

    name: str
    forest: Forest
    rows: NDArray[Any] | None


# ------------------------------------------------------------ what is learned from


def _table(features: int, n: int = 6_000, classes: int = 2) -> tuple[Any, Any]:
    return training.table(n, features, classes, 30, 3, 0.1)


def _with_sets(features: int, columns: int, levels: int) -> tuple[Any, Any]:
    """Return a table whose first columns are categories, each with an effect."""
    X, y = _table(features, 10_000)
    random = np.random.default_rng([columns, levels])
    score = X[:, -1] * y + X[:, -2]
    for column in range(columns):
        X[:, column] = random.integers(0, levels, len(X))
        score = score + random.standard_normal(levels)[X[:, column].astype(np.int64)]
    return X, score


def _xgboost(
    trees: int, depth: int, features: int, missing: float = 0, **parameters: Any
) -> Trained:
    X, y = _table(features)
    X = with_missing(X, missing, seed=0)
    y = np.nan_to_num(X[:, 0]) * y + np.nan_to_num(X[:, 1])
    usual = {"nthread": 1, "max_depth": depth}
    return training.xgboost(X, y, trees, **usual, **parameters)


def _xgboost_classes(rounds: int, depth: int, features: int, classes: int) -> Trained:
    usual = {"nthread": 1, "max_depth": depth, "objective": "multi:softprob"}
    table = _table(features, classes=classes)
    return training.xgboost(*table, rounds, **usual, num_class=classes)


def _xgboost_sets(trees: int, depth: int, *sizes: int) -> Trained:
    usual = {"nthread": 1, "max_depth": depth}
    return training.xgboost(*_with_sets(*sizes), trees, sizes[1], **usual)


def _lightgbm(trees: int, leaves: int, features: int, classes: int = 2) -> Trained:
    X, y = _table(features, classes=classes)
    sizes = {"n_estimators": trees, "num_leaves": leaves}
    if classes > 2:
        return training.lightgbm(X, y, "LGBMClassifier", **sizes)
    return training.lightgbm(
        X, X[:, 0].astype(np.float64) * y, "LGBMRegressor", **sizes
    )


def _lightgbm_sets(trees: int, leaves: int, *sizes: int) -> Trained:
    X, y = _with_sets(*sizes)
    return training.lightgbm_booster(X, y, trees, sizes[1], num_leaves=leaves)


def _sklearn(
    name: str,
    trees: int,
    depth: int | None,
    features: int,
    n: int = 4_000,
    classes: int = 2,
) -> Trained:
    X, y = _table(features, n, classes)
    y = y if name.endswith("Classifier") else X[:, 0] * y + X[:, 1]
    sizes = {"n_estimators": trees, "max_depth": depth, "n_jobs": 1}
    return training.sklearn(name, X, y, **sizes)


def _shared(name: str) -> Trained:
    return Trained("file", shared_folder() / name, np.zeros((0, 0)))


#: What trains a kind of forest of the sizes in its name, and behind a colon beside it.
TRAINERS: dict[str, Callable[..., Trained]] = {
    "xgboost": _xgboost,
    "xgboost-missing": partial(_xgboost, missing=0.2),
    "xgboost-exact": partial(_xgboost, tree_method="exact"),
    "xgboost-classes": _xgboost_classes,
    "xgboost-sets": _xgboost_sets,
    "lightgbm": _lightgbm,
    "lightgbm-sets": _lightgbm_sets,
}
SIZES = (
    ("synthetic", "10x8-4 30x32-6 100x8-6 100x64-8 300x16-5 100x256-7 500x32-6"),
    ("synthetic", "1000x8-4 50x1024-6 200x128-8"),
    ("xgboost", "20x3x10 100x6x28 100x8x28 300x4x60 500x6x20 50x10x28 1000x3x12"),
    ("xgboost", "6000x5x16 12000x6x16 16000x4x14"),
    ("xgboost-classes", "600x6x16x20"),
    ("xgboost", "200x8x200 10x8x28 100x7x600 1x6x12 3x9x24 40x12x16 1x8x16 200x1x24"),
    ("xgboost", "100x10x20 100x12x28 100x14x24 1x8x28"),
    ("xgboost", "60x5x2400 200x3x1000 5x5x400 30x3x80"),
    ("xgboost-missing", "150x5x40 60x9x24"),
    ("xgboost-exact", "100x8x28"),
    ("lightgbm", "100x15x28 100x31x28 100x63x40 100x255x28 300x31x100 500x15x20"),
    ("lightgbm", "50x127x400 1000x31x12 1x127x16 2x400x30 40x63x1500 1x300x24"),
    ("lightgbm", "15x1000x24 4x20x250 40x31x28x5"),
    ("RandomForestClassifier", "100x6x20 100x10x30 50xNonex30"),
    ("RandomForestRegressor", "100xNonex20 20xNonex60 200x12x16"),
    ("ExtraTreesRegressor", "100x8x30"),
    ("ExtraTreesClassifier", "50xNonex200"),
    ("ExtraTreesRegressor", "100x13x24"),
    ("RandomForestRegressor", "1x9x16 1xNonex14x12000 1x8x28"),
    ("ExtraTreesRegressor", "2xNonex6x12000"),
    ("RandomForestClassifier", "100x4x2500 30xNonex16x4000x8"),
    ("RandomForestClassifier", "100xNonex784x6000x5"),
    ("ExtraTreesClassifier", "100x9x24x4000x5"),
    ("RandomForestClassifier", "40x13x20x6000x150"),
    ("ExtraTreesRegressor", "150x10x12"),
    ("RandomForestRegressor", "60x13x24x12000 1x6x20 6x9x17"),
    ("ExtraTreesRegressor", "25xNonex300"),
    ("xgboost-sets", "100x6x28:3x300 50x8x40:6x40 80x7x30:5x25 8x4x40:10x60"),
    ("lightgbm-sets", "100x31x28:3x300 60x63x12:2x1000 200x15x28:6x60 12x8x80:6x100"),
    ("lightgbm-sets", "1x18x5:2x30 1x63x12:6x200 4x31x10:3x30 15x31x20:2x40"),
    ("xgboost-sets", "1x6x10:3x30 1x8x12:10x12"),
)
FILES = ("airline.json", "year_prediction_msd.json", "epsilon.json",
         "lightgbm/NYC_taxi.txt")  # fmt: skip


def _trained(kind: str, sizes: str) -> Trained:
    if kind == "synthetic":
        return random_model(f"synthetic-{sizes}")
    numbers = [
        None if word == "None" else int(word) for word in re.split("[x:]", sizes)
    ]
    return TRAINERS.get(kind, partial(_sklearn, kind))(*numbers)


# ------------------------------------------------------------ what judges


def _rows(features: int, n: int, seed: int) -> Rows:
    """Draw columns of several kinds: normal, skewed, whole numbers and few values."""
    random = np.random.default_rng([features, n, seed])
    X = random.standard_normal((n + HELD_OUT, features))
    X[:, 1::4] = np.exp(X[:, 1::4])
    X[:, 2::4] = np.round(X[:, 2::4] * 20)
    X[:, 3::8] = np.round(X[:, 3::8])
    return X.astype(np.float32)


def _target(X: Rows, seed: int) -> Rows:
    """Return a nonlinear score of some of the columns, with noise."""
    random = np.random.default_rng(seed)
    used = random.permutation(X.shape[1])[:12]
    Z = X[:, used].astype(np.float64)
    Z = (Z - Z.mean(0)) / (Z.std(0) + 1e-9)
    score = Z @ random.standard_normal(len(used)) + np.sin(3 * Z[:, 0]) * Z[:, -1]
    return np.asarray(score + 0.3 * random.standard_normal(len(X)))


def _categories(X: Rows, y: Rows, columns: int, levels: int) -> tuple[Rows, Rows]:
    """Replace the first columns by categories, each level with an effect of its own."""
    random = np.random.default_rng([columns, levels])
    X, y = X.copy(), y.copy()
    for column in range(columns):
        code = (levels * random.random(len(X)) ** 1.5).astype(np.int64)
        X[:, column] = code
        y += random.standard_normal(levels)[code]
    return X, y


def _classes(y: Rows, classes: int) -> Rows:
    cuts = np.quantile(y, np.arange(1, classes) / classes)
    return np.searchsorted(cuts, y)


def _xgb(
    trees: int,
    depth: int,
    features: int,
    n: int = 8_000,
    categories: tuple[int, int] = (0, 0),
    missing: float = 0.0,
    **parameters: Any,
) -> Trained:
    X = _rows(features, n, depth)
    y = _target(X, trees)
    if categories[0]:
        X, y = _categories(X, y, *categories)
    if missing:
        X = with_missing(X, missing, seed=0)
    if classes := parameters.get("num_class"):
        y = _classes(y, classes)
    elif parameters.get("objective") == "count:poisson":
        y = np.exp(np.clip(y / 4, -3, 3))
    elif parameters.get("multi_strategy"):
        y = np.stack([y, y**2, np.abs(y)], 1)
    parameters = {"nthread": 1, "max_depth": depth, **parameters}
    return training.xgboost(X, y, trees, categories[0], **parameters)


def _lgbm(
    trees: int,
    leaves: int,
    features: int,
    n: int = 10_000,
    categories: tuple[int, int] = (0, 0),
    classes: int = 0,
    **parameters: Any,
) -> Trained:
    X = _rows(features, n, leaves).astype(np.float64)
    y = _target(X, trees)
    if categories[0]:
        X, y = _categories(X, y, *categories)
    parameters = {"num_leaves": leaves, "min_data_in_leaf": 5, **parameters}
    if classes:
        parameters |= {"objective": "multiclass", "num_class": classes}
        y = _classes(y, classes)
    return training.lightgbm_booster(X, y, trees, categories[0], **parameters)


def _skl(
    name: str,
    features: int,
    n: int = 5_000,
    classes: int = 2,
    categories: tuple[int, int] = (0, 0),
    **parameters: Any,
) -> Trained:
    X = _rows(features, n, classes)
    y = _target(X, features)
    if categories[0]:
        X, y = _categories(X, y, *categories)
        parameters["categorical_features"] = list(range(categories[0]))
    if name.endswith("Classifier"):
        y = _classes(y, classes)
    return training.sklearn(name, X, y, **parameters)


UNSEEN: dict[str, Callable[[], Trained]] = {
    "xgb-sets-of-800": partial(_xgb, 100, 6, 20, 20_000, (4, 800)),
    "xgb-sets-of-30": partial(_xgb, 120, 7, 16, categories=(6, 30)),
    "xgb-3000-columns": partial(_xgb, 100, 4, 3000, 3_000),
    "xgb-968-columns": partial(_xgb, 100, 8, 968, 6_000),
    "xgb-depth-12": partial(_xgb, 50, 12, 20, 20_000),
    "xgb-poisson": partial(_xgb, 250, 5, 13, objective="count:poisson"),
    "xgb-800-of-depth-2": partial(_xgb, 800, 2, 40),
    "xgb-7-classes": partial(_xgb, 40, 4, 24, num_class=7, objective="multi:softprob"),
    "xgb-by-loss": partial(_xgb, 80, 0, 30, grow_policy="lossguide", max_leaves=64),
    "xgb-one-tree": partial(_xgb, 1, 8, 18),
    "xgb-stumps": partial(_xgb, 500, 1, 18),
    "xgb-random-forest": partial(
        _xgb,
        1,
        10,
        22,
        num_parallel_tree=100,
        subsample=0.7,
        eta=1.0,
        colsample_bynode=0.4,
    ),
    "xgb-many-bins": partial(_xgb, 60, 7, 300, tree_method="approx", max_bin=1024),
    "xgb-missing": partial(_xgb, 100, 6, 50, missing=0.3),
    "xgb-vector-leaves": partial(_xgb, 50, 5, 16, multi_strategy="multi_output_tree"),
    "lgbm-sets-of-400": partial(_lgbm, 100, 61, 24, 20_000, (5, 400)),
    "lgbm-sets-of-800": partial(_lgbm, 200, 63, 20, 20_000, (4, 800)),
    "lgbm-400-of-15": partial(_lgbm, 400, 15, 8),
    "lgbm-1000-leaves": partial(_lgbm, 30, 1000, 28, 30_000),
    "lgbm-20-classes": partial(_lgbm, 15, 20, 16, classes=20),
    "lgbm-1200-columns": partial(_lgbm, 60, 127, 1200, 5_000),
    "lgbm-random-forest": partial(
        _lgbm,
        100,
        63,
        40,
        boosting="rf",
        bagging_freq=1,
        bagging_fraction=0.6,
        feature_fraction=0.5,
    ),
    "lgbm-one-tree": partial(_lgbm, 1, 255, 20),
    "lgbm-15-bins": partial(_lgbm, 300, 31, 32, max_bin=15),
    "lgbm-150-columns": partial(_lgbm, 150, 40, 150),
    "rf-depth-14": partial(_skl, "RandomForestClassifier", 12, max_depth=14),
    "rf-20-full": partial(_skl, "RandomForestRegressor", 8, n_estimators=20),
    "rf-10-classes": partial(
        _skl, "RandomForestClassifier", 26, classes=10, n_estimators=50
    ),
    "rf-1000-of-depth-4": partial(
        _skl, "RandomForestRegressor", 15, n_estimators=1000, max_depth=4
    ),
    "et-depth-14": partial(_skl, "ExtraTreesRegressor", 20, max_depth=14),
    "et-depth-10": partial(
        _skl, "ExtraTreesClassifier", 40, n_estimators=300, max_depth=10
    ),
    "gb-depth-3": partial(_skl, "GradientBoostingClassifier", 30),
    "gb-depth-7": partial(
        _skl, "GradientBoostingRegressor", 15, 3_000, n_estimators=200, max_depth=7
    ),
    "hgb-200": partial(_skl, "HistGradientBoostingRegressor", 25, max_iter=200),
    "hgb-4-classes": partial(
        _skl, "HistGradientBoostingClassifier", 18, classes=4, max_iter=60
    ),
    "hgb-sets-of-60": partial(
        _skl, "HistGradientBoostingRegressor", 14, 8_000, categories=(4, 60)
    ),
    "isolation-200": partial(_skl, "IsolationForest", 12, n_estimators=200),
    "tree-depth-6": partial(_skl, "DecisionTreeClassifier", 30, max_depth=6),
    "tree-full": partial(_skl, "DecisionTreeRegressor", 10, 20_000),
    "synthetic-200x500-7": partial(random_model, "synthetic-200x500-7"),
}


def drawn(seed: int) -> Trained:
    """Train a forest whose library and sizes are drawn."""
    random = np.random.default_rng(seed)

    def size(least: float, most: float) -> int:
        return round(float(np.exp(random.uniform(np.log(least), np.log(most)))))

    features, trees, depth, leaves = map(size, (5, 1, 2, 6), (500, 400, 13, 400))
    classes = size(3, 8) if random.random() < 0.2 else 2
    some = random.random() < 0.25
    categories = (max(1, features // 4), size(10, 500)) if some else (0, 0)
    kind = random.choice(["xgb", "lgbm", "hgb", "rf", "et"])
    if kind == "xgb":
        given: dict[str, Any] = {"missing": 0.1 * (random.random() < 0.3)}
        if classes > 2:
            trees = max(1, trees // classes)
            given |= {"num_class": classes, "objective": "multi:softprob"}
        return _xgb(trees, depth, features, categories=categories, **given)
    if kind == "lgbm":
        many = 0 if classes == 2 else classes
        trees = max(1, trees // max(1, many))
        return _lgbm(trees, leaves, features, categories=categories, classes=many)
    if kind == "hgb":
        few = (categories[0], min(200, categories[1]))
        name, given = "HistGradientBoostingRegressor", {"max_leaf_nodes": leaves}
        return _skl(name, features, categories=few, max_iter=trees, **given)
    name = {"rf": "RandomForest", "et": "ExtraTrees"}[str(kind)]
    name += "Regressor" if classes == 2 else "Classifier"
    given = {"n_estimators": trees, "max_depth": None if depth > 10 else depth}
    return _skl(name, features, classes=classes, **given)


DRAWN: dict[str, Callable[[], Trained]] = {
    f"drawn-{seed}": partial(drawn, seed) for seed in range(24)
}

#: The forests that the cost model learns from; the seeds are not those of ``DRAWN``.
MAKERS: dict[str, Callable[[], Trained]] = {
    **{
        f"{kind}-{sizes.partition(':')[0]}": partial(_trained, kind, sizes)
        for kind, words in SIZES
        for sizes in words.split()
    },
    **{f"drawn-{seed}": partial(drawn, seed) for seed in range(100, 130)},
    **{name: partial(_shared, name) for name in FILES},
}


def get(name: str) -> Sample:
    file = cache_folder() / "cost-model" / f"{name.replace('/', '-')}-{REVISION}.pkl"
    if not file.exists():
        made = (MAKERS | UNSEEN | DRAWN)[name]()
        forest = load_forest(made.model)
        rows = made.rows if len(made.rows) else rows_beside(made.model)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pickle.dumps((forest, rows)))
    forest, rows = pickle.loads(file.read_bytes())  # our own file
    if rows is not None:
        rows = rows[:, : forest.n_features]  # then a prediction
    return Sample(name, forest, rows)
