"""FixedThresholdClassifier and TunedThresholdClassifierCV: labels by a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from skforge.compiler.frontends.members import TUNED, kind_of
from skforge.sources.base import Array, UnsureError
from skforge.sources.wrappers.nodes import Node, response


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

    def answer(self, method: str, raw: Array) -> Any:
        """Compare with the threshold, or ask the member."""
        if method != "predict":
            return self._member.answer(method, raw)
        above = self._values(raw) >= self._threshold
        return self._labels[above.astype(int)]
