"""``partial_dependence``: scikit-learn's function for compiled forests, by counting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn import inspection
from sklearn.base import BaseEstimator, RegressorMixin, is_classifier, is_regressor
from sklearn.inspection._pd_utils import _check_feature_names, _get_feature_index
from sklearn.pipeline import Pipeline
from sklearn.utils import Bunch, _safe_indexing, check_array
from sklearn.utils._indexing import _get_column_indices, _safe_assign
from sklearn.utils.validation import _check_sample_weight

from skforge._typing import Array
from skforge.engine.explanations.dependence import Dependence
from skforge.estimators import CompiledForest
from skforge.exceptions import InvalidInputError, with_article
from skforge.outputs.answers import output_of
from skforge.outputs.steps import steps_of
from skforge.prediction.predictor import ForestPredictor
from skforge.sources.base import UnsureError

__all__ = ["partial_dependence"]

RAW = "predict_raw"


def partial_dependence(
    estimator: Any,
    X: Any,
    features: Any,
    *,
    sample_weight: ArrayLike | None = None,
    categorical_features: ArrayLike | None = None,
    feature_names: ArrayLike | None = None,
    response_method: str = "auto",
    percentiles: tuple[float, float] = (0.05, 0.95),
    grid_resolution: int = 100,
    custom_values: Mapping[Any, ArrayLike] | None = None,
    method: str = "auto",
    kind: str = "average",
    exact: bool = False,
) -> Bunch:
    """Return how predictions depend on some features, averaged over rows.

    The partial dependence is the mean prediction for ``X`` if all rows have the same
    values of ``features`` (Friedman 2001, section 8.2), for each point of a grid of
    values. The predictions of each row are individual conditional expectations, ICE
    (Goldstein et al. 2015).

    Arguments, results and errors are those of
    :func:`sklearn.inspection.partial_dependence`, whose results this function
    reproduces with fewer evaluations: rows are followed once down the trees that test
    ``features``, and neighbouring points that pass the same tests are one.

    Parameters
    ----------
    estimator : CompiledForest
        A fitted regressor or classifier, also one that :func:`skforge.load` returned,
        or a fitted ``Pipeline`` that ends in one.
    X : array-like of shape (n_samples, n_features)
        Rows, as ``predict`` takes them. They also give the grid's values.
    features : int, str, or array-like of them
        The feature, or several whose values are combined.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights of the rows in averages.
    categorical_features : array-like of bool, int or str, default=None
        Features whose values are all in the grid.
    feature_names : array-like of str of shape (n_features,), default=None
        Names of an array's columns, for ``categorical_features`` by name.
    response_method : {"auto", "predict_proba", "decision_function", "predict_raw"}, \
            default="auto"
        The response of a classifier. "auto" is ``predict_proba``, or else
        ``decision_function``. "predict_raw", which scikit-learn has not, is raw
        scores: they are sums, and so are fastest.
    percentiles : tuple of float, default=(0.05, 0.95)
        Lowest and highest value of the grid, as percentiles of ``X``.
    grid_resolution : int, default=100
        Values of each feature, at equal distances; if a feature has fewer different
        values in ``X``, these are used.
    custom_values : dict of feature to array-like, default=None
        Values to use for a feature instead.
    method : {"auto", "brute"}, default="auto"
        Both mean the same. scikit-learn's "recursion" weighs training rows, and a
        compiled forest has none of these.
    kind : {"average", "individual", "both"}, default="average"
        Return means, the predictions of each row, or both.
    exact : bool, default=False
        Compute all predictions, so that the result has the bits of scikit-learn's
        function with ``method="brute"``.

    Returns
    -------
    Bunch
        - ``grid_values`` : list of ndarray, the values of each feature;
        - ``average`` : ndarray of float64 of shape (n_outputs, n_values_0, ...);
        - ``individual`` : ndarray of shape (n_outputs, n_samples, n_values_0, ...), in
          the dtype of predictions.

        ``n_outputs`` is the number of targets of a regressor, and of classes of a
        classifier; it is 1 for two classes, of which the second one counts.

    Raises
    ------
    ValueError
        If arguments do not fit, with scikit-learn's text; the errors of ``predict`` if
        rows do not.
    InvalidInputError
        If the estimator is not compiled.

    Notes
    -----
    Sums are in float64 and in a fixed order, so results do not depend on the number of
    threads. Averages differ from the mean of all predictions by at most 1e-12 of the
    largest; if the source sums in float32, its own rounding adds some 1e-6. Models with
    hashed categories, of several forests or with steps that are not folded are computed
    as with ``exact=True``.

    References
    ----------
    J. Friedman, *Greedy function approximation: a gradient boosting machine*, Annals
    of Statistics 29, 2001. A. Goldstein et al., *Peeking inside the black box:
    visualizing statistical learning with plots of individual conditional expectation*,
    Journal of Computational and Graphical Statistics 24, 2015.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.ensemble import GradientBoostingRegressor
    >>> from skforge import CompiledForest, partial_dependence
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = GradientBoostingRegressor(random_state=0).fit(X, y)
    >>> fast = CompiledForest(model, tuning="off").fit(X)
    >>> result = partial_dependence(fast, X, [2], grid_resolution=5)
    >>> result["average"].shape, result["grid_values"][0].shape
    ((1, 5), (5,))
    """
    last = estimator[-1] if isinstance(estimator, Pipeline) else estimator
    if not isinstance(last, CompiledForest):
        raise InvalidInputError(
            "estimator must be a CompiledForest. Got "
            f"{with_article(type(estimator).__name__)} instead; compile the model "
            "first: CompiledForest(model).fit(X)."
        )
    arguments = {
        "sample_weight": sample_weight,
        "categorical_features": categorical_features,
        "feature_names": feature_names,
        "response_method": response_method,
        "percentiles": percentiles,
        "grid_resolution": grid_resolution,
        "custom_values": custom_values,
        "kind": kind,
        "method": "brute" if method == "auto" else method,
    }
    if custom_values is None:  # scikit-learn 1.6 does not have it
        del arguments["custom_values"]
    asked: Any = estimator
    if response_method == RAW:
        asked, arguments["response_method"] = _RawScores(estimator), "auto"
    if not exact and last is estimator:
        with suppress(_Checked):
            _check(asked, X, features, arguments)
        result = _by_counts(estimator, X, features, arguments, response_method)
        if result is not None:
            return result
    return inspection.partial_dependence(asked, X, features, **arguments)


class _RawScores(RegressorMixin, BaseEstimator):  # type: ignore[misc, unused-ignore]
    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self) -> None: ...

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def predict(self, X: Any) -> Any:
        if not isinstance(self.estimator, Pipeline):
            return self.estimator.predict_raw(X)
        return self.estimator[-1].predict_raw(self.estimator[:-1].transform(X))


class _Checked(Exception):
    """Arguments are right."""


class _Unasked:
    """An estimator that ends scikit-learn's function where it has checked arguments."""

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._estimator, name)
        if name not in ("predict", "predict_proba", "decision_function"):
            return value

        def asked(X: Any) -> None:
            raise _Checked

        return asked

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        return self._estimator.__sklearn_tags__()  # scikit-learn 1.6 asks the class


