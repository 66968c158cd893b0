"""XGBoost: its files, Boosters and the scikit-learn wrappers.

Everything is read from the model document, so files need no xgboost. Numbers follow
XGBoost's CPU predictor: float32 rows and sums, ``x < threshold`` goes left.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from skforge._typing import Array
from skforge.exceptions import InvalidModelError, UnsupportedModelError
from skforge.forest.forest import Forest
from skforge.forest.outputs import (
    EXPECTILE_GAP,
    Labels,
    Objective,
    OutputFunction,
    OutputSpec,
    Task,
)
from skforge.forest.validation import damaged, first_true
from skforge.frontends import checks
from skforge.frontends.arrays import Ints
from skforge.frontends.base import Frontend, detects, is_a, register
from skforge.frontends.content import OLD_XGBOOST, XGBOOST_PICKLE
from skforge.frontends.xgboost import old_binary
from skforge.frontends.xgboost import ubjson as _ubjson
from skforge.frontends.xgboost.trees import in_order, tree_arrays
from skforge.runtime.libm import expm1, log, on_arm

_SCORES = Objective("identity")
#: From 3.4 on, XGBoost sorts quantiles that cross.
_QUANTILES = Objective("sorted")
_OBJECTIVES: dict[str, Objective] = {
    name: objective
    for names, objective in (
        ("reg:squarederror reg:linear reg:squaredlogerror", _SCORES),
        ("reg:absoluteerror reg:pseudohubererror", _SCORES),
        ("reg:quantileerror", _QUANTILES),
        ("reg:expectileerror", Objective("expectiles", link="increments")),
        ("reg:logistic", Objective("sigmoid", link="logit")),
        ("reg:gamma reg:tweedie count:poisson", Objective("exp", link="log")),
        ("survival:cox survival:aft", Objective("exp", link="log")),
        ("binary:logistic", Objective("sigmoid", "binary", "logit")),
        ("binary:logitraw", Objective("identity", "binary")),
        ("binary:hinge", Objective("hinge", "binary")),
        ("multi:softmax", Objective("argmax", "multiclass")),
        ("multi:softprob", Objective("softmax", "multiclass")),
        ("rank:pairwise rank:ndcg rank:map", Objective("identity", "ranking")),
    )
    for name in names.split()
}
_KNOWN = checks.known_fields("xgboost")


def forest_from_document(
    document: Any,
    iteration_range: checks.IntRange | None = None,
    missing: float = math.nan,
    in_place: bool = False,
) -> Forest:
    """Build the forest of a decoded document that ``save_model`` wrote.

    ``iteration_range`` is boosting rounds ``[begin, end)``, with ``end == 0`` for all
    from ``begin``; ``missing`` is the value that marks missing values in rows.
    ``in_place`` follows ``inplace_predict``, as the wrappers do, instead of
    ``Booster.predict``: they differ in the last bits of DART models up to 3.2.
    """
    learner = _member(document, "learner", dict, "The document")
    booster, weights, nested = _booster_of(learner)
    model = booster["model"]
    param = _member(learner, "learner_model_param", dict, "learner")
    for where, fields in (
        ("learner", learner),
        ("learner.learner_model_param", param),
        ("gradient_booster", booster),
        ("gradient_booster.model", model),
    ):
        if unknown := fields.keys() - _KNOWN[where]:
            checks.refuse_unknown(f"{where} has the unknown field {min(unknown)!r}")
    objective, n_outputs = _objective_of(learner), _n_outputs(param)
    n_features = _integer(param, "num_feature")
    if _keeps_order(objective, n_outputs, _version(document)):
        objective = _SCORES._replace(task=objective.task)

    trees = _member(model, "trees", list, "gradient_booster.model")
    info = _member(model, "tree_info", (list, np.ndarray), "gradient_booster.model")
    counts = _member(model, "gbtree_model_param", dict, "gradient_booster.model")
    announced = _integer(counts, "num_trees", len(trees))
    _check_trees("tree_info", len(info), len(trees))
    _check_trees("num_trees", announced, len(trees))
    if weights is not None:
        _check_trees("weight_drop", len(weights), len(trees))
    trees = in_order(trees)
    steps = _first_trees(model, n_outputs, len(trees))
    keep = slice(int(steps[0]), len(trees))  # XGBoost reads none before the first round
    if (rounds := checks.chosen_rounds(iteration_range, len(steps) - 1)) is not None:
        keep = slice(int(steps[rounds[0]]), int(steps[rounds[1]]))
    with np.errstate(invalid="ignore"):  # validate() reports NaNs
        arrays = tree_arrays(trees[keep], n_outputs)
    vector = arrays["leaf_value"].shape[1] > 1
    group = _integers(info, "tree_info")[keep]
    unestimated = not trees and _integer(param, "boost_from_average", 0) == 1
    if unestimated and objective.link != "identity":
        raise UnsupportedModelError(
            "The model has no trees and no base_score, so its predictions depend on "
            "the version of XGBoost. Train it for at least one round."
        )
    base = _base(param, objective.link, n_outputs)
    if weights is not None:
        if nested and vector:
            damaged("DART of XGBoost up to 3.2 has no vector leaves")
        _check_groups(group, n_outputs)
        start = base if in_place else np.zeros_like(base)
        _scale_by_dropout(arrays, weights[keep], start[group] if nested else None)
    task, names = objective.task, learner.get("feature_names") or None
    if task == "binary" and n_outputs > 1:
        task = "multilabel"
    return Forest(
        **arrays,
        tree_output=(np.full(len(group), -1) if vector else group).astype(np.int32),
        n_features=n_features,
        base=base,
        outputs=_outputs(objective.function, task, n_outputs),
        task=task,
        source="xgboost",
        missing_value=missing,
        feature_names=tuple(map(str, names)) if isinstance(names, list) else None,
        category_names=_category_names(model, n_features, _version(document)),
        parallel_trees=_parallel_trees(steps, 1 if vector else n_outputs),
    )


def _booster_of(
    learner: dict[str, Any],
) -> tuple[dict[str, Any], NDArray[np.float32] | None, bool]:
    """Return the fields with the trees, and the weights of DART's trees.

    Up to XGBoost 3.2 these fields are nested in others, which tells such a model.
    """
    booster = _member(learner, "gradient_booster", dict, "learner")
    kind = _member(booster, "name", str, "gradient_booster")
    dropped = booster.get("weight_drop")
    nested = kind == "dart" and "model" not in booster
    if nested:
        booster = booster | _member(booster, "gbtree", dict, "gradient_booster")
    else:
        _refuse_booster(kind)
    model = _member(booster, "model", dict, "gradient_booster")
    dropped = model.get("weight_drop", dropped)  # since 3.4 in a gbtree too
    if kind != "dart" and dropped is None:
        return booster, None, nested
    return booster, _floats(dropped, "weight_drop"), nested


def _objective_of(learner: dict[str, Any]) -> Objective:
    name = _member(learner, "objective", dict, "learner").get("name")
    objective = _OBJECTIVES.get(name) if isinstance(name, str) else None
    if objective is None:
        raise UnsupportedModelError(
            f"The objective {name!r} is not built into XGBoost, "
            "so its predictions cannot be reproduced."
        )
    return objective


def _keeps_order(
    objective: Objective, n_outputs: int, version: tuple[int, ...]
) -> bool:
    """Tell whether outputs that others sort or add up stay as they are."""
    if n_outputs == 1 and objective.function in ("sorted", "expectiles"):
        return True
    return objective is _QUANTILES and version < (3, 4)


def _n_outputs(param: dict[str, Any]) -> int:
    n_classes = _integer(param, "num_class", 0)
    n_targets = _integer(param, "num_target", 1)
    if n_classes > 1 and n_targets > 1:
        raise UnsupportedModelError(
            f"num_class = {n_classes} together with num_target = {n_targets} is not "
            "supported."
        )
    n_outputs = max(n_classes, n_targets, 1)
    if n_outputs > checks.MAX_OUTPUTS:
        damaged(f"The model has {n_outputs} outputs")
    return n_outputs


def _check_trees(name: str, length: int, n_trees: int) -> None:
    if length != n_trees:
        damaged(f"{name} is for {length} trees, but the model has {n_trees}")


def _check_groups(group: Ints, n_outputs: int) -> None:
    if (at := first_true((group < 0) | (group >= n_outputs))) >= 0:
        damaged(f"tree_info[{at}] = {group[at]} is outside 0..{n_outputs - 1}")


def _refuse_booster(kind: str) -> None:
    if kind not in ("gbtree", "dart"):
        raise UnsupportedModelError(
            f"The booster {kind!r} is not a tree ensemble that can be compiled; train "
            "with booster='gbtree' or 'dart'."
        )


def _scale_by_dropout(
    arrays: dict[str, Any],
    weights: NDArray[np.float32],
    start: NDArray[np.float32] | None,
) -> None:
    """Multiply DART's leaves by their trees' weights, rounding as XGBoost does.

    It adds float32(leaf * weight). Up to 3.2 it predicts each tree on top of a start
    and subtracts it again, so each leaf first loses the bits that this rounds away:
    the start is the base margin for ``inplace_predict``, which the wrappers use, and 0
    for ``Booster.predict``, where -0.0 becomes 0.0.
    """
    tree = np.repeat(np.arange(len(weights)), np.diff(arrays["tree_offset"]))
    tree = tree[arrays["leaf"] >= 0]
    value = arrays["leaf_value"]
    if start is not None:
        first = start[tree][:, np.newaxis]
        value = (first + value) - first
    factor = weights[tree][:, np.newaxis]
    arrays["leaf_value"] = product = value * factor
    if on_arm() and (product != value.astype(np.float64) * factor).any():
        raise UnsupportedModelError(
            "On Arm, XGBoost multiplies DART's leaves by weights and adds them with "
            "one rounding, as skforge does not; use XGBoost, or train without dropout."
        )


def _outputs(function: OutputFunction, task: Task, n_outputs: int) -> OutputSpec:
    if function == "argmax":  # the wrapper applies SciPy's softmax to margins
        return OutputSpec(
            function, probabilities="softmax", labels="index", named=False
        )
    # two columns are read as two labels, each thresholded at one half
    chooses = task == "multiclass" and n_outputs > 2
    return OutputSpec(
        function,
        probabilities="values" if n_outputs > 1 else "complement",
        labels="best" if chooses else "half",
        named=False,
    )


def _version(document: dict[str, Any]) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in document["version"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return ()


def _base(param: dict[str, Any], link: str, n_outputs: int) -> NDArray[np.float32]:
    """Return the start margins of sums: base_score through the objective's link.

    Up to 3.0 ``base_score`` is one number, "5E-1"; since then a list, "[5E-1]".
    """
    text = param.get("base_score", "5E-1")
    try:
        values = np.atleast_1d(json.loads(str(text), parse_int=_int64))
        score = _floats(values, "base_score")
    except (ValueError, RecursionError):
        damaged(f"base_score is {text!r:.60}")
    if len(score) not in (1, n_outputs):
        damaged(f"base_score has {len(score)} values for {n_outputs} outputs")
    score = np.repeat(score, n_outputs) if len(score) == 1 else score
    # XGBoost clips probabilities to this distance from 0 and 1.
    unit, edge = np.float32(1), np.float32(1e-6)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if link == "logit":
            inside = np.clip(score, edge, unit - edge)
            inside[(score < 0) | (score > unit)] = np.nan  # not a probability: refused
            score = -log(unit / inside - unit)
        elif link == "log":
            score = log(score)
        elif link == "increments":  # of expectiles, through softplus's inverse
            least = np.float32(EXPECTILE_GAP)
            gaps = np.maximum(np.diff(score) - least, least)
            score = np.append(score[:1], gaps + log(-expm1(-gaps)))
    if np.isnan(score).any():
        _refuse_base(text, link)
    return score


def _refuse_base(text: Any, link: str) -> NoReturn:
    if link != "log":
        damaged(f"base_score is {text!r:.60}")
    raise InvalidModelError(
        f"base_score is {text!r:.60}, which has no logarithm, so that XGBoost predicts "
        "NaN for all rows; train the model with a positive base_score."
    )


def _int64(text: str) -> int:
    """Return a whole number; refuse one that would overflow in XGBoost."""
    if not -(2**63) <= int(text) < 2**63:
        raise ValueError(text)
    return int(text)


def _first_trees(model: dict[str, Any], n_outputs: int, n_trees: int) -> Ints:
    """Return the first tree of each boosting round, and the end of the last."""
    if "iteration_indptr" not in model:
        param = model["gbtree_model_param"]
        layer = max(_integer(param, "num_parallel_tree", 1), 1) * n_outputs
        return np.arange(0, n_trees + 1, layer)
    listed = _integers(model["iteration_indptr"], "iteration_indptr")
    steps = listed if len(listed) else np.zeros(1, np.int64)
    if steps[-1] != n_trees or (np.diff(steps) < 0).any() or (steps < 0).any():
        damaged(
            "iteration_indptr has to rise from round to round and to end at "
            f"{n_trees}, the number of trees, but is {listed.tolist()!s:.60}"
        )
    return steps


def _parallel_trees(steps: Ints, n_outputs: int) -> int:
    """Return the trees of a round for each output: 0 for one, -1 if rounds differ."""
    counts = np.unique(np.diff(steps))
    if not len(counts):
        return 0
    each, odd = divmod(int(counts[0]), n_outputs)
    return -1 if len(counts) > 1 or odd or not each else each if each > 1 else 0


#: Of categories that are whole numbers, by the number of their type.
_INDEX_DTYPES = {
    **{9: "int8", 11: "int16", 13: "int32", 15: "int64"},
    **{10: "uint8", 12: "uint16", 14: "uint32", 16: "uint64"},
}


def _category_names(
    model: dict[str, Any], n_features: int, version: tuple[int, ...]
) -> tuple[tuple[str | int, ...], ...]:
    cats = model.get("cats")
    encoded = cats.get("enc") if isinstance(cats, dict) else None
    if not isinstance(encoded, list) or not encoded:
        return ()
    if (known := len(encoded)) != n_features:
        damaged(f"cats.enc is for {known} features, but the model has {n_features}")
    return tuple(_names_of(entry, version) for entry in encoded)


def _names_of(entry: Any, version: tuple[int, ...]) -> tuple[str | int, ...]:
    values = np.asarray(_member(entry, "values", (list, np.ndarray), "cats.enc"))
    if "offsets" not in entry:
        # UBJSON has no type for whole numbers without sign beyond 8 bits
        dtype = _INDEX_DTYPES.get(entry.get("type"), "")
        bits = int(dtype[4:]) if dtype.startswith("uint") else 0
        return tuple(v % (1 << bits) if bits else v for v in values.tolist())
    ends = _integers(entry["offsets"], "offsets").tolist()
    text = bytes(_integers(values, "values").astype(np.uint8).tolist())
    with suppress(UnicodeDecodeError):
        if text.isascii() or version >= (3, 4):
            return tuple(text[a:b].decode() for a, b in pairwise(ends))
    # XGBoost before 3.4 cuts names after as many bytes as they have characters, and
    # those of rows too: names that no row has stand for them, and it answers itself
    return tuple(f"\ufffd{code}" for code in range(len(ends) - 1))


def index_dtypes(booster: Any) -> tuple[str, ...]:
    trees = _ubjson.loads(bytes(booster.save_raw("ubj")))["learner"]["gradient_booster"]
    encoded = trees.get("gbtree", trees)["model"]["cats"]["enc"]
    return tuple(_INDEX_DTYPES.get(entry.get("type"), "") for entry in encoded)


def _member(parent: Any, name: str, kind: Any, where: str) -> Any:
    value = parent.get(name) if isinstance(parent, dict) else None
    if not isinstance(value, kind):
        raise InvalidModelError(
            f"{where} has no {name}, so it is not an XGBoost model; save it with "
            "Booster.save_model."
        )
    return value


def _integer(param: dict[str, Any], name: str, default: int | None = None) -> int:
    value = param.get(name, default)
    try:
        number = int(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = -1
    if not 0 <= number < 2**31:
        damaged(f"{name} is {value!r:.60}")
    return number


def _integers(values: Any, name: str) -> Ints:
    return _list(values, name, "integers", "iu").astype(np.int64)


def _floats(values: Any, name: str) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return _list(values, name, "numbers", "iuf").astype(np.float32)


def _list(values: Any, name: str, what: str, kinds: str) -> Array:
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.array("ragged")
    if array.ndim != 1 or (array.dtype.kind not in kinds and array.size):
        damaged(f"{name} is not a list of {what}")
    return array


def _attributes(document: Any) -> dict[str, Any]:
    learner = document.get("learner") if isinstance(document, dict) else None
    attributes = learner.get("attributes") if isinstance(learner, dict) else None
    return attributes if isinstance(attributes, dict) else {}


def _best_rounds(attributes: dict[str, Any]) -> checks.IntRange | None:
    best = attributes.get("best_iteration")
    if best is None:
        return None
    try:
        return 0, int(best) + 1
    except (TypeError, ValueError, OverflowError):
        damaged(f"best_iteration is {best!r:.60}")


def _reader_of(data: bytes) -> Callable[[bytes], Any]:
    if OLD_XGBOOST.match(data):
        return old_binary.document_of
    # UBJSON's objects begin with a name's length
    return _ubjson.loads if re.match(rb"\{[^\s\"}]", data) else checks.read_json


def load_bytes(data: bytes, iteration_range: checks.IntRange | None = None) -> Forest:
    missing, by_wrapper = math.nan, False
    if XGBOOST_PICKLE.match(data):
        from skforge.frontends.xgboost.pickled import pickled_model

        by_wrapper = b"xgboost.sklearn" in data[:64]
        data, missing = pickled_model(data)
    document: Any = _reader_of(data)(data)
    attributes = _attributes(document)
    by_wrapper = by_wrapper or "scikit_learn" in attributes
    if iteration_range is None and by_wrapper:
        iteration_range = _best_rounds(attributes)
    return forest_from_document(document, iteration_range, missing, by_wrapper)


def _task_of_wrapper(model: Any, forest: Forest) -> Task:
    """Return the task of the wrapper's class, whatever its objective is."""
    if is_a(model, "xgboost.sklearn.XGBClassifier"):
        if forest.task in ("binary", "multiclass", "multilabel"):
            return forest.task
        return "binary" if forest.n_outputs == 1 else "multilabel"
    return "ranking" if is_a(model, "xgboost.sklearn.XGBRanker") else "regression"


