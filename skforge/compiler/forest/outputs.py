"""How a source makes its answers of raw scores: one record that its frontend fills.

``skforge.compiler.outputs`` carries it out. Artifacts name the outputs of the libraries
that were there first (:class:`PostTransform`) and hold the whole record of any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast, get_args

from skforge.exceptions import UnsupportedModelError

Task: TypeAlias = Literal[
    "regression", "binary", "multiclass", "multilabel", "ranking", "outlier"
]
#: Tasks whose answers are labels of classes.
CLASSIFICATION: tuple[Task, ...] = ("binary", "multiclass", "multilabel")

Function: TypeAlias = Literal[
    # of the C library's arithmetic
    "identity",
    "sigmoid",
    "softmax",
    "exp",
    "hinge",
    "sorted",
    "argmax",
    "logistic",
    "signed_square",
    "log1p_exp",
    # of NumPy's and SciPy's
    "expit",
    "softmax_by_rows",
    "softmax_by_columns",
    "numpy_exp",
    "samme",
    "path_length",
    # of ONNX Runtime's
    "onnx",
]
Probabilities: TypeAlias = Literal["scores", "values", "complement", "softmax"]
Labels: TypeAlias = Literal[
    "best_score",
    "best",
    "half",
    "index",
    "from_zero",
    "above_zero",
    "above_bound",
    "first_greatest",
]
Decision: TypeAlias = Literal["none", "scores", "votes", "paths"]
Layout: TypeAlias = Literal["target", "columns", "one", "mirrored"]
Post: TypeAlias = Literal["none", "logistic", "softmax", "softmax_zero", "probit"]
FloatName: TypeAlias = Literal["float32", "float64"]


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What a source's methods return for raw scores, as data.

    Parameters
    ----------
    function : str
        Makes values of scores, as ``predict`` of a regressor returns them:

        - identity, exp, hinge, sorted, argmax; ``sigmoid`` and ``softmax`` in
          XGBoost's order of operations;
        - ``logistic``, ``1 / (1 + exp(-parameter * x))``; ``signed_square``,
          ``sign(x) * x * x``; ``log1p_exp``, ``log1p(exp(x))``;
        - ``expit``, SciPy's of ``parameter * x``, for both classes;
          ``softmax_by_rows`` and ``softmax_by_columns``, NumPy's of arrays in C and
          in Fortran order, whose rows it sums in different orders; ``numpy_exp``;
        - ``samme`` of AdaBoost's votes, whose weights sum to ``parameter``;
          ``path_length`` of an isolation forest: ``-(2 ** (-x / parameter))`` below
          ``cutoff`` is an outlier;
        - ``onnx``: ``post`` of the scores in a ``layout``, as ``dtype``.
    parameter : float, default=1.0
        A constant of the function or of the labels.
    divisor : int, default=1
        What scores are divided by first (LightGBM's averages have sums for scores).
    offsets : tuple of float
        Added to the scores first, one for each output (ONNX); NaN for an output that
        no leaf gives a score.
    cutoff : float, default=0.0
        The score that parts outliers from inliers.
    probabilities : {"scores", "values", "complement", "softmax"}
        What ``predict_proba`` returns: the scores, target by target; the values;
        ``1 - p`` and ``p`` of the one value; SciPy's softmax of the scores.
    labels : str
        How ``predict`` chooses a class: ``best_score`` and ``best``, the first
        greatest score (of each target) or value; ``half``, a value above one half,
        yes or no for each; ``index``, the value itself; ``from_zero`` and
        ``above_zero``, class 1 where ``decision_function`` is at least or above 0;
        ``above_bound`` and ``first_greatest``, ONNX Runtime's of two classes (the
        bound is ``parameter``) and of several.
    decision : {"none", "scores", "votes", "paths"}
        What ``decision_function`` returns: scores, shares of AdaBoost's votes, or
        how far an isolation forest's score is above ``cutoff``.
    named : bool, default=True
        Whether ``predict`` answers with ``classes_``, not with positions in them.
    layout : {"columns", "target", "one", "mirrored"}
        Of ``onnx``: a score for each target or class; one target; two classes with
        one score, which stands for the second; or with its negative for the first.
    post : {"none", "logistic", "softmax", "softmax_zero", "probit"}
        Of ``onnx``: ONNX's post transform.
    dtype : {"float32", "float64"}
        Of ``onnx``: of the output.
    """

    function: Function = "identity"
    parameter: float = 1.0
    divisor: int = 1
    offsets: tuple[float, ...] = ()
    cutoff: float = 0.0
    probabilities: Probabilities = "scores"
    labels: Labels = "best_score"
    decision: Decision = "none"
    named: bool = True
    layout: Layout = "columns"
    post: Post = "none"
    dtype: FloatName = "float32"


