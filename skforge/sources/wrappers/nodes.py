"""A model inside a wrapper, and wrappers: their answers, computed from raw scores.

Every wrapper repeats the few operations of scikit-learn's own method on arrays of the
same shape, dtype and memory order, without the checks that are made once here.
"""

from __future__ import annotations

import array
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse  # type: ignore[import-untyped, unused-ignore]
from scipy.special import expit  # type: ignore[import-untyped, unused-ignore]
from sklearn.base import is_classifier, is_regressor
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.preprocessing import LabelEncoder
from sklearn.utils.multiclass import type_of_target

from skforge.forest.forest import Forest
from skforge.frontends.base import class_name
from skforge.frontends.members import TUNED, with_members
from skforge.frontends.wrappers.model import WrappedPart
from skforge.outputs.functions import FUNCTIONS
from skforge.outputs.library import HOST
from skforge.sources.base import METHODS, Array, Source, UnsureError

#: From all raw scores to a member's answer.
AnswerFunction: TypeAlias = Callable[[Array], Any]

#: What calibrators take of a member, in order of preference.
_RESPONSES = ("decision_function", "predict_proba")
_FUNCTION = "sklearn.preprocessing._function_transformer.FunctionTransformer"


class Node(ABC):
    #: How a forest reads rows; None for a wrapper.
    source: Any = None
    #: Whether it has an answer of ``transform``.
    transforms = False

    def __init__(self, model: Any, members: Sequence[Node] = ()) -> None:
        self.model = model
        self.members = members

    def rebuilt(self, members: Sequence[Any]) -> Any:
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
            return np.hstack([raw[:, part] for part in self.places])
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
    leaves = [node for node in nodes if isinstance(node, Leaf)]
    binary = [
        len(leaf.columns) == 1 and len(getattr(leaf.model, "classes_", ())) == 2
        for leaf in leaves
        if not leaf.source.answers.by_members
    ]
    rules = {
        (leaf.forest.outputs, leaf.forest.accumulator_dtype, leaf.only is None)
        for leaf in leaves
    }
    if sum(binary) < len(nodes) or len(rules) > 1:
        return None
    first, (spec, dtype, whole) = leaves[0], *rules
    columns = [leaf.places[0].start for leaf in leaves]
    by_score = hasattr(first.model, "decision_function")
    if "decision_function" in methods and by_score:
        plain = spec.decision == "scores"
    else:
        plain = not whole
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


# ------------------------------------------------------------ calibration


class Calibrated(Node):
    """CalibratedClassifierCV: the mean of calibrated probabilities."""

    def __init__(self, model: Any, members: Sequence[Node]) -> None:
        super().__init__(model, members)
        self._classes = model.classes_
        pairs = zip(model.calibrated_classifiers_, members, strict=True)
        self._each = [_calibrated(fold, member) for fold, member in pairs]
        self._sigmoids = _sigmoids(model, members)

    def answer(self, method: str, raw: Array) -> Any:
        if method == "predict":
            return self._classes[np.argmax(self._mean(raw), axis=1)]
        return self._mean(raw)

    def _mean(self, raw: Array) -> Array:
        if self._sigmoids is not None:
            return np.asarray(self._sigmoids(raw))
        mean = np.zeros((len(raw), len(self._classes)))
        for probabilities in self._each:
            mean += probabilities(raw)
        mean /= len(self._each)
        return mean


def _calibrated(fold: Any, member: Node) -> AnswerFunction:
    values = response(member, _RESPONSES)
    n_classes = len(fold.classes)
    if fold.method == "temperature":
        return _temperature(fold, member, values)
    if fold.method not in ("sigmoid", "isotonic"):
        raise UnsureError
    places = LabelEncoder().fit(fold.classes).transform(fold.estimator.classes_)
    curves = [_curve(fold.method, calibrator) for calibrator in fold.calibrators]
    at_once = fold.method == "sigmoid" and _in_double(fold.calibrators)
    if at_once:
        a, b = (
            np.array([getattr(sigmoid, name) for sigmoid in fold.calibrators])
            for name in ("a_", "b_")
        )
    if n_classes == 2:
        return _of_two(values, curves, places)

    def of_several(raw: Array) -> Array:
        scores = values(raw)
        scores = scores.reshape(-1, 1) if scores.ndim == 1 else scores
        proba = np.zeros((len(raw), n_classes))
        if at_once and len(places) == len(curves) == scores.shape[1]:
            proba[:, places] = expit(-(a * scores + b))
        else:
            for index, column, curve in zip(places, scores.T, curves, strict=False):
                proba[:, index] = curve(column)
        total = np.sum(proba, axis=1)[:, np.newaxis]
        if total.all():
            return _cut(proba / total)
        uniform = np.full_like(proba, 1 / n_classes)
        return _cut(np.divide(proba, total, out=uniform, where=total != 0))

    return of_several


