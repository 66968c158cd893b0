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
from skforge.compiler.frontends.members import with_members
from skforge.compiler.frontends.wrappers.model import WrappedPart
from skforge.compiler.outputs.functions import FUNCTIONS
from skforge.compiler.outputs.library import HOST
from skforge.sources.base import METHODS, Array, Source, UnsureError

#: From all raw scores to a member's answer.
AnswerFunction: TypeAlias = Callable[[Array], Any]


class Node(ABC):
    #: How a forest reads rows; None for a wrapper.
    source: Any = None

    def __init__(self, model: Any, members: Sequence[Node] = ()) -> None:
        self.model = model
        self.members = members

    def kept(self, members: Sequence[Any]) -> Any:
        return with_members(self.model, members) if members else self.model

    @abstractmethod
    def answer(self, method: str, raw: Array) -> Any:
        """Return the model's answer for the raw scores of the whole wrapper."""


class Leaf(Node):
    def __init__(self, part: WrappedPart, source: Source) -> None:
        super().__init__(part.model)
        self.forest: Forest = part.forests[0]
        self.source = source
        self.only = part.only
        self.places = part.places
        #: Its columns of all raw scores.
        self.columns = np.r_[tuple(part.places)]
        first = part.places[0]
        self._columns: Any = first.start if first.stop - first.start == 1 else first
        self._of_scores = source.answers.of_scores(self.forest, part.model)
        self._offers = {name for name in METHODS if hasattr(part.model, name)}

    def scores(self, raw: Array) -> Array:
        if len(self.places) > 1:
            return np.hstack([raw[:, place] for place in self.places])
        return np.ascontiguousarray(
            raw[:, self._columns], self.forest.accumulator_dtype
        )

    def answer(self, method: str, raw: Array) -> Any:
        if method not in self._offers:  # the model says why
            raise UnsureError
        return self._of_scores(method, self.scores(raw))


class Constant(Node):
    """OneVsRestClassifier's predictor for a class that is always or never there."""

    def answer(self, method: str, raw: Array) -> Any:
        y = self.model.y_
        if method == "predict_proba":
            y = y.astype(np.float64)
            return np.repeat([np.hstack([1 - y, y])], len(raw), axis=0)
        return np.repeat(y, len(raw))


def response(
    node: Node, methods: Sequence[str], pos_label: Any = None
) -> AnswerFunction:
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


#: Functions that are computed value by value, so that members share one call.
_BY_VALUE = ("sigmoid", "logistic")


def positives(nodes: Sequence[Node], methods: Sequence[str]) -> AnswerFunction | None:
    """Return the values of :func:`response` of all members at once.

    They are rows of an array of shape (n_members, n_rows). None if the members are not
    forests with one score each and the same rule.
    """
    first = nodes[0]
    if not isinstance(first, Leaf):
        return None
    spec, dtype = first.forest.outputs, first.forest.accumulator_dtype
    for node in nodes:
        if (
            not isinstance(node, Leaf)
            or len(node.places) > 1
            or node.source.answers.by_members
        ):
            return None
        forest, place = node.forest, node.places[0]
        alike = forest.outputs == spec and forest.accumulator_dtype == dtype
        classes = getattr(node.model, "classes_", ())
        if not alike or place.stop - place.start != 1 or len(classes) != 2:
            return None
        if (node.only is None) != (first.only is None):
            return None
    columns = [node.places[0].start for node in nodes if isinstance(node, Leaf)]
    by_score = hasattr(first.model, "decision_function")
    if "decision_function" in methods and by_score:
        plain = spec.decision == "scores"
    else:
        plain = first.only is not None
    by_value = spec.function in _BY_VALUE and spec.probabilities == "complement"
    if not plain and (by_score or not by_value or spec.divisor != 1):
        return None

    def values(raw: Array) -> Array:
        scores = np.take(raw.T, columns, axis=0).astype(dtype, copy=False)
        if plain:
            return scores
        with np.errstate(all="ignore"):
            return np.asarray(FUNCTIONS[spec.function].of(scores, spec, HOST))

    return values
