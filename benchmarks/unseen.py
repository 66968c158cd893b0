"""Forests that nothing was fitted to; the defaults are judged by them.

Families apart from those of ``cost_model_family``: large sets of categories, thousands
of columns, one tree, stumps, many classes, deep trees, random forests of boosters. And
forests of sizes that nobody chose: they are drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from synthetic import random_model
from training import HELD_OUT, Trained

Rows = NDArray[Any]


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


def _xgboost(
    trees: int,
    depth: int,
    features: int,
    n: int = 8_000,
    categories: tuple[int, int] = (0, 0),
    missing: float = 0.0,
    **parameters: Any,
) -> Trained:
    import xgboost

    X = _rows(features, n, depth)
    y = _target(X, trees)
    types = ["float"] * features
    if categories[0]:
        X, y = _categories(X, y, *categories)
        types[: categories[0]] = ["c"] * categories[0]
    if missing:
        X[np.random.default_rng(0).random(X.shape) < missing] = np.nan
    objective = parameters.get("objective", "")
    if classes := parameters.get("num_class"):
        y = _classes(y, classes)
    elif objective == "count:poisson":
        y = np.exp(np.clip(y / 4, -3, 3))
    elif parameters.get("multi_strategy"):
        y = np.stack([y, y**2, np.abs(y)], 1)
    data = xgboost.DMatrix(
        X[HELD_OUT:], y[HELD_OUT:], feature_types=types, enable_categorical=True
    )
    given = {"eta": 0.1, "seed": 0, "nthread": 1, "max_depth": depth, **parameters}
    return Trained("xgboost", xgboost.train(given, data, trees), X[:HELD_OUT])


def _lightgbm(
    trees: int,
    leaves: int,
    features: int,
    n: int = 10_000,
    categories: tuple[int, int] = (0, 0),
    classes: int = 0,
    **parameters: Any,
) -> Trained:
    import lightgbm

    X = _rows(features, n, leaves).astype(np.float64)
    y = _target(X, trees)
    if categories[0]:
        X, y = _categories(X, y, *categories)
    given = {
        "num_leaves": leaves,
        "verbose": -1,
        "seed": 0,
        "num_threads": 1,
        "min_data_in_leaf": 5,
        **parameters,
    }
    if classes:
        given |= {"objective": "multiclass", "num_class": classes}
        y = _classes(y, classes)
    data = lightgbm.Dataset(
        X[HELD_OUT:], y[HELD_OUT:], categorical_feature=list(range(categories[0]))
    )
    return Trained("lightgbm", lightgbm.train(given, data, trees), X[:HELD_OUT])


def _sklearn(
    name: str,
    features: int,
    n: int = 5_000,
    classes: int = 2,
    categories: tuple[int, int] = (0, 0),
    **parameters: Any,
) -> Trained:
    from sklearn import ensemble, tree

    X = _rows(features, n, classes)
    y = _target(X, features)
    if categories[0]:
        X, y = _categories(X, y, *categories)
        parameters["categorical_features"] = list(range(categories[0]))
    if name.startswith("Hist"):
        X = X.astype(np.float64)
    if name.endswith("Classifier"):
        y = _classes(y, classes)
    kind = getattr(tree if "DecisionTree" in name else ensemble, name)
    model = kind(random_state=0, **parameters)
    return Trained("sklearn", model.fit(X[HELD_OUT:], y[HELD_OUT:]), X[:HELD_OUT])


MAKERS: dict[str, Callable[[], Trained]] = {
    "xgb-sets-of-800": partial(_xgboost, 100, 6, 20, 20_000, (4, 800)),
    "xgb-sets-of-30": partial(_xgboost, 120, 7, 16, categories=(6, 30)),
    "xgb-3000-columns": partial(_xgboost, 100, 4, 3000, 3_000),
    "xgb-968-columns": partial(_xgboost, 100, 8, 968, 6_000),
    "xgb-depth-12": partial(_xgboost, 50, 12, 20, 20_000),
    "xgb-poisson": partial(_xgboost, 250, 5, 13, objective="count:poisson"),
    "xgb-800-of-depth-2": partial(_xgboost, 800, 2, 40),
    "xgb-7-classes": partial(
        _xgboost, 40, 4, 24, num_class=7, objective="multi:softprob"
    ),
    "xgb-by-loss": partial(_xgboost, 80, 0, 30, grow_policy="lossguide", max_leaves=64),
    "xgb-one-tree": partial(_xgboost, 1, 8, 18),
    "xgb-stumps": partial(_xgboost, 500, 1, 18),
    "xgb-random-forest": partial(
        _xgboost,
        1,
        10,
        22,
        num_parallel_tree=100,
        subsample=0.7,
        eta=1.0,
        colsample_bynode=0.4,
    ),
    "xgb-many-bins": partial(_xgboost, 60, 7, 300, tree_method="approx", max_bin=1024),
    "xgb-missing": partial(_xgboost, 100, 6, 50, missing=0.3),
    "xgb-vector-leaves": partial(
        _xgboost, 50, 5, 16, multi_strategy="multi_output_tree"
    ),
    "lgbm-sets-of-400": partial(_lightgbm, 100, 61, 24, 20_000, (5, 400)),
    "lgbm-sets-of-800": partial(_lightgbm, 200, 63, 20, 20_000, (4, 800)),
    "lgbm-400-of-15": partial(_lightgbm, 400, 15, 8),
    "lgbm-1000-leaves": partial(_lightgbm, 30, 1000, 28, 30_000),
    "lgbm-20-classes": partial(_lightgbm, 15, 20, 16, classes=20),
    "lgbm-1200-columns": partial(_lightgbm, 60, 127, 1200, 5_000),
    "lgbm-random-forest": partial(
        _lightgbm,
        100,
        63,
        40,
        boosting="rf",
        bagging_freq=1,
        bagging_fraction=0.6,
        feature_fraction=0.5,
    ),
    "lgbm-one-tree": partial(_lightgbm, 1, 255, 20),
    "lgbm-15-bins": partial(_lightgbm, 300, 31, 32, max_bin=15),
    "lgbm-150-columns": partial(_lightgbm, 150, 40, 150),
    "rf-depth-14": partial(_sklearn, "RandomForestClassifier", 12, max_depth=14),
    "rf-20-full": partial(_sklearn, "RandomForestRegressor", 8, n_estimators=20),
    "rf-10-classes": partial(
        _sklearn, "RandomForestClassifier", 26, classes=10, n_estimators=50
    ),
    "rf-1000-of-depth-4": partial(
        _sklearn, "RandomForestRegressor", 15, n_estimators=1000, max_depth=4
    ),
    "et-depth-14": partial(_sklearn, "ExtraTreesRegressor", 20, max_depth=14),
    "et-depth-10": partial(
        _sklearn, "ExtraTreesClassifier", 40, n_estimators=300, max_depth=10
    ),
    "gb-depth-3": partial(_sklearn, "GradientBoostingClassifier", 30),
    "gb-depth-7": partial(
        _sklearn, "GradientBoostingRegressor", 15, 3_000, n_estimators=200, max_depth=7
    ),
    "hgb-200": partial(_sklearn, "HistGradientBoostingRegressor", 25, max_iter=200),
    "hgb-4-classes": partial(
        _sklearn, "HistGradientBoostingClassifier", 18, classes=4, max_iter=60
    ),
    "hgb-sets-of-60": partial(
        _sklearn, "HistGradientBoostingRegressor", 14, 8_000, categories=(4, 60)
    ),
    "isolation-200": partial(_sklearn, "IsolationForest", 12, n_estimators=200),
    "tree-depth-6": partial(_sklearn, "DecisionTreeClassifier", 30, max_depth=6),
    "tree-full": partial(_sklearn, "DecisionTreeRegressor", 10, 20_000),
    "synthetic-200x500-7": partial(random_model, "synthetic-200x500-7"),
}


def drawn(seed: int) -> Trained:
    """Train a forest whose library and sizes are drawn."""
    random = np.random.default_rng(seed)

    def size(least: float, most: float) -> int:
        return round(float(np.exp(random.uniform(np.log(least), np.log(most)))))

    features, trees, depth, leaves = (
        size(5, 500),
        size(1, 400),
        size(2, 13),
        size(6, 400),
    )
    classes = size(3, 8) if random.random() < 0.2 else 2
    some = random.random() < 0.25
    categories = (max(1, features // 4), size(10, 500)) if some else (0, 0)
    kind = random.choice(["xgb", "lgbm", "hgb", "rf", "et"])
    if kind == "xgb":
        given: dict[str, Any] = {"missing": 0.1 * (random.random() < 0.3)}
        if classes > 2:
            trees = max(1, trees // classes)
            given |= {"num_class": classes, "objective": "multi:softprob"}
        return _xgboost(trees, depth, features, categories=categories, **given)
    if kind == "lgbm":
        many = 0 if classes == 2 else classes
        trees = max(1, trees // max(1, many))
        return _lightgbm(trees, leaves, features, categories=categories, classes=many)
    if kind == "hgb":
        few = (categories[0], min(200, categories[1]))
        name, given = "HistGradientBoostingRegressor", {"max_leaf_nodes": leaves}
        return _sklearn(name, features, categories=few, max_iter=trees, **given)
    name = {"rf": "RandomForest", "et": "ExtraTrees"}[str(kind)]
    name += "Regressor" if classes == 2 else "Classifier"
    given = {"n_estimators": trees, "max_depth": None if depth > 10 else depth}
    return _sklearn(name, features, classes=classes, **given)


DRAWN: dict[str, Callable[[], Trained]] = {
    f"drawn-{seed}": partial(drawn, seed) for seed in range(24)
}
