"""The models that are measured, and the rows they are measured on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge import UnsupportedModelError, load_forest
from skforge.compiler.forest import Forest
from skforge.compiler.reference import draw_rows

Rows = NDArray[Any]
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Case:
    """A model with rows: ``source`` is a file's path or a fitted estimator."""

    name: str
    source: Any
    forest: Forest
    rows: Rows
    rows_from: str

    @property
    def kind(self) -> str:
        """Whose predictor is the first peer: xgboost, lightgbm or sklearn."""
        return self.forest.source.partition(" ")[0]


def shared_folder() -> Path:
    """Return the folder of public models, beside the repository or SKFORGE_MODELS."""
    return Path(os.environ.get("SKFORGE_MODELS") or ROOT.parent / "shared" / "models")


def cases(names: list[str]) -> Iterator[Case]:
    """Yield the cases whose name contains one of ``names``, all if it is empty."""
    for name, make in MAKERS.items():
        if names and not any(part in name for part in names):
            continue
        try:
            yield make(name)
        except (FileNotFoundError, ImportError, UnsupportedModelError) as error:
            print(f"{name} is left out: {error}")


def _file(name: str) -> Case:
    """Read a shared model; its real rows if there are any, else rows drawn for it."""
    path = shared_folder() / name
    if not path.exists():
        raise FileNotFoundError(f"no {path}; set SKFORGE_MODELS")
    forest = load_forest(path)
    data = path.with_name(f"{path.stem}_rows.csv")
    if data.exists():
        table = np.loadtxt(data, delimiter=",", ndmin=2)
        rows = table[:, : forest.n_features]  # what follows is a prediction
        return Case(name, path, forest, _as_input(forest, rows), data.name)
    rows = draw_rows(forest, 4096, seed=0)
    return Case(name, path, forest, rows, "drawn around thresholds")


def _forest_on_table(name: str) -> Case:
    """Train a scikit-learn forest on 30 informative columns, as papers do."""
    from sklearn import ensemble
    from sklearn.datasets import make_classification

    X, y = make_classification(
        12_096, 30, n_informative=15, n_redundant=5, flip_y=0.05, random_state=0
    )
    X = X.astype(np.float32)
    class_name, depth = name.split("-")
    model = getattr(ensemble, class_name)(
        100, max_depth=None if depth == "full" else int(depth), n_jobs=1, random_state=0
    )
    target = y if class_name.endswith("Classifier") else X[:, 0] * y + X[:, 1]
    model.fit(X[4096:], target[4096:])
    return Case(name, model, load_forest(model), X[:4096], "held out")


def _as_input(forest: Forest, rows: Rows) -> Rows:
    return np.ascontiguousarray(rows, dtype=forest.input_dtype)


MAKERS = {
    **dict.fromkeys(
        (
            "airline.json",
            "year_prediction_msd.json",
            "epsilon.json",
            "lightgbm/NYC_taxi.txt",
        ),
        _file,
    ),
    **dict.fromkeys(
        (
            "RandomForestClassifier-8",
            "RandomForestClassifier-full",
            "ExtraTreesRegressor-8",
            "ExtraTreesRegressor-full",
        ),
        _forest_on_table,
    ),
}
