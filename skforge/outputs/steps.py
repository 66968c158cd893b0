"""The rules of answers: which function of the scores, and what is made of its values.

Arrays follow them in :mod:`skforge.outputs.answers`, entries and exports in
code, unless the source's arithmetic is NumPy's (whose ``exp`` is not the C library's)
or not scalar.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array
from skforge.exceptions import UnsupportedModelError
from skforge.forest.forest import Forest
from skforge.forest.outputs import SCORES, AnswerSpec, OutputSpec
from skforge.outputs import sklearn
from skforge.outputs.functions import BY_NUMPY, FUNCTIONS, FunctionName
from skforge.outputs.library import HOST, numpy_loop
from skforge.runtime.libm import exp

Output: TypeAlias = Literal[
    "raw", "transformed", "probabilities", "labels", "scores", "decision"
]
OUTPUTS: tuple[Output, ...] = get_args(Output)
Refused: TypeAlias = Literal["nothing", "infinite", "not_finite"]
REFUSED: tuple[Refused, ...] = get_args(Refused)
ChoiceKind: TypeAlias = Literal[
    "values", "targets", "both_classes", "above", "best", "index"
]

#: Most model slots of a kernel that an entry can call.
MAX_SLOTS = 60
#: Numbers of scratch on an entry's stack: converted rows, and sums before the
#: transform. More sums are in an array, which the entry makes.
MAX_SCRATCH = 2048
#: Most columns of a row whose arithmetic is unrolled.
MAX_WRITTEN = 64


class UntracedError(Exception):
    """What a graph makes of scores has a form that only arrays compute."""


@dataclass(frozen=True)
class Steps:
    """Divisions, a function of the scores with its constants, and a choice.

    ``values`` and ``index`` are all values, and ``targets`` those of each target;
    ``both_classes`` is ``1 - p`` and ``p`` of the one value; ``above`` tells of each
    whether ``value <comparison> cut``; ``best`` is the index of the greatest value.
    ``dtype`` is that of the answer, and empty for that of the scores. In code, class
    indices are replaced by ``labels``, if there are any, and entries return arrays in
    Fortran order if they are ``by_columns``, as the source's are; ``one_by_row`` tells
    that an array of one row has the strides of C order all the same.
    """

    divisors: tuple[float, ...] = ()
    function: FunctionName = "identity"
    spec: OutputSpec = SCORES
    choice: ChoiceKind = "values"
    comparison: str = "ogt"  # LLVM's predicate: ordered and greater than
    cut: float = 0.5
    dtype: str = ""
    labels: tuple[int, ...] = ()
    by_columns: bool = False
    one_by_row: bool = False

    @property
    def in_place(self) -> bool:
        elsewhere = self.by_columns
        elsewhere |= FUNCTIONS[self.function].code in ("columns", "graph")
        return self.choice == "values" and not elsewhere

    @property
    def is_plain(self) -> bool:
        """Whether the answers are the scores."""
        return (
            self.in_place
            and self.function == "identity"
            and not (self.divisors or self.dtype)
        )

    def shape(self, n_outputs: int, sum_dtype: str) -> tuple[str, int]:
        function = FUNCTIONS[self.function]
        width = function.width(self.spec, n_outputs)
        if function.code == "graph":  # code has no other scores
            sum_dtype = "float32"
        columns = {"both_classes": 2, "best": 1}.get(self.choice, width)
        return self.dtype or sum_dtype, columns

    def of_row(self, scores: Any, on: Any) -> Any:
        x = FUNCTIONS[self.function].of(scores, self.spec, on)
        return (x > self.cut).astype(self.dtype) if self.choice == "above" else x


@lru_cache(maxsize=256)
def steps_of(spec: AnswerSpec, output: Output) -> Steps:
    """Return the steps from raw scores to an output.

    ``raw`` is ``predict_raw``, ``transformed`` a Booster's or regressor's ``predict``.
    The others are ``predict_proba``, the indices of the classes that ``predict``
    chooses, ``score_samples`` and ``decision_function``. Raises
    ``UnsupportedModelError`` if the model lacks the method.
    """
    rules = spec.outputs
    if output in ("probabilities", "labels") and not spec.classifies:
        raise UnsupportedModelError(
            f"This {spec.task} model has no classes; use predict instead."
        )
    match output:
        case "raw":
            return Steps()
        case "transformed":
            return _values(rules)
        case "probabilities":
            match rules.probabilities:
                case "scores":
                    return Steps(choice="targets")
                case "values":
                    return _values(rules)
                case "complement":
                    return _values(rules, "both_classes")
                case "softmax":
                    return Steps(function="scipy_softmax", choice="targets")
        case "labels":
            return _labels(spec)
        case "scores" | "decision":
            return _decision(spec, output)


def by_column(spec: AnswerSpec, output: Output) -> bool:
    """Tell whether a source's answers of several columns lie in memory by column.

    NumPy adds the rows of such an array in another order. See ``one_by_row`` for those
    of one row.
    """
    rules = spec.outputs
    if spec.source == "catboost":
        return True
    both = output == "probabilities" and rules.probabilities == "complement"
    several = rules.function in ("softmax_by_columns", "samme")
    return both or (several and output in ("probabilities", "decision"))


def one_by_row(spec: AnswerSpec, output: Output) -> bool:
    """Tell whether answers to one row have strides of C order, whatever those to more.

    NumPy's functions make such arrays of a row, and scikit-learn's probabilities of
    several classes are theirs; its scores of histogram boosting are not.
    """
    function = spec.outputs.function
    return function == "samme" or (
        function == "softmax_by_columns" and output == "probabilities"
    )


def in_one_array(answer: Any) -> Any:
    """Return targets' probabilities as views of one array, as a single tree does."""
    if not isinstance(answer, list):
        return answer
    shape = len(answer[0]), len(answer), max(part.shape[1] for part in answer)
    whole = np.empty(shape, answer[0].dtype)
    for target, part in enumerate(answer):
        whole[:, target, : part.shape[1]] = part
    return [whole[:, target, : part.shape[1]] for target, part in enumerate(answer)]