def _check(asked: Any, X: Any, features: Any, arguments: dict[str, Any]) -> None:
    arguments = dict(arguments)
    takes = signature(inspection.partial_dependence).parameters
    if hasattr(X, "shape") and "custom_values" in takes:
        # its grid, which takes as long as the rest, is of one point each
        values = dict(arguments.get("custom_values") or {})
        with suppress(ValueError, TypeError, IndexError, KeyError):
            for feature in _each(features):
                if isinstance(feature, (bool, np.bool_)):
                    continue
                first = _safe_indexing(_safe_indexing(X, [0]), feature, axis=1)
                values.setdefault(feature, np.asarray(first))
        arguments["custom_values"] = values
    inspection.partial_dependence(_Unasked(asked), X, features, **arguments)


# ------------------------------------------------------------ by counts


def _by_counts(
    fast: CompiledForest,
    X: Any,
    features: Any,
    arguments: dict[str, Any],
    response_method: str,
) -> Bunch | None:
    if not hasattr(X, "__array__"):
        if hasattr(X, "tocsr") or not isinstance(X, Sequence):
            return None
        X = check_array(X, ensure_all_finite="allow-nan", dtype=object)
    reader = fast._compiled().of_rows(X)
    how = _response(fast, reader, response_method)
    if how is None or X.shape[0] <= 2 or X.shape[1] != reader.forest.n_features:
        return None
    columns = np.ravel(_get_column_indices(X, features)).tolist()
    axes = _axes(X, features, columns, arguments)
    rows = _read(reader, X)
    if axes is None or rows is None or len({*columns}) < len(columns):
        return None
    points = []
    for column, values in zip(columns, axes, strict=True):
        point = _points(reader, X, rows, column, values)
        if point is None:
            return None
        points.append(point)
    weights = arguments["sample_weight"]
    if weights is not None:
        weights = _check_sample_weight(weights, X)
    dependence = Dependence(reader.forest, columns, points)
    grid = _Grid(dependence, rows, weights, reader, how, fast.n_jobs)
    with suppress(UnsureError):
        return Bunch(grid_values=axes, **grid.responses(arguments["kind"]))
    return None


