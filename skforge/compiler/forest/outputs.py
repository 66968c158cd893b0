"""How a source's answers follow from raw scores: one record, filled by the frontend.

``skforge.compiler.outputs`` implements it. Artifacts refer to the outputs of the first
supported libraries by name (:class:`PostTransform`) and store the full record of any
other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast, get_args

from skforge.exceptions import UnsupportedModelError

Task: TypeAlias = Literal[
    "regression", "binary", "multiclass", "multilabel", "ranking", "outlier"
]
#: Tasks that predict class labels.
CLASSIFICATION: tuple[Task, ...] = ("binary", "multiclass", "multilabel")

Function: TypeAlias = Literal[
    # in the C library's arithmetic
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
    "unknown",
    # in NumPy's and SciPy's
    "expit",
    "softmax_by_rows",
    "softmax_by_columns",
    "numpy_exp",
    "samme",
    "path_length",
    # in ONNX Runtime's
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
    """How a source's methods compute answers from raw scores, as data.

    Parameters
    ----------
    function : str
        Maps scores to values, as a regressor's ``predict`` returns them:

        - identity, exp, hinge, sorted, argmax; ``sigmoid`` and ``softmax`` in
          XGBoost's order of operations;
        - ``logistic``, ``1 / (1 + exp(-parameter * x))``; ``signed_square``,
          ``sign(x) * x * x``; ``log1p_exp``, ``log1p(exp(x))``; ``unknown``, if the
          model does not tell, so that there are only scores;
        - ``expit``, SciPy's of ``parameter * x``, for both classes;
          ``softmax_by_rows`` and ``softmax_by_columns``, NumPy's of arrays in C and
          in Fortran order, whose rows NumPy sums in different orders; ``numpy_exp``;
        - ``samme`` of AdaBoost's votes, whose weights sum to ``parameter``;
          ``path_length`` of an isolation forest, ``-(2 ** (-x / parameter))``; values
          below ``cutoff`` are outliers;
        - ``onnx``: ``post`` of the scores in a ``layout``, as ``dtype``.
    parameter : float, default=1.0
        A constant of the function or of the labels.
    divisor : int, default=1
        Scores are divided by it first (LightGBM averages have sums as raw scores).
    offsets : tuple of float
        Added to the scores first, one per output (ONNX); NaN for an output that no
        leaf scores.
    cutoff : float, default=0.0
        The score that separates outliers from inliers.
    probabilities : {"scores", "values", "complement", "softmax"}
        The answer of ``predict_proba``: the scores, target by target; the values;
        ``1 - p`` and ``p`` of the one value; SciPy's softmax of the scores.
    labels : str
        How ``predict`` chooses a class: ``best_score`` and ``best``, the first
        greatest score (of each target) or value; ``half``, whether each value is above
        one half; ``index``, the value itself; ``from_zero`` and ``above_zero``, class 1
        if ``decision_function`` is at least or above 0; ``above_bound`` and
        ``first_greatest``, ONNX Runtime's rules for two classes (the bound is
        ``parameter``) and for several.
    decision : {"none", "scores", "votes", "paths"}
        The answer of ``decision_function``: scores, shares of AdaBoost's votes, or
        how far an isolation forest's score is above ``cutoff``.
    named : bool, default=True
        Whether ``predict`` returns elements of ``classes_``, not indices into it.
    layout : {"columns", "target", "one", "mirrored"}
        For ``onnx``: one score per target or class; one target; two classes with one
        score, which belongs to the second; or with its negative for the first.
    post : {"none", "logistic", "softmax", "softmax_zero", "probit"}
        For ``onnx``: ONNX's post transform.
    dtype : {"float32", "float64"}
        For ``onnx``: dtype of the output.
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


#: For regressors whose predictions are their scores.
SCORES = OutputSpec()

#: The permitted values of the fields that hold names.
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
    """The name of an output and its constants, as artifacts and pickles store them.

    Name, library and task together identify an :class:`OutputSpec`; ONNX's names are
    ``onnx:layout:post:dtype``.
    """

    kind: str = "identity"
    parameter: float = 1.0
    divisor: int = 1
    offsets: tuple[float, ...] = ()
    cutoff: float = 0.0


#: scikit-learn's outputs; the first one that fits gives the name. Other names are those
#: of functions.
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
    """Return the outputs that an artifact names; raise if the name is unknown."""
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
            f"The transform {kind!r} is unknown to this version of skforge; a newer "
            "version made this forest, so update skforge."
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
    """Return the name of outputs, and whether it identifies all of them."""
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
