"""Makes a :class:`StoredModel` of a live model, and checks one read from a file.

Wrappers have parts beside their members: calibrators, encoders of labels and scalers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from skforge._compat import no_warnings
from skforge.exceptions import UnsupportedModelError
from skforge.forest.forest import Forest
from skforge.frontends import base, members
from skforge.frontends.base import last_step
from skforge.runtime.records import fields_of
from skforge.sources.base import METHODS as OF_SCORES
from skforge.sources.base import Source, UnsureError, adapter_of
from skforge.sources.find import source_of
from skforge.sources.fitted import returns_frames, start_of
from skforge.sources.stored_model.model import (
    METHODS,
    StoredModel,
    check_tags,
    plain_tags,
)

if TYPE_CHECKING:
    from sklearn.utils import Tags

#: Fitted attributes that are kept if their values are plain.
ATTRIBUTES = (
    *("classes_", "n_classes_", "n_features_in_", "feature_names_in_", "n_outputs_"),
    *("feature_importances_", "n_estimators_", "n_iter_", "offset_", "max_samples_"),
    *("best_iteration", "best_iteration_", "best_score", "objective_"),
    *("unique_times_", "default_quantiles"),
)

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

#: Rows of scores for which parts read from a file must give answers.
_TRIED = 64


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
    if source.answers.log_proba == "model":
        left_out.append("predict_log_proba")
    # a stored model cannot tell how to name the columns of a frame
    if hasattr(offering, "transform") and not _transforms(source, model):
        left_out.append("transform")
    if hasattr(offering, "get_feature_names_out") and source.kind != "embedding":
        left_out.append("get_feature_names_out")
    if hasattr(offering, "decision_path"):  # leaves alone keep their numbers
        left_out.append("decision_path")
    is_file = isinstance(model, (str, bytes, os.PathLike))
    root = source.answers.root
    stored = StoredModel(
        source.forest,
        "model file" if is_file else type(model).__name__,
        source.kind,
        rules,
        tuple(n for n in METHODS if hasattr(offering, n) and n not in left_out),
        _kept_attributes(model),
        plain_tags(tags),
        tuple(left_out),
        _of_no_rows(source),
        None if root is None else _whole(root),
        source.answers.more,
        leaves=source.leaf_source and fields_of(source.leaf_source.payload),
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


def _of_no_rows(source: Source) -> dict[str, tuple[str, tuple[int, ...]]]:
    answers = source.of_no_rows()
    none = np.empty((0, source.forest.n_columns), "f4")
    for method in ("predict", "predict_proba", "predict_raw", "apply"):
        # about having 0 rows; after an error no answer is kept
        with no_warnings(), suppress(Exception):
            answer = source.call(method, none)
            if answer.dtype.kind in "fiu":
                answers[method] = answer.dtype.str, tuple(answer.shape)
    return answers


def _transforms(source: Source, model: Any) -> bool:
    return source.answers.transforms and not returns_frames(model)


def _whole(node: Any) -> Any:
    from sklearn.utils import get_tags

    if node.source is not None:
        return _stored(node.source, node.model, node.model, get_tags(node.model))
    return bare(node.rebuilt([_whole(member) for member in node.members]))


def _kept_attributes(model: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for name in ATTRIBUTES if hasattr(model, "fit") else ():
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
    booster = getattr(model, "booster_", model)
    if base.is_a(booster, "lightgbm.basic.Booster"):
        best, own = int(booster.best_iteration), attributes.get("best_iteration_", 0)
        if own <= 0 < best < booster.current_iteration():  # the forest ends there
            attributes["best_iteration"] = best
    return attributes


def bare(part: Any) -> Any:
    return rebuilt(type(part), bare_state(part))


def bare_state(part: Any) -> dict[str, Any]:
    state = {}
    for name, value in vars(part).items():
        if name not in _PARAMS or not members.is_wrapper(part):
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
    if is_part(base.class_name(value)):
        return bare(value)
    plain = plain_value(value)
    if plain is None:
        raise TypeError
    return plain


def is_part(kind: str) -> bool:
    return kind in members.WRAPPERS or kind.rpartition(".")[0] in _PARTS


def class_of(kind: str) -> type[Any]:
    module, _, name = kind.rpartition(".")
    part = getattr(import_module(module), name, None) if is_part(kind) else None
    if not isinstance(part, type) or part.__module__ != module:
        raise ValueError(f"{kind} is no part of a wrapper")
    return part


def rebuilt(kind: type[Any], state: Mapping[str, Any]) -> Any:
    """Return a part as if unpickled; scikit-learn asks a wrapper's members for tags."""
    import sklearn

    part: Any = object.__new__(kind)
    if isinstance(part, sklearn.base.BaseEstimator):
        part.__setstate__({**state, "_sklearn_version": sklearn.__version__})
    else:
        vars(part).update(state)
    if members.is_wrapper(part):
        inside = members.fitted_members(part)
        every = [("", member) for member in inside]
        vars(part).update(zip(_PARAMS, (inside[0], inside[0], every), strict=True))
    return part


def plain_value(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    plain = (bool, int, float, str)
    if type(value) in plain:
        return value
    if isinstance(value, (list, tuple)):
        parts = [plain_value(item) for item in value]
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
    adapter, forest = adapter_of(model), model.forest
    if adapter is None or not model.rules.suits(forest):
        raise ValueError("the kind is unknown, or the rules do not fit the forest")
    parts = [(Forest, model.more), (StoredModel, model.twins.values())]
    fit = all(type(part) is kind for kind, every in parts for part in every)
    if not fit or not (model.whole is None or members.is_wrapper(model.whole)):
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
    _ = getattr(source.leaf_source, "payload", None)  # which is checked
    for twin in model.twins.values():
        check(twin)
    if model.whole is not None:
        _try_answers(source, model)


def _try_answers(source: Source, model: StoredModel) -> None:
    answers, forest = source.answers, source.forest
    width = sum(part.n_outputs for part in (forest, *answers.more))
    raw = np.random.default_rng(0).normal(size=(_TRIED, width)) * 4
    if answers.by_members:
        lone = _of_one_class(answers.root)
        raw[:, lone] = -abs(raw[:, lone])
    for method in answers.by_members * OF_SCORES:
        if method in model.methods:
            try:
                with np.errstate(all="ignore"), suppress(UnsureError):
                    answers.of_scores(forest, None)(method, raw)
            except Exception as error:
                raise ValueError(f"its parts give no {method}") from error


def _of_one_class(node: Any) -> list[int]:
    """Return the columns of scores of models that saw one class: none is positive."""
    if node.members:
        return [column for part in node.members for column in _of_one_class(part)]
    lone = len(getattr(node.model, "classes_", ())) == 1
    return [*getattr(node, "columns", ())] if lone else []


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
    return len(labels) in (1, 2)  # one if training had a single class
