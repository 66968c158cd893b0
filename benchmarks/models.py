"""The models of the table: shared files, trained ones and random ones, kept on disk.

A model is files only: what its library wrote, rows to predict, and where there is one
the fitted wrapper. Any process of any environment can read it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray
from synthetic import FAMILY, STAND_INS, random_model
from systems import source_of
from training import MAKERS, SWEEP, WEAK, Trained, of_sweep

from skforge import load_forest
from skforge.forest.forest import Forest
from skforge.forest.reference import draw_rows

ROOT = Path(__file__).resolve().parents[1]
REVISION = 1  # of what is trained: another number makes all models anew
SUFFIX = {"xgboost": ".json", "lightgbm": ".txt", "sklearn": ".joblib"}
SHARED = (
    "airline.json",
    "year_prediction_msd.json",
    "epsilon.json",
    "lightgbm/NYC_taxi.txt",
    "lightgbm/multiclass.txt",
    "lightgbm/mixed_categorical.txt",
    "airline.onnx",
)
#: The eight real models of SilvanForge's evaluation, five of which are stand-ins.
EIGHT = (
    "stand-in-abalone",
    "airline.json",
    "stand-in-airline-ohe",
    "stand-in-covtype",
    "epsilon.json",
    "stand-in-higgs",
    "stand-in-letters",
    "year_prediction_msd.json",
)


@dataclass(frozen=True, slots=True)
class Model:
    """A model as files, and what a table says of it."""

    name: str
    kind: str  # xgboost, lightgbm, sklearn or onnx
    path: str  # what its library wrote; a fitted estimator for scikit-learn
    rows: str  # a ``.npy`` file of rows in the dtype the model reads
    rows_from: str  # in words
    wrapper: str | None = None  # a fitted estimator with the same trees
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> Any:
        """What ``load_forest`` takes."""
        return source_of(asdict(self))


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    chosen = os.environ.get("SKFORGE_BENCH_CACHE") or Path(home) / "skforge-benchmarks"
    return Path(chosen)


def shared_folder() -> Path:
    return Path(os.environ.get("SKFORGE_MODELS") or ROOT.parent / "shared" / "models")


def names() -> list[str]:
    """Return the names of all models, in the order of the table."""
    return [*SHARED, *MAKERS, *FAMILY]


def models(wanted: list[str]) -> Iterator[Model]:
    """Yield the models whose name contains one of ``wanted``; all if it is empty.

    Names of the random family, such as ``synthetic-200x64-7``, of stand-ins and of weak
    cells need not be listed; they are whole names.
    """
    listed = [n for n in names() if not wanted or any(part in n for part in wanted)]
    family = [n for n in wanted if re.match("(synthetic|complete)-.*-", n)]
    extra = [*family, *(n for n in wanted if n in WEAK or n in STAND_INS)]
    for name in dict.fromkeys([*listed, *extra]):
        try:
            yield get(name)
        except (FileNotFoundError, ImportError) as error:
            print(f"{name} is left out: {error}")


def get(name: str) -> Model:
    folder = cache_folder() / "models" / f"{name.replace('/', '-')}-{_key(name)}"
    description = folder / "model.json"
    if description.exists():
        return Model(**json.loads(description.read_text(encoding="utf-8")))
    folder.mkdir(parents=True, exist_ok=True)
    if name in SHARED:
        model = _shared(name, folder)
    else:
        maker = (MAKERS | WEAK).get(name)
        if name.startswith(SWEEP):
            made = of_sweep(name)
        else:
            made = maker() if maker else random_model(name)
        model = _keep(name, made, folder)
    description.write_text(json.dumps(asdict(model), indent=1), encoding="utf-8")
    return model


def _key(name: str) -> str:
    """Return what a cached model depends on besides its name."""
    if name in SHARED:
        file = shared_folder() / name
        if not file.exists():
            raise FileNotFoundError(f"no {file}; set SKFORGE_MODELS")
        return f"{REVISION}-{int(file.stat().st_mtime)}"
    versions = []
    for package in ("scikit-learn", "xgboost", "lightgbm"):
        try:
            versions.append(metadata.version(package))
        except metadata.PackageNotFoundError:
            versions.append("none")
    return "-".join([str(REVISION), *versions])


def _shared(name: str, folder: Path) -> Model:
    """Describe a shared model; its real rows if there are any, else rows drawn."""
    path = shared_folder() / name
    forest = load_forest(path)
    table = rows_beside(path)
    if table is not None:
        X = table[:, : forest.n_features]  # then a prediction
        origin = f"{path.stem}_rows.csv"
    else:
        X, origin = draw_rows(forest, 4096, seed=0), "drawn around thresholds"
    kind = forest.source.partition(" ")[0]
    rows = _write_rows(folder, forest, X)
    return Model(name, kind, str(path), rows, origin, None, facts(forest))


def rows_beside(path: Path) -> NDArray[Any] | None:
    """Return the rows and predictions that a file beside a model has."""
    data = path.with_name(f"{path.stem}_rows.csv")
    return np.loadtxt(data, delimiter=",", ndmin=2) if data.exists() else None


def _keep(name: str, made: Trained, folder: Path) -> Model:
    """Write what was trained, in its library's own format and as the estimator."""
    path = folder / f"trained{SUFFIX[made.kind]}"
    wrapper = None
    if made.kind == "sklearn":
        joblib.dump(made.model, path)
    else:
        made.model.save_model(str(path))
    if made.wrapper is not None:
        wrapper = str(folder / "wrapper.joblib")
        joblib.dump(made.wrapper, wrapper)
    forest = load_forest(made.model)
    rows = _write_rows(folder, forest, made.rows)
    return Model(
        name, made.kind, str(path), rows, made.rows_from, wrapper, facts(forest)
    )


def _write_rows(folder: Path, forest: Forest, rows: NDArray[Any]) -> str:
    file = folder / "rows.npy"
    np.save(file, np.ascontiguousarray(rows, dtype=forest.input_dtype))
    return str(file)


def facts(forest: Forest) -> dict[str, Any]:
    low, high = forest.leaf_depths()
    return {
        "trees": int(forest.n_trees),
        "leaves": int(forest.n_nodes + forest.n_trees) // 2,
        "distinct tests": int(forest.n_predicates),
        "depths": f"{int(low.min())}–{int(high.max())}",
        "features": int(forest.n_features),
        "outputs": int(forest.n_outputs),
        "dtype": str(np.dtype(forest.input_dtype)),
    }
