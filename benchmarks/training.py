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


def _table(n: int = 20_000, n_features: int = 28, classes: int = 2) -> Any:
    """Return continuous columns, about half of which tell, and classes."""
    from sklearn.datasets import make_classification

    informative = min(n_features // 2, 40)
    X, y = make_classification(
        n + HELD_OUT,
        n_features,
        n_informative=informative,
        n_redundant=min(5, informative),
        n_classes=classes,
        n_clusters_per_class=1 if classes > 2 else 2,
        flip_y=0.05,
        random_state=0,
    )
    return X.astype(np.float32), y


def _with_missing(X: Rows, share: float = 0.2) -> Rows:
    X = X.copy()
    X[np.random.default_rng(1).random(X.shape) < share] = np.nan
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
    X[np.random.default_rng(2).random(X.shape) < 0.02] = np.nan
    return X


# ------------------------------------------------------------ XGBoost


def _xgboost(
    X: Rows, y: Any, rounds: int, parameters: dict[str, Any], categories: int = 0
) -> Trained:
    import xgboost

    types = ["c"] * categories + ["float"] * (X.shape[1] - categories)
    data = xgboost.DMatrix(
        X[HELD_OUT:],
        y[HELD_OUT:],
        feature_types=types if categories else None,
        enable_categorical=categories > 0,
    )
    booster = xgboost.train({"eta": 0.1, "seed": 0, **parameters}, data, rounds)
    return Trained("xgboost", booster, X[:HELD_OUT])


def _xgboost_classes(classes: int, rounds: int, depth: int, features: int) -> Trained:
    X, y = _table(6_000, features, classes)
    parameters = {
        "objective": "multi:softprob",
        "num_class": classes,
        "max_depth": depth,
        "max_bin": 64,
    }
    return _xgboost(X, y, rounds, parameters)


def _xgboost_missing() -> Trained:
    X, y = _table()
    parameters = {"objective": "binary:logistic", "max_depth": 8}
    return _xgboost(_with_missing(X), y, 100, parameters)


def _xgboost_categories() -> Trained:
    X, y = _table()
    parameters = {"objective": "binary:logistic", "max_depth": 8}
    return _xgboost(_with_categories(X), y, 100, parameters, categories=6)


def _xgboost_continuous() -> Trained:
    X, y = _table()
    parameters = {"max_depth": 8, "tree_method": "exact"}
    return _xgboost(X, X[:, 0] * y + X[:, 1], 100, parameters)


def _xgboost_wide() -> Trained:
    X, y = _table(6_000, 2000)
    parameters = {"objective": "binary:logistic", "max_depth": 8, "max_bin": 64}
    return _xgboost(X, y, 100, parameters)


def _xgboost_shape(rounds: int, depth: int, features: int = 28) -> Trained:
    X, y = _table(6_000 if features > 500 else 20_000, features)
    parameters = {"max_depth": depth, "nthread": 1}
    return _xgboost(X, X[:, 0] * y + X[:, 1], rounds, parameters)


# ------------------------------------------------------------ LightGBM


def _lightgbm(X: Rows, y: Any, estimator: str, **parameters: Any) -> Trained:
    import lightgbm

    X = X.astype(np.float64)
    named = parameters.pop("categorical_feature", "auto")
    usual = {"n_estimators": 100, "n_jobs": 1, "verbose": -1, "random_state": 0}
    wrapper = getattr(lightgbm, estimator)(**usual | parameters)
    wrapper.fit(X[HELD_OUT:], y[HELD_OUT:], categorical_feature=named)
    return Trained("lightgbm", wrapper.booster_, X[:HELD_OUT], wrapper=wrapper)


def _lightgbm_leaves(leaves: int, trees: int = 100) -> Trained:
    X, y = _table()
    sizes = {"num_leaves": leaves, "n_estimators": trees}
    return _lightgbm(X, X[:, 0] * y + X[:, 1], "LGBMRegressor", **sizes)


def _lightgbm_classes() -> Trained:
    return _lightgbm(*_table(classes=5), "LGBMClassifier")


def _lightgbm_missing() -> Trained:
    X, y = _table()
    return _lightgbm(_with_missing(X), y, "LGBMClassifier", num_leaves=63)


def _lightgbm_categories() -> Trained:
    X, y = _table()
    return _lightgbm(
        _with_categories(X), y, "LGBMClassifier", categorical_feature=list(range(6))
    )


# ------------------------------------------------------------ scikit-learn


def _forest(class_name: str, depth: int | None) -> Trained:
    from sklearn import ensemble

    X, y = _table(8_000, 30)
    target = y if class_name.endswith("Classifier") else X[:, 0] * y + X[:, 1]
    model = getattr(ensemble, class_name)(
        100, max_depth=depth, n_jobs=1, random_state=0
    )
    return _fitted(model, X, target)


def _one_tree(depth: int | None) -> Trained:
    from sklearn.tree import DecisionTreeRegressor

    X, y = _table()
    model = DecisionTreeRegressor(max_depth=depth, random_state=0)
    return _fitted(model, X, X[:, 0] * y + X[:, 1])


def _boosting(class_name: str, missing: bool = False) -> Trained:
    from sklearn import ensemble

    X, y = _table(8_000)
    target = y if class_name.endswith("Classifier") else X[:, 0] * y + X[:, 1]
    if class_name.startswith("Hist"):
        X = X.astype(np.float64)
        model = getattr(ensemble, class_name)(max_iter=100, random_state=0)
    else:
        model = getattr(ensemble, class_name)(max_depth=5, random_state=0)
    return _fitted(model, _with_missing(X) if missing else X, target)


def _isolation() -> Trained:
    from sklearn.ensemble import IsolationForest

    X, y = _table(8_000)
    return _fitted(IsolationForest(random_state=0), X, y)


def _fitted(model: Any, X: Rows, y: Any) -> Trained:
    return Trained("sklearn", model.fit(X[HELD_OUT:], y[HELD_OUT:]), X[:HELD_OUT])


#: By the name in the table; rows in order of the table.
MAKERS: dict[str, Callable[[], Trained]] = {
    "xgb-missing": _xgboost_missing,
    "xgb-categories": _xgboost_categories,
    "xgb-continuous": _xgboost_continuous,
    "xgb-2000-features": _xgboost_wide,
    "xgb-5-classes": partial(_xgboost_classes, 5, 60, 6, 20),
    "xgb-26-classes": partial(_xgboost_classes, 26, 1000, 6, 16),
    "lgbm-31-leaves": partial(_lightgbm_leaves, 31),
    "lgbm-63-leaves": partial(_lightgbm_leaves, 63),
    "lgbm-255-leaves": partial(_lightgbm_leaves, 255),
    "lgbm-5-classes": _lightgbm_classes,
    "lgbm-missing": _lightgbm_missing,
    "lgbm-categories": _lightgbm_categories,
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
    "IsolationForest": _isolation,
}

#: Shapes at which skforge was least ahead of its peers; see weak_cells.py.
WEAK: dict[str, Callable[[], Trained]] = {
    "wide-968": partial(_xgboost_shape, 100, 8, 968),
    "wide-3000": partial(_xgboost_shape, 100, 8, 3000),
    "500-of-depth-6": partial(_xgboost_shape, 500, 6),
    "1000-of-31-leaves": partial(_lightgbm_leaves, 31, 1000),
    **{f"depth-{d}": partial(_xgboost_shape, 100, d) for d in (8, 10, 12, 14)},
    **{
        f"{short}-{depth}": partial(_forest, name, depth)
        for short, name in (
            ("extra-trees", "ExtraTreesRegressor"),
            ("random-forest", "RandomForestRegressor"),
        )
        for depth in (10, 12, 14)
    },
    "one-tree-8": partial(_one_tree, 8),
    "one-tree-full": partial(_one_tree, None),
    "one-tree-boosted": partial(_xgboost_shape, 1, 8),
}
