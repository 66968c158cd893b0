"""Exactness in an environment of other versions: a line of JSON for each model.

Run by the interpreter of that environment: ``python -m tests.reliability.smoke``.
It needs the package's own dependencies and the source libraries, and nothing else.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import skforge
from skforge import CompiledForest
from skforge.tuning import Tuner

METHODS = ("predict", "predict_proba", "decision_function", "score_samples")


def main(folder: Path) -> None:
    """Try every kind of model; print what each said."""
    warnings.simplefilter("ignore")
    random = np.random.default_rng(0)
    X = random.standard_normal((500, 5)).astype(np.float32)
    y = (X.sum(axis=1) > 0).astype(int) + (X[:, 0] > 1)
    for name, attempt in _attempts(X, y, folder).items():
        try:
            said = "" if attempt() else "other bits"
        except Exception as error:  # noqa: BLE001 - each is a finding
            said = f"{type(error).__name__}: {error}"
        print(json.dumps([name, said]), flush=True)


def _attempts(X: Any, y: Any, folder: Path) -> dict[str, Callable[[], bool]]:
    from sklearn import ensemble

    kinds = (
        "RandomForestClassifier", "ExtraTreesRegressor", "GradientBoostingClassifier",
        "HistGradientBoostingClassifier", "HistGradientBoostingRegressor",
        "IsolationForest", "BaggingClassifier", "AdaBoostClassifier",
    )  # fmt: skip

    def same(make: Callable[[], Any]) -> Callable[[], bool]:
        def attempt() -> bool:
            model = make()
            compiled = CompiledForest(model, tuning="off").fit(X[:50])
            skforge.save(compiled, folder / "model.skforge")
            loaded = skforge.load(folder / "model.skforge")
            return all(
                np.array_equal(getattr(fast, method)(X), getattr(model, method)(X))
                for method in METHODS
                if hasattr(model, method)
                for fast in (compiled, loaded)
            )

        return attempt

    def sklearn_model(name: str) -> Any:
        size = "max_iter" if "Hist" in name else "n_estimators"
        model = getattr(ensemble, name)(random_state=0, **{size: 5})
        return model.fit(X) if name == "IsolationForest" else model.fit(X, y)

    def booster() -> bool:
        import xgboost

        data = xgboost.DMatrix(X, y > 0)
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

    def light() -> bool:
        import lightgbm

        options = {"verbosity": -1, "num_threads": 1}
        source = lightgbm.train(options, lightgbm.Dataset(X, y), 5)
        compiled = CompiledForest(source, tuning="off").fit(X[:50])
        return np.array_equal(compiled.predict(X), source.predict(X))

    def xgboost_wrapper() -> Any:
        import xgboost

        return xgboost.XGBClassifier(n_estimators=5, n_jobs=1).fit(X, y)

    def lightgbm_wrapper() -> Any:
        import lightgbm

        return lightgbm.LGBMClassifier(n_estimators=5, n_jobs=1, verbose=-1).fit(X, y)

    def onnx() -> bool:
        from skforge.forest.reference import draw_rows, reference_raw

        data = Path(__file__).resolve().parents[1] / "data" / "onnx_models"
        for path in sorted(data.glob("*.onnx"))[::3]:
            forest = skforge.load_forest(path)
            rows = draw_rows(forest, 50, 0)
            found = skforge.compile_forest(forest).predict_raw(rows)
            if found.tobytes() != reference_raw(forest, rows).tobytes():
                return False
        return True

    def tuned() -> bool:
        model = sklearn_model("RandomForestClassifier")
        compiled = CompiledForest(model, tuning=Tuner(budget=0.5)).fit(X[:50])
        return np.array_equal(compiled.predict(X), model.predict(X))

    return {
        **{name: same(lambda name=name: sklearn_model(name)) for name in kinds},
        "XGBoost Booster and file": booster,
        "XGBClassifier": same(xgboost_wrapper),
        "LightGBM Booster": light,
        "LGBMClassifier": same(lightgbm_wrapper),
        "ONNX files": onnx,
        "tuned": tuned,
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
