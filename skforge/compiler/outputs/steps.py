"""The arithmetic of a compiled entry on sums, equal to ``outputs.transforms``.

A forest and a wanted output give a few steps of scalar arithmetic, or None if the
source's arithmetic is not the C library's (NumPy's ``exp`` rounds differently) or not
scalar.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.outputs import Function, OutputSpec
from skforge.compiler.outputs import libm, onnx, sklearn
from skforge.compiler.outputs.functions import ELEMENTWISE
from skforge.compiler.outputs.libm import power_loop
from skforge.compiler.outputs.transforms import decision_function

Output: TypeAlias = Literal[
    "raw", "transformed", "both_classes", "labels", "scores", "decision"
]
OUTPUTS: tuple[Output, ...] = get_args(Output)
Refused: TypeAlias = Literal["nothing", "infinite", "not_finite"]
REFUSED: tuple[Refused, ...] = get_args(Refused)
Result: TypeAlias = Literal[
    "values", "both_classes", "above", "best", "pair", "above_bound", "first_greatest",
    "onnx",
]  # fmt: skip

#: Most columns of a row whose arithmetic is unrolled.
MAX_WRITTEN = 64


@dataclass(frozen=True, slots=True)
class Steps:
    """Divisions, a function of each value or row, and the result.

    ``values`` returns all values; ``both_classes`` returns ``1 - p`` and ``p`` for
    each; ``above`` is 1 if ``value <comparison> cut``, an integer for one output and a
    float64 per output for several; ``best`` is the index of the greatest value. The
    others are functions of whole rows with the constants of ``outputs``: ``pair``, the
    label of AdaBoost's two classes, ONNX Runtime's rules for labels, and its scores.
    The function is elementwise, ``softmax``, ``expectiles``, or ``path_length``:
    ``-(2 ** -x) - parameter``. Class indices are replaced by ``labels``, if there are
    any.
    """

    divisors: tuple[float, ...] = ()
    function: Function = "identity"
    parameter: float = 1.0
    result: Result = "values"
    comparison: str = "ogt"  # LLVM's predicate: ordered and greater than
    cut: float = 0.5
    outputs: OutputSpec | None = None
    labels: tuple[int, ...] = ()

    def shape(self, n_outputs: int, sum_dtype: str) -> tuple[str, int]:
        """Return the dtype and the number of columns of the result."""
        match self.result:
            case "values":
                return sum_dtype, n_outputs
            case "both_classes":
                return sum_dtype, 2
            case "above":
                return "int64" if n_outputs == 1 else "float64", n_outputs
            case "onnx":
                assert self.outputs is not None
                doubled = self.outputs.layout in ("one", "mirrored")
                return self.outputs.dtype, n_outputs * (2 if doubled else 1)
            case _:
                return "int64", 1

    def of_row(self, scores: Any, on: Any) -> Any:
        spec = self.outputs
        assert spec is not None
        match self.result:
            case "pair":
                return (sklearn.pair_difference(spec, scores) > 0).astype("int64")
            case "above_bound":
                return onnx.above_bound(spec, scores, on)
            case "first_greatest":
                return onnx.first_greatest(spec, scores, on)
            case _:
                return onnx.values(spec, scores, on)


@dataclass(frozen=True, slots=True)
class EntryKind:
    """What an entry point computes; its code depends on nothing else."""

    n_features: int
    n_outputs: int
    row_dtype: str
    sum_dtype: str
    steps: Steps
    refused: Refused
    last_rows: tuple[int, ...]  # upper end of each batch range but the last
    most_rows: int  # larger batches use the ordinary path
    gil_rows: int  # from this many rows the GIL is released
    method_rows: int  # larger batches use the function behind a method
    shared: bool = False  # whether several threads run large batches
    takes: bool = False  # a Python function makes the answer from class indices
    #: Numbers of this size are refused too, and rows of the other precision; inf: none.
    limit: float = float("inf")


def steps(forest: Forest, output: Output) -> Steps | None:
    """Return how an entry computes an output, or None if it cannot.

    ``raw`` is ``predict_raw``. The other outputs are those of
    :mod:`skforge.compiler.outputs.transforms`: ``apply_transform``, ``predict_proba``
    for a classifier with one output, ``decide``, and for an isolation forest
    ``score_samples`` and ``decision_function``.
    """
    if forest.aggregate != "sum":
        return None
    averages = (forest.divisor,) if forest.divisor != 1 else ()
    answers = forest.classifies and len(forest.output_sizes) < 2
    match output:
        case "raw":
            return Steps(averages)
        case "transformed":
            return _transformed(forest, averages)
        case "both_classes":
            return _both_classes(forest, averages) if answers else None
        case "labels":
            return _labels(forest, averages) if answers else None
        case "scores":
            return _path_score(forest, averages, 0.0)
        case "decision":
            return _path_score(forest, averages, forest.outputs.cutoff)


def proba_output(forest: Forest) -> Output:
    """Return the output that ``predict_proba`` of a one-target classifier gives."""
    match forest.outputs.probabilities:
        case "scores":
            return "raw"
        case "complement" | "softmax":
            return "both_classes"
        case "values":
            both = forest.outputs.function == "expit"  # from one score
            return "both_classes" if both else "transformed"


def _values(
    forest: Forest, averages: tuple[float, ...], result: Result
) -> Steps | None:
    """Return a function of the scores and a result, if it is the C library's."""
    spec = forest.outputs
    by_rows = "softmax", *(["expectiles"] if forest.n_outputs <= MAX_WRITTEN else ())
    if spec.function not in ELEMENTWISE.union(by_rows):
        return None
    if spec.divisor != 1:
        averages = (*averages, spec.divisor)
    return Steps(averages, spec.function, spec.parameter, result)


