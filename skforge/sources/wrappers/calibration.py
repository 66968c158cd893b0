"""CalibratedClassifierCV: the mean of calibrated probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import expit  # type: ignore[import-untyped, unused-ignore]
from sklearn.preprocessing import LabelEncoder

from skforge.sources.base import Array, UnsureError
from skforge.sources.wrappers.nodes import AnswerFunction, Node, positives, response

_RESPONSES = ("decision_function", "predict_proba")


class Calibrated(Node):
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
            for place, column, curve in zip(places, scores.T, curves, strict=False):
                proba[:, place] = curve(column)
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
