"""The transformers that fold, and which column each of their outputs reads.

A transformer folds if every output depends on one input column and, between a few
special values of that column, never changes the order of finite values. Only classes
that are known to do so are in the table; subclasses are not, as they may override
anything. *Rough* ones, such as a logarithm, keep the order but for the last digits,
which depend on the library that computes them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from skforge.exceptions import UnsupportedModelError
from skforge.frontends.base import class_name
from skforge.frontends.pipeline import lookups

PIPELINE = "sklearn.pipeline.Pipeline"
UNION = "sklearn.pipeline.FeatureUnion"
COLUMNS = "sklearn.compose._column_transformer.ColumnTransformer"

#: The attributes that hold the parameters of what others are made of.
_PARTS = {PIPELINE: "steps", UNION: "transformer_list", COLUMNS: "transformers"}

_FUNCTION = "FunctionTransformer"
_UNIVARIATE = "feature_selection._univariate_selection"


def _same(_transformer: Any, width: int) -> list[int]:
    return list(range(width))


def _one_hot(transformer: Any, width: int) -> list[int]:
    return np.repeat(np.arange(width), transformer._n_features_outs).tolist()


def _target(transformer: Any, width: int) -> list[int]:
    multiclass = transformer.target_type_ == "multiclass"
    outputs = len(transformer.classes_) if multiclass else 1
    return np.repeat(np.arange(width), outputs).tolist()


def _binned(transformer: Any, width: int) -> list[int]:
    if transformer.encode == "ordinal":
        return _same(transformer, width)
    return _one_hot(transformer._encoder, width)


def _marked(transformer: Any, _width: int) -> list[int]:
    return [int(i) for i in transformer.features_]


def _imputed(transformer: Any, width: int) -> list[int]:
    marks = transformer.add_indicator
    return [*range(width), *(_marked(transformer.indicator_, 0) if marks else [])]


def _markers(transformer: Any, width: int) -> Sequence[Any] | None:
    marker = transformer.missing_values
    return None if _is_nan(marker) or _is_na(marker) else [[marker]] * width


def _turns(transformer: Any, width: int) -> Sequence[Any] | None:
    turns = transformer.func in (np.abs, np.fabs, np.square)
    return [[0.0]] * width if turns else None


def _named(names: str) -> list[Any]:
    return [getattr(np, name) for name in names.split()]


#: NumPy's functions that round the true answer, so that they keep the order of numbers.
_EXACT = _named(
    "positive negative absolute fabs square sqrt sign floor ceil rint trunc "
    "deg2rad rad2deg degrees radians"
)
#: Others whose true answers never change the order.
_ROUGH = _named("log log2 log10 log1p exp exp2 expm1 cbrt sinh arcsinh tanh arctan")

#: The least number that a function takes without a warning, and whether it is taken.
_LEAST = {np.sqrt: (0.0, True), np.log1p: (-1.0, False)}
_LEAST |= dict.fromkeys((np.log, np.log2, np.log10), (0.0, False))


Reads: TypeAlias = Callable[[Any, int], list[int]]


class _TransformerKind(NamedTuple):
    #: Returns the input column of each output.
    reads: Reads = _same
    #: Returns values of each input around which outputs change in any order, or None.
    special: Callable[[Any, int], Sequence[Any] | None] = lambda _transformer, _n: None
    encodes: bool = False  # whether these values are the categories of each input
    scales: bool = False  # whether it calculates with its numbers
    rough: bool = False


def _encoder(reads: Reads) -> _TransformerKind:
    return _TransformerKind(reads, lambda encoder, _: encoder.categories_, encodes=True)


_SCALER = _TransformerKind(scales=True)
_QUANTILES = _TransformerKind(
    _same, lambda known, _: known.quantiles_.T, scales=True, rough=True
)
_SELECTOR = _TransformerKind(lambda t, _: t.get_support(indices=True).tolist())
_KINDS: dict[str, _TransformerKind] = {
    f"sklearn.{module}.{name}": kind
    for kind, module, names in (
        (_SCALER, "preprocessing._data", "StandardScaler MinMaxScaler MaxAbsScaler"),
        (_SCALER, "preprocessing._data", "RobustScaler Binarizer"),
        (_SCALER._replace(rough=True), "preprocessing._data", "PowerTransformer"),
        (_QUANTILES, "preprocessing._data", "QuantileTransformer"),
        (
            _TransformerKind(
                _binned, lambda t, _: None if t.encode == "ordinal" else t.bin_edges_
            ),
            "preprocessing._discretization",
            "KBinsDiscretizer",
        ),
        (
            _TransformerKind(_same, _turns),
            "preprocessing._function_transformer",
            _FUNCTION,
        ),
        (_encoder(_one_hot), "preprocessing._encoders", "OneHotEncoder"),
        (_encoder(_same), "preprocessing._encoders", "OrdinalEncoder"),
        (_encoder(_target), "preprocessing._target_encoder", "TargetEncoder"),
        (_TransformerKind(_imputed, _markers), "impute._base", "SimpleImputer"),
        (_TransformerKind(_marked, _markers), "impute._base", "MissingIndicator"),
        (_SELECTOR, "feature_selection._variance_threshold", "VarianceThreshold"),
        (_SELECTOR, "feature_selection._from_model", "SelectFromModel"),
        (_SELECTOR, "feature_selection._rfe", "RFE RFECV"),
        (_SELECTOR, "feature_selection._sequential", "SequentialFeatureSelector"),
        (_SELECTOR, _UNIVARIATE, "SelectKBest SelectPercentile SelectFpr SelectFdr"),
        (_SELECTOR, _UNIVARIATE, "SelectFwe GenericUnivariateSelect"),
    )
    for name in names.split()
}
_LOOKUP = _encoder(lambda encoder, _: encoder.reads)


def kind_of(transformer: Any) -> _TransformerKind:
    if isinstance(transformer, lookups.Lookup):
        return _LOOKUP
    return _KINDS[class_name(transformer)]


def special_values(transformer: Any, width: int) -> list[Any]:
    values = kind_of(transformer).special(transformer, width)
    return [np.zeros(0)] * width if values is None else [*map(np.asarray, values)]


def numbers_of(special: Any) -> Any:
    return np.unique([value for value in special.tolist() if value is not None])


def is_scaler(transformer: Any) -> bool:
    return kind_of(transformer).scales or function_of(transformer) is not None


def function_of(transformer: Any) -> Any:
    is_one = class_name(transformer).endswith("." + _FUNCTION)
    return transformer.func if is_one else None


def is_rough(transformer: Any) -> bool:
    """Tell whether rounding may change the order of neighbouring outputs."""
    return kind_of(transformer).rough or function_of(transformer) in _ROUGH


def own_dtype(transformer: Any) -> Any:
    """Return the dtype that an encoder was told to return, None for all others.

    A KBinsDiscretizer reads its rows in that dtype, too.
    """
    told = getattr(transformer, "dtype", None) if kind_of(transformer).encodes else None
    return None if told is None else np.dtype(told)


def by_column(transformer: Any) -> bool:
    """Tell whether each column of a frame is transformed in its own dtype."""
    return function_of(transformer) is not None and not transformer.validate


def least(transformer: Any, dtype: Any) -> Any:
    number, taken = _LEAST.get(function_of(transformer), (-np.inf, True))
    if _is_box_cox(transformer):
        number, taken = 0.0, False
    kind = dtype.type if dtype.kind == "f" else np.float64
    return kind(number) if taken else np.nextafter(kind(number), kind(np.inf))


def _is_box_cox(transformer: Any) -> bool:
    return getattr(transformer, "method", "") == "box-cox"


def unclipped(transformer: Any) -> Any:
    if not getattr(transformer, "clip", False):
        return transformer
    copied = copy.copy(transformer)
    copied.clip = False
    return copied


def is_strict(transformer: Any) -> bool:
    """Tell whether an encoder raises an error or warns about unknown categories."""
    rule = getattr(transformer, "handle_unknown", "ignore")
    dropping = getattr(transformer, "drop", None) is not None
    return kind_of(transformer).encodes and (rule in ("error", "warn") or dropping)


def refused_markers(transformer: Any, width: int) -> list[Any]:
    strict = getattr(transformer, "error_on_new", False)
    known = transformer.features_ if strict else range(width)
    return [None if i in known else transformer.missing_values for i in range(width)]


def lenient(transformer: Any) -> Any:
    """Return a transformer that answers for unknown categories, and others as before.

    Outputs for unknown categories mean nothing then.
    """
    marks = hasattr(transformer, "error_on_new")
    if _is_box_cox(transformer):
        copied = copy.copy(transformer)
        copied.transform = lambda rows: transformer.transform(
            np.where(rows > 0, rows, rows.dtype.type(np.nan))
        )
        return copied
    if not marks and not is_strict(transformer):
        return transformer
    if isinstance(transformer, lookups.Lookup):
        return transformer.lenient()
    copied = copy.copy(transformer)
    if marks:  # see refused_markers
        copied.error_on_new = False
        return copied
    if class_name(transformer).endswith(".OneHotEncoder"):
        copied.handle_unknown = "ignore"
    else:
        copied.handle_unknown, copied.unknown_value = "use_encoded_value", -1
    return copied


def texts_of(transformer: Any, width: int) -> list[list[str] | None]:
    """Return the texts of each input, None for numbers; TypeError for anything else."""
    if kind_of(transformer) is _SELECTOR and not _SELECTOR.reads(transformer, width):
        raise TypeError("warns in every call that it selects nothing")
    values = special_values(transformer, width)
    marker = getattr(transformer, "missing_values", np.nan)
    if class_name(transformer).endswith(".SimpleImputer"):
        drops = not transformer.keep_empty_features
        if drops and any(map(_is_nan, transformer.statistics_)):
            raise TypeError("warns in every call about a column without values")
        values = [np.array([fill], object) for fill in transformer.statistics_]
        if isinstance(marker, str):
            values = [np.append(known, marker) for known in values]
    texts = [_texts(known) for known in values]
    if marker is not None:
        return texts
    if None in texts and class_name(transformer).endswith(".SimpleImputer"):
        raise TypeError("marks missing numbers by None")
    return [known or [] for known in texts]  # numbers are never None


def _texts(values: Any) -> list[str] | None:
    present = [value for value in np.asarray(values).tolist() if not is_missing(value)]
    if present and all(isinstance(value, str) for value in present):
        return [str(value) for value in present]
    numbers = (int, float, np.integer, np.floating)
    dates = np.asarray(values).dtype.kind in "mM"  # which a list has as numbers
    if dates or any(isinstance(x, bool) or not isinstance(x, numbers) for x in present):
        raise TypeError("has categories that are neither numbers nor strings")
    return None


def refuse(step: str, transformer: Any) -> None:
    name = class_name(transformer)
    if lookups.is_lookup(transformer):
        if (why := lookups.refusal(transformer)) is not None:
            fail(step, transformer, why)
        return
    if name not in _KINDS:
        fail(step, transformer, "is not one of the transformers that can be folded")
    if function_of(transformer) is not None:
        _refuse_function(step, transformer)
    own = own_dtype(transformer)
    if own is not None and (own.kind not in "fiub" or own.itemsize > 8):
        fail(step, transformer, f"returns columns of dtype {own}")
    if name.startswith("sklearn.impute."):
        marker = transformer.missing_values
        known = marker is None or isinstance(marker, (int, float, str, np.number))
        known = known or (_is_na(marker) and name.endswith(".SimpleImputer"))
        if not known or isinstance(marker, bool):
            fail(step, transformer, f"marks missing values by {marker!r}")


def _refuse_function(step: str, transformer: Any) -> None:
    from sklearn.utils._set_output import _get_output_config

    function = transformer.func
    called = getattr(function, "__name__", repr(function))
    if not any(function is known for known in _EXACT + _ROUGH):
        fail(step, transformer, f"calls {called}")
    if transformer.kw_args:
        fail(step, transformer, f"calls {called} with kw_args")
    output = _get_output_config("transform", transformer)["dense"]
    frames = output == "pandas" and hasattr(transformer, "feature_names_in_")
    frames = frames and not transformer.validate  # which makes arrays of frames
    if output != "default" and not frames:
        fail(step, transformer, f"is set to {output}, and warns that it has arrays")


def is_marker(transformer: Any) -> bool:
    """Tell whether a transformer reads alone where None or NaN is."""
    marks = class_name(transformer).endswith(".MissingIndicator")
    return marks and _is_nan(transformer.missing_values)


def takes_na(transformer: Any) -> bool:
    """Tell whether a transformer takes pandas' NA in a column of texts."""
    if isinstance(transformer, lookups.Lookup):
        return not transformer.keeps_na
    return _is_na(getattr(transformer, "missing_values", None))


