"""Who predicts: skforge, and the models' own libraries; other peers are in peers.py.

A loader takes a model (its JSON, see ``models.Model``) and returns what predicts.
Heavy packages are imported inside: this module is read in environments that have only
NumPy and their one peer. A loader that cannot do a model raises, and says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Predict = Callable[[Array], Any]
Model = dict[str, Any]


class NotForModelError(Exception):
    """The system does not read this model; the message says why."""


@dataclass(frozen=True, slots=True)
class System:
    """What predicts a loaded model.

    An answer is "raw" scores, or the "value" that the source's ``predict`` or
    ``predict_proba`` returns.
    """

    answer: str
    predict: Callable[[int], Predict]  # of a number of threads: the call that is timed
    adapt: Callable[[Array], Array] = np.asarray  # to the source's convention; untimed
    compile_seconds: float | None = None  # of preparing, where the system tells


def load_estimator(path: str) -> Any:
    """Return a fitted estimator from the cache this benchmark wrote itself."""
    import joblib

    return joblib.load(path)


def source_of(model: Model) -> Any:
    """Return what ``load_forest`` and ``CompiledForest`` take."""
    is_estimator = model["kind"] == "sklearn"
    return load_estimator(model["path"]) if is_estimator else model["path"]


def needs(model: Model, kind: str) -> None:
    """Refuse the models of other libraries."""
    if model["kind"] != kind:
        names = {"xgboost": "an XGBoost", "lightgbm": "a LightGBM"}
        raise NotForModelError(f"not {names.get(kind, 'a scikit-learn')} model")


def method_of(estimator: Any) -> str:
    """Return the method whose answer stands for a scikit-learn model's."""
    for name in ("predict_proba", "score_samples"):
        if hasattr(estimator, name):
            return name
    return "predict"


# ------------------------------------------------------------ skforge


def skforge_avx2(model: Model) -> System:
    """Load CompiledForest for this machine without AVX-512."""
    return skforge(model, without_avx512())


def without_avx512() -> Any:
    from skforge import Target

    host = Target.host()
    caches = {k: getattr(host, k) for k in ("l1_bytes", "l2_bytes", "l3_bytes")}
    return replace(Target.x86_64("v3"), n_cores=host.n_cores, **caches)


def skforge(model: Model, target: Any = "cpu") -> System:
    """Load CompiledForest with default schedules; nothing is tuned."""
    from skforge import CompiledForest

    fast = CompiledForest(source_of(model), tuning="off", target=target)
    fast.fit(np.load(model["rows"])[:1024])
    has_raw = model["kind"] in ("xgboost", "lightgbm")
    name = "predict_raw" if has_raw else method_of(fast)

    def predict(threads: int) -> Predict:
        fast.set_params(n_jobs=threads)
        # A method is looked up at every call, as in users' code.
        if name == "predict_raw":
            return lambda X: fast.predict_raw(X)
        if name == "predict_proba":
            return lambda X: fast.predict_proba(X)
        if name == "score_samples":
            return lambda X: fast.score_samples(X)
        return lambda X: fast.predict(X)

    answer = "raw" if has_raw else "value"
    return System(answer, predict, compile_seconds=fast.compile_time_)


# ------------------------------------------------------------ own libraries


def xgboost(model: Model) -> System:
    booster = xgboost_booster(model)

    def predict(threads: int) -> Predict:
        booster.set_param({"nthread": threads})
        return lambda X: booster.inplace_predict(X, predict_type="margin")

    return System("raw", predict)


def xgboost_booster(model: Model) -> Any:
    needs(model, "xgboost")
    import xgboost

    with xgboost.config_context(verbosity=0):  # old files draw a warning
        return xgboost.Booster(model_file=model["path"])


def xgboost_wrapper(model: Model) -> System:
    needs(model, "xgboost")
    import xgboost

    wrapper = xgboost.XGBRegressor()
    with xgboost.config_context(verbosity=0):
        wrapper.load_model(model["path"])

    def predict(threads: int) -> Predict:
        wrapper.set_params(n_jobs=threads)
        wrapper.get_booster().set_param({"nthread": threads})
        return lambda X: wrapper.predict(X, output_margin=True)

    return System("raw", predict)


def lightgbm(model: Model) -> System:
    booster = lightgbm_booster(model)

    def predict(threads: int) -> Predict:
        return lambda X: booster.predict(X, raw_score=True, num_threads=threads)

    return System("raw", predict)


def lightgbm_booster(model: Model) -> Any:
    needs(model, "lightgbm")
    import lightgbm

    return lightgbm.Booster(model_file=model["path"])


def lightgbm_wrapper(model: Model) -> System:
    needs(model, "lightgbm")
    if model["wrapper"] is None:
        raise NotForModelError("the file holds a Booster only")
    wrapper = load_estimator(model["wrapper"])

    def predict(threads: int) -> Predict:
        return lambda X: wrapper.predict(X, raw_score=True, num_threads=threads)

    return System("raw", predict)


def sklearn(model: Model) -> System:
    """Load the estimator: predict_proba, score_samples or predict."""
    needs(model, "sklearn")
    estimator = load_estimator(model["path"])

    def predict(threads: int) -> Predict:
        if "n_jobs" in estimator.get_params():
            estimator.set_params(n_jobs=threads)
        call: Predict = getattr(estimator, method_of(estimator))
        return call

    return System("value", predict)


def transformed(model: Model) -> Predict:
    """Return the own library's answers after its transform, on one thread."""
    match model["kind"]:
        case "xgboost":
            booster = xgboost_booster(model)
            booster.set_param({"nthread": 1})
            return lambda X: booster.inplace_predict(X)
        case "lightgbm":
            other = lightgbm_booster(model)
            return lambda X: other.predict(X, num_threads=1)
        case _:
            raise NotForModelError("has one answer only")


OWN = {
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
    "sklearn": "sklearn",
    "onnx": "onnxruntime",
}
