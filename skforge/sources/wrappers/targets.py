"""TransformedTargetRegressor and MultiOutput*: answers as other targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from skforge.compiler.frontends.members import kind_of
from skforge.sources.base import Array
from skforge.sources.wrappers.nodes import Node

_FUNCTION = "sklearn.preprocessing._function_transformer.FunctionTransformer"


class TransformedTarget(Node):
    """``TransformedTargetRegressor.predict``: the inverse of its transformer."""

    def __init__(self, model: Any, members: Sequence[Node]) -> None:
        super().__init__(model, members)
        (self._member,) = members
        transformer = model.transformer_
        self._inverse = transformer.inverse_transform
        self._function = None
        if kind_of(transformer) == _FUNCTION and transformer.inverse_func is not None:
            self._function = transformer.inverse_func
            self._options = transformer.inv_kw_args or {}
        self._flat = model._training_dim == 1

    def answer(self, method: str, raw: Array) -> Any:
        """Transform back what the regressor predicts."""
        found = self._member.answer(method, raw)
        column = found.reshape(-1, 1) if found.ndim == 1 else found
        if self._function is not None and np.isfinite(column).all():
            answer = self._function(column, **self._options)
        else:
            answer = self._inverse(column)
        if self._flat and answer.ndim == 2 and answer.shape[1] == 1:
            return answer.squeeze(axis=1)
        return answer


class MultiOutput(Node):
    """``MultiOutputRegressor`` and ``MultiOutputClassifier``: a model a target."""

    def answer(self, method: str, raw: Array) -> Any:
        """Return the answers of all members."""
        found = [one.answer(method, raw) for one in self.members]
        return np.asarray(found).T if method == "predict" else found
