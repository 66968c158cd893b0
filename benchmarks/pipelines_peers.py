"""Who predicts pipelines: skforge, scikit-learn, ONNX Runtime, Hummingbird.

A loader returns, for each form of rows that the system takes, how rows are made, which
is not timed, and the call that is. All use one thread.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from peers import onnx_session
from pipelines_cases import Case, marked, texts_of

#: Forms of rows.
ARRAY, FRAME, MAPPING = "array", "pandas frame", "mapping"
FORMS = (ARRAY, FRAME, MAPPING)


@dataclass(frozen=True, slots=True)
class Way:
    """How a system gets rows: what makes them of a frame, and the call."""

    make: Callable[[Any], Any]
    call: Callable[[Any], Any]


def _array(frame: Any) -> Any:
    return np.ascontiguousarray(frame.to_numpy())


def _frame(frame: Any) -> Any:
    return frame.copy()


def _mapping(frame: Any) -> Any:
    return frame.to_dict("records")[0]


def forms_of(case: Case) -> tuple[str, ...]:
    return FORMS if case.arrays else (FRAME, MAPPING)


def scikit_learn(case: Case) -> dict[str, Way]:
    """Call the pipeline; a mapping is made a frame within the call."""
    import pandas as pd

    model = case.fitted("frame")
    frame, _ = case.draw(64, 0)
    # A text that is missing makes pandas guess a column of numbers.
    texts = {name: frame[name].dtype for name in texts_of(frame)}

    def one_row(row: dict[str, Any]) -> Any:
        return model.predict_proba(pd.DataFrame([row]).astype(texts))

    ways = {FRAME: Way(_frame, model.predict_proba), MAPPING: Way(_mapping, one_row)}
    if case.arrays:
        ways[ARRAY] = Way(_array, case.fitted("array").predict_proba)
    return ways


def skforge(case: Case) -> dict[str, Way]:
    """Call CompiledForest with default schedules; nothing is tuned."""
    from skforge import CompiledForest

    def compiled(kind: str) -> Callable[[Any], Any]:
        frame, _ = case.draw(1024, 0)
        sample = frame.to_numpy() if kind == "array" else frame
        fast = CompiledForest(case.fitted(kind), tuning="off", n_jobs=1).fit(sample)
        # A method is looked up at every call, as in users' code.
        return lambda rows: fast.predict_proba(rows)

    by_name = compiled("frame")
    ways = {FRAME: Way(_frame, by_name), MAPPING: Way(_mapping, by_name)}
    if case.arrays:
        ways[ARRAY] = Way(_array, compiled("array"))
    return ways


def onnx_runtime(case: Case) -> dict[str, Way]:
    """Convert the whole pipeline by skl2onnx.

    Its rows are float32, or a dict of one array a column, made before the call. Texts
    that are missing are marked, and the pipeline is trained on such rows: converted
    imputers know no NaN among texts.
    """
    import skl2onnx
    from skl2onnx.common import data_types as kinds

    _register_lightgbm()
    frame, _ = case.draw(64, 0)
    texts = texts_of(frame)
    whole = ["pclass"] if "pclass" in frame else []  # a category, not a quantity

    def session(model: Any, types: list[Any]) -> Any:
        # LightGBM's converter names an older version of the operators.
        made = skl2onnx.convert_sklearn(
            model,
            initial_types=types,
            options={id(model[-1]): {"zipmap": False}},
            target_opset={"": 15, "ai.onnx.ml": 3},
        )
        return onnx_session(made.SerializeToString())

    def kind_of(name: str) -> Any:
        if name in texts:
            return kinds.StringTensorType([None, 1])
        shape = [None, 1]
        return (
            kinds.Int64TensorType(shape)
            if name in whole
            else kinds.FloatTensorType(shape)
        )

    def dtype_of(name: str) -> Any:
        return object if name in texts else np.int64 if name in whole else np.float32

    by_name = session(case.fitted("marked"), [(name, kind_of(name)) for name in frame])
    output = [by_name.get_outputs()[-1].name]
    # The converter makes identifiers of names, and drops columns that are not used.
    own = {name.replace("-", "_"): name for name in frame}
    inputs = [(one.name, own[one.name]) for one in by_name.get_inputs()]
    dtypes = {name: dtype_of(name) for name in frame}

    def columns(rows: Any) -> dict[str, Any]:
        rows = marked(rows)
        return {key: rows[[name]].to_numpy(dtypes[name]) for key, name in inputs}

    def one_row(row: dict[str, Any]) -> Any:
        made = {key: np.array([[row[name]]], dtypes[name]) for key, name in inputs}
        return by_name.run(output, made)[0]

    ways = {
        FRAME: Way(columns, lambda made: by_name.run(output, made)[0]),
        MAPPING: Way(lambda rows: _mapping(marked(rows)), one_row),
    }
    if case.arrays:
        types = [("X", kinds.FloatTensorType([None, frame.shape[1]]))]
        bare = session(case.fitted("array"), types)
        ways[ARRAY] = Way(
            lambda rows: _array(rows).astype(np.float32),
            lambda X: bare.run(output, {"X": X})[0],
        )
    return ways


def _register_lightgbm() -> None:
    """Tell skl2onnx of the converter of LightGBM's models, as its pages say."""
    from lightgbm import LGBMClassifier
    from onnxmltools.convert.lightgbm.operator_converters.LightGbm import (
        convert_lightgbm,
    )
    from skl2onnx import update_registered_converter
    from skl2onnx.common.shape_calculator import (
        calculate_linear_classifier_output_shapes,
    )

    update_registered_converter(
        LGBMClassifier,
        "LightGbmLGBMClassifier",
        calculate_linear_classifier_output_shapes,
        convert_lightgbm,
        options={"nocl": [True, False], "zipmap": [True, False, "columns"]},
    )


def hummingbird(case: Case) -> dict[str, Way]:
    import torch
    from hummingbird.ml import convert

    torch.set_num_threads(1)
    frame, _ = case.draw(64, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if case.arrays:
            made = convert(case.fitted("array"), "torch.jit", _array(frame))
            return {ARRAY: Way(_array, made.predict_proba)}
        made = convert(case.fitted("frame"), "torch.jit", frame)
        return {FRAME: Way(_frame, made.predict_proba)}


SYSTEMS: dict[str, Callable[[Case], dict[str, Way]]] = {
    "skforge": skforge,
    "scikit-learn": scikit_learn,
    "ONNX Runtime": onnx_runtime,
    "Hummingbird": hummingbird,
}