def refuse(model: Any) -> None:
    if is_a(model, "xgboost.sklearn.XGBModel"):
        checks.refuse_override(model, "xgboost.sklearn")
        _refuse_booster(model.booster or "gbtree")


def _document(booster: Any) -> Any:
    try:
        return _ubjson.loads(bytes(booster.save_raw("ubj")))
    except ValueError as error:  # XGBoostError
        raise InvalidModelError(
            "XGBoost cannot save this Booster, so it is empty, or its base_score does "
            "not fit: train it, or call its load_model."
        ) from error


def load(model: Any, iteration_range: checks.IntRange | None = None) -> Forest:
    if is_a(model, "xgboost.core.Booster"):
        return forest_from_document(_document(model), iteration_range)
    if not model.__sklearn_is_fitted__():
        checks.refuse_unfitted(model)
    checks.refuse_override(model, "xgboost.sklearn")
    document = _document(model.get_booster())
    if iteration_range is None:
        iteration_range = _best_rounds(_attributes(document))
    missing = math.nan if model.missing is None else float(model.missing)
    forest = forest_from_document(document, iteration_range, missing, in_place=True)
    task = _task_of_wrapper(model, forest)
    outputs = _outputs(forest.outputs.function, task, forest.n_outputs)
    if is_a(model, "xgboost.sklearn.XGBClassifier"):
        labels = _labels_of_wrapper(model, forest)
        outputs = replace(outputs, labels=labels or outputs.labels)
    return replace(forest, task=task, outputs=outputs)


def _labels_of_wrapper(model: Any, forest: Forest) -> Labels | None:
    """Return how a classifier chooses classes of several outputs, by its attributes.

    They may be another model's than the Booster's: of a training that has failed, say.
    """
    n_classes, n_outputs = getattr(model, "n_classes_", None), forest.n_outputs
    takes_places = forest.outputs.function == "argmax"
    if takes_places != (model.objective == "multi:softmax"):
        raise UnsupportedModelError(
            f"The classifier's objective is {model.objective!r}, but its Booster was "
            "trained for another one. Train it anew, or give its Booster."
        )
    if takes_places or n_outputs == 1 or n_classes is None:
        return None
    if n_classes not in (2, n_outputs):
        raise UnsupportedModelError(
            f"The classifier's n_classes_ is {n_classes}, but its Booster has "
            f"{n_outputs} outputs. Train it anew, or give its Booster."
        )
    return "half" if n_classes == 2 else "best"


_MODELS = detects("xgboost.core.Booster", "xgboost.sklearn.XGBModel")
register(Frontend("xgboost", (".json", ".ubj"), _MODELS, load, load_bytes, refuse))