def _sigmoids(model: Any, members: Sequence[Node]) -> AnswerFunction | None:
    folds = model.calibrated_classifiers_
    values = positives(members, _RESPONSES)
    if values is None or len(model.classes_) != 2:
        return None
    if any(fold.method != "sigmoid" or len(fold.calibrators) != 1 for fold in folds):
        return None
    curves = [fold.calibrators[0] for fold in folds]
    if not _in_double(curves):
        return None
    a, b = (np.array([[getattr(c, name)] for c in curves]) for name in ("a_", "b_"))

    def mean(raw: Array) -> Array:
        proba = expit(-(a * values(raw) + b))
        answer = np.empty((len(raw), 2))
        # in the order of the folds; a sum of eight and more would add in pairs
        answer[:, 1] = np.add.accumulate(proba, axis=0)[-1]
        answer[:, 0] = np.add.accumulate(1.0 - proba, axis=0)[-1]
        answer /= len(curves)
        return answer

    return mean


def _in_double(calibrators: Sequence[Any]) -> bool:
    """Tell whether float32 sigmoids are computed in float64: not by NumPy 1."""
    single = np.zeros(1, np.float32)
    numbers = [number for sigmoid in calibrators for number in (sigmoid.a_, sigmoid.b_)]
    return all((number * single).dtype == np.float64 for number in numbers)


def _of_two(
    values: AnswerFunction, curves: list[AnswerFunction], places: Array
) -> AnswerFunction:
    if len(curves) != 1 or places[0] != 0:
        raise UnsureError
    (curve,) = curves

    def of_two(raw: Array) -> Array:
        scores = values(raw)
        if scores.ndim != 1:
            scores = scores[:, 0]
        proba = np.empty((len(raw), 2))
        proba[:, 1] = curve(scores)
        proba[:, 0] = 1.0 - proba[:, 1]
        return _cut(proba)

    return of_two


def _temperature(fold: Any, member: Node, values: AnswerFunction) -> AnswerFunction:
    """Return probabilities by the calibrator itself, which looks at all rows."""
    (calibrator,) = fold.calibrators
    two = len(fold.classes) == 2
    probabilities = not hasattr(member.model, _RESPONSES[0])

    def scaled(raw: Array) -> Array:
        scores = values(raw)
        scores = scores.reshape(-1, 1) if scores.ndim == 1 else scores
        if two and scores.shape[-1] == 1 and probabilities:
            scores = np.concatenate([1 - scores, scores], axis=1)
        return _cut(calibrator.predict(scores))

    return scaled


def _cut(proba: Array) -> Array:
    above = proba > 1.0
    if above.any():
        proba[above & (proba <= 1.0 + 1e-5)] = 1.0
    return proba


def _curve(method: str, calibrator: Any) -> AnswerFunction:
    if method == "sigmoid":
        a, b = calibrator.a_, calibrator.b_
        return lambda x: expit(-(a * x + b))
    points = getattr(calibrator, "X_thresholds_", None)
    if points is None or calibrator.out_of_bounds != "clip" or not len(points):
        raise UnsureError
    low, high, interpolate = calibrator.X_min_, calibrator.X_max_, calibrator.f_
    line = _line(calibrator, points) or interpolate

    def isotonic(x: Array) -> Array:
        x = np.clip(x.astype(points.dtype, copy=False), low, high)
        return np.asarray(line(x).astype(points.dtype, copy=False))

    return isotonic


def _line(calibrator: Any, points: Array) -> Callable[[Array], Array] | None:
    """Return ``np.interp`` if the calibrator gives the same bits everywhere tried."""
    values = calibrator.y_thresholds_
    if points.dtype != np.float64 or values.dtype != np.float64 or len(points) < 2:
        return None
    random = np.random.default_rng(0).uniform(points[0], points[-1], 64)
    between = (points[1:] + points[:-1]) / 2
    near = [np.nextafter(points, way) for way in (-np.inf, np.inf)]
    x = np.clip(np.concatenate([points, between, *near, random]), *points[[0, -1]])
    if not np.array_equal(np.interp(x, points, values), calibrator.f_(x)):
        return None
    return lambda x: np.interp(x, points, values)


