"""A model inside a wrapper: its answers, computed from raw scores.

Every wrapper repeats the few operations of scikit-learn's own method on arrays of the
same shape, dtype and memory order, without the checks that are made once here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.multiclass import type_of_target

from skforge.compiler.forest.forest import Forest
from skforge.compiler.frontends.wrappers.model import Part
from skforge.compiler.outputs.answers import answer, labels_of
from skforge.sources.base import Array, Source

#: From all raw scores to a member's answer.
Answer: TypeAlias = Callable[[Array], Any]


class UnsureError(Exception):
    """The wrapper's answers are not certain here, so that it must answer itself."""


class Node(ABC):
    """The answers of a fitted model.

    Parameters
    ----------
    model : estimator
        The model, whose methods are repeated.
    members : sequence of Node
        The members of a wrapper.
    """

    def __init__(self, model: Any, members: Sequence[Node] = ()) -> None:
        self.model = model
        self.members = members

    @abstractmethod
    def answer(self, method: str, raw: Array) -> Any:
        """Return the model's answer for the raw scores of the whole wrapper."""


class Leaf(Node):
    """A forest: the rules of its library, on its own columns of the scores."""

    def __init__(self, part: Part, source: Source) -> None:
        super().__init__(part.model)
        self.forest: Forest = part.forests[0]
        self.source = source
        self.only = part.only
        self.places = part.places
        first = part.places[0]
        self._columns: Any = first.start if first.stop - first.start == 1 else first
        self._classes = labels_of(self.forest, part.model)

    def scores(self, raw: Array) -> Array:
        """Return its raw scores as its own forests give them."""
        if len(self.places) > 1:
            return np.hstack([raw[:, place] for place in self.places])
        return np.ascontiguousarray(
            raw[:, self._columns], self.forest.accumulator_dtype
        )

    def answer(self, method: str, raw: Array) -> Any:
        """Return its answer, as the rules of its forest say."""
        scores = self.scores(raw)
        if self.source.answers:
            return self.source.answer(method, scores)
        if method == "predict_log_proba":
            if self.source.own_log_proba:
                raise UnsureError
            return np.log(answer(self.forest, None, "predict_proba", scores))
        return answer(self.forest, self._classes, method, scores)


class Constant(Node):
    """OneVsRestClassifier's predictor for a class that is always or never there."""

    def answer(self, method: str, raw: Array) -> Any:
        """Repeat the constant."""
        y = self.model.y_
        if method == "predict_proba":
            y = y.astype(np.float64)
            return np.repeat([np.hstack([1 - y, y])], len(raw), axis=0)
        return np.repeat(y, len(raw))


def response(node: Node, methods: Sequence[str], pos_label: Any = None) -> Answer:
    """Return ``sklearn.utils._response._get_response_values`` of a fitted member.

    ``methods`` are in order of preference; without ``pos_label``, the last class
    counts.
    """
    model = node.model
    method = next((name for name in methods if hasattr(model, name)), "")
    if not method:
        raise UnsureError

    def values(raw: Array) -> Any:
        return node.answer(method, raw)

    if not is_classifier(model):
        return values
    classes = model.classes_
    if type_of_target(classes) != "binary":
        return values
    if len(classes) != 2:
        raise UnsureError
    label = classes[-1] if pos_label is None else pos_label
    if label not in classes.tolist():
        raise UnsureError
    if method == "decision_function":
        return (lambda raw: -1 * values(raw)) if label == classes[0] else values
    column = int(np.flatnonzero(classes == label)[0])
    if isinstance(node, Leaf) and node.only is not None:
        assert node.only == column
        return node.scores
    return lambda raw: values(raw)[:, column]
