"""The models of latency.py and export.py, read into this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from models import Model, models
from numpy.typing import NDArray

from skforge import load_forest
from skforge.forest.forest import Forest

#: What is measured where nothing is asked for; any name of models.py may be.
USUAL = (
    "airline.json",
    "year_prediction_msd.json",
    "epsilon.json",
    "lightgbm/NYC_taxi.txt",
    "RandomForestClassifier-8",
    "RandomForestClassifier-full",
    "ExtraTreesRegressor-8",
    "ExtraTreesRegressor-full",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A model with rows: ``source`` is a file's path or a fitted estimator."""

    name: str
    source: Any
    forest: Forest
    rows: NDArray[Any]
    rows_from: str
    model: Model | None = None

    @property
    def kind(self) -> str:
        """Whose predictor is the first peer: xgboost, lightgbm or sklearn."""
        return self.forest.source.partition(" ")[0]


def cases(names: list[str]) -> Iterator[Case]:
    """Yield the cases whose name contains one of ``names``, the usual if empty."""
    for model in models(names or list(USUAL)):
        source, rows = model.source, np.load(model.rows)
        source = Path(source) if isinstance(source, str) else source
        yield Case(
            model.name, source, load_forest(source), rows, model.rows_from, model
        )