class _Response(NamedTuple):
    """The method, whether it is linear, and whether it is of two classes."""

    method: str
    linear: bool
    two_classes: bool


def _response(
    fast: CompiledForest, reader: ForestPredictor, asked: str
) -> _Response | None:
    forest, source = reader.forest, reader.source
    of_forest = forest.aggregate == "sum" and not forest.is_encoded
    several = source.answers.by_members or source.answers.more or source.members
    if not of_forest or several or source.before or not source.explains:
        return None
    if asked == RAW:
        return _Response(RAW, True, False)
    classes = len(fast.classes_) if is_classifier(fast) else 0
    if classes and (classes < 2 or len(forest.output_sizes) > 1):
        return None
    names = ("predict_proba", "decision_function") if asked == "auto" else (asked,)
    names = ("predict",) if is_regressor(fast) else names
    method = next(name for name in names if hasattr(fast, name))
    steps = steps_of(forest.answers, output_of(forest.answers, method))
    if steps.choice not in ("values", "targets", "both_classes"):
        return None
    two_classes = classes == 2 and method == "predict_proba"
    return _Response(method, steps.function == "identity", two_classes)


def _axes(
    X: Any, features: Any, columns: list[int], arguments: dict[str, Any]
) -> list[Array] | None:
    custom = arguments.get("custom_values") or {}
    asked = arguments["categorical_features"]
    categorical: Any = np.zeros(X.shape[1], np.bool_)
    if asked is not None:
        asked = np.asarray(asked)
        if asked.dtype != bool:
            names = _check_feature_names(X, arguments["feature_names"])
            asked = [_get_feature_index(feature, names) for feature in asked]
        categorical[asked] = True
    axes: list[Array] = []
    for feature, column in zip(_each(features), columns, strict=False):
        axis: Array | None
        if feature in custom:
            texts = any(isinstance(value, str) for value in custom[feature])
            axis = np.asarray(custom[feature], object if texts else None)
        else:
            values = _safe_indexing(X, column, axis=1)
            axis = _axis(values, bool(categorical[column]), arguments)
        if axis is None or not len(axis):
            return None
        axes.append(axis)
    return axes if len(axes) == len(columns) else None


def _each(features: Any) -> Any:
    return [features] if isinstance(features, (str, int)) else features


def _axis(column: Any, categorical: bool, arguments: dict[str, Any]) -> Array | None:
    n_values, values = arguments["grid_resolution"], np.asarray(column)
    if values.dtype.kind != "f":
        with suppress(TypeError):  # of texts and NaN
            different = np.asarray(np.unique(column))
            return different if categorical or len(different) < n_values else None
        return None
    values = np.sort(values)
    new = (values[1:] != values[:-1]) & (values[:-1] == values[:-1])  # NaN is one
    if categorical or new.sum() + 1 < n_values:
        return np.asarray(values[np.append(True, new)])
    # as scipy.stats.mstats.mquantiles, which sorts again
    share = np.asarray(arguments["percentiles"])
    place = len(values) * share + (0.4 + share * (1 - 0.4 - 0.4))
    k = np.floor(place.clip(1, len(values) - 1)).astype(int)
    weight = (place - k).clip(0, 1)
    low, high = (1 - weight) * values[k - 1] + weight * values[k]
    if np.allclose(low, high):
        return None
    return np.linspace(low, high, num=n_values, endpoint=True)


