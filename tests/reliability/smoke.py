"""Exactness in an environment of other versions: what each kind of model says.

``nox -s oldest`` runs it by the interpreter of an environment of the oldest versions.
It needs the package's own dependencies and the source libraries, and nothing else.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import xgboost
from sklearn import ensemble

import skforge
from skforge import CompiledForest
from skforge.forest.reference import draw_rows, reference_raw
from skforge.tuning import Tuner

METHODS = ("predict", "predict_proba", "decision_function", "score_samples")
SKLEARN = (
    "RandomForestClassifier", "ExtraTreesRegressor", "GradientBoostingClassifier",
    "HistGradientBoostingClassifier", "HistGradientBoostingRegressor",
    "IsolationForest", "BaggingClassifier", "AdaBoostClassifier",
)  # fmt: skip
X = np.random.default_rng(0).standard_normal((500, 5)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(int) + (X[:, 0] > 1)
FEW: dict[str, Any] = {"n_estimators": 5, "n_jobs": 1}


def of_sklearn(name: str) -> Any:
    size = "max_iter" if "Hist" in name else "n_estimators"
    model = getattr(ensemble, name)(random_state=0, **{size: 5})
    return model.fit(X) if name == "IsolationForest" else model.fit(X, Y)


def estimator(model: Any, folder: Path) -> bool:
    """Compare all methods, live and from a file."""
    compiled = CompiledForest(model, tuning="off").fit(X[:50])
    skforge.save(compiled, folder / "model.skforge")
    return all(
        np.array_equal(getattr(fast, method)(X), getattr(model, method)(X))
        for method in METHODS
        if hasattr(model, method)
        for fast in (compiled, skforge.load(folder / "model.skforge"))
    )


def booster(folder: Path) -> bool:
    data = xgboost.DMatrix(X, Y > 0)
    source = xgboost.train({"objective": "binary:logistic", "nthread": 1}, data, 5)
    compiled = CompiledForest(source, tuning="off").fit(X[:50])
    source.save_model(folder / "model.json")
    read = skforge.compile_forest(skforge.load_forest(folder / "model.json"))
    margins = source.predict(data, output_margin=True)
    return (
        np.array_equal(compiled.predict_proba(X)[:, 1], source.predict(data))
        and np.array_equal(compiled.predict_raw(X), margins)
        and np.array_equal(read.predict_raw(X), margins)
    )


def light(_: Path) -> bool:
    options = {"verbosity": -1, "num_threads": 1}
    source = lightgbm.train(options, lightgbm.Dataset(X, Y), 5)
    compiled = CompiledForest(source, tuning="off").fit(X[:50])
    return np.array_equal(compiled.predict(X), source.predict(X))


def onnx(_: Path) -> bool:
    data = Path(__file__).resolve().parents[1] / "data" / "onnx_models"
    for path in sorted(data.glob("*.onnx"))[::3]:
        forest = skforge.load_forest(path)
        rows = draw_rows(forest, 50, 0)
        found = skforge.compile_forest(forest).predict_raw(rows)
        if found.tobytes() != reference_raw(forest, rows).tobytes():
            return False
    return True


def tuned(_: Path) -> bool:
    model = of_sklearn("RandomForestClassifier")
    compiled = CompiledForest(model, tuning=Tuner(budget=0.5)).fit(X[:50])
    return np.array_equal(compiled.predict(X), model.predict(X))


MODELS: dict[str, Callable[[Path], bool]] = {
    **{
        name: lambda folder, name=name: estimator(of_sklearn(name), folder)
        for name in SKLEARN
    },
    "XGBoost Booster and file": booster,
    "XGBClassifier": lambda folder: estimator(
        xgboost.XGBClassifier(**FEW).fit(X, Y), folder
    ),
    "LightGBM Booster": light,
    "LGBMClassifier": lambda folder: estimator(
        lightgbm.LGBMClassifier(verbose=-1, **FEW).fit(X, Y), folder
    ),
    "ONNX files": onnx,
    "tuned": tuned,
}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as place:
        wrong = [name for name, same in MODELS.items() if not same(Path(place))]
    sys.exit(f"other bits: {', '.join(wrong)}" if wrong else 0)
