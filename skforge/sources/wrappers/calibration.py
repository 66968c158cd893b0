"""CalibratedClassifierCV: the mean of calibrated probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import expit  # type: ignore[import-untyped, unused-ignore]
from sklearn.preprocessing import LabelEncoder

from skforge.sources.base import Array, UnsureError
from skforge.sources.wrappers.nodes import Answer, Node, positives, response

_RESPONSES = ("decision_function", "predict_proba")


class Calibrated(Node):
    """``CalibratedClassifierCV.predict_proba`` and ``predict``."""

    def __init__(self, model: Any, members: Sequence[Node]) -> None:
        super().__init__(model, members)
        self._classes = model.classes_
        pairs = zip(model.calibrated_classifiers_, members, strict=True)
        self._each = [_calibrated(one, member) for one, member in pairs]
        self._sigmoids = _sigmoids(model, members)

    def answer(self, method: str, raw: Array) -> Any:
        """Return the mean of all folds, or the label of its greatest value."""
        if method == "predict":
            chosen = np.argmax(self._mean(raw), axis=1)
            return self._classes[chosen]
        return self._mean(raw)

    def _mean(self, raw: Array) -> Array:
        if self._sigmoids is not None:
            return np.asarray(self._sigmoids(raw))
        mean = np.zeros((len(raw), len(self._classes)))
        for one in self._each:
            mean += one(raw)
        mean /= len(self._each)
        return mean


def _calibrated(one: Any, member: Node) -> Answer:
    """Return ``_CalibratedClassifier.predict_proba``."""
    values = response(member, _RESPONSES)
    n_classes = len(one.classes)
    if one.method == "temperature":
        return _temperature(one, member, values)
    if one.method not in ("sigmoid", "isotonic"):
        raise UnsureError
    places = LabelEncoder().fit(one.classes).transform(one.estimator.classes_)
    curves = [_curve(one.method, calibrator) for calibrator in one.calibrators]
    at_once = one.method == "sigmoid" and _in_double(one.calibrators)
    if at_once:
        a, b = (
            np.array([getattr(each, name) for each in one.calibrators])
            for name in ("a_", "b_")
        )
    if n_classes == 2:
        return _of_two(values, curves, places)

    def of_several(raw: Array) -> Array:
        found = values(raw)
        found = found.reshape(-1, 1) if found.ndim == 1 else found
        proba = np.zeros((len(raw), n_classes))
        if at_once and len(places) == len(curves) == found.shape[1]:
            proba[:, places] = expit(-(a * found + b))
        else:
            for place, column, curve in zip(places, found.T, curves, strict=False):
                proba[:, place] = curve(column)
        total = np.sum(proba, axis=1)[:, np.newaxis]
        if total.all():
            return _cut(proba / total)
        uniform = np.full_like(proba, 1 / n_classes)
        return _cut(np.divide(proba, total, out=uniform, where=total != 0))

    return of_several


def _sigmoids(model: Any, members: Sequence[Node]) -> Answer | None:
    """Return the mean of sigmoids of two classes, all folds at once."""
    folds = model.calibrated_classifiers_
    values = positives(members, _RESPONSES)
    if values is None or len(model.classes_) != 2:
        return None
    if any(one.method != "sigmoid" or len(one.calibrators) != 1 for one in folds):
        return None
    curves = [one.calibrators[0] for one in folds]
    if not _in_double(curves):
        return None
    a, b = (np.array([[getattr(c, name)] for c in curves]) for name in ("a_", "b_"))

    def mean(raw: Array) -> Array:
        proba = expit(-(a * values(raw) + b))
        found = np.empty((len(raw), 2))
        # in the order of the folds; a sum of eight and more would add in pairs
        found[:, 1] = np.add.accumulate(proba, axis=0)[-1]
        found[:, 0] = np.add.accumulate(1.0 - proba, axis=0)[-1]
        found /= len(curves)
        return found

    return mean


def _in_double(calibrators: Sequence[Any]) -> bool:
    """Tell whether sigmoids of float32 values are computed in float64.

    NumPy 1 computes a number times a float32 array in float32.
    """
    single = np.zeros(1, np.float32)
    numbers = [getattr(one, name) for one in calibrators for name in ("a_", "b_")]
    return all((number * single).dtype == np.float64 for number in numbers)


def _of_two(values: Answer, curves: list[Answer], places: Array) -> Answer:
    if len(curves) != 1 or places[0] != 0:
        raise UnsureError
    (curve,) = curves

    def of_two(raw: Array) -> Array:
        found = values(raw)
        if found.ndim != 1:
            found = found[:, 0]
        proba = np.empty((len(raw), 2))
        proba[:, 1] = curve(found)
        proba[:, 0] = 1.0 - proba[:, 1]
        return _cut(proba)

    return of_two


def _temperature(one: Any, member: Node, values: Answer) -> Answer:
    """Return probabilities by the calibrator itself, which looks at all rows."""
    (calibrator,) = one.calibrators
    two = len(one.classes) == 2
    probabilities = not hasattr(member.model, _RESPONSES[0])

    def scaled(raw: Array) -> Array:
        found = values(raw)
        found = found.reshape(-1, 1) if found.ndim == 1 else found
        if two and found.shape[-1] == 1 and probabilities:
            found = np.concatenate([1 - found, found], axis=1)
        return _cut(calibrator.predict(found))

    return scaled


def _cut(proba: Array) -> Array:
    """Replace values that are a little above 1, as scikit-learn does."""
    above = proba > 1.0
    if above.any():
        proba[above & (proba <= 1.0 + 1e-5)] = 1.0
    return proba


def _curve(method: str, calibrator: Any) -> Answer:
    """Return the ``predict`` of a calibrator, for finite values."""
    if method == "sigmoid":
        a, b = calibrator.a_, calibrator.b_
        return lambda x: expit(-(a * x + b))
    points = getattr(calibrator, "X_thresholds_", None)
    if points is None or calibrator.out_of_bounds != "clip" or not len(points):
        raise UnsureError
    low, high, own = calibrator.X_min_, calibrator.X_max_, calibrator.f_
    line = _line(calibrator, points) or own

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
