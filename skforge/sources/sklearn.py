"""Rows as scikit-learn's boosted, bagged and isolation forests take them.

Each source runs the estimator's own validation, so that values, warnings and errors
are those of its own ``predict``; what its trees check once more it declines.
"""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import config_context, get_config
from sklearn.utils import get_tags
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from skforge.compiler.forest.forest import Forest
from skforge.compiler.frontends.base import class_names
from skforge.compiler.frontends.sklearn.histogram import model_columns
from skforge.sources.sparse import most_entries

Array = NDArray[Any]

_METHODS = ("predict", "predict_proba", "decision_function", "score_samples")


class SklearnSource:
    """Trees and forests of scikit-learn: ``validate_data`` decides."""

    fill, labels, leaf_dtype = 0.0, True, np.intp
    #: See ``EnsembleSource``.
    casts = True

    def __init__(self, estimator: Any, forest: Forest) -> None:
        self.estimator = estimator
        self.flat_leaves = self._single = hasattr(estimator, "tree_")
        self._warns = hasattr(estimator, "feature_names_in_")
        self._nan_is_fine = bool(get_tags(estimator).input_tags.allow_nan)

    def rows(self, X: Any, method: str) -> Any:
        """Run the estimator's own validation."""
        if self._single:
            return self.estimator._validate_X_predict(X, check_input=True)
        return self.estimator._validate_X_predict(X)

    @property
    def declines(self) -> str | None:
        """Values it refuses; None where it warns that names are missing."""
        if self._warns:
            return None
        return "infinite" if self._nan_is_fine else "not_finite"

    def plain(self, X: Array) -> bool:
        """Refuse 0 rows, infinities, and names that are missing."""
        if self._warns or not len(X):
            return False
        if get_config()["assume_finite"]:
            return True
        # Four times faster than a sum, which numpy casts by the piece.
        if np.isfinite(X).all():
            return True
        return self._nan_is_fine and not np.isinf(X).any()

    def call(self, method: str, X: Any, **params: Any) -> Any:
        """Ask the estimator."""
        return getattr(self.estimator, method)(X, **params)

    def raw(self, rows: Array) -> Array:
        """Return averages in tree order, which several threads would not keep."""
        serial = self._serial()
        with warnings.catch_warnings(), config_context(assume_finite=True):
            warnings.simplefilter("ignore")  # feature names: rows have lost theirs
            if not hasattr(serial, "predict_proba"):
                return np.asarray(serial.predict(rows))
            probability = serial.predict_proba(rows)
        if isinstance(probability, list):
            return np.concatenate(probability, axis=1)
        # one column of a model that has seen one class only is one output
        return np.asarray(
            probability[:, 0] if probability.shape[1] == 1 else probability
        )

    def outputs(self, X: Any) -> dict[str, Any]:
        """Return labels or targets, and probabilities."""
        return _answers(self._serial(), X)

    def _serial(self) -> Any:
        """Return the estimator as one that uses one thread and prints nothing."""
        serial = copy.copy(self.estimator)
        if not self._single:
            serial.n_jobs, serial.verbose = 1, 0
        return serial


def _answers(estimator: Any, X: Any) -> dict[str, Any]:
    names = [n for n in ("predict", "predict_proba") if hasattr(estimator, n)]
    return {name: getattr(estimator, name)(X) for name in names}


class EnsembleSource(ABC):
    """What the sources of this module have in common."""

    fill, labels, flat_leaves = 0.0, True, False
    leaf_dtype: Any = np.intp
    #: Shape of one row's leaf numbers, where the source has one of its own.
    leaf_shape: tuple[int, ...] | None = None
    #: Whether ``predict_log_proba`` is more than the logarithm of ``predict_proba``.
    own_log_proba = False
    #: Whether all it asks of float64 rows is asked after their cast to float32.
    casts = False
    _nan_is_fine = _infinity_is_fine = False

    def __init__(self, estimator: Any, forest: Forest) -> None:
        self.estimator = estimator
        self._forest = forest
        self._warns = hasattr(estimator, "feature_names_in_")

    @abstractmethod
    def rows(self, X: Any, method: str) -> Any:
        """Run the estimator's own validation."""

    @property
    def declines(self) -> str | None:
        """Values it refuses; None where it warns that names are missing."""
        if self._warns:
            return None
        if self._nan_is_fine:
            return "nothing" if self._infinity_is_fine else "infinite"
        return "not_finite"

    def plain(self, X: Array) -> bool:
        """Refuse 0 rows, names that are missing, and values the source refuses."""
        if self._warns or not len(X):
            return False
        if (self._nan_is_fine and self._infinity_is_fine) or self._unchecked():
            return True
        return self._takes(X)

    def _unchecked(self) -> bool:
        return bool(get_config()["assume_finite"])

    def _takes(self, values: Array) -> bool:
        if np.isfinite(values).all():
            return True
        return self._nan_is_fine and not np.isinf(values).any()

    def call(self, method: str, X: Any, **params: Any) -> Any:
        """Ask the estimator."""
        if method == "predict_raw":  # which it has not: the part that raises will do
            return self.raw(self._validated(X))
        return getattr(self.estimator, method)(X, **params)

    def _validated(self, X: Any) -> Any:
        return X

    def raw(self, rows: Array) -> Array:
        """Return raw scores, computed by the source on one thread."""
        with warnings.catch_warnings(), config_context(assume_finite=True):
            warnings.simplefilter("ignore")  # feature names: rows have lost theirs
            scores = np.asarray(self._raw(rows))
        return scores.reshape(-1) if self._forest.n_outputs == 1 else scores

    @abstractmethod
    def _raw(self, rows: Array) -> Any:
        """Return raw scores as the estimator computes them."""

    def outputs(self, X: Any) -> dict[str, Any]:
        """Return what each of the estimator's methods returns on one thread."""
        serial = self._serial()
        return {
            name: getattr(serial, name)(X) for name in _METHODS if hasattr(serial, name)
        }

    def _serial(self) -> Any:
        serial = copy.copy(self.estimator)
        if "n_jobs" in serial.get_params(deep=False):
            serial.n_jobs = 1
        if "verbose" in serial.get_params(deep=False):
            serial.verbose = 0
        return serial


