"""The forests that the cost model learns from: trees × depth × features × shape.

Small to train and different in what schedules depend on. Trained once and kept in the
cache of the other models, as forests with rows.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from models import cache_folder, shared_folder
from numpy.typing import NDArray
from synthetic import random_model
from training import HELD_OUT, Trained
from unseen import DRAWN, drawn
from unseen import MAKERS as UNSEEN

from skforge import load_forest
from skforge.compiler.forest.forest import Forest

REVISION = 1  # of what is trained: another number makes all anew


@dataclass(frozen=True, slots=True)
class Sample:
    """A forest, and rows for it; None where rows are drawn around its thresholds."""

    name: str
    forest: Forest
    rows: NDArray[Any] | None


def _table(features: int, n: int = 6_000, classes: int = 2) -> tuple[Any, Any]:
    from sklearn.datasets import make_classification

    informative = max(2, min(features // 2, 30))
    X, y = make_classification(
        n + HELD_OUT,
        features,
        n_informative=informative,
        n_redundant=min(3, features - informative),
        n_classes=classes,
        n_clusters_per_class=1 if classes > 2 else 2,
        flip_y=0.1,
        random_state=0,
    )
    return X.astype(np.float32), y


def _xgboost(
    trees: int, depth: int, features: int, missing: float = 0, **parameters: Any
) -> Trained:
    """Train on rows of which a share of the values is missing."""
    import xgboost

    X, y = _table(features)
    X[np.random.default_rng(0).random(X.shape) < missing] = np.nan
    target = np.nan_to_num(X[HELD_OUT:, 0]) * y[HELD_OUT:] + np.nan_to_num(
        X[HELD_OUT:, 1]
    )
    data = xgboost.DMatrix(X[HELD_OUT:], target)
    chosen = {"eta": 0.1, "seed": 0, "nthread": 1, "max_depth": depth, **parameters}
    return Trained("xgboost", xgboost.train(chosen, data, trees), X[:HELD_OUT])


def _lightgbm(trees: int, leaves: int, features: int, classes: int = 2) -> Trained:
    import lightgbm

    X, y = _table(features, classes=classes)
    X = X.astype(np.float64)
    made = lightgbm.LGBMClassifier if classes > 2 else lightgbm.LGBMRegressor
    model = made(
        n_estimators=trees, num_leaves=leaves, n_jobs=1, verbose=-1, random_state=0
    )
    model.fit(
        X[HELD_OUT:], y[HELD_OUT:] if classes > 2 else X[HELD_OUT:, 0] * y[HELD_OUT:]
    )
    return Trained("lightgbm", model.booster_, X[:HELD_OUT])


def _with_sets(features: int, columns: int, levels: int) -> tuple[Any, Any]:
    """Return a table whose first columns are categories, each with an effect."""
    X, y = _table(features, 10_000)
    random = np.random.default_rng([columns, levels])
    score = X[:, -1] * y + X[:, -2]
    for column in range(columns):
        X[:, column] = random.integers(0, levels, len(X))
        score = score + random.standard_normal(levels)[X[:, column].astype(np.int64)]
    return X, score


def _xgboost_sets(
    trees: int, depth: int, features: int, columns: int, levels: int
) -> Trained:
    import xgboost

    X, y = _with_sets(features, columns, levels)
    types = ["c"] * columns + ["float"] * (features - columns)
    data = xgboost.DMatrix(
        X[HELD_OUT:], y[HELD_OUT:], feature_types=types, enable_categorical=True
    )
    chosen = {"eta": 0.1, "seed": 0, "nthread": 1, "max_depth": depth}
    return Trained("xgboost", xgboost.train(chosen, data, trees), X[:HELD_OUT])


def _lightgbm_sets(
    trees: int, leaves: int, features: int, columns: int, levels: int
) -> Trained:
    import lightgbm

    X, y = _with_sets(features, columns, levels)
    X = X.astype(np.float64)
    chosen = {"num_leaves": leaves, "verbose": -1, "seed": 0, "num_threads": 1}
    data = lightgbm.Dataset(
        X[HELD_OUT:], y[HELD_OUT:], categorical_feature=list(range(columns))
    )
    return Trained("lightgbm", lightgbm.train(chosen, data, trees), X[:HELD_OUT])


def _sklearn(
    name: str,
    trees: int,
    depth: int | None,
    features: int,
    n: int = 4_000,
    classes: int = 2,
) -> Trained:
    from sklearn import ensemble

    X, y = _table(features, n, classes)
    target = y if name.endswith("Classifier") else X[:, 0] * y + X[:, 1]
    model = getattr(ensemble, name)(trees, max_depth=depth, n_jobs=1, random_state=0)
    model.fit(X[HELD_OUT:], target[HELD_OUT:])
    return Trained("sklearn", model, X[:HELD_OUT])


def _shared(name: str) -> Trained:
    return Trained("file", shared_folder() / name, np.zeros((0, 0)))


def _makers() -> dict[str, Callable[[], Trained]]:
    made: dict[str, Callable[[], Trained]] = {}
    for name in (
        "10x8-4",
        "30x32-6",
        "100x8-6",
        "100x64-8",
        "300x16-5",
        "100x256-7",
        "500x32-6",
        "1000x8-4",
        "50x1024-6",
        "200x128-8",
    ):
        made[f"synthetic-{name}"] = partial(random_model, f"synthetic-{name}")
    for sizes in (
        (20, 3, 10),
        (100, 6, 28),
        (100, 8, 28),
        (300, 4, 60),
        (500, 6, 20),
        (50, 10, 28),
        (1000, 3, 12),
        (200, 8, 200),
        (10, 8, 28),
        (100, 7, 600),
        (1, 6, 12),
        (3, 9, 24),
        (40, 12, 16),
        (1, 8, 16),
        (200, 1, 24),
        (60, 5, 2400),
        (200, 3, 1000),
        (5, 5, 400),
        (30, 3, 80),
    ):
        made["xgboost-{}x{}x{}".format(*sizes)] = partial(_xgboost, *sizes)
    for sizes in ((150, 5, 40), (60, 9, 24)):
        name = "xgboost-missing-{}x{}x{}".format(*sizes)
        made[name] = partial(_xgboost, *sizes, missing=0.2)
    made["xgboost-exact-100x8x28"] = partial(_xgboost, 100, 8, 28, tree_method="exact")
    for sizes in (
        (100, 15, 28),
        (100, 31, 28),
        (100, 63, 40),
        (100, 255, 28),
        (300, 31, 100),
        (500, 15, 20),
        (50, 127, 400),
        (1000, 31, 12),
        (1, 127, 16),
        (2, 400, 30),
        (40, 63, 1500),
        (1, 300, 24),
        (15, 1000, 24),
        (4, 20, 250),
    ):
        made["lightgbm-{}x{}x{}".format(*sizes)] = partial(_lightgbm, *sizes)
    made["lightgbm-40x31x28x5"] = partial(_lightgbm, 40, 31, 28, 5)
    for kind, *args in (
        ("RandomForestClassifier", 100, 6, 20),
        ("RandomForestClassifier", 100, 10, 30),
        ("RandomForestClassifier", 50, None, 30),
        ("RandomForestRegressor", 100, None, 20),
        ("RandomForestRegressor", 20, None, 60),
        ("RandomForestRegressor", 200, 12, 16),
        ("ExtraTreesRegressor", 100, 8, 30),
        ("ExtraTreesClassifier", 50, None, 200),
        ("ExtraTreesRegressor", 100, 13, 24),
        ("RandomForestRegressor", 1, 9, 16),
        ("RandomForestRegressor", 1, None, 14, 12_000),
        ("ExtraTreesRegressor", 2, None, 6, 12_000),
        ("RandomForestClassifier", 100, 4, 2500),
        ("RandomForestClassifier", 30, None, 16, 4_000, 8),
        ("ExtraTreesClassifier", 100, 9, 24, 4_000, 5),
        ("ExtraTreesRegressor", 150, 10, 12),
        ("RandomForestRegressor", 60, 13, 24, 12_000),
        ("RandomForestRegressor", 1, 6, 20),
        ("RandomForestRegressor", 6, 9, 17),
        ("ExtraTreesRegressor", 25, None, 300),
    ):
        sizes = "x".join(map(str, args))
        made[f"{kind}-{sizes}"] = partial(_sklearn, kind, *args)
    for sizes in (
        (100, 6, 28, 3, 300),
        (50, 8, 40, 6, 40),
        (80, 7, 30, 5, 25),
        (8, 4, 40, 10, 60),
    ):
        made["xgboost-sets-{}x{}x{}".format(*sizes)] = partial(_xgboost_sets, *sizes)
    for sizes in (
        (100, 31, 28, 3, 300),
        (60, 63, 12, 2, 1000),
        (200, 15, 28, 6, 60),
        (12, 8, 80, 6, 100),
    ):
        made["lightgbm-sets-{}x{}x{}".format(*sizes)] = partial(_lightgbm_sets, *sizes)
    for seed in range(100, 130):
        made[f"drawn-{seed}"] = partial(drawn, seed)
    for name in ("airline.json", "year_prediction_msd.json", "epsilon.json"):
        made[name] = partial(_shared, name)
    made["lightgbm/NYC_taxi.txt"] = partial(_shared, "lightgbm/NYC_taxi.txt")
    return made


MAKERS = _makers()


def family(names: list[str] | None = None) -> Iterator[Sample]:
    """Yield the forests whose name contains one of ``names``; all without."""
    for name in MAKERS:
        if not names or any(part in name for part in names):
            yield get(name)


def get(name: str) -> Sample:
    """Return one forest: from the cache, or trained and put there."""
    file = cache_folder() / "cost-model" / f"{name.replace('/', '-')}-{REVISION}.pkl"
    if not file.exists():
        made = {**MAKERS, **UNSEEN, **DRAWN}[name]()
        forest = load_forest(made.model)
        rows = made.rows if len(made.rows) else _rows_beside(made.model)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pickle.dumps((forest, rows)))
    forest, rows = pickle.loads(file.read_bytes())  # our own file
    if rows is not None:
        rows = rows[:, : forest.n_features]  # then a prediction
    return Sample(name, forest, rows)


def _rows_beside(path: Path) -> NDArray[Any] | None:
    data = path.with_name(f"{path.stem}_rows.csv")
    if not data.exists():
        return None
    return np.loadtxt(data, delimiter=",", ndmin=2)