# ------------------------------------------------------------ other wrappers


class TransformedTarget(Node):
    """``TransformedTargetRegressor.predict``: the inverse of its transformer."""

    def __init__(self, model: Any, members: Sequence[Node]) -> None:
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


class MultiOutput(Node):
    """``MultiOutputRegressor`` and ``MultiOutputClassifier``: a model a target."""

    def answer(self, method: str, raw: Array) -> Any:
        answers = [member.answer(method, raw) for member in self.members]
        return np.asarray(answers).T if method == "predict" else answers


class Threshold(Node):
    def __init__(self, model: Any, members: Sequence[Node]) -> None:
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
        self._values = response(self._member, methods, label)
        if isinstance(threshold, str):  # "auto"
            used = next(name for name in methods if hasattr(member_model, name))
            threshold = 0.5 if used == "predict_proba" else 0.0
        self._threshold = threshold
        self._label, self._response = label, model.response_method
        classes = model.classes_
        if label is not None:  # that of values above the threshold comes last
            classes = classes[np.argsort(classes == label)]
        self._labels = classes

    def rebuilt(self, members: Sequence[Any]) -> Any:
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


class _Vote(Node):
    transforms = True

    def __init__(self, model: Any, members: Sequence[Node]) -> None:
        super().__init__(model, members)
        self._weights = model._weights_not_none

    def rebuilt(self, members: Sequence[Any]) -> Any:
        """Return a vote that knows of no dropped members."""
        vote = super().rebuilt(members)
        vote.weights = self._weights
        return vote

    def _each(self, method: str, raw: Array) -> Array:
        return np.asarray([member.answer(method, raw) for member in self.members])


class MeanVote(_Vote):
    def answer(self, method: str, raw: Array) -> Any:
        answers = self._each("predict", raw).T
        if method == "transform":
            return answers
        return np.average(answers, axis=1, weights=self._weights)


class Votes(_Vote):
    def __init__(self, model: Any, members: Sequence[Node]) -> None:
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
        if method == "transform" and not self._soft:
            return self._each("predict", raw).T
        if method == "transform":
            each = self._each("predict_proba", raw)
            return np.hstack([*each]) if self.model.flatten_transform else each
        chosen = self._mean(raw).argmax(axis=1) if self._soft else self._most(raw)
        return self._labels.take(chosen, axis=0)

    def _mean(self, raw: Array) -> Array:
        answers = self._each("predict_proba", raw)
        return np.average(answers, axis=0, weights=self._weights)

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


class OneVsRest(Node):
    def __init__(self, model: Any, members: Sequence[Node]) -> None:
        super().__init__(model, members)
        self._binarizer = model.label_binarizer_
        self._several = self._binarizer.y_type_ == "multiclass"
        self._normalised = not model.multilabel_
        self._classes = model.classes_
        self._scores = [_scores(member) for member in members]
        self._positive = [_positive(member) for member in members]
        self._all_positive = positives(members, ("predict_proba",))
        self._all_scores = positives(members, ("decision_function", "predict_proba"))
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
        rows, ends = array.array("i"), array.array("i", [0])
        for column in scores:
            rows.extend(np.where(column > self._bound)[0])
            ends.append(len(rows))
        shape = len(scores[0]), len(scores)
        marks = sparse.csc_array((np.ones(len(rows), int), rows, ends), shape=shape)
        return self._binarizer.inverse_transform(marks)


def _positive(node: Node) -> AnswerFunction:
    if isinstance(node, Leaf) and node.only is not None:
        return node.scores
    return lambda raw: node.answer("predict_proba", raw)[:, 1]


def _scores(node: Node) -> AnswerFunction:
    """Return ``sklearn.multiclass._predict_binary`` of a member."""
    if isinstance(node, Constant):
        return lambda raw: node.answer("decision_function", raw)
    if is_regressor(node.model):
        return lambda raw: node.answer("predict", raw)
    if hasattr(node.model, "decision_function"):
        return lambda raw: np.ravel(node.answer("decision_function", raw))
    return _positive(node)