def is_missing(value: Any) -> bool:
    return value is None or _is_nan(value) or _is_na(value)


def _is_na(value: Any) -> bool:
    return type(value).__name__ == "NAType"


def _is_nan(value: Any) -> bool:
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


def fail(step: str, transformer: Any, why: str) -> NoReturn:
    if isinstance(transformer, lookups.Lookup):
        transformer = transformer.encoder
    kind = type(transformer).__name__
    cannot_fold(f"The step {step!r} of the pipeline, {kind}, {why}")


def cannot_fold(why: str) -> NoReturn:
    raise UnsupportedModelError(
        f"{why}. The step cannot become part of a Forest; CompiledForest(pipeline) "
        "runs it in its own library."
    )


def is_absent(transformer: Any) -> bool:
    if class_name(transformer) == PIPELINE:
        return all(is_absent(step) for _, step in transformer.steps)
    return transformer is None or transformer == "passthrough"


def passes_on(transformer: Any) -> bool:
    """Tell whether a step hands its rows on without looking at names and shapes."""
    is_one = class_name(transformer).endswith("." + _FUNCTION)
    return is_absent(transformer) or (is_one and not transformer.validate)


def children(transformer: Any) -> list[tuple[str, Any, list[int] | None]]:
    kind = class_name(transformer)
    if kind == COLUMNS:
        taken = transformer._transformer_to_input_indices
        fitted = transformer.transformers_
        return [(name, child, taken[name]) for name, child, _ in fitted]
    parts = getattr(transformer, _PARTS.get(kind, ""), [])
    return [(name, child, None) for name, child in parts]


