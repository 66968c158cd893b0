"""What a compiled entry does with sums, as :mod:`skforge.compiler.transforms` does it.

From a forest and the output that is wanted to a few steps of scalar arithmetic; None
where the source's arithmetic is not the C library's (NumPy's ``exp`` has its own bits)
or no scalar at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import numpy as np

from skforge.compiler.backends import libm
from skforge.compiler.forest import Forest

Output: TypeAlias = Literal["raw", "transformed", "both_classes", "labels"]
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
]
Refused: TypeAlias = Literal["nothing", "infinite", "not_finite"]
REFUSED: tuple[Refused, ...] = get_args(Refused)
Result: TypeAlias = Literal["values", "both_classes", "above", "best"]

_FUNCTIONS: dict[str, Function] = {name: name for name in get_args(Function)}
#: scikit-learn's boosting with one output: the slope of its logistic function, and the
#: comparison of raw scores with 0 that its ``predict`` makes.
_BOOSTING = {
    "gb_logistic": (1.0, "oge"),
    "gb_exponential": (2.0, "oge"),
    "hist_logistic": (1.0, "ogt"),
}


@dataclass(frozen=True, slots=True)
class Steps:
    """Divisions, a function of each value (softmax: of each row), and the result.

    ``values`` is all of them; ``both_classes`` is ``1 - p`` and ``p`` of each;
    ``above`` is 1 where ``value <comparison> cut``, an integer for one output and a
    float64 for each of several; ``best`` is the place of the greatest.
    """

    divisors: tuple[int, ...] = ()
    function: Function = "identity"
    parameter: float = 1.0
    result: Result = "values"
    comparison: str = "ogt"  # LLVM's: ordered and greater than
    cut: float = 0.5


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
    take: int = 0  # a Python function of those numbers, whose result is the answer


def steps(forest: Forest, output: Output) -> Steps | None:
    """Return how an entry computes an output, or None if it cannot.

    Parameters
    ----------
    forest : Forest
        Its source decides how labels are chosen.
    output : {"raw", "transformed", "both_classes", "labels"}
        ``raw`` is ``predict_raw``; the others are ``apply_transform``,
        ``predict_proba`` for a classifier with one output, and ``decide``, of
        :mod:`skforge.compiler.transforms`.

    Returns
    -------
    Steps or None
    """
    averages = (forest.divisor,) if forest.divisor != 1 else ()
    kind, classifies = forest.transform.kind, forest.task in _CLASSIFICATION
    if output == "raw":
        return Steps(averages)
    if output != "transformed" and (len(forest.output_sizes) > 1 or not classifies):
        return None
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


_CLASSIFICATION = ("binary", "multiclass", "multilabel")


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
