"""Votes, one-vs-rest, thresholds, transformed targets, and several targets."""

from __future__ import annotations

import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse  # type: ignore[import-untyped, unused-ignore]
from sklearn.base import is_classifier, is_regressor
from sklearn.model_selection import FixedThresholdClassifier

from skforge.compiler.frontends.base import class_name
from skforge.compiler.frontends.members import TUNED
from skforge.sources.base import Array, UnsureError
from skforge.sources.wrappers import nodes

_FUNCTION = "sklearn.preprocessing._function_transformer.FunctionTransformer"


class TransformedTarget(nodes.Node):
    """``TransformedTargetRegressor.predict``: the inverse of its transformer."""

    def __init__(self, model: Any, members: Sequence[nodes.Node]) -> None:
        super().__init__(model, members)
        (self._member,) = members
        transformer = model.transformer_
        self._inverse = transformer.inverse_transform
        self._function = None
        is_one = class_name(transformer) == _FUNCTION
        if is_one and transformer.inverse_func is not None:
            self._function = transformer.inverse_func
            self._options = transformer.inv_kw_args or {}
        self._flat = model._training_dim == 1

    def answer(self, method: str, raw: Array) -> Any:
        values = self._member.answer(method, raw)
        column = values.reshape(-1, 1) if values.ndim == 1 else values
        if self._function is not None and np.isfinite(column).all():
            answer = self._function(column, **self._options)
        else:
            answer = self._inverse(column)
        if self._flat and answer.ndim == 2 and answer.shape[1] == 1:
            return answer.squeeze(axis=1)
        return answer


class MultiOutput(nodes.Node):
    """``MultiOutputRegressor`` and ``MultiOutputClassifier``: a model a target."""

    def answer(self, method: str, raw: Array) -> Any:
        answers = [member.answer(method, raw) for member in self.members]
        return np.asarray(answers).T if method == "predict" else answers


class Threshold(nodes.Node):
    def __init__(self, model: Any, members: Sequence[nodes.Node]) -> None:
        super().__init__(model, members)
        (self._member,) = members
        methods: Any = model._get_response_method()
        methods = [methods] if isinstance(methods, str) else methods
        member_model = self._member.model
        if not is_classifier(member_model) or len(member_model.classes_) != 2:
            raise UnsureError
        if class_name(model) == TUNED:
            label = model._curve_scorer._get_pos_label()
            threshold = model.best_threshold_
        else:
            label, threshold = model.pos_label, model.threshold
        self._values = nodes.response(self._member, methods, label)
        if isinstance(threshold, str):  # "auto"
            used = next(name for name in methods if hasattr(member_model, name))
            threshold = 0.5 if used == "predict_proba" else 0.0
        self._threshold = threshold
        self._label, self._response = label, model.response_method
        classes = model.classes_
        if label is not None:  # that of values above the threshold comes last
            classes = classes[np.argsort(classes == label)]
        self._labels = classes

    def kept(self, members: Sequence[Any]) -> Any:
        """Return a classifier with this threshold: tuned ones keep their scorer."""
        classifier = FixedThresholdClassifier(
            None,
            threshold=self._threshold,
            pos_label=self._label,
            response_method=self._response,
        )
        (classifier.estimator_,) = members
        return classifier

    def answer(self, method: str, raw: Array) -> Any:
        if method != "predict":
            return self._member.answer(method, raw)
        above = self._values(raw) >= self._threshold
        return self._labels[above.astype(int)]


class _Vote(nodes.Node):
    def __init__(self, model: Any, members: Sequence[nodes.Node]) -> None:
        super().__init__(model, members)
        self._weights = model._weights_not_none

    def kept(self, members: Sequence[Any]) -> Any:
        """Return a vote that knows of no dropped members."""
        vote = super().kept(members)
        vote.weights = self._weights
        return vote


class MeanVote(_Vote):
    def answer(self, method: str, raw: Array) -> Any:
        answers = np.asarray([member.answer(method, raw) for member in self.members]).T
        return np.average(answers, axis=1, weights=self._weights)


