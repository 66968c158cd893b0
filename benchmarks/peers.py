"""Peers that read other libraries' models. Their loaders are like those of systems.py.

Each is called as its users call it, conversions of rows included.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from systems import (
    Array,
    Model,
    NotForModelError,
    Predict,
    System,
    lightgbm_booster,
    load_estimator,
    method_of,
    xgboost_booster,
)


def treelite_model(model: Model) -> Any:
    import treelite

    match model["kind"]:
        case "xgboost":
            return treelite.frontend.load_xgboost_model(model["path"])
        case "lightgbm":
            return treelite.frontend.load_lightgbm_model(model["path"])
        case "sklearn":
            return treelite.sklearn.import_model(load_estimator(model["path"]))
        case _:
            raise NotForModelError("reads no ONNX")


def _treelite_answer(model: Model) -> dict[str, Any]:
    """Return answer and adapt of a System for what treelite and tl2cgen return."""
    if model["kind"] != "sklearn":
        return {"answer": "raw"}
    scores = method_of(load_estimator(model["path"])) == "score_samples"
    return {"answer": "value", "adapt": np.negative if scores else np.asarray}


def treelite(model: Model) -> System:
    import treelite

    trees, margin = treelite_model(model), model["kind"] != "sklearn"

    def predict(threads: int) -> Predict:
        return lambda X: treelite.gtil.predict(
            trees, X, nthread=threads, pred_margin=margin
        )

    return System(predict=predict, **_treelite_answer(model))


def tl2cgen(model: Model) -> System:
    import tl2cgen

    trees, margin = treelite_model(model), model["kind"] != "sklearn"
    library = Path(tempfile.mkdtemp()) / "model.so"
    # parallel_comp: as many files, so that gcc is not given one of 100 MB.
    tl2cgen.export_lib(
        trees, toolchain="gcc", libpath=library, params={"parallel_comp": 32}
    )

    def predict(threads: int) -> Predict:
        predictor = tl2cgen.Predictor(library, nthread=threads)
        dtype = model["facts"]["dtype"]
        return lambda X: predictor.predict(
            tl2cgen.DMatrix(X, dtype=dtype), pred_margin=margin
        )

    return System(predict=predict, **_treelite_answer(model))


def lleaves(model: Model) -> System:
    if model["kind"] != "lightgbm":
        raise NotForModelError("reads LightGBM files only")
    import lleaves

    compiled = lleaves.Model(model_file=model["path"])
    compiled.compile(raw_score=True)

    def predict(threads: int) -> Predict:
        return lambda X: compiled.predict(X, n_jobs=threads)

    return System("raw", predict)


def nvforest(model: Model) -> System:
    """Load nvForest on the CPU; it chooses layout and chunk for each batch size."""
    import nvforest
    from threadpoolctl import threadpool_limits

    trees, facts = treelite_model(model), model["facts"]
    as_sum(trees, facts["outputs"])
    precision = "double" if facts["dtype"] == "float64" else None
    loaded = nvforest.load_from_treelite_model(trees, device="cpu", precision=precision)
    method = "predict_proba" if facts["outputs"] > 1 else "predict"
    tuned: dict[int, Predict] = {}

    def predict(threads: int) -> Predict:
        threadpool_limits(limits=threads)

        def call(X: Array) -> Array:
            if len(X) not in tuned:  # in the first call, which is not timed
                best = loaded.optimize(batch_size=len(X), predict_method=method)
                tuned[len(X)] = getattr(best, method)
            return np.asarray(tuned[len(X)](X))

        return call

    return System(predict=predict, **_treelite_answer(model))


def as_sum(trees: Any, outputs: int) -> None:
    """Let a treelite model answer with its sums, whatever its objective."""
    header = trees.get_header_accessor()
    if outputs > 1:
        header.set_field("postprocessor", "identity_multiclass")
    else:
        header.set_field("postprocessor", "identity")
        # A regressor's answer is the sum; classifiers would make two columns of it.
        header.set_field("task_type", np.array([1], np.uint8))


def lignum(model: Model) -> System:
    return _of_lignum(model, _lignum_model(model))


def lignum_compiled(model: Model) -> System:
    """Load lignum with C code of gcc, where its own ``autotune`` prefers it."""
    made = _lignum_model(model)
    made.compile(work_dir=tempfile.mkdtemp())
    made.autotune(np.load(model["rows"])[:4096].astype(np.float64), n_jobs=1)
    return _of_lignum(model, made)


def _lignum_model(model: Model) -> Any:
    import lignum

    if model["kind"] not in ("xgboost", "lightgbm"):
        raise NotForModelError("reads files of XGBoost, LightGBM and CatBoost only")
    return lignum.load(model["path"])


def _of_lignum(model: Model, made: Any) -> System:
    """Call it; its arrays are of float64 where XGBoost's are of float32."""

    def predict(threads: int) -> Predict:
        return lambda X: made.predict(X, raw_score=True, n_jobs=threads)

    return System(
        "raw", predict, np.float32 if model["kind"] == "xgboost" else np.asarray
    )


