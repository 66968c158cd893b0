"""What a compiled entry does with sums, as ``outputs.transforms`` does it.

From a forest and the output that is wanted to a few steps of scalar arithmetic; None
where the source's arithmetic is not the C library's (NumPy's ``exp`` has its own bits)
or no scalar at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.outputs import Function, OutputSpec
from skforge.compiler.outputs import libm
from skforge.compiler.outputs.functions import EXPRESSIONS
from skforge.compiler.outputs.numpy_power import power_loop
from skforge.compiler.outputs.transforms import decision_function

Output: TypeAlias = Literal[
    "raw", "transformed", "both_classes", "labels", "scores", "decision"
]
OUTPUTS: tuple[Output, ...] = get_args(Output)
Refused: TypeAlias = Literal["nothing", "infinite", "not_finite"]
REFUSED: tuple[Refused, ...] = get_args(Refused)
Result: TypeAlias = Literal["values", "both_classes", "above", "best", "row"]
RowKind: TypeAlias = Literal["pair", "above_bound", "first_greatest", "onnx"]


#: Columns of a row whose arithmetic is written out, one by one.
MAX_WRITTEN = 64


@dataclass(frozen=True, slots=True)
class RowSteps:
    """Arithmetic of whole rows; see :mod:`skforge.compiler.runtime.entry.rows`.

    ``kind`` is ``pair`` (the labels of AdaBoost's two classes), a rule of ONNX Runtime
    for labels, or ``onnx``, its scores.
    """

    kind: RowKind
    outputs: OutputSpec
    dtype: str = "int64"
    columns: int = 1


@dataclass(frozen=True, slots=True)
class Steps:
    """Divisions, a function of each value (softmax: of each row), and the result.

    ``values`` is all of them; ``both_classes`` is ``1 - p`` and ``p`` of each;
    ``above`` is 1 where ``value <comparison> cut``, an integer for one output and a
    float64 for each of several; ``best`` is the place of the greatest; ``row`` is what
    ``row`` says. The function is one of ``EXPRESSIONS``, ``softmax``, or
    ``path_length``: ``-(2 ** -x) - parameter``. Places are answered with ``labels``,
    if there are any.
    """

    divisors: tuple[float, ...] = ()
    function: Function = "identity"
    parameter: float = 1.0
    result: Result = "values"
    comparison: str = "ogt"  # LLVM's: ordered and greater than
    cut: float = 0.5
    row: RowSteps | None = None
    labels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EntryKind:
    """What an entry point computes, as far as its code depends on it."""

    n_features: int
    n_outputs: int
    row_dtype: str
    sum_dtype: str
    steps: Steps
    refused: Refused
    last_rows: tuple[int, ...]  # upper end of each batch range but the last
    most_rows: int  # more are left to the ordinary path
    gil_rows: int  # from this many the GIL is released
    method_rows: int  # more are left to the function behind a method
    labels: tuple[int, ...] = ()  # int64 values in place of numbers of classes
    takes: bool = False  # a Python function makes the answer of those numbers


def steps(forest: Forest, output: Output) -> Steps | None:
    """Return how an entry computes an output, or None if it cannot.

    ``raw`` is ``predict_raw``; the others are ``apply_transform``, ``predict_proba``
    for a classifier with one output, ``decide``, ``score_samples`` and
    ``decision_function`` of :mod:`skforge.compiler.outputs.transforms`, the last two
    for an isolation forest.
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
    """Return which output ``predict_proba`` of a classifier with one target is."""
    match forest.outputs.probabilities:
        case "scores":
            return "raw"
        case "complement" | "softmax":
            return "both_classes"
        case "values":
            both = forest.outputs.function == "expit"  # of one score
            return "both_classes" if both else "transformed"


def _values(
    forest: Forest, averages: tuple[float, ...], result: Result
) -> Steps | None:
    """Return a function of the scores, if it is the C library's, and a result."""
    spec = forest.outputs
    if spec.function != "softmax" and spec.function not in EXPRESSIONS:
        return None
    if spec.divisor != 1:
        averages = (*averages, spec.divisor)
    return Steps(averages, spec.function, spec.parameter, result)


def _transformed(forest: Forest, averages: tuple[float, ...]) -> Steps | None:
    match forest.outputs.function:
        case "onnx":
            return _onnx(forest, averages)
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
        case "best_score":
            if forest.n_outputs == 1:
                return None  # no choice
            shares = (spec.parameter,) if spec.decision == "votes" else ()
            return Steps((*averages, *shares), result="best")
        case "from_zero" | "above_zero":
            if spec.decision == "votes":
                return _of_row(RowSteps("pair", spec), averages)
            comparison = "oge" if spec.labels == "from_zero" else "ogt"
            return Steps(averages, result="above", comparison=comparison, cut=0.0)
        case "best":
            return _values(forest, averages, "best")
        case "half":
            return _values(forest, averages, "above")
        case "index":
            return None
        case "above_bound" | "first_greatest":
            none = not _is_narrow(forest) or np.isnan(spec.offsets).all()
            return None if none else _of_row(RowSteps(spec.labels, spec), averages)


def _of_row(row: RowSteps, averages: tuple[float, ...]) -> Steps:
    return Steps(averages, result="row", row=row)


def _path_score(
    forest: Forest, averages: tuple[float, ...], less: float
) -> Steps | None:
    """Return the score of an isolation forest, which NumPy's power makes."""
    spec = forest.outputs
    known = spec.function == "path_length" and forest.n_outputs == 1
    known = known and spec.parameter > 0 and forest.accumulator_dtype == np.float64
    if not known or power_loop() is None:
        return None
    return Steps((*averages, spec.parameter), "path_length", less)


def _onnx(forest: Forest, averages: tuple[float, ...]) -> Steps | None:
    """Return ONNX's scores; probit makes NaN of either sign."""
    spec = forest.outputs
    if not _is_narrow(forest) or spec.post == "probit":
        return None
    columns = forest.n_outputs * (2 if spec.layout in ("one", "mirrored") else 1)
    return _of_row(RowSteps("onnx", spec, spec.dtype, columns), averages)


def _is_narrow(forest: Forest) -> bool:
    """Tell whether a row's arithmetic can be written out."""
    n_outputs = forest.n_outputs
    return len(forest.outputs.offsets) == n_outputs <= MAX_WRITTEN


def inlier_length(forest: Forest) -> float | None:
    """Return the shortest path of an inlier of an isolation forest, as NumPy has it.

    A row is an outlier where a power of 2, as exact as NumPy makes it, is below a
    cutoff. The power is off by some units in the last place: beyond the thousands of
    lengths around the cutoff that are tried here, it is not in doubt.
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
        if outlier(np.array([middle]).view(np.float64))[0]:
            low = middle
        else:
            high = middle
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
    """Tell whether SciPy's ``expit`` is ``1 / (1 + exp(-x))`` of this C library."""
    from scipy.special import expit  # type: ignore[import-untyped, unused-ignore]

    drawn = np.random.default_rng(0).standard_normal(8192)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 745.2, -745.2, 709.8, -709.8])
    values = np.concatenate([drawn, 20 * drawn, 1e-4 * drawn, 300 * drawn, edges])
    with np.errstate(all="ignore"):
        ours = 1.0 / (1.0 + libm.exp(-values))
    return bool(np.array_equal(expit(values), ours, equal_nan=True))
