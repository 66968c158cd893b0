"""Whoever predicts: skforge, the model's own library, and peers that are installed.

Each is set up for a number of threads and returns a function of rows. Heavy packages
are imported where they are used; one that is not installed, or that cannot read the
model, is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case
from numpy.typing import NDArray

from skforge import compile_forest
from skforge.compiler.module import CompiledModule

Predict = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class System:
    """A name for the table, and the call that is timed."""

    name: str
    predict: Predict


def own_library(case: Case, threads: int) -> System:
    """Return the predictor of the model's own library: what must be equalled."""
    match case.kind:
        case "xgboost":
            return System("xgboost", _xgboost(case, threads))
        case "lightgbm":
            return System("lightgbm", _lightgbm(case, threads))
        case _:
            case.source.set_params(n_jobs=threads)
            name = "predict_proba" if _is_classifier(case) else "predict"
            return System("sklearn", getattr(case.source, name))


def skforge_one_shot(case: Case, threads: int) -> tuple[System, CompiledModule]:
    """Return skforge with its default schedules: nothing is tuned or measured."""
    module = compile_forest(case.forest, n_jobs=threads)
    # Probabilities of scikit-learn's forests are their raw scores; two classes too.
    return System("skforge", module.predict_raw), module


def peers(case: Case, threads: int) -> list[System]:
    """Return the other systems that are installed and read this model."""
    found = []
    for make in (_treelite, _onnxruntime):
        try:
            found.append(make(case, threads))
        except (ImportError, FileNotFoundError) as error:
            print(f"  {make.__name__.strip('_')} is left out: {error}")
    return found


def _is_classifier(case: Case) -> bool:
    return hasattr(case.source, "predict_proba")


def _xgboost(case: Case, threads: int) -> Predict:
    import xgboost

    with xgboost.config_context(verbosity=0):  # old files draw a warning
        booster = xgboost.Booster(model_file=str(case.source))
    booster.set_param({"nthread": threads})
    return lambda X: booster.inplace_predict(X, predict_type="margin")


def _lightgbm(case: Case, threads: int) -> Predict:
    import lightgbm

    booster = lightgbm.Booster(model_file=str(case.source))
    return lambda X: booster.predict(X, raw_score=True, num_threads=threads)


def _treelite(case: Case, threads: int) -> System:
    import treelite

    if isinstance(case.source, Path):
        reader = {".json": "load_xgboost_model", ".txt": "load_lightgbm_model"}
        model = getattr(treelite.frontend, reader[case.source.suffix])(str(case.source))
    else:
        model = treelite.sklearn.import_model(case.source)
    margin = case.kind != "sklearn"

    def predict(X: NDArray[Any]) -> NDArray[Any]:
        raw = treelite.gtil.predict(model, X, nthread=threads, pred_margin=margin)
        return _like_ours(raw)

    return System("treelite gtil", predict)


def _onnxruntime(case: Case, threads: int) -> System:
    import onnxruntime

    path = Path(str(case.source)).with_suffix(".onnx")
    if not (isinstance(case.source, Path) and path.exists()):
        raise FileNotFoundError(f"no ONNX file of {case.name}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options)
    feed = session.get_inputs()[0].name
    output = session.get_outputs()[-1].name
    # Margins, as the file's post_transform is NONE; airline.onnx adds its base_score of
    # 0.5 to them as it is, so it differs from the model by that much.
    return System("onnxruntime", lambda X: session.run([output], {feed: X})[0])


def _like_ours(raw: NDArray[Any]) -> NDArray[Any]:
    """Drop axes of length one, except rows."""
    return raw.reshape(len(raw), -1)[:, 0] if raw.size == len(raw) else np.squeeze(raw)