def in_order(values: Array, by_column: bool) -> Array:
    """Return an answer in Fortran order, or in its own; one row has its strides, too.

    An array of one row has both orders, so that NumPy never copies it for either.
    """
    if values.ndim < 2 or len(values) > 1:
        return np.asfortranarray(values) if by_column else values
    return values.copy("F" if by_column else "C")


def _values(rules: OutputSpec, choice: ChoiceKind = "values", dtype: str = "") -> Steps:
    divisors = (rules.divisor,) if rules.divisor != 1 else ()
    dtype = rules.dtype if rules.function == "onnx" else dtype
    return Steps(divisors, rules.function, rules, choice, dtype=dtype)


def _labels(spec: AnswerSpec) -> Steps:
    rules = spec.outputs
    match rules.labels:
        case "best_score" | "column":
            shares = (rules.parameter,) if rules.decision == "votes" else ()
            return Steps(shares, choice="best", dtype="int64")
        case "best":
            return _values(rules, "best", "int64")
        case "half":
            flags = "int64" if spec.n_outputs == 1 else "float64"
            return _values(rules, "above", flags)
        case "index":
            return _values(rules, "index", "int32")
        case "from_zero" | "above_zero":
            above = replace(_decision(spec), choice="above", dtype="int64")
            if rules.labels == "from_zero":
                return replace(above, comparison="oge", cut=0.0)
            return replace(above, cut=rules.cutoff)
        case "above_bound" | "first_greatest":
            return Steps(function=rules.labels, spec=rules, dtype="int64")
        case "graph":
            return Steps(function="graph_places", spec=rules, dtype="int64")


def _decision(spec: AnswerSpec, output: Output = "decision") -> Steps:
    rules = spec.outputs
    by_path = rules.function == "path_length"
    match output, rules.decision:
        case "scores", _ if by_path:
            return Steps(function="path_score", spec=rules)
        case "decision", "scores":
            return Steps()
        case "decision", "votes" if spec.n_outputs == 2:
            return Steps(function="pair", spec=rules)
        case "decision", "votes":
            return Steps((rules.parameter,))
        case "decision", "paths" if by_path:
            return Steps(function="path_decision", spec=rules)
    raise UnsupportedModelError(
        f"A forest with the transform {rules.name!r} has neither decision_function nor "
        "score_samples."
    )


@dataclass(frozen=True)
class EntryKind:
    """What an entry point computes; it reads the model's ``EntrySizes``."""

    n_outputs: int
    row_dtype: str
    sum_dtype: str
    steps: Steps
    refused: Refused
    shared: bool = False  # whether several threads run large batches
    takes: bool = False  # a Python function makes the answer from class indices
    #: Numbers of this size are refused too, and rows of the other precision; inf: none.
    limit: float = float("inf")
    #: Neighbouring columns that hold whole numbers: the first, the end, and the least
    #: and the greatest number. Rows with others are refused.
    whole: tuple[tuple[int, int, int, int], ...] = ()


