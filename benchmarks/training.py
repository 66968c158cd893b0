"""Models trained for the table: one small function for each way forests differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Trained:
    """A Booster or a fitted estimator, rows it did not see, and its wrapper."""

    kind: str
    model: Any
    rows: Rows
    rows_from: str = "held out"
    wrapper: Any = None


# ------------------------------------------------------------ tables to learn

HELD_OUT = 4096


def table(
    n: int = 20_000,
    features: int = 28,
    classes: int = 2,
    informative: int = 40,
    redundant: int = 5,
    flip_y: float = 0.05,
) -> Any:
    """Return continuous columns, about half of which tell, and classes."""
    from sklearn.datasets import make_classification

    informative = max(2, min(features // 2, informative))
    X, y = make_classification(
        n + HELD_OUT,
        features,
        n_informative=informative,
        n_redundant=min(redundant, features - informative),
        n_classes=classes,
        n_clusters_per_class=1 if classes > 2 else 2,
        flip_y=flip_y,
        random_state=0,
    )
    return X.astype(np.float32), y


def with_missing(X: Rows, share: float = 0.2, seed: int = 1) -> Rows:
    X = X.copy()
    X[np.random.default_rng(seed).random(X.shape) < share] = np.nan
    return X


def _with_categories(X: Rows, columns: int = 6) -> Rows:
    """Turn the first columns into codes: 4, 8, 16, ... categories, some missing."""
    X = X.copy()
    for column in range(columns):
        n = 4 << column
        cuts = np.quantile(X[:, column], np.arange(1, n) / n)
        # A permutation: neighbours in value are not neighbours in code.
        order = np.random.default_rng(column).permutation(n)
        X[:, column] = order[np.searchsorted(cuts, X[:, column])]
    return with_missing(X, 0.02, seed=2)


# ------------------------------------------------------------ libraries


def xgboost(
    X: Rows, y: Any, rounds: int, categories: int | None = None, **parameters: Any
) -> Trained:
    """Train XGBoost; the first ``categories`` columns hold codes."""
    import xgboost

    types = None
    if categories is not None:
        types = ["c"] * categories + ["float"] * (X.shape[1] - categories)
    data = xgboost.DMatrix(
        X[HELD_OUT:],
        y[HELD_OUT:],
        feature_types=types,
        enable_categorical=types is not None,
    )
    booster = xgboost.train({"eta": 0.1, "seed": 0, **parameters}, data, rounds)
    return Trained("xgboost", booster, X[:HELD_OUT])


def lightgbm(
    X: Rows, y: Any, estimator: str, categories: int = 0, **parameters: Any
) -> Trained:
    import lightgbm

    X = X.astype(np.float64)
    named = list(range(categories)) if categories else "auto"
    usual = {"n_estimators": 100, "n_jobs": 1, "verbose": -1, "random_state": 0}
    wrapper = getattr(lightgbm, estimator)(**usual | parameters)
    wrapper.fit(X[HELD_OUT:], y[HELD_OUT:], categorical_feature=named)
    return Trained("lightgbm", wrapper.booster_, X[:HELD_OUT], wrapper=wrapper)


def lightgbm_booster(
    X: Rows, y: Any, trees: int, categories: int, **parameters: Any
) -> Trained:
    import lightgbm

    X = X.astype(np.float64)
    usual = {"verbose": -1, "seed": 0, "num_threads": 1}
    data = lightgbm.Dataset(
        X[HELD_OUT:], y[HELD_OUT:], categorical_feature=list(range(categories))
    )
    booster = lightgbm.train(usual | parameters, data, trees)
    return Trained("lightgbm", booster, X[:HELD_OUT])


def sklearn(name: str, X: Rows, y: Any, **parameters: Any) -> Trained:
    from sklearn import ensemble, tree

    kind = getattr(tree if "DecisionTree" in name else ensemble, name)
    X = X.astype(np.float64) if name.startswith("Hist") else X
    model = kind(random_state=0, **parameters).fit(X[HELD_OUT:], y[HELD_OUT:])
    return Trained("sklearn", model, X[:HELD_OUT])


# ------------------------------------------------------------ models of the table


def _score(X: Rows, y: Any) -> Any:
    """Return what regressors learn."""
    return X[:, 0] * y + X[:, 1]


def _xgboost_classes(classes: int, rounds: int, depth: int, features: int) -> Trained:
    parameters = {"num_class": classes, "max_depth": depth, "max_bin": 64}
    X, y = table(6_000, features, classes)
    return xgboost(X, y, rounds, objective="multi:softprob", **parameters)


def _xgboost_of_two(change: Callable[[Rows], Rows], **parameters: Any) -> Trained:
    """Train on two classes, of a table that is changed first."""
    X, y = table()
    usual = {"objective": "binary:logistic", "max_depth": 8}
    return xgboost(change(X), y, 100, **usual, **parameters)


def _xgboost_wide() -> Trained:
    parameters = {"objective": "binary:logistic", "max_depth": 8, "max_bin": 64}
    return xgboost(*table(6_000, 2000), 100, **parameters)


def _xgboost_shape(
    rounds: int, depth: int, features: int = 28, **parameters: Any
) -> Trained:
    X, y = table(6_000 if features > 500 else 20_000, features)
    return xgboost(X, _score(X, y), rounds, max_depth=depth, **parameters)


def _one_thread(*sizes: int) -> Trained:
    return _xgboost_shape(*sizes, nthread=1)


def _lightgbm_leaves(leaves: int, trees: int = 100) -> Trained:
    X, y = table()
    sizes = {"num_leaves": leaves, "n_estimators": trees}
    return lightgbm(X, _score(X, y), "LGBMRegressor", **sizes)


def _lightgbm_classes(
    change: Callable[[Rows], Rows] = lambda X: X, classes: int = 2, **parameters: Any
) -> Trained:
    X, y = table(classes=classes)
    return lightgbm(change(X), y, "LGBMClassifier", **parameters)


def _sklearn(
    name: str, n: int, features: int, missing: bool = False, **parameters: Any
) -> Trained:
    X, y = table(n, features)
    target = _score(X, y) if name.endswith("Regressor") else y
    return sklearn(name, with_missing(X) if missing else X, target, **parameters)


def _forest(name: str, depth: int | None) -> Trained:
    sizes = {"n_estimators": 100, "max_depth": depth, "n_jobs": 1}
    return _sklearn(name, 8_000, 30, **sizes)


def _boosting(name: str, **parameters: Any) -> Trained:
    size = {"max_iter": 100} if name.startswith("Hist") else {"max_depth": 5}
    return _sklearn(name, 8_000, 28, **size, **parameters)


def _many_classes() -> Trained:
    """Return a forest whose leaves hold few of 443 classes."""
    X, y = table(20_000, 20, classes=443)
    sizes = {"n_estimators": 50, "max_depth": 14, "n_jobs": 1}
    return sklearn("RandomForestClassifier", X, y, **sizes)


def _one_tree(depth: int | None) -> Trained:
    return _sklearn("DecisionTreeRegressor", 20_000, 28, max_depth=depth)


SWEEP = "sweep-"


def of_sweep(name: str) -> Trained:
    """Train a model of nvForest's benchmark, such as ``sweep-xgboost-128x32-8``.

    The name has the library, the trees, the columns and the greatest depth; the data
    are those of ``nvforest.benchmark.run``. Boosted trees regress, forests classify.
    """
    from sklearn.datasets import make_classification, make_regression

    library, sizes, depth = name.removeprefix(SWEEP).split("-")
    trees, features = map(int, sizes.split("x"))
    n = 10_000 + HELD_OUT
    if library == "sklearn":
        informative = {"n_informative": min(features, 10), "n_redundant": 0}
        X, y = make_classification(n, features, random_state=0, **informative)
    else:
        X, y = make_regression(n, features, random_state=0)
    X, size = X.astype(np.float32), {"max_depth": int(depth)}
    if library == "xgboost":
        return xgboost(X, y, trees, eta=0.3, nthread=1, **size)
    if library == "lightgbm":
        return lightgbm(X, y, "LGBMRegressor", n_estimators=trees, **size)
    forest = "RandomForestClassifier"
    return sklearn(forest, X, y, n_estimators=trees, n_jobs=1, **size)


#: By the name in the table; rows in order of the table.
MAKERS: dict[str, Callable[[], Trained]] = {
    "xgb-missing": partial(_xgboost_of_two, with_missing),
    "xgb-categories": partial(_xgboost_of_two, _with_categories, categories=6),
    "xgb-continuous": partial(_xgboost_shape, 100, 8, tree_method="exact"),
    "xgb-2000-features": _xgboost_wide,
    "xgb-5-classes": partial(_xgboost_classes, 5, 60, 6, 20),
    "xgb-26-classes": partial(_xgboost_classes, 26, 1000, 6, 16),
    "lgbm-31-leaves": partial(_lightgbm_leaves, 31),
    "lgbm-63-leaves": partial(_lightgbm_leaves, 63),
    "lgbm-255-leaves": partial(_lightgbm_leaves, 255),
    "lgbm-5-classes": partial(_lightgbm_classes, classes=5),
    "lgbm-missing": partial(_lightgbm_classes, with_missing, num_leaves=63),
    "lgbm-categories": partial(_lightgbm_classes, _with_categories, categories=6),
    "RandomForestClassifier-8": partial(_forest, "RandomForestClassifier", 8),
    "RandomForestClassifier-full": partial(_forest, "RandomForestClassifier", None),
    "RandomForestRegressor-full": partial(_forest, "RandomForestRegressor", None),
    "ExtraTreesClassifier-8": partial(_forest, "ExtraTreesClassifier", 8),
    "ExtraTreesRegressor-8": partial(_forest, "ExtraTreesRegressor", 8),
    "ExtraTreesRegressor-full": partial(_forest, "ExtraTreesRegressor", None),
    "GradientBoostingClassifier": partial(_boosting, "GradientBoostingClassifier"),
    "GradientBoostingRegressor": partial(_boosting, "GradientBoostingRegressor"),
    "HistGradientBoostingClassifier": partial(
        _boosting, "HistGradientBoostingClassifier", missing=True
    ),
    "HistGradientBoostingRegressor": partial(
        _boosting, "HistGradientBoostingRegressor"
    ),
    "IsolationForest": partial(_sklearn, "IsolationForest", 8_000, 28),
}

#: Shapes at which skforge was least ahead of its peers; see weak_cells.py.
WEAK: dict[str, Callable[[], Trained]] = {
    "wide-968": partial(_one_thread, 100, 8, 968),
    "wide-3000": partial(_one_thread, 100, 8, 3000),
    "500-of-depth-6": partial(_one_thread, 500, 6),
    "1000-of-31-leaves": partial(_lightgbm_leaves, 31, 1000),
    **{f"depth-{d}": partial(_one_thread, 100, d) for d in (8, 10, 12, 14)},
    **{
        f"{short}-{depth}": partial(_forest, name, depth)
        for short, name in (
            ("extra-trees", "ExtraTreesRegressor"),
            ("random-forest", "RandomForestRegressor"),
        )
        for depth in (10, 12, 14)
    },
    "443-classes": _many_classes,
    "one-tree-8": partial(_one_tree, 8),
    "one-tree-full": partial(_one_tree, None),
    "one-tree-boosted": partial(_one_thread, 1, 8),
}
