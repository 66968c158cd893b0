"""Checks a :class:`StoredModel` that was read from a file."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from skforge.compiler.forest.forest import Forest
from skforge.compiler.frontends.members import is_wrapper
from skforge.sources.base import METHODS, Source, UnsureError, adapter_of
from skforge.sources.stored_model import StoredModel
from skforge.sources.tags import check_tags

#: Rows of scores for which parts read from a file must give answers.
_TRIED = 64


def check(model: StoredModel) -> None:
    """Raise ValueError or TypeError unless :func:`store` could have made this model."""
    adapter, forest = adapter_of(model), model.forest
    if adapter is None or not model.rules.suits(forest):
        raise ValueError("the kind is unknown, or the rules do not fit the forest")
    parts = [(Forest, model.more), (StoredModel, model.twins.values())]
    fit = all(type(part) is kind for kind, every in parts for part in every)
    if not fit or not (model.whole is None or is_wrapper(model.whole)):
        raise ValueError("it is made of other things than models")
    for dtype, shape in model.of_no_rows.values():
        plain = len(dtype) == 3 and dtype[1] in "fiu"
        if not plain or 0 not in shape or min(shape) < 0:
            raise ValueError("an answer to no rows is none")
    labels = model.attributes.get("classes_")
    if model.whole is None and not _labels_fit(labels, forest):
        raise ValueError("the labels do not fit the forest")
    check_tags(model.tags)
    source = adapter(model, forest)
    for twin in model.twins.values():
        check(twin)
    if model.whole is not None:
        _try_answers(source, model)


def _try_answers(source: Source, model: StoredModel) -> None:
    answers, forest = source.answers, source.forest
    width = sum(part.n_outputs for part in (forest, *answers.more))
    raw = np.random.default_rng(0).normal(size=(_TRIED, width)) * 4
    for method in answers.by_members * METHODS:
        if model.offers(method):
            try:
                with np.errstate(all="ignore"), suppress(UnsureError):
                    answers.of_scores(forest, None)(method, raw)
            except Exception as error:
                raise ValueError(f"its parts give no {method}") from error


def _labels_fit(labels: Any, forest: Forest) -> bool:
    known = forest.source in ("catboost", "sklearn", "lightgbm") and forest.classifies
    if labels is None or not known:
        return True
    if type(labels) is list:
        sizes = forest.output_sizes
        arrays = all(isinstance(a, np.ndarray) and a.ndim == 1 for a in labels)
        return len(sizes) > 1 and arrays and [*map(len, labels)] == [*sizes]
    if not isinstance(labels, np.ndarray) or labels.ndim != 1:
        return False
    if forest.n_outputs > 1:
        return len(labels) == forest.n_outputs
    of_two = forest.outputs.function == "expit"
    return len(labels) == 2 or (len(labels) == 1 and not of_two)