#: Of regressors whose predictions are their scores.
SCORES = OutputSpec()

#: What the fields that name something may hold.
CHOICES = {
    "function": get_args(Function),
    "probabilities": get_args(Probabilities),
    "labels": get_args(Labels),
    "decision": get_args(Decision),
    "layout": get_args(Layout),
    "post": get_args(Post),
    "dtype": get_args(FloatName),
}


# ------------------------------------------------------------ names in artifacts


@dataclass(frozen=True, slots=True)
class PostTransform:
    """The name of an output and its constants, as artifacts and pickles have them.

    The name, the library and the task together stand for an :class:`OutputSpec`;
    ONNX's names are ``onnx:layout:post:dtype``.
    """

    kind: str = "identity"
    parameter: float = 1.0
    divisor: int = 1
    offsets: tuple[float, ...] = ()
    cutoff: float = 0.0


#: scikit-learn's outputs, of which the first that fits has the name; the other names
#: are those of functions.
_SKLEARN = {
    "gb_exponential": OutputSpec(
        "expit", 2.0, probabilities="values", labels="from_zero", decision="scores"
    ),
    "gb_logistic": OutputSpec(
        "expit", probabilities="values", labels="from_zero", decision="scores"
    ),
    "hist_logistic": OutputSpec(
        "expit", probabilities="values", labels="above_zero", decision="scores"
    ),
    "gb_softmax": OutputSpec(
        "softmax_by_rows", probabilities="values", decision="scores"
    ),
    "hist_softmax": OutputSpec(
        "softmax_by_columns", probabilities="values", decision="scores"
    ),
    "hist_exp": OutputSpec("numpy_exp"),
    "samme": OutputSpec("samme", probabilities="values", decision="votes"),
    "path_length": OutputSpec("path_length", decision="paths"),
}
_NAMED_BY_FUNCTION = frozenset(get_args(Function)) - {
    "onnx",
    *(spec.function for spec in _SKLEARN.values()),
}


def outputs_named(
    transform: PostTransform, task: str, source: str, n_outputs: int
) -> OutputSpec:
    """Return the outputs that an artifact names; raise if the name is not known."""
    spec = _named(transform.kind, task, source, n_outputs)
    return replace(
        spec,
        parameter=2.0 if transform.kind == "gb_exponential" else transform.parameter,
        divisor=transform.divisor,
        offsets=transform.offsets,
        cutoff=transform.cutoff,
    )


def _named(kind: str, task: str, source: str, n_outputs: int) -> OutputSpec:
    if kind in _SKLEARN:
        pair = kind == "samme" and n_outputs == 2
        return replace(_SKLEARN[kind], labels="above_zero") if pair else _SKLEARN[kind]
    if kind in _NAMED_BY_FUNCTION:
        spec = OutputSpec(cast(Function, kind))
        if source not in ("xgboost", "lightgbm"):
            return spec
        several = n_outputs > 1
        chooses = several and (
            source == "lightgbm" or (task == "multiclass" and n_outputs != 2)
        )
        spec = replace(
            spec,
            probabilities="values" if several else "complement",
            labels="best" if chooses else "half",
            named=source == "lightgbm",
        )
        if kind == "argmax":
            return replace(spec, probabilities="softmax", labels="index")
        return spec
    library, *names = kind.split(":")
    wanted = (get_args(Layout), get_args(Post), get_args(FloatName))
    known = library == "onnx" and len(names) == len(wanted)
    if not known or any(n not in w for n, w in zip(names, wanted, strict=True)):
        raise UnsupportedModelError(
            f"The transform {kind!r} is not known; this forest was made by a "
            "newer release."
        )
    layout, post, dtype = names
    return OutputSpec(
        "onnx",
        probabilities="values",
        labels="above_bound" if task == "binary" else "first_greatest",
        layout=cast(Layout, layout),
        post=cast(Post, post),
        dtype=cast(FloatName, dtype),
    )


def name_of(
    spec: OutputSpec, task: str, source: str, n_outputs: int
) -> tuple[PostTransform, bool]:
    """Return the name of outputs, and whether it stands for all of them."""
    kinds = [
        kind for kind, known in _SKLEARN.items() if known.function == spec.function
    ]
    if spec.function == "onnx":
        kinds = [f"onnx:{spec.layout}:{spec.post}:{spec.dtype}"]
    for kind in kinds or [spec.function]:
        parameter = 1.0 if kind == "gb_exponential" else spec.parameter
        name = PostTransform(kind, parameter, spec.divisor, spec.offsets, spec.cutoff)
        if outputs_named(name, task, source, n_outputs) == spec:
            return name, True
    return name, False
