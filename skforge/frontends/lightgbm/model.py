"""LightGBM: text models, JSON dumps, Boosters and the scikit-learn wrappers.

Everything is read from the model's text or dump, so files need no lightgbm. Numbers
follow LightGBM's CPU predictor: float64 rows and sums, ``x <= threshold`` goes left.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array, Bools, Int32s
from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.arrays import ZERO_THRESHOLD, Comparison, Missing
from skforge.forest.forest import Forest
from skforge.forest.outputs import Objective, OutputSpec, Task
from skforge.forest.predicates import deduplicate_predicates
from skforge.frontends import checks
from skforge.frontends.arrays import Floats, forest_arrays, starts
from skforge.frontends.base import Frontend, is_a, register
from skforge.frontends.lightgbm.categories import named
from skforge.frontends.lightgbm.dump import is_dump, parts_of
from skforge.frontends.lightgbm.text import (
    ModelText,
    TextTrees,
    damaged,
    integer,
    parse,
    read_trees,
)

_MISSING = np.array([Missing.NEVER, Missing.ZERO, Missing.NAN, Missing.NAN], np.uint8)


_SCORES = Objective("identity")
_OBJECTIVES: dict[str, Objective] = {
    **dict.fromkeys(
        ("regression", "regression_l1", "fair", "quantile", "mape"),
        _SCORES._replace(options=("sqrt",)),
    ),
    "huber": _SCORES,
    **dict.fromkeys(("poisson", "gamma", "tweedie"), Objective("exp")),
    "binary": Objective("logistic", "binary", options=("sigmoid",)),
    "multiclass": Objective("softmax", "multiclass", options=("num_class",)),
    "multiclassova": Objective(
        "logistic", "multiclass", options=("num_class", "sigmoid")
    ),
    "cross_entropy": Objective("logistic"),
    "cross_entropy_lambda": Objective("log1p_exp"),
    **dict.fromkeys(("lambdarank", "rank_xendcg"), Objective("identity", "ranking")),
    "custom": _SCORES,  # like no objective: predict returns raw scores
    "unknown": Objective("unknown"),  # of a dump; not in texts
}
#: Aliases that LightGBM reads if no option follows; it never writes them.
_ALIASES = {
    alias: name
    for name, aliases in (
        ("regression", "regression_l2 l2 mean_squared_error mse l2_root rmse"),
        ("regression", "root_mean_squared_error"),
        ("regression_l1", "l1 mean_absolute_error mae"),
        ("mape", "mean_absolute_percentage_error"),
        ("cross_entropy", "xentropy"),
        ("cross_entropy_lambda", "xentlambda"),
        ("rank_xendcg", "xendcg xe_ndcg xe_ndcg_mart xendcg_mart"),
        ("custom", "none null na"),
    )
    for alias in aliases.split()
}


def _forest(
    model: ModelText,
    iteration_range: checks.IntRange | None,
    sigmoid: float | None = None,
) -> Forest:
    """Build the forest of a model's parts for boosting rounds ``[begin, end)``.

    ``end == 0`` means all rounds from ``begin``. ``sigmoid`` is the exact slope of the
    logistic function, if known; the text rounds it.
    """
    header = model.header
    n_features = integer(header, "max_feature_idx", "the header") + 1
    n_outputs = integer(header, "num_tree_per_iteration", "the header")
    n_classes = integer(header, "num_class", "the header")
    if not 1 <= n_outputs <= checks.MAX_OUTPUTS or n_classes != n_outputs:
        damaged(f"num_tree_per_iteration is {n_outputs} and num_class is {n_classes}")
    n_rounds, odd = divmod(len(model.trees), n_outputs)
    if odd:
        n_trees = len(model.trees)
        damaged(f"{n_trees} trees do not make whole rounds of {n_outputs} trees")
    begin, end = checks.chosen_rounds(iteration_range, n_rounds) or (0, n_rounds)
    names = header.get("feature_names", "").split(" ")
    if len(names) != n_features:
        damaged(f"feature_names has {len(names)} names for {n_features} features")
    about_columns = (
        header.get("feature_infos", ""),
        model.parameters.get("categorical_feature", ""),
    )
    trees = read_trees(model.trees[begin * n_outputs : end * n_outputs], n_features)
    outputs, task = _outputs(header, n_outputs, sigmoid)
    if "average_output" in header:
        if end == begin:
            raise UnsupportedModelError(
                "This random forest has no trees, so LightGBM predicts NaN; train it "
                "for at least one round."
            )
        outputs = replace(outputs, divisor=end - begin)
    return Forest(
        **_arrays(trees),
        tree_output=(np.arange(len(trees.n_leaves)) % n_outputs).astype(np.int32),
        n_features=n_features,
        base=np.zeros(n_outputs),
        outputs=outputs,
        task=task,
        source="lightgbm",
        feature_names=tuple(names),
        **named(model.pandas_categorical, about_columns, n_features),
        truncate_categories=True,
        aggregate="linear" if len(trees.linear) else "sum",
        leaf_linear=trees.linear,
    )


def _outputs(
    header: dict[str, str], n_outputs: int, sigmoid: float | None
) -> tuple[OutputSpec, Task]:
    text = header.get("objective", "custom")
    name, *words = _ALIASES.get(text, text).split(" ")
    objective = _OBJECTIVES.get(name)
    if objective is None:
        raise UnsupportedModelError(
            f"The objective {name!r} is unknown, so its predictions cannot be "
            "reproduced."
        )
    options = dict(word.partition(":")[::2] for word in words if word)
    for option in options:
        if option not in objective.options:
            raise UnsupportedModelError(
                f"The objective {name!r} has the unknown option {option!r}, so its "
                "predictions cannot be reproduced."
            )
    classes = options.get("num_class", "1")
    if name not in ("custom", "unknown") and classes != str(n_outputs):
        damaged(f"The objective {name!r} is for {classes} outputs, not {n_outputs}")
    function, slope = objective.function, 1.0
    if "sqrt" in options:
        function = "signed_square"
    if "sigmoid" in objective.options:
        slope = _atof(options.get("sigmoid", "")) if sigmoid is None else sigmoid
        if not 0 < slope < math.inf:
            damaged(f"sigmoid is {options.get('sigmoid')!r}")
    outputs = OutputSpec(
        function,
        slope,
        probabilities="values" if n_outputs > 1 else "complement",
        labels="best" if n_outputs > 1 else "half",
    )
    return outputs, objective.task


def _atof(text: str) -> float:
    """Read a number as LightGBM reads parameters, not always to the nearest float."""
    parts = r"([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?"
    match = re.fullmatch(parts, text, flags=re.ASCII)
    if match is None or not text:
        return math.nan
    digits, fraction, exponent = match.groups()
    value = 0.0
    for digit in digits:
        value = value * 10.0 + int(digit)
    if fraction:
        rest = 0.0
        for digit in fraction:
            rest = int(digit) + rest * 10.0
        value += rest / _power(10.0, len(fraction))
    if exponent:
        left, scale = min(abs(int(exponent)), 308), 1.0
        for step, factor in ((50, 1e50), (8, 1e8), (1, 10.0)):
            while left >= step:
                scale *= factor
                left -= step
        value = value / scale if exponent[0] == "-" else value * scale
    return value


def _power(base: float, exponent: int) -> float:
    """Return a power, multiplied in LightGBM's order."""
    if exponent == 0:
        return 1.0
    if exponent % 2 == 0:
        return _power(base * base, exponent // 2)
    if exponent % 3 == 0:
        return _power(base * base * base, exponent // 3)
    return base * _power(base, exponent - 1)


def _arrays(trees: TextTrees) -> dict[str, Any]:
    inner = trees.n_leaves - 1
    offset = trees.first_inner + trees.first_leaf
    sizes = np.column_stack((inner, trees.n_leaves)).ravel()
    is_inner = np.repeat(np.tile([True, False], len(inner)), sizes)

    def by_node(of_inner: Array, of_leaf: Any) -> Array:
        values = np.empty(len(is_inner), of_inner.dtype)
        values[is_inner], values[~is_inner] = of_inner, of_leaf
        return values

    first_node, first_leaf = np.repeat(offset[:-1], inner), np.repeat(inner, inner)
    left, right = (
        by_node(first_node + np.where(child >= 0, child, first_leaf + ~child), 0)
        for child in (trees.left, trees.right)
    )
    firsts = trees.first_inner, trees.first_leaf
    number = by_node(*(np.arange(first[-1]) - starts(first) for first in firsts))
    cover = None
    if trees.inner_count is not None and trees.leaf_count is not None:
        cover = by_node(trees.inner_count, trees.leaf_count)
    tests, values = _predicates(trees), trees.leaf_value[:, np.newaxis]
    return forest_arrays(offset, is_inner, left, right, tests, values, number, cover)


def _predicates(trees: TextTrees) -> tuple[dict[str, Array], Int32s]:
    """Return distinct tests and each node's; NaN is in no set, for any missing type."""
    in_set = (trees.decision_type & 1) != 0
    missing = _MISSING[trees.decision_type >> 2]
    missing[in_set] = Missing.NAN
    left = ((trees.decision_type & 2) != 0) & ~in_set & (missing != Missing.NEVER)
    threshold = np.where(in_set, 0.0, _around_zero(trees.threshold))
    tests = trees.feature, np.where(in_set, Comparison.IN, Comparison.LE), threshold
    kinds = _one_kind_of_missing(missing, left, threshold)
    return deduplicate_predicates(*tests, *kinds, trees.categories)


def _one_kind_of_missing(
    missing: NDArray[np.uint8], left: Bools, threshold: Floats
) -> tuple[NDArray[np.uint8], Bools]:
    """Reduce mixed missing types to NaN alone, as far as results stay the same.

    A single type makes kernels shorter, and LightGBM gives each feature its own. If NaN
    counts as 0.0, it becomes missing and goes where zero goes. Missing zeros that go
    where a test sends them anyway need no missing type, unless the test ends at zero.
    """
    if (missing == missing[:1]).all():
        return missing, left
    never, zero_left = missing == Missing.NEVER, threshold >= 0
    left = np.where(never, zero_left, left)
    ends = np.abs(threshold) < 2 * ZERO_THRESHOLD
    mentioned = (missing == Missing.ZERO) & ((left != zero_left) | ends)
    return np.where(mentioned, missing, np.uint8(Missing.NAN)), left


def _around_zero(threshold: Floats) -> Floats:
    """Move thresholds near zero so that rows need no rounding.

    LightGBM replaces every |x| <= kZeroThreshold by 0.0 before a tree sees it. With the
    moved threshold t, all these values pass ``x <= t`` if t is not negative, or none.
    """
    near = np.abs(threshold) <= ZERO_THRESHOLD
    below = np.nextafter(-ZERO_THRESHOLD, -np.inf)
    return np.where(near, np.where(threshold >= 0, ZERO_THRESHOLD, below), threshold)


def load_bytes(data: bytes, iteration_range: checks.IntRange | None = None) -> Forest:
    """Read a text or a JSON dump with all its rounds; who wrote it selected them."""
    if data.lstrip()[:1] == b"{":
        return _forest(parts_of(checks.read_json(data)), iteration_range)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidModelError(
            f"The text is not UTF-8 ({error.reason} at byte {error.start}); it is "
            "damaged or not a LightGBM model, so save the model again."
        ) from error
    return _forest(parse(text), iteration_range)


def detect(model: object) -> bool:
    names = "lightgbm.basic.Booster", "lightgbm.sklearn.LGBMModel"
    return is_dump(model) or is_a(model, *names)


#: How a parameter of LightGBM says that something is switched off.
_OFF = ("false", "0", "-", "none")


def refuse(model: Any) -> None:
    if not is_a(model, "lightgbm.sklearn.LGBMModel"):
        return
    checks.refuse_override(model, "lightgbm.sklearn")
    for early in ("pred_early_stop", "predict_early_stop"):
        if str(model.get_params().get(early, False)).lower() not in _OFF:
            raise UnsupportedModelError(
                f"This {type(model).__name__} predicts with {early}=True, which skips "
                f"trees; call set_params({early}=False)."
            )


def load(model: Any, iteration_range: checks.IntRange | None = None) -> Forest:
    """Read a dump, a Booster or a wrapper, up to its ``best_iteration``."""
    if isinstance(model, dict):
        return _forest(parts_of(model), iteration_range)
    if is_a(model, "lightgbm.basic.Booster"):
        return _from_booster(model, iteration_range)
    if not model.__sklearn_is_fitted__() or model._Booster is None:
        checks.refuse_unfitted(model)
    refuse(model)
    return _as_wrapper(model, _from_booster(model.booster_, iteration_range))


def _as_wrapper(model: Any, forest: Forest) -> Forest:
    if is_a(model, "lightgbm.sklearn.LGBMRanker"):
        return replace(forest, task="ranking")
    # with an own objective, its predict returns raw scores, and warns
    classifies = is_a(model, "lightgbm.sklearn.LGBMClassifier")
    if not classifies or callable(model.objective_):
        return replace(forest, task="regression")
    if forest.n_outputs > 1:
        return replace(forest, task="multiclass")
    if model.n_classes_ > 2:
        raise UnsupportedModelError(
            f"The objective {model.objective_!r} has one output for "
            f"{model.n_classes_} classes; train with 'multiclass' or 'multiclassova'."
        )
    return replace(forest, task="binary")


def _from_booster(booster: Any, iteration_range: checks.IntRange | None) -> Forest:
    text = booster.model_to_string(num_iteration=-1)
    if iteration_range is None and booster.best_iteration > 0:
        best = min(int(booster.best_iteration), int(booster.current_iteration()))
        iteration_range = (0, best) if best else None
    sigmoid = None
    if getattr(booster, "train_set", None) is not None:
        # the object that was trained, not read from text: its slope is not rounded
        value = (booster.params or {}).get("sigmoid")
        sigmoid = None if value is None else _atof(str(value))
    return _forest(parse(text), iteration_range, sigmoid)


register(Frontend("lightgbm", (".txt",), detect, load, load_bytes, refuse))