def onnxruntime(model: Model) -> System:
    """Load ONNX Runtime, of a file or of what the ONNX converters make."""
    adapt: Any = np.asarray
    if model["kind"] == "onnx":
        source: Any = model["path"]
    else:
        source, adapt = _converted(model)

    def predict(threads: int) -> Predict:
        session = onnx_session(source, threads)
        feed, output = session.get_inputs()[0].name, session.get_outputs()[-1].name
        return lambda X: session.run([output], {feed: _float32(X)})[0]

    return System("value", predict, adapt)


def onnx_session(source: Any, threads: int = 1) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    return onnxruntime.InferenceSession(source, options)


def _float32(X: Array) -> Array:
    """Return the rows as converted models take them; a copy where they are not."""
    return X if X.dtype == np.float32 else X.astype(np.float32)


def boosted_onnx(kind: str, source: Any, columns: int, **options: Any) -> bytes:
    """Return a model of a boosting library as ONNX; rows are named X."""
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    types = [("X", FloatTensorType([None, columns]))]
    convert = getattr(onnxmltools, f"convert_{kind}")
    return bytes(convert(source, initial_types=types, **options).SerializeToString())


def _converted(model: Model) -> tuple[bytes, Any]:
    """Return a model as ONNX, and what turns its answer into the source's."""
    columns = model["facts"]["features"]
    match model["kind"]:
        case "xgboost":
            made = boosted_onnx("xgboost", xgboost_booster(model), columns)
        case "lightgbm":
            booster = lightgbm_booster(model)
            made = boosted_onnx("lightgbm", booster, columns, zipmap=False)
        case _:
            import skl2onnx

            estimator = load_estimator(model["path"])
            method = method_of(estimator)
            options: Any = {"zipmap": False} if method == "predict_proba" else None
            made = skl2onnx.to_onnx(
                estimator,
                np.zeros((1, columns), np.float32),
                options={id(estimator): options} if options else None,
                target_opset={"": 21, "ai.onnx.ml": 3},
            ).SerializeToString()
            if method == "score_samples":  # it gives what decision_function gives
                offset = float(estimator.offset_)
                return made, lambda a: np.asarray(a) + offset
    return made, np.asarray


def daal4py(model: Model) -> System:
    import daal4py

    match model["kind"]:
        case "xgboost":
            source = xgboost_booster(model)
        case "lightgbm":
            source = lightgbm_booster(model)
        case _:
            raise NotForModelError("converts XGBoost and LightGBM models only")
    converted = daal4py.mb.convert_model(source)
    classifies = converted.is_classifier_

    def predict(threads: int) -> Predict:
        daal4py.daalinit(threads)
        return converted.predict_proba if classifies else converted.predict  # type: ignore[no-any-return]

    return System("value" if classifies else "raw", predict)


def hummingbird(model: Model) -> System:
    import torch

    torch.set_num_threads(1)
    converted, method = hummingbird_model(model, "torch.jit")

    def predict(threads: int) -> Predict:
        torch.set_num_threads(threads)
        call: Predict = getattr(converted, method)
        return call

    return System("value", predict)


def hummingbird_model(model: Model, backend: str, **options: Any) -> tuple[Any, str]:
    import warnings

    from hummingbird.ml import convert

    warnings.filterwarnings("ignore")
    source = _hummingbird_source(model)
    sample = (np.load(model["rows"])[:64],) if backend == "torch.jit" else ()
    converted = convert(source, backend, *sample, **options)
    classifies = hasattr(source, "predict_proba")
    method = "predict"
    if model["kind"] == "sklearn":
        method = method_of(source)
    elif hasattr(converted, "predict_proba") and classifies:
        method = "predict_proba"
    return converted, method


def _hummingbird_source(model: Model) -> Any:
    match model["kind"]:
        case "sklearn":
            return load_estimator(model["path"])
        case "lightgbm":
            wrapper = model["wrapper"]
            return load_estimator(wrapper) if wrapper else lightgbm_booster(model)
        case "xgboost":
            return _old_wrapper(model)
        case _:
            raise NotForModelError("its ONNX reader is not part of this comparison")


def _old_wrapper(model: Model) -> Any:
    """Return the wrapper of an XGBoost before 3.1, which Hummingbird can read.

    That one knows no list in ``base_score``, of which the same number is made.
    """
    import json

    import xgboost

    document = json.loads(Path(model["path"]).read_bytes())
    learner = document["learner"]
    parameter = learner["learner_model_param"]
    scores = parameter["base_score"].strip("[]").split(",")
    if len(set(map(float, scores))) > 1:
        raise NotForModelError("its XGBoost has one base_score for all classes")
    parameter["base_score"] = scores[0]
    objective = learner["objective"]["name"]
    classifies = objective.startswith(("binary:", "multi:"))
    wrapper = xgboost.XGBClassifier() if classifies else xgboost.XGBRegressor()
    with xgboost.config_context(verbosity=0):
        wrapper.load_model(bytearray(json.dumps(document).encode()))
    return wrapper
