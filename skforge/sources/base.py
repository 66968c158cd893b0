"""Rows as each source library takes them: its checks, its warnings, its errors.

A :class:`Source` turns what a user passes into rows for the kernels. Whatever it
does not know it declines, and the caller asks the source's own method instead: the
value, the warning or the exception is then the source's by construction.
"""

from __future__ import annotations

import copy
import os
import warnings
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn import config_context, get_config
from sklearn.utils import get_tags

from skforge.compiler.forest.forest import Forest
from skforge.compiler.forest.reference import reference_raw
from skforge.compiler.forest.rows import prepare_rows, read_columns
from skforge.compiler.frontends import load_forest
from skforge.compiler.frontends.base import class_names
from skforge.compiler.frontends.content import is_saved
from skforge.exceptions import (
    InvalidInputError,
    InvalidModelError,
    UnsupportedModelError,
)
from skforge.prediction.sparse import most_entries
from skforge.sources.sklearn import ensemble_source
from skforge.sources.stored_model import StoredModel

Array = NDArray[Any]


class Source(Protocol):
    """A fitted model seen as a taker of rows."""

    #: What absent entries of sparse rows mean.
    fill: float
    #: Whether its own ``predict`` speaks in labels (a Booster's has only scores).
    labels: bool
    #: Dtype of its leaf numbers, and whether ``apply`` drops the axis of one tree.
    leaf_dtype: Any
    flat_leaves: bool

    def rows(self, X: Any, method: str) -> Any:
        """Return an array or CSR matrix for the kernels; None declines."""
        ...

    def plain(self, X: Array) -> bool:
        """Tell whether the source would take these rows without a word.

        ``X`` is known to be a C-contiguous array of the forest's dtype and width.
        """
        ...

    def call(self, method: str, X: Any, **params: Any) -> Any:
        """Return what the source's own method returns."""
        ...

    def raw(self, rows: Array) -> Array:
        """Return raw scores, computed by the source on one thread."""
        ...

    def outputs(self, X: Any) -> dict[str, Any]:
        """Return what methods of a ``Predictor`` must return, computed likewise."""
        ...


def source_of(estimator: Any, forest: Forest) -> Source:
    """Return the adapter of a fitted model that ``load_forest`` could read."""
    from skforge.sources.lightgbm import LightGBMBoosterSource, LightGBMSource
    from skforge.sources.xgboost import BoosterSource, XGBoostSource

    if isinstance(estimator, StoredModel):
        from skforge.sources.stored import stored_source

        return stored_source(estimator, forest)
    names = class_names(estimator)
    if "xgboost.sklearn.XGBModel" in names:
        return XGBoostSource(estimator, forest)
    if "xgboost.core.Booster" in names:
        return BoosterSource(estimator, forest)
    if "lightgbm.sklearn.LGBMModel" in names:
        return LightGBMSource(estimator, forest)
    if "lightgbm.basic.Booster" in names:
        return LightGBMBoosterSource(estimator, forest)
    if hasattr(estimator, "_validate_X_predict"):
        return SklearnSource(estimator, forest)
    ensemble = ensemble_source(estimator, forest)
    if ensemble is not None:
        return ensemble
    if not hasattr(estimator, "fit"):  # a file, a ModelProto, a Forest
        return ForestSource(forest)
    raise UnsupportedModelError(
        f"CompiledForest does not know which rows {type(estimator).__name__} takes; "
        "use skforge.compile_forest(skforge.load_forest(model))."
    )


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


class ForestSource:
    """A file or ``ModelProto``: no source is in memory, so the rules are our own."""

    fill, labels = float("nan"), False
    leaf_dtype, flat_leaves = np.int32, False

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        if forest.source != "xgboost":
            self.fill = 0.0

    def rows(self, X: Any, method: str) -> Any:
        """Check names, widths and values, as ``compile_forest`` does."""
        if not hasattr(X, "tocsr"):
            return prepare_rows(self._forest, X)
        X = read_columns(self._forest, X.tocsr())
        if X.shape[1] != self._forest.n_features:
            raise InvalidInputError(
                f"the forest was trained on {self._forest.n_features} features, "
                f"but the rows have {X.shape[1]} columns."
            )
        if most_entries(X) > 1:  # libraries differ in which of them counts
            raise InvalidInputError(
                "the sparse rows have several entries of one place; add them up with "
                "X.sum_duplicates(), or leave all but one out."
            )
        floats = X.dtype in (np.float32, np.float64)
        if self._forest.source == "lightgbm" and not floats:
            raise InvalidInputError(
                "LightGBM takes sparse rows of float32 or float64. Got "
                f"{X.dtype} instead; use X.astype('float64')."
            )
        return X

    declines = "nothing"

    def plain(self, X: Array) -> bool:
        """Accept everything."""
        return True

    def call(self, method: str, X: Any, **params: Any) -> Any:
        """Refuse: there is nobody to ask."""
        raise InvalidInputError(
            f"{method} of a model file takes rows and nothing else; "
            f"got {', '.join(sorted(params)) or type(X).__name__}."
        )

    def raw(self, rows: Array) -> Array:
        """Return the reference evaluation's scores."""
        raw = reference_raw(self._forest, rows)
        return raw[:, 0] if self._forest.n_outputs == 1 else raw

    def outputs(self, X: Any) -> dict[str, Any]:
        """Return nothing: there is no source to compare with."""
        return {}


def read_model(model: Any) -> Forest:
    """Return the forest of whatever ``CompiledForest`` accepts."""
    if isinstance(model, StoredModel):
        return model.forest
    if isinstance(model, (str, os.PathLike)) and is_saved(model):
        raise InvalidModelError(
            f"{os.fspath(model)} was saved by skforge.save; skforge.load(path) returns "
            "the compiled model, and load_forest(path) its forest alone."
        )
    return model if isinstance(model, Forest) else load_forest(model)