def _in_turn(steps: list[tuple[str, Any]]) -> Iterator[Any]:
    for _, step in steps:
        if class_name(step) == PIPELINE:
            yield from _in_turn(step.steps)
        elif not is_absent(step):
            yield step


def first_step(steps: list[tuple[str, Any]]) -> Any:
    return next((step for step in _in_turn(steps) if not passes_on(step)), None)


def begins_with_last(steps: list[tuple[str, Any]]) -> bool:
    return all(is_absent(step) for _, step in steps[:-1])


def of_first(steps: list[tuple[str, Any]], name: str) -> Any:
    return getattr(next(_in_turn(steps), None), name, None)


def first_reader(steps: list[tuple[str, Any]]) -> Any:
    first: Any = next(_in_turn(steps), None)
    if class_name(first) != UNION:
        return first
    return first_reader([part for part in first.transformer_list if part[1] != "drop"])


def members(step: str, transformer: Any) -> Iterator[tuple[str, Any]]:
    kind = class_name(transformer)
    if kind not in _PARTS:
        yield step, transformer
        return
    parts = getattr(transformer, _PARTS[kind])
    inside = [(name, child) for name, child, *_ in parts]
    if kind == COLUMNS:
        inside.append(("remainder", transformer.remainder))
    if kind != PIPELINE and transformer.transformer_weights is not None:
        fail(step, transformer, "has transformer_weights")
    for name, child in inside:
        if child is not None and not isinstance(child, str):
            yield from members(f"{step}__{name}" if step else name, child)


def refuse_members(step: str, transformer: Any) -> None:
    for name, child in members(step, transformer):
        refuse(name, child)