class Votes(_Vote):
    def __init__(self, model: Any, members: Sequence[nodes.Node]) -> None:
        super().__init__(model, members)
        self._soft = model.voting == "soft"
        self._labels = model.le_.classes_
        if self._weights is not None and not self._soft:
            self._of_one = np.asarray(self._weights, np.float64)
            if not (self._of_one >= 0).all():
                raise UnsureError

    def answer(self, method: str, raw: Array) -> Any:
        if method == "predict_proba":
            return self._mean(raw)
        chosen = self._mean(raw).argmax(axis=1) if self._soft else self._most(raw)
        return self._labels.take(chosen, axis=0)

    def _mean(self, raw: Array) -> Array:
        answers = [member.answer("predict_proba", raw) for member in self.members]
        return np.average(np.asarray(answers), axis=0, weights=self._weights)

    def _most(self, raw: Array) -> Array:
        """Count votes in the order of the members, as ``np.bincount`` adds weights."""
        votes = np.zeros((len(raw), len(self._labels)))
        rows = np.arange(len(raw))
        for number, member in enumerate(self.members):
            label = member.answer("predict", raw)
            if label.dtype.kind not in "iu":
                raise UnsureError
            votes[rows, label] += 1.0 if self._weights is None else self._of_one[number]
        return np.asarray(votes.argmax(axis=1))


class OneVsRest(nodes.Node):
    def __init__(self, model: Any, members: Sequence[nodes.Node]) -> None:
        super().__init__(model, members)
        self._binarizer = model.label_binarizer_
        self._several = self._binarizer.y_type_ == "multiclass"
        self._normalised = not model.multilabel_
        self._classes = model.classes_
        self._scores = [_scores(member) for member in members]
        self._positive = [_positive(member) for member in members]
        self._all_positive = nodes.positives(members, ("predict_proba",))
        self._all_scores = nodes.positives(
            members, ("decision_function", "predict_proba")
        )
        first = members[0].model
        by_score = hasattr(first, "decision_function") and is_classifier(first)
        self._bound = 0.0 if by_score else 0.5

    def answer(self, method: str, raw: Array) -> Any:
        if method == "predict_proba":
            return self._probabilities(raw)
        if method == "decision_function":
            scores_of = [each.answer(method, raw) for each in self.members]
            if len(scores_of) == 1:
                return scores_of[0]
            return np.array([each.ravel() for each in scores_of]).T
        every = self._all_scores
        scores = every(raw) if every else [each(raw) for each in self._scores]
        return self._greatest(scores) if self._several else self._above(scores)

    def _probabilities(self, raw: Array) -> Array:
        every = self._all_positive
        rows = every(raw) if every else [positive(raw) for positive in self._positive]
        proba: Array = np.asarray(rows).T
        if len(self.members) == 1:
            proba = np.concatenate(((1 - proba), proba), axis=1)
        if self._normalised:
            total = np.sum(proba, axis=1)[:, np.newaxis]
            if not total.all():  # releases of scikit-learn differ
                raise UnsureError
            proba = np.divide(proba, total, out=proba)
        return proba

    def _greatest(self, scores: Sequence[Array]) -> Array:
        best = np.full(len(scores[0]), -np.inf)
        chosen = np.zeros(len(best), int)
        for number in reversed(range(len(scores))):
            np.maximum(best, scores[number], out=best)
            chosen[best == scores[number]] = number
        return np.asarray(self._classes[chosen])

    def _above(self, scores: Sequence[Array]) -> Any:
        at, ends = array.array("i"), array.array("i", [0])
        for column in scores:
            at.extend(np.where(column > self._bound)[0])
            ends.append(len(at))
        shape = len(scores[0]), len(scores)
        marks = sparse.csc_array((np.ones(len(at), int), at, ends), shape=shape)
        return self._binarizer.inverse_transform(marks)


def _positive(node: nodes.Node) -> nodes.AnswerFunction:
    if isinstance(node, nodes.Leaf) and node.only is not None:
        return node.scores
    return lambda raw: node.answer("predict_proba", raw)[:, 1]


def _scores(node: nodes.Node) -> nodes.AnswerFunction:
    """Return ``sklearn.multiclass._predict_binary`` of a member."""
    if isinstance(node, nodes.Constant):
        return lambda raw: node.answer("decision_function", raw)
    if is_regressor(node.model):
        return lambda raw: node.answer("predict", raw)
    if hasattr(node.model, "decision_function"):
        return lambda raw: np.ravel(node.answer("decision_function", raw))
    return _positive(node)
