"""Predictors of the source libraries of model files, for comparison and timing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from skforge.cli.report import Pair
from skforge.compiler.frontends.base import is_a

if TYPE_CHECKING:
    from skforge.compiler.runtime.module import CompiledModule


def estimator_pairs(fast: Any) -> list[Pair]:
    """Return the methods of a ``CompiledForest``, each with its estimator's own.

    The estimator predicts on one thread.
    """
    serial = fast._compiled().source._serial()
    names = [
        name
        for name in ("predict_proba", "predict")
        if hasattr(fast, name) and hasattr(serial, name)
    ]
    return [
        Pair(name, _quiet(getattr(fast, name)), name, _quiet(getattr(serial, name)))
        for name in names
    ]


def _quiet(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a method without warnings about arrays, which have no names of columns."""
    from skforge.prediction.answers import as_array

    def call(X: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return as_array(method(X))

    return call


def source_pair(
    console: Console, model_file: Path, model: Any, module: CompiledModule
) -> Pair | None:
    """Return the compiled predictor and the source library's, on one thread.

    Returns None if the file is no model of a library, and prints the reason if the
    library is not installed or cannot read the file.
    """
    if is_a(model, "xgboost.core.Booster"):
        return booster_pair(model, module)
    if is_a(model, "lightgbm.basic.Booster"):
        return _of_lightgbm(model, module)
    made = _MAKERS.get(model_file.suffix.lower())
    if made is None:
        return None
    library, make = made
    try:
        return make(model_file, module)
    except ImportError:
        console.print(
            f"{library} is not installed: bits are compared with skforge's reference "
            "walk.",
            soft_wrap=True,
        )
    except Exception as error:  # noqa: BLE001 - each library has its own errors
        why = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        console.print(f"{library} cannot read the file: {why}", soft_wrap=True)
    return None


def reference_pair(module: CompiledModule) -> Pair:
    """Return the compiled predictor and skforge's slow reference traversal."""
    from skforge.sources.files import ForestSource

    walk = ForestSource(None, module.forest).raw
    return Pair("predict_raw", module.predict_raw, "reference", walk)


def _one_axis(raw: NDArray[Any]) -> NDArray[Any]:
    return raw[:, 0] if raw.ndim == 2 and raw.shape[1] == 1 else raw


def _xgboost(model_file: Path, module: CompiledModule) -> Pair:
    import xgboost

    with xgboost.config_context(verbosity=0):  # old files cause a warning
        return booster_pair(xgboost.Booster(model_file=str(model_file)), module)


def booster_pair(booster: Any, module: CompiledModule) -> Pair:
    """Return the raw scores of a compiled Booster of XGBoost, and the Booster's own."""
    booster.set_param({"nthread": 1})
    rounds = (0, 0)  # all
    # XGBoost's scikit-learn wrapper predicts with the rounds up to the best iteration.
    if booster.attr("scikit_learn") is not None:
        rounds = (0, int(booster.attr("best_iteration") or -1) + 1)

    def margin(X: NDArray[Any]) -> NDArray[Any]:
        raw: NDArray[Any] = booster.inplace_predict(
            X, predict_type="margin", iteration_range=rounds
        )
        return raw

    return Pair("predict_raw", module.predict_raw, "inplace_predict", margin)


def _lightgbm(model_file: Path, module: CompiledModule) -> Pair:
    import lightgbm

    return _of_lightgbm(lightgbm.Booster(model_file=str(model_file)), module)


def _of_lightgbm(booster: Any, module: CompiledModule) -> Pair:
    return Pair(
        "predict_raw",
        module.predict_raw,
        "Booster.predict",
        lambda X: np.asarray(booster.predict(X, raw_score=True, num_threads=1)),
    )


def _onnxruntime(model_file: Path, module: CompiledModule) -> Pair:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model_file), options)
    feeds, wanted = session.get_inputs(), session.get_outputs()[-1].name
    if len(feeds) != 1:
        raise ValueError(f"it has {len(feeds)} inputs, and rows are one array")
    feed = feeds[0].name
    # Compare scores after the post transform; ONNX Runtime returns no others.
    return Pair(
        "predict",
        lambda X: _one_axis(module.predict(X)),
        "onnxruntime",
        lambda X: _one_axis(np.asarray(session.run([wanted], {feed: X})[0])),
    )


_MAKERS: dict[str, tuple[str, Callable[[Path, CompiledModule], Pair]]] = {
    ".json": ("xgboost", _xgboost),
    ".ubj": ("xgboost", _xgboost),
    ".txt": ("lightgbm", _lightgbm),
    ".onnx": ("onnxruntime", _onnxruntime),
}
