"""scikit-learn's Pipeline: the forest of the last step, on the pipeline's own rows."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from skforge.compiler.forest.arrays import Comparison, Missing
from skforge.compiler.forest.forest import Forest, deduplicate_predicates
from skforge.compiler.frontends import load_forest, read_forests, refuse_untrained
from skforge.compiler.frontends.base import (
    Frontend,
    is_pipeline,
    last_step,
    register,
)
from skforge.compiler.frontends.pipeline.columns import Plan, plan_of
from skforge.compiler.frontends.pipeline.fold import Accepted, accepted, fold
from skforge.compiler.frontends.pipeline.transformers import (
    is_absent,
    members,
    of_first,
)
from skforge.compiler.frontends.pipeline.transformers import (
    refuse as refuse_transformer,
)
from skforge.exceptions import InvalidModelError, UnsupportedModelError


def refuse(model: Any) -> None:
    """Refuse a pipeline that could not be read after fitting."""
    for name, step in model.steps[:-1]:
        if not is_absent(step):
            for inner, transformer in members(name, step):
                refuse_transformer(inner, transformer)
    refuse_untrained(model.steps[-1][1])


@dataclass(frozen=True, slots=True)
class FittedPipeline:
    """A fitted pipeline taken apart."""

    plan: Plan
    #: The last step, and its forest on transformed rows.
    last: Any
    forest: Forest
    accepted: Accepted
    #: Further forests, if the last step is a wrapper around several.
    more: tuple[Forest, ...] = ()


def taken_apart(
    model: Any, iteration_range: tuple[int, int] | None = None
) -> FittedPipeline:
    """Return the parts of a fitted pipeline; raise if it cannot be folded."""
    refuse(model)
    last = last_step(model)
    if iteration_range is None:
        forest, *more = read_forests(last)
    else:
        forest, more = load_forest(last, iteration_range=iteration_range), []
    plan = plan_of(model)
    if len(plan.columns) != forest.n_features:
        raise InvalidModelError(
            f"The steps of the pipeline make {len(plan.columns)} columns, but its last "
            f"step was trained on {forest.n_features}; fit the pipeline as a whole."
        )
    nan = _takes_nan(last, forest.n_features)
    bounds = accepted(plan, forest, nan)
    for one in more:
        bounds = bounds.and_of(accepted(plan, one, nan))
    return FittedPipeline(plan, last, forest, bounds, tuple(more))


def load(model: Any, iteration_range: tuple[int, int] | None = None) -> Forest:
    """Read a fitted pipeline into a forest that takes the pipeline's float64 rows."""
    parts = taken_apart(model, iteration_range)
    return folded(model, parts, parts.forest)


def load_all(model: Any) -> tuple[Forest, ...]:
    """Read all forests of a fitted pipeline that ends in a wrapper."""
    parts = taken_apart(model)
    return tuple(folded(model, parts, one) for one in (parts.forest, *parts.more))


def folded(model: Any, parts: FittedPipeline, forest: Forest) -> Forest:
    """Return a forest of the last step as one that takes the pipeline's rows."""
    plan = parts.plan
    _refuse_tests(forest)
    found = fold(plan, forest, parts.accepted)
    source = np.array([column.source for column in plan.columns], np.int32)
    distinct, index = deduplicate_predicates(
        source[forest.feature],
        found.comparison,
        found.threshold,
        Missing.NAN,
        found.missing_left,
    )
    names = of_first(model, "feature_names_in_")
    fields: dict[str, Any] = {
        **distinct,
        "predicate": np.append(index, np.int32(-1))[forest.predicate],
        "n_features": plan.width,
        "feature_names": None if names is None else tuple(map(str, names)),
        "category_names": (),
    }
    return replace(forest, **fields)


def _refuse_tests(forest: Forest) -> None:
    """Raise for tests of a value that are not monotone."""
    if (forest.comparison > Comparison.GE).any() or any(forest.category_names):
        raise UnsupportedModelError(
            "The last step of the pipeline tests categories, which cannot be folded; "
            "compile the last step alone."
        )
    if (forest.missing == Missing.ZERO).any() or not np.isnan(forest.missing_value):
        raise UnsupportedModelError(
            "The last step of the pipeline treats a number as missing, which cannot "
            "be folded; compile the last step alone."
        )


def _takes_nan(last: Any, width: int) -> bool:
    """Ask the last step whether it accepts missing values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            last.predict(np.full((1, width), np.nan))
        except ValueError:
            return False
    return True


register(
    Frontend(
        "sklearn Pipeline", (), is_pipeline, load, refuse=refuse, load_all=load_all
    )
)
