"""Wrappers and their parts as plain data: calibrators, encoders of labels, scalers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np

from skforge.compiler.frontends import base, members
from skforge.sources.stored_model import StoredModel

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