class GradientBoostingSource(EnsembleSource):
    """GradientBoosting*: finite float32 rows; leaf numbers are floats."""

    leaf_dtype = np.float64
    casts = True

    def __init__(self, estimator: Any, forest: Forest) -> None:
        super().__init__(estimator, forest)
        stages, outputs = estimator.estimators_.shape
        self._classifier = hasattr(estimator, "classes_")
        self.leaf_shape = (stages, outputs) if self._classifier else (stages,)

    def rows(self, X: Any, method: str) -> Any:
        """Validate as the estimator does, and as its first tree does again."""
        if method == "apply":
            if not self._classifier and not hasattr(X, "shape"):
                return None  # the regressor asks X for its shape at the end
        else:
            X = validate_data(
                self.estimator,
                X,
                dtype=np.float32,
                order="C",
                accept_sparse="csr",
                reset=False,
            )
        tree = self.estimator.estimators_[0, 0]
        rows = tree._validate_X_predict(X, check_input=True)
        if method == "apply" and type(rows) is np.ndarray and np.isnan(rows).any():
            return None  # `apply` takes them, and has its own way for them
        return rows

    def _raw(self, rows: Array) -> Any:
        return self.estimator._raw_predict(np.ascontiguousarray(rows))


class HistGradientBoostingSource(EnsembleSource):
    """HistGradientBoosting*: float64 rows; categories through the model's encoder."""

    _nan_is_fine = _infinity_is_fine = True

    def __init__(self, estimator: Any, forest: Forest) -> None:
        super().__init__(estimator, forest)
        self._columns = model_columns(estimator)
        self._named = any(column.names for column in self._columns)
        self._coded = [
            column.feature for column in self._columns if column.categories is not None
        ]

    def rows(self, X: Any, method: str) -> Any:
        """Encode as the estimator does, then put values where codes are."""
        check_is_fitted(self.estimator)
        encoded = self.estimator._preprocess_X(X, reset=False)
        if not self._coded:
            return encoded
        rows = np.empty(encoded.shape, np.float64)
        for column, codes in zip(self._columns, encoded.T, strict=True):
            values = codes
            if column.categories is not None and not column.names:
                known = ~np.isnan(codes)
                values = np.full(len(codes), np.nan)
                table = np.array(column.categories, np.float64)
                values[known] = table[codes[known].astype(np.intp)]
            rows[:, column.feature] = values
        return rows

    @property
    def declines(self) -> str | None:
        """As for any histogram model, but None where an encoder comes before."""
        return None if self._named or self._coded else super().declines

    def plain(self, X: Array) -> bool:
        """Refuse, besides, what only the encoder can read or will not."""
        if self._named or not super().plain(X):
            return False
        return not self._coded or not np.isinf(X[:, self._coded]).any()

    def _raw(self, rows: Array) -> Any:
        if not self._named:
            return self.estimator._raw_predict(rows, n_threads=1)
        encoded = np.empty(rows.shape, np.float64)
        for at, column in enumerate(self._columns):
            encoded[:, at] = values = rows[:, column.feature]
            if column.categories is not None:
                encoded[:, at] = np.nan  # what is no category is missing
                for code, category in enumerate(column.categories):
                    encoded[values == category, at] = code
        scores = np.zeros((len(rows), self._forest.n_outputs), order="F")
        scores += self.estimator._baseline_prediction
        self.estimator._predict_iterations(
            encoded, self.estimator._predictors, scores, False, 1
        )
        return scores


