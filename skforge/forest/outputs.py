"""How a source's answers follow from raw scores: one record, filled by the frontend.

``skforge.outputs`` implements it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

Task: TypeAlias = Literal[
    "regression", "binary", "multiclass", "multilabel", "ranking", "outlier"
]
#: Tasks that predict class labels.
CLASSIFICATION: tuple[Task, ...] = ("binary", "multiclass", "multilabel")

OutputFunction: TypeAlias = Literal[
    # in the C library's arithmetic
    "identity", "sigmoid", "softmax", "exp", "hinge", "sorted", "argmax", "logistic",
    "signed_square", "log1p_exp", "expectiles", "unknown",
    # in NumPy's and SciPy's
    "expit", "softmax_by_rows", "softmax_by_columns", "numpy_exp", "samme",
    "path_length", "weighted_median",
    # in oneDAL's
    "scaled", "scaled_blocks", "shares",
    # in ONNX Runtime's
    "onnx", "graph",
    # in CatBoost's
    "fast_exp", "fast_softmax", "uncertainty",
]  # fmt: skip
#: Those of one dtype of rows, with a constant of all trees.
OF_ONEDAL: tuple[OutputFunction, ...] = "scaled", "scaled_blocks"
#: XGBoost's least distance between two expectiles.
EXPECTILE_GAP = 1e-6
Probabilities: TypeAlias = Literal["scores", "values", "complement", "softmax"]
Labels: TypeAlias = Literal[
    "best_score", "best", "half", "index", "from_zero", "above_zero", "above_bound",
    "first_greatest", "column", "graph",
]  # fmt: skip
Decision: TypeAlias = Literal["none", "scores", "votes", "paths"]
AnswerLayout: TypeAlias = Literal["target", "columns", "one", "mirrored"]
Post: TypeAlias = Literal["none", "logistic", "softmax", "softmax_zero", "probit"]
FloatName: TypeAlias = Literal["float32", "float64"]


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """How a source's methods compute answers from raw scores, as data."""

    #: Maps scores to values, as a regressor's ``predict`` returns them:
    #:
    #: - identity, exp, hinge, sorted, argmax; ``sigmoid`` and ``softmax`` in XGBoost's
    #:   order of operations;
    #: - ``logistic``, ``1 / (1 + exp(-parameter * x))``; ``signed_square``,
    #:   ``sign(x) * x * x``; ``log1p_exp``, ``log1p(exp(x))``; ``expectiles``, of
    #:   XGBoost, the first score and what each other adds; ``unknown``, if the model
    #:   does not tell, so that there are only scores;
    #: - ``expit``, SciPy's of ``parameter * x``, for both classes; ``softmax_by_rows``
    #:   and ``softmax_by_columns``, NumPy's of arrays in C and in Fortran order, whose
    #:   rows NumPy sums in different orders; ``numpy_exp``;
    #: - ``samme`` of AdaBoost's votes, whose weights sum to ``parameter``;
    #:   ``path_length`` of an isolation forest, ``-(2 ** (-x / parameter))``; values
    #:   below ``cutoff`` are outliers; ``weighted_median``, AdaBoost's of regressors;
    #: - ``scaled``, a score times ``parameter``; ``scaled_blocks``, the sum of these,
    #:   rounded once for each score; ``shares``, scores times 1 through their sum;
    #: - ``onnx``: ``post`` of the scores in a ``layout``, as ``dtype``;
    #: - ``graph``, what an ONNX graph computes of the scores of several ensembles;
    #: - ``fast_exp`` and ``fast_softmax``, with CatBoost's own exponential;
    #:   ``uncertainty``, the first score and its exponential of twice the second.
    function: OutputFunction = "identity"
    #: A constant of the function or of the labels.
    parameter: float = 1.0
    #: Scores are divided by it first (LightGBM averages have sums as raw scores).
    divisor: int = 1
    #: Added to the scores first, one per output (ONNX); NaN for an output that no leaf
    #: scores.
    offsets: tuple[float, ...] = ()
    #: Of a weighted median, the weight of each score.
    weights: tuple[float, ...] = ()
    #: The score that separates outliers from inliers, or one class from the other.
    cutoff: float = 0.0
    #: The answer of ``predict_proba``: the scores, target by target; the values;
    #: ``1 - p`` and ``p`` of the one value; SciPy's softmax of the scores.
    probabilities: Probabilities = "scores"
    #: How ``predict`` chooses a class: ``best_score`` and ``best``, the first greatest
    #: score (of each target) or value; ``half``, whether each value is above one half;
    #: ``index``, the value itself; ``from_zero`` and ``above_zero``, class 1 if
    #: ``decision_function`` is at least 0, or above ``cutoff``; ``above_bound`` and
    #: ``first_greatest``, ONNX Runtime's rules for two classes (the bound is
    #: ``parameter``) and for several; ``column``, the first greatest score, whose
    #: labels have shape (n, 1); ``graph``, as the graph does.
    labels: Labels = "best_score"
    #: The answer of ``decision_function``: scores, shares of AdaBoost's votes, or how
    #: far an isolation forest's score is above ``cutoff``.
    decision: Decision = "none"
    #: Whether ``predict`` returns elements of ``classes_``, not indices into it.
    named: bool = True
    #: For ``onnx``: one score per target or class; one target; two classes with one
    #: score, which belongs to the second; or with its negative for the first.
    layout: AnswerLayout = "columns"
    post: Post = "none"  # for ``onnx``: ONNX's post transform
    dtype: FloatName = "float32"  # of the output, for ``onnx``
    #: The program of ``graph``, as text: see :mod:`skforge.outputs.graph`.
    graph: str | None = None

    @property
    def name(self) -> str:
        parts = (self.layout, self.post, self.dtype) if self.function == "onnx" else ()
        return ":".join((self.function, *parts))


#: For regressors whose predictions are their scores.
SCORES = OutputSpec()


@dataclass(frozen=True, slots=True)
class AnswerSpec:
    """How a forest's raw scores become the answers of its model's methods, as data.

    A row has ``n_outputs`` scores. ``sizes`` tells how many belong to each target, if
    there are several; ``class_labels`` are those that a model file holds.
    """

    outputs: OutputSpec
    task: Task
    source: str
    n_outputs: int
    sizes: tuple[int, ...] = ()
    class_labels: tuple[str | float, ...] = ()

    @property
    def classifies(self) -> bool:
        return self.task in CLASSIFICATION

    def has(self, method: str) -> bool:
        rare = {
            "predict_proba": self.classifies,
            "score_samples": self.outputs.function == "path_length",
            "decision_function": self.outputs.decision != "none",
        }
        return rare.get(method, method in ("predict", "predict_raw"))


class Objective(NamedTuple):
    """What a library's objective makes of raw scores."""

    function: OutputFunction
    task: Task = "regression"
    link: str = "identity"  # of XGBoost's base_score: also logit, log and increments
    options: tuple[str, ...] = ()  # words that may follow the name in LightGBM's texts