def _read(reader: ForestPredictor, X: Any) -> Array | None:
    rows = reader.source.rows(reader.source.prepared(X), RAW)
    return rows if isinstance(rows, np.ndarray) else None


def _points(
    reader: ForestPredictor, X: Any, rows: Array, column: int, values: Array
) -> Array | None:
    """Return what is read for a column's values; None if they change other columns."""
    like = _safe_indexing(X, [0] * len(values)).copy()
    dtype = getattr(_safe_indexing(like, column, axis=1), "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind == "f":
        values = values.astype(dtype)  # which pandas refuses to do for float32
    _safe_assign(like, values, column_indexer=column)
    read = _read(reader, like)
    if read is None:
        return None
    others = np.delete(read, column, axis=1), np.delete(rows[:1], column, axis=1)
    same = np.broadcast_to(others[1], others[0].shape)
    if not np.array_equal(others[0], same, equal_nan=True):
        return None
    return np.ascontiguousarray(read[:, column])


class _Grid:
    def __init__(
        self,
        dependence: Dependence,
        rows: Array,
        weights: Array | None,
        reader: ForestPredictor,
        response: _Response,
        n_jobs: int | None,
    ) -> None:
        self._n_jobs = n_jobs
        self._of, self._rows, self._weights = dependence, rows, weights
        self._reader, self._response = reader, response
        forest = reader.forest
        self._scale = 1 / forest.divisor * (forest.scaling[0] if forest.scaling else 1)
        first = rows.copy()
        for axis in dependence.axes:
            first[:, axis.column] = axis.values[0]
        self._first = np.asarray(reader.engine.run("raw", first, n_jobs))
        self._first = self._first.reshape(len(rows), -1).astype(np.float64)
        cells = np.ix_(*(axis.cell for axis in dependence.axes))
        self._cell = np.ravel_multi_index(cells, dependence.shape[:-1])

    def responses(self, kind: str) -> dict[str, Array]:
        rows, weights, linear = self._rows, self._weights, self._response.linear
        found: dict[str, Array] = {}
        mean = np.average(self._first, axis=0, weights=weights)
        if linear and kind != "individual":
            sums = self._of.means(rows, weights, self._n_jobs)
            average = self._answers(mean + sums * self._scale)
            found["average"] = self._at_points(average)
            if kind == "average":
                return found
        n, average = len(rows), np.zeros(1)
        ones = np.ones(n) if weights is None else weights
        for part in self._of.parts(n):
            raw = self._of.sums(rows[part], self._n_jobs)
            groups, *_, outputs, group = raw.shape
            ends = np.zeros((groups * group, outputs + 1))
            ends[: part.stop - part.start] = np.c_[self._first[part], ones[part]]
            shape = groups, *[1] * len(self._of.axes), group, -1
            ends = ends.reshape(shape)
            raw *= self._scale
            raw += ends[..., :-1].swapaxes(-1, -2)
            raw = raw.astype(self._reader.forest.accumulator_dtype, copy=False)
            answers = self._answers(raw.swapaxes(-1, -2))
            if kind != "individual" and not linear:
                average = average + (answers * ends[..., -1:]).sum(axis=(0, -2))
            if kind != "average":
                if not part.start:
                    width, points = answers.shape[-1], self._cell.shape
                    whole = np.empty((width, n, self._cell.size), answers.dtype)
                    found["individual"] = whole.reshape(width, n, *points)
                each = np.moveaxis(answers, (-1, -2), (0, 2))  # outputs, groups, rows
                each = each.reshape(len(each), groups * group, -1)
                to, m = whole[:, part], part.stop - part.start
                np.take(each[:, :m], self._cell.ravel(), -1, out=to, mode="clip")
        if kind != "individual" and not linear:
            found["average"] = self._at_points(average / ones.sum())
        return found

    def _answers(self, raw: Array) -> Array:
        flat = raw.reshape(-1, raw.shape[-1])
        answers = np.asarray(self._reader.of_scores(self._response.method, flat))
        if self._response.two_classes:
            answers = answers[:, 1]
        return answers.reshape(*raw.shape[:-1], -1)

    def _at_points(self, means: Array) -> Array:
        return np.moveaxis(means.reshape(-1, means.shape[-1])[self._cell], -1, 0)
