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
from skforge.compiler.outputs import libm
from skforge.compiler.outputs.numpy_power import power_loop
from skforge.compiler.outputs.sklearn import decision_function

Output: TypeAlias = Literal[
    "raw", "transformed", "both_classes", "labels", "scores", "decision"
]
OUTPUTS: tuple[Output, ...] = get_args(Output)
Function: TypeAlias = Literal[
    "identity",
    "sigmoid",
    "exp",
    "hinge",
    "softmax",
    "logistic",
    "signed_square",
    "log1p_exp",
    "path_score",
]
Refused: TypeAlias = Literal["nothing", "infinite", "not_finite"]
REFUSED: tuple[Refused, ...] = get_args(Refused)
Result: TypeAlias = Literal["values", "both_classes", "above", "best", "row"]

_FUNCTIONS: dict[str, Function] = {name: name for name in get_args(Function)}
del _FUNCTIONS["path_score"]  # of methods of its own
#: scikit-learn's boosting with one output: the slope of its logistic function, and the
#: comparison of raw scores with 0 that its ``predict`` makes.
_BOOSTING = {
    "gb_logistic": (1.0, "oge"),
    "gb_exponential": (2.0, "oge"),
    "hist_logistic": (1.0, "ogt"),
}


#: Columns of a row whose arithmetic is written out, one by one.
MAX_WRITTEN = 64


@dataclass(frozen=True, slots=True)
class RowSteps:
    """Arithmetic of whole rows; see :mod:`.entry_rows`.

    ``kind`` is ``pair`` (the labels of AdaBoost's two classes), ``onnx:binary`` and
    ``onnx:label`` (of two classes and of several), or ``onnx:layout:post``; ``offsets``
    and ``parameter`` are the transform's.
    """

    kind: str
    parameter: float
    dtype: str
    columns: int
    offsets: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Steps:
    """Divisions, a function of each value (softmax: of each row), and the result.

    ``values`` is all of them; ``both_classes`` is ``1 - p`` and ``p`` of each;
    ``above`` is 1 where ``value <comparison> cut``, an integer for one output and a
    float64 for each of several; ``best`` is the place of the greatest; ``row`` is what
    ``row`` says. ``path_score`` is ``-(2 ** -x) - parameter``. Places are
    answered with ``labels``, if there are any.
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

    Parameters
    ----------
    forest : Forest
        Its source decides how labels are chosen.
    output : {"raw", "transformed", "both_classes", "labels", "scores", "decision"}
        ``raw`` is ``predict_raw``; the others are ``apply_transform``,
        ``predict_proba`` for a classifier with one output, and ``decide``, of
        :mod:`skforge.compiler.outputs.transforms`; and ``score_samples`` and
        ``decision_function`` of an isolation forest.

    Returns
    -------
    Steps or None
    """
    if forest.aggregate != "sum":
        return None
    averages = (forest.divisor,) if forest.divisor != 1 else ()
    kind, classifies = forest.transform.kind, forest.classifies
    if output == "raw":
        return Steps(averages)
    if output in ("scores", "decision"):
        mean = forest.transform.parameter
        known = kind == "path_length" and forest.n_outputs == 1 and mean > 0
        known = known and forest.accumulator_dtype == np.float64
        if not known or power_loop() is None:
            return None
        less = forest.transform.cutoff if output == "decision" else 0.0
        return Steps((*averages, mean), "path_score", less)
    if output != "transformed" and (len(forest.output_sizes) > 1 or not classifies):
        return None
    if kind.startswith("onnx:"):
        row = _onnx(forest, output)
        return None if row is None else Steps(averages, result="row", row=row)
    if kind == "samme" and output == "labels":
        if forest.n_outputs != 2:
            return Steps((*averages, forest.transform.parameter), result="best")
        row = RowSteps("pair", forest.transform.parameter, "int64", 1)
        return Steps(averages, result="row", row=row)
    if kind == "path_length" and output == "transformed":
        cut = inlier_length(forest)
        if cut is None:
            return None
        return Steps(
            averages, result="above", comparison="uge", cut=cut, labels=(-1, 1)
        )
    if kind in _BOOSTING and forest.n_outputs == 1:
        slope, comparison = _BOOSTING[kind]
        if output == "labels":
            return Steps(averages, result="above", comparison=comparison, cut=0.0)
        if output == "both_classes" and expit_is_libm():
            return Steps(averages, "logistic", slope, "both_classes")
        return None
    if kind in ("gb_softmax", "hist_softmax") and output == "labels":
        return Steps(averages, result="best")
    function = _FUNCTIONS.get(kind)
    if function is None:
        return None
    own = forest.source in ("xgboost", "lightgbm")
    if output != "transformed" and not own:
        # A forest of scikit-learn votes with its averages; one column has no choice.
        labels = output == "labels" and forest.n_outputs > 1
        return Steps(averages, result="best") if labels else None
    if forest.transform.divisor != 1:
        averages = (*averages, forest.transform.divisor)
    result: Result = "values"
    if output == "both_classes":
        if forest.n_outputs != 1:
            return None
        result = "both_classes"
    elif output == "labels":
        result = "best" if _chooses_best(forest) else "above"
    return Steps(averages, function, forest.transform.parameter, result)


def _onnx(forest: Forest, output: Output) -> RowSteps | None:
    """Return what ONNX's post transforms do, for rows that are not too wide."""
    offsets = forest.transform.offsets
    _, layout, post, dtype = forest.transform.kind.split(":")
    if len(offsets) != forest.n_outputs or forest.n_outputs > MAX_WRITTEN:
        return None
    bound = forest.transform.parameter
    if output == "labels":
        if np.isnan(offsets).all():
            return None
        kind = "onnx:binary" if forest.task == "binary" else "onnx:label"
        return RowSteps(kind, bound, "int64", 1, offsets)
    columns = forest.n_outputs * (2 if layout in ("one", "mirrored") else 1)
    if output == "both_classes" or post == "probit":  # whose NaN have either sign
        return None
    return RowSteps(f"onnx:{layout}:{post}", bound, dtype, columns, offsets)


def inlier_length(forest: Forest) -> float | None:
    """Return the shortest path of an inlier of an isolation forest, as NumPy has it.

    A row is an outlier where a power of 2, as exact as NumPy makes it, is below a
    cutoff. The power is off by some units in the last place: beyond the thousands of
    lengths around the cutoff that are tried here, it is not in doubt.
    """
    scale = forest.transform.parameter
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


def _chooses_best(forest: Forest) -> bool:
    """Tell a choice among columns from cutting each at one half."""
    if forest.n_outputs == 1:
        return False
    if forest.source == "lightgbm":
        return True
    # XGBoost's wrapper reads two columns as two labels
    return forest.task == "multiclass" and forest.n_outputs != 2


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
