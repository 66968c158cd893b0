"""Makes a :class:`StoredModel` from a live model."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils import Tags, get_tags

from skforge._compat import no_warnings
from skforge.compiler.frontends.base import last_step
from skforge.exceptions import UnsupportedModelError
from skforge.sources.base import Source
from skforge.sources.find import source_of
from skforge.sources.fitted import start_of
from skforge.sources.parts import bare, plain_value
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
    """Return plain data of a model; raise if its rows need the model itself."""
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
    rules = source.kept_rules()
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
        source.kind,
        rules,
        tuple(n for n in METHODS if hasattr(offering, n) and n not in left_out),
        _kept_attributes(model) if hasattr(model, "fit") else {},
        plain_tags(tags),
        tuple(left_out),
        source.of_no_rows(),
        None if root is None else _whole(root),
        source.answers.more,
    )
    twins = {
        form: replace(
            stored,
            forest=twin.forest,
            rules=twin.kept_rules(),
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
    if node.source is not None:
        return _stored(node.source, node.model, node.model, get_tags(node.model))
    return bare(node.kept([_whole(member) for member in node.members]))


def _kept_attributes(model: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for name in ATTRIBUTES:
        try:
            with no_warnings():
                value = getattr(model, name)
        except Exception:  # noqa: BLE001 - properties raise what they like
            continue
        value = plain_value(value)
        if value is not None:
            attributes[name] = value
        elif name == "classes_":
            raise UnsupportedModelError(
                f"The classes_ of {type(model).__name__} are not numbers, booleans or "
                "strings, so they cannot be stored; use joblib.dump."
            )
    return attributes
