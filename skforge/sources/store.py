"""Makes a :class:`StoredModel` from a live model, and checks one read from a file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import sklearn
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, get_tags

from skforge.compiler.forest.forest import Forest
from skforge.compiler.frontends.base import last_step
from skforge.compiler.frontends.members import (
    WRAPPERS,
    fitted_members,
    is_wrapper,
    kind_of,
)
from skforge.exceptions import UnsupportedModelError
from skforge.sources.base import METHODS as DIRECT
from skforge.sources.base import Source, UnsureError, adapter_of, are
from skforge.sources.delegation import start_of
from skforge.sources.find import source_of
from skforge.sources.stored_model import METHODS, StoredModel, plain_tags

#: Fitted attributes that are kept if their values are plain.
ATTRIBUTES = (
    "classes_",
    "n_classes_",
    "n_features_in_",
    "feature_names_in_",
    "n_outputs_",
    "feature_importances_",
    "n_estimators_",
    "n_iter_",
    "offset_",
    "max_samples_",
    "best_iteration",
    "best_iteration_",
    "best_score",
    "objective_",
)

#: Rows of scores for which parts read from a file must give answers.
_TRIED = 64

#: Parameters of wrappers with models that are not fitted.
_PARAMS = ("estimator", "regressor", "estimators")

#: Modules of scikit-learn with calibrators, encoders of labels and scalers of targets.
_PARTS = {
    "sklearn.calibration",
    "sklearn.isotonic",
    "sklearn.multiclass",
    "sklearn.preprocessing._data",
    "sklearn.preprocessing._function_transformer",
    "sklearn.preprocessing._label",
}


def store(wrapper: Any, model: Any, tags: Tags) -> StoredModel:
    """Return the plain data to keep of a fitted ``CompiledForest``'s model.

    Raises
    ------
    UnsupportedModelError
        If this model's rows cannot be converted without the model.
    """
    if isinstance(model, StoredModel):
        return model
    forest = wrapper.forest_
    predictor = wrapper.__dict__.get("_predictor")  # its source knows forms of rows
    known = None if predictor is None else predictor.source
    source: Source = known or source_of(model, forest, start_of(wrapper))
    for dtype in (np.float32, np.bool_, np.object_):  # no steps will be left to fold
        form = source.form(source.sample(dtype))
        if form is not None:
            source.of_form(form)
    return _stored(source, model, wrapper, tags)


def _stored(source: Source, model: Any, offering: Any, tags: Tags) -> StoredModel:
    """Return the plain data of a model, with the methods that an object offers."""
    kind, rules = source.describe()
    left_out = []
    own_score = getattr(type(last_step(model)), "score", None)
    if own_score is not None and own_score.__module__ != "sklearn.base":
        left_out.append("score")
    if source.answers.own_log_proba:
        left_out.append("predict_log_proba")
    is_file = isinstance(model, (str, bytes, os.PathLike))
    root = source.answers.root
    stored = StoredModel(
        source.forest,
        "model file" if is_file else type(model).__name__,
        kind,
        {**rules, "left_out": left_out},
        tuple(n for n in METHODS if hasattr(offering, n) and n not in left_out),
        _kept_attributes(model) if hasattr(model, "fit") else {},
        plain_tags(tags),
        None if root is None else _whole(root),
        source.answers.more,
    )
    twins = {
        form: replace(
            stored,
            forest=twin.forest,
            rules={**stored.rules, **twin.describe()[1]},
            more=twin.answers.more,
            attributes={},
            whole=None,
        )
        for form, twin in source.twins.items()
    }
    stored = replace(stored, twins=twins)
    if root is not None:
        try:
            type(source)(stored, source.forest)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(
                f"{stored.class_name} computes its predictions with objects that are "
                "no plain data, such as functions, so it cannot be stored; use "
                "joblib.dump."
            ) from error
    return stored


def _whole(node: Any) -> Any:
    """Return a wrapper with plain attributes alone, around stored members."""
    if node.source is not None:
        return _stored(node.source, node.model, node.model, get_tags(node.model))
    return _bare(node.kept([_whole(member) for member in node.members]))


def _bare(part: Any) -> Any:
    return rebuilt(type(part), bare_state(part))


def bare_state(part: Any) -> dict[str, Any]:
    """Return the plain attributes of a wrapper, or of a part of one, and its parts."""
    state = {}
    for name, value in vars(part).items():
        if name not in _PARAMS or not is_wrapper(part):
            with suppress(TypeError):
                state[name] = _bare_value(value)
    return state


def _bare_value(value: Any) -> Any:
    if value is None or isinstance(value, (StoredModel, np.ufunc)):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value  # NumPy's numbers are not Python's beside float32
    if isinstance(value, (list, tuple)):
        return [_bare_value(item) for item in value]
    if is_part(kind_of(value)):
        return _bare(value)
    plain = _plain_value(value)
    if plain is None:
        raise TypeError
    return plain


def is_part(kind: str) -> bool:
    """Tell whether ``module.Class`` is a wrapper or what one computes answers with."""
    return kind in WRAPPERS or kind.rpartition(".")[0] in _PARTS


def class_of(kind: str) -> type[Any]:
    """Return a class whose objects are parts of wrappers, by ``module.Class``.

    Raises
    ------
    ValueError
        If it is another one, or this scikit-learn has none of this name.
    """
    module, _, name = kind.rpartition(".")
    part = getattr(import_module(module), name, None) if is_part(kind) else None
    if not isinstance(part, type) or part.__module__ != module:
        raise ValueError(f"{kind} is no part of a wrapper")
    return part


def rebuilt(kind: type[Any], state: Mapping[str, Any]) -> Any:
    """Return an object of a class with these attributes, as if it was unpickled.

    Its members are a wrapper's parameters, too, of which scikit-learn asks its tags.
    """
    part: Any = object.__new__(kind)
    if isinstance(part, BaseEstimator):
        part.__setstate__({**state, "_sklearn_version": sklearn.__version__})
    else:
        vars(part).update(state)
    if is_wrapper(part):
        inside = fitted_members(part)
        every = [("", member) for member in inside]
        vars(part).update(zip(_PARAMS, (inside[0], inside[0], every), strict=True))
    return part


def _kept_attributes(model: Any) -> dict[str, Any]:
    """Return the fitted attributes that can be kept; raise if the labels cannot be."""
    attributes: dict[str, Any] = {}
    for name in ATTRIBUTES:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = getattr(model, name)
        except Exception:  # noqa: BLE001 - properties raise what they like
            continue
        value = _plain_value(value)
        if value is not None:
            attributes[name] = value
        elif name == "classes_":
            raise UnsupportedModelError(
                f"The classes_ of {type(model).__name__} are not numbers, booleans or "
                "strings, so they cannot be stored; use joblib.dump."
            )
    return attributes


def _plain_value(value: Any) -> Any:
    """Return a deep copy of plain values; None for all others."""
    if isinstance(value, np.generic):
        value = value.item()
    plain = (bool, int, float, str)
    if type(value) in plain:
        return value
    if isinstance(value, (list, tuple)):
        parts = [_plain_value(item) for item in value]
        return None if any(item is None for item in parts) else parts
    if not isinstance(value, np.ndarray):
        return None
    if value.dtype.kind in "biufSU" and value.dtype.isnative and value.dtype.itemsize:
        return np.array(value) if value.dtype.char != "g" else None
    objects = value.dtype.kind == "O" and value.ndim == 1
    fine = objects and all(type(v) in plain for v in value)
    return np.array(value) if fine else None


def check(model: StoredModel) -> None:
    """Raise ValueError or TypeError unless :func:`store` could have made this model."""
    adapter, rules, forest = adapter_of(model), model.rules, model.forest
    if adapter is None or rules.keys() != {"left_out", *adapter.checks}:
        raise ValueError("the kind or the names of the rules are unknown")
    for name, good in adapter.checks.items():
        if not good(rules[name], forest):
            raise ValueError(f"the rule {name} is of the wrong type or size")
    if not are(str, rules["left_out"]):
        raise ValueError("left_out is not a list of names")
    labels = model.attributes.get("classes_")
    if model.whole is None and not _labels_fit(labels, forest):
        raise ValueError("the labels do not fit the forest")
    model.__sklearn_tags__()
    source = adapter(model, forest)
    for twin in model.twins.values():
        check(twin)
    if model.whole is not None:
        _try_answers(source, model)


def _try_answers(source: Source, model: StoredModel) -> None:
    """Raise ValueError if what a file holds of a wrapper does not give answers."""
    answers, forest = source.answers, source.forest
    width = sum(part.n_outputs for part in (forest, *answers.more))
    raw = np.random.default_rng(0).normal(size=(_TRIED, width)) * 4
    for method in answers.by_members * DIRECT:
        if model.offers(method):
            try:
                with np.errstate(all="ignore"), suppress(UnsureError):
                    answers.of_scores(forest, None)(method, raw)
            except Exception as error:
                raise ValueError(f"its parts give no {method}") from error


def _labels_fit(labels: Any, forest: Forest) -> bool:
    """Tell whether there is a label for every class index that can be looked up."""
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
