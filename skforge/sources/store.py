"""Makes a :class:`StoredModel` from a live model, and checks one read from a file."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
from sklearn.utils import Tags

from skforge.compiler.forest.forest import Forest
from skforge.compiler.frontends.base import last_step
from skforge.exceptions import UnsupportedModelError
from skforge.sources.base import are
from skforge.sources.delegation import start_of
from skforge.sources.find import adapter_of, source_of
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
    if predictor is None:
        source = source_of(model, forest, start_of(wrapper))
    else:
        source = predictor.source
    kind, rules = source.describe()
    left_out = []
    own_score = getattr(type(last_step(model)), "score", None)
    if own_score is not None and own_score.__module__ != "sklearn.base":
        left_out.append("score")
    if source.own_log_proba:
        left_out.append("predict_log_proba")
    is_file = isinstance(model, (str, bytes, os.PathLike))
    return StoredModel(
        forest,
        "model file" if is_file else type(model).__name__,
        kind,
        {**rules, "left_out": left_out},
        tuple(n for n in METHODS if hasattr(wrapper, n) and n not in left_out),
        _kept_attributes(model) if hasattr(model, "fit") else {},
        plain_tags(tags),
    )


def _kept_attributes(model: Any) -> dict[str, Any]:
    """Return the fitted attributes that can be kept; raise if the labels cannot be."""
    kept: dict[str, Any] = {}
    for name in ATTRIBUTES:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = getattr(model, name)
        except Exception:  # noqa: BLE001 - properties raise what they like
            continue
        value = _plain_value(value)
        if value is not None:
            kept[name] = value
        elif name == "classes_":
            raise UnsupportedModelError(
                f"The classes_ of {type(model).__name__} are not numbers, booleans or "
                "strings, so they cannot be stored; use joblib.dump."
            )
    return kept


def _plain_value(value: Any) -> Any:
    """Return a deep copy of plain values; None for all others."""
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):
        parts = [_plain_value(one) for one in value]
        return None if any(one is None for one in parts) else parts
    if not isinstance(value, np.ndarray):
        return None
    if value.dtype.kind in "biufSU" and value.dtype.isnative and value.dtype.itemsize:
        return np.array(value) if value.dtype.char != "g" else None
    plain = (bool, int, float, str)
    if value.dtype.kind == "O" and value.ndim == 1:
        return np.array(value) if all(type(v) in plain for v in value) else None
    return None


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
    if not _labels_fit(model.attributes.get("classes_"), forest):
        raise ValueError("the labels do not fit the forest")
    model.sklearn_tags()
    adapter(model, forest)


def _labels_fit(labels: Any, forest: Forest) -> bool:
    """Tell whether there is a label for every class index that can be looked up."""
    if forest.source not in ("sklearn", "lightgbm") or labels is None:
        return True
    if not forest.classifies:
        return True
    if type(labels) is list:
        sizes = forest.output_sizes
        arrays = all(isinstance(one, np.ndarray) and one.ndim == 1 for one in labels)
        return len(sizes) > 1 and arrays and [*map(len, labels)] == [*sizes]
    if not isinstance(labels, np.ndarray) or labels.ndim != 1:
        return False
    if forest.n_outputs > 1:
        return len(labels) == forest.n_outputs
    of_two = forest.outputs.function == "expit"
    return len(labels) == 2 or (len(labels) == 1 and not of_two)
