"""quantile-forest and scikit-survival: forests that answer with what leaves hold.

The trees are scikit-learn's. A quantile forest keeps the training targets of each leaf;
its raw scores are the means of the trees' values, as those of a regression forest. A
survival tree keeps two curves in each leaf; raw scores are sums of the trees' hazards
at event times, as ``predict`` computes them of several rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from skforge._typing import Array
from skforge.exceptions import UnsupportedModelError
from skforge.forest.forest import Forest
from skforge.forest.leaf_payloads import LANES, LeafCurves, LeafSamples
from skforge.frontends.base import Frontend, detects, is_a, register
from skforge.frontends.checks import IntRange, refuse_override
from skforge.frontends.sklearn import common

QUANTILES = "quantile_forest._quantile_forest.BaseForestQuantileRegressor"
SURVIVAL = "sksurv.ensemble.forest._BaseSurvivalForest", "sksurv.tree.tree.SurvivalTree"

#: Methods of survival models that return curves.
CURVES = "predict_cumulative_hazard_function", "predict_survival_function"

_HAS_SAMPLES, has_payloads = detects(QUANTILES), detects(QUANTILES, *SURVIVAL)


def refuse(model: Any) -> None:
    package = "quantile_forest" if _HAS_SAMPLES(model) else "sksurv"
    for name in ("predict", *CURVES):
        if hasattr(type(model), name):
            refuse_override(model, package, name)


def _refuse_alone(model: Any, rounds: IntRange | None = None) -> Forest:
    raise UnsupportedModelError(
        f"{type(model).__name__} answers with what the training rows left in its "
        "leaves, which a Forest cannot hold; use CompiledForest(model), also around it "
        "as a member of another model."
    )


def load_with_payloads(model: Any) -> Forest:
    """Return the forest of raw scores; its leaves are numbered as the payloads are."""
    refuse(model)
    single = is_a(model, SURVIVAL[1])
    trees = common.trees_of(model)
    values = [tree.value[:, :, 0] for tree in trees]
    if not _HAS_SAMPLES(model):
        if len(model.unique_times_) == 1 and not _has_risks_alone(model):
            raise UnsupportedModelError(
                f"{type(model).__name__} was trained with one time alone, so that its "
                "own predict fails; train it with several times."
            )
        values = [_risks(model, tree.value, of_one=False) for tree in trees]
    n_outputs = values[0].shape[1]
    return common.forest_of(
        model,
        trees,
        values,
        base=np.full(n_outputs, -0.0 if single else 0.0),
        divisor=len(trees),
        task="regression",
        output_sizes=(1,) * n_outputs,
    )


def _leaves(tree: Any) -> Array:
    return np.flatnonzero(tree.children_left < 0)


def samples_of(model: Any) -> LeafSamples:
    """Return the targets of training rows in the leaves of a quantile forest."""
    names = "y_train_leaves", "y_bound_leaves"
    if not hasattr(model.forest_, names[1]):
        raise UnsupportedModelError(
            f"{type(model).__name__} was fitted by quantile-forest before 1.4; fit it "
            "again with a later release."
        )
    held, bounds = (np.asarray(getattr(model.forest_, name)) for name in names)
    targets = np.ascontiguousarray(model.forest_.y_train, np.float64)
    zeros = targets[targets == 0]
    if len(zeros) and len({*np.signbit(zeros)}) > 1:
        raise UnsupportedModelError(
            f"The targets of {type(model).__name__} have 0.0 and -0.0, which it sorts "
            "in any order; add 0.0 to the targets and fit again."
        )
    leaves = [*map(_leaves, common.trees_of(model))]
    of_trees = [held[i, at] for i, at in enumerate(leaves)]
    if model.max_samples_leaf != 1:
        masks = [part != 0 for part in of_trees]
        sizes = np.concatenate([mask.sum(-1).ravel() for mask in masks])
        lists = [part[mask] - 1 for part, mask in zip(of_trees, masks, strict=True)]
        return _samples(sizes, np.concatenate(lists), targets, single=False)
    first = np.concatenate(of_trees)[..., 0] - 1  # of none the last, as there
    columns = np.arange(len(targets))
    values = targets[columns, first]
    if model.monotonic_cst is not None:
        parts = [bounds[i, at] for i, at in enumerate(leaves)]
        low, high = np.concatenate(parts).T
        values = np.clip(values, low[:, None], high[:, None])
    each, places = np.unique(values, return_inverse=True)
    targets = np.tile(each, (len(columns), 1))
    return _samples(np.ones(values.size), places.ravel(), targets, single=True)


def _samples(sizes: Array, places: Array, targets: Array, single: bool) -> LeafSamples:
    starts = np.append(0, np.cumsum(sizes)).astype(np.int64)
    padded = np.append(places, np.zeros(LANES)).astype(np.int32)
    return LeafSamples(starts, padded, targets, single)


def curves_of(model: Any) -> LeafCurves:
    """Return the curves in the leaves of survival trees; those of one tree if alone."""
    values = [tree.value[_leaves(tree)] for tree in common.trees_of(model)]
    risks = np.concatenate([_risks(model, part, of_one=True) for part in values])
    times = np.array(model.unique_times_, np.float64)
    if _has_risks_alone(model):
        return LeafCurves(risks, times, None, None)
    both = [np.concatenate([part[..., k] for part in values]) for k in (0, 1)]
    return LeafCurves(risks, times, *both)


def _has_risks_alone(model: Any) -> bool:
    return bool(getattr(model, "estimators_", [model])[0].low_memory)


def _risks(model: Any, values: Array, *, of_one: bool) -> Array:
    """Return the summed hazards of nodes, as NumPy sums those of one row or of several.

    Several rows lie in memory column by column, and are summed so.
    """
    if _has_risks_alone(model):
        return values[:, :, 0]
    times = model.is_event_time_
    if of_one:
        return np.ascontiguousarray(values[:, times, 0]).sum(1, keepdims=True)
    columns = np.asfortranarray(values[..., 0][:, times])
    if len(columns) == 1:  # a row that is alone would be summed in pairs
        columns = np.asfortranarray(np.repeat(columns, 2, axis=0))
    return columns.sum(1)[: len(values), None]


for _name, _detects in (
    ("quantile-forest", _HAS_SAMPLES),
    ("scikit-survival", detects(*SURVIVAL)),
):
    register(Frontend(_name, (), _detects, _refuse_alone, refuse=refuse))