def steps_in_code(forest: Forest, output: Output) -> Steps | None:
    one, several = forest.n_outputs == 1, len(forest.output_sizes) > 1
    adds = forest.aggregate == "sum" and not forest.scaling
    if not adds or (several and output == "labels"):
        return None
    try:
        steps = steps_of(forest.answers, output)
    except UnsupportedModelError:
        return None
    # neither a choice of one class nor the probabilities of two
    if steps.choice == ("best" if one else "both_classes"):
        return None
    if steps.function == "expit":
        if output != "probabilities" or not expit_is_libm():
            return None
        steps = replace(steps, function="logistic", choice="both_classes")
    written = _written(steps, forest)
    if written is None:
        return None
    averages = (forest.divisor,) if forest.divisor != 1 else ()
    choice = "values" if written.choice == "targets" else written.choice
    modules = output in ("raw", "transformed")  # whose arrays lie row by row
    by_columns = not modules and by_column(forest.answers, output)
    one = by_columns and one_by_row(forest.answers, output)
    written = replace(written, choice=choice, by_columns=by_columns, one_by_row=one)
    return replace(written, divisors=(*averages, *written.divisors))


def _written(steps: Steps, forest: Forest) -> Steps | None:
    rules, narrow = forest.outputs, forest.n_outputs <= MAX_WRITTEN
    match steps.function:
        case "path_length" | "path_score" | "path_decision":
            return _of_paths(steps, forest) if forest.n_outputs == 1 else None
        case "onnx":  # NaNs of probit have either sign
            return steps if narrow and rules.post != "probit" else None
        case "above_bound" | "first_greatest":
            return steps if narrow and not np.isnan(rules.offsets).all() else None
        case "pair":
            return steps
        case "argmax":
            dtype = steps.dtype or forest.accumulator_dtype.name
            return Steps(function="argmax", choice="best", dtype=dtype)
        case "scipy_softmax" if not scipy_is_numpy():
            return None
        case "expectiles" | "sorted" if not narrow:
            return None
        case function:
            given = steps.spec
            constants = OutputSpec(parameter=given.parameter, graph=given.graph)
            code, dtype = FUNCTIONS[function].code, forest.accumulator_dtype.name
            whole = dtype == "float64" or function in ("scipy_softmax", "sorted")
            known = code is not None and (code != "own" or whole)
            known = known and loops_of(function, dtype) is not None
            return replace(steps, spec=constants) if known else None


def _of_paths(steps: Steps, forest: Forest) -> Steps | None:
    rules = forest.outputs
    if steps.function == "path_length":
        if (cut := inlier_length(rules)) is None:
            return None
        above = Steps(choice="above", comparison="uge", cut=cut, dtype="int64")
        return replace(above, labels=(-1, 1))
    if forest.accumulator_dtype != np.float64 or rules.parameter <= 0:
        return None
    if loops_of("path_score") is None:  # with NumPy's power
        return None
    less = rules.cutoff if steps.function == "path_decision" else 0.0
    return Steps((rules.parameter,), "path_score", cut=less)


def loops_of(function: FunctionName, dtype: str = "float64") -> dict[str, int] | None:
    """Return the addresses of NumPy's loops that a function's code calls, by symbol."""
    names = BY_NUMPY.get(function, ())
    found = {f"skf_{name}": numpy_loop(name, dtype) for name in names}
    known = {symbol: address for symbol, address in found.items() if address}
    return known if len(known) == len(found) else None


def inlier_length(rules: OutputSpec) -> float | None:
    """Return the shortest path length of an inlier of an isolation forest.

    A row is an outlier if NumPy's rounded power of 2 is below a cutoff. The power is
    off by some ulps, so thousands of lengths around the cutoff are tried here; further
    away the result is certain.
    """
    scale = rules.parameter
    if not scale > 0:
        return None

    def outlier(lengths: NDArray[np.float64]) -> NDArray[np.bool_]:
        return sklearn.path_decision(lengths, rules, HOST) < 0

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
        ours = 1.0 / (1.0 + exp(-values))
    return bool(np.array_equal(expit(values), ours, equal_nan=True))


@lru_cache(maxsize=1)
def scipy_is_numpy() -> bool:
    """Tell whether SciPy's softmax of rows is what NumPy's functions give."""
    from scipy.special import softmax

    drawn = np.random.default_rng(0).standard_normal(4096)
    for dtype in (np.float32, np.float64):
        for size in (2, 3, 7, 8, 10, 100):
            scores = 5 * drawn[: 4096 // size * size].reshape(-1, size).astype(dtype)
            for part in (scores, scores[:1]):
                ours = sklearn.softmax(part.copy())
                if not np.array_equal(softmax(part, axis=1), ours):
                    return False
    return True
