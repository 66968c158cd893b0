"""CatBoost: ``.cbm`` and JSON files, and models in memory, which are read as ``.cbm``.

Numbers follow CatBoost's CPU predictor: float32 rows, ``x > border`` goes right, and
float64 sums that start from 0 and end with the bias.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from skforge.forest.arrays import Comparison, Missing
from skforge.forest.combine import subset
from skforge.forest.forest import Forest
from skforge.forest.outputs import SCORES, OutputFunction, OutputSpec, Task
from skforge.forest.predicates import deduplicate_predicates
from skforge.frontends import checks
from skforge.frontends.arrays import Floats, forest_arrays
from skforge.frontends.base import Frontend, detects, is_a, register
from skforge.frontends.catboost import parts
from skforge.frontends.catboost.cbm import read_cbm
from skforge.frontends.catboost.ctr import feature_names, tests_of
from skforge.frontends.catboost.dump import read_dump
from skforge.frontends.catboost.parts import damaged

#: Losses for which each score of several has a probability of its own.
_MULTILABEL = ("MultiLogloss", "MultiCrossEntropy")
#: Losses of classifiers, of which files do not say so otherwise.
_CLASSES = ("Logloss", "CrossEntropy", "Focal", "MultiClass", "MultiClassOneVsAll")
#: More classes are a damaged file's.
_MOST_CLASSES = 1 << 16
_RANKING = ("YetiRank", "PairLogit", "Query", "StochasticRank", "LambdaMart", "Group")
#: What a regressor's ``predict`` returns, by the name of CatBoost's prediction type.
_REGRESSION = {
    "RawFormulaVal": SCORES,
    "Exponent": OutputSpec("fast_exp"),
    "RMSEWithUncertainty": OutputSpec("uncertainty"),
}


def _forest(
    contents: parts.CatBoostParts,
    iteration_range: checks.IntRange | None,
    outputs: OutputSpec,
    task: Task,
    labels: tuple[Any, ...] = (),
) -> Forest:
    """Build the forest of a model for trees ``[begin, end)``.

    The bias, which CatBoost adds last, is a tree with a single leaf, unless the sums
    are multiplied before.
    """
    parts.check_borders(contents.column, contents.border)
    nodes, base = contents.nodes, np.where(contents.bias == -np.inf, -np.inf, 0.0)
    bias = np.where(base, 0.0, contents.bias)
    n_rounds = len(nodes.offset) - 1
    begin, end = checks.chosen_rounds(iteration_range, n_rounds) or (0, n_rounds)
    n_outputs = len(bias)
    added = begin == 0 and bias.any()  # CatBoost adds none to later trees alone
    scaling: tuple[float, ...] = ()
    if not math.isfinite(contents.scale):
        damaged(f"it multiplies its sums by {contents.scale}")
    if contents.scale != 1:
        scaling = float(contents.scale), *(bias.tolist() if added else ())
    elif added:
        nodes = _with_constant(nodes, bias)
    at = nodes.split
    # Trees that are left out below need no statistics of categories.
    first, last = np.append(0, np.cumsum(nodes.inner))[nodes.offset[[begin, end]]]
    known, hashed = tests_of(contents, np.unique(at[first:last]))
    column, border, left = known
    tests = deduplicate_predicates(
        column[at], Comparison.LE, border[at], Missing.NAN, left[at]
    )
    n_trees = len(nodes.offset) - 1
    source_node = np.full(nodes.offset[-1], -1, np.int64)
    source_node[~nodes.inner] = nodes.leaf_number
    forest = Forest(
        **forest_arrays(*nodes[:4], tests, nodes.leaf_value, source_node),
        tree_output=np.full(n_trees, 0 if n_outputs == 1 else -1, np.int32),
        n_features=len(contents.names) if hashed is None else hashed.n_features,
        base=base,
        outputs=outputs,
        task=task,
        source="catboost",
        feature_names=feature_names(contents.names, hashed),
        scaling=scaling,
        hashed=hashed,
        class_labels=labels,
    ).validate()
    if hashed is not None:  # columns that read the same ones are one for SHAP values
        number = {
            columns: i for i, columns in enumerate(dict.fromkeys(hashed.columns_of))
        }
        players = [number[hashed.columns_of[feature]] for feature in forest.feature]
        player = np.array([*players, -1], np.int32)
        forest = replace(forest, source_feature=player[forest.predicate])
    if len(nodes.leaf_weight):
        forest = _with_covers(forest, nodes.leaf_weight)
    if (begin, end) != (0, n_rounds):
        forest = subset(forest, [*range(begin, end), *range(n_rounds, n_trees)])
    return forest


def _all_classes(contents: parts.CatBoostParts) -> parts.CatBoostParts:
    """Return values and biases for all classes that training was told of.

    Trees have those of the classes that it met; CatBoost's score of others is -inf.
    """
    if not np.isfinite(contents.bias).all():
        damaged(f"it adds {contents.bias.tolist()} to its sums")
    told, nodes = contents.info.get("class_params"), contents.nodes
    names, n_met = _entry(told, "class_names"), len(contents.bias)
    n_told = len(names) if names and isinstance(names, list) else 0
    n_told = n_told or _entry(told, "classes_count") or n_met
    if n_told == n_met or n_met == 1 or _loss(contents) in _MULTILABEL:
        return contents
    met = _entry(told, "class_to_label")
    known = type(n_told) is int and n_told <= _MOST_CLASSES
    known &= isinstance(met, list) and all(type(label) is int for label in met)
    if not known or len(met) != n_met or len({*met} & {*range(n_told)}) != n_met:
        damaged(f"it has values of {n_met} classes, but does not say of which")
    leaf_value = np.zeros((len(nodes.leaf_value), n_told))
    bias = np.full(n_told, -np.inf)
    leaf_value[:, met], bias[met] = nodes.leaf_value, contents.bias
    return contents._replace(nodes=nodes._replace(leaf_value=leaf_value), bias=bias)


def _with_constant(nodes: parts.Nodes, value: Floats) -> parts.Nodes:
    weight = nodes.leaf_weight
    return nodes._replace(
        offset=np.append(nodes.offset, nodes.offset[-1] + 1),
        inner=np.append(nodes.inner, False),
        left=np.append(nodes.left, -1),
        right=np.append(nodes.right, -1),
        leaf_value=np.vstack([nodes.leaf_value, value]),
        leaf_number=np.append(nodes.leaf_number, -1),
        leaf_weight=np.append(weight, 1.0) if len(weight) else weight,
    )


def _with_covers(forest: Forest, leaf_weight: Floats) -> Forest:
    cover = np.zeros(forest.n_nodes)
    cover[forest.leaf >= 0] = leaf_weight
    depth = forest.node_depths()
    for level in range(int(depth.max(initial=0)) - 1, -1, -1):
        at = np.flatnonzero((depth == level) & (forest.left >= 0))
        cover[at] = cover[forest.left[at]] + cover[forest.right[at]]
    return replace(forest, cover=cover)


def load_bytes(data: bytes, iteration_range: checks.IntRange | None = None) -> Forest:
    contents = read_dump(data) if data.lstrip()[:1] == b"{" else read_cbm(data)
    contents = _all_classes(contents)
    loss = _loss(contents)
    if "class_params" in contents.info or loss.startswith((*_CLASSES, *_MULTILABEL)):
        answers = _classifier(contents)
        labels = _labels(contents) if answers[0].named else ()
        return _forest(contents, iteration_range, *answers, labels)
    kind = "RMSEWithUncertainty" if loss == "RMSEWithUncertainty" else "RawFormulaVal"
    kind = "Exponent" if loss in ("Poisson", "Tweedie") else kind
    task: Task = "ranking" if loss.startswith(_RANKING) else "regression"
    return _forest(contents, iteration_range, _REGRESSION[kind], task)


def refuse(model: Any) -> None:
    checks.refuse_override(model, "catboost.core")
    for kind in parts.REFUSED:
        names = model.get_param(f"{kind}_features")
        parts.refuse_features(kind, [] if names is None else [*map(str, names)])


def load(model: Any, iteration_range: checks.IntRange | None = None) -> Forest:
    if not model.is_fitted():
        checks.refuse_unfitted(model)
    checks.refuse_override(model, "catboost.core")
    contents = _all_classes(read_cbm(model._serialize_model()))
    if is_a(model, "catboost.core.CatBoostClassifier"):
        return _forest(contents, iteration_range, *_classifier(contents))
    outputs = SCORES
    if is_a(model, "catboost.core.CatBoostRegressor"):
        outputs = _REGRESSION[model._get_default_prediction_type()]
    ranks = is_a(model, "catboost.core.CatBoostRanker")
    task: Task = "ranking" if ranks else "regression"
    return _forest(contents, iteration_range, outputs, task)


def _loss(contents: parts.CatBoostParts) -> str:
    info = contents.info
    loss = _entry(info.get("params"), "loss_function") or info.get("loss_function")
    return str(_entry(loss, "type") or "")


def _entry(record: Any, name: str) -> Any:
    return record.get(name) if isinstance(record, dict) else None


def _classifier(contents: parts.CatBoostParts) -> tuple[OutputSpec, Task]:
    loss = _loss(contents)
    spec = OutputSpec("logistic", labels="above_zero", decision="scores")
    if len(contents.bias) == 1:
        text = str(contents.info.get("binclass_probability_threshold", 0.5))
        try:
            threshold = float(text)
        except ValueError:
            threshold = math.nan
        if not 0 < threshold < 1:
            damaged(f"the threshold {text[:40]!r} is not between 0 and 1")
        cutoff = -math.log(1 / threshold - 1)
        return replace(spec, cutoff=cutoff, probabilities="complement"), "binary"
    if loss in _MULTILABEL:
        return replace(spec, probabilities="values", named=False), "multilabel"
    alone = loss == "MultiClassOneVsAll"
    function: OutputFunction = "logistic" if alone else "fast_softmax"
    return OutputSpec(function, probabilities="values", labels="column"), "multiclass"


#: Types of class labels, and of the JSON values that stand for them.
_LABELS: dict[str, tuple[Any, tuple[type, ...]]] = {
    "Integer": (int, (int,)),
    "Float": (float, (int, float)),
    "Boolean": (bool, (bool,)),
    "String": (str, (str,)),
}


def _labels(contents: parts.CatBoostParts) -> tuple[Any, ...]:
    names = _entry(contents.info.get("class_params"), "class_names")
    kind = str(_entry(contents.info.get("class_params"), "class_label_type"))
    if not isinstance(names, list) or len(names) != max(2, len(contents.bias)):
        return ()
    make, types = _LABELS.get(kind, (str, ()))
    if not all(type(name) in types for name in names):
        damaged(f"its labels are not of the type {kind[:40]!r}")
    return tuple(make(name) for name in names)


_MODELS = detects("catboost.core.CatBoost")
register(Frontend("catboost", (".cbm",), _MODELS, load, load_bytes, refuse))