class IsolationSource(EnsembleSource):
    """IsolationForest: float32 rows, of which nothing else is asked."""

    casts = True
    _nan_is_fine = _infinity_is_fine = True

    def rows(self, X: Any, method: str) -> Any:
        """Run the estimator's own validation; put what goes right where NaN is."""
        check_is_fitted(self.estimator)
        rows = validate_data(
            self.estimator,
            X,
            accept_sparse="csr",
            dtype=np.float32,
            reset=False,
            ensure_all_finite=False,
        )
        if not hasattr(rows, "tocsr"):
            return rows
        part = rows[:1]  # its trees get parts, of which SciPy may narrow the indices
        if not part.indices.dtype == part.indptr.dtype == np.dtype(np.intc):
            return None
        missing = np.isnan(rows.data)
        if missing.any():
            # its trees know of no missing values in sparse rows: these fail `<=`
            if np.isinf(self._forest.threshold).any():
                return None
            rows = rows.copy()
            rows.data[missing] = np.inf
        return rows

    def _raw(self, rows: Array) -> Any:
        """Return path lengths, which the estimator does not give away."""
        model = self.estimator
        drawn = model._max_features != rows.shape[1]
        lengths = np.zeros(len(rows))
        for tree, features, depth, further in zip(
            model.estimators_,
            model.estimators_features_,
            model._decision_path_lengths,
            model._average_path_length_per_tree,
            strict=True,
        ):
            own = np.ascontiguousarray(rows[:, features] if drawn else rows)
            leaf = tree.apply(own, check_input=False)
            lengths += depth[leaf] + further[leaf] - 1.0
        return lengths


class _OverTreesSource(EnsembleSource):
    """Ensembles that leave the cast to float32, and its checks, to their trees."""

    def rows(self, X: Any, method: str) -> Any:
        """Validate as the estimator does; decline what its trees may refuse."""
        X = self._validated(X)
        if X.dtype.kind not in "fiub" or X.ndim != 2:
            return None
        if hasattr(X, "tocsr"):
            return self._sparse(X)
        with np.errstate(over="ignore"):
            values = X.astype(np.float32, copy=False)
        if not np.isfinite(values).all() and not self._takes(values):
            return None
        return values

    def _sparse(self, X: Any) -> Any:
        """Return what each tree's own check makes of sparse rows."""
        X = X.tocsr()
        with np.errstate(over="ignore"):
            # SciPy's cast adds up what a place has; without one, the last entry counts
            rows = check_array(
                X, accept_sparse="csr", dtype=np.float32, ensure_all_finite=False
            )
        if not rows.indices.dtype == rows.indptr.dtype == np.dtype(np.intc):
            return None
        if not np.isfinite(rows.data).all():
            return None
        # the order of three is that of a sort of the columns that a tree has drawn
        unsure = rows.nnz != X.nnz and most_entries(X) > 2
        return None if unsure else rows

    def _unchecked(self) -> bool:
        return False


class BaggingSource(_OverTreesSource):
    """Bagging over trees: NaN is fine where all trees take it."""

    own_log_proba = True  # sums of logarithms

    def __init__(self, estimator: Any, forest: Forest) -> None:
        super().__init__(estimator, forest)
        self._nan_is_fine = all(
            get_tags(tree).input_tags.allow_nan for tree in estimator.estimators_
        )

    def _validated(self, X: Any) -> Any:
        check_is_fitted(self.estimator)
        return validate_data(
            self.estimator,
            X,
            accept_sparse=["csr", "csc"],
            dtype=None,
            ensure_all_finite=False,
            reset=False,
        )

    def _raw(self, rows: Array) -> Any:
        serial = self._serial()
        ask = getattr(serial, "predict_proba", serial.predict)
        return ask(rows)


class AdaBoostSource(_OverTreesSource):
    """AdaBoostClassifier: finite rows, before and after the cast."""

    def _validated(self, X: Any) -> Any:
        check_is_fitted(self.estimator)
        return self.estimator._check_X(X)

    def _raw(self, rows: Array) -> Any:
        """Return sums of votes, which the estimator only gives divided."""
        model = self.estimator
        classes = model.classes_[:, np.newaxis]
        others = -1 / (len(classes) - 1)
        members = zip(model.estimators_, model.estimator_weights_, strict=False)
        return sum(
            np.where((tree.predict(rows) == classes).T, weight, others * weight)
            for tree, weight in members
        )


_SOURCES: dict[str, Callable[[Any, Forest], EnsembleSource]] = {
    "sklearn.ensemble._gb.BaseGradientBoosting": GradientBoostingSource,
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting."
    "BaseHistGradientBoosting": HistGradientBoostingSource,
    "sklearn.ensemble._iforest.IsolationForest": IsolationSource,
    "sklearn.ensemble._bagging.BaggingClassifier": BaggingSource,
    "sklearn.ensemble._bagging.BaggingRegressor": BaggingSource,
    "sklearn.ensemble._weight_boosting.AdaBoostClassifier": AdaBoostSource,
}


def ensemble_source(estimator: Any, forest: Forest) -> EnsembleSource | None:
    """Return the adapter of an estimator of this module, None for any other.

    Parameters
    ----------
    estimator : object
        A fitted model that ``load_forest`` could read.
    forest : Forest
        What it read.

    Returns
    -------
    EnsembleSource or None
    """
    names = class_names(estimator)
    for name, source in _SOURCES.items():
        if name in names:
            return source(estimator, forest)
    return None
