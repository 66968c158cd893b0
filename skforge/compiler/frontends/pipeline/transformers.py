"""The transformers that fold, and which column each of their outputs reads.

A transformer folds if every output depends on one input column and never changes the
order of its finite values. Only classes that are known to do so are in the tables;
subclasses are not, as they may override anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from skforge.exceptions import UnsupportedModelError

PIPELINE = "sklearn.pipeline.Pipeline"
UNION = "sklearn.pipeline.FeatureUnion"
COLUMNS = "sklearn.compose._column_transformer.ColumnTransformer"


def class_of(transformer: Any) -> str:
    """Return ``module.Class`` of an object's own class."""
    kind = type(transformer)
    return f"{kind.__module__}.{kind.__qualname__}"


def _same(_transformer: Any, width: int) -> list[int]:
    """Return the numbers of all columns: each output reads its own."""
    return list(range(width))


def _selected(transformer: Any, _width: int) -> list[int]:
    return [int(i) for i in transformer.get_support(indices=True)]


def _imputed(transformer: Any, width: int) -> list[int]:
    """Return the columns that have a fill value, then those with an indicator."""
    kept = np.ones(width, np.bool_)
    if not transformer.keep_empty_features:
        kept = ~np.isnan(np.asarray(transformer.statistics_, np.float64))
    marked = transformer.indicator_.features_ if transformer.add_indicator else []
    return [*map(int, np.flatnonzero(kept)), *map(int, marked)]


def _marked(transformer: Any, _width: int) -> list[int]:
    return [int(i) for i in transformer.features_]


#: By class: the input column that each output reads.
_READS: dict[str, Callable[[Any, int], list[int]]] = {
    "sklearn.preprocessing._data.StandardScaler": _same,
    "sklearn.preprocessing._data.MinMaxScaler": _same,
    "sklearn.preprocessing._data.MaxAbsScaler": _same,
    "sklearn.preprocessing._data.RobustScaler": _same,
    "sklearn.preprocessing._data.Binarizer": _same,
    "sklearn.preprocessing._discretization.KBinsDiscretizer": _same,
    "sklearn.preprocessing._function_transformer.FunctionTransformer": _same,
    "sklearn.impute._base.SimpleImputer": _imputed,
    "sklearn.impute._base.MissingIndicator": _marked,
    "sklearn.feature_selection._variance_threshold.VarianceThreshold": _selected,
    "sklearn.feature_selection._univariate_selection.SelectKBest": _selected,
    "sklearn.feature_selection._univariate_selection.SelectPercentile": _selected,
    "sklearn.feature_selection._univariate_selection.SelectFpr": _selected,
    "sklearn.feature_selection._univariate_selection.SelectFdr": _selected,
    "sklearn.feature_selection._univariate_selection.SelectFwe": _selected,
    "sklearn.feature_selection._univariate_selection.GenericUnivariateSelect": (
        _selected
    ),
    "sklearn.feature_selection._from_model.SelectFromModel": _selected,
    "sklearn.feature_selection._rfe.RFE": _selected,
    "sklearn.feature_selection._rfe.RFECV": _selected,
    "sklearn.feature_selection._sequential.SequentialFeatureSelector": _selected,
}


def reads(transformer: Any, width: int) -> list[int]:
    """Return the input column of each output of a fitted transformer."""
    return _READS[class_of(transformer)](transformer, width)


def refuse(step: str, transformer: Any) -> None:
    """Raise unless a transformer, fitted or not, is one that folds."""
    own = class_of(transformer)
    if own not in _READS:
        _fail(step, transformer, "is not one of the transformers that can be folded")
    if own.endswith(".FunctionTransformer") and transformer.func is not None:
        _fail(step, transformer, "calls a function, which could do anything")
    if own.endswith(".KBinsDiscretizer") and transformer.encode != "ordinal":
        _fail(step, transformer, "makes several columns of one; use encode='ordinal'")
    if own.startswith("sklearn.impute.") and not _is_nan(transformer.missing_values):
        marker = transformer.missing_values
        _fail(step, transformer, f"marks missing values by {marker!r}, not by NaN")


def _is_nan(value: Any) -> bool:
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


def _fail(step: str, transformer: Any, why: str) -> None:
    raise UnsupportedModelError(
        f"The step {step!r} of the pipeline, {type(transformer).__name__}, {why}. "
        "A Forest cannot hold it; CompiledForest(pipeline) runs it in its library."
    )


def is_absent(transformer: Any) -> bool:
    """Tell whether a step of a Pipeline does nothing."""
    return transformer is None or transformer == "passthrough"


def passes_on(transformer: Any) -> bool:
    """Tell whether a step hands its rows on without looking at them."""
    if is_absent(transformer):
        return True
    own = class_of(transformer)
    return own.endswith(".FunctionTransformer") and not transformer.validate


def first_step(steps: list[tuple[str, Any]]) -> Any:
    """Return the first transformer that looks at rows, or None."""
    for _, step in steps:
        if is_absent(step):
            continue
        inner = class_of(step) == PIPELINE
        found = first_step(step.steps) if inner else step
        if found is not None and not passes_on(found):
            return found
    return None


def of_first(pipeline: Any, name: str) -> Any:
    """Return an attribute of the first step that there is, or None."""
    for _, step in pipeline.steps:
        if not is_absent(step):
            inner = class_of(step) == PIPELINE
            return of_first(step, name) if inner else getattr(step, name, None)
    return None


def members(step: str, transformer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and transformers inside one, which need not be fitted."""
    own = class_of(transformer)
    inside: list[tuple[str, Any]]
    if own == PIPELINE:
        inside = list(transformer.steps)
    elif own == UNION:
        inside = list(transformer.transformer_list)
    elif own == COLUMNS:
        inside = [(name, one) for name, one, _ in transformer.transformers]
        inside.append(("remainder", transformer.remainder))
    else:
        yield step, transformer
        return
    if own != PIPELINE and transformer.transformer_weights is not None:
        _fail(step, transformer, "has transformer_weights")
    for name, one in inside:
        if one is not None and not isinstance(one, str):
            yield from members(f"{step}__{name}" if step else name, one)
