"""What is kept of a model that is not: its forest, its labels, the rows it takes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NoReturn

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import (
    ClassifierTags,
    InputTags,
    RegressorTags,
    Tags,
    TargetTags,
    TransformerTags,
    get_tags,
)

from skforge.compiler.forest.forest import Forest
from skforge.exceptions import SourceNeededError, UnsupportedModelError

#: Methods of a wrapper that a model may have.
METHODS = (
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "score_samples",
    "apply",
    "score",
)

#: Fitted attributes worth keeping, where they hold plain values.
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


@dataclass(frozen=True, eq=False)
class StoredModel:
    """A forest with everything its source's methods need beyond it, as plain data.

    It stands where the source model stood in a ``CompiledForest`` that was loaded
    from a ``.skforge`` file or made by ``drop_estimator``.

    Attributes
    ----------
    forest : Forest
        What the model computes.
    class_name : str
        Name of the model's class.
    kind : str
        Which rules its rows follow.
    rules : dict
        What these rules depend on.
    methods : tuple of str
        The methods that are kept.
    attributes : dict
        Fitted attributes.
    tags : dict
        The model's tags for scikit-learn.
    """

    forest: Forest
    class_name: str
    kind: str = "forest"
    rules: Mapping[str, Any] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return one line: it appears in the repr of the wrapper."""
        return f"<StoredModel of {self.class_name}: {self.forest!r}>"

    def __getattr__(self, name: str) -> Any:
        """Return a fitted attribute of the model that is not kept itself."""
        if not name.startswith("__"):  # copies and pickles ask before there is a state
            kept = self.__dict__.get("attributes", {})
            if name in kept:
                return kept[name]
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}"
        )

    def offers(self, name: str) -> bool:
        """Tell whether a method is kept."""
        return name in self.methods

    def explain(self, name: str) -> None:
        """Say where an attribute went, if the source has it."""
        if name == "estimator_" or name in self.rules.get("left_out", ()):
            self.refuse(name)

    def refuse(self, what: str, why: str = "") -> NoReturn:
        """Raise the one error of whatever needs the source."""
        raise SourceNeededError(
            f"{what} needs the {self.class_name} itself, which this CompiledForest "
            f"was saved without{why and ': ' + why}; use the original model."
        )

    def sklearn_tags(self) -> Tags:
        """Return the tags of the model."""
        return tags_from(self.tags)


#: The parts of ``Tags`` that are dataclasses, by name.
_PARTS: dict[str, Any] = {
    "target_tags": TargetTags,
    "transformer_tags": TransformerTags,
    "classifier_tags": ClassifierTags,
    "regressor_tags": RegressorTags,
    "input_tags": InputTags,
}


def plain_tags(tags: Tags) -> dict[str, Any]:
    """Return tags as a dict of booleans, texts and dicts of them."""
    return {name: value for name, value in asdict(tags).items() if _is_json(value)}


def tags_from(kept: Mapping[str, Any]) -> Tags:
    """Return the tags that :func:`plain_tags` saw; unknown ones are dropped."""
    tags = get_tags(BaseEstimator())
    known = {one.name for one in fields(Tags)}
    for name, value in kept.items():
        part = _PARTS.get(name)
        optional = value is None and name not in ("target_tags", "input_tags")
        if part is not None and not isinstance(value, Mapping) and not optional:
            raise ValueError(f"{name} is no record")
        if part is not None and value is not None:
            names = {one.name for one in fields(part)}
            value = {key: one for key, one in value.items() if key in names}
            if name == "target_tags":
                value = {"required": False, **value}
            value = part(**value)
        if name in known:
            setattr(tags, name, value)
    return tags


def _is_json(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and _is_json(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or type(value) in (bool, int, str)


def kept_attributes(model: Any) -> dict[str, Any]:
    """Return the fitted attributes that can be kept.

    Raises
    ------
    UnsupportedModelError
        If the labels are of a kind that cannot be.
    """
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
                f"The classes_ of {type(model).__name__} are no numbers, booleans or "
                "strings, so they cannot be stored; use joblib.dump."
            )
    return kept


def _plain_value(value: Any) -> Any:
    """Return a copy of plain values that shares nothing; None for all others."""
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
