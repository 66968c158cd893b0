"""Labels by a threshold, transformed targets, and several targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.model_selection import FixedThresholdClassifier

from skforge.compiler.frontends.members import TUNED, kind_of
from skforge.sources.base import Array, UnsureError
from skforge.sources.wrappers.nodes import Node, response

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


class Threshold(Node):
    """Labels by a threshold; the member answers all other methods."""

    def __init__(self, model: Any, members: Sequence[Node]) -> None:
        super().__init__(model, members)
        (self._member,) = members
        methods: Any = model._get_response_method()
        methods = [methods] if isinstance(methods, str) else methods
        own = self._member.model
        if not is_classifier(own) or len(own.classes_) != 2:
            raise UnsureError
        if kind_of(model) == TUNED:
            label, threshold = (
                model._curve_scorer._get_pos_label(),
                model.best_threshold_,
            )
        else:
            label, threshold = model.pos_label, model.threshold
        self._values = response(self._member, methods, label)
        if isinstance(threshold, str):  # "auto"
            used = next(name for name in methods if hasattr(own, name))
            threshold = 0.5 if used == "predict_proba" else 0.0
        self._threshold = threshold
        self._label, self._response = label, model.response_method
        classes = model.classes_
        order = np.array([0, 1])
        if label is not None:
            order = np.array(
                [
                    np.flatnonzero(classes != label)[0],
                    np.flatnonzero(classes == label)[0],
                ]
            )
        self._labels = classes[order]

    def kept(self, members: Sequence[Any]) -> Any:
        """Return a classifier with this threshold: tuned ones keep their scorer."""
        made = FixedThresholdClassifier(
            None,
            threshold=self._threshold,
            pos_label=self._label,
            response_method=self._response,
        )
        (made.estimator_,) = members
        return made

    def answer(self, method: str, raw: Array) -> Any:
        """Compare with the threshold, or ask the member."""
        if method != "predict":
            return self._member.answer(method, raw)
        above = self._values(raw) >= self._threshold
        return self._labels[above.astype(int)]
