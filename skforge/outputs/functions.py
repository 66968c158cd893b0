"""Every function of scores, written once for arrays and for generated code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from skforge.exceptions import UnsupportedModelError
from skforge.forest.outputs import EXPECTILE_GAP, OutputFunction, OutputSpec
from skforge.outputs import catboost, graph, onnx, sklearn
from skforge.outputs.library import SIGMOID_LIMIT, ArrayLibrary, total
from skforge.runtime.numpy_loops import NumPyLoop

#: Functions of scores: those of an :class:`OutputSpec`, and what decisions and labels
#: need beside them.
FunctionName: TypeAlias = (
    OutputFunction
    | Literal["pair", "path_score", "path_decision", "scipy_softmax"]
    | Literal["above_bound", "first_greatest", "graph_places"]
)

#: Takes scores, constants, and the operations on them.
Of: TypeAlias = Callable[[Any, OutputSpec, Any], Any]

#: Why there are only raw scores, see :class:`OutputSpec`.
UNKNOWN = (
    "The model does not name its objective, as dumps of LightGBM before 2.2.3 do not, "
    "so predictions cannot be made of its raw scores. Call predict_raw, or read what "
    "Booster.save_model wrote."
)


#: Those that entries compute with NumPy's own loops.
BY_NUMPY: dict[FunctionName, tuple[NumPyLoop, ...]] = {
    "path_score": ("power",),
    "numpy_exp": ("exp",),
    "softmax_by_rows": ("exp", "add"),
    "softmax_by_columns": ("exp", "add"),
    "samme": ("exp", "add"),
    "scipy_softmax": ("exp", "add"),
}


@dataclass(frozen=True, slots=True)
class ScoreFunction:
    """A function of scores, and who computes it.

    ``code`` says how entries and exports write it, in the C library's arithmetic:
    ``value``, of each score in its place; ``row``, of a row's scores in their places;
    ``columns``, of a row's scores, to other places. ``own`` functions have code of
    another kind, and ``graph`` those of ONNX graphs, for entries alone. None: only
    arrays have it. GPUs compute those
    ``on_devices``; with ``exp``, which is the device's own, results are within 8 units
    in the last place of the host's, and others have the host's bits. ``width`` tells
    the number of columns.
    """

    of: Of
    code: Literal["value", "row", "columns", "own", "graph"] | None = None
    on_devices: bool = False
    width: Callable[[OutputSpec, int], int] = lambda _, n_outputs: n_outputs


def _expectiles(scores: Any, _: OutputSpec, on: Any) -> Any:
    result = last = scores[:, :1]
    for k in range(1, scores.shape[1]):
        x = scores[:, k : k + 1]
        above = on.where(x > 0, x, 0.0) + on.log1p(on.exp(-abs(x)))
        last = last + (above + EXPECTILE_GAP)
        result = on.join(result, last)
    return result


def _softmax(scores: Any, _: OutputSpec, on: ArrayLibrary) -> Any:
    """Return XGBoost's softmax: exponentials, their sum in float64, in order."""
    powers = on.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / total(powers, "float64").astype(scores.dtype)


def _scipy_softmax(scores: Any, _: OutputSpec, on: Any) -> Any:
    from scipy.special import softmax  # type: ignore[import-untyped, unused-ignore]

    return softmax(scores, axis=1)


def _unknown(scores: Any, _: OutputSpec, on: Any) -> Any:
    raise UnsupportedModelError(UNKNOWN)


def _of_value(of: Of, on_devices: bool = False) -> ScoreFunction:
    return ScoreFunction(of, "value", on_devices)


def _label(of: Of) -> ScoreFunction:
    return ScoreFunction(of, "columns", width=lambda spec, n_outputs: 1)


FUNCTIONS: dict[FunctionName, ScoreFunction] = {
    "identity": _of_value(lambda x, spec, on: x, True),
    "exp": _of_value(lambda x, spec, on: on.exp(x), True),
    "hinge": _of_value(lambda x, spec, on: (x > 0).astype(x.dtype), True),
    "sigmoid": _of_value(
        lambda x, spec, on: 1 / (on.exp(on.least(-x, SIGMOID_LIMIT)) + 1), True
    ),
    "logistic": _of_value(lambda x, spec, on: 1 / (1 + on.exp(-spec.parameter * x))),
    "signed_square": _of_value(
        lambda x, spec, on: ((x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)) * x * x
    ),
    "log1p_exp": _of_value(lambda x, spec, on: on.log1p(on.exp(x))),
    "expectiles": ScoreFunction(_expectiles, "row"),
    "softmax": ScoreFunction(_softmax, "row", True),
    "onnx": ScoreFunction(onnx.values, "columns", width=onnx.width),
    "above_bound": _label(onnx.above_bound),
    "first_greatest": _label(onnx.first_greatest),
    "graph": ScoreFunction(graph.values, "graph", width=graph.width),
    "graph_places": ScoreFunction(graph.places, "graph", width=lambda spec, n: 1),
    "pair": _label(sklearn.pair),
    "argmax": ScoreFunction(
        lambda x, spec, on: x.argmax(axis=1).astype(x.dtype), "own", on_devices=True
    ),
    "sorted": ScoreFunction(lambda x, spec, on: on.sort(x), "own", on_devices=True),
    "expit": ScoreFunction(sklearn.both_expit),
    "softmax_by_rows": ScoreFunction(
        lambda x, spec, on: sklearn.softmax(np.array(x, order="C")), "own"
    ),
    "softmax_by_columns": ScoreFunction(
        lambda x, spec, on: sklearn.softmax(np.array(x, order="F")), "own"
    ),
    "numpy_exp": ScoreFunction(lambda x, spec, on: np.exp(x.reshape(-1)), "own"),
    "samme": ScoreFunction(sklearn.samme, "own"),
    "path_length": ScoreFunction(sklearn.inliers),
    "weighted_median": ScoreFunction(sklearn.weighted_median),
    "scaled": _of_value(lambda x, spec, on: x * spec.parameter),
    "shares": ScoreFunction(sklearn.shares),
    "scaled_blocks": ScoreFunction(sklearn.scaled_blocks),
    "path_score": ScoreFunction(sklearn.path_scores, "own"),
    "path_decision": ScoreFunction(sklearn.path_decision),
    "scipy_softmax": ScoreFunction(_scipy_softmax, "own"),
    "fast_exp": ScoreFunction(lambda x, spec, on: catboost.exp(x.reshape(-1)), "own"),
    "fast_softmax": ScoreFunction(lambda x, spec, on: catboost.softmax(x), "own"),
    "uncertainty": ScoreFunction(lambda x, spec, on: catboost.uncertainty(x), "own"),
    "unknown": ScoreFunction(_unknown),
}
