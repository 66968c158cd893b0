"""``make.py PROGRAM LIBRARY``: train a model, and write it as a program wants it."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import joblib
from work import X, forest, frame, y

ROWS, TREES = 3000, 300
RUNTIMES = {
    "sklearn": ("mlserver_sklearn.SKLearnModel", "model.joblib"),
    "xgboost": ("mlserver_xgboost.XGBoostModel", "model.json"),
    "lightgbm": ("mlserver_lightgbm.LightGBMModel", "model.txt"),
}


def model_of(library: str) -> Any:
    """Train on a frame, as MLflow's servers get one."""
    if library == "sklearn":
        return forest().fit(frame[:1500], y[:1500])
    if library == "xgboost":
        from xgboost import XGBClassifier

        model: Any = XGBClassifier(n_estimators=TREES, n_jobs=1)
    elif library == "lightgbm":
        from lightgbm import LGBMClassifier

        model = LGBMClassifier(n_estimators=TREES, n_jobs=1, verbose=-1)
    else:
        from catboost import CatBoostClassifier

        options: Any = {"thread_count": 1, "allow_writing_files": False}
        model = CatBoostClassifier(iterations=TREES, verbose=0, **options)
    return model.fit(frame[:ROWS], y[:ROWS])


def for_mlflow(library: str) -> None:
    import mlflow

    how = {"serialization_format": "cloudpickle"} if library == "sklearn" else {}
    getattr(mlflow, library).save_model(model_of(library), "model", **how)


def for_mlserver(library: str) -> None:
    runtime, file = RUNTIMES[library]
    if library == "sklearn":
        write_forest(file)
    elif library == "xgboost":
        model = model_of(library)
        model.get_booster().feature_names = None  # rows come as arrays
        model.save_model(file)
    else:
        model_of(library).booster_.save_model(file)
    about = {"name": "served", "implementation": runtime, "parameters": {"uri": file}}
    Path("model-settings.json").write_text(json.dumps(about))


def trained() -> Any:
    """Train on an array: scikit-learn would warn of arrays after a frame."""
    return forest().fit(X[:1500], y[:1500])


def write_forest(file: str = "model.joblib") -> None:
    joblib.dump(trained(), file)


WRITERS = {"mlflow": for_mlflow, "mlserver": for_mlserver, "joblib": write_forest}
WRITERS["pickle"] = lambda: Path("model.pickle").write_bytes(pickle.dumps(trained()))

if __name__ == "__main__":
    WRITERS[sys.argv[1]](*sys.argv[2:])