def _transformed(forest: Forest, averages: tuple[float, ...]) -> Steps | None:
    spec = forest.outputs
    match spec.function:
        case "onnx":  # NaNs of probit have either sign
            written = _is_narrow(forest) and spec.post != "probit"
            return Steps(averages, result="onnx", outputs=spec) if written else None
        case "path_length":
            cut = inlier_length(forest)
            if cut is None:
                return None
            return Steps(
                averages, result="above", comparison="uge", cut=cut, labels=(-1, 1)
            )
        case _:
            return _values(forest, averages, "values")


def _both_classes(forest: Forest, averages: tuple[float, ...]) -> Steps | None:
    spec = forest.outputs
    if forest.n_outputs != 1:
        return None
    if spec.function == "expit" and expit_is_libm():
        return Steps(averages, "logistic", spec.parameter, "both_classes")
    complement = spec.probabilities == "complement"
    return _values(forest, averages, "both_classes") if complement else None


def _labels(forest: Forest, averages: tuple[float, ...]) -> Steps | None:
    spec = forest.outputs
    match spec.labels:
        case "best_score" | "column":
            if forest.n_outputs == 1:
                return None  # not a choice of one class
            shares = (spec.parameter,) if spec.decision == "votes" else ()
            return Steps((*averages, *shares), result="best")
        case "from_zero" | "above_zero":
            if spec.decision == "votes":
                return Steps(averages, result="pair", outputs=spec)
            comparison = "oge" if spec.labels == "from_zero" else "ogt"
            cut = 0.0 if spec.labels == "from_zero" else spec.cutoff
            return Steps(averages, result="above", comparison=comparison, cut=cut)
        case "best":
            return _values(forest, averages, "best")
        case "half":
            return _values(forest, averages, "above")
        case "index":
            return None
        case "above_bound" | "first_greatest":
            none = not _is_narrow(forest) or np.isnan(spec.offsets).all()
            return None if none else Steps(averages, result=spec.labels, outputs=spec)


def _path_score(
    forest: Forest, averages: tuple[float, ...], less: float
) -> Steps | None:
    """Return an isolation forest's score, computed with NumPy's power."""
    spec = forest.outputs
    known = spec.function == "path_length" and forest.n_outputs == 1
    known = known and spec.parameter > 0 and forest.accumulator_dtype == np.float64
    if not known or power_loop() is None:
        return None
    return Steps((*averages, spec.parameter), "path_length", less)


def _is_narrow(forest: Forest) -> bool:
    """Tell whether a row's arithmetic is short enough to unroll."""
    n_outputs = forest.n_outputs
    return len(forest.outputs.offsets) == n_outputs <= MAX_WRITTEN


def inlier_length(forest: Forest) -> float | None:
    """Return the shortest path length of an inlier of an isolation forest.

    A row is an outlier if NumPy's rounded power of 2 is below a cutoff. The power is
    off by some ulps, so thousands of lengths around the cutoff are tried here; further
    away the result is certain.
    """
    scale = forest.outputs.parameter
    if not scale > 0 or forest.n_outputs != 1:
        return None

    def outlier(lengths: NDArray[np.float64]) -> NDArray[np.bool_]:
        below: NDArray[np.bool_] = decision_function(forest, lengths) < 0
        return below

    low, high = np.array([0.0, 1000 * scale]).view(np.int64).tolist()
    if not outlier(np.array([0.0]))[0]:
        return -np.inf
    while high - low > 1:
        middle = (low + high) // 2
        below = outlier(np.array([middle]).view(np.float64))[0]
        low, high = (middle, high) if below else (low, middle)
    near = np.arange(high - 4096, high + 4096)
    lengths = near.view(np.float64)
    cut = float(lengths[4096])
    alone = [bool(outlier(length)[0]) for length in lengths[4064:4128].reshape(-1, 1)]
    clear = 0.02 < cut / scale < 50
    agree = np.array_equal(outlier(lengths), near < high)
    if not (clear and agree and alone == (near < high)[4064:4128].tolist()):
        return None
    return cut


@lru_cache(maxsize=1)
def expit_is_libm() -> bool:
    """Tell whether SciPy's ``expit`` is this C library's ``1 / (1 + exp(-x))``."""
    from scipy.special import expit  # type: ignore[import-untyped, unused-ignore]

    drawn = np.random.default_rng(0).standard_normal(8192)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 745.2, -745.2, 709.8, -709.8])
    values = np.concatenate([drawn, 20 * drawn, 1e-4 * drawn, 300 * drawn, edges])
    with np.errstate(all="ignore"):
        ours = 1.0 / (1.0 + libm.exp(-values))
    return bool(np.array_equal(expit(values), ours, equal_nan=True))
